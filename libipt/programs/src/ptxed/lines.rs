//! Writes the lines of instructions, block by block.
//!
//! libipt's programs show a block after they have decoded all of it. The packet offset shown is therefore the one that
//! the decoder held before the block (block decoder), or after the block for all instructions but the first
//! (instruction decoder).

use super::insn_line::{insn_text, refusal_text};
use super::reading::{IcedReading, Refusal};
use super::{Decoder, PtxedOptions};
use pugmark_decoder_core::insn::MAX_LEN;
use pugmark_decoder_core::mode::ExecMode;
use pugmark_ipt::{Block, BlockInsn};
use std::io::{self, Write};

/// Writes the lines of instructions and counts them.
pub(super) struct Lines<'o> {
    options: &'o PtxedOptions,
    /// The time of the last event.
    pub(super) time: u64,
    insns: u64,
    block_count: u64,
    pub(super) out: &'o mut dyn Write,
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

    /// Returns no more bytes than the instruction has.
    fn of(&self, insn: &BlockInsn) -> &[u8] {
        &self.bytes[..self.len.min(insn.insn.len.into())]
    }
}

impl<'o> Lines<'o> {
    /// Starts with nothing shown.
    pub(super) fn new(options: &'o PtxedOptions, out: &'o mut dyn Write) -> Self {
        Self { options, time: 0, insns: 0, block_count: 0, out }
    }

    /// Shows a block, which may be empty. `bytes` may return more than the instruction. The offsets are those of the
    /// packets that the decoder held before and after the block.
    pub(super) fn block(
        &mut self,
        block: &Block,
        bytes: impl Fn(&BlockInsn) -> ShownBytes,
        (before, after): (u64, u64),
    ) -> io::Result<()> {
        self.insns += block.insns.len() as u64;
        if self.options.decoder == Decoder::Block {
            return self.whole_block(block, bytes, (before, after));
        }
        let mut held = before;
        for insn in &block.insns {
            self.insn_alone(block, insn, &bytes(insn), held)?;
            held = after;
        }
        Ok(())
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

    /// Shows a block of the block decoder. No instruction is shown after one that the other decoder refused.
    fn whole_block(
        &mut self,
        block: &Block,
        bytes: impl Fn(&BlockInsn) -> ShownBytes,
        (before, after): (u64, u64),
    ) -> io::Result<()> {
        let options = self.options;
        self.block_count += 1;
        match (options.show_blocks && !options.quiet, options.stat_insn || options.stat_blocks) {
            (true, true) => writeln!(self.out, "[block {:x}]", self.block_count)?,
            (true, false) => writeln!(self.out, "[block]")?,
            (false, _) => {}
        }
        let Some(last) = block.last().filter(|_| !options.quiet || options.check) else { return Ok(()) };
        let mut lost = None;
        for insn in &block.insns {
            let bytes = bytes(insn);
            let reading = read(block, insn, bytes.get());
            if !options.quiet {
                self.columns(block, insn, before)?;
                match reading {
                    IcedReading::Refused(refusal) => {
                        writeln!(self.out, "{}", refusal_text(refusal, bytes.get()))?;
                    }
                    _ => writeln!(self.out, "{}", insn_text(&reading, bytes.of(insn), options))?,
                }
            }
            if let IcedReading::Refused(refusal) = reading {
                lost = Some((insn.ip, refusal));
                break;
            }
        }
        if let Some((ip, _)) = lost.filter(|(ip, _)| *ip != last.ip && !options.quiet) {
            writeln!(self.out, "[{after:x}, {ip:x}: reconstruct error: decoder out of sync]")?;
        }
        match lost {
            _ if !options.check => Ok(()),
            Some((ip, refusal)) => self.refused(before, ip, refusal),
            None => self.check(last, &read(block, last, bytes(last).get()), before),
        }
    }

    fn insn_alone(
        &mut self,
        block: &Block,
        insn: &BlockInsn,
        bytes: &ShownBytes,
        held: u64,
    ) -> io::Result<()> {
        let PtxedOptions { quiet, no_inst, check, .. } = *self.options;
        let needed = check || !quiet && !no_inst;
        let bytes = bytes.of(insn);
        let reading = if needed { read(block, insn, bytes) } else { IcedReading::Newer };
        if !quiet {
            self.columns(block, insn, held)?;
            match reading {
                IcedReading::Refused(refusal) if !no_inst => {
                    writeln!(self.out, "{}", refusal_text(refusal, bytes))?;
                }
                _ => writeln!(self.out, "{}", insn_text(&reading, bytes, self.options))?,
            }
        }
        if check { self.check(insn, &reading, held) } else { Ok(()) }
    }

    /// Writes the columns before an instruction, and its address.
    fn columns(&mut self, block: &Block, insn: &BlockInsn, held: u64) -> io::Result<()> {
        if self.options.offset {
            write!(self.out, "{held:016x}  ")?;
        }
        if self.options.time {
            write!(self.out, "{:016x}  ", self.time)?;
        }
        write!(self.out, "{}{:016x}", if block.speculative { "? " } else { "" }, insn.ip)
    }

    /// Writes the errors that `--check` finds in an instruction.
    fn check(&mut self, insn: &BlockInsn, reading: &IcedReading, held: u64) -> io::Result<()> {
        let ip = insn.ip;
        match reading {
            IcedReading::Refused(refusal) => self.refused(held, ip, *refusal),
            _ => match reading.objection(insn.insn.class) {
                Some(objection) => writeln!(self.out, "[{held:x}, {ip:x}: iclass error: {objection}]"),
                None => Ok(()),
            },
        }
    }

    fn refused(&mut self, held: u64, ip: u64, refusal: Refusal) -> io::Result<()> {
        writeln!(self.out, "[{held:x}, {ip:x}: xed error: {refusal}]")
    }
}

/// Reads an instruction of a block with the other decoder.
fn read(block: &Block, insn: &BlockInsn, bytes: &[u8]) -> IcedReading {
    // libipt takes code of an unknown mode for 16-bit code.
    IcedReading::of(bytes, block.mode.unwrap_or(ExecMode::Bits16), insn.ip)
}
