//! Finds the image (the code of one process) for the trace after each event.
//!
//! The scheduler switches processes in kernel code, and the record of a switch comes a little before or after the
//! switch in the trace. A switch therefore takes effect only at an event in the kernel, or on the way into the kernel
//! or out of it, where the processes' own code does not matter.

use super::images::Effect;
use super::merged::report;
use super::{MergedStreams, ProcessImages, ShowOptions, Stream};
use pugmark_decoder_core::image::Image;
use pugmark_ipt::event::{PtEvent, kind};
use std::ffi::c_int;
use std::io::{self, Write};

/// Applies the sideband records while the trace is decoded.
#[derive(Debug)]
pub struct Follower<'s> {
    images: &'s ProcessImages<'s>,
    merged: MergedStreams<'s>,
    show: ShowOptions,
    /// True if each switch prints a line.
    show_switches: bool,
    /// The number of records that were applied.
    applied: usize,
    /// The number of parts that each process's image has so far.
    parts: Vec<usize>,
    /// The trace's position for each stream.
    places: Vec<StreamPosition>,
    /// The process whose image the decoder has, if a record named one.
    current: Option<usize>,
}

/// The trace's position, as one stream sees it.
#[derive(Clone, Copy, Debug)]
struct StreamPosition {
    /// The lowest address of the kernel.
    kernel_start: u64,
    location: Location,
    context: Option<usize>,
    /// The process of a switch that has not taken effect yet.
    next: Option<usize>,
}

/// The privilege level at the trace's position, as far as known from the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    Unknown,
    Kernel,
    User,
}

impl<'s> Follower<'s> {
    /// Starts before the first record of the streams that the images were made from.
    ///
    /// # Errors
    /// Those of `out`. Errors in the records are written as lines.
    pub fn new(
        streams: &'s [Stream],
        images: &'s ProcessImages<'s>,
        show: ShowOptions,
        show_switches: bool,
        out: &mut dyn Write,
    ) -> io::Result<Self> {
        let place = |stream: &Stream| StreamPosition {
            kernel_start: stream.config().kernel_start,
            location: Location::Unknown,
            context: None,
            next: None,
        };
        Ok(Self {
            merged: MergedStreams::new(streams, out)?,
            show,
            show_switches,
            applied: 0,
            parts: images.initial(),
            places: streams.iter().map(place).collect(),
            current: None,
            images,
        })
    }

    /// Shows and applies the records that are due at `event`. Returns the image to continue with if it changed.
    ///
    /// # Errors
    /// Those of `out`. Errors in the records are written as lines.
    pub fn event(&mut self, event: &PtEvent, out: &mut dyn Write) -> io::Result<Option<Image<'s>>> {
        let mut changed = false;
        while let Some((record, cursor)) = self.merged.next_until(event.tsc) {
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
            self.merged.advance(cursor, out)?;
        }
        let present: Vec<usize> = self.merged.present().collect();
        for stream in present {
            if self.places[stream].go_to(event) {
                changed |= self.switch(stream, out)?;
            }
        }
        Ok(self.current.filter(|_| changed).map(|context| self.images.image(context, self.parts[context])))
    }

    /// Makes the stream's pending switch, if there is one, take effect. Returns true if there was one.
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

impl StreamPosition {
    /// Makes a switch pending, in place of an earlier pending one. A switch to the current process is dropped.
    fn prepare(&mut self, context: usize) {
        self.next = Some(context).filter(|_| self.context != Some(context));
    }

    /// Moves to this event. Returns true if a switch may take effect there.
    fn go_to(&mut self, event: &PtEvent) -> bool {
        let before = self.location;
        self.location = self.location_of(event);
        before != Location::User || self.location != Location::User
    }

    /// Returns the location after an event.
    fn location_of(&self, event: &PtEvent) -> Location {
        let of = |ip: u64| if ip < self.kernel_start { Location::User } else { Location::Kernel };
        let other = |location| match location {
            Location::Kernel => Location::User,
            Location::User => Location::Kernel,
            Location::Unknown => Location::Unknown,
        };
        match (event.kind, event.ip()) {
            (kind::ENABLED | kind::ASYNC_BRANCH, ip) => of(ip.unwrap_or(0)),
            (kind::DISABLED, None) => other(self.location),
            (kind::ASYNC_DISABLED, None) => other(of(event.variant[0])),
            (kind::PAGING, _) | (kind::ASYNC_PAGING, None) => Location::Kernel,
            (kind, Some(ip)) if has_location(kind) => of(ip),
            _ => Location::Unknown,
        }
    }
}

/// Returns true if libipt treats the address of such an event as a location.
fn has_location(kind: c_int) -> bool {
    !matches!(
        kind,
        kind::VMCS
            | kind::ASYNC_VMCS
            | kind::STOP
            | kind::PWRE
            | kind::PWRX
            | kind::CBR
            | kind::MNT
            | kind::SIPI
            | kind::TRIG
            | kind::SWINTR
            | kind::SYSCALL
    )
}

#[cfg(test)]
mod tests;
