//! From a trace to lines.

use super::block::Blocks;
use super::diagnose::{Last, is_fetch_error};
use super::insn_line::insn_text;
use super::{Decoder, Options};
use crate::sideband::Context;
use pugmark_decoder_core::error::Error;
use pugmark_decoder_core::event::Event;
use pugmark_decoder_core::flow::{Insn, InsnDecoder, Item, Recovered};
use pugmark_decoder_core::image::{Image, Window};
use pugmark_decoder_core::insn::{self, MAX_LEN};
use std::io::{self, Write};

/// Writes a line for each instruction and event of the trace to `out`.
///
/// # Errors
/// Those of `out`. Errors in the trace are lines.
pub fn decode(mut options: Options, out: &mut dyn Write) -> io::Result<()> {
    let streams = std::mem::take(&mut options.streams);
    let context =
        (!streams.is_empty()).then(|| Context::new(streams, options.sideband, options.show_switches));
    let sections = options.code.sections();
    let trace = std::mem::take(&mut options.trace);
    let decoder = InsnDecoder::with_config(&trace, Image::new(&sections), options.config);
    let blocks =
        (options.decoder == Decoder::Block).then(|| Blocks::new(options.end_on_call, options.end_on_jump));
    let mut run = Run {
        options: &options,
        decoder,
        context,
        blocks,
        window: Window::default(),
        last: Last::default(),
        time: 0,
        insns: 0,
        block_count: 0,
        out,
    };
    run.run()?;
    if options.stat_insn {
        writeln!(run.out, "insn: {}.", run.insns)?;
    }
    if options.stat_blocks && options.decoder == Decoder::Block {
        writeln!(run.out, "blocks:\t{}.", run.block_count)?;
    }
    Ok(())
}

struct Run<'a, 'o> {
    options: &'o Options,
    decoder: InsnDecoder<'a>,
    context: Option<Context>,
    blocks: Option<Blocks>,
    /// The section of the last instruction.
    window: Window<'a>,
    last: Last,
    /// The time of the last event.
    time: u64,
    insns: u64,
    block_count: u64,
    out: &'o mut dyn Write,
}

impl Run<'_, '_> {
    fn run(&mut self) -> io::Result<()> {
        let mut failed_at = 0;
        while self.decoder.sync_forward_from_held().is_some() {
            self.last = Last::default();
            self.end_block();
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

    /// Takes the status updates that a synchronisation begins with.
    fn status(&mut self) -> io::Result<Result<(), Error>> {
        loop {
            match self.decoder.sync_status() {
                Ok(Some(event)) => self.event(&event)?,
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Goes on until an error, or until the end of the trace: `true`.
    fn follow(&mut self) -> io::Result<bool> {
        loop {
            match self.decoder.next() {
                Ok(Some(Item::Insn(insn))) => self.insn(&insn)?,
                Ok(Some(Item::Event(event))) => {
                    self.end_block();
                    self.event(&event)?;
                }
                Ok(None) => {
                    if self.decoder.ip().is_some() && !self.options.quiet {
                        writeln!(self.out, "[end of trace]")?;
                    }
                    return Ok(true);
                }
                Err(error) => {
                    if is_fetch_error(&error) && self.blocks.as_ref().is_some_and(|blocks| !blocks.is_open())
                    {
                        self.begin_block()?;
                    }
                    self.end_block();
                    self.diagnose("error", &error)?;
                    if !self.options.resync_on_error || !self.recover()? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Looks for a place to go on behind an error; `false` when there is none.
    fn recover(&mut self) -> io::Result<bool> {
        loop {
            match self.decoder.recover() {
                Ok(Recovered::Place) => break,
                Ok(Recovered::Event(event)) => self.event(&event)?,
                Ok(Recovered::End) => {
                    let offset = self.decoder.held();
                    let ip = self.last.recorded();
                    writeln!(self.out, "[{offset:x}, {ip:x}: resync error: reached end of trace stream]")?;
                    return Ok(false);
                }
                Err(error) => {
                    self.diagnose("resync error", &error)?;
                    return Ok(false);
                }
            }
        }
        if self.decoder.ip().is_none() && !self.options.quiet {
            writeln!(self.out, "[disabled]")?;
        }
        Ok(true)
    }

    fn diagnose(&mut self, kind: &str, error: &Error) -> io::Result<()> {
        let address = self.last.address(error);
        self.last.record(address);
        writeln!(
            self.out,
            "[{:x}, {address:x}: {kind}: {}]",
            self.error_offset(error),
            error.kind.libipt_text()
        )
    }

    /// Errors of the code are at the packet that the decoder holds.
    fn error_offset(&self, error: &Error) -> u64 {
        if error.kind.ip().is_some() { self.decoder.held() } else { error.offset }
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        if !event.status && !self.options.quiet {
            write!(self.out, "[")?;
            if self.options.offset {
                write!(self.out, "{:016x}  ", event.held)?;
            }
            if let Some(tsc) = event.when.tsc.filter(|_| self.options.event_time) {
                write!(self.out, "{tsc:016x}  ")?;
            }
            writeln!(self.out, "{}]", event.text(self.options.event_ip))?;
        }
        self.time = event.when.time;
        if let Some(context) = &mut self.context
            && let Some(sections) = context.event(event, self.out)?
        {
            self.window = Window::default();
            self.decoder.set_image(Image::new(sections));
        }
        Ok(())
    }

    fn insn(&mut self, insn: &Insn) -> io::Result<()> {
        if self.window.from(insn.ip).is_empty() {
            self.window = self.decoder.image().window(insn.ip, self.decoder.cr3()).unwrap_or_default();
        }
        let mut buffer = [0; MAX_LEN];
        let bytes = match self.window.from(insn.ip).get(..insn.len.into()) {
            Some(bytes) => bytes,
            None => {
                let read = self.decoder.image().read(insn.ip, self.decoder.cr3(), &mut buffer);
                &buffer[..read.min(insn.len.into())]
            }
        };
        let target = insn::decode(bytes, insn.mode, insn.ip).ok().and_then(|insn| insn.target);
        let to_event = self.decoder.awaits_event();
        self.last = Last::after(insn.ip, insn.len, insn.class, bytes, target);
        self.insns += 1;
        let text = (!self.options.quiet).then(|| insn_text(insn.ip, insn.mode, bytes, self.options));
        let begins =
            self.blocks.as_mut().is_some_and(|blocks| blocks.add(insn, target, self.window, to_event));
        if begins {
            self.begin_block()?;
        }
        let held = self.decoder.held();
        if self.blocks.is_none() {
            self.decoder.look_ahead();
        }
        let Some(text) = text else { return Ok(()) };
        if self.options.offset {
            write!(self.out, "{held:016x}  ")?;
        }
        if self.options.time {
            write!(self.out, "{:016x}  ", self.time)?;
        }
        let speculative = if insn.speculative { "? " } else { "" };
        writeln!(self.out, "{speculative}{:016x}{text}", insn.ip)
    }

    fn begin_block(&mut self) -> io::Result<()> {
        self.block_count += 1;
        let options = self.options;
        match (options.show_blocks && !options.quiet, options.stat_insn || options.stat_blocks) {
            (true, true) => writeln!(self.out, "[block {:x}]", self.block_count),
            (true, false) => writeln!(self.out, "[block]"),
            (false, _) => Ok(()),
        }
    }

    fn end_block(&mut self) {
        if let Some(blocks) = &mut self.blocks {
            blocks.end();
        }
    }
}
