//! Blocks of instructions as the emulator translates them.

use super::{instruction::Special, maps::VSYSCALL};
use pugmark_decoder_core::insn::{self, Class};
use pugmark_model::ExecMode;

/// Instructions that follow one another in memory. Only the last one can go elsewhere.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) start: u64,
    /// Where each instruction begins, from the start of the block, and where the last one ends.
    offsets: Vec<u16>,
    pub(super) bytes: Vec<u8>,
    pub(super) exit: Exit,
}

/// Where the program can be after the last instruction of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// At the next instruction.
    Next,
    /// At the next instruction or at this address.
    NextOr(u64),
    /// At this address.
    At(u64),
    /// Anywhere, by a call.
    Called,
    /// Anywhere, by a jump or a return.
    Anywhere,
    /// In the kernel, by a system call.
    SystemCall,
    /// In the kernel, by a software interrupt with this vector.
    Interrupt(u8),
    /// At the next instruction, or at the same one, which repeats itself.
    Repeated,
    /// At the next instruction; in a machine it shows in the trace: MOV to CR3, HLT, MWAIT.
    Shown,
    /// Where the call came from: the block is in the old page with system calls (before the vDSO), which is not
    /// executed.
    OldCall,
}

impl Block {
    /// Reads a block of a program from its definition; `None` if that is damaged.
    pub(super) fn read(start: u64, lengths: &[u8], bytes: &[u8]) -> Option<Self> {
        let mut block = Self::cut(start, lengths, bytes)?;
        let last = block.len().checked_sub(1)?;
        block.exit = if VSYSCALL.contains(&start) {
            Exit::OldCall
        } else {
            exit(block.ip(last), block.instruction(last), ExecMode::Bits64)
        };
        Some(block)
    }

    /// Reads a block of a machine, which is executed in this mode.
    pub(super) fn of_machine(start: u64, lengths: &[u8], bytes: &[u8], mode: ExecMode) -> Option<Self> {
        let mut block = Self::cut(start, lengths, bytes)?;
        let last = block.len().checked_sub(1)?;
        block.exit = match (exit(block.ip(last), block.instruction(last), mode), block.instruction(last)) {
            // The kernel is part of what is recorded.
            (Exit::SystemCall, _) => Exit::Anywhere,
            (_, [0xf1]) => Exit::Interrupt(1),
            (_, [0xf4] | [0x0f, 0x01, 0xc9]) => Exit::Shown,
            (_, last) if writes_cr3(last) => Exit::Shown,
            (exit, _) => exit,
        };
        Some(block)
    }

    fn cut(start: u64, lengths: &[u8], bytes: &[u8]) -> Option<Self> {
        let mut offsets = vec![0u16];
        for &length in lengths {
            offsets.push(offsets.last()? + u16::from(length));
        }
        let bytes = bytes.get(..usize::from(*offsets.last()?))?.to_vec();
        Some(Self { start, offsets, bytes, exit: Exit::Next })
    }

    /// Returns the number of instructions.
    pub(super) fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the address of an instruction; for [`Block::len`] that after the last one.
    pub(super) fn ip(&self, number: usize) -> u64 {
        self.start + u64::from(self.offsets[number])
    }

    /// Returns the address after the last instruction.
    pub(super) fn end(&self) -> u64 {
        self.ip(self.len())
    }

    /// Returns true if one of its instructions is at this address.
    pub(super) fn has(&self, ip: u64) -> bool {
        ip.checked_sub(self.start)
            .is_some_and(|at| self.offsets[..self.len()].iter().any(|offset| u64::from(*offset) == at))
    }

    /// Returns the bytes of an instruction.
    pub(super) fn instruction(&self, number: usize) -> &[u8] {
        &self.bytes[usize::from(self.offsets[number])..usize::from(self.offsets[number + 1])]
    }

    /// Returns true if the program can be at `next` after all instructions, if it is not interrupted.
    pub(super) fn can_lead_to(&self, next: u64) -> bool {
        match self.exit {
            Exit::Next | Exit::Shown => next == self.end(),
            Exit::NextOr(target) => next == target || next == self.end(),
            Exit::At(target) => next == target,
            Exit::Repeated => next == self.end() || next == self.ip(self.len() - 1),
            Exit::Called | Exit::Anywhere | Exit::SystemCall | Exit::Interrupt(_) | Exit::OldCall => true,
        }
    }
}

/// Returns true if an instruction is MOV to CR3.
fn writes_cr3(bytes: &[u8]) -> bool {
    let bytes = match bytes {
        [0x40..=0x4f, rest @ ..] => rest,
        bytes => bytes,
    };
    matches!(bytes, [0x0f, 0x22, modrm] if modrm >> 3 & 7 == 3)
}

fn exit(ip: u64, bytes: &[u8], mode: ExecMode) -> Exit {
    match Special::of(bytes, mode) {
        Some(Special::Repeat) => return Exit::Repeated,
        Some(Special::SystemCall) => return Exit::SystemCall,
        Some(Special::Interrupt { vector }) => return Exit::Interrupt(vector),
        _ => {}
    }
    let Ok(insn) = insn::decode(bytes, mode, ip) else { return Exit::Next };
    match (insn.class, insn.target) {
        (Class::CondJump, Some(target)) => Exit::NextOr(target),
        (Class::NearJump | Class::NearCall, Some(target)) => Exit::At(target),
        (Class::IndirectCall | Class::FarCall, _) => Exit::Called,
        (Class::IndirectJump | Class::NearReturn | Class::FarJump | Class::FarReturn, _) => Exit::Anywhere,
        _ => Exit::Next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_instruction_says_where_a_block_can_lead() {
        // The bytes of the last instruction, which is at 0x1001; its exit; where it may lead and where not.
        type ExitRow = (&'static [u8], Exit, &'static [u64], &'static [u64]);
        let rows: [ExitRow; 10] = [
            (&[0x90], Exit::Next, &[0x1002], &[0x1001, 0x1003]),
            (&[0x74, 0x10], Exit::NextOr(0x1013), &[0x1003, 0x1013], &[0x1001, 0x1004]),
            (&[0xeb, 0x10], Exit::At(0x1013), &[0x1013], &[0x1003]),
            (&[0xe8, 0, 1, 0, 0], Exit::At(0x1106), &[0x1106], &[0x1006]),
            (&[0xff, 0xd0], Exit::Called, &[0, 0x1003, 0x5000], &[]),
            (&[0xff, 0xe0], Exit::Anywhere, &[0, 0x1003, 0x5000], &[]),
            (&[0xc3], Exit::Anywhere, &[0, 0x1002, 0x5000], &[]),
            (&[0x0f, 0x05], Exit::SystemCall, &[0, 0x1003, 0x5000], &[]),
            (&[0xcc], Exit::Interrupt(3), &[0, 0x1002, 0x5000], &[]),
            (&[0xf3, 0xa4], Exit::Repeated, &[0x1001, 0x1003], &[0x1000, 0x1004]),
        ];
        for (last, exit, leads, leads_not) in rows {
            let bytes = [&[0x90], last, &[0xff; 3]].concat();
            let block = Block::read(0x1000, &[1, last.len() as u8], &bytes).unwrap();
            assert_eq!((block.exit, block.len(), block.ip(1)), (exit, 2, 0x1001), "{last:x?}");
            assert_eq!((block.end(), block.instruction(1)), (0x1001 + last.len() as u64, last));
            assert!(leads.iter().all(|next| block.can_lead_to(*next)), "{last:x?}");
            assert!(!leads_not.iter().any(|next| block.can_lead_to(*next)), "{last:x?}");
        }
    }

    #[test]
    fn a_damaged_definition_is_no_block() {
        assert!(Block::read(0x1000, &[], &[0x90]).is_none());
        assert!(Block::read(0x1000, &[1, 2], &[0x90, 0x74]).is_none());
    }
}
