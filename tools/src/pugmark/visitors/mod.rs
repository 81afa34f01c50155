//! The calls of a trace: functions that are entered and left, each with its time, and other events.

mod blocks;
mod clock;
mod functions;
mod stacks;
mod steps;
mod system_calls;
mod times;

use super::{
    known_blocks::ExecutedBlocks,
    progress::{Progress, Size},
};
use crate::session::Session;
use crate::symbols::TracedSymbols;
pub(super) use clock::{TraceClock, Unit};
use functions::WalkedFunctions;
use pugmark_decoder_core::{
    event::{Event, EventKind},
    flow::ExecutedInsn,
    insn::Class,
    packet::PtwPayload,
};
use stacks::CallStacks;
use std::borrow::Cow;
use steps::{StepBefore, WalkStep};
use system_calls::SystemCalls;
pub(super) use times::TraceTimes;

/// Something that happens in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallEvent {
    /// A function is entered, by the call at `from`; `None` for the one in which the trace begins or goes on, and for
    /// the one that is returned to though its call is not in the trace.
    Enter {
        /// The call, or the instruction that was interrupted or made a system call: a signal's handler is entered from
        /// there.
        from: Option<u64>,
        /// The address at which the function is entered.
        to: u64,
    },
    /// A function that was entered before, from there, is on the stack again: after a stack switch, or because the
    /// step that left it was undone.
    Again { from: Option<u64>, to: u64 },
    /// The innermost function is left.
    Leave,
    /// The innermost function is left by a jump to the begin of one that has jumped to it: functions that jump to one
    /// another are a loop.
    Back,
    /// Nothing is traced, up to [`On`](Self::On): a system call, whose name may be known, or another level, address or
    /// address space.
    Off(Option<&'static str>),
    /// Tracing goes on.
    On,
    /// A part of the trace is missing or cannot be decoded, up to the next [`Enter`](Self::Enter). All functions have
    /// been left.
    Loss(String),
    /// A mark of this kind, with its text.
    Mark(MarkKind, String),
    /// The trace ends at the instruction at this address, if one was executed. It was not executed itself if tracing
    /// stopped before it, as at a fault. All functions that have not been left are left after this.
    End(Option<u64>),
}

/// Returns the name of a period in which nothing is traced, because of this system call if it is known.
pub(super) fn not_traced(call: Option<&str>) -> Cow<'static, str> {
    call.map_or("not traced".into(), |call| format!("not traced: {call}").into())
}

/// The kind of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkKind {
    /// A value that the program has written by PTWRITE.
    Written,
    /// The processor sleeps, or wakes up.
    Power,
    /// The processor's frequency.
    Frequency,
}

impl MarkKind {
    /// Returns the text of the mark of a value that the program has written.
    pub(super) fn written(value: u64) -> String {
        format!("PTWRITE {value:#x}")
    }
}

/// The time of something that happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Time {
    /// Nanoseconds, or ticks of the TSC if its frequency is not known, or instructions without TSC packets.
    pub(super) at: u64,
    /// The number of instructions before.
    pub(super) insns: u64,
}

impl Time {
    /// Returns the time and instructions since `before`.
    pub(super) const fn since(self, before: Self) -> Self {
        Self { at: self.at.saturating_sub(before.at), insns: self.insns.saturating_sub(before.insns) }
    }

    /// Adds time and instructions that have passed.
    pub(super) const fn add(&mut self, passed: Self) {
        self.at += passed.at;
        self.insns += passed.insns;
    }
}

/// A consumer of what happens in a trace.
pub(super) trait Visitor {
    /// Receives something that happens.
    fn call_event(&mut self, time: Time, what: CallEvent);

    /// Announces the instruction at `ip`. Returns true if [`at`](Self::at) is to be called with its time.
    fn watches(&mut self, ip: u64) -> bool {
        let _ = ip;
        false
    }

    /// Returns true if [`watches`](Self::watches) may return true at `ip` directly after the instruction at `before`.
    fn tells_apart(&mut self, before: u64, ip: u64) -> bool {
        let _ = (before, ip);
        false
    }

    /// Receives a near call, to `to`, that was not seen before, before anything there is executed.
    fn sees_call(&mut self, to: u64) {
        let _ = to;
    }

    /// Receives the same for a near jump without a condition.
    fn sees_jump(&mut self, from: u64, to: u64) {
        let _ = (from, to);
    }

    /// Receives the instruction at `ip`, after everything that happens before it.
    fn at(&mut self, time: Time, ip: u64) {
        let _ = (time, ip);
    }
}

impl<F: FnMut(Time, CallEvent) + ?Sized> Visitor for F {
    fn call_event(&mut self, time: Time, what: CallEvent) {
        self(time, what);
    }
}

/// A lane of a session that is walked, with its visitor.
pub(super) struct WalkedLane<'v, V: ?Sized> {
    pub(super) names: &'v TracedSymbols,
    pub(super) visitor: &'v mut V,
}

/// The end of a lane.
pub(super) struct WalkEnd {
    /// The time at which it ends, or its window, and the number of all its instructions.
    pub(super) time: Time,
    /// The number of errors, and of places where packets were lost.
    pub(super) errors: usize,
    /// The blocks that were executed, if they are counted.
    pub(super) counted: Option<ExecutedBlocks>,
}

/// Decodes a session in the order of time, and tells the visitor of each lane what happens there, in order. Returns
/// where each ends; `counts` says whether blocks are counted, too.
///
/// The innermost function is always the one that the instruction is in, by the names of functions. So a jump from one
/// function to another is followed like a call, or like a return to a function that has not been left: a tail call, an
/// entry of a linkage table, `longjmp`.
pub(super) fn walk_lanes<V: Visitor + ?Sized>(
    session: &Session<'_>,
    clock: TraceClock,
    counts: bool,
    progress: &mut Progress,
    lanes: Vec<WalkedLane<'_, V>>,
) -> Vec<WalkEnd> {
    progress.begin("decoding", Size::Bytes(session.size()));
    let states = lanes.into_iter().zip(&session.lanes).map(|(WalkedLane { names, visitor }, code)| State {
        system_calls: session
            .images
            .get(*code)
            .map_or_else(SystemCalls::default, |image| SystemCalls::new(*image, names)),
        ..State::new(CallStacks::new(WalkedFunctions::named(names)), visitor)
    });
    let walked = blocks::walk(session, clock, counts, progress, states.collect());
    progress.end();
    let end = |(mut state, counted): (State<'_, V>, _)| {
        state.say(CallEvent::End(state.at));
        state.change(|stacks, tell| stacks.end(tell));
        let time = Time { at: state.left.unwrap_or(state.time.at), ..state.time };
        WalkEnd { time, errors: state.errors, counted }
    };
    walked.into_iter().map(end).collect()
}

/// The state of a walk through a trace.
struct State<'v, V: ?Sized> {
    /// The functions that have not been left.
    stacks: CallStacks<'v>,
    system_calls: SystemCalls<'v>,
    /// The instruction or the interrupt that leads to the next instruction.
    before: StepBefore,
    time: Time,
    /// The last instruction, or the one before which tracing stopped.
    at: Option<u64>,
    /// While nothing is traced: the name of the system call, if it is known.
    off: Option<Option<&'static str>>,
    /// True if the next instruction is the first one, or the first one after a loss.
    begins: bool,
    /// True if the next event aborts a transaction.
    aborts: bool,
    /// True if something before the next item cannot be decoded.
    damaged: bool,
    errors: usize,
    /// True in the lane's window: the visitor is told what happens there.
    is_inside: bool,
    /// The time at which the window was left.
    left: Option<u64>,
    visitor: &'v mut V,
}

impl<'v, V: Visitor + ?Sized> State<'v, V> {
    fn new(stacks: CallStacks<'v>, visitor: &'v mut V) -> Self {
        Self {
            stacks,
            system_calls: SystemCalls::default(),
            before: StepBefore::Nothing,
            time: Time::default(),
            at: None,
            off: None,
            begins: true,
            aborts: false,
            damaged: false,
            errors: 0,
            is_inside: true,
            left: None,
            visitor,
        }
    }

    /// Sets the time. It never goes back.
    fn set_time(&mut self, at: Option<u64>) {
        self.time.at = at.map_or(self.time.at, |at| at.max(self.time.at));
    }

    fn say(&mut self, what: CallEvent) {
        if self.is_inside {
            self.visitor.call_event(self.time, what);
        }
    }

    /// Changes the stacks, and tells the visitor what happens there.
    #[inline]
    fn change(&mut self, change: impl FnOnce(&mut CallStacks<'v>, &mut dyn FnMut(CallEvent))) {
        let Self { stacks, visitor, time, is_inside, .. } = self;
        change(stacks, &mut |what| {
            if *is_inside {
                visitor.call_event(*time, what);
            }
        });
    }

    /// Enters the window, where the functions that have not been left are on the stack again; or leaves the window and
    /// all functions.
    fn turns(&mut self, is_inside: bool) {
        if is_inside {
            self.is_inside = true;
            for (from, to) in self.stacks.entered() {
                self.visitor.call_event(self.time, CallEvent::Again { from, to });
            }
            if let Some(call) = self.off {
                self.say(CallEvent::Off(call));
            }
        } else {
            self.say(CallEvent::End(self.at));
            let open = self.stacks.entered().count();
            (0..open).for_each(|_| self.say(CallEvent::Leave));
            (self.is_inside, self.left) = (false, Some(self.time.at));
        }
    }

    /// Resumes decoding; reports a loss if it had stopped at an error.
    fn goes_on_decoding(&mut self) {
        if std::mem::take(&mut self.damaged) {
            self.lose("the trace is damaged, or its code is not known");
        }
    }

    /// Handles an executed instruction. `when` finds its time by its number.
    #[inline]
    fn watches(&mut self, insn: &ExecutedInsn, when: impl FnOnce(u64) -> Option<u64>) {
        let step = self.before.step(insn.ip, &mut self.stacks.functions);
        let happens = step.is_some() || self.begins || self.off.is_some();
        let mut when = Some(when);
        if happens {
            self.set_time(when.take().and_then(|when| when(self.time.insns)));
            self.insn(insn.ip, step);
        }
        self.shows(insn.ip, when);
        self.executed(insn);
    }

    /// Tells the visitor of a call or jump, if the instruction before `to` is one.
    fn sees_branch(&mut self, before: &ExecutedInsn, to: u64) {
        match before.class {
            Class::NearCall | Class::IndirectCall => self.visitor.sees_call(to),
            Class::NearJump | Class::IndirectJump => self.visitor.sees_jump(before.ip, to),
            _ => {}
        }
    }

    /// Takes a step to the next instruction, with nothing else between the two.
    #[inline]
    fn steps(&mut self, step: WalkStep, when: impl FnOnce(u64) -> Option<u64>) {
        self.set_time(when(self.time.insns));
        self.change(|stacks, tell| stacks.take(step, tell));
        self.shows(step.to, None::<fn(u64) -> Option<u64>>);
    }

    /// Shows the visitor the next instruction, if it wants to see it. `when` finds the time unless it is set already.
    #[inline]
    fn shows(&mut self, ip: u64, when: Option<impl FnOnce(u64) -> Option<u64>>) {
        if self.is_inside && self.visitor.watches(ip) {
            self.set_time(when.and_then(|when| when(self.time.insns)));
            self.visitor.at(self.time, ip);
        }
    }

    fn executed(&mut self, insn: &ExecutedInsn) {
        (self.at, self.before) = (Some(insn.ip), StepBefore::Insn(*insn));
        self.time.insns += 1;
    }

    /// Handles an event. `when` finds its time by the number of instructions before it.
    fn passes(&mut self, event: &Event, when: impl FnOnce(u64) -> Option<u64>) {
        if !event.status {
            self.set_time(when(self.time.insns));
            self.event(event.kind);
        }
    }

    fn lose(&mut self, why: &str) {
        self.on();
        self.change(|stacks, tell| stacks.end(tell));
        self.say(CallEvent::Loss(why.into()));
        (self.before, self.begins, self.aborts) = (StepBefore::Nothing, true, false);
    }

    /// Turns tracing on. Returns true if it was off.
    fn on(&mut self) -> bool {
        let was_off = self.off.take().is_some();
        if was_off {
            self.say(CallEvent::On);
        }
        was_off
    }

    /// Turns tracing off. Untraced code continues at the interrupted instruction, or at or after a call or system call;
    /// where it continues after other instructions is not known.
    fn off(&mut self, interrupted: Option<u64>) {
        let mut call = None;
        let left_at = match (interrupted, std::mem::take(&mut self.before)) {
            (Some(at), _) => Some([at; 2]),
            (None, StepBefore::Insn(insn)) => {
                let ExecutedInsn { ip, len, class, .. } = insn;
                if class == Class::FarCall {
                    call = self.system_calls.name(&insn);
                }
                if class == Class::FarReturn {
                    self.change(|stacks, tell| stacks.leave_kernel(tell));
                }
                let comes_back = matches!(class, Class::FarCall | Class::NearCall | Class::IndirectCall);
                comes_back.then(|| [ip, ip.wrapping_add(u64::from(len))])
            }
            (None, _) => None,
        };
        self.stacks.left(left_at);
        self.off = Some(call);
        self.say(CallEvent::Off(call));
    }

    /// Handles an instruction that does not just follow the one before.
    fn insn(&mut self, ip: u64, step: Option<WalkStep>) {
        let was_off = self.on();
        if std::mem::take(&mut self.begins) {
            self.change(|stacks, tell| stacks.begin(ip, tell));
        } else if let Some(step) = step {
            self.change(|stacks, tell| stacks.take(step, tell));
        } else if was_off {
            let at = self.at;
            self.change(|stacks, tell| stacks.goes_on(at, ip, tell));
        }
    }

    /// Takes the step from the last instruction to the one at `ip`, though that was not executed.
    fn arrives(&mut self, ip: u64) {
        let before = std::mem::take(&mut self.before);
        if let Some(step) = before.step(ip, &mut self.stacks.functions) {
            self.change(|stacks, tell| stacks.take(step, tell));
        }
    }

    /// Notes an interrupt before the instruction at `from`, or the abort of a transaction there.
    fn interrupted(&mut self, from: u64) {
        // An instruction such as INT n is reported as an interrupt too: together they are one step.
        if matches!(self.before, StepBefore::Insn(ExecutedInsn { class: Class::FarCall, .. })) {
            return;
        }
        self.arrives(from);
        self.before = match std::mem::take(&mut self.aborts) {
            true => StepBefore::Abort(from),
            false => StepBefore::Interrupt(from),
        };
    }

    fn transaction(&mut self, speculative: bool, aborted: bool) {
        self.aborts = aborted;
        match (speculative, aborted) {
            (true, _) => self.stacks.begin_transaction(),
            (false, false) => self.stacks.commit_transaction(),
            (false, true) => {}
        }
    }

    fn event(&mut self, kind: EventKind) {
        if let EventKind::AsyncDisabled { at } = kind {
            self.arrives(at);
            (self.at, self.aborts) = (Some(at), false);
        }
        match kind {
            EventKind::Overflow => {
                self.errors += 1;
                self.lose("the processor lost packets");
            }
            EventKind::AsyncBranch { from } => self.interrupted(from),
            EventKind::Enabled { .. } => self.before = StepBefore::Nothing,
            EventKind::Tsx { speculative, aborted } => self.transaction(speculative, aborted),
            EventKind::AsyncDisabled { at } if self.off.is_none() => self.off(Some(at)),
            EventKind::Disabled | EventKind::Stop if self.off.is_none() => self.off(None),
            EventKind::Ptwrite(PtwPayload::Four(value)) => {
                self.mark(MarkKind::Written, MarkKind::written(value.into()));
            }
            EventKind::Ptwrite(PtwPayload::Eight(value)) => {
                self.mark(MarkKind::Written, MarkKind::written(value));
            }
            EventKind::Pwre(_) => self.mark(MarkKind::Power, "a C-state is entered"),
            EventKind::Pwrx(_) => self.mark(MarkKind::Power, "a C-state is left"),
            EventKind::Mwait(_) => self.mark(MarkKind::Power, "MWAIT"),
            EventKind::Exstop => self.mark(MarkKind::Power, "execution stops"),
            EventKind::Cbr { ratio } => self.mark(MarkKind::Frequency, format!("core to bus ratio {ratio}")),
            _ => {}
        }
    }

    fn mark(&mut self, kind: MarkKind, text: impl Into<String>) {
        self.say(CallEvent::Mark(kind, text.into()));
    }
}

#[cfg(test)]
mod tests;
