//! The parts that a snapshot and a live trace have in common.

use core::ffi::c_void;
use pugmark_decoder_core::calls::{self, StepKind};
use pugmark_decoder_core::image::Section;
use pugmark_kernel::short::kernel_code;

use crate::argument::check;
use crate::memory::Memory;
use crate::outcome::Failure;

/// A near call.
pub const STEP_CALL: u32 = 0;
/// A near return.
pub const STEP_RETURN: u32 = 1;
/// An interrupt or an exception.
pub const STEP_INTERRUPT: u32 = 2;
/// The return from an interrupt.
pub const STEP_INTERRUPT_RETURN: u32 = 3;
/// A jump to another function.
pub const STEP_TAIL_CALL: u32 = 4;

/// A transition from one function to another: `pugmark_step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// The address of the instruction that caused it.
    pub from: u64,
    /// The address of the instruction after it.
    pub to: u64,
    /// The number of calls that have not returned after it.
    pub depth: i64,
    /// One of the numbers `STEP_`….
    pub kind: u32,
}

impl From<calls::Step> for Step {
    fn from(step: calls::Step) -> Self {
        let kind = match step.kind {
            StepKind::Call => STEP_CALL,
            StepKind::Return => STEP_RETURN,
            StepKind::Interrupt => STEP_INTERRUPT,
            StepKind::InterruptReturn => STEP_INTERRUPT_RETURN,
            StepKind::TailCall => STEP_TAIL_CALL,
        };
        Self { from: step.from, to: step.to, depth: step.depth, kind }
    }
}

/// A function that takes steps.
pub type StepFunction = unsafe extern "C" fn(*mut c_void, *const Step);
/// A function that is traced.
pub type WorkFunction = unsafe extern "C" fn(*mut c_void);

/// The memory and the code of a trace, and who takes its steps: `pugmark_trace`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Trace {
    /// The memory for the trace.
    pub memory: Memory,
    /// The first byte of the kernel's code.
    pub code_start: *const c_void,
    /// The end of the kernel's code.
    pub code_end: *const c_void,
    /// The function that takes each step, or null.
    pub step: Option<StepFunction>,
    /// The argument of all functions.
    pub context: *mut c_void,
}

impl Trace {
    /// Returns the kernel's code.
    ///
    /// # Safety
    ///
    /// The memory between the two pointers is readable and never changes.
    pub(crate) unsafe fn code(&self) -> Result<Section<'static>, Failure> {
        let bytes = self.code_end.addr().checked_sub(self.code_start.addr());
        let is_code = bytes.is_some_and(|bytes| 0 < bytes && bytes <= isize::MAX as usize);
        check(!self.code_start.is_null() && is_code, "code_start and code_end have no code between them")?;
        // SAFETY: the caller promises it; the pointers are in order.
        Ok(unsafe { kernel_code(self.code_start.cast(), self.code_end.cast()) })
    }

    /// Returns the taker of the steps.
    pub(crate) const fn steps(&self) -> StepCounter {
        StepCounter { step: self.step, context: self.context, calls: 0 }
    }
}

/// A counter of calls that passes on all steps.
#[derive(Debug)]
pub(crate) struct StepCounter {
    step: Option<StepFunction>,
    context: *mut c_void,
    /// The number of near calls.
    pub(crate) calls: u64,
}

impl StepCounter {
    pub(crate) fn take(&mut self, step: Step) {
        self.calls += u64::from(step.kind == STEP_CALL);
        if let Some(function) = self.step {
            // SAFETY: the kernel's function, with its context.
            unsafe { function(self.context, &step) };
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    extern crate std;
    use std::vec::Vec;

    /// Returns a counter that adds each step to `all`, which must outlive it.
    pub(crate) fn counter(all: &mut Vec<Step>) -> StepCounter {
        unsafe extern "C" fn add(all: *mut c_void, step: *const Step) {
            // SAFETY: the context is the test's, and nothing else uses it meanwhile.
            let all = unsafe { &mut *all.cast::<Vec<Step>>() };
            // SAFETY: the step is there until this returns.
            all.push(unsafe { *step });
        }
        StepCounter { step: Some(add), context: (&raw mut *all).cast(), calls: 0 }
    }

    #[test]
    fn steps_have_the_headers_numbers_and_only_calls_are_counted() {
        use StepKind::{Call, Interrupt, InterruptReturn, Return, TailCall};
        let mut all = Vec::new();
        let mut steps = counter(&mut all);
        for kind in [Call, Return, Interrupt, InterruptReturn, TailCall] {
            steps.take(calls::Step { kind, from: 1, to: 2, depth: -3 }.into());
        }
        assert_eq!(steps.calls, 1);
        assert!(all.iter().map(|step| step.kind).eq(0..5));
        assert_eq!(all[4], Step { from: 1, to: 2, depth: -3, kind: STEP_TAIL_CALL });
        // Without a function they are counted, too.
        let mut steps = StepCounter { step: None, context: core::ptr::null_mut(), calls: 0 };
        steps.take(all[0]);
        assert_eq!(steps.calls, 1);
    }
}
