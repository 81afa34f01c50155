//! Traces a workload, decodes the trace inside the kernel and reports the result.

mod amd;
mod branches;
mod frames;
mod last;
mod linear;
mod measure;
mod plan;
mod samples;
mod session;

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::mem;
use pugmark_boot::archive::Archive;
use pugmark_boot::branches::{self as records, Context};
use pugmark_boot::code_section::code_section;
use pugmark_boot::command_line::{CommandLine, Source};
use pugmark_boot::decode::decode;
use pugmark_boot::expectation::Surprise;
use pugmark_boot::histogram::Histogram;
use pugmark_boot::symbols::Symbols;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::{AddressSpace, Section};
use pugmark_decoder_core::{Error, bts};
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_protocol::{Fault as PageFault, Level, Line, Lost, Piece, Records, Stat, Top};
use x86_64::instructions::interrupts;

use crate::arch::paging::AreaFault;
use crate::arch::serial::say;
use crate::arch::{clock, console, image, paging, traps};
use crate::workloads::{Make, Mismatch, Workload};
use amd::COUNTED;
use samples::SAMPLED;
use session::{Failure, Ready, Recorded, Wanted};

pub(crate) use plan::Plan;
pub(crate) use session::{hold, leave_address_space, nmi, pmi};

/// Bytes of memory for a workload's trace.
const ARCHIVE_SIZE: usize = 4 << 20;
/// How many of the hottest functions are printed.
const TOP: usize = 5;

/// Traces workloads, one after the other.
pub(crate) struct Stage<'s> {
    symbols: &'s Symbols<'s>,
    source: Source,
    /// Send the trace bytes to the debug console, and report which code was traced.
    dump: bool,
    /// Trace, but do not decode.
    no_decode: bool,
    /// The machine is set up to overflow.
    overflows: bool,
    /// How often IBS samples each workload.
    rounds: u32,
    /// The memory of the last trace, to be used for the next one.
    memory: &'static mut [u8],
    sessions: u16,
}

/// Why a workload failed.
pub(crate) enum Fault {
    /// Its own result is wrong.
    Workload(Mismatch),
    Driver(Failure),
    Interrupt(GeneralProtection),
    /// The processor reported operational errors.
    Operational(u64),
    /// The unit was off although it should have been on.
    LeftOff(u64),
    Decode(Error),
    Branches(bts::Error),
    Loss(Surprise),
    /// The trace has no instruction.
    Empty,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(mismatch) => mismatch.fmt(f),
            Self::Driver(failure) => failure.fmt(f),
            Self::Interrupt(fault) => write!(f, "in the interrupt handler: {fault}"),
            Self::Operational(count) => write!(f, "{count} operational errors"),
            Self::LeftOff(count) => write!(f, "the driver left it off {count} times"),
            Self::Decode(error) => write!(f, "decode: {error}"),
            Self::Branches(error) => write!(f, "decode: {error}"),
            Self::Loss(surprise) => surprise.fmt(f),
            Self::Empty => f.write_str("nothing was traced"),
        }
    }
}

impl<'s> Stage<'s> {
    /// Prepares to trace workloads of a kernel with these symbols, as the command line requests.
    pub(crate) fn new(symbols: &'s Symbols<'s>, wishes: &CommandLine<'_>) -> Self {
        let &CommandLine { source, dump, no_decode, expect_overflow: overflows, rounds, .. } = wishes;
        Self { symbols, source, dump, no_decode, overflows, rounds, memory: &mut [], sessions: 0 }
    }

    /// Runs a workload, traced if the processor can, and reports the result.
    ///
    /// For counters the workload runs again for each event, because only a single counter sees exactly the
    /// instructions that the truth's log has.
    pub(crate) fn run(&mut self, name: &str, make: Make) -> Result<(), Fault> {
        match self.source {
            Source::Pt => self.trace(name, Wanted::Packets, &mut *make()),
            Source::Bts => self.trace(name, Wanted::Branches, &mut *make()),
            Source::Pebs => {
                for kind in SAMPLED {
                    if !self.measure(name, Wanted::Precise(kind), &mut *make())? {
                        break;
                    }
                }
                Ok(())
            }
            Source::Lbr => {
                for calls in [false, true] {
                    if !self.measure(name, Wanted::Last { calls }, &mut *make())? {
                        break;
                    }
                }
                Ok(())
            }
            Source::Counters => {
                for counting in COUNTED {
                    if !self.measure(name, Wanted::Count(counting), &mut *make())? {
                        break;
                    }
                }
                Ok(())
            }
            Source::Ibs => {
                for round in 0..self.rounds {
                    if !self.measure(name, Wanted::Samples { round }, &mut *make())? {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    fn trace(&mut self, name: &str, wanted: Wanted, workload: &mut dyn Workload) -> Result<(), Fault> {
        let plan = workload.plan();
        match Ready::new(wanted, plan).and_then(|ready| self.record(name, ready, plan, workload)) {
            Ok(recorded) if self.no_decode => {
                let Recorded { archive, loss, fault, .. } = recorded;
                self.memory = archive.into_memory();
                recorded_well(workload, &loss, fault)
            }
            Ok(recorded) => self.report(name, &plan, recorded, workload),
            Err(failure) if failure.is_refusal() => refused(name, &failure, workload),
            Err(failure) => Err(Fault::Driver(failure)),
        }
    }

    fn record(
        &mut self,
        name: &str,
        ready: Ready,
        plan: Plan,
        workload: &mut dyn Workload,
    ) -> Result<Recorded, Failure> {
        self.sessions += 1;
        say(Line::Session(name, self.sessions));
        say(Line::Filter(name, plan.filter));
        let mut memory = mem::take(&mut self.memory);
        if memory.is_empty() {
            // The first workload, or the one before lost the memory when it failed.
            memory = vec![0; ARCHIVE_SIZE].leak();
        }
        let recorded = ready.record(self.sessions, Archive::new(memory), || workload.run());
        if let Some(AreaFault { address, code }) = paging::take_area_fault() {
            say(Line::Fault(name, PageFault { address, code }));
        }
        recorded
    }

    fn report(
        &mut self,
        name: &str,
        plan: &Plan,
        recorded: Recorded,
        workload: &dyn Workload,
    ) -> Result<(), Fault> {
        let Recorded { archive, loss, counts, fault, .. } = recorded;
        let text =
            Section { base: image::text().start, bytes: image::text_bytes(), space: AddressSpace::Any };
        let sections: Vec<_> = [text].into_iter().chain(workload.sections()).collect();
        let mut histogram = Histogram::new(self.symbols);
        let before = clock::tsc();
        let decoded = match self.source {
            Source::Pt => Decoded::of_packets(&archive, &sections, &mut histogram),
            _ => Decoded::of_branches(plan, &archive, &sections, &mut histogram),
        };
        let decode_us = clock::microseconds(clock::tsc() - before);
        let lost = Lost {
            overflows: decoded.overflows,
            stops: loss.stop,
            // If it is unknown whether the ring wrapped, that counts as a loss.
            wraps: loss.wrap + loss.perhaps_wrapped,
            full: loss.full + archive.full(),
            strays: counts.stray,
        };
        let Decoded { pieces, records, total, fault: undecoded, .. } = decoded;
        let (bytes, pmis) = (archive.trace().len() as u64, counts.served + counts.unannounced);
        let branches =
            (self.source == Source::Bts).then(|| records.iter().map(|records| records.count).sum());
        let (count, hash) = (total.count(), total.value());
        let (loss_of_trace, decode_us) = (lost.total(), Some(decode_us));
        say(Line::Stat(name, Stat { count, hash, bytes, pmis, loss: loss_of_trace, decode_us, branches }));
        for (rank, (function, count)) in (1..).zip(histogram.top(TOP)) {
            let symbol = rustc_demangle::demangle(function.name);
            say(Line::Top(name, Top { rank, symbol: &format_args!("{symbol:#}"), count }));
        }
        for (index, piece) in pieces.into_iter().enumerate() {
            say(Line::Piece(name, index, piece));
        }
        for (index, records) in records.into_iter().enumerate() {
            say(Line::Records(name, index, records));
        }
        say(Line::Lost(name, lost));
        if self.dump {
            for segment in archive.segments() {
                say(Line::Dump(name, segment.bytes.len() as u64));
                console::send(segment.bytes);
            }
            for section in &sections {
                say(Line::Section(name, code_section(section)));
            }
        }
        let checked = match self.source {
            Source::Pt => workload.check_trace(archive.trace()).map_err(Fault::Workload),
            _ => Ok(()),
        };
        self.memory = archive.into_memory();
        recorded_well(workload, &loss, fault)?;
        if let Some(fault) = undecoded {
            return Err(fault);
        }
        if total.count() == 0 {
            return Err(Fault::Empty);
        }
        plan.expected.check(lost, self.overflows).map_err(Fault::Loss)?;
        if lost.total() == 0 { checked } else { Ok(()) }
    }
}

/// The decoded trace, of any source.
struct Decoded {
    pieces: Vec<Piece>,
    /// For a source with branch records.
    records: Vec<Records>,
    total: AddressHash,
    /// The number of OVF packets.
    overflows: u64,
    /// The first decoding error, if any.
    fault: Option<Fault>,
}

impl Decoded {
    fn of_packets(archive: &Archive<'_>, sections: &[Section<'_>], histogram: &mut Histogram<'_>) -> Self {
        let decoded = decode(archive, sections, histogram);
        Self {
            pieces: decoded.pieces,
            records: Vec::new(),
            total: decoded.total,
            overflows: decoded.overflows,
            fault: decoded.first_error.map(Fault::Decode),
        }
    }

    fn of_branches(
        plan: &Plan,
        archive: &Archive<'_>,
        sections: &[Section<'_>],
        histogram: &mut Histogram<'_>,
    ) -> Self {
        let context = Context { handlers: &[traps::handlers()], one_level: plan.filter.level != Level::Any };
        let decoded = records::decode(archive, sections, &context, histogram);
        Self {
            pieces: decoded.pieces,
            records: decoded.records,
            total: decoded.total,
            overflows: 0,
            fault: decoded.first_error.map(Fault::Branches),
        }
    }
}

/// Runs a workload without tracing.
fn refused(name: &str, failure: &Failure, workload: &mut dyn Workload) -> Result<(), Fault> {
    say(Line::Refuse(name, failure));
    interrupts::enable();
    workload.run();
    interrupts::disable();
    workload.check().map_err(Fault::Workload)
}

/// Checks that the workload gave the right result and that the driver had no fault.
fn recorded_well(
    workload: &dyn Workload,
    loss: &Loss,
    fault: Option<GeneralProtection>,
) -> Result<(), Fault> {
    workload.check().map_err(Fault::Workload)?;
    match fault {
        Some(fault) => Err(Fault::Interrupt(fault)),
        None if loss.error > 0 => Err(Fault::Operational(loss.error)),
        None if loss.excluded + loss.abandoned > 0 => Err(Fault::LeftOff(loss.excluded + loss.abandoned)),
        None => Ok(()),
    }
}
