//! The functions that a thread has entered and not left, on each of its stacks.
//!
//! The innermost function is always the one that the instruction is in, however execution has come there. So what is
//! counted by the functions of instructions and what is counted by calls agree.
//!
//! A return leaves the function whose call it returns to, and all above it. If nobody has called from there, another
//! address was put in the place of the call's: by a retpoline, which the function that it goes to replaces; by code
//! that pushes an address, which is a jump; by an exception, which goes to where it is caught; or by a switch to
//! another stack. The stack that is left is parked by the address to which its innermost call returns, and is found
//! again when something returns there.

mod parked;

use super::{
    CallEvent,
    functions::WalkedFunctions,
    steps::{StepWay, WalkStep},
};
use parked::ParkedStacks;

/// The lowest address of the kernel: the upper half of the address space.
const KERNEL: u64 = 1 << 63;
/// The most functions on a stack. Where more are entered, all are left.
const MOST_FRAMES: usize = 1 << 20;

/// A function that has not been left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// The address of its call.
    pub(super) from: Option<u64>,
    /// The instruction with which it was entered.
    pub(super) to: u64,
    /// Where the function begins, if its name is known.
    pub(super) begin: Option<u64>,
    /// Where it returns to; `None` if it was not called, or the call is not in the trace.
    pub(super) returns_to: Option<u64>,
    pub(super) entry: FrameEntry,
    /// The addresses at which it may go on after what has interrupted it or what is not traced now.
    pub(super) left_at: Option<[u64; 2]>,
}

/// The way in which a function was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameEntry {
    /// By a call, or the trace begins in it.
    Call,
    /// By a jump: what leaves the function that has jumped leaves it, too.
    Jump,
    /// By an interrupt or a system call.
    Interrupt,
    /// While nothing was traced, as a signal's handler is, or it is what that returns to: code that makes the system go
    /// back to what was interrupted.
    Handler,
}

impl Frame {
    /// Returns true if it was left for what is not traced, and goes on there.
    fn goes_on_at(&self, ip: u64) -> bool {
        self.left_at.is_some_and(|places| places.contains(&ip))
    }
}

/// Returns the number of the innermost of these frames that was not entered by a jump.
pub(super) fn innermost_call(frames: &[Frame]) -> usize {
    frames.iter().rposition(|frame| frame.entry != FrameEntry::Jump).unwrap_or_default()
}

/// A transaction that has begun.
#[derive(Clone, Copy, Debug)]
struct Transaction {
    /// The number of functions on the stack then, and the lowest since.
    depth: usize,
    lowest: usize,
    /// The innermost one.
    top: Frame,
}

/// The functions that have not been left.
#[derive(Debug)]
pub(super) struct CallStacks<'n> {
    pub(super) functions: WalkedFunctions<'n>,
    frames: Vec<Frame>,
    parked: ParkedStacks,
    transaction: Option<Transaction>,
}

impl<'n> CallStacks<'n> {
    pub(super) fn new(functions: WalkedFunctions<'n>) -> Self {
        Self { functions, frames: vec![], parked: ParkedStacks::default(), transaction: None }
    }

    /// Enters the first function that is known.
    pub(super) fn begin(&mut self, to: u64, tell: &mut dyn FnMut(CallEvent)) {
        self.enter(None, to, FrameEntry::Call, tell);
    }

    /// Leaves all functions, and forgets other stacks.
    pub(super) fn end(&mut self, tell: &mut dyn FnMut(CallEvent)) {
        self.unwind(0, tell);
        self.parked.clear();
        self.transaction = None;
    }

    /// Takes a step.
    #[inline]
    pub(super) fn take(&mut self, step: WalkStep, tell: &mut dyn FnMut(CallEvent)) {
        let WalkStep { way, from, next, to } = step;
        match way {
            StepWay::Call => {
                self.enter(Some(from), to, FrameEntry::Call, tell);
                self.set_return(next);
            }
            StepWay::Return => self.returns(from, to, tell),
            StepWay::Interrupt => {
                self.left(Some([next, from]));
                self.enter(Some(from), to, FrameEntry::Interrupt, tell);
            }
            StepWay::InterruptReturn => self.interrupt_returns(from, to, tell),
            StepWay::Jump | StepWay::IndirectJump => self.jumps(step, tell),
            StepWay::Abort => self.aborts(to, tell),
        }
    }

    /// Notes that the innermost function is interrupted, or left for what is not traced. It may go on at these
    /// addresses.
    pub(super) fn left(&mut self, at: Option<[u64; 2]>) {
        if let Some(frame) = self.frames.last_mut() {
            frame.left_at = at;
        }
    }

    /// Notes that the kernel is left for a program that is not traced.
    pub(super) fn leave_kernel(&mut self, tell: &mut dyn FnMut(CallEvent)) {
        self.unwind(self.outside_of_kernel(), tell);
    }

    /// Continues at `ip` after what was not traced: where it was left, in a function from which a handler was entered
    /// at `at`, in a handler, or elsewhere.
    pub(super) fn goes_on(&mut self, at: Option<u64>, ip: u64, tell: &mut dyn FnMut(CallEvent)) {
        if self.resumes(ip, tell) {
            return;
        }
        if self.frames.last().is_some_and(|frame| frame.left_at.is_some()) {
            self.enter(at, ip, FrameEntry::Handler, tell);
        } else {
            self.settle(ip, tell);
        }
    }

    /// Notes that a transaction has begun.
    pub(super) fn begin_transaction(&mut self) {
        let depth = self.frames.len();
        self.transaction = self.frames.last().map(|top| Transaction { depth, lowest: depth, top: *top });
    }

    /// Notes that the transaction has ended, and what was executed in it stands.
    pub(super) fn commit_transaction(&mut self) {
        self.transaction = None;
    }

    /// Returns the functions that have not been left, the outermost first: the call of each, and where it was entered.
    pub(super) fn entered(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        self.frames.iter().map(|frame| (frame.from, frame.to))
    }

    /// Returns where the innermost function begins, if there is one and its name is known.
    fn top_begin(&self) -> Option<Option<u64>> {
        self.frames.last().map(|frame| frame.begin)
    }

    fn enter(&mut self, from: Option<u64>, to: u64, entry: FrameEntry, tell: &mut dyn FnMut(CallEvent)) {
        if self.frames.len() >= MOST_FRAMES {
            self.unwind(0, tell);
        }
        let begin = self.functions.begin(to);
        self.frames.push(Frame { from, to, begin, returns_to: None, entry, left_at: None });
        tell(CallEvent::Enter { from, to });
    }

    fn set_return(&mut self, to: u64) {
        if let Some(frame) = self.frames.last_mut() {
            frame.returns_to = Some(to);
        }
    }

    /// Leaves all functions but the outermost `depth`.
    fn unwind(&mut self, depth: usize, tell: &mut dyn FnMut(CallEvent)) {
        for _ in depth..self.frames.len() {
            tell(CallEvent::Leave);
        }
        self.drop_frames(depth);
    }

    fn drop_frames(&mut self, depth: usize) {
        self.frames.truncate(depth);
        if let Some(transaction) = &mut self.transaction {
            transaction.lowest = transaction.lowest.min(depth);
        }
    }

    /// Leaves a call and all above it, and parks what it has called: that may be another stack.
    fn abandon(&mut self, call: usize, tell: &mut dyn FnMut(CallEvent)) {
        if innermost_call(&self.frames) > call {
            self.parked.park(self.frames[call + 1..].to_vec());
        }
        self.unwind(call, tell);
    }

    /// Takes a near return.
    fn returns(&mut self, from: u64, to: u64, tell: &mut dyn FnMut(CallEvent)) {
        let is_it = |frame: &Frame| frame.returns_to == Some(to);
        let mut innermost = innermost_call(&self.frames);
        let mut is_thunk = false;
        if !self.frames.get(innermost).is_some_and(is_it) && self.is_called_by_itself(innermost) {
            // A thunk has called its own middle, and taken away the address that it returns to, or put another in its
            // place.
            self.unwind(innermost, tell);
            innermost = innermost_call(&self.frames);
            is_thunk = true;
        }
        if self.frames.get(innermost).is_some_and(is_it) {
            self.unwind(innermost, tell);
            self.lands(to, tell);
        } else if let Some(known) = self.frames.iter().rposition(is_it) {
            self.abandon(known, tell);
            self.lands(to, tell);
        } else {
            self.returns_elsewhere(is_thunk, from, to, tell);
        }
    }

    /// Takes a return to `to`, from where nobody on the stack has called.
    fn returns_elsewhere(&mut self, is_thunk: bool, from: u64, to: u64, tell: &mut dyn FnMut(CallEvent)) {
        let innermost = innermost_call(&self.frames);
        if self.frames.get(innermost).is_some_and(|frame| frame.entry == FrameEntry::Handler) {
            self.unwind(innermost, tell);
            return self.enter(None, to, FrameEntry::Handler, tell);
        }
        let begin = self.functions.begin(to);
        if begin.is_some() && self.top_begin() == Some(begin) {
            return;
        }
        if begin == Some(to) {
            match is_thunk {
                true => self.replace_top(to, tell),
                false => self.jump_to_begin(from, to, tell),
            }
        } else if !self.continues_parked(to, tell) && !self.goes_back_to_function(begin, tell) {
            // Its function was called before the trace began, or on a stack that is not known.
            if innermost == 0 {
                self.unwind(0, tell);
            }
            self.switch(vec![], tell);
            self.enter(None, to, FrameEntry::Call, tell);
        }
    }

    /// Returns true if a function was entered by a call from itself that does not go to where it begins.
    fn is_called_by_itself(&self, number: usize) -> bool {
        let Some([before, called]) = number.checked_sub(1).and_then(|first| self.frames.get(first..=number))
        else {
            return false;
        };
        called.begin.is_some() && called.begin == before.begin && called.begin != Some(called.to)
    }

    /// Notes that the innermost function continues as another one, which returns to where it would have returned.
    fn replace_top(&mut self, to: u64, tell: &mut dyn FnMut(CallEvent)) {
        let Some(top) = self.frames.last().copied() else { return };
        let depth = self.frames.len() - 1;
        self.unwind(depth, tell);
        self.enter(top.from, to, top.entry, tell);
        if let (Some(frame), Some(returns_to)) = (self.frames.last_mut(), top.returns_to) {
            frame.returns_to = Some(returns_to);
        }
    }

    /// Takes a jump to where a function begins that is not part of a loop: a tail call, or the begin of another stack.
    fn jump_to_begin(&mut self, from: u64, to: u64, tell: &mut dyn FnMut(CallEvent)) {
        // One such function may do its work in another.
        match self.functions.switches_stacks(from) && !self.functions.switches_stacks(to) {
            true => {
                self.switch(vec![], tell);
                self.enter(None, to, FrameEntry::Call, tell);
            }
            false => self.enter(Some(from), to, FrameEntry::Jump, tell),
        }
    }

    /// Takes a jump from one function to another one. A jump into the middle of a function that has not been left goes
    /// back to that one.
    fn jumps(&mut self, step: WalkStep, tell: &mut dyn FnMut(CallEvent)) {
        let WalkStep { from, to, .. } = step;
        let begin = self.functions.begin(to);
        let innermost = innermost_call(&self.frames);
        let own = self.frames.get(innermost..).unwrap_or_default();
        // Functions that jump to one another are a loop; one that is entered again is called.
        if let Some(known) = own.iter().rposition(|frame| frame.begin == begin) {
            let depth = innermost + known + 1;
            let what = if begin == Some(to) { CallEvent::Back } else { CallEvent::Leave };
            (depth..self.frames.len()).for_each(|_| tell(what.clone()));
            return self.drop_frames(depth);
        }
        if begin == Some(to) {
            return self.jump_to_begin(from, to, tell);
        }
        if step.way == StepWay::IndirectJump
            && (self.goes_back_to_call(to, tell) || self.continues_parked(to, tell))
        {
            return;
        }
        if !self.goes_back_to_function(begin, tell) {
            self.enter(Some(from), to, FrameEntry::Jump, tell);
        }
    }

    /// Takes IRET and the like.
    fn interrupt_returns(&mut self, from: u64, to: u64, tell: &mut dyn FnMut(CallEvent)) {
        if self.resumes(to, tell) {
            return;
        }
        let begin = self.functions.begin(to);
        if from >= KERNEL && to < KERNEL {
            // To a handler of signals, or to another program.
            self.leave_kernel(tell);
            let left_at = self.frames.last().and_then(|frame| frame.left_at);
            if let Some([at, _]) = left_at {
                return self.enter(Some(at), to, FrameEntry::Handler, tell);
            }
        } else if begin.is_some() && self.top_begin() == Some(begin) {
            // A jump that changes other registers, too.
            return;
        } else if let Some(known) = self.frames.iter().rposition(|frame| frame.entry == FrameEntry::Interrupt)
        {
            // To code that mends what has gone wrong.
            self.unwind(known, tell);
            self.left(None);
        }
        self.settle(to, tell);
    }

    /// Notes that a transaction is aborted: what was entered in it has not been, and what was left has not been left.
    fn aborts(&mut self, to: u64, tell: &mut dyn FnMut(CallEvent)) {
        if let Some(Transaction { depth, lowest, top }) = self.transaction.take() {
            let lowest = lowest.min(depth);
            self.unwind(lowest, tell);
            if lowest + 1 == depth {
                self.frames.push(top);
                tell(CallEvent::Again { from: top.from, to: top.to });
            }
        }
        self.settle(to, tell);
    }

    /// Returns the number of functions outside of the kernel, from the outermost one on.
    fn outside_of_kernel(&self) -> usize {
        self.frames.iter().rposition(|frame| frame.to < KERNEL).map_or(0, |last| last + 1)
    }

    /// Goes on in the function that was interrupted or left before the instruction at `ip`, if there is one.
    fn resumes(&mut self, ip: u64, tell: &mut dyn FnMut(CallEvent)) -> bool {
        let Some(known) = self.frames.iter().rposition(|frame| frame.goes_on_at(ip)) else { return false };
        self.unwind(known + 1, tell);
        self.left(None);
        // The address after the last instruction of a function is in the next one.
        self.lands(ip, tell);
        true
    }

    /// Sees to it that the function after a return is the one that is returned to.
    #[inline]
    fn lands(&mut self, to: u64, tell: &mut dyn FnMut(CallEvent)) {
        let begin = self.functions.begin(to);
        if self.top_begin() != Some(begin) {
            self.settle(to, tell);
        }
    }

    /// Notes that execution is at `to`, and that it is not known how it came there.
    fn settle(&mut self, to: u64, tell: &mut dyn FnMut(CallEvent)) {
        let begin = self.functions.begin(to);
        match self.top_begin() {
            None => self.enter(None, to, FrameEntry::Call, tell),
            Some(top) if top == begin => {}
            Some(_) if self.goes_back_to_call(to, tell) || self.continues_parked(to, tell) => {}
            Some(_) if self.goes_back_to_function(begin, tell) => {}
            Some(_) => self.enter(None, to, FrameEntry::Jump, tell),
        }
    }

    /// Goes back to the innermost call that returns to `to`, from the function that `to` is in; false if there is none.
    fn goes_back_to_call(&mut self, to: u64, tell: &mut dyn FnMut(CallEvent)) -> bool {
        let known = self.frames.iter().rposition(|frame| frame.returns_to == Some(to));
        let begin = self.functions.begin(to);
        let known =
            known.filter(|known| known.checked_sub(1).is_some_and(|below| self.frames[below].begin == begin));
        known.is_some_and(|known| {
            self.abandon(known, tell);
            true
        })
    }

    /// Goes back to the innermost function that begins at `begin`; false if there is none.
    fn goes_back_to_function(&mut self, begin: Option<u64>, tell: &mut dyn FnMut(CallEvent)) -> bool {
        // Code without a name may be that of many functions.
        let known = begin.and_then(|_| self.frames.iter().rposition(|frame| frame.begin == begin));
        known.is_some_and(|known| {
            self.unwind(known + 1, tell);
            true
        })
    }

    /// Continues the stack whose innermost call returns to `to`; false if there is none.
    fn continues_parked(&mut self, to: u64, tell: &mut dyn FnMut(CallEvent)) -> bool {
        let Some(stack) = self.parked.take(to) else { return false };
        self.switch(stack, tell);
        if self.top_begin() != Some(self.functions.begin(to)) {
            self.enter(None, to, FrameEntry::Jump, tell);
        }
        true
    }

    /// Parks the stack, and continues on another one.
    fn switch(&mut self, stack: Vec<Frame>, tell: &mut dyn FnMut(CallEvent)) {
        self.transaction = None;
        for _ in &self.frames {
            tell(CallEvent::Leave);
        }
        for frame in &stack {
            tell(CallEvent::Again { from: frame.from, to: frame.to });
        }
        self.parked.park(std::mem::replace(&mut self.frames, stack));
    }
}

#[cfg(test)]
mod tests;
