//! Counts a workload's events or samples what it executes, and reports.

use pugmark_boot::protocol::{Code, Count, Lost, Samples};
use pugmark_boot::tally::tally;
use pugmark_decoder_core::image::{AddressSpace, Section};

use super::session::{Ready, Recorded, Wanted, take_strays};
use super::{Fault, Stage, recorded_well, refused};
use crate::arch::image;
use crate::arch::serial::say;
use crate::workloads::Workload;

impl Stage<'_> {
    /// Counts or samples a workload, where the processor can, and reports; whether it can.
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
        let period = match wanted {
            Wanted::Count(counting) => counting.period,
            _ => Some(samples.period),
        };
        if let Some(period) = period {
            let taken = (archive.trace().len() / size_of::<u64>()) as u64;
            say!("samples {name} {}", Samples { session, period, taken, ..samples });
            for (address, count) in tally(archive.trace()) {
                say!("sample {name} {session} {address:#x} {count}");
            }
        }
        let text =
            Section { base: image::text().start, bytes: image::text_bytes(), space: AddressSpace::Any };
        for section in [text].into_iter().chain(workload.sections()) {
            say!("section {name} {}", Code::of(&section));
        }
        let strays = counts.stray + take_strays();
        say!("lost {name} {}", Lost { full: archive.full(), strays, ..Lost::default() });
        self.memory = archive.into_memory();
        recorded_well(workload, &loss, fault)?;
        Ok(true)
    }
}
