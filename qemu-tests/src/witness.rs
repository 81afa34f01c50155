//! Is the monitor's truth what QEMU executed?
//!
//! The two accounts must be the same, instruction by instruction. An instruction that QEMU began is left out of the
//! truth only where QEMU's own log shows that it did not retire: it faulted, was interrupted, or was an iteration of a
//! repeated one but the last. What the monitor did by hand QEMU has not begun; there the guest must have stood before
//! it, and after it next.

use anyhow::{Result, bail, ensure};
use std::ops::Range;

use crate::counts::is_begin_of_stub;
use crate::exec_log::{ExecLog, Exit};
use crate::truth::Record;

pub mod branches;

/// SVM's code of an exit for exception 0; 32 of them follow.
const EXCEPTION: u64 = 0x40;
const DEBUG: u64 = EXCEPTION + 1;
const INVALID_OPCODE: u64 = EXCEPTION + 6;
const INTERRUPT: u64 = 0x60;
const NMI: u64 = 0x61;
/// A nested page fault.
const NESTED: u64 = 0x400;
/// Exits for instructions that are no branches: RDPMC, PUSHF, POPF, CPUID, HLT, IN and OUT, RDMSR and WRMSR.
///
/// Source of all: AMD64 Architecture Programmer's Manual, vol. 2, appendix C, "SVM Intercept Exit Codes".
const STRAIGHT: [u64; 7] = [0x6f, 0x70, 0x71, 0x72, 0x78, 0x7b, 0x7c];
/// The longest instruction.
const LONGEST: u64 = 15;

/// How the two accounts agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Instructions in both, at the same level.
    pub equal: u64,
    /// Iterations of repeated instructions but the last.
    pub repeated: u64,
    /// Instructions that began and did not retire there: they faulted or were interrupted.
    pub unfinished: u64,
    /// Instructions that were begun once more before anything of them was done: something asked for the processor.
    pub rerun: u64,
    /// Instructions that the monitor executed by hand.
    pub by_hand: u64,
    /// Log entries between the WRMSR that switches tracing off and the one that switches it on, both included.
    pub untraced: u64,
}

/// What the guest has that must be known.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// The address of the one instruction that switches tracing off and on.
    pub wrmsr: u64,
    /// Where its table of handlers' stubs begins, each of the same size.
    pub stubs: u64,
}

impl Guest {
    fn is_handler(&self, rip: u64) -> bool {
        is_begin_of_stub(rip, self.stubs)
    }
}

/// What became of an instruction that was begun, as far as the log tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It retired.
    Retired,
    /// The monitor took over at it: it retired by the monitor's doing, or the monitor delivered a fault.
    Handed,
    /// It faulted, or something came before it had begun in earnest.
    Unfinished,
    /// It was begun once more.
    Rerun,
    /// It was an iteration of a repeated instruction, and not the last.
    Iteration,
}

impl ExecLog {
    /// The exits between the instructions before `at` and the one at it.
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
            // A fault's RIP is the instruction's own; a trap's is after it.
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

/// Holds a session's truth against the log, in which it must stand as one stretch; it may have gaps, but only
/// from one WRMSR to another.
///
/// # Errors
/// The first place where they differ.
pub fn compare(log: &ExecLog, truth: &[Record], guest: Guest) -> Result<Agreement> {
    let Some(first) = truth.iter().find(|record| !record.flags.is_by_hand()) else {
        bail!("the truth is empty")
    };
    let mut best: Option<(usize, anyhow::Error)> = None;
    for start in (0..log.begun.len()).filter(|&index| log.begun[index] == first.rip) {
        let mut walk = Walk::new(log, truth, guest, start);
        match walk.all() {
            Ok(()) => return Ok(walk.found),
            Err(error) if best.as_ref().is_none_or(|(farthest, _)| walk.index > *farthest) => {
                best = Some((walk.index, error));
            }
            Err(_) => {}
        }
    }
    Err(best.map_or_else(|| anyhow::anyhow!("{:#x} is not in the log", first.rip), |(_, error)| error))
}

/// Where the guest is, between two instructions that QEMU began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It has not been left.
    Running,
    /// It was left before this instruction, and nothing is done by then.
    Before(u64),
    /// The monitor has executed this instruction, which goes on behind it.
    Behind(u64),
    /// An instruction faulted: in a handler.
    Handler,
    /// The monitor has executed a branch.
    Anywhere,
}

impl Exit {
    /// Where the guest is after the monitor has dealt with this.
    fn place(&self) -> Place {
        match self.code {
            DEBUG | INTERRUPT | NMI | NESTED => Place::Before(self.rip),
            INVALID_OPCODE => Place::Anywhere,
            EXCEPTION..INTERRUPT => Place::Handler,
            code if STRAIGHT.contains(&code) => Place::Behind(self.rip),
            _ => Place::Anywhere,
        }
    }
}

/// Both accounts, and how far they were compared.
struct Walk<'a> {
    log: &'a ExecLog,
    truth: &'a [Record],
    guest: Guest,
    /// In the log.
    at: usize,
    /// In the truth.
    index: usize,
    /// How many of the exits before the log's entry were passed.
    passed: usize,
    /// Where these, and what the monitor executed behind them, have led.
    place: Place,
    found: Agreement,
}

impl<'a> Walk<'a> {
    fn new(log: &'a ExecLog, truth: &'a [Record], guest: Guest, at: usize) -> Self {
        // What comes before the first instruction is not the truth's.
        let passed = log.exits_before(at).len();
        let found = Agreement::default();
        Self { log, truth, guest, at, index: 0, passed, place: Place::Running, found }
    }

    fn all(&mut self) -> Result<()> {
        while let Some(record) = self.truth.get(self.index) {
            if record.flags.is_by_hand() {
                self.by_hand(record)?;
            } else {
                self.begun(record)?;
            }
            self.index += 1;
        }
        Ok(())
    }

    /// The guest stood before an instruction that the monitor executed.
    fn by_hand(&mut self, record: &Record) -> Result<()> {
        // Where it stood before the first one is not always in the log.
        if self.index > 0 {
            let stands = |walk: &Self| walk.place != Place::Running && walk.may_be(record.rip);
            loop {
                // Of several exits it stood there at the last one.
                while let Some(exit) = self.exit()
                    && (exit.rip == record.rip || !stands(self))
                    && self.passes(exit)
                {}
                // What faulted or was handed over on the way to it is not the truth's.
                if stands(self) || !self.leaves_out()? {
                    break;
                }
            }
            ensure!(
                stands(self),
                "instruction {} is {:#x} by hand in the truth, where the guest was {:x?}",
                self.index,
                record.rip,
                self.place
            );
        }
        self.place = Place::Behind(record.rip);
        self.found.by_hand += 1;
        Ok(())
    }

    /// An instruction that QEMU began, too.
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

    /// Passes over an entry of the log that did not retire; whether it is one.
    fn leaves_out(&mut self) -> Result<bool> {
        let Some(&entry) = self.log.begun.get(self.at) else { return Ok(false) };
        match self.log.fate(self.at) {
            Fate::Iteration => self.found.repeated += 1,
            Fate::Unfinished => self.found.unfinished += 1,
            Fate::Rerun => self.found.rerun += 1,
            // The monitor delivered a fault: a handler goes on.
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

    /// Goes so far in the log.
    fn advance(&mut self, entries: usize) {
        self.at += entries;
        self.passed = 0;
        self.place = Place::Running;
    }

    /// The next exit before the log's entry.
    fn exit(&self) -> Option<Exit> {
        self.log.exits_before(self.at).get(self.passed).copied()
    }

    /// Passes `exit`, the next one; whether the guest could be there.
    fn passes(&mut self, exit: Exit) -> bool {
        let may_be = self.may_be(exit.rip);
        if may_be {
            self.passed += 1;
            self.place = exit.place();
        }
        may_be
    }

    /// Whether the guest can be before the instruction at `rip`.
    fn may_be(&self, rip: u64) -> bool {
        let is_there = match self.place {
            Place::Running | Place::Anywhere => true,
            Place::Before(place) => place == rip,
            Place::Behind(hand) => is_behind(hand, rip),
            Place::Handler => false,
        };
        // Something may have been delivered.
        is_there || self.guest.is_handler(rip)
    }

    /// The guest has come to the log's entry, which is at `entry`, by way of the exits before it: where the monitor
    /// executed something in between, that is in the truth.
    fn goes_on(&mut self, entry: u64) -> Result<()> {
        while let Some(exit) = self.exit() {
            ensure!(
                self.passes(exit),
                "the guest was {:x?} and stood at {:#x}: what is between, before {}, is not in the truth",
                self.place,
                exit.rip,
                self.index
            );
        }
        ensure!(
            self.may_be(entry),
            "the guest was {:x?} and goes on at {entry:#x}: what is between, before {}, is not in the truth",
            self.place,
            self.index
        );
        Ok(())
    }

    /// If the log stands at the WRMSR that switches tracing off: how far it is to what is behind the next one that
    /// switches it on, which is where the truth goes on.
    fn switched_on(&self) -> Option<usize> {
        /// Enough to tell one WRMSR, which is always followed by the same instructions, from another by its caller.
        const ENOUGH: usize = 16;
        let log = &self.log.begun[self.at..];
        let rest = self.truth[self.index..].iter().filter(|record| !record.flags.is_by_hand());
        let ahead: Vec<u64> = rest.take(ENOUGH).map(|record| record.rip).collect();
        let behind = |at: &usize| log[*at - 1] == self.guest.wrmsr && log[*at..].starts_with(&ahead);
        (log.first() == Some(&self.guest.wrmsr)).then(|| (2..log.len()).find(behind)).flatten()
    }
}

/// Whether `rip` can be the address of the instruction after the one at `address`.
fn is_behind(address: u64, rip: u64) -> bool {
    (1..=LONGEST).contains(&rip.wrapping_sub(address))
}

#[cfg(test)]
mod tests;
