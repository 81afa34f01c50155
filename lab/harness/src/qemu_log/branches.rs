//! Checks that the monitor's branches are those that its instructions show.
//!
//! [`compare`](super::compare) has checked the instructions against QEMU's log, which also has their bytes. There are
//! three cases for two consecutive instructions: the second follows the first in memory, a branch leads to it, or
//! events (interrupts, exceptions) do.

use anyhow::{Result, ensure};

use super::{LoggedGuest, is_next_after};
use crate::exec_log::{ExecLog, opcode};
use crate::truth::{Branch, BranchKind, Record};

/// The length of the WRMSR that switches tracing on.
const WRMSR: u64 = 2;

/// Compares a session's branches with its instructions: each branch must be where the instructions have it, with the
/// right kind and both levels, and none may be missing. Returns the number of branches.
///
/// # Errors
/// Returns the first difference.
pub fn compare(log: &ExecLog, truth: &[Record], branches: &[Branch], guest: LoggedGuest) -> Result<usize> {
    let mut comparison = BranchComparison {
        log,
        left: branches,
        last: guest.wrmsr,
        at: Some(guest.wrmsr + WRMSR),
        level: None,
    };
    for (index, record) in truth.iter().enumerate() {
        let place = || format!("before instruction {index} at {:#x}", record.rip);
        comparison.events(Some(record.rip), guest, &place)?;
        let level = comparison.level.unwrap_or(record.flags.cpl());
        ensure!(level == record.flags.cpl(), "{}: the level is {level} by the branches", place());
        comparison.level = Some(level);
        let place = || format!("after instruction {index} at {:#x}", record.rip);
        comparison.retires(record, truth.get(index + 1), &place)?;
    }
    comparison.events(None, guest, &|| "at the end".into())?;
    let left = comparison.left;
    ensure!(left.is_empty(), "{:x?}: there are more branches than the instructions show", left[0]);
    Ok(branches.len())
}

struct BranchComparison<'a> {
    log: &'a ExecLog,
    /// The remaining branches.
    left: &'a [Branch],
    /// The instruction that retired last.
    last: u64,
    /// The address to which it leads; `None` if QEMU has not executed it.
    at: Option<u64>,
    /// The privilege level there.
    level: Option<u8>,
}

impl BranchComparison<'_> {
    /// Takes the next branch if `is` accepts it.
    fn take(&mut self, place: &dyn Fn() -> String, is: impl Fn(&Branch) -> bool) -> Result<Option<Branch>> {
        let Some((branch, left)) = self.left.split_first().filter(|(branch, _)| is(branch)) else {
            return Ok(None);
        };
        let level = self.level.unwrap_or(branch.from_cpl);
        ensure!(branch.from_cpl == level, "{}: {branch:x?} has another level than {level}", place());
        (self.left, self.at, self.level) = (left, Some(branch.to), Some(branch.to_cpl));
        Ok(Some(*branch))
    }

    /// Takes the events that were delivered before the instruction at `next`, if there is one.
    fn events(&mut self, next: Option<u64>, guest: LoggedGuest, place: &dyn Fn() -> String) -> Result<()> {
        while self.at.is_none() || self.at != next {
            let (at, last) = (self.at, self.last);
            // Tracing was off in between.
            if at == Some(guest.wrmsr) && next == Some(guest.wrmsr + WRMSR) {
                return Ok(());
            }
            // A trap reports the instruction before it as its source.
            let is_due = |branch: &Branch| {
                let from = branch.from == last
                    || at.map_or(is_next_after(last, branch.from), |at| at == branch.from);
                branch.kind == BranchKind::Event && from && guest.is_handler(branch.to)
            };
            if self.take(place, is_due)?.is_none() {
                let straight_on = at.is_none() && next.is_some_and(|next| is_next_after(last, next));
                ensure!(next.is_none() || straight_on, "{}: no branch leads there from {at:x?}", place());
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes a retired instruction, and its branch if it has one.
    fn retires(&mut self, record: &Record, next: Option<&Record>, place: &dyn Fn() -> String) -> Result<()> {
        let rip = record.rip;
        let code = self.log.code.get(&rip).map(Vec::as_slice);
        let kind =
            if record.flags.is_software_interrupt() { Some(BranchKind::Event) } else { code.and_then(kind) };
        let next_in_memory = code.map(|code| rip + code.len() as u64);
        (self.last, self.at) = (rip, next_in_memory);
        let taken = match kind {
            None if code.is_some() => return Ok(()),
            // QEMU has not executed it, so its kind is unknown; the next address shows whether it branched.
            None => {
                let straight = next.is_none_or(|next| is_next_after(rip, next.rip));
                let is =
                    |branch: &Branch| !straight && branch.from == rip && branch.kind != BranchKind::Event;
                self.take(place, is)?;
                return Ok(());
            }
            // A conditional branch to the next instruction counts as not taken.
            Some(kind @ BranchKind::Conditional) => {
                let is = |branch: &Branch| {
                    (branch.from, branch.kind) == (rip, kind) && Some(branch.to) != next_in_memory
                };
                self.take(place, is)?;
                return Ok(());
            }
            Some(kind) => self.take(place, |branch| (branch.from, branch.kind) == (rip, kind))?,
        };
        ensure!(
            taken.is_some() || next.is_none(),
            "{}: its branch is missing, next is {:x?}",
            place(),
            self.left.first()
        );
        Ok(())
    }
}

/// Returns the kind of branch of these bytes of 64-bit code.
fn kind(code: &[u8]) -> Option<BranchKind> {
    use BranchKind::{Call, Conditional, Far, Jump, Return};
    Some(match opcode(code) {
        [0x70..=0x7f | 0xe0..=0xe3, ..] | [0x0f, 0x80..=0x8f, ..] => Conditional,
        [0xe9 | 0xeb, ..] => Jump,
        [0xe8, ..] => Call,
        [0xc2 | 0xc3, ..] => Return,
        [0xca | 0xcb | 0xcf, ..] | [0x0f, 0x05 | 0x07 | 0x34 | 0x35, ..] => Far,
        &[0xff, modrm, ..] => match modrm >> 3 & 7 {
            2 => Call,
            4 => Jump,
            3 | 5 => Far,
            _ => return None,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::truth::RecordFlags;
    use BranchKind::{Call, Conditional, Event, Far, Jump, Return};

    const GUEST: LoggedGuest = LoggedGuest { wrmsr: 0x50, stubs: 0x9000, only_programs: false };
    const HANDLER: u64 = 0x9000;

    const CODE: [(u64, &[u8]); 12] = [
        (0x50, &[0x0f, 0x30]),
        (0x52, &[0xe8, 0xa9, 0, 0, 0]), // call 100
        (0x57, &[0xff, 0xe0]),          // jmp rax
        (0x59, &[0xcd, 0x80]),          // int 80
        (0x5b, &[0x90]),
        (0x100, &[0x90]),
        (0x101, &[0x75, 0x02]), // jnz 105
        (0x103, &[0x66, 0x90]),
        (0x105, &[0xf3, 0xc3]), // ret
        (0x9000, &[0x6a, 0]),
        (0x9002, &[0x48, 0xcf]), // iretq
        (0x9010, &[0x48, 0xcf]),
    ];

    fn log() -> ExecLog {
        let code = CODE.iter().map(|&(address, bytes)| (address, bytes.to_vec())).collect();
        ExecLog { code, ..ExecLog::default() }
    }

    /// Returns records of these addresses, at level 0 from 9000 on and otherwise at level 3.
    fn records(addresses: &[u64]) -> Vec<Record> {
        let record = |&rip: &u64| {
            let flags = RecordFlags::new(level(rip));
            let flags = if rip == 0x59 { flags.software_interrupt() } else { flags };
            Record { rip, cr3: 0, session: 1, flags, cpu: 0 }
        };
        addresses.iter().map(record).collect()
    }

    fn level(rip: u64) -> u8 {
        if rip < HANDLER { 3 } else { 0 }
    }

    fn branch((from, to, kind): (u64, u64, BranchKind)) -> Branch {
        Branch { from, to, kind, from_cpl: level(from), to_cpl: level(to) }
    }

    fn found(truth: &[u64], branches: &[Branch]) -> Result<usize> {
        compare(&log(), &records(truth), branches, GUEST)
    }

    /// A call, a taken conditional jump, an interrupt before the return and another one in its handler, INT, and an
    /// instruction at 0x5c that the monitor executed.
    const TRUTH: [u64; 13] =
        [0x52, 0x100, 0x101, 0x9000, 0x9010, 0x9002, 0x105, 0x57, 0x57, 0x59, 0x9010, 0x5b, 0x5c];
    const BRANCHES: [(u64, u64, BranchKind); 11] = [
        (0x52, 0x100, Call),
        (0x101, 0x105, Conditional),
        (0x105, 0x9000, Event),
        (0x9002, 0x9010, Event),
        (0x9010, 0x9002, Far),
        (0x9002, 0x105, Far),
        (0x105, 0x57, Return),
        (0x57, 0x57, Jump),
        (0x57, 0x59, Jump),
        (0x59, 0x9010, Event),
        (0x9010, 0x5b, Far),
    ];

    #[test]
    fn the_branches_are_those_that_the_instructions_show() {
        let all = BRANCHES.map(branch);
        assert_eq!(found(&TRUTH, &all).unwrap(), all.len());
        for index in 0..all.len() {
            let changed = |change: &dyn Fn(&mut Vec<Branch>)| {
                let mut branches = all.to_vec();
                change(&mut branches);
                branches
            };
            for branches in [
                changed(&|all| _ = all.remove(index)),
                changed(&|all| all.insert(index, all[index])),
                changed(&|all| all[index].from += 1),
                changed(&|all| all[index].to += 1),
                changed(&|all| all[index].from_cpl ^= 3),
                changed(&|all| all[index].to_cpl ^= 3),
                changed(&|all| all[index].kind = if all[index].kind == Jump { Call } else { Jump }),
                changed(&|all| all.swap(index, (index + 1) % BRANCHES.len())),
            ] {
                assert!(found(&TRUTH, &branches).is_err(), "{index}: {branches:x?}");
            }
        }
    }

    #[test]
    fn bytes_tell_the_kind() {
        for (bytes, expected) in [
            (&[0x70, 0][..], Some(Conditional)),
            (&[0x7f, 0], Some(Conditional)),
            (&[0xe0, 0], Some(Conditional)),
            (&[0xe3, 0], Some(Conditional)),
            (&[0x0f, 0x80, 0, 0, 0, 0], Some(Conditional)),
            (&[0x0f, 0x8f, 0, 0, 0, 0], Some(Conditional)),
            (&[0xe9, 0, 0, 0, 0], Some(Jump)),
            (&[0xeb, 0], Some(Jump)),
            (&[0xff, 0xe0], Some(Jump)),
            (&[0x3e, 0xff, 0xe0], Some(Jump)),
            (&[0xe8, 0, 0, 0, 0], Some(Call)),
            (&[0xff, 0xd0], Some(Call)),
            (&[0xc2, 0, 0], Some(Return)),
            (&[0xc3], Some(Return)),
            (&[0xca, 0, 0], Some(Far)),
            (&[0x48, 0xcb], Some(Far)),
            (&[0x48, 0xcf], Some(Far)),
            (&[0x0f, 0x05], Some(Far)),
            (&[0x0f, 0x07], Some(Far)),
            (&[0x0f, 0x34], Some(Far)),
            (&[0x0f, 0x35], Some(Far)),
            (&[0xff, 0x18], Some(Far)),
            (&[0xff, 0x28], Some(Far)),
            // INC, DEC, PUSH; RDMSR, INT, HLT.
            (&[0xff, 0xc0], None),
            (&[0xff, 0xc8], None),
            (&[0xff, 0x30], None),
            (&[0x0f, 0x32], None),
            (&[0xcd, 0x80], None),
            (&[0xf4], None),
        ] {
            assert_eq!(kind(bytes), expected, "{bytes:02x?}");
        }
    }

    #[test]
    fn what_is_no_branch_has_none() {
        let call = (0x52, 0x100, Call);
        for (truth, branches, right) in [
            (&[0x52, 0x100, 0x101, 0x103][..], &[call][..], true),
            (&[0x52, 0x100, 0x101, 0x103], &[call, (0x101, 0x103, Conditional)], false),
            (&[0x52, 0x100, 0x101, 0x105], &[call], false),
            (&[0x52, 0x100, 0x103], &[call], false),
            (&[0x52, 0x100, 0x103], &[call, (0x100, 0x103, Jump)], false),
            (&[0x52, 0x100, 0x101, 0x103], &[call, (0x103, 0x105, Jump)], false),
            (&[0x52], &[call], true),
            (&[0x52], &[], true),
            // Events come from the current place and lead to handlers.
            (&[0x52, 0x100, 0x9000], &[call, (0x101, 0x9000, Event)], true),
            (&[0x52, 0x100, 0x9010], &[call, (0x101, 0x9000, Event), (0x9000, 0x9010, Event)], true),
            (&[0x52, 0x100, 0x9000], &[call, (0x100, 0x9000, Event)], true),
            (&[0x52, 0x100, 0x9000], &[call, (0x103, 0x9000, Event)], false),
            (&[0x52, 0x100, 0x103], &[call, (0x101, 0x103, Event)], false),
            (&[0x5b], &[], false),
            // An instruction that QEMU has not executed continues with the next one, or has a branch.
            (&[0x52, 0x5c, 0x60], &[(0x52, 0x5c, Call)], true),
            (&[0x52, 0x5c, 0x100], &[(0x52, 0x5c, Call)], false),
            (&[0x52, 0x5c, 0x100], &[(0x52, 0x5c, Call), (0x5c, 0x100, Far)], true),
            (&[0x52, 0x5c, 0x100], &[(0x52, 0x5c, Call), (0x5d, 0x100, Far)], false),
            (&[0x52, 0x5c, 0x9000], &[(0x52, 0x5c, Call), (0x60, 0x9000, Event)], true),
            (&[0x52, 0x5c, 0x9000], &[(0x52, 0x5c, Call), (0x80, 0x9000, Event)], false),
            // Tracing was off from one WRMSR to the next.
            (&[0x52, 0x57, 0x52, 0x100], &[(0x52, 0x57, Call), (0x57, 0x50, Jump), call], true),
            (&[0x52, 0x57, 0x52, 0x100], &[(0x52, 0x57, Call), call], false),
            (&[0x52, 0x57, 0x52, 0x100], &[(0x52, 0x57, Call), (0x57, 0x5b, Jump), call], false),
        ] {
            let branches: Vec<Branch> = branches.iter().copied().map(branch).collect();
            let found = found(truth, &branches);
            assert_eq!(found.is_ok(), right, "{truth:x?} {branches:x?}: {found:?}");
        }
    }
}
