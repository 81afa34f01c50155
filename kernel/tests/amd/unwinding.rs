//! A panic that unwinds through a sink leaves the units off; the driver reports that and resumes at the next interrupt.

use super::machine::{Kernel, PERIOD};
use pugmark_decoder_core::ibs::Sample;
use pugmark_kernel::amd::counters::Overflow;
use pugmark_kernel::amd::ibs::SampleSink;
use pugmark_kernel::pmi::PmiSource;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

struct PanickingSamples;

impl SampleSink for PanickingSamples {
    fn sample(&mut self, _: &Sample) -> bool {
        resume_unwind(Box::new(()))
    }
}

#[test]
fn a_panic_of_a_sink_loses_its_overflow_or_sample_and_the_next_interrupt_resumes_the_unit() {
    for profile in ["barcelona", "trinity", "zen2", "zen4", "zen6"] {
        for of_counters in [true, false] {
            let mut kernel = Kernel::new(profile, 0);
            match of_counters {
                true => {
                    let started = kernel.counters_unit().start(&Kernel::events()[1..]);
                    kernel.counters = Some(started.map_err(|failed| failed.error()).unwrap());
                }
                false => {
                    let started = kernel.ibs_unit().start(&Kernel::both());
                    kernel.ibs = Some(started.map_err(|failed| failed.error()).unwrap());
                }
            }
            assert!(kernel.machine.run(4 * PERIOD), "{profile}");
            let (mut msr, mut apic) = (kernel.machine.clone(), kernel.machine.clone());
            let mut panics = |_: Overflow| -> bool { resume_unwind(Box::new(())) };
            let mut samples = PanickingSamples;
            let handled = catch_unwind(AssertUnwindSafe(|| {
                let mut counters = kernel.counters.as_mut().map(|running| running.source(&mut panics));
                let mut ibs = kernel.ibs.as_mut().map(|running| running.source(&mut samples));
                let sources: &mut [&mut dyn PmiSource] = &mut [&mut counters, &mut ibs];
                kernel.handler.handle(&mut msr, &mut apic, sources)
            }));
            assert!(handled.is_err(), "{profile}");
            let counts = |kernel: &Kernel| match (&kernel.counters, &kernel.ibs) {
                (Some(running), _) => (running.overflows().lost, running.overflows().abandoned),
                (_, Some(running)) => (running.counts().lost, running.counts().abandoned),
                _ => (0, 0),
            };
            assert_eq!(counts(&kernel), (1, 1), "{profile}");
            kernel.machine.run(10 * PERIOD);
            // Any interrupt may come next.
            kernel.nmi().unwrap();
            kernel.run(10 * PERIOD);
            assert_eq!(counts(&kernel), (1, 1), "{profile}");
            let taken = kernel.overflows.len() + kernel.ops.len() + kernel.fetches.len();
            assert!(taken >= 5, "{profile}: {taken}");
            assert_eq!(kernel.machine.violations(), Default::default(), "{profile}");
        }
    }
}
