//! The image that the trace is in.
//!
//! The scheduler switches processes in kernel code, and records say so a little before or behind the place in the trace.
//! So a switch takes effect only at an event in the kernel, on the way into it or out of it, where the processes' own code
//! does not matter.

use super::images::Effect;
use super::session::report;
use super::{Images, Session, Show, Stream};
use pugmark_decoder_core::event::{Event, EventKind};
use pugmark_decoder_core::image::Image;
use std::io::{self, Write};

/// Follows the records beside the trace.
#[derive(Debug)]
pub struct Follower<'s> {
    images: &'s Images<'s>,
    session: Session<'s>,
    show: Show,
    /// Switches are lines.
    show_switches: bool,
    /// How many records were applied.
    applied: usize,
    /// How many parts each process's image has.
    parts: Vec<usize>,
    /// What each stream says about where the trace is.
    places: Vec<Place>,
    /// The process whose image the decoder has, if a record said so.
    current: Option<usize>,
    /// The address in the last PSB+, which all of its events share.
    psb_ip: Option<u64>,
}

/// Where the trace is as one stream sees it.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The lowest address of the kernel.
    kernel_start: u64,
    location: Location,
    context: Option<usize>,
    /// A switch that waits for its place.
    next: Option<usize>,
}

/// Where the trace is, as far as events say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    Unknown,
    Kernel,
    User,
}

impl<'s> Follower<'s> {
    /// In front of the first record of the streams that the images were made of.
    ///
    /// # Errors
    /// Those of `out`. Errors in the records are lines.
    pub fn new(
        streams: &'s [Stream],
        images: &'s Images<'s>,
        show: Show,
        show_switches: bool,
        out: &mut dyn Write,
    ) -> io::Result<Self> {
        let place = |stream: &Stream| Place {
            kernel_start: stream.config().kernel_start,
            location: Location::Unknown,
            context: None,
            next: None,
        };
        Ok(Self {
            session: Session::new(streams, out)?,
            show,
            show_switches,
            applied: 0,
            parts: images.initial(),
            places: streams.iter().map(place).collect(),
            current: None,
            psb_ip: None,
            images,
        })
    }

    /// Shows and applies the records that are due at `event`; returns the image to go on with where it changed.
    ///
    /// # Errors
    /// Those of `out`. Errors in the records are lines.
    pub fn event(&mut self, event: &Event, out: &mut dyn Write) -> io::Result<Option<Image<'s>>> {
        let mut changed = false;
        while let Some((record, cursor)) = self.session.next_due(event.when.time) {
            self.show.event(&record, &cursor, out)?;
            let effect = self.images.effect(self.applied);
            self.applied += 1;
            match effect {
                Effect::None => {}
                Effect::Grow { context, parts } => {
                    self.parts[context] = parts;
                    changed |= self.current == Some(context);
                }
                Effect::Switch(context) => self.places[cursor.number].prepare(context),
                Effect::Start(context) => {
                    self.places[cursor.number].prepare(context);
                    changed |= self.switch(cursor.number, out)?;
                }
                Effect::Warn(warning) if self.show.warn => report(out, &cursor, "warning", &warning)?,
                Effect::Warn(_) => {}
                Effect::Fail(problem) => report(out, &cursor, "error", &problem)?,
            }
            self.session.advance(cursor, out)?;
        }
        let mut event = *event;
        if let (true, EventKind::Enabled { .. } | EventKind::Disabled) = (event.status, event.kind) {
            self.psb_ip = event.ip;
        } else if event.status {
            event.ip = self.psb_ip;
        }
        let present: Vec<usize> = self.session.present().collect();
        for stream in present {
            if self.places[stream].go_to(&event) {
                changed |= self.switch(stream, out)?;
            }
        }
        Ok(self.current.filter(|_| changed).map(|context| self.images.image(context, self.parts[context])))
    }

    /// Switches to the process that the stream waits for, if it does; whether it does.
    fn switch(&mut self, stream: usize, out: &mut dyn Write) -> io::Result<bool> {
        let place = &mut self.places[stream];
        let Some(context) = place.next.take() else { return Ok(false) };
        place.context = Some(context);
        self.current = Some(context);
        if self.show_switches {
            writeln!(out, "[context: {}]", self.images.name(context))?;
        }
        Ok(true)
    }
}

impl Place {
    /// A switch takes the place of one that waits; there is none to the process that is the current one.
    fn prepare(&mut self, context: usize) {
        self.next = Some(context).filter(|_| self.context != Some(context));
    }

    /// The trace comes to this event; whether processes may be switched there.
    fn go_to(&mut self, event: &Event) -> bool {
        let before = self.location;
        self.location = self.location_of(event);
        before != Location::User || self.location != Location::User
    }

    /// Where the trace is behind an event.
    fn location_of(&self, event: &Event) -> Location {
        let of = |ip: u64| if ip < self.kernel_start { Location::User } else { Location::Kernel };
        let other = |location| match location {
            Location::Kernel => Location::User,
            Location::User => Location::Kernel,
            Location::Unknown => Location::Unknown,
        };
        match (event.kind, event.ip) {
            (EventKind::Enabled { .. } | EventKind::AsyncBranch { .. }, ip) => of(ip.unwrap_or(0)),
            (EventKind::Disabled, None) => other(self.location),
            (EventKind::AsyncDisabled { at }, None) => other(of(at)),
            (EventKind::Paging(_) | EventKind::AsyncPaging(_), None) => Location::Kernel,
            (EventKind::Paging(_), Some(_)) if !event.status => Location::Kernel,
            (kind, Some(ip)) if has_location(kind) => of(ip),
            _ => Location::Unknown,
        }
    }
}

/// Whether libipt takes the address of such an event for a location.
fn has_location(kind: EventKind) -> bool {
    !matches!(
        kind,
        EventKind::Vmcs(_)
            | EventKind::AsyncVmcs(_)
            | EventKind::Stop
            | EventKind::Pwre(_)
            | EventKind::Pwrx(_)
            | EventKind::Cbr { .. }
            | EventKind::Mnt { .. }
            | EventKind::Sipi { .. }
            | EventKind::Trigger { .. }
            | EventKind::Swintr { .. }
            | EventKind::Syscall
    )
}

#[cfg(test)]
mod tests;
