//! The calls of a trace: which function is entered and left when, and what else happens.

mod blocks;
mod functions;
mod times;

use super::{
    progress::{Progress, Size},
    symbols::TracedSymbols,
};
use crate::perf_clock::PerfClock;
use crate::session::Session;
use functions::WalkedFunctions;
use pugmark_decoder_core::{
    calls::{Calls, Step, StepKind},
    config::{Clocks, Config},
    event::{Event, EventKind},
    flow::{ExecutedInsn, FlowItem},
    insn::Class,
    packet::PtwPayload,
    time::{Span, Timeline, TscFrequency},
};
pub(super) use times::TraceTimes;

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    /// A function is entered, by the call at `from`; `None` for the one in which the trace begins or goes on, and for
    /// the one that is returned to though its call is not in the trace.
    Enter {
        /// The call, or the instruction that was interrupted or made a system call: a signal's handler is entered from
        /// there.
        from: Option<u64>,
        /// Where it went.
        to: u64,
    },
    /// The innermost function is left.
    Leave,
    /// Nothing is traced, up to [`On`](Self::On): a system call or another level, address or address space.
    Off,
    /// Tracing goes on.
    On,
    /// A part of the trace is missing or cannot be decoded, up to the next [`Enter`](Self::Enter). All functions have
    /// been left.
    Loss(String),
    /// Something to note.
    Mark(MarkKind, String),
    /// The trace ends at the instruction at this address, if one was executed. It was not executed itself if tracing
    /// stopped before it, as at a fault. All functions that have not been left are left after this.
    End(Option<u64>),
}

/// What a mark notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkKind {
    /// What the program has written by PTWRITE.
    Written,
    /// The processor sleeps, or wakes up.
    Power,
    /// The processor's frequency.
    Frequency,
}

/// When something happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Time {
    /// Nanoseconds, or ticks of the TSC if its frequency is not known, or instructions without TSC packets.
    pub(super) at: u64,
    /// How many instructions came before.
    pub(super) insns: u64,
}

impl Time {
    /// What has passed since then.
    pub(super) const fn since(self, before: Self) -> Self {
        Self { at: self.at.saturating_sub(before.at), insns: self.insns.saturating_sub(before.insns) }
    }

    /// Adds what has passed.
    pub(super) const fn add(&mut self, passed: Self) {
        self.at += passed.at;
        self.insns += passed.insns;
    }
}

/// Who is told what happens in a trace.
pub(super) trait Visitor {
    /// Called when something happens.
    fn happens(&mut self, time: Time, what: Happening);

    /// The instruction at `ip` comes next. Returns whether [`at`](Self::at) is to be called, with its time.
    fn comes_to(&mut self, ip: u64) -> bool {
        let _ = ip;
        false
    }

    /// Whether [`comes_to`](Self::comes_to) may say yes at `ip`, after the instruction at `before`, if nothing else has
    /// happened since.
    fn tells_apart(&mut self, before: u64, ip: u64) -> bool {
        let _ = (before, ip);
        false
    }

    /// The instruction at `ip` is executed, after all that has happened before it.
    fn at(&mut self, time: Time, ip: u64) {
        let _ = (time, ip);
    }
}

impl<F: FnMut(Time, Happening) + ?Sized> Visitor for F {
    fn happens(&mut self, time: Time, what: Happening) {
        self(time, what);
    }
}

/// What [`Time::at`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Nanoseconds,
    Ticks,
    Instructions,
}

impl Unit {
    /// Its name, after a number.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Ticks => "ticks",
            Self::Instructions => "instructions",
        }
    }
}

/// The clock of a trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceClock {
    pub(super) unit: Unit,
    frequency: Option<TscFrequency>,
    /// Linux' own clock, if it is known how that follows from the TSC.
    perf: Option<PerfClock>,
}

impl TraceClock {
    /// A clock that counts instructions, whatever the trace has.
    pub(super) const INSTRUCTIONS: Self = Self { unit: Unit::Instructions, frequency: None, perf: None };

    /// Finds the clock of a trace.
    pub(super) fn of(trace: &[u8], config: Config<'_>) -> Self {
        use pugmark_decoder_core::packet::{Packet, Packets};
        let mut packets = Packets::with_config(trace, config);
        let mut timed = false;
        while !timed && packets.sync_forward().is_some() {
            timed = packets
                .by_ref()
                .take_while(Result::is_ok)
                .flatten()
                .any(|(_, packet)| matches!(packet, Packet::Tsc(_)));
        }
        let frequency = frequency(&config.clocks);
        let unit = match (timed, frequency) {
            (false, _) => Unit::Instructions,
            (true, None) => Unit::Ticks,
            (true, Some(_)) => Unit::Nanoseconds,
        };
        Self { unit, frequency, perf: None }
    }

    /// The same, in the clock of perf if that is known.
    pub(super) const fn in_clock_of_perf(self, perf: Option<PerfClock>) -> Self {
        match (self.unit, perf) {
            (Unit::Ticks | Unit::Nanoseconds, Some(_)) => Self { unit: Unit::Nanoseconds, perf, ..self },
            _ => self,
        }
    }

    /// Returns whether the trace says when something happened.
    pub(super) fn is_timed(&self) -> bool {
        self.unit != Unit::Instructions
    }

    /// The time of what lies in a part of the trace: its time, which is the instruction's number without TSC packets,
    /// and the TSC. `None` if the trace says nothing of it.
    pub(super) fn time(
        &self,
        timeline: &mut Timeline<'_>,
        span: Span,
        insns: u64,
    ) -> Option<(u64, Option<u64>)> {
        match self.unit {
            Unit::Instructions => Some((insns, None)),
            _ => timeline.moment(span).map(|moment| (self.convert(moment.tsc()), Some(moment.tsc()))),
        }
    }

    fn convert(&self, tsc: u64) -> u64 {
        match (self.perf, self.frequency) {
            (Some(perf), _) => perf.nanoseconds(tsc),
            (None, Some(frequency)) => frequency.nanoseconds(tsc) as u64,
            (None, None) => tsc,
        }
    }
}

/// The TSC's frequency: as CPUID says, or its ratio to a bus clock of 100 MHz.
///
/// Source: SDM vol. 4, "MSR_PLATFORM_INFO": the ratio times 100 MHz is the frequency of the invariant TSC.
fn frequency(clocks: &Clocks) -> Option<TscFrequency> {
    let ratio = || TscFrequency::new(u64::from(clocks.nom_freq) * 100_000_000, 1);
    TscFrequency::enumerated(clocks).or_else(ratio)
}

/// A function that has not been left.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// The address of its call.
    from: Option<u64>,
    /// Where the function that was entered begins, if its name is known.
    begin: Option<u64>,
    /// Whether it was entered by a jump: what leaves the function that has jumped leaves it, too.
    is_jumped_to: bool,
    /// It was entered while nothing was traced, as a signal's handler is, or it is what that returns to: code that
    /// makes the system go back to what was interrupted.
    is_handler: bool,
    /// The addresses at which it may go on after what is not traced now.
    left_at: Option<[u64; 2]>,
}

impl Frame {
    /// Whether a return to that address leaves it.
    fn returns_to(self, to: u64) -> bool {
        // An instruction has at most 15 bytes.
        self.from.is_some_and(|from| (1..=15).contains(&to.wrapping_sub(from)))
    }

    /// Whether it was left for what is not traced, and goes on there.
    fn goes_on_at(&self, ip: u64) -> bool {
        self.left_at.is_some_and(|places| places.contains(&ip))
    }
}

/// Whom a lane of a session is walked through for.
pub(super) struct WalkedLane<'v, V: ?Sized> {
    pub(super) names: Option<&'v TracedSymbols>,
    pub(super) visitor: &'v mut V,
}

/// Decodes a session in the order of time, and tells the visitor of each lane what happens there, in order. Returns the
/// time at the end of each, and the number of errors.
///
/// With the names of functions, a jump from one function to another is followed like a call, or like a return to a
/// function that has not been left: a tail call, an entry of a linkage table, `longjmp`. Without names, a jump stays in
/// its function, for a visitor that deals with jumps itself.
pub(super) fn walk_lanes<V: Visitor + ?Sized>(
    session: &Session<'_>,
    clock: TraceClock,
    progress: &mut Progress,
    lanes: Vec<WalkedLane<'_, V>>,
) -> (Vec<Time>, usize) {
    progress.begin("decoding", Size::Bytes(session.size()));
    let states = lanes.into_iter().map(|WalkedLane { names, visitor }| {
        let functions = names.map(WalkedFunctions::named).unwrap_or_default();
        State { functions, ..State::new(visitor) }
    });
    let states = blocks::walk(session, clock, progress, states.collect());
    progress.end();
    let errors = states.iter().map(|state| state.errors).sum();
    let end = |mut state: State<'_, V>| {
        state.say(Happening::End(state.at));
        state.unwind(0);
        state.time
    };
    (states.into_iter().map(end).collect(), errors)
}

/// What is known while the trace is walked through.
struct State<'v, V: ?Sized> {
    functions: WalkedFunctions<'v>,
    /// The functions that have not been left.
    frames: Vec<Frame>,
    calls: Calls,
    time: Time,
    /// The last instruction, or the one before which tracing stopped.
    at: Option<u64>,
    /// The last instruction.
    last: Option<ExecutedInsn>,
    /// Whether nothing is traced now.
    off: bool,
    /// Whether the next instruction is the first one, or the first one after a loss.
    begins: bool,
    /// True if something before the next item cannot be decoded.
    damaged: bool,
    errors: usize,
    visitor: &'v mut V,
}

impl<'v, V: Visitor + ?Sized> State<'v, V> {
    fn new(visitor: &'v mut V) -> Self {
        Self {
            functions: WalkedFunctions::default(),
            frames: vec![],
            calls: Calls::new(),
            time: Time::default(),
            at: None,
            last: None,
            off: false,
            begins: true,
            damaged: false,
            errors: 0,
            visitor,
        }
    }

    /// Sets the time. It never goes back.
    fn set_time(&mut self, at: Option<u64>) {
        self.time.at = at.map_or(self.time.at, |at| at.max(self.time.at));
    }

    fn say(&mut self, what: Happening) {
        self.visitor.happens(self.time, what);
    }

    /// Decoding goes on; if it had stopped at an error, something in between is missing.
    fn goes_on_decoding(&mut self) {
        if std::mem::take(&mut self.damaged) {
            self.lose("the trace is damaged, or its code is not known");
        }
    }

    /// An instruction is executed. `when` finds its time by its number.
    #[inline]
    fn comes_to(&mut self, insn: &ExecutedInsn, when: impl FnOnce(u64) -> Option<u64>) {
        let step = self.step(&FlowItem::Insn(*insn));
        let happens = step.is_some() || self.begins || self.off;
        let mut when = Some(when);
        if happens {
            self.set_time(when.take().and_then(|when| when(self.time.insns)));
            self.insn(insn.ip, step);
        }
        self.shows(insn.ip, when);
        self.executed(insn);
    }

    /// A step leads to the instruction at `ip`, and nothing else has happened since the one before.
    #[inline]
    fn steps_to(&mut self, ip: u64, kind: StepKind, from: u64, when: impl FnOnce(u64) -> Option<u64>) {
        self.set_time(when(self.time.insns));
        self.transfer(kind, from, ip);
        self.shows(ip, None::<fn(u64) -> Option<u64>>);
    }

    /// Shows the visitor the next instruction, if it wants to see it. `when` finds the time unless it is set already.
    #[inline]
    fn shows(&mut self, ip: u64, when: Option<impl FnOnce(u64) -> Option<u64>>) {
        if self.visitor.comes_to(ip) {
            self.set_time(when.and_then(|when| when(self.time.insns)));
            self.visitor.at(self.time, ip);
        }
    }

    fn executed(&mut self, insn: &ExecutedInsn) {
        (self.at, self.last) = (Some(insn.ip), Some(*insn));
        self.time.insns += 1;
    }

    /// Comes past an event. `when` finds its time by the number of instructions before it.
    fn passes(&mut self, event: &Event, when: impl FnOnce(u64) -> Option<u64>) {
        let step = self.step(&FlowItem::Event(*event));
        if !event.status {
            self.set_time(when(self.time.insns));
            step.into_iter().for_each(|step| self.transfer(step.kind, step.from, step.to));
            self.event(event.kind);
        }
    }

    #[inline]
    fn step(&mut self, item: &FlowItem) -> Option<Step> {
        self.calls.step_with(item, |from, to| self.functions.leads_to_another(from, to))
    }

    fn enter(&mut self, from: Option<u64>, to: u64) {
        let begin = self.functions.begin(to);
        self.frames.push(Frame { from, begin, is_jumped_to: false, is_handler: false, left_at: None });
        self.say(Happening::Enter { from, to });
    }

    fn enter_handler(&mut self, from: Option<u64>, to: u64) {
        self.enter(from, to);
        self.frames.last_mut().into_iter().for_each(|frame| frame.is_handler = true);
    }

    /// Leaves all functions but the outermost `depth`.
    fn unwind(&mut self, depth: usize) {
        while self.frames.len() > depth {
            self.frames.pop();
            self.say(Happening::Leave);
        }
    }

    fn lose(&mut self, why: &str) {
        self.on();
        self.unwind(0);
        self.say(Happening::Loss(why.into()));
        self.calls.forget();
        self.begins = true;
    }

    /// Tracing goes on, if it was off. Returns whether it was.
    fn on(&mut self) -> bool {
        let was_off = std::mem::take(&mut self.off);
        if was_off {
            self.say(Happening::On);
        }
        was_off
    }

    /// Tracing is off. What is not traced goes back to the instruction that was interrupted, to the one after a call or
    /// a system call, or makes that again. Where it goes after other instructions is not known.
    fn off(&mut self, interrupted: Option<u64>) {
        self.off = true;
        let left_at = match (interrupted, self.last) {
            (Some(at), _) => Some([at; 2]),
            (None, Some(ExecutedInsn { ip, len, class, .. })) => {
                let comes_back = matches!(class, Class::FarCall | Class::NearCall | Class::IndirectCall);
                comes_back.then(|| [ip, ip.wrapping_add(u64::from(len))])
            }
            (None, None) => None,
        };
        if let Some(frame) = self.frames.last_mut() {
            frame.left_at = left_at;
        }
        self.say(Happening::Off);
    }

    /// Execution goes on at `ip` after what was not traced: where it was left, in a function from which a handler was
    /// entered, or in a handler.
    fn goes_on(&mut self, ip: u64) {
        let known = self.frames.iter().rposition(|frame| frame.goes_on_at(ip));
        if let Some(known) = known {
            self.unwind(known + 1);
            self.frames.last_mut().into_iter().for_each(|frame| frame.left_at = None);
        } else if self.frames.last().is_some_and(|frame| frame.left_at.is_some()) {
            self.enter_handler(self.at, ip);
        }
    }

    /// An instruction that is not just the next one.
    fn insn(&mut self, ip: u64, step: Option<Step>) {
        let was_off = self.on();
        if std::mem::take(&mut self.begins) {
            self.enter(None, ip);
        } else if let Some(Step { kind, from, to, .. }) = step {
            self.transfer(kind, from, to);
        } else if was_off {
            self.goes_on(ip);
        }
    }

    /// The number of the innermost frame that was entered by a call.
    fn innermost_call(&self) -> usize {
        self.frames.iter().rposition(|frame| !frame.is_jumped_to).unwrap_or_default()
    }

    /// A jump from one function to another one. A jump into the middle of a function that has not been left goes back
    /// to that function.
    fn jump(&mut self, from: u64, to: u64) {
        let Some(begin) = self.functions.begin(to) else { return };
        // Functions that jump to one another are a loop; one that is entered again is called.
        let outermost = if begin == to { self.innermost_call() } else { 0 };
        let known = self.frames[outermost..].iter().rposition(|frame| frame.begin == Some(begin));
        if let Some(known) = known {
            self.unwind(outermost + known + 1);
        } else if begin == to {
            self.enter(Some(from), to);
            self.frames
                .last_mut()
                .into_iter()
                .for_each(|frame| (frame.from, frame.is_jumped_to) = (None, true));
        }
    }

    fn transfer(&mut self, kind: StepKind, from: u64, to: u64) {
        if kind == StepKind::TailCall {
            return self.jump(from, to);
        }
        if kind.enters() {
            return self.enter(Some(from), to);
        }
        // After a longjmp or an exception several functions are left. Without the function's call, one is.
        let known = match kind {
            StepKind::Return => self.frames.iter().rposition(|frame| frame.returns_to(to)),
            _ => None,
        };
        let innermost = self.innermost_call();
        let ends_handler =
            known.is_none() && self.frames.get(innermost).is_some_and(|frame| frame.is_handler);
        self.unwind(known.unwrap_or(innermost));
        if ends_handler {
            self.enter_handler(None, to);
        } else if self.frames.is_empty() {
            self.enter(None, to);
        }
    }

    fn event(&mut self, kind: EventKind) {
        if let EventKind::AsyncDisabled { at } = kind {
            self.at = Some(at);
        }
        match kind {
            EventKind::Overflow => self.lose("the processor lost packets"),
            EventKind::AsyncDisabled { at } if !self.off => self.off(Some(at)),
            EventKind::Disabled | EventKind::Stop if !self.off => self.off(None),
            EventKind::Ptwrite(PtwPayload::Four(value)) => {
                self.mark(MarkKind::Written, format!("PTWRITE {value:#x}"));
            }
            EventKind::Ptwrite(PtwPayload::Eight(value)) => {
                self.mark(MarkKind::Written, format!("PTWRITE {value:#x}"));
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
        self.say(Happening::Mark(kind, text.into()));
    }
}

#[cfg(test)]
mod tests;
