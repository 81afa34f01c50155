//! The calls of a trace: which function is entered and left when, and what else happens.

use super::progress::{Progress, Size};
use pugmark_decoder_core::{
    calls::{Calls, Step, StepKind},
    config::{Clocks, Config},
    event::EventKind,
    flow::{FlowItem, InsnDecoder},
    image::Image,
    packet::PtwPayload,
    time::{Span, Timeline, TscFrequency},
};

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    /// A function is entered, by the call at `from`; `None` for the one in which the trace begins or goes on, and for
    /// the one that is returned to though its call is not in the trace.
    Enter {
        /// The call, or the instruction that was interrupted.
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

/// What a mark is of.
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
}

impl TraceClock {
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
        Self { unit, frequency }
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
        self.frequency.map_or(tsc, |frequency| frequency.nanoseconds(tsc) as u64)
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
}

impl Frame {
    /// Whether a return to that address leaves it.
    fn returns_to(self, to: u64) -> bool {
        // An instruction has at most 15 bytes.
        self.from.is_some_and(|from| (1..=15).contains(&to.wrapping_sub(from)))
    }
}

/// Decodes a trace and passes on what happens, in order. Returns when it ends.
pub(super) fn walk(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    clock: TraceClock,
    progress: &mut Progress,
    visit: &mut dyn FnMut(Time, Happening),
) -> Time {
    let mut timeline = Timeline::new(trace, config);
    let mut decoder = InsnDecoder::with_config(trace, image, config);
    let mut state = State::new(visit);
    let mut when = |span, insns| clock.time(&mut timeline, span, insns).map(|(at, _)| at);
    progress.begin("decoding", Size::Bytes(trace.len() as u64));
    let mut synchronized = false;
    while decoder.resync().is_some() {
        if std::mem::replace(&mut synchronized, true) {
            state.lose("the trace is damaged, or its code is not known");
        }
        while let Ok(Some(item)) = decoder.next() {
            match &item {
                FlowItem::Insn(insn) => {
                    let step = state.calls.step(&item);
                    if step.is_some() || state.begins || state.off {
                        state.set_time(when(decoder.span(), state.time.insns));
                        state.insn(insn.ip, step);
                    }
                    state.at = Some(insn.ip);
                    state.time.insns += 1;
                    progress.step(|| decoder.held());
                }
                FlowItem::Event(event) => {
                    let step = state.calls.step(&item);
                    if !event.status {
                        state.set_time(when(Span::at(event.offset), state.time.insns));
                        step.into_iter().for_each(|step| state.transfer(step));
                        state.event(event.kind);
                    }
                }
            }
        }
        // What is open now ends with the last instruction.
        state.set_time(when(decoder.span(), state.time.insns));
    }
    progress.end();
    state.say(Happening::End(state.at));
    state.unwind(0);
    state.time
}

/// What is known while the trace is walked through.
struct State<'v> {
    /// The functions that have not been left.
    frames: Vec<Frame>,
    calls: Calls,
    time: Time,
    /// The last instruction, or the one before which tracing stopped.
    at: Option<u64>,
    /// Nothing is traced now.
    off: bool,
    /// The next instruction is the first one, or the first one after a loss.
    begins: bool,
    visit: &'v mut dyn FnMut(Time, Happening),
}

impl<'v> State<'v> {
    fn new(visit: &'v mut dyn FnMut(Time, Happening)) -> Self {
        Self {
            frames: vec![],
            calls: Calls::new(),
            time: Time::default(),
            at: None,
            off: false,
            begins: true,
            visit,
        }
    }

    /// Sets the time. It never goes back.
    fn set_time(&mut self, at: Option<u64>) {
        self.time.at = at.map_or(self.time.at, |at| at.max(self.time.at));
    }

    fn say(&mut self, what: Happening) {
        (self.visit)(self.time, what);
    }

    fn enter(&mut self, from: Option<u64>, to: u64) {
        self.frames.push(Frame { from });
        self.say(Happening::Enter { from, to });
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

    fn on(&mut self) {
        if std::mem::take(&mut self.off) {
            self.say(Happening::On);
        }
    }

    /// An instruction that is not just the next one.
    fn insn(&mut self, ip: u64, step: Option<Step>) {
        self.on();
        if std::mem::take(&mut self.begins) {
            self.enter(None, ip);
        } else if let Some(step) = step {
            self.transfer(step);
        }
    }

    fn transfer(&mut self, step: Step) {
        if step.kind.enters() {
            return self.enter(Some(step.from), step.to);
        }
        // After a longjmp or an exception several functions are left. Without the function's call, one is.
        let known = match step.kind {
            StepKind::Return => self.frames.iter().rposition(|frame| frame.returns_to(step.to)),
            _ => None,
        };
        self.unwind(known.unwrap_or(self.frames.len().saturating_sub(1)));
        if self.frames.is_empty() {
            self.enter(None, step.to);
        }
    }

    fn event(&mut self, kind: EventKind) {
        if let EventKind::AsyncDisabled { at } = kind {
            self.at = Some(at);
        }
        match kind {
            EventKind::Overflow => self.lose("the processor lost packets"),
            EventKind::Disabled | EventKind::AsyncDisabled { .. } | EventKind::Stop if !self.off => {
                self.off = true;
                self.say(Happening::Off);
            }
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
mod tests {
    use super::*;

    const fn step(kind: StepKind, from: u64, to: u64) -> Step {
        Step { kind, from, to, depth: 0 }
    }

    /// What a state says of these steps, in short, after it was entered at 10.
    fn said(steps: &[Step]) -> Vec<String> {
        let mut said = vec![];
        let mut visit = |_, what: Happening| match what {
            Happening::Enter { to, .. } => said.push(format!("{to:x}")),
            Happening::Leave => said.push("leave".into()),
            other => panic!("{other:?}"),
        };
        let mut state = State::new(&mut visit);
        state.insn(0x10, None);
        for step in steps {
            state.insn(step.to, Some(*step));
        }
        said
    }

    #[test]
    fn a_trace_that_stops_before_an_instruction_ends_there() {
        let mut visit = |_, _| ();
        let mut state = State::new(&mut visit);
        state.at = Some(0x10);
        state.event(EventKind::Tick);
        assert_eq!(state.at, Some(0x10));
        state.event(EventKind::AsyncDisabled { at: 0x30 });
        assert_eq!(state.at, Some(0x30));
    }

    #[test]
    fn a_return_leaves_the_function_whose_call_is_before_it() {
        use StepKind::{Call, Return};
        let calls = [step(Call, 0x20, 0x100), step(Call, 0x110, 0x200), step(Call, 0x210, 0x300)];
        let leaves = |to| [&calls[..], &[step(Return, 0x310, to)]].concat();
        assert_eq!(said(&leaves(0x215))[4..], ["leave"]);
        // As after longjmp: two functions are passed over.
        assert_eq!(said(&leaves(0x25))[4..], ["leave", "leave", "leave"]);
        // Nobody has called from there.
        assert_eq!(said(&leaves(0x900))[4..], ["leave"]);
        // 15 bytes are the longest call, and a call does not return to itself.
        assert_eq!(said(&leaves(0x11f))[4..], ["leave", "leave"]);
        assert_eq!(said(&leaves(0x120))[4..], ["leave"]);
        assert_eq!(said(&leaves(0x110))[4..], ["leave"]);
    }

    #[test]
    fn a_return_out_of_what_is_known_enters_the_caller() {
        let steps = [step(StepKind::Return, 0x11, 0x50), step(StepKind::Return, 0x51, 0x80)];
        assert_eq!(said(&steps), ["10", "leave", "50", "leave", "80"]);
    }

    #[test]
    fn an_interrupt_is_left_by_its_return_wherever_that_goes() {
        use StepKind::{Interrupt, InterruptReturn};
        let steps = [step(Interrupt, 0x18, 0x700), step(InterruptReturn, 0x710, 0x18)];
        assert_eq!(said(&steps), ["10", "700", "leave"]);
    }

    #[test]
    fn events_turn_tracing_off_and_are_marks() {
        use pugmark_decoder_core::packet::{Mwait, Pip, Pwre, Pwrx};
        let off = EventKind::Disabled;
        let power = Pwre { state: 1, sub_state: 0, hw: false };
        let awake = Pwrx { last: 1, deepest: 1, interrupt: true, store: false, autonomous: false };
        for (kinds, expected) in [
            // Tracing is turned off once, and on by the next instruction.
            (&[off, EventKind::Stop][..], "Off, On"),
            (&[EventKind::AsyncDisabled { at: 0x10 }, off], "Off, On"),
            (&[EventKind::Stop], "Off, On"),
            (&[EventKind::Ptwrite(PtwPayload::Four(0x12))], "PTWRITE 0x12"),
            (&[EventKind::Ptwrite(PtwPayload::Eight(0x1_2345_6789))], "PTWRITE 0x123456789"),
            (&[EventKind::Pwre(power), EventKind::Pwrx(awake)], "a C-state is entered, a C-state is left"),
            (&[EventKind::Mwait(Mwait { hints: 0, ext: 0 }), EventKind::Exstop], "MWAIT, execution stops"),
            (&[EventKind::Cbr { ratio: 24 }], "core to bus ratio 24"),
            (&[EventKind::Paging(Pip { cr3: 0, non_root: false }), EventKind::Tick], ""),
            // All functions are left; the next instruction begins one.
            (&[EventKind::Overflow], "Leave, LOST the processor lost packets, Enter 14"),
            (&[off, EventKind::Overflow], "Off, On, Leave, LOST the processor lost packets, Enter 14"),
        ] {
            let mut said = vec![];
            let mut visit = |_, what: Happening| {
                said.push(match what {
                    Happening::Enter { from: None, to } => format!("Enter {to:x}"),
                    Happening::Loss(why) => format!("LOST {why}"),
                    Happening::Mark(_, text) => text,
                    other => format!("{other:?}"),
                });
            };
            let mut state = State::new(&mut visit);
            state.insn(0x10, None);
            kinds.iter().for_each(|kind| state.event(*kind));
            state.insn(0x14, None);
            assert_eq!(said[0], "Enter 10");
            assert_eq!(said[1..].join(", "), expected, "{kinds:?}");
        }
    }

    #[test]
    fn a_mark_says_what_it_is_of() {
        use pugmark_decoder_core::packet::Mwait;
        for (kind, expected) in [
            (EventKind::Ptwrite(PtwPayload::Four(1)), MarkKind::Written),
            (EventKind::Ptwrite(PtwPayload::Eight(1)), MarkKind::Written),
            (EventKind::Mwait(Mwait { hints: 0, ext: 0 }), MarkKind::Power),
            (EventKind::Exstop, MarkKind::Power),
            (EventKind::Cbr { ratio: 24 }, MarkKind::Frequency),
        ] {
            let mut said = vec![];
            let mut visit = |_, what: Happening| said.push(what);
            State::new(&mut visit).event(kind);
            assert!(matches!(said[..], [Happening::Mark(of, _)] if of == expected), "{kind:?}: {said:?}");
        }
    }

    #[test]
    fn time_never_goes_back() {
        let mut visit = |_: Time, _: Happening| ();
        let mut state = State::new(&mut visit);
        let times = [None, Some(5), Some(3), None, Some(6)].map(|at| {
            state.set_time(at);
            state.time.at
        });
        assert_eq!(times, [0, 5, 5, 5, 6]);
    }

    #[test]
    fn a_trace_has_time_if_a_tsc_is_anywhere_in_it() {
        use pugmark_decoder_core::packet::PSB;
        // TSC (5); PAD; a byte that begins no packet.
        let (tsc, pad, bad) = (&b"\x19\x05\0\0\0\0\0\0"[..], &[0][..], &[0x09][..]);
        let plain = Config::default();
        let mut clocked = plain;
        clocked.clocks.nom_freq = 30;
        let units = |pieces: &[&[u8]]| {
            let trace = pieces.concat();
            [plain, clocked].map(|config| TraceClock::of(&trace, config).unit)
        };
        let timed = [Unit::Ticks, Unit::Nanoseconds];
        assert_eq!(units(&[&PSB, tsc, &PSB, pad]), timed);
        assert_eq!(units(&[&PSB, pad, bad, &PSB, tsc]), timed);
        assert_eq!(units(&[&PSB, tsc, bad, &PSB, pad, bad, &PSB]), timed);
        assert_eq!(units(&[&PSB, pad, bad, &PSB]), [Unit::Instructions; 2]);
        // No PSB is in front of it.
        assert_eq!(units(&[tsc, &PSB]), [Unit::Instructions; 2]);
    }
}
