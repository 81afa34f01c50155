//! Decodes a trace and writes its lines.

use super::PtxedOptions;
use super::block::Goal;
use super::diagnose::{LastInsn, is_fetch_error};
use super::lines::{Lines, ShownBytes};
use crate::code;
use crate::sideband::{Follower, ImagePlan, ProcessImages};
use pugmark_decoder_core::event::{Event, EventKind};
use pugmark_decoder_core::flow::{ExecutedInsn, FlowItem, InsnDecoder, Placed, Recovered};
use pugmark_decoder_core::image::{Image, Window};
use pugmark_decoder_core::insn::{self, MAX_LEN};
use pugmark_decoder_core::packet::PSB;
use pugmark_decoder_core::{Error, ErrorKind};
use pugmark_ipt::{Code, event_text};
use std::io::{self, Write};

/// Writes a line for each instruction and event of the trace to `out`.
///
/// # Errors
/// Those of `out`. Errors in the trace are written as lines.
pub fn decode(mut options: PtxedOptions, out: &mut dyn Write) -> io::Result<()> {
    let streams = std::mem::take(&mut options.streams);
    let plan = ImagePlan::new(&streams, &options.code.kernel, &mut options.cache);
    let images = ProcessImages::new(plan, &options.cache);
    let follower = match streams.as_slice() {
        [] => None,
        streams => Some(Follower::new(streams, &images, options.sideband, options.show_switches, out)?),
    };
    let sections = code::sections(&options.code.first, &options.cache);
    let mut run = Run {
        options: &options,
        decoder: InsnDecoder::with_config(&options.trace, Image::new(&sections), options.config),
        follower,
        window: Window::default(),
        last: LastInsn::default(),
        lines: Lines::new(&options, out),
    };
    run.run()?;
    run.lines.counts()
}

struct Run<'a> {
    options: &'a PtxedOptions,
    decoder: InsnDecoder<'a>,
    follower: Option<Follower<'a>>,
    /// The section of the last instruction.
    window: Window<'a>,
    last: LastInsn,
    lines: Lines<'a>,
}

impl Run<'_> {
    fn run(&mut self) -> io::Result<()> {
        let mut failed_at = 0;
        while self.decoder.sync_forward_from_held().is_some() {
            self.last = LastInsn::default();
            if let Err(error) = self.status()? {
                self.diagnose("sync error", &error)?;
                if error.offset <= failed_at {
                    break;
                }
                failed_at = error.offset;
                continue;
            }
            if self.follow()? {
                break;
            }
        }
        Ok(())
    }

    /// Takes the status events that follow a synchronisation.
    fn status(&mut self) -> io::Result<Result<(), Error>> {
        loop {
            match self.decoder.sync_status() {
                Ok(Some(event)) => self.event(&event)?,
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Decodes up to an error or the end of the trace; returns `true` at the end.
    fn follow(&mut self) -> io::Result<bool> {
        loop {
            match self.decoder.next() {
                Ok(Some(FlowItem::Insn(insn))) => self.insn(&insn)?,
                Ok(Some(FlowItem::Event(event))) => self.event(&event)?,
                Ok(None) => {
                    self.lines.stop(self.decoder.held())?;
                    if self.decoder.ip().is_some() && !self.options.quiet {
                        writeln!(self.lines.out, "[end of trace]")?;
                    }
                    return Ok(true);
                }
                Err(error) => {
                    let offset = self.error_offset(&error);
                    match is_fetch_error(&error) {
                        true => self.lines.fail_to_fetch(offset)?,
                        false => self.lines.fail(offset)?,
                    }
                    self.diagnose("error", &error)?;
                    if !self.options.resync_on_error || !self.recover()? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Finds a place to continue after an error; returns `false` if there is none.
    fn recover(&mut self) -> io::Result<bool> {
        loop {
            match self.decoder.recover() {
                Ok(Recovered::Place) => break,
                Ok(Recovered::Event(event)) => self.event(&event)?,
                Ok(Recovered::End) => {
                    let (offset, ip) = (self.decoder.held(), self.last.recorded());
                    let error = "reached end of trace stream";
                    writeln!(self.lines.out, "[{offset:x}, {ip:x}: resync error: {error}]")?;
                    return Ok(false);
                }
                Err(error) => {
                    self.diagnose("resync error", &error)?;
                    return Ok(false);
                }
            }
        }
        if self.decoder.ip().is_none() && !self.options.quiet {
            writeln!(self.lines.out, "[disabled]")?;
        }
        Ok(true)
    }

    fn diagnose(&mut self, kind: &str, error: &Error) -> io::Result<()> {
        let address = self.last.address(error);
        if is_fetch_error(error) {
            self.last.record(address);
        }
        let (offset, text) = (self.error_offset(error), Code::from(error.kind).text());
        writeln!(self.lines.out, "[{offset:x}, {address:x}: {kind}: {text}]")
    }

    /// Returns the offset to report for an error. Errors in the code are reported at the packet that the decoder holds.
    fn error_offset(&self, error: &Error) -> u64 {
        match error.kind {
            // A contradicting MODE.Exec is reported at its offset, a contradicting PSB+ at the packet after it.
            ErrorKind::StateMismatch { .. } if !self.is_psb(error.offset) => error.offset,
            kind if kind.ip().is_some() => self.decoder.held(),
            _ => error.offset,
        }
    }

    fn is_psb(&self, offset: u64) -> bool {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.decoder.trace().get(offset..));
        rest.is_some_and(|rest| rest.starts_with(&PSB))
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        let placed = self.decoder.placed();
        if (event.kind, event.status, placed) == (EventKind::Disabled, false, Placed::Here) {
            self.lines.reach_event(event.held)?;
        }
        self.lines.end(event.held)?;
        if let (Placed::Left, Some(ip)) = (placed, self.decoder.ip()) {
            self.last.begin_at(ip);
            self.lines.follow_branch();
        }
        let out = &mut *self.lines.out;
        if !event.status && !self.options.quiet {
            write!(out, "[")?;
            if self.options.offset {
                write!(out, "{:016x}  ", event.held)?;
            }
            if let Some(tsc) = event.when.tsc.filter(|_| self.options.event_time) {
                write!(out, "{tsc:016x}  ")?;
            }
            writeln!(out, "{}]", event_text(event, self.options.event_ip))?;
        }
        self.lines.time = event.when.time;
        if let Some(follower) = &mut self.follower
            && let Some(image) = follower.event(event, out)?
        {
            self.window = Window::default();
            self.decoder.set_image(image);
        }
        Ok(())
    }

    fn insn(&mut self, insn: &ExecutedInsn) -> io::Result<()> {
        if self.window.from(insn.ip).is_empty() {
            self.window = self.decoder.image().window(insn.ip, self.decoder.asid().cr3).unwrap_or_default();
        }
        let mut bytes = ShownBytes::default();
        let window = self.window.from(insn.ip);
        if window.len() < insn.len.into() {
            // The instruction spans sections.
            let read = self.decoder.image().read(insn.ip, self.decoder.asid().cr3, &mut bytes.bytes);
            bytes.len = read.min(insn.len.into());
        } else {
            bytes.len = window.len().min(MAX_LEN);
            bytes.bytes[..bytes.len].copy_from_slice(&window[..bytes.len]);
        }
        let own = &bytes.bytes[..bytes.len.min(insn.len.into())];
        let target = insn::decode(own, insn.mode, insn.ip).ok().and_then(|insn| insn.target);
        self.last = LastInsn::after(insn.ip, insn.len, insn.class, own, target);
        let position = (self.decoder.held(), Goal::to(self.decoder.awaited()));
        self.lines.insn(insn, bytes, (self.window, target), position)
    }
}
