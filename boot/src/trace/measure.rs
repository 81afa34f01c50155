//! Counts a workload's events, samples what it executes or keeps its last branches, and reports the result.

use core::fmt;
use pugmark_boot::archive::Archive;
use pugmark_boot::protocol::{After, Code, Count, Lost, Samples};
use pugmark_boot::tally::tally;
use pugmark_decoder_core::image::{AddressSpace, Section};

use super::amd::Counting;
use super::session::{Ready, Recorded, Wanted};
use super::{Fault, Stage, last, recorded_well, refused, samples as precise};
use crate::arch::image;
use crate::arch::serial::say;
use crate::workloads::Workload;

impl Stage<'_> {
    /// Counts or samples a workload, if the processor can, and reports the result; returns whether it can.
    pub(super) fn measure(
        &mut self,
        name: &str,
        wanted: Wanted,
        workload: &mut dyn Workload,
    ) -> Result<bool, Fault> {
        let plan = workload.plan();
        let recorded = Ready::new(wanted, plan).and_then(|ready| self.record(name, ready, plan, workload));
        let recorded = match recorded {
            Ok(recorded) => recorded,
            Err(failure) if failure.is_refusal() => {
                return refused(name, &failure, workload).map(|()| false);
            }
            Err(failure) => return Err(Fault::Driver(failure)),
        };
        let Recorded { archive, loss, counts, counted, samples, fault } = recorded;
        let session = self.sessions;
        if let (Wanted::Count(counting), Some(value)) = (wanted, counted) {
            say!("count {name} {}", Count { session, event: counting.event, value });
        }
        match wanted {
            Wanted::Precise(_) => {
                let taken = precise::kept(archive.trace()).count() as u64;
                say!("samples {name} {}", Samples { session, taken, ..samples });
                for segment in archive.segments() {
                    if segment.after != After::Start {
                        say!("missing {name} {session}");
                    }
                    for (event, behind) in precise::kept(segment.bytes) {
                        say!("precise {name} {session} {} {}", Address(event), Address(behind));
                    }
                }
            }
            Wanted::Last { calls } => {
                let stack = if calls { "calls" } else { "branches" };
                let entries = last::kept(archive.trace()).count();
                say!("last {name} session={session} stack={stack} entries={entries}");
                for (from, to) in last::kept(archive.trace()) {
                    say!("branch {name} {session} {from:#x} {to:#x}");
                }
            }
            Wanted::Count(Counting { period: None, .. }) => {}
            Wanted::Count(Counting { period: Some(period), .. }) => {
                tell(name, session, Samples { period, ..samples }, &archive);
            }
            _ => tell(name, session, samples, &archive),
        }
        let text =
            Section { base: image::text().start, bytes: image::text_bytes(), space: AddressSpace::Any };
        for section in [text].into_iter().chain(workload.sections()) {
            say!("section {name} {}", Code::of(&section));
        }
        let strays = counts.stray;
        let full = loss.full + archive.full();
        say!("lost {name} {}", Lost { stops: loss.stop, full, strays, ..Lost::default() });
        self.memory = archive.into_memory();
        recorded_well(workload, &loss, fault)?;
        Ok(true)
    }
}

/// Reports samples that are only an address each.
fn tell(name: &str, session: u32, samples: Samples, archive: &Archive<'_>) {
    let taken = (archive.trace().len() / size_of::<u64>()) as u64;
    say!("samples {name} {}", Samples { session, taken, ..samples });
    for (address, count) in tally(archive.trace()) {
        say!("sample {name} {session} {address:#x} {count}");
    }
}

/// Prints an address, or `none`.
struct Address(Option<u64>);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address:#x}"),
            None => f.write_str("none"),
        }
    }
}
