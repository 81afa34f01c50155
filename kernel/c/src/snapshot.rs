//! One function, traced into memory and decoded.

use core::ffi::{c_int, c_void};
use pugmark_decoder_core::calls;
use pugmark_decoder_core::flow::FlowItem;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::Section;
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::short::{self, FramePool, ShortError, snapshot};

use crate::argument::{check, reference};
use crate::outcome::{Failure, Outcome, report};
use crate::processor::msr;
use crate::trace::{Step, StepCounter, Trace, WorkFunction};

/// Traces `work` on this processor, passes on its steps, and writes the end to `outcome`. Returns an error's number.
///
/// # Safety
///
/// `trace`, `scratch` and `outcome` are as `pugmark.h` asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pugmark_snapshot(
    trace: *const Trace,
    work: Option<WorkFunction>,
    scratch: *mut c_void,
    scratch_bytes: usize,
    outcome: *mut Outcome,
) -> c_int {
    let take = || {
        // SAFETY: the caller promises it.
        let trace = unsafe { reference(trace, "trace is null or misaligned") }?;
        let work = work.ok_or(Failure::Argument("work is null"))?;
        check(!scratch.is_null(), "scratch is null")?;
        let end = scratch.addr().checked_add(scratch_bytes);
        check(end.is_some() && scratch_bytes <= isize::MAX as usize, "scratch_bytes is too large")?;
        // SAFETY: the caller promises that these bytes are its own and initialised; they are in the address space.
        let scratch = unsafe { core::slice::from_raw_parts_mut(scratch.cast(), scratch_bytes) };
        // SAFETY: the caller promises it.
        let code = unsafe { trace.code() }?;
        let (pool, mut source) = trace.memory.take(trace.context)?;
        let outcome = take(trace, code, &pool, work, scratch);
        pool.release(&mut source);
        outcome
    };
    // SAFETY: the caller promises it.
    unsafe { report(outcome, take) }
}

/// Traces and decodes.
fn take(
    trace: &Trace,
    code: Section<'_>,
    pool: &FramePool,
    work: WorkFunction,
    scratch: &mut [u8],
) -> Result<Outcome, Failure> {
    let context = trace.context;
    // SAFETY: the kernel's function, with its context.
    let call = || unsafe { work(context) };
    let snapshot = snapshot(msr(), pool, pool.bytes(), &PtConfig::new().os(true), call)?;
    let mut steps = trace.steps();
    pass_steps(snapshot.calls(&[code], scratch)?, work as usize as u64, &mut steps)?;
    let hash = hash(&snapshot, code, scratch)?;
    let bytes = snapshot.stopped.trace.len();
    let mut outcome = Outcome {
        calls: steps.calls,
        instructions: hash.count(),
        hash: hash.value(),
        bytes,
        ..Outcome::EMPTY
    };
    outcome.lost(snapshot.loss());
    Ok(outcome)
}

/// The trace of the function.
type Taken<'a> = short::Snapshot<GuardedMsr, &'a FramePool>;

/// Passes on the steps from the call of `work`, at depth 1, to its return.
fn pass_steps(
    all: impl Iterator<Item = Result<calls::Step, ShortError>>,
    work: u64,
    steps: &mut StepCounter,
) -> Result<(), Failure> {
    let mut above = None;
    for step in all {
        let step = Step::from(step?);
        if above.is_none() && step.to == work {
            above = Some(step.depth - 1);
        }
        let Some(above) = above else { continue };
        steps.take(Step { depth: step.depth - above, ..step });
        if step.depth <= above {
            break;
        }
    }
    Ok(())
}

/// Returns the hash of all instructions.
fn hash(snapshot: &Taken<'_>, code: Section<'_>, scratch: &mut [u8]) -> Result<AddressHash, Failure> {
    let code = [code];
    let mut flow = snapshot.decoder(&code, scratch)?;
    let mut hash = AddressHash::new();
    while let Some(item) = flow.next()? {
        if let FlowItem::Insn(insn) = item {
            hash.add(insn.ip);
        }
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::tests::counter;
    use calls::StepKind::{self, Call, Interrupt, InterruptReturn, Return};

    extern crate std;
    use std::vec::Vec;

    const WORK: u64 = 0x1000;

    #[test]
    fn the_steps_are_those_from_the_functions_call_to_its_return() {
        let step = |kind: StepKind, to, depth| calls::Step { kind, from: 1, to, depth };
        // Steps around the function are not its own: another function before, and what comes after the return.
        let steps = [
            step(Call, 0x2000, 1),
            step(Call, WORK, 2),
            step(Call, 0x3000, 3),
            step(Interrupt, 0x4000, 4),
            step(InterruptReturn, 0x3001, 3),
            step(Return, 0x1001, 2),
            step(Call, WORK, 3),
            step(Return, 0x1002, 2),
            step(Return, 0x2001, 1),
            step(Call, WORK, 2),
        ];
        let mut all = Vec::new();
        let mut steps_taken = counter(&mut all);
        pass_steps(steps.map(Ok).into_iter(), WORK, &mut steps_taken).unwrap();
        assert_eq!(steps_taken.calls, 3);
        let found: Vec<_> = all.iter().map(|step| (step.to, step.depth)).collect();
        let expected = [
            (WORK, 1),
            (0x3000, 2),
            (0x4000, 3),
            (0x3001, 2),
            (0x1001, 1),
            (WORK, 2),
            (0x1002, 1),
            (0x2001, 0),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn an_error_ends_the_steps_and_is_told() {
        let error = ShortError::Scratch { needed: 9 };
        let mut all = Vec::new();
        let ended = pass_steps([Err(error)].into_iter(), WORK, &mut counter(&mut all));
        assert!(matches!(ended, Err(Failure::Short(same)) if same == error));
    }
}
