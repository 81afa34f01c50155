use super::*;
use crate::pugmark::report::naming::{Key, UnnamedFunctions, WantedRows};
use crate::symbols::TracedSymbols;

/// A piece of a trace: a call of an address, a return, an instruction that takes some time, and others.
#[derive(Clone, Copy, Debug)]
enum CallPiece {
    Call(u64),
    Return,
    /// A jump back to the function that has jumped.
    Back,
    /// At this address, and this many ticks long.
    Insn(u64, u64),
    Off,
    On,
    Loss,
    /// This many ticks pass.
    Wait(u64),
}
use CallPiece::{Back, Call, Insn, Loss, Off, On, Return, Wait};

static UNNAMED: UnnamedFunctions = UnnamedFunctions::NONE;

/// Functions at 1000, 2000, and so on.
const FUNCTIONS: [(&str, u64, u64); 4] =
    [("a", 0x1000, 0x1100), ("b", 0x2000, 0x2100), ("c", 0x3000, 0x3100), ("d", 0x4000, 0x4100)];

/// Follows a trace. Returns what each function took: ticks of its own and with what it called, instructions of its own
/// and with what it called.
fn took(pieces: &[CallPiece], wanted: WantedRows<'_>) -> (Vec<(String, [u64; 4])>, Time) {
    let symbols = TracedSymbols::known(&FUNCTIONS, &[("/x", 0x1000, 0x2800), ("/y", 0x3000, 0x5000)]);
    let mut sums =
        CallerSums::new(TraceRows { wanted, symbols: &symbols, unnamed: &UNNAMED, thread: "thread" });
    // It does not begin at 0.
    let mut now = Time { at: 70, insns: 0 };
    for piece in pieces {
        match *piece {
            Call(to) => sums.call_event(now, CallEvent::Enter { from: None, to }),
            Return => sums.call_event(now, CallEvent::Leave),
            Back => sums.call_event(now, CallEvent::Back),
            Insn(ip, ticks) => {
                if sums.watches(ip) {
                    sums.at(now, ip);
                }
                now.add(Time { at: ticks, insns: 1 });
            }
            Off => sums.call_event(now, CallEvent::Off(None)),
            On => sums.call_event(now, CallEvent::On),
            Loss => sums.call_event(now, CallEvent::Loss("x".into())),
            Wait(ticks) => now.at += ticks,
        }
    }
    let (rows, all) = sums.finish(now);
    let name = |keys: Keys| keys.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let numbers = |took: RowCost| [took.own.at, took.whole.at, took.own.insns, took.whole.insns];
    let mut rows: Vec<_> = rows.into_iter().map(|(keys, took)| (name(keys), numbers(took))).collect();
    rows.sort();
    (rows, all)
}

fn by_function(pieces: &[CallPiece]) -> Vec<(String, [u64; 4])> {
    let (rows, all) = took(pieces, WantedRows { by: &[Key::Function], ..WantedRows::default() });
    let own = |number: usize| rows.iter().map(|(_, numbers)| numbers[number]).sum::<u64>();
    assert_eq!((own(0), own(2)), (all.at, all.insns), "all is somebody's: {pieces:?}");
    rows
}

fn assert_took(pieces: &[CallPiece], expected: &[(&str, [u64; 4])]) {
    let expected: Vec<_> = expected.iter().map(|(name, numbers)| ((*name).to_owned(), *numbers)).collect();
    assert_eq!(by_function(pieces), expected, "{pieces:?}");
}

const BEGIN: [CallPiece; 2] = [Call(0x1000), Insn(0x1000, 1)];

fn after_begin(pieces: &[CallPiece]) -> Vec<CallPiece> {
    [&BEGIN[..], pieces].concat()
}

#[test]
fn what_is_called_is_its_callers_too() {
    // `a` calls `b` twice, which calls `c` once.
    let pieces = after_begin(&[
        Call(0x2000),
        Insn(0x2000, 10),
        Return,
        Insn(0x1004, 1),
        Call(0x2000),
        Insn(0x2000, 10),
        Call(0x3000),
        Insn(0x3000, 100),
        Insn(0x3002, 100),
        Return,
        Insn(0x2004, 10),
        Return,
        Insn(0x1008, 1),
    ]);
    assert_took(&pieces, &[("a", [3, 233, 3, 8]), ("b", [30, 230, 3, 5]), ("c", [200, 200, 2, 2])]);
}

#[test]
fn what_calls_itself_is_counted_once() {
    // `a` calls `b`, that calls `a` and itself.
    let pieces = after_begin(&[
        Call(0x2000),
        Insn(0x2000, 10),
        Call(0x1000),
        Insn(0x1000, 1),
        Return,
        Insn(0x2004, 10),
        Call(0x2000),
        Insn(0x2000, 10),
        Return,
        Insn(0x2008, 10),
        Return,
        Insn(0x1008, 1),
    ]);
    assert_took(&pieces, &[("a", [3, 43, 3, 7]), ("b", [40, 41, 4, 5])]);
}

#[test]
fn functions_that_jump_to_one_another_are_on_the_stack_until_one_return_leaves_both() {
    let rounds = [Insn(0x2000, 10), Call(0x3000), Insn(0x3000, 100), Back].repeat(1000);
    let pieces = after_begin(&[&[Call(0x2000)], &rounds[..], &[Return, Insn(0x1008, 1)]].concat());
    let both = [
        ("a", [2, 110_002, 2, 2002]),
        ("b", [10_000, 110_000, 1000, 2000]),
        ("c", [100_000, 109_990, 1000, 1999]),
    ];
    assert_took(&pieces, &both);
}

#[test]
fn stacks_stay_small_where_functions_jump_to_one_another() {
    let symbols = TracedSymbols::known(&FUNCTIONS, &[]);
    let wanted = WantedRows { by: &[Key::Function], ..WantedRows::default() };
    let mut sums = CallerSums::new(TraceRows { wanted, symbols: &symbols, unnamed: &UNNAMED, thread: "" });
    let enter = |to| CallEvent::Enter { from: None, to };
    sums.call_event(Time::default(), enter(0x1000));
    for round in 0..100 {
        for what in
            [enter(0x2000), enter(0x3000), CallEvent::Back, enter(0x4000), CallEvent::Back, CallEvent::Back]
        {
            sums.call_event(Time::default(), what);
        }
        assert!(sums.stack.len() == 1 && sums.stack[0].kept.len() == 3, "{round}");
    }
}

#[test]
fn code_that_the_compiler_has_put_elsewhere_is_left_where_it_jumps_back() {
    // A part of `b` is in `c`.
    let part =
        [Call(0x2000), Insn(0x2000, 10), Call(0x3000), Insn(0x3000, 100), Return, Insn(0x2008, 10), Return];
    assert_took(
        &after_begin(&[&part[..], &[Insn(0x1008, 1)]].concat()),
        &[("a", [2, 122, 2, 5]), ("b", [20, 120, 2, 3]), ("c", [100, 100, 1, 1])],
    );
}

#[test]
fn what_is_not_traced_is_its_callers_and_what_is_lost_is_nobodys() {
    let off = after_begin(&[Call(0x2000), Insn(0x2000, 10), Off, Wait(500), On, Insn(0x2002, 10), Return]);
    let expected = [("[not traced]", [500, 500, 0, 0]), ("a", [2, 522, 2, 4]), ("b", [20, 520, 2, 2])];
    assert_took(&[&off[..], &[Insn(0x1008, 1)]].concat(), &expected);
    // Two losses, after which it goes on in `b`; and at the end.
    let lost =
        [Return, Loss, Wait(300), Loss, Wait(30), Call(0x2004), Insn(0x2004, 10), Return, Loss, Wait(3)];
    let expected = [("[lost]", [333, 333, 0, 0]), ("a", [1, 1, 1, 1]), ("b", [10, 10, 1, 1])];
    assert_took(&after_begin(&lost), &expected);
    // The trace ends where nothing is traced.
    let end = after_begin(&[Off, Wait(7)]);
    assert_took(&end, &[("[not traced]", [7, 7, 0, 0]), ("a", [1, 8, 1, 1])]);
}

#[test]
fn a_function_whose_first_instruction_is_interrupted_has_been_entered() {
    let pieces =
        after_begin(&[Call(0x2000), Call(0x3000), Insn(0x3000, 100), Return, Insn(0x2000, 10), Return]);
    assert_took(&pieces, &[("a", [1, 111, 1, 3]), ("b", [10, 110, 1, 2]), ("c", [100, 100, 1, 1])]);
}

#[test]
fn rows_that_are_not_wanted_have_no_sums_and_those_they_call_have() {
    let pieces =
        after_begin(&[Call(0x2000), Insn(0x2000, 10), Call(0x3000), Insn(0x3000, 100), Off, Wait(5)]);
    let rows = |by, object, function| took(&pieces, WantedRows { by, object, function });
    let by = [Key::Function];
    let b = ("b".to_owned(), [10, 115, 1, 2]);
    let all = Time { at: 116, insns: 3 };
    assert_eq!(rows(&by, None, Some("b")), (vec![b.clone()], all));
    let a = ("a".to_owned(), [1, 116, 1, 3]);
    assert_eq!(rows(&by, Some("x"), None), (vec![a, b], all));
    let off = ("[not traced]".to_owned(), [5, 5, 0, 0]);
    assert_eq!(rows(&by, None, Some("[not traced]")), (vec![off.clone()], all));
    // A file's sum is that of its functions and of those that they call, once.
    let x = ("thread /x".to_owned(), [11, 116, 2, 3]);
    let y = ("thread /y".to_owned(), [100, 105, 1, 1]);
    let off = ("thread [not traced]".to_owned(), off.1);
    assert_eq!(rows(&[Key::Object, Key::Thread], None, None), (vec![x, y, off], all));
}

#[test]
fn an_address_has_its_place_also_if_another_has_the_same_slot() {
    let far = KnownAddresses::LATE as u64;
    let mut known = KnownAddresses::new();
    assert_eq!([0, 1, far].map(|ip| known.find(ip)), [None; 3]);
    known.all.extend([(0, 5), (1, 6), (far, 7), (far + 1, 8)]);
    for _ in 0..2 {
        let found = [0, far, 1, far + 1, 2 * far].map(|ip| known.find(ip));
        assert_eq!(found, [Some(5), Some(7), Some(6), Some(8), None]);
    }
}
