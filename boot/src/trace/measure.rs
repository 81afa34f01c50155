//! Counts a workload's events, samples what it executes or keeps its last branches, and reports the result.

use pugmark_boot::archive::Archive;
use pugmark_boot::code_section::code_section;
use pugmark_boot::tally::tally;
use pugmark_decoder_core::image::{AddressSpace, Section};
use pugmark_protocol::{After, Branch, Count, Last, Line, Lost, Precise, Sample, Samples};

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
            say(Line::Count(name, Count { session, event: counting.event, value }));
        }
        match wanted {
            Wanted::Precise(_) => {
                let taken = precise::kept(archive.trace()).count() as u64;
                say(Line::Samples(name, Samples { session, taken, ..samples }));
                for segment in archive.segments() {
                    if segment.after != After::Start {
                        say(Line::Missing(name, session));
                    }
                    for (event, next) in precise::kept(segment.bytes) {
                        say(Line::Precise(name, Precise { session, event, next }));
                    }
                }
            }
            Wanted::Last { calls } => {
                let entries = last::kept(archive.trace()).count() as u64;
                say(Line::Last(name, Last { session, calls, entries }));
                for (from, to) in last::kept(archive.trace()) {
                    say(Line::Branch(name, Branch { session, from, to }));
                }
            }
            Wanted::Count(Counting { period: None, .. }) => {}
            Wanted::Count(Counting { period: Some(period), .. }) => {
                say_samples(name, Samples { session, period: period.into(), ..samples }, &archive);
            }
            _ => say_samples(name, Samples { session, ..samples }, &archive),
        }
        let text =
            Section { base: image::text().start, bytes: image::text_bytes(), space: AddressSpace::Any };
        for section in [text].into_iter().chain(workload.sections()) {
            say(Line::Section(name, code_section(&section)));
        }
        let strays = counts.stray;
        let full = loss.full + archive.full();
        say(Line::Lost(name, Lost { stops: loss.stop, full, strays, ..Lost::default() }));
        self.memory = archive.into_memory();
        recorded_well(workload, &loss, fault)?;
        Ok(true)
    }
}

/// Reports samples that are only an address each.
fn say_samples(name: &str, samples: Samples, archive: &Archive<'_>) {
    let taken = (archive.trace().len() / size_of::<u64>()) as u64;
    say(Line::Samples(name, Samples { taken, ..samples }));
    for (address, count) in tally(archive.trace()) {
        say(Line::Sample(name, Sample { session: samples.session, address, count }));
    }
}
