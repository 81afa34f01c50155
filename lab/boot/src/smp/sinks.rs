//! The cost of each use of a trace in this kernel: see [`pugmark_boot::sinks`]. The trace is one processor's.

use pugmark_boot::sinks::costs;
use pugmark_kernel::intel::pt::{Buffer, Layout, Mode, PtCapabilities, PtConfig, PtUnit, RegionSize};
use pugmark_protocol::Line;

use super::SmpWorkload;
use super::traces::{Ended, code};
use crate::arch::serial::{print, say};
use crate::arch::{clock, registers};
use crate::runner::RunError;
use crate::sources::KernelFrames;
use crate::workload::{Workload as _, expect};
use crate::workloads::{Churn, Sort};
use pugmark_machine::mark_truth;

const SESSION: u16 = 1;

pub(super) fn run(smp: &SmpWorkload<'_>) {
    let capabilities = PtCapabilities::of_this_processor().expect("Intel PT");
    let unit = PtUnit::with_capabilities(capabilities, registers::msr()).expect("a unit");
    let layout = Layout::topa(RegionSize::K64, 4);
    let mode = Mode::StopWhenFull { spare: 1 };
    let buffer = Buffer::allocate(KernelFrames, &capabilities, layout, mode).expect("memory");
    let (mut sort, mut churn) = (Sort::new(), Churn::default());
    mark_truth(SESSION.into());
    let Ok(running) = unit.start(&PtConfig::new().os(true), buffer) else {
        panic!("the trace does not start")
    };
    sort.run();
    churn.turn(4000);
    let Ok(stopped) = running.stop() else { panic!("the trace does not stop") };
    mark_truth(0);
    let ended = Ended::new(SESSION, &stopped.trace, stopped.loss, 1 << 18);
    ended.report(smp, "sinks", sort.check().and(churn.check()));
    say(Line::Run("costs"));
    let trace = ended.bytes();
    let costs = costs(trace, &[code()], clock::tsc);
    print(format_args!("trace bytes={}\n", trace.len()));
    for cost in &costs {
        print(format_args!("{}\n", cost.of(trace.len())));
    }
    let empty = costs.iter().filter(|cost| cost.found == 0).count();
    (smp.report)(
        "costs",
        expect("sinks that have found nothing", empty as u64, 0).map_err(RunError::Workload),
    );
}
