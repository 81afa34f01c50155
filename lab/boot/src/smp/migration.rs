//! Threads with traces of their own that move from processor to processor: each trace continues where it left off.

use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use pugmark_kernel::intel::pt::{Buffer, Layout, Mode, PtCapabilities, PtConfig, PtTask, PtUnit, RegionSize};
use spin::Mutex;

use super::SmpWorkload;
use super::traces::Ended;
use crate::arch::{processors, registers};
use crate::sources::KernelFrames;
use crate::workload::expect;
use crate::workloads::Churn;
use pugmark_machine::mark_truth;

/// Number of times that each thread is continued.
const ROUNDS: usize = 24;
/// Indirect calls of a thread between two moves.
const WORK: u64 = 40;
/// The first thread's session.
const SESSION: usize = 1;

/// A thread that runs on one processor for a while, then on the next one.
struct Thread {
    /// `None` while it runs.
    trace: Option<PtTask<KernelFrames>>,
    churn: Churn,
    session: u16,
}

pub(super) fn run(smp: &SmpWorkload<'_>) {
    let capabilities = PtCapabilities::of_this_processor().expect("Intel PT");
    let config = PtConfig::new().os(true);
    let threads: Vec<Mutex<Thread>> = (0..processors::count())
        .map(|number| {
            // Large enough that no PMI is due.
            let buffer = buffer(&capabilities, Layout::topa(RegionSize::K64, 4));
            let Ok(task) = PtTask::new(&capabilities, &config, buffer) else { panic!("refused") };
            let session = (SESSION + number) as u16;
            Mutex::new(Thread { trace: Some(task), churn: Churn::default(), session })
        })
        .collect();
    // Number of times that each thread was continued: its next processor waits for this count.
    let turns: Vec<AtomicUsize> = threads.iter().map(|_| AtomicUsize::new(0)).collect();
    processors::together(&|processor| {
        let unit = PtUnit::with_capabilities(capabilities, registers::msr()).expect("a unit");
        let buffer = buffer(&capabilities, Layout::topa(RegionSize::K4, 4));
        let Ok(mut here) = unit.start(&config, buffer) else { panic!("the trace does not start") };
        // Only the threads are traced.
        here.suspend().expect("no fault");
        for turn in 0..ROUNDS {
            let number = (processor + turn) % threads.len();
            while turns[number].load(Ordering::Acquire) < turn {
                core::hint::spin_loop();
            }
            let mut thread = threads[number].lock();
            let Thread { trace, churn, session } = &mut *thread;
            let coming = trace.take().expect("it does not run");
            let idle = here.switch(coming).expect("the same processor model");
            mark_truth((*session).into());
            here.wake().expect("no fault");
            churn.turn(WORK);
            here.suspend().expect("no fault");
            mark_truth(0);
            *trace = Some(here.switch(idle).expect("the same processor model"));
            drop(thread);
            turns[number].store(turn + 1, Ordering::Release);
        }
        let Ok(_) = here.stop() else { panic!("the trace does not stop") };
    });
    for (number, thread) in threads.into_iter().enumerate() {
        let Thread { trace, churn, session } = thread.into_inner();
        let trace = trace.expect("it does not run");
        let loss = *trace.loss();
        let ended = Ended::new(session, &trace.into_trace(), loss, 1 << 18);
        let name = format!("migration-{number}");
        ended.report(smp, &name, churn.check().and(expect("bytes", u64::from(ended.bytes().is_empty()), 0)));
    }
}

fn buffer(capabilities: &PtCapabilities, layout: Layout) -> Buffer<KernelFrames> {
    Buffer::allocate(KernelFrames, capabilities, layout, Mode::StopWhenFull { spare: 1 }).expect("memory")
}
