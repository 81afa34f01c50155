//! Writes the lines of instructions, block by block.
//!
//! libipt's programs show a block after they have decoded all of it. The packet offset shown is therefore the one that
//! the decoder held before the block (block decoder), or after the block for all instructions but the first
//! (instruction decoder).

use super::block::{BlockFinder, Goal};
use super::insn_line::{insn_text, refusal_text};
use super::reading::{IcedReading, Refusal};
use super::{Decoder, PtxedOptions};
use pugmark_decoder_core::flow::ExecutedInsn;
use pugmark_decoder_core::image::Window;
use pugmark_decoder_core::insn::MAX_LEN;
use std::io::{self, Write};

/// Writes the lines of instructions and counts them.
pub(super) struct Lines<'o> {
    options: &'o PtxedOptions,
    blocks: BlockFinder,
    block: ShownBlock,
    /// True after the line of an event after a branch: the next block has begun at the branch's target.
    left: bool,
    /// The time of the last event.
    pub(super) time: u64,
    insns: u64,
    block_count: u64,
    pub(super) out: &'o mut dyn Write,
}

/// The block so far.
#[derive(Debug, Default)]
struct ShownBlock {
    /// The offset of the packet that the decoder held when the block began.
    held: u64,
    last: Option<(ExecutedInsn, IcedReading)>,
    /// The first instruction that the other decoder refused. The block decoder shows no instruction after it.
    lost: Option<(u64, Refusal)>,
    /// Instructions that the instruction decoder will show at the block's end.
    waiting: Vec<(ExecutedInsn, ShownBytes)>,
}

/// The bytes of an instruction, or as many as could be read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShownBytes {
    pub(super) bytes: [u8; MAX_LEN],
    /// The number of bytes.
    pub(super) len: usize,
}

impl ShownBytes {
    fn get(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<'o> Lines<'o> {
    /// Starts with nothing shown.
    pub(super) fn new(options: &'o PtxedOptions, out: &'o mut dyn Write) -> Self {
        let blocks = match options.decoder {
            Decoder::Block => BlockFinder::new(options.end_on_call, options.end_on_jump),
            Decoder::Insn => BlockFinder::new(false, false),
        };
        Self {
            options,
            blocks,
            block: ShownBlock::default(),
            left: false,
            time: 0,
            insns: 0,
            block_count: 0,
            out,
        }
    }

    /// Shows the next instruction, which is in `window`. `target` is its target if it is a direct branch. `bytes` may
    /// hold more than the instruction.
    pub(super) fn insn(
        &mut self,
        insn: &ExecutedInsn,
        bytes: ShownBytes,
        (window, target): (Window<'_>, Option<u64>),
        (held, goal): (u64, Goal),
    ) -> io::Result<()> {
        self.insns += 1;
        self.left = false;
        let begins = self.blocks.add(insn, target, window, goal);
        if begins {
            self.finish(held)?;
            self.begin(held)?;
        }
        if self.options.decoder == Decoder::Block {
            return self.insn_of_block(insn, &bytes);
        }
        let bytes = ShownBytes { len: bytes.len.min(insn.len.into()), ..bytes };
        if begins || !self.options.offset && !self.options.check {
            return self.insn_alone(insn, &bytes, held);
        }
        self.block.waiting.push((*insn, bytes));
        Ok(())
    }

    /// Handles an event that takes effect at the end of a block, even of an empty one.
    pub(super) fn reach_event(&mut self, held: u64) -> io::Result<()> {
        if !self.blocks.reaches_event() {
            self.finish(held)?;
            self.left = true;
        }
        Ok(())
    }

    /// Ends the block because of an event. `held` is the offset of the packet that the decoder holds.
    pub(super) fn end(&mut self, held: u64) -> io::Result<()> {
        if std::mem::take(&mut self.left) {
            self.begin(held)?;
        }
        self.blocks.end();
        self.finish(held)
    }

    /// Begins a block, which may stay empty, after an event that came with a branch: the decoder has followed the
    /// branch before it returned the event.
    pub(super) fn follow_branch(&mut self) {
        self.left = true;
    }

    /// Ends the block at the end of the trace, or before decoding restarts.
    pub(super) fn stop(&mut self, held: u64) -> io::Result<()> {
        self.left = false;
        self.end(held)
    }

    /// Ends the block because of an error.
    pub(super) fn fail(&mut self, held: u64) -> io::Result<()> {
        if std::mem::take(&mut self.left) {
            self.begin(held)?;
        }
        self.blocks.fail();
        self.finish(held)
    }

    /// Ends the block because the code after it cannot be read. If no block is open, an empty one begins first.
    pub(super) fn fail_to_fetch(&mut self, held: u64) -> io::Result<()> {
        if !self.blocks.is_open() {
            self.finish(held)?;
            self.left = true;
        }
        self.fail(held)
    }

    /// Writes the counts that the options request.
    pub(super) fn counts(&mut self) -> io::Result<()> {
        if self.options.stat_insn {
            writeln!(self.out, "insn: {}.", self.insns)?;
        }
        if self.options.stat_blocks {
            writeln!(self.out, "blocks:\t{}.", self.block_count)?;
        }
        Ok(())
    }

    fn begin(&mut self, held: u64) -> io::Result<()> {
        self.block.held = held;
        let options = self.options;
        if options.decoder == Decoder::Insn {
            return Ok(());
        }
        self.block_count += 1;
        match (options.show_blocks && !options.quiet, options.stat_insn || options.stat_blocks) {
            (true, true) => writeln!(self.out, "[block {:x}]", self.block_count),
            (true, false) => writeln!(self.out, "[block]"),
            (false, _) => Ok(()),
        }
    }

    fn finish(&mut self, held: u64) -> io::Result<()> {
        let block = std::mem::take(&mut self.block);
        for (insn, bytes) in &block.waiting {
            self.insn_alone(insn, bytes, held)?;
        }
        let Some((last, reading)) = block.last else { return Ok(()) };
        let options = self.options;
        if let Some((ip, _)) = block.lost.filter(|(ip, _)| *ip != last.ip && !options.quiet) {
            writeln!(self.out, "[{held:x}, {ip:x}: reconstruct error: decoder out of sync]")?;
        }
        match block.lost {
            _ if !options.check => Ok(()),
            Some((ip, refusal)) => writeln!(self.out, "[{:x}, {ip:x}: xed error: {refusal}]", block.held),
            None => self.check(&last, &reading, block.held),
        }
    }

    fn insn_of_block(&mut self, insn: &ExecutedInsn, bytes: &ShownBytes) -> io::Result<()> {
        if self.options.quiet && !self.options.check {
            return Ok(());
        }
        let reading = IcedReading::of(bytes.get(), insn.mode, insn.ip);
        let is_lost = self.block.lost.is_some();
        self.block.last = Some((*insn, reading));
        if let IcedReading::Refused(refusal) = reading {
            self.block.lost.get_or_insert((insn.ip, refusal));
        }
        if self.options.quiet || is_lost {
            return Ok(());
        }
        self.columns(insn, self.block.held)?;
        let own = &bytes.bytes[..bytes.len.min(insn.len.into())];
        match reading {
            IcedReading::Refused(refusal) => writeln!(self.out, "{}", refusal_text(refusal, bytes.get())),
            _ => writeln!(self.out, "{}", insn_text(&reading, own, self.options)),
        }
    }

    fn insn_alone(&mut self, insn: &ExecutedInsn, bytes: &ShownBytes, held: u64) -> io::Result<()> {
        let PtxedOptions { quiet, no_inst, check, .. } = *self.options;
        let needed = check || !quiet && !no_inst;
        let reading =
            if needed { IcedReading::of(bytes.get(), insn.mode, insn.ip) } else { IcedReading::Newer };
        if !quiet {
            self.columns(insn, held)?;
            match reading {
                IcedReading::Refused(refusal) if !no_inst => {
                    writeln!(self.out, "{}", refusal_text(refusal, bytes.get()))?;
                }
                _ => writeln!(self.out, "{}", insn_text(&reading, bytes.get(), self.options))?,
            }
        }
        if check { self.check(insn, &reading, held) } else { Ok(()) }
    }

    /// Writes the columns before an instruction, and its address.
    fn columns(&mut self, insn: &ExecutedInsn, held: u64) -> io::Result<()> {
        if self.options.offset {
            write!(self.out, "{held:016x}  ")?;
        }
        if self.options.time {
            write!(self.out, "{:016x}  ", self.time)?;
        }
        write!(self.out, "{}{:016x}", if insn.speculative { "? " } else { "" }, insn.ip)
    }

    /// Writes the errors that `--check` finds in an instruction.
    fn check(&mut self, insn: &ExecutedInsn, reading: &IcedReading, held: u64) -> io::Result<()> {
        let ip = insn.ip;
        match reading {
            IcedReading::Refused(refusal) => writeln!(self.out, "[{held:x}, {ip:x}: xed error: {refusal}]"),
            _ => match reading.objection(insn.class) {
                Some(objection) => writeln!(self.out, "[{held:x}, {ip:x}: iclass error: {objection}]"),
                None => Ok(()),
            },
        }
    }
}
