//! Decodes a trace and writes its lines.

use super::PtxedOptions;
use super::diagnose::LastInsn;
use super::lines::{Lines, ShownBytes};
use crate::code;
use crate::sideband::{Follower, ImagePlan, ProcessImages};
use pugmark_decoder_core::image::{Asid, Image, Window};
use pugmark_decoder_core::insn::MAX_LEN;
use pugmark_ipt::event::flag;
use pugmark_ipt::{
    Answer, Block, BlockDecoder, BlockInsn, BlockOptions, Code, EventOptions, FlowStatus, Release, event_text,
};
use std::ffi::c_int;
use std::io::{self, Write};

/// The status that ends the trace.
const END: c_int = Code::EndOfStream.status();

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
        decoder: BlockDecoder::new(&options.trace, Image::new(&sections), block_options(&options)),
        follower,
        block: Block::default(),
        last: LastInsn::default(),
        lines: Lines::new(&options, out),
    };
    run.run()?;
    run.lines.counts()
}

fn block_options(options: &PtxedOptions) -> BlockOptions {
    let config = &options.config;
    let events = EventOptions {
        errata: config.errata,
        clocks: config.clocks,
        keep_calibration: config.flags.keep_calibration,
        iflags: config.flags.iflags,
        release: Release::V2_3,
    };
    BlockOptions {
        events,
        filter: config.filter,
        ticks: config.flags.ticks,
        end_on_call: options.end_on_call,
        end_on_jump: options.end_on_jump,
    }
}

struct Run<'a> {
    options: &'a PtxedOptions,
    decoder: BlockDecoder<'a>,
    follower: Option<Follower<'a>>,
    block: Block,
    last: LastInsn,
    lines: Lines<'a>,
}

impl Run<'_> {
    fn run(&mut self) -> io::Result<()> {
        let mut failed_at = 0;
        loop {
            self.last = LastInsn::default();
            match self.decoder.sync_forward() {
                Ok(status) => {
                    if self.follow(status)? {
                        return Ok(());
                    }
                }
                Err(END) => return Ok(()),
                Err(error) => {
                    self.diagnose("sync error", error)?;
                    if self.offset() <= failed_at {
                        return Ok(());
                    }
                    failed_at = self.offset();
                }
            }
        }
    }

    /// Decodes up to an error that nothing follows, or the end of the trace; returns `true` at the end.
    fn follow(&mut self, mut status: FlowStatus) -> io::Result<bool> {
        loop {
            let error = self.until_error(status)?;
            if error == END {
                return Ok(true);
            }
            self.diagnose("error", error)?;
            if !self.options.resync_on_error {
                return Ok(false);
            }
            match self.resync()? {
                Ok(place) => status = place,
                Err(error) => {
                    self.diagnose("resync error", error)?;
                    return Ok(false);
                }
            }
        }
    }

    /// Decodes up to an error, and returns it; the end of the trace is one.
    fn until_error(&mut self, mut status: FlowStatus) -> io::Result<c_int> {
        loop {
            let answer = if status.event_pending {
                self.event()?
            } else if status.end {
                if !status.ip_suppressed && !self.options.quiet {
                    writeln!(self.lines.out, "[end of trace]")?;
                }
                return Ok(END);
            } else {
                self.block()?
            };
            match answer {
                Ok(next) => status = next,
                Err(error) => return Ok(error),
            }
        }
    }

    /// Finds a place to continue after an error.
    fn resync(&mut self) -> io::Result<Answer<FlowStatus>> {
        const IGNORED: c_int = Code::EventIgnored.status();
        loop {
            match self.decoder.resync() {
                Err(IGNORED) => {
                    if let Err(error) = self.event()? {
                        return Ok(Err(error));
                    }
                }
                Err(error) => return Ok(Err(error)),
                Ok(status) => {
                    if status.ip_suppressed && !self.options.quiet {
                        writeln!(self.lines.out, "[disabled]")?;
                    }
                    return Ok(Ok(status));
                }
            }
        }
    }

    /// Returns the offset of the packet that the decoder holds.
    fn offset(&self) -> u64 {
        self.decoder.offset().unwrap_or(0)
    }

    fn diagnose(&mut self, kind: &str, error: c_int) -> io::Result<()> {
        let (offset, address) = (self.offset(), self.last.address(error));
        let text = Code::text_of(-error).and_then(|text| text.to_str().ok()).unwrap_or("internal error.");
        writeln!(self.lines.out, "[{offset:x}, {address:x}: {kind}: {text}]")
    }

    fn event(&mut self) -> io::Result<Answer<FlowStatus>> {
        let held = self.offset();
        let (event, status) = match self.decoder.event() {
            Ok(found) => found,
            Err(error) => return Ok(Err(error)),
        };
        let out = &mut *self.lines.out;
        if !event.has(flag::STATUS_UPDATE) && !self.options.quiet {
            write!(out, "[")?;
            if self.options.offset {
                write!(out, "{held:016x}  ")?;
            }
            if self.options.event_time && event.has(flag::HAS_TSC) {
                write!(out, "{:016x}  ", event.tsc)?;
            }
            writeln!(out, "{}]", event_text(&event, self.options.event_ip))?;
        }
        self.lines.time = event.tsc;
        if let Some(follower) = &mut self.follower
            && let Some(image) = follower.event(&event, out)?
        {
            self.decoder.set_image(image);
        }
        Ok(Ok(status))
    }

    /// Decodes a block and writes its lines.
    fn block(&mut self) -> io::Result<Answer<FlowStatus>> {
        let before = self.offset();
        let answer = self.decoder.next(&mut self.block);
        self.last = LastInsn::of(&self.block);
        let (image, space) = (self.decoder.image(), self.decoder.space());
        let section = self.block.insns.first().and_then(|first| image.window(first.ip, space));
        let section = section.unwrap_or_default();
        let after = self.offset();
        self.lines.block(&self.block, |insn| shown_bytes(insn, section, image, space), (before, after))?;
        Ok(answer)
    }
}

/// Returns the bytes from an instruction on, up to the end of its section, or of the instruction if that is later.
fn shown_bytes(insn: &BlockInsn, section: Window<'_>, image: Image<'_>, space: Asid) -> ShownBytes {
    let mut shown = ShownBytes::default();
    let bytes = section.from(insn.ip);
    if bytes.len() < insn.insn.len.into() {
        let read = image.read(insn.ip, space, &mut shown.bytes);
        shown.len = read.min(insn.insn.len.into());
    } else {
        shown.len = bytes.len().min(MAX_LEN);
        shown.bytes[..shown.len].copy_from_slice(&bytes[..shown.len]);
    }
    shown
}
