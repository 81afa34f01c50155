//! Finds stretches: instructions whose sequence is known in advance.

use super::classify::Successors;
use super::emulation::MAX_LEN;
use super::next::{Instruction, Lookahead};
use super::prediction::Prediction;
use crate::guest::cpu::{Cpu, Mode, dr7, rflags};
use crate::guest::memory::GuestMemory;

/// Instructions that execute in sequence, unless execution leaves them at one of a few exits.
///
/// No address occurs twice. No instruction is emulated, and none changes how the next one executes. Each instruction
/// may fault, and an interrupt may be delivered before each.
#[derive(Clone, Debug)]
pub struct Stretch {
    instructions: [Instruction; Self::MAX],
    pub(super) len: usize,
    /// The instructions' bytes in sequence, and their location in memory.
    code: [u8; Self::MAX * MAX_LEN],
    runs: [Run; Self::MAX],
    run_count: usize,
    /// The limits of the search that found the stretch, at most [`Self::MAX`] instructions.
    pub(super) limits: StretchLimits,
    /// One of the instructions is an indirect branch, whose target was predicted.
    pub(super) is_predicted: bool,
    /// The next address after the last instruction, if execution did not leave the stretch before.
    pub(super) end: u64,
    /// One bit for some of the bits of each instruction's RIP, which quickly excludes most addresses outside of the
    /// stretch.
    hints: u64,
    exits: [Exit; Self::MAX_EXITS],
    exit_count: usize,
}

/// A possible next address of one of a stretch's instructions that is not the next instruction of the stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exit {
    rip: u64,
    /// Number of instructions that have executed when this exit is reached.
    executed: usize,
}

/// Instructions that are contiguous in memory, within one page.
#[derive(Clone, Copy, Debug)]
struct Run {
    rip: u64,
    /// The physical address.
    address: u64,
    /// Number of bytes.
    bytes: usize,
}

impl Stretch {
    /// Maximum number of instructions.
    pub const MAX: usize = 64;
    /// Maximum number of exits: the number of breakpoints.
    pub const MAX_EXITS: usize = 4;

    /// Makes an empty stretch, to be filled by [`Lookahead::stretch`].
    pub const fn new() -> Self {
        Self {
            instructions: [Instruction::NONE; Self::MAX],
            len: 0,
            code: [0; Self::MAX * MAX_LEN],
            runs: [Run { rip: 0, address: 0, bytes: 0 }; Self::MAX],
            run_count: 0,
            limits: StretchLimits { instructions: 0, through_branches: false, alone: false },
            is_predicted: false,
            end: 0,
            hints: 0,
            exits: [Exit { rip: 0, executed: 0 }; Self::MAX_EXITS],
            exit_count: 0,
        }
    }

    /// Returns the instructions: at least two, or one that repeats. Only the first instruction may repeat, so that RCX
    /// tells whether it has begun.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions[..self.len]
    }

    /// Returns the addresses to which execution can leave the stretch, each address once.
    pub fn exits(&self) -> impl ExactSizeIterator<Item = u64> {
        self.exits[..self.exit_count].iter().map(|exit| exit.rip)
    }

    /// Returns whether the stretch loops to its first instruction. A breakpoint there must not fire before that
    /// instruction has executed.
    pub fn is_loop(&self) -> bool {
        self.exits().any(|rip| rip == self.instructions[0].rip())
    }

    /// Returns the number of instructions that have executed when RIP is `rip`; `begun`: at least one has executed.
    /// Returns `None` if `rip` is neither in the stretch nor one of its exits.
    pub fn executed(&self, rip: u64, begun: bool) -> Option<usize> {
        let inside = self.instructions().iter().position(|instruction| instruction.rip() == rip);
        match self.exit_at(rip) {
            Some(exit) if inside.is_none() || begun => Some(exit.executed),
            _ => inside,
        }
    }

    /// Returns the physical address of each instruction.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        self.instructions().iter().map(|instruction| instruction.address)
    }

    /// Returns the index of the first stale instruction, whose bytes in memory have changed since it was found. Only
    /// the first `executed` instructions, which have executed, and the next one to execute are compared. The
    /// instruction at the index may have executed with the old or the new bytes.
    ///
    /// If another processor has replaced an instruction by INT3, the instruction executed before that: INT3 would have
    /// ended the stretch.
    pub fn first_changed<M: GuestMemory + ?Sized>(&self, memory: &M, executed: usize) -> Option<usize> {
        const INT3: u8 = 0xcc;
        if self.runs().all(|(_, address, bytes)| memory.holds(address, bytes)) {
            return None;
        }
        let as_found = |(index, instruction): (usize, &Instruction)| {
            let mut found = [0; MAX_LEN];
            let found = &mut found[..usize::from(instruction.len())];
            memory.read(instruction.address, found)
                && (found == instruction.bytes() || index < executed && found[0] == INT3)
        };
        let so_far = self.instructions().iter().enumerate().take(executed + 1);
        { so_far }.find(|row| !as_found(*row)).map(|(index, _)| index)
    }

    /// Returns the parts of the code that are contiguous in memory: RIP, physical address, bytes.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        let mut rest = &self.code[..];
        self.runs[..self.run_count].iter().map(move |run| {
            let (bytes, after) = rest.split_at(run.bytes);
            rest = after;
            (run.rip, run.address, bytes)
        })
    }

    /// Finds the runs, once all instructions are added.
    fn find_runs(&mut self) {
        self.run_count = 0;
        let (mut begin, mut expected) = (0, None);
        for instruction in &self.instructions[..self.len] {
            let (rip, bytes) = (instruction.rip(), instruction.bytes());
            if expected != Some(rip) || rip & 0xfff == 0 {
                self.runs[self.run_count] = Run { rip, address: instruction.address, bytes: 0 };
                self.run_count += 1;
            }
            self.runs[self.run_count - 1].bytes += bytes.len();
            self.code[begin..begin + bytes.len()].copy_from_slice(bytes);
            begin += bytes.len();
            expected = Some(instruction.next_rip());
        }
    }

    fn exit_at(&self, rip: u64) -> Option<&Exit> {
        self.exits[..self.exit_count].iter().find(|exit| exit.rip == rip)
    }

    fn contains(&self, rip: u64) -> bool {
        self.hints & hint(rip) != 0 && self.instructions().iter().any(|instruction| instruction.rip() == rip)
    }

    /// Returns whether an exit to `rip` identifies the number of executed instructions, and a breakpoint there does not
    /// stop the stretch before its end.
    fn may_exit(&self, rip: u64) -> bool {
        let first = &self.instructions[0];
        self.exit_at(rip).is_none() && (!self.contains(rip) || rip == first.rip() && !first.repeats())
    }

    fn add(&mut self, instruction: &Instruction) {
        self.instructions[self.len] = *instruction;
        self.hints |= hint(instruction.rip());
        self.len += 1;
    }

    /// Adds an exit after the last instruction.
    fn add_exit(&mut self, rip: u64) {
        self.exits[self.exit_count] = Exit { rip, executed: self.len };
        self.exit_count += 1;
    }

    /// Truncates the stretch to its first `len` instructions and their exits.
    fn cut(&mut self, len: usize) {
        self.len = len;
        self.exit_count = self.exits[..self.exit_count].iter().filter(|exit| exit.executed <= len).count();
    }
}

impl Default for Stretch {
    fn default() -> Self {
        Self::new()
    }
}

/// The limits of a stretch.
#[derive(Clone, Copy, Debug)]
pub struct StretchLimits {
    /// Maximum number of instructions; [`Stretch::MAX`] is a limit too.
    pub instructions: usize,
    /// The stretch may continue after a branch.
    pub through_branches: bool,
    /// No other processor writes memory meanwhile, so that memory before the stretch is unchanged when it is read.
    pub alone: bool,
}

impl Lookahead {
    /// Fills `stretch` with instructions that execute in sequence, beginning with `first`, which [`Lookahead::next`]
    /// has just returned.
    ///
    /// If `stretch` already begins there, its code and its predictions are only checked, and the search is repeated if
    /// they have changed.
    ///
    /// Returns false if a stretch has no advantage, or if the guest could detect it: it steps itself, uses breakpoints,
    /// or has just returned to an instruction with RF set. The content of `stretch` is unspecified then.
    pub fn stretch<M: GuestMemory + ?Sized>(
        &mut self,
        cpu: &Cpu,
        memory: &mut M,
        first: &Instruction,
        limits: StretchLimits,
        stretch: &mut Stretch,
    ) -> bool {
        let flags = rflags::TF | rflags::RF;
        if cpu.mode() != Mode::Bits64 || cpu.rflags & flags != 0 || cpu.dr7 & (dr7::ENABLED | dr7::GD) != 0 {
            return false;
        }
        let limit = limits.instructions.min(Stretch::MAX);
        let limits = StretchLimits { instructions: limit, ..limits };
        if stretch.is_still(first.rip(), cpu, memory, &mut self.tlb, limits) {
            return true;
        }
        (stretch.len, stretch.hints, stretch.exit_count) = (0, 0, 0);
        (stretch.limits, stretch.is_predicted) = (limits, false);
        let mut next = first.rip();
        let mut prediction = Prediction::new(cpu, limits.alone);
        // The next address after the instructions added so far, if the stretch can end there.
        let mut end = None;
        while stretch.len < limit {
            // An instruction that cannot be read may never be reached.
            let found = if stretch.len == 0 { Ok(*first) } else { self.at(cpu, next, memory) };
            let Ok(instruction) = found else { break };
            let successors = match successor_addresses(&instruction) {
                None => prediction.target(cpu, memory, &instruction).map(|target| (target, None)),
                successors => successors,
            };
            let Some((on, other)) = successors else { break };
            if instruction.repeats() && stretch.len != 0 {
                break;
            }
            // Only the physical address of the first byte is kept, so the last byte must be in the same page.
            if next & 0xfff > 0x1000 - u64::from(instruction.len()) {
                break;
            }
            if [Some(on), other].into_iter().flatten().any(|rip| !cpu.is_canonical(rip)) {
                break;
            }
            stretch.is_predicted |= successor_addresses(&instruction).is_none();
            stretch.add(&instruction);
            prediction.executes(cpu, &instruction);
            if let Some(other) = other {
                // One exit is reserved for the end of the stretch.
                if stretch.exit_count + 1 == Stretch::MAX_EXITS || !stretch.may_exit(other) {
                    stretch.cut(stretch.len - 1);
                    break;
                }
                stretch.add_exit(other);
            }
            if !stretch.may_exit(on) {
                // The stretch could not end after this instruction, or both successors are the same address. Without
                // this instruction it can end.
                stretch.cut(stretch.len - 1);
                break;
            }
            end = Some(on);
            if stretch.contains(on) || instruction.branch().is_some() && !limits.through_branches {
                break;
            }
            next = on;
        }
        let Some(end) = end.filter(|_| stretch.len > 1 || first.repeats()) else {
            stretch.len = 0;
            return false;
        };
        stretch.add_exit(end);
        stretch.end = end;
        stretch.find_runs();
        true
    }
}

/// Returns the hint bit of an address.
const fn hint(rip: u64) -> u64 {
    1 << ((rip ^ rip >> 6) % 64)
}

/// Returns the most probable next address after `instruction`, and the alternative.
pub(super) fn successor_addresses(instruction: &Instruction) -> Option<(u64, Option<u64>)> {
    let next = instruction.next_rip();
    let target = |distance: i32| next.wrapping_add_signed(i64::from(distance));
    Some(match instruction.classification.successors? {
        Successors::Next | Successors::NextOrItself => (next, None),
        Successors::Target(distance) => (target(distance), None),
        // A backward branch is probably the end of a loop.
        Successors::NextOrTarget(distance @ ..0) => (target(distance), Some(next)),
        Successors::NextOrTarget(distance) => (next, Some(target(distance))),
    })
}

#[cfg(test)]
mod tests;
