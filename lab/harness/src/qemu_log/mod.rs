//! Checks that the monitor's truth matches QEMU's execution.
//!
//! The truth and QEMU's execution log must agree instruction by instruction. An instruction that QEMU began may be
//! missing from the truth only if QEMU's log shows that it did not retire: it faulted, was interrupted, or was an
//! iteration of a repeated instruction but not the last one. Instructions that the monitor emulated are not in QEMU's
//! log; there the guest must have been directly before the instruction, and then directly after it. If only user-mode
//! code is traced, the kernel runs freely and is not in the truth: then each instruction of the programs must be.

use anyhow::{Result, bail, ensure};
use std::ops::Range;

use crate::exec_log::{ExecLog, Exit};
use crate::judge::stubs::is_begin_of_stub;
use crate::truth::Record;

pub mod branches;

/// SVM's exit code for exception 0; the codes for exceptions 1 to 31 follow.
const EXCEPTION: u64 = 0x40;
const DEBUG: u64 = EXCEPTION + 1;
const INVALID_OPCODE: u64 = EXCEPTION + 6;
const INTERRUPT: u64 = 0x60;
const NMI: u64 = 0x61;
/// A nested page fault.
const NESTED: u64 = 0x400;
/// Exits for instructions that never branch: RDPMC, PUSHF, POPF, CPUID, HLT, IN and OUT, RDMSR and WRMSR.
///
/// Source of all these codes: AMD64 Architecture Programmer's Manual, vol. 2, appendix C, "SVM Intercept Exit Codes".
const STRAIGHT: [u64; 7] = [0x6f, 0x70, 0x71, 0x72, 0x78, 0x7b, 0x7c];
/// The length in bytes of the longest instruction.
const LONGEST: u64 = 15;

/// The counts of the comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Instructions in both, at the same level.
    pub equal: u64,
    /// Iterations of repeated instructions, without the last ones.
    pub repeated: u64,
    /// Instructions that were begun but did not retire: they faulted or were interrupted.
    pub unfinished: u64,
    /// Instructions that QEMU began again because a request to the processor arrived before they had any effect.
    pub rerun: u64,
    /// Instructions that the monitor emulated.
    pub emulated: u64,
    /// Log entries between the WRMSR that switches tracing off and the one that switches it on, both included; and
    /// those of the kernel if only user-mode code is traced.
    pub untraced: u64,
}

/// The addresses in the guest that the comparison needs.
#[derive(Clone, Copy, Debug)]
pub struct LoggedGuest {
    /// The address of the one instruction that switches tracing off and on.
    pub wrmsr: u64,
    /// The start of its table of handlers' stubs.
    pub stubs: u64,
    /// Only user-mode code is traced: the kernel runs freely, and the truth has only the part of it that the monitor
    /// has seen, such as the return to a program.
    pub only_programs: bool,
}

impl LoggedGuest {
    fn is_handler(&self, rip: u64) -> bool {
        is_begin_of_stub(rip, self.stubs)
    }
}

/// The outcome of an instruction that was begun, by the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The instruction retired.
    Retired,
    /// The monitor took over at this instruction: either the monitor retired it, or it delivered a fault.
    Handed,
    /// The instruction faulted, or an event was delivered before it had any effect.
    Unfinished,
    /// The instruction was begun again.
    Rerun,
    /// An iteration of a repeated instruction, but not the last one.
    Iteration,
}

impl ExecLog {
    /// Returns the exits between the instruction before `at` and the one at `at`.
    fn exits_before(&self, at: usize) -> &[Exit] {
        let range = |exits: &[Exit]| -> Range<usize> {
            exits.partition_point(|exit| exit.after < at)..exits.partition_point(|exit| exit.after <= at)
        };
        &self.exits[range(&self.exits)]
    }

    fn fate(&self, at: usize) -> Fate {
        let rip = self.begun[at];
        let iterates = self.repeating.contains(&rip);
        match self.exits_before(at + 1).first() {
            // A fault's RIP is that of the instruction; a trap's is after it.
            Some(exit) if exit.rip == rip => match exit.code {
                DEBUG if iterates => Fate::Iteration,
                DEBUG => Fate::Retired,
                INTERRUPT | NMI if iterates => Fate::Iteration,
                INVALID_OPCODE => Fate::Handed,
                EXCEPTION..INTERRUPT | INTERRUPT | NMI | NESTED => Fate::Unfinished,
                _ => Fate::Handed,
            },
            Some(_) => Fate::Retired,
            None if self.begun.get(at + 1) != Some(&rip) || self.selves.contains(&rip) => Fate::Retired,
            None if iterates => Fate::Iteration,
            None => Fate::Rerun,
        }
    }
}

/// Compares a session's truth with the log, which must contain it as one stretch. The stretch may only have gaps from
/// one WRMSR to another.
///
/// # Errors
/// Returns the first difference.
pub fn compare(log: &ExecLog, truth: &[Record], guest: LoggedGuest) -> Result<Agreement> {
    let Some(first) = truth.iter().find(|record| !record.flags.is_emulated()) else {
        bail!("the truth is empty")
    };
    let mut best: Option<(usize, anyhow::Error)> = None;
    for start in (0..log.begun.len()).filter(|&index| log.begun[index] == first.rip) {
        let mut comparison = Comparison::new(log, truth, guest, start);
        match comparison.all() {
            Ok(()) => return Ok(comparison.found),
            Err(error) if best.as_ref().is_none_or(|(farthest, _)| comparison.index > *farthest) => {
                best = Some((comparison.index, error));
            }
            Err(_) => {}
        }
    }
    Err(best.map_or_else(|| anyhow::anyhow!("{:#x} is not in the log", first.rip), |(_, error)| error))
}

/// The guest's place between two instructions that QEMU began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// No exit has happened since the last instruction.
    Running,
    /// The guest exited before this instruction, which has had no effect yet.
    Before(u64),
    /// The monitor has emulated this instruction; execution continues after it.
    After(u64),
    /// An instruction faulted: the guest is in its handler.
    Handler,
    /// The monitor has emulated a branch, so the guest may be anywhere.
    Anywhere,
}

impl Exit {
    /// Returns the guest's place after the monitor has handled this exit.
    fn place(&self) -> Place {
        match self.code {
            DEBUG | INTERRUPT | NMI | NESTED => Place::Before(self.rip),
            INVALID_OPCODE => Place::Anywhere,
            EXCEPTION..INTERRUPT => Place::Handler,
            code if STRAIGHT.contains(&code) => Place::After(self.rip),
            _ => Place::Anywhere,
        }
    }
}

/// The log and the truth, and the progress of the comparison.
struct Comparison<'a> {
    log: &'a ExecLog,
    truth: &'a [Record],
    guest: LoggedGuest,
    /// The index of the next entry of the log.
    at: usize,
    /// The index of the next instruction of the truth.
    index: usize,
    /// Number of exits before the log's next entry that were passed.
    passed: usize,
    /// The place to which these exits, and the instructions that the monitor emulated after them, have led.
    place: Place,
    found: Agreement,
}

/// The privilege level of programs.
const PROGRAM: u8 = 3;

impl<'a> Comparison<'a> {
    fn new(log: &'a ExecLog, truth: &'a [Record], guest: LoggedGuest, at: usize) -> Self {
        // Exits before the first instruction do not belong to the truth.
        let passed = log.exits_before(at).len();
        let found = Agreement::default();
        Self { log, truth, guest, at, index: 0, passed, place: Place::Running, found }
    }

    fn all(&mut self) -> Result<()> {
        while let Some(record) = self.truth.get(self.index) {
            if record.flags.is_emulated() {
                self.emulated(record)?;
            } else {
                self.begun(record)?;
            }
            self.index += 1;
        }
        Ok(())
    }

    /// Takes an instruction that the monitor emulated: the guest must have been before it.
    fn emulated(&mut self, record: &Record) -> Result<()> {
        // The log does not always show the guest's place before the first instruction.
        if self.index > 0 {
            let is_before = |this: &Self| this.place != Place::Running && this.may_be(record.rip);
            loop {
                // If there are several exits, the guest was before this instruction at the last of them.
                while let Some(exit) = self.exit()
                    && (exit.rip == record.rip || !is_before(self))
                    && self.passes(exit)
                {}
                // Instructions in between that faulted or were handed over are not in the truth.
                if is_before(self) || !self.leaves_out()? {
                    break;
                }
            }
            ensure!(
                is_before(self),
                "instruction {} of the truth, at {:#x}, was executed by the monitor, and the guest was \
                 elsewhere: {:x?}",
                self.index,
                record.rip,
                self.place
            );
        }
        self.place = Place::After(record.rip);
        self.found.emulated += 1;
        Ok(())
    }

    /// Takes an instruction that QEMU has begun too.
    fn begun(&mut self, record: &Record) -> Result<()> {
        loop {
            let Some(&entry) = self.log.begun.get(self.at) else {
                bail!("the log ends before instruction {} of the truth", self.index)
            };
            let fate = self.log.fate(self.at);
            let own = matches!(fate, Fate::Retired | Fate::Handed)
                || fate == Fate::Unfinished && record.flags.is_software_interrupt();
            if entry == record.rip && own {
                self.goes_on(entry)?;
                let level = self.log.levels[self.at];
                ensure!(
                    level == record.flags.cpl(),
                    "instruction {} at {entry:#x} has level {} in the truth and {level} in the log",
                    self.index,
                    record.flags.cpl()
                );
                self.found.equal += 1;
                self.advance(1);
                return Ok(());
            }
            if let Some(on) = self.switched_on() {
                self.found.untraced += on as u64;
                self.advance(on);
            } else if !self.leaves_out()? {
                bail!(
                    "instruction {} is {:#x} in the truth and {entry:#x} in the log (entry {}, {fate:?})",
                    self.index,
                    record.rip,
                    self.at
                );
            }
        }
    }

    /// Passes over the log's next entry if it did not retire; returns whether it did so.
    fn leaves_out(&mut self) -> Result<bool> {
        let Some(&entry) = self.log.begun.get(self.at) else { return Ok(false) };
        if self.guest.only_programs && self.log.levels[self.at] != PROGRAM {
            self.found.untraced += 1;
            self.advance(1);
            return Ok(true);
        }
        match self.log.fate(self.at) {
            Fate::Iteration => self.found.repeated += 1,
            Fate::Unfinished => self.found.unfinished += 1,
            Fate::Rerun => self.found.rerun += 1,
            // The monitor delivered a fault, and execution continues in a handler.
            Fate::Handed
                if self.log.begun.get(self.at + 1).is_some_and(|&next| self.guest.is_handler(next)) =>
            {
                self.found.unfinished += 1;
            }
            Fate::Retired | Fate::Handed => return Ok(false),
        }
        self.goes_on(entry)?;
        self.advance(1);
        Ok(true)
    }

    /// Advances this many entries in the log.
    fn advance(&mut self, entries: usize) {
        self.at += entries;
        self.passed = 0;
        self.place = Place::Running;
    }

    /// Returns the next exit before the log's next entry.
    fn exit(&self) -> Option<Exit> {
        self.log.exits_before(self.at).get(self.passed).copied()
    }

    /// Passes `exit`, the next one; returns whether the guest could be there.
    fn passes(&mut self, exit: Exit) -> bool {
        let may_be = self.may_be(exit.rip);
        if may_be {
            self.passed += 1;
            self.place = exit.place();
        }
        may_be
    }

    /// Returns true if the guest can be before the instruction at `rip`.
    fn may_be(&self, rip: u64) -> bool {
        let is_there = match self.place {
            Place::Running | Place::Anywhere => true,
            Place::Before(place) => place == rip,
            Place::After(emulated) => is_next_after(emulated, rip),
            Place::Handler => false,
        };
        // An event may have been delivered.
        is_there || self.guest.is_handler(rip)
    }

    /// Checks that the guest can have reached the log's next entry, at address `entry`, through the exits before it. If
    /// the monitor emulated instructions in between, they are in the truth.
    fn goes_on(&mut self, entry: u64) -> Result<()> {
        while let Some(exit) = self.exit() {
            ensure!(
                self.passes(exit),
                "the guest was at {:x?} and then at {:#x}; what ran in between, before instruction {}, is not \
                 in the truth",
                self.place,
                exit.rip,
                self.index
            );
        }
        ensure!(
            self.may_be(entry),
            "the guest was at {:x?} and goes on at {entry:#x}; what ran in between, before instruction {}, is \
             not in the truth",
            self.place,
            self.index
        );
        Ok(())
    }

    /// If the log's next entry is the WRMSR that switches tracing off, returns the number of entries from there to the
    /// one after the WRMSR that switches tracing on again; the truth continues there. A WRMSR that faulted switches
    /// nothing: the truth continues in the handler after it.
    fn switched_on(&self) -> Option<usize> {
        /// The same instructions always follow this WRMSR; only its caller distinguishes its uses. This many
        /// instructions are enough for that.
        const ENOUGH: usize = 16;
        let log = &self.log.begun[self.at..];
        let rest = self.truth[self.index..].iter().filter(|record| !record.flags.is_emulated());
        let ahead: Vec<u64> = rest.take(ENOUGH).map(|record| record.rip).collect();
        let follows = |at: usize| log.get(at..).is_some_and(|log| log.starts_with(&ahead));
        if log.get(1).is_some_and(|&next| self.guest.is_handler(next)) && follows(1) {
            return None;
        }
        let continues = |at: &usize| log[*at - 1] == self.guest.wrmsr && follows(*at);
        (log.first() == Some(&self.guest.wrmsr)).then(|| (2..log.len()).find(continues)).flatten()
    }
}

/// Returns true if `rip` can be the address of the instruction after the one at `address`.
fn is_next_after(address: u64, rip: u64) -> bool {
    (1..=LONGEST).contains(&rip.wrapping_sub(address))
}

#[cfg(test)]
mod tests;
