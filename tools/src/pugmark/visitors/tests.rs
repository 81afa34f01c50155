use super::{steps::StepWay, *};
use pugmark_decoder_core::{config::Config, mode::ExecMode};

/// Returns a step of an instruction of five bytes.
const fn step(way: StepWay, from: u64, to: u64) -> WalkStep {
    let next = if matches!(way, StepWay::Interrupt) { from } else { from + 5 };
    WalkStep { way, from, next, to }
}

/// Returns a state at its begin, without the names of functions.
fn state<V: Visitor>(visitor: &mut V) -> State<'_, V> {
    State::new(CallStacks::new(WalkedFunctions::default()), visitor)
}

#[test]
fn a_trace_that_stops_before_an_instruction_ends_there() {
    let mut visit = |_, _| ();
    let mut state = state(&mut visit);
    state.at = Some(0x10);
    state.event(EventKind::Tick);
    assert_eq!(state.at, Some(0x10));
    state.event(EventKind::AsyncDisabled { at: 0x30 });
    assert_eq!(state.at, Some(0x30));
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
        (&[EventKind::AsyncDisabled { at: 0x14 }, off], "Off, On"),
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
        let mut visit = |_, what: CallEvent| {
            said.push(match what {
                CallEvent::Enter { from: None, to } => format!("Enter {to:x}"),
                CallEvent::Loss(why) => format!("LOST {why}"),
                CallEvent::Mark(_, text) => text,
                CallEvent::Off(None) => "Off".into(),
                other => format!("{other:?}"),
            });
        };
        let mut state = state(&mut visit);
        state.insn(0x10, None);
        kinds.iter().for_each(|kind| state.event(*kind));
        state.insn(0x14, None);
        assert_eq!(said[0], "Enter 10");
        assert_eq!(said[1..].join(", "), expected, "{kinds:?}");
    }
}

/// Lists what a state reports of these instructions, events and returns, after a function was entered at 0x10.
fn said_of(pieces: &[WalkPiece]) -> String {
    let mut said = vec![];
    let mut visit = |_, what: CallEvent| {
        said.push(match what {
            CallEvent::Enter { from: Some(from), to } => format!("{from:x} enters {to:x}"),
            CallEvent::Enter { from: None, to } => format!("{to:x}"),
            CallEvent::Off(None) => "Off".into(),
            other => format!("{other:?}"),
        });
    };
    let mut state = state(&mut visit);
    state.insn(0x10, None);
    for piece in pieces {
        match *piece {
            WalkPiece::Insn(ip, class) => {
                state.insn(ip, None);
                let insn = ExecutedInsn { ip, len: 2, class, mode: ExecMode::Bits64, speculative: false };
                state.executed(&insn);
            }
            WalkPiece::Step(step) => state.insn(step.to, Some(step)),
            WalkPiece::Event(kind) => state.event(kind),
        }
    }
    said[1..].join(", ")
}

/// A piece of a trace: an instruction (the first one after untraced code if an event precedes it), a call or return,
/// or an event.
#[derive(Clone, Copy)]
enum WalkPiece {
    Insn(u64, Class),
    Step(WalkStep),
    Event(EventKind),
}

#[test]
fn a_signals_handler_is_entered_from_where_it_interrupts_and_left_to_there() {
    use StepWay::{Call, Return};
    use WalkPiece::{Event, Insn};
    let off = Event(EventKind::Disabled);
    let interrupt = |at| Event(EventKind::AsyncDisabled { at });
    let plain = |ip| Insn(ip, Class::Other);
    let syscall = |ip| Insn(ip, Class::FarCall);
    let call = |from, to| WalkPiece::Step(step(Call, from, to));
    let ret = |from, to| WalkPiece::Step(step(Return, from, to));
    // A handler at 700 that calls 800 and returns to 900, which makes the system go back.
    let handler =
        [plain(0x700), call(0x702, 0x800), ret(0x802, 0x707), ret(0x709, 0x900), syscall(0x900), off];
    let entered = "Off, On, 20 enters 700, 702 enters 800, Leave, Leave, 900, Off, On, Leave";
    for (before, after, expected) in [
        // At a system call: the program continues after it, or repeats it.
        (&[syscall(0x20), off][..], 0x22, entered),
        (&[syscall(0x20), off], 0x20, entered),
        // Before any instruction.
        (&[plain(0x1e), interrupt(0x20)], 0x20, entered),
    ] {
        let pieces = [before, &handler, &[plain(after)]].concat();
        assert_eq!(said_of(&pieces), expected, "{after:x}");
    }
    for (pieces, expected) in [
        // Functions that the handler called are left, too, if it never returns from them.
        (
            &[syscall(0x20), off, plain(0x700), call(0x702, 0x800), syscall(0x810), off, plain(0x22)][..],
            "Off, On, 20 enters 700, 702 enters 800, Off, On, Leave, Leave",
        ),
        // A handler in a handler.
        (
            &[
                interrupt(0x20),
                plain(0x700),
                interrupt(0x704),
                plain(0x800),
                off,
                plain(0x704),
                off,
                plain(0x20),
            ],
            "Off, On, 20 enters 700, Off, On, 704 enters 800, Off, On, Leave, Off, On, Leave",
        ),
        // It returns to a function that has called, as after siglongjmp.
        (
            &[call(0x30, 0x100), interrupt(0x104), plain(0x700), ret(0x702, 0x35)],
            "30 enters 100, Off, On, 104 enters 700, Leave, Leave",
        ),
        // Nothing is entered where a system call ends, or a function that is not traced returns.
        (&[syscall(0x20), off, plain(0x22), syscall(0x24), off, plain(0x26)], "Off, On, Off, On"),
        (&[Insn(0x20, Class::NearCall), off, plain(0x22)], "Off, On"),
        (&[Insn(0x20, Class::IndirectCall), off, plain(0x700)], "Off, On, 20 enters 700"),
        // Linux stops tracing in a function and starts it again in the same one, called from elsewhere. The return from
        // there must not leave the functions that were called before.
        (
            &[
                call(0x30, 0x100),
                interrupt(0x104),
                plain(0x106),
                ret(0x108, 0x500),
                ret(0x502, 0x600),
                ret(0x602, 0x35),
            ],
            "30 enters 100, Off, On, 104 enters 106, Leave, 500, Leave, 600, Leave, Leave",
        ),
        // Where it goes after a jump or a return is not known.
        (&[Insn(0x20, Class::NearReturn), off, plain(0x700)], "Off, On"),
        (&[Insn(0x20, Class::CondJump), off, plain(0x700)], "Off, On"),
        (
            &[syscall(0x20), off, plain(0x22), Insn(0x24, Class::IndirectJump), off, plain(0x22)],
            "Off, On, Off, On",
        ),
    ] {
        assert_eq!(said_of(pieces), expected);
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
        let mut visit = |_, what: CallEvent| said.push(what);
        state(&mut visit).event(kind);
        assert!(matches!(said[..], [CallEvent::Mark(of, _)] if of == expected), "{kind:?}: {said:?}");
    }
}

#[test]
fn time_never_goes_back() {
    let mut visit = |_: Time, _: CallEvent| ();
    let mut state = state(&mut visit);
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
        [plain, clocked].map(|config| TraceClock::of(&trace, None, config).unit)
    };
    let timed = [Unit::Ticks, Unit::Nanoseconds];
    assert_eq!(units(&[&PSB, tsc, &PSB, pad]), timed);
    assert_eq!(units(&[&PSB, pad, bad, &PSB, tsc]), timed);
    assert_eq!(units(&[&PSB, tsc, bad, &PSB, pad, bad, &PSB]), timed);
    assert_eq!(units(&[&PSB, pad, bad, &PSB]), [Unit::Instructions; 2]);
    // No PSB is in front of it.
    assert_eq!(units(&[tsc, &PSB]), [Unit::Instructions; 2]);
    // MTC, CYC.
    for (more, is_coarse) in [(&[][..], true), (pad, true), (b"\x59\x01", false), (&[0x0b], false)] {
        let trace = [&PSB, tsc, more].concat();
        assert_eq!(TraceClock::of(&trace, None, plain).is_coarse, is_coarse, "{more:x?}");
    }
}

#[test]
fn the_abort_of_a_transaction_is_no_interrupt_and_the_interrupt_after_it_is_one() {
    let mut said = vec![];
    let mut visit = |_: Time, what: CallEvent| {
        said.push(match what {
            CallEvent::Enter { to, .. } => format!("{to:x}"),
            CallEvent::Off(None) => "Off".into(),
            other => format!("{other:?}"),
        });
    };
    let mut state = state(&mut visit);
    let insn = |ip, len, class| ExecutedInsn { ip, len, class, mode: ExecMode::Bits64, speculative: false };
    let abort =
        [EventKind::Tsx { speculative: false, aborted: true }, EventKind::AsyncBranch { from: 0x101 }];
    for _ in 0..3 {
        state.watches(&insn(0x10, 2, Class::Other), |_| None);
        state.event(EventKind::Tsx { speculative: true, aborted: false });
        state.watches(&insn(0x12, 5, Class::NearCall), |_| None);
        state.watches(&insn(0x100, 1, Class::Other), |_| None);
        abort.iter().for_each(|kind| state.event(*kind));
        state.watches(&insn(0x40, 2, Class::Other), |_| None);
    }
    state.event(EventKind::AsyncBranch { from: 0x42 });
    state.watches(&insn(0x200, 1, Class::Other), |_| None);
    assert_eq!(said.join(" "), "10 100 Leave 100 Leave 100 Leave 200");
}
