//! A program's near branches, one after another, while only Intel PT is on.
//!
//! A traced program executes little else: no other unit sees it, its privilege level, CR3 and mode do not change, and
//! no interrupt is in flight. Such a branch is traced in a few steps; [`Processor::retire`](crate::Processor::retire)
//! does the same and checks all the rest at each instruction.

use crate::branch::{DecodedInstruction, InstructionKind, decode};
use crate::intel::IntelProcessor;
use crate::intel::unit::Bus;
use crate::{Context, ExecMode, PhysMemory};

/// A near branch instruction of 64-bit code, decoded once for all its executions, without its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearBranch(DecodedInstruction);

impl NearBranch {
    /// Decodes the instruction at `ip`; `None` if it is not a near branch.
    pub fn decode(bytes: &[u8], ip: u64) -> Option<Self> {
        let decoded = decode(bytes, ExecMode::Bits64, ip);
        let near = match decoded.kind {
            InstructionKind::Conditional
            | InstructionKind::DirectJump
            | InstructionKind::DirectCall { .. }
            | InstructionKind::IndirectJump
            | InstructionKind::IndirectCall
            | InstructionKind::Return => true,
            InstructionKind::Other
            | InstructionKind::Far
            | InstructionKind::InterruptReturn
            | InstructionKind::MovCr3
            | InstructionKind::Ptwrite { .. }
            | InstructionKind::Hlt
            | InstructionKind::Mwait => false,
        };
        near.then_some(Self(decoded))
    }
}

/// A processor while only near branches retire that would show in the trace; from [`IntelProcessor::near_branches`].
pub struct NearBranches<'a> {
    processor: &'a mut IntelProcessor,
    memory: &'a mut dyn PhysMemory,
    context: Context,
    quiet_until: u64,
}

impl IntelProcessor {
    /// Returns a fast way to report the near branches of 64-bit code in the state `context`, in which the processor is
    /// now and stays; its `ip` is ignored. Instructions that are neither branches nor change that state need not be
    /// reported; if a trap follows one of them, its branch record has the address of the last branch.
    ///
    /// Returns `None` if branches alone are not enough: another unit is on, nothing is traced now, addresses are
    /// filtered, or an interrupt is in flight.
    pub fn near_branches<'a>(
        &'a mut self,
        context: Context,
        memory: &'a mut dyn PhysMemory,
    ) -> Option<NearBranches<'a>> {
        let alone = self.units_that_see() == [true, false, false, false]
            && !self.shared.perfmon.has_interrupt_on_the_way()
            && self.shared.traced_record.is_empty();
        let quick = alone && self.pt.traces_near_branches(&context);
        let quiet_until = self.pt.quiet_until();
        quick.then_some(NearBranches { processor: self, memory, context, quiet_until })
    }
}

impl NearBranches<'_> {
    /// Returns the TSC before which all that is reported here must retire, branches and what is between them: from then
    /// on a timing packet may be due at any instruction.
    pub fn quiet_until(&self) -> u64 {
        self.quiet_until
    }

    /// Reports that a branch retired, which ends at `next_ip` in memory, and that the program continued at `to`.
    /// Returns false if that raised an interrupt: then no more can be reported here.
    #[inline]
    pub fn retire(&mut self, branch: NearBranch, next_ip: u64, to: u64, tsc: u64) -> bool {
        let IntelProcessor { pt, predictor, last_ip, .. } = &mut *self.processor;
        let ip = next_ip.wrapping_sub(u64::from(branch.0.len));
        predictor.went(ip, to);
        *last_ip = ip;
        !pt.near_branch(branch.0.kind, next_ip, to, tsc) || self.finish_event(to)
    }

    /// Handles what is due after a branch. Returns false if that raised an interrupt.
    #[cold]
    fn finish_event(&mut self, to: u64) -> bool {
        let IntelProcessor { pt, shared, .. } = &mut *self.processor;
        pt.finish_event(&Context { ip: to, ..self.context }, &mut Bus { mem: self.memory, shared });
        let raised = shared.perfmon.has_interrupt_on_the_way();
        shared.perfmon.instruction_retired(&mut shared.violations);
        !raised && pt.traces_near_branches(&self.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intel::tests::machine::*;
    use crate::intel::{IntelSettings, ReturnElsewhere};
    use crate::{DeliveryKind, FlatMemory};
    use std::format;
    use std::string::String;
    use std::vec;
    use std::vec::Vec;

    /// The kinds of near branches.
    const BRANCHES: [&[u8]; 7] = [JZ, JMP, CALL, CALL_NEXT, JMP_RAX, CALL_RAX, RET];
    const MTC: u64 = 1 << 9;
    const TSC: u64 = 1 << 10;
    const CYC: u64 = 1 << 1;
    const DIS_RETC: u64 = 1 << 11;
    const DIS_TNT: u64 = 1 << 55;
    const OS: u64 = 1 << 2;

    /// Straight-line code and the branch at its end: number of NOPs, the branch, and its target.
    type Piece = (u64, &'static [u8], u64);

    /// Returns a walk of a program that calls and returns.
    fn pieces(seed: u64, count: usize) -> Vec<Piece> {
        let (mut random, mut ip, mut calls) = (seed, 0x40_0000_u64, vec![]);
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut piece = || {
            let nops = next(4);
            let branch = BRANCHES[next(7) as usize];
            let after = ip + nops + branch.len() as u64;
            let anywhere = 0x40_0000 + next(8) * 0x1000 + (next(3) << 40) + next(4);
            let to = match branch {
                JZ if next(2) == 0 => after,
                JZ | JMP => after + 0x40,
                CALL => after + 0x100,
                CALL_NEXT => after,
                RET if next(8) != 0 => calls.pop().unwrap_or(anywhere),
                _ => anywhere,
            };
            if [CALL, CALL_RAX].contains(&branch) {
                calls.push(after);
            }
            ip = to;
            (nops, branch, to)
        };
        (0..count).map(|_| piece()).collect()
    }

    /// Retires each instruction, which takes some ticks.
    fn retire_all(machine: &mut Machine, pieces: &[Piece], ticks: u64) {
        for &(nops, branch, to) in pieces {
            for _ in 0..nops {
                machine.tsc += ticks;
                machine.next(NOP);
            }
            machine.tsc += ticks;
            machine.go(branch, to);
        }
    }

    /// Reports only the branches, as long as that is possible and nothing is due for the time. Returns their number.
    fn report_branches(machine: &mut Machine, pieces: &[Piece], ticks: u64) -> usize {
        let Machine { processor, ram, at, tsc, .. } = machine;
        let mut memory = FlatMemory { base: 0, bytes: ram };
        let mut branches = processor.near_branches(*at, &mut memory).expect("it is quick");
        for (number, &(nops, bytes, to)) in pieces.iter().enumerate() {
            let ends = *tsc + ticks * (nops + 1);
            if ends >= branches.quiet_until() {
                return number;
            }
            let branch = NearBranch::decode(bytes, at.ip + nops).expect("a branch");
            let next_ip = at.ip + nops + bytes.len() as u64;
            *tsc = ends;
            at.ip = to;
            if !branches.retire(branch, next_ip, to, *tsc) {
                return number + 1;
            }
        }
        pieces.len()
    }

    /// Reports only the branches where nothing is due for the time, and retires each instruction elsewhere. Returns the
    /// number of branches that were reported.
    fn report_quickly(machine: &mut Machine, mut pieces: &[Piece], ticks: u64) -> usize {
        let mut reported = 0;
        while !pieces.is_empty() {
            let count = report_branches(machine, pieces, ticks);
            let (one, rest) = pieces[count..].split_at(usize::from(count < pieces.len()));
            retire_all(machine, one, ticks);
            (reported, pieces) = (reported + count, rest);
        }
        reported
    }

    /// Returns all state that branches and packets have changed.
    fn state(machine: &mut Machine) -> String {
        machine.write(CTL, 0);
        let IntelProcessor { pt, predictor, last_ip, shared, .. } = &machine.processor;
        format!("{pt:?} {predictor:?} {last_ip} {shared:?}")
    }

    #[test]
    fn branches_alone_make_the_trace_that_all_instructions_make() {
        let plain = IntelSettings::default();
        let faster = IntelSettings { core_ratio: Some(41), ..plain };
        // The least number of branches of 20 000 that are reported quickly.
        let all = 20_000;
        for (name, settings, ctl, ticks, least) in [
            ("plain", plain, ALL, 1, all),
            ("TSC", plain, ALL | TSC, 1, all),
            ("MTC", plain, ALL | TSC | MTC | 3 << 14, 1, 19_900),
            ("CYC", plain, ALL | CYC, 1, all),
            ("CYC seldom", plain, ALL | CYC | 9 << 19, 1, all),
            ("all clocks", faster, ALL | TSC | MTC | CYC | 2 << 19, 3, 15_000),
            ("CYC that would wrap", faster, ALL | CYC, 90_000, 10_000),
            ("PSB seldom", plain, ALL | 5 << 24, 1, all),
            ("whole returns", plain, ALL | DIS_RETC, 1, all),
            ("long TNT", IntelSettings { long_tnt: true, ..plain }, ALL, 1, all),
            ("deferred TIPs", IntelSettings { deferred_tips: true, ..plain }, ALL, 1, all),
            ("held back", IntelSettings { visibility: 100, ..plain }, ALL, 1, all),
            ("pops", IntelSettings { return_elsewhere: ReturnElsewhere::Pops, ..plain }, ALL, 1, all),
        ] {
            let [mut one_by_one, mut quick] = [(); 2].map(|()| {
                let mut machine = Machine::new("icelake", settings);
                machine.start(ctl);
                machine
            });
            let pieces = pieces(1, 20_000);
            let (mut ip, mut reported) = (0x40_0000, 0);
            for part in pieces.chunks(700) {
                one_by_one.at.ip = ip;
                quick.at.ip = ip;
                retire_all(&mut one_by_one, part, ticks);
                reported += report_quickly(&mut quick, part, ticks);
                assert_eq!(one_by_one.at, quick.at, "{name}");
                assert_eq!(one_by_one.processor.last_ip, quick.processor.last_ip, "{name}");
                ip = quick.at.ip;
                // Then both execute the same instructions, each from the state that it reached.
                for machine in [&mut one_by_one, &mut quick] {
                    machine.deliver(DeliveryKind::Interrupt, 0x20, machine.kernel(0x1234), None);
                    machine.next(NOP);
                    machine.far(IRETQ, machine.kernel(ip));
                }
            }
            assert!(reported >= least, "{name}: {reported}");
            assert!(state(&mut one_by_one) == state(&mut quick), "{name}");
            let written = (quick.read(MASK_PTRS) >> 32) as usize;
            assert!(written > 10_000, "{name}: {written}");
            assert!(one_by_one.ram == quick.ram, "{name}");
        }
    }

    #[test]
    fn what_shows_otherwise_is_declined() {
        const DEBUGCTL: u32 = 0x1d9;
        const FILTERED: u64 = 1 << 32;
        const STOPS: u64 = 2 << 36;
        let sets_up = |_: &mut Machine| {};
        type Setup = fn(&mut Machine);
        let rows: [(&str, u64, Setup, bool); 12] = [
            ("plain", ALL, sets_up, true),
            ("off", 0, sets_up, false),
            ("no branches", ALL & !(1 << 13), sets_up, false),
            ("MTC", ALL | MTC, sets_up, true),
            ("CYC", ALL | CYC, sets_up, true),
            ("no TNT", ALL | DIS_TNT, sets_up, false),
            ("another level", ALL & !OS, sets_up, false),
            ("a range", ALL | FILTERED, sets_up, false),
            ("a range to stop in", ALL | STOPS, sets_up, false),
            ("asleep", ALL, |m| m.next(&[0xf4]), false),
            ("last branches", ALL, |m| m.write(DEBUGCTL, 1), false),
            ("32-bit code", ALL, |m| m.far(IRETQ, Context { mode: ExecMode::Bits32, ..m.at }), false),
        ];
        for (name, ctl, set_up, is_quick) in rows {
            let profile = if ctl & DIS_TNT == 0 { "icelake" } else { "sapphire-rapids" };
            let mut machine = Machine::new(profile, IntelSettings::default());
            // The code is in the first range and not in the second one.
            for (msr, address) in (0x580..).zip([0x40_0000, 0x50_0000, 0x1000, 0x1fff]) {
                machine.write(msr, address);
            }
            machine.start(ctl);
            set_up(&mut machine);
            let Machine { processor, ram, at, .. } = &mut machine;
            let mut memory = FlatMemory { base: 0, bytes: ram };
            assert_eq!(processor.near_branches(*at, &mut memory).is_some(), is_quick, "{name}");
        }
        let slow = IntelSettings {
            overflow: Some(crate::intel::Overflow { capacity: 2048, drain: 8 }),
            ..IntelSettings::default()
        };
        let mut machine = Machine::new("icelake", slow);
        machine.start(ALL);
        let mut memory = FlatMemory { base: 0, bytes: &mut machine.ram };
        assert!(
            machine.processor.near_branches(machine.at, &mut memory).is_none(),
            "output that can overflow"
        );
    }

    #[test]
    fn an_interrupt_that_a_branch_raises_ends_it() {
        const TABLE: u64 = 0x1000;
        const INT: u64 = 4;
        for skid in [0, 30] {
            let settings = IntelSettings { pmi_skid: skid, visibility: 0, ..IntelSettings::default() };
            let [mut one_by_one, mut quick] = [(); 2].map(|()| {
                let mut machine = Machine::new("icelake", settings);
                for (number, entry) in [0x1_0000 | INT, 0x1_2000, TABLE | 1].into_iter().enumerate() {
                    let place = TABLE as usize + number * 8;
                    machine.ram[place..place + 8].copy_from_slice(&entry.to_le_bytes());
                }
                machine.write(BASE, TABLE);
                machine.write(MASK_PTRS, 0);
                machine.processor.write_apic(0x340, 0x400);
                machine.start(ALL | TOPA);
                machine.at.ip = 0x40_0000;
                machine
            });
            let pieces = pieces(2, 20_000);
            let reported = report_branches(&mut quick, &pieces, 1);
            assert!((500..19_000).contains(&reported), "{skid}: {reported}");
            retire_all(&mut one_by_one, &pieces[..reported], 1);
            let taken = [&mut one_by_one, &mut quick].map(|machine| machine.processor.take_interrupt());
            assert_eq!(taken[0], taken[1], "{skid}");
            assert_eq!(taken[1].is_some(), skid == 0, "{skid}");
            if skid != 0 {
                let mut memory = FlatMemory { base: 0, bytes: &mut quick.ram };
                assert!(quick.processor.near_branches(quick.at, &mut memory).is_none(), "it is on its way");
            }
            assert!(state(&mut one_by_one) == state(&mut quick), "{skid}");
            assert!(one_by_one.ram == quick.ram, "{skid}");
        }
    }

    #[test]
    fn near_branches_are_told_from_other_instructions() {
        for bytes in BRANCHES {
            assert!(NearBranch::decode(bytes, 0x1000).is_some(), "{bytes:02x?}");
        }
        for bytes in [NOP, SYSCALL, IRETQ, MOV_CR3, WRMSR, &[0xf4], &[0x0f, 0x05], &[0xcb], &[0x06], &[]] {
            assert!(NearBranch::decode(bytes, 0x1000).is_none(), "{bytes:02x?}");
        }
    }
}
