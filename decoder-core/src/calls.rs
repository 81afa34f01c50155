//! From instructions to calls: the places where functions are entered and left, and the call depth.
//!
//! [`Calls`] takes the items of an [`InsnDecoder`](crate::flow::InsnDecoder) and returns a [`Step`] when execution goes
//! from one function to another. A kernel can print a call tree of these steps, or keep the last steps to print them
//! when it panics:
//!
//! ```
//! use pugmark_decoder_core::calls::{Calls, StepKind};
//! use pugmark_decoder_core::flow::InsnDecoder;
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//!
//! // 1000: call 1008; 1005: jmp rax; 1007: nop; 1008: ret
//! let code = [0xe8, 3, 0, 0, 0, 0xff, 0xe0, 0x90, 0xc3];
//! let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
//! // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (the return is compressed), TIP (1008)
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
//!     \x06\x2d\x08\x10";
//!
//! let mut flow = InsnDecoder::new(trace, Image::new(&sections));
//! flow.sync_forward();
//! let mut calls = Calls::new();
//! let mut steps = vec![];
//! while let Some(item) = flow.next()? {
//!     steps.extend(calls.step(&item).map(|step| (step.kind, step.to, step.depth)));
//! }
//! assert_eq!(steps, [(StepKind::Call, 0x1008, 1), (StepKind::Return, 0x1005, 0)]);
//! # Ok::<(), pugmark_decoder_core::Error>(())
//! ```

use crate::block_cache::{ExecutionSink, InstructionRun};
use crate::event::{Event, EventKind};
use crate::flow::{ExecutedInsn, FlowItem};
use crate::image::{Asid, Image, Section};
use crate::insn::{self, Class};
use crate::lost::Lost;
use crate::mode::ExecMode;

/// A detector of the calls and returns in an instruction flow.
///
/// For [`step`](Self::step) a jump stays in its function, even if it goes to the start of another one (a tail call):
/// only symbols show that, and [`step_with`](Self::step_with) uses them. A call of the next instruction is no step,
/// because code uses it to get its own address and never returns from it. Source: SDM vol. 3, Intel Processor Trace,
/// "RET Compression": near calls with a displacement of zero are excluded there for the same reason.
///
/// The abort of a transaction is no step. It takes the depth back to what it was where the transaction began. Source:
/// SDM vol. 1, Programming with Intel Transactional Synchronization Extensions, "RTM Software
/// Interface".
///
/// After [`forget`](Self::forget), an overflow or an interruption of the trace, the first instruction is no step
/// wherever it is, and the depth is unchanged.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    depth: i64,
    last: Option<TakenBranch>,
    /// The depth where a transaction has begun that has not ended.
    transaction: Option<i64>,
    /// True if the next interruption is the abort of a transaction.
    aborts: bool,
    /// The address space, as far as the trace has told it.
    space: Asid,
}

/// The last instruction, or an interrupt after it.
#[derive(Clone, Copy, Debug)]
struct TakenBranch {
    ip: u64,
    /// The address after the instruction; `None` for an interrupt.
    next: Option<u64>,
    class: Class,
}

/// A transition from one function to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The kind of transition.
    pub kind: StepKind,
    /// The address of the instruction that caused it; for an interrupt, of the first instruction that was not executed.
    pub from: u64,
    /// The address of the instruction after it.
    pub to: u64,
    /// The number of calls and interrupts that have not returned after this step. It is negative in a function that was
    /// entered before the trace began and called the one in which it began.
    pub depth: i64,
}

/// The kinds of transition from one function to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// A near call.
    Call,
    /// A near return.
    Return,
    /// An interrupt, an exception, a far call, or an instruction that enters the kernel, such as INT n and SYSCALL.
    Interrupt,
    /// IRET or a similar instruction.
    InterruptReturn,
    /// A jump to the start of another function, which returns to the caller of the function that jumped. Only
    /// [`Calls::step_with`] finds these.
    TailCall,
}

impl StepKind {
    /// Returns true if the step enters a function.
    #[must_use]
    pub const fn enters(self) -> bool {
        matches!(self, Self::Call | Self::Interrupt | Self::TailCall)
    }

    /// Returns the change of the depth.
    const fn deepens(self) -> i64 {
        match self {
            Self::Call | Self::Interrupt => 1,
            Self::Return | Self::InterruptReturn => -1,
            Self::TailCall => 0,
        }
    }
}

impl Calls {
    /// Creates a detector in front of the first instruction, at depth 0.
    #[must_use]
    pub const fn new() -> Self {
        Self { depth: 0, last: None, transaction: None, aborts: false, space: Asid { cr3: None, vmcs: None } }
    }

    /// Takes the next item of the flow and returns the step that it completes, if any.
    pub fn step(&mut self, item: &FlowItem) -> Option<Step> {
        self.step_with(item, |_, _| false)
    }

    /// Does the same as [`step`](Self::step), and finds tail calls too. `begins_another(from, to)` returns true if a
    /// function begins at `to` and `from` is not in it; it is called only for jumps that were taken.
    pub fn step_with(
        &mut self,
        item: &FlowItem,
        begins_another: impl FnOnce(u64, u64) -> bool,
    ) -> Option<Step> {
        match item {
            FlowItem::Insn(ExecutedInsn { ip, len, class, .. }) => {
                let step = self.arrive(*ip, begins_another);
                self.leave(*ip, *len, *class);
                step
            }
            FlowItem::Event(event) => match event.kind {
                EventKind::Paging(pip) | EventKind::AsyncPaging(pip) => {
                    self.space.cr3 = Some(pip.cr3);
                    None
                }
                _ if event.status => None,
                EventKind::AsyncBranch { from } => {
                    // An instruction such as INT n is reported as an interrupt too: both are one step.
                    let is_its_own = self.last.is_some_and(|last| last.class == Class::FarCall);
                    let (from, step) = match self.last {
                        Some(last) if is_its_own => (last.ip, None),
                        _ => (from, self.arrive(from, begins_another)),
                    };
                    if core::mem::take(&mut self.aborts) {
                        self.depth = self.transaction.take().unwrap_or(self.depth);
                        self.last = None;
                        return step;
                    }
                    self.last = Some(TakenBranch { ip: from, next: None, class: Class::FarCall });
                    step
                }
                // The branch before was executed, although the instruction at its target was not.
                EventKind::AsyncDisabled { at } => {
                    self.aborts = false;
                    self.arrive(at, begins_another)
                }
                EventKind::Tsx { speculative, aborted } => {
                    self.aborts = aborted;
                    if !aborted {
                        self.transaction = speculative.then_some(self.depth);
                    }
                    None
                }
                EventKind::Enabled { .. } | EventKind::Disabled | EventKind::Overflow | EventKind::Stop => {
                    self.forget();
                    None
                }
                _ => None,
            },
        }
    }

    /// Takes the next run of instructions of this 64-bit code, as an [`ExecutionSink`] gets it. Returns the step that
    /// its first instruction completes, if any. Events go to [`step`](Self::step), which tell address spaces apart, too.
    pub fn run(&mut self, mut insns: InstructionRun, code: &[Section<'_>]) -> Option<Step> {
        let step = self.arrive(insns.ip, |_, _| false);
        // Only the last instruction can be a branch: the next one is elsewhere.
        let mut last = insns.ip;
        for ip in insns.by_ref() {
            last = ip;
        }
        let window = Image::new(code).window(last, self.space).unwrap_or_default();
        let bytes = window.from(last);
        let class = insn::decode(bytes, ExecMode::Bits64, last).map_or(Class::Other, |insn| insn.class);
        self.leave(last, insns.ip.wrapping_sub(last) as u8, class);
        step
    }

    /// Returns the number of calls and interrupts that have not returned.
    #[must_use]
    pub const fn depth(&self) -> i64 {
        self.depth
    }

    /// Notes a gap before the next item, which then completes no step.
    pub const fn forget(&mut self) {
        self.aborts = false;
        self.last = None;
    }

    /// Notes the last instruction.
    fn leave(&mut self, ip: u64, len: u8, class: Class) {
        self.last = Some(TakenBranch { ip, next: Some(ip.wrapping_add(u64::from(len))), class });
    }

    /// Completes the step to `to`, where execution continues.
    fn arrive(&mut self, to: u64, begins_another: impl FnOnce(u64, u64) -> bool) -> Option<Step> {
        let TakenBranch { ip: from, next, class } = self.last.take()?;
        let kind = match class {
            _ if next == Some(to) && class != Class::NearReturn => return None,
            Class::NearCall | Class::IndirectCall => StepKind::Call,
            Class::NearReturn => StepKind::Return,
            Class::FarCall => StepKind::Interrupt,
            Class::FarReturn => StepKind::InterruptReturn,
            _ => {
                let jumped = matches!(class, Class::CondJump | Class::NearJump | Class::IndirectJump);
                if !(jumped && begins_another(from, to)) {
                    return None;
                }
                StepKind::TailCall
            }
        };
        self.depth += kind.deepens();
        Some(Step { kind, from, to, depth: self.depth })
    }
}

/// A sink that passes on each call and return: for a trace that comes in slices
/// ([`BlockStream`](crate::resume::BlockStream)), or for a [visit](crate::block::BlockDecoder::visit).
///
/// It knows sections of 64-bit code, such as a kernel's and a program's. Where other code is executed the steps are
/// those that interrupts make.
#[derive(Clone, Debug)]
pub struct CallSink<'c, F, const SECTIONS: usize = 1> {
    calls: Calls,
    code: [Section<'c>; SECTIONS],
    each: F,
}

impl<'c, F: FnMut(Step), const SECTIONS: usize> CallSink<'c, F, SECTIONS> {
    /// Creates a sink in front of the first instruction, at depth 0, that passes each step to `each`.
    #[must_use]
    pub const fn new(code: [Section<'c>; SECTIONS], each: F) -> Self {
        Self { calls: Calls::new(), code, each }
    }

    /// Returns the function that takes the steps.
    #[must_use]
    pub fn into_each(self) -> F {
        self.each
    }
}

impl<F: FnMut(Step), const SECTIONS: usize> ExecutionSink for CallSink<'_, F, SECTIONS> {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        self.calls.run(insns, &self.code).into_iter().for_each(&mut self.each);
    }

    fn event(&mut self, event: &Event) {
        self.calls.step(&FlowItem::Event(*event)).into_iter().for_each(&mut self.each);
    }

    fn lost(&mut self, _: &Lost) {
        self.calls.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockDecoder;
    use crate::block_cache::BlockCache;
    use crate::event::Stamp;
    use crate::flow::InsnDecoder;
    use crate::image::AddressSpace;
    use crate::packet::Pip;

    extern crate std;
    use std::vec::Vec;

    fn insn(ip: u64, len: u8, class: Class) -> FlowItem {
        FlowItem::Insn(ExecutedInsn { ip, len, class, mode: ExecMode::Bits64, speculative: false })
    }

    fn event(kind: EventKind) -> FlowItem {
        FlowItem::Event(Event { kind, ip: None, when: Stamp::default(), offset: 0, status: false })
    }

    fn steps(items: &[FlowItem]) -> Vec<(StepKind, u64, u64, i64)> {
        let mut calls = Calls::new();
        let steps = items.iter().filter_map(|item| calls.step(item));
        steps.map(|Step { kind, from, to, depth }| (kind, from, to, depth)).collect()
    }

    #[test]
    fn each_call_and_return_is_a_step() {
        use StepKind::{Call, Return};
        for class in [Class::NearCall, Class::IndirectCall] {
            let items = [
                insn(0x10, 5, class),
                insn(0x40, 1, Class::Other),
                insn(0x41, 1, Class::NearReturn),
                insn(0x15, 2, Class::NearJump),
                insn(0x90, 1, Class::NearReturn),
                insn(0x5, 1, Class::CondJump),
                insn(0x9, 1, Class::IndirectJump),
                insn(0x20, 1, Class::FarJump),
                insn(0x30, 1, Class::Other),
            ];
            assert_eq!(
                steps(&items),
                [(Call, 0x10, 0x40, 1), (Return, 0x41, 0x15, 0), (Return, 0x90, 0x5, -1)],
                "{class:?}"
            );
        }
    }

    #[test]
    fn a_call_of_the_next_instruction_is_no_step_and_a_return_to_it_is() {
        let items =
            [insn(0x10, 5, Class::NearCall), insn(0x15, 1, Class::NearReturn), insn(0x16, 1, Class::Other)];
        assert_eq!(steps(&items), [(StepKind::Return, 0x15, 0x16, -1)]);
        // VMCALL, after which the next instruction follows.
        assert_eq!(steps(&[insn(0x10, 3, Class::FarCall), insn(0x13, 1, Class::Other)]), []);
    }

    #[test]
    fn an_interrupt_enters_its_handler_and_iret_leaves_it() {
        use StepKind::{Call, Interrupt, InterruptReturn};
        let at = |from| event(EventKind::AsyncBranch { from });
        // The interrupt comes after a call, before the function's first instruction.
        let items = [
            insn(0x10, 5, Class::NearCall),
            at(0x40),
            insn(0x80, 2, Class::FarReturn),
            insn(0x40, 1, Class::Other),
            at(0x41),
            insn(0x41, 1, Class::Other),
        ];
        let expected = [
            (Call, 0x10, 0x40, 1),
            (Interrupt, 0x40, 0x80, 2),
            (InterruptReturn, 0x80, 0x40, 1),
            (Interrupt, 0x41, 0x41, 2),
        ];
        assert_eq!(steps(&items), expected);
        // INT n, with and without the event of its own.
        for event in [None, Some(at(0x12)), Some(at(0x10))] {
            let items: Vec<_> =
                [Some(insn(0x10, 2, Class::FarCall)), event, Some(insn(0x80, 1, Class::Other))]
                    .into_iter()
                    .flatten()
                    .collect();
            assert_eq!(steps(&items), [(Interrupt, 0x10, 0x80, 1)], "{event:?}");
        }
    }

    #[test]
    fn an_aborted_transaction_is_no_step_and_as_deep_as_where_it_has_begun() {
        let tsx = |speculative, aborted| event(EventKind::Tsx { speculative, aborted });
        let call = insn(0x10, 5, Class::NearCall);
        let abort = [
            tsx(true, false),
            call,
            insn(0x40, 1, Class::Other),
            tsx(false, true),
            event(EventKind::AsyncBranch { from: 0x41 }),
            insn(0x8, 1, Class::Other),
        ];
        let steps = |items: &[FlowItem]| {
            let mut calls = Calls::new();
            let found: Vec<_> =
                items.iter().filter_map(|item| calls.step(item)).map(|step| step.kind).collect();
            (found, calls.depth())
        };
        assert_eq!(steps(&abort.repeat(3)), ([StepKind::Call; 3].to_vec(), 0));
        // A committed transaction stands, and so does an interrupt after it.
        let interrupt = [event(EventKind::AsyncBranch { from: 0x41 }), insn(0x80, 1, Class::Other)];
        let committed = [&abort[..3], &[tsx(false, false)], &interrupt].concat();
        assert_eq!(steps(&committed), ([StepKind::Call, StepKind::Interrupt].to_vec(), 2));
    }

    #[test]
    fn a_branch_to_an_instruction_that_faults_is_a_step() {
        for (class, kind, depth) in
            [(Class::NearCall, StepKind::Call, 1), (Class::NearReturn, StepKind::Return, -1)]
        {
            let items = [
                insn(0x10, 5, class),
                event(EventKind::AsyncDisabled { at: 0x40 }),
                event(EventKind::Enabled { resumed: true }),
                insn(0x40, 1, Class::Other),
            ];
            assert_eq!(steps(&items), [(kind, 0x10, 0x40, depth)]);
        }
    }

    #[test]
    fn a_jump_to_the_start_of_another_function_is_a_step_if_functions_are_known() {
        // Functions begin at each multiple of 0x10.
        let begins_another = |from: u64, to: u64| to % 0x10 == 0 && from / 0x10 != to / 0x10;
        let found = |items: &[FlowItem]| {
            let mut calls = Calls::new();
            let steps = items.iter().filter_map(|item| calls.step_with(item, begins_another));
            steps.map(|Step { kind, from, to, depth }| (kind, from, to, depth)).collect::<Vec<_>>()
        };
        let expected = [(StepKind::TailCall, 0x14, 0x40, 0)];
        for class in [Class::CondJump, Class::NearJump, Class::IndirectJump] {
            let jump = |from, to| [insn(from, 2, class), insn(to, 1, Class::Other)];
            assert_eq!(found(&jump(0x14, 0x40)), expected, "{class:?}");
            assert_eq!(steps(&jump(0x14, 0x40)), [], "{class:?}");
            assert!(StepKind::TailCall.enters());
            // Within a function, to its own start, into another one, and to the start of the next one.
            for (from, to) in [(0x14, 0x18), (0x14, 0x10), (0x14, 0x44), (0x1e, 0x20)] {
                assert_eq!(found(&jump(from, to)), [], "{class:?} {from:#x} {to:#x}");
            }
            let interrupted = [
                insn(0x14, 2, class),
                event(EventKind::AsyncBranch { from: 0x40 }),
                insn(0x80, 1, Class::Other),
            ];
            let interrupt = (StepKind::Interrupt, 0x40, 0x80, 1);
            assert_eq!(found(&interrupted), [expected[0], interrupt], "{class:?}");
            let faulted = [insn(0x14, 2, class), event(EventKind::AsyncDisabled { at: 0x40 })];
            assert_eq!(found(&faulted), expected, "{class:?}");
        }
        // The class alone decides for calls and returns.
        for class in [Class::NearCall, Class::NearReturn, Class::FarCall, Class::FarReturn, Class::FarJump] {
            let items = [insn(0x14, 2, class), insn(0x40, 1, Class::Other)];
            assert_eq!(found(&items), steps(&items), "{class:?}");
        }
    }

    #[test]
    fn a_sink_finds_the_steps_of_a_flow() {
        // 1000: call 1008; 1005: jmp rax; 1007: nop; 1008: 17 × nop; 1019: call 101e; 101e: pop rax; 101f: ret
        let mut code = std::vec![0xe8, 3, 0, 0, 0, 0xff, 0xe0, 0x90];
        code.extend([0x90; 17]);
        code.extend([0xe8, 0, 0, 0, 0, 0x58, 0xc3]);
        let section = Section { base: 0x1000, bytes: &code, space: AddressSpace::Any };
        let sections = [section];
        // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (a compressed return), TIP (1008), TIP (1005), an interrupt
        // at 1005 (FUP, TIP 1000), TNT, TIP.PGD
        let trace = b"\
            \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
            \x06\x2d\x08\x10\x2d\x05\x10\x3d\x05\x10\x2d\0\x10\x06\x01";
        let mut flow = InsnDecoder::new(trace, Image::new(&sections));
        flow.sync_forward();
        let (mut calls, mut expected) = (Calls::new(), Vec::new());
        while let Ok(Some(item)) = flow.next() {
            expected.extend(calls.step(&item));
        }
        assert!(expected.len() > 5, "{expected:x?}");
        let (mut memory, mut found) = ([0; 4096], Vec::new());
        let mut sink = CallSink::new(sections, |step| found.push(step));
        let mut blocks = BlockDecoder::new(trace, Image::new(&sections));
        blocks.sync_forward();
        let _ = blocks.visit(&mut BlockCache::new(&mut memory), &mut sink);
        assert_eq!(found, expected);
    }

    #[test]
    fn code_at_one_address_is_that_of_the_address_space() {
        // 1000: call 1010; 1000 in the other one: jmp 1010
        let [call, jump] = [[0xe8, 11, 0, 0, 0], [0xe9, 11, 0, 0, 0]];
        let section = |bytes, cr3| Section { base: 0x1000, bytes, space: AddressSpace::Cr3(cr3) };
        let code = [section(&call, 0x4000), section(&jump, 0x5000)];
        let mut found = Vec::new();
        let mut sink = CallSink::new(code, |step: Step| found.push(step.to));
        let run = |ip| InstructionRun { ip, lengths: 5 };
        for (status, kind) in
            [(true, EventKind::Paging as fn(Pip) -> EventKind), (false, EventKind::AsyncPaging)]
        {
            for cr3 in [0x4000, 0x5000, 0x4000] {
                let kind = kind(Pip { cr3, non_root: false });
                sink.event(&Event { kind, ip: None, when: Stamp::default(), offset: 0, status });
                sink.insns(run(0x1000));
                sink.insns(InstructionRun { ip: 0x1010, lengths: 1 });
            }
        }
        assert_eq!(found, [0x1010; 4]);
    }

    #[test]
    fn what_follows_a_gap_is_no_step() {
        let gaps = [
            EventKind::Enabled { resumed: false },
            EventKind::Disabled,
            EventKind::AsyncDisabled { at: 0x15 },
            EventKind::Overflow,
            EventKind::Stop,
        ];
        let call = insn(0x10, 5, Class::NearCall);
        for gap in gaps {
            assert_eq!(steps(&[call, event(gap), insn(0x40, 1, Class::Other)]), [], "{gap:?}");
        }
        let mut calls = Calls::new();
        assert_eq!(calls.step(&call), None);
        calls.forget();
        assert_eq!(calls.step(&insn(0x40, 1, Class::Other)), None);
        // Neither a status nor another event is a gap.
        let mut status = event(EventKind::Enabled { resumed: false });
        if let FlowItem::Event(event) = &mut status {
            event.status = true;
        }
        for between in [status, event(EventKind::Tick)] {
            assert_eq!(steps(&[call, between, insn(0x40, 1, Class::Other)]).len(), 1, "{between:?}");
        }
        assert_eq!(calls.depth(), 0);
    }
}
