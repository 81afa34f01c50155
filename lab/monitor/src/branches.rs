//! Taken branches for the truth log.
//!
//! The next address shows whether an instruction branched; if that is ambiguous, the instruction itself does. The
//! model of the tracing hardware has no part in it.
//!
//! Source of the meaning of the two addresses: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring
//! Features, "LBR Stack for Processors Based on Intel NetBurst Microarchitecture".

use pugmark_model::{Context, ExecMode};
use pugmark_truth::{Branch, BranchKind};

use crate::guest::{Event, ExceptionKind, Instruction};

/// Returns the branch that `instruction` took, if it took one. A conditional branch to the next instruction counts as
/// not taken.
#[must_use]
pub fn of_instruction(instruction: &Instruction, before: Context, after: Context) -> Option<Branch> {
    let next = before.ip.wrapping_add(u64::from(instruction.len()));
    let next = if before.mode == ExecMode::Bits64 { next } else { next & 0xffff_ffff };
    let kind = match instruction.branch() {
        Some(BranchKind::Conditional) | None if after.ip == next => return None,
        kind => kind.unwrap_or(BranchKind::Far),
    };
    Some(branch(before.ip, kind, before, after))
}

/// Returns the branch record of the delivery of `event`. `last` is the address of the instruction that retired last,
/// which is the source of a trap.
#[must_use]
pub fn of_event(event: &Event, last: u64, before: Context, after: Context) -> Branch {
    let trap =
        matches!(event, Event::Exception(exception) if matches!(exception.kind(), ExceptionKind::Trap));
    branch(if trap { last } else { before.ip }, BranchKind::Event, before, after)
}

const fn branch(from: u64, kind: BranchKind, before: Context, after: Context) -> Branch {
    Branch { from, to: after.ip, kind, from_cpl: before.cpl, to_cpl: after.cpl }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::{Cpu, Exception, Lookahead, Segment, SoftwareKind};
    use crate::memory::SliceMemory;

    const AT: u64 = 0x100;

    const fn context(ip: u64, cpl: u8, mode: ExecMode) -> Context {
        Context { ip, cs_base: 0, cr3: 0, cpl, mode, iflag: false }
    }

    /// Returns the instruction in a flat segment without paging.
    fn instruction(mode: ExecMode, bytes: &[u8]) -> Instruction {
        let mut ram = [0x90; 0x120];
        ram[AT as usize..][..bytes.len()].copy_from_slice(bytes);
        let long = mode == ExecMode::Bits64;
        let attributes = if long { 0xa9b } else { 0xc9b };
        let cs = Segment { selector: 8, attributes, limit: u32::MAX, base: 0 };
        let efer = if long { crate::guest::efer::LMA } else { 0 };
        let cpu = Cpu { rip: AT, cs, cr0: 1, efer, ..Cpu::default() };
        let mut memory = SliceMemory { base: 0, bytes: &mut ram };
        Lookahead::new().next(&cpu, &mut memory).expect("an instruction")
    }

    #[test]
    fn an_instruction_branches_where_it_goes_elsewhere_or_always() {
        use BranchKind::{Call, Conditional, Far, Jump, Return};
        use ExecMode::{Bits32, Bits64};
        // Bytes, address at which execution continues, kind of branch.
        let rows: &[(ExecMode, &[u8], u64, Option<BranchKind>)] = &[
            (Bits64, &[0x90], 0x101, None),
            (Bits64, &[0x74, 0x20], 0x102, None),
            (Bits64, &[0x74, 0x20], 0x122, Some(Conditional)),
            (Bits64, &[0x74, 0x00], 0x102, None),
            (Bits64, &[0xe2, 0xfe], 0x100, Some(Conditional)),
            (Bits64, &[0xeb, 0x20], 0x122, Some(Jump)),
            (Bits64, &[0xeb, 0x00], 0x102, Some(Jump)),
            (Bits64, &[0xe8, 0, 0, 0, 0], 0x105, Some(Call)),
            (Bits64, &[0xff, 0xe0], 0x102, Some(Jump)),
            (Bits64, &[0xff, 0xd0], 0x102, Some(Call)),
            (Bits64, &[0xc3], 0x101, Some(Return)),
            (Bits64, &[0x48, 0xcf], 0x102, Some(Far)),
            (Bits64, &[0x48, 0xcb], 0x102, Some(Far)),
            (Bits64, &[0x0f, 0x05], 0x102, Some(Far)),
            (Bits64, &[0x48, 0x0f, 0x07], 0x103, Some(Far)),
            (Bits32, &[0x0f, 0x34], 0x102, Some(Far)),
            (Bits32, &[0xea, 0x07, 0x01, 0, 0, 0x08, 0], 0x107, Some(Far)),
            (Bits64, &[0xff, 0x28], 0x102, Some(Far)),
            (Bits64, &[0xff, 0x18], 0x102, Some(Far)),
            (Bits64, &[0xc2, 0x08, 0x00], 0x200, Some(Return)),
            (Bits64, &[0xe3, 0x10], 0x112, Some(Conditional)),
            (Bits64, &[0xf4], 0x101, None),
            (Bits64, &[0x0f, 0x30], 0x102, None),
            (Bits64, &[0x0f, 0x22, 0xd8], 0x103, None),
        ];
        for &(mode, bytes, to, kind) in rows {
            let found = of_instruction(&instruction(mode, bytes), context(AT, 3, mode), context(to, 1, mode));
            let expected = kind.map(|kind| Branch { from: AT, to, kind, from_cpl: 3, to_cpl: 1 });
            assert_eq!(found, expected, "{bytes:02x?} to {to:#x}");
        }
    }

    #[test]
    fn addresses_outside_64_bit_mode_wrap() {
        let nop = instruction(ExecMode::Bits32, &[0x90]);
        let at = |ip| context(ip, 0, ExecMode::Bits32);
        assert_eq!(of_instruction(&nop, at(0xffff_ffff), at(0)), None);
        let nop = instruction(ExecMode::Bits64, &[0x90]);
        let at = |ip| context(ip, 0, ExecMode::Bits64);
        assert!(of_instruction(&nop, at(0xffff_ffff), at(0)).is_some());
    }

    #[test]
    fn a_trap_comes_from_the_instruction_before() {
        let [before, after] = [(AT, 3), (0x9000, 0)].map(|(ip, cpl)| context(ip, cpl, ExecMode::Bits64));
        for (event, from) in [
            (Event::Interrupt { vector: 0x20 }, AT),
            (Event::Nmi, AT),
            (Event::Software { vector: 0x80, kind: SoftwareKind::Int, length: 2 }, AT),
            (Event::Exception(Exception::page_fault(0, 7)), AT),
            (Event::Exception(Exception::single_step()), 0xfe),
            (Event::Exception(Exception::double_fault()), AT),
        ] {
            let kind = BranchKind::Event;
            let expected = Branch { from, to: 0x9000, kind, from_cpl: 3, to_cpl: 0 };
            assert_eq!(of_event(&event, 0xfe, before, after), expected, "{event:?}");
        }
    }
}
