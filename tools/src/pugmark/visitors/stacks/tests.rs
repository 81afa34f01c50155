use super::*;
use crate::symbols::TracedSymbols;
use StepWay::{Abort, Call, IndirectJump, Interrupt, InterruptReturn, Jump, Return};

/// Returns a step of an instruction of five bytes.
const fn step(way: StepWay, from: u64, to: u64) -> WalkStep {
    let next = if matches!(way, Interrupt) { from } else { from + 5 };
    WalkStep { way, from, next, to }
}

/// Stacks, and what was said of them.
struct ToldStacks<'n> {
    stacks: CallStacks<'n>,
    names: Option<&'n TracedSymbols>,
    /// The functions that were told to be entered and not left.
    open: Vec<u64>,
    told: Vec<String>,
}

impl<'n> ToldStacks<'n> {
    fn new(names: Option<&'n TracedSymbols>, begin: u64) -> Self {
        let functions = names.map(WalkedFunctions::named).unwrap_or_default();
        let mut told = Self { stacks: CallStacks::new(functions), names, open: vec![], told: vec![] };
        told.change(begin, |stacks, tell| stacks.begin(begin, tell));
        told
    }

    /// Does something that leads to `to`. The innermost function is the one that this is in.
    fn change(&mut self, to: u64, change: impl FnOnce(&mut CallStacks<'n>, &mut dyn FnMut(CallEvent))) {
        let Self { stacks, names, open, told } = self;
        change(stacks, &mut |what| {
            match what {
                CallEvent::Enter { to, .. } | CallEvent::Again { to, .. } => open.push(to),
                _ => drop(open.pop().expect("nothing is left that was not entered")),
            }
            told.push(match what {
                CallEvent::Enter { from: Some(from), to } => format!("{from:x}>{to:x}"),
                CallEvent::Enter { from: None, to } => format!("{to:x}"),
                CallEvent::Again { to, .. } => format!("={to:x}"),
                CallEvent::Back => "back".into(),
                CallEvent::Leave => "leave".into(),
                other => panic!("{other:?}"),
            });
        });
        let function = |ip| names.and_then(|names| names.function(ip)).map(|(name, _)| name);
        assert_eq!(open.last().and_then(|top| function(*top)), function(to), "{to:x}: {told:?}");
    }

    fn take(&mut self, steps: &[WalkStep]) -> &mut Self {
        for step in steps {
            self.change(step.to, |stacks, tell| stacks.take(*step, tell));
        }
        self
    }

    fn all(&self) -> String {
        self.told.join(" ")
    }
}

/// Returns everything told of steps among code without names, which begin at 10.
fn told_without_names(steps: &[WalkStep]) -> String {
    ToldStacks::new(None, 0x10).take(steps).all()
}

/// Returns everything told of these steps among functions that begin at each multiple of 100; the steps begin at 110.
fn told_among(names: &[&str], steps: &[WalkStep]) -> String {
    let functions: Vec<_> =
        names.iter().zip(1..).map(|(name, n)| (*name, n * 0x100, n * 0x100 + 0x100)).collect();
    ToldStacks::new(Some(&TracedSymbols::known(&functions, &[])), 0x110).take(steps).all()
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

#[test]
fn a_return_leaves_the_function_whose_call_is_before_it() {
    let calls = [step(Call, 0x20, 0x100), step(Call, 0x110, 0x200), step(Call, 0x210, 0x300)];
    for (to, expected) in [
        (0x215, "leave"),
        // As after longjmp: two functions are passed over.
        (0x25, "leave leave leave"),
        // Nobody has called from there: it is another stack.
        (0x900, "leave leave leave leave 900"),
        (0x216, "leave leave leave leave 216"),
    ] {
        let told = told_without_names(&[&calls[..], &[step(Return, 0x310, to)]].concat());
        assert_eq!(told, format!("10 20>100 110>200 210>300 {expected}"));
    }
}

#[test]
fn a_return_out_of_what_is_known_enters_the_caller() {
    let steps = [step(Return, 0x11, 0x50), step(Return, 0x51, 0x80)];
    assert_eq!(told_without_names(&steps), "10 leave 50 leave 80");
}

#[test]
fn a_jump_to_another_function_enters_it_and_one_return_leaves_both() {
    let call = step(Call, 0x120, 0x200);
    let back = step(Return, 0x3f0, 0x125);
    for (steps, expected) in [
        // 200 ends with a call of 300.
        (&[call, step(Jump, 0x210, 0x300), back][..], "110 120>200 210>300 leave leave"),
        // It does so twice; then another one is called.
        (
            &[call, step(Jump, 0x210, 0x300), step(Jump, 0x310, 0x400), back, step(Call, 0x130, 0x500)],
            "110 120>200 210>300 310>400 leave leave leave 130>500",
        ),
        // The target of the jump calls and returns in between.
        (
            &[call, step(Jump, 0x210, 0x300), step(Call, 0x310, 0x400), step(Return, 0x410, 0x315), back],
            "110 120>200 210>300 310>400 leave leave leave",
        ),
        // Functions that jump to one another are a loop.
        (
            &[call, step(Jump, 0x210, 0x300), step(Jump, 0x310, 0x200), step(Jump, 0x210, 0x300), back],
            "110 120>200 210>300 back 210>300 leave leave",
        ),
        // 300 is code of 200 that the compiler has put elsewhere: it jumps back into its middle.
        (
            &[call, step(Jump, 0x210, 0x300), step(Jump, 0x310, 0x220), back],
            "110 120>200 210>300 leave leave",
        ),
        // It jumps into the middle of that code, too.
        (
            &[call, step(Jump, 0x210, 0x350), step(Jump, 0x360, 0x220), back],
            "110 120>200 210>350 leave leave",
        ),
        // Two calls are left, as by longjmp.
        (
            &[call, step(Call, 0x210, 0x300), step(IndirectJump, 0x310, 0x130), step(Call, 0x140, 0x400)],
            "110 120>200 210>300 leave leave 140>400",
        ),
        // A function that is entered again by a jump is not the one that has made the call.
        (&[call, step(Jump, 0x210, 0x100), back], "110 120>200 210>100 leave leave"),
        // Code without a name is no part of the function that jumps there.
        (&[call, step(Jump, 0x210, 0x900), back], "110 120>200 210>900 leave leave"),
    ] {
        assert_eq!(told_among(&NAMES, steps), expected, "{steps:?}");
    }
}

#[test]
fn a_direct_jump_into_the_caller_again_is_none_to_where_it_has_called() {
    // 100 calls itself, and its code elsewhere jumps to where that call returns.
    let steps = [step(Call, 0x120, 0x100), step(Jump, 0x110, 0x200), step(Jump, 0x210, 0x125)];
    assert_eq!(told_among(&NAMES, &steps), "110 120>100 110>200 leave");
}

#[test]
fn a_retpoline_is_replaced_by_what_it_leads_to() {
    // The thunk at 200 calls its own middle, and returns to another function or for the one that has jumped there.
    let inner = step(Call, 0x200, 0x20c);
    for (steps, expected) in [
        // An indirect call.
        (
            &[step(Call, 0x120, 0x200), inner, step(Return, 0x210, 0x300), step(Return, 0x310, 0x125)][..],
            "110 120>200 200>20c leave leave 120>300 leave",
        ),
        // An indirect tail call of a function that was called.
        (
            &[
                step(Call, 0x120, 0x400),
                step(Jump, 0x410, 0x200),
                inner,
                step(Return, 0x210, 0x300),
                step(Return, 0x310, 0x125),
            ],
            "110 120>400 410>200 200>20c leave leave 410>300 leave leave",
        ),
        // A return.
        (
            &[step(Call, 0x120, 0x300), step(Jump, 0x310, 0x200), inner, step(Return, 0x210, 0x125)],
            "110 120>300 310>200 200>20c leave leave leave",
        ),
        // A return by an address that was pushed: 300 pushes where it goes on, and then 400.
        (
            &[
                step(Call, 0x120, 0x300),
                step(Return, 0x310, 0x400),
                step(Jump, 0x410, 0x200),
                inner,
                step(Return, 0x210, 0x312),
                step(Return, 0x320, 0x125),
            ],
            "110 120>300 310>400 410>200 200>20c leave leave leave leave",
        ),
    ] {
        assert_eq!(told_among(&NAMES, steps), expected, "{steps:?}");
    }
    // A function that calls itself is none.
    let steps = [step(Call, 0x120, 0x100), step(Return, 0x130, 0x300), step(Return, 0x310, 0x125)];
    assert_eq!(told_among(&NAMES, &steps), "110 120>100 130>300 leave leave");
}

#[test]
fn nothing_is_parked_by_returns_through_a_thunk() {
    let names =
        TracedSymbols::known(&[("a", 0x100, 0x200), ("thunk", 0x200, 0x300), ("c", 0x300, 0x400)], &[]);
    let mut told = ToldStacks::new(Some(&names), 0x110);
    let steps = [
        step(Call, 0x120, 0x300),
        step(Jump, 0x310, 0x200),
        step(Call, 0x200, 0x20c),
        step(Return, 0x210, 0x125),
    ];
    told.take(&steps.repeat(10));
    assert_eq!((told.open.len(), told.stacks.parked.len()), (1, 0));
}

/// Coroutines at 300 and 400, which are switched by 200.
const COROUTINES: [WalkStep; 6] = [
    step(Call, 0x120, 0x200),
    step(Return, 0x210, 0x300),
    step(Call, 0x320, 0x200),
    step(Return, 0x210, 0x400),
    step(Call, 0x420, 0x200),
    step(Return, 0x210, 0x325),
];

#[test]
fn a_coroutine_has_a_stack_of_its_own() {
    let names = ["main", "swapcontext", "body0", "body1", "work"];
    let work = [step(Call, 0x330, 0x500), step(Return, 0x510, 0x335)];
    let to_the_other = [step(Call, 0x320, 0x200), step(Return, 0x210, 0x425)];
    let and_back = [step(Call, 0x420, 0x200), step(Return, 0x210, 0x325)];
    let steps = [&COROUTINES[..], &work, &to_the_other, &and_back, &[step(Call, 0x340, 0x200)]].concat();
    // The end: the context that main has left.
    let steps = [&steps[..], &[step(Return, 0x210, 0x125), step(Call, 0x130, 0x500)]].concat();
    let expected = "110 120>200 leave leave 300 320>200 leave leave 400 420>200 leave leave =300 330>500 leave \
        320>200 leave leave =400 420>200 leave leave =300 340>200 leave leave =100 130>500";
    assert_eq!(told_among(&names, &steps).replace("=110", "=100"), expected);
}

#[test]
fn a_function_that_switches_may_jump_to_another_one_and_back_to_its_own_stack() {
    // As Go does it where a panic is recovered.
    let names = ["catch", "runtime.gogo", "gogo"];
    let steps = [step(Call, 0x120, 0x200), step(Jump, 0x210, 0x300), step(IndirectJump, 0x310, 0x180)];
    assert_eq!(told_among(&names, &steps), "110 120>200 210>300 leave leave");
}

#[test]
fn functions_that_nobody_knows_as_switches_continue_other_stacks_too() {
    // The same without the name: what is entered first looks like a tail call.
    let to_the_other = [step(Call, 0x320, 0x200), step(Return, 0x210, 0x425)];
    let steps =
        [&COROUTINES[..], &to_the_other, &[step(Call, 0x430, 0x500), step(Return, 0x510, 0x435)]].concat();
    let expected = "110 120>200 210>300 320>200 210>400 420>200 leave leave leave 320>200 \
        leave leave leave leave =400 430>500 leave";
    assert_eq!(told_among(&NAMES, &steps), expected);
    // By indirect jumps, as Boost's.
    let by_jumps = steps.iter().map(|step| match step.way {
        Return if step.from == 0x210 => WalkStep { way: IndirectJump, ..*step },
        _ => *step,
    });
    assert_eq!(told_among(&NAMES, &by_jumps.collect::<Vec<_>>()), expected);
}

#[test]
fn stacks_that_continue_at_the_same_place_take_turns() {
    // Two coroutines of one function, called from 320 and from 340; 200 is called by both at the same place.
    let names = ["main", "swapcontext", "one", "other", "yield"];
    let begin = [
        step(Call, 0x120, 0x200),
        step(Return, 0x210, 0x300),
        step(Call, 0x320, 0x500),
        step(Call, 0x510, 0x200),
        step(Return, 0x210, 0x400),
        step(Call, 0x420, 0x500),
    ];
    // From the other to the one, which returns into its own function, and to the other again.
    let turns = [
        step(Call, 0x510, 0x200),
        step(Return, 0x210, 0x515),
        step(Return, 0x520, 0x325),
        step(Call, 0x320, 0x500),
        step(Call, 0x510, 0x200),
        step(Return, 0x210, 0x515),
        step(Return, 0x520, 0x425),
        step(Call, 0x420, 0x500),
    ];
    let functions: Vec<_> =
        names.iter().zip(1..).map(|(name, n)| (*name, n * 0x100, n * 0x100 + 0x100)).collect();
    let names = TracedSymbols::known(&functions, &[]);
    let mut told = ToldStacks::new(Some(&names), 0x110);
    told.take(&begin).take(&turns.repeat(100));
    assert_eq!(told.open, [0x400, 0x500]);
    // Nothing grows.
    assert!(told.stacks.parked.len() <= 3, "{}", told.stacks.parked.len());
}

#[test]
fn a_stack_that_was_never_seen_begins_in_the_function_that_is_returned_to() {
    // The scheduler at 300 was called by 200 on this stack, and returns to 400 on another; then it comes back.
    let steps = [
        step(Call, 0x120, 0x200),
        step(Call, 0x220, 0x300),
        step(Return, 0x310, 0x450),
        step(Call, 0x460, 0x300),
        step(Return, 0x310, 0x225),
        step(Return, 0x230, 0x125),
    ];
    let expected = "110 120>200 220>300 leave leave leave 450 460>300 leave leave =110 =200 leave";
    assert_eq!(told_among(&NAMES, &steps), expected);
}

#[test]
fn an_exception_is_caught_in_the_innermost_function_of_that_name() {
    // 200 calls itself, then the unwinder at 300, which returns or jumps to the code that catches, in the middle of
    // 200.
    for way in [Return, IndirectJump] {
        let steps = [
            step(Call, 0x120, 0x200),
            step(Call, 0x220, 0x200),
            step(Call, 0x230, 0x300),
            step(way, 0x310, 0x280),
            step(Return, 0x290, 0x225),
        ];
        assert_eq!(told_among(&NAMES, &steps), "110 120>200 220>200 230>300 leave leave", "{way:?}");
    }
    // As OCaml does it: a return in the function itself.
    let steps = [step(Call, 0x120, 0x200), step(Return, 0x210, 0x280), step(Return, 0x290, 0x125)];
    assert_eq!(told_among(&NAMES, &steps), "110 120>200 leave");
}

/// Returns true if a function of the kernel begins there: they begin at each multiple of 100.
const fn kernel(offset: u64) -> u64 {
    KERNEL | offset
}

fn told_with_kernel(steps: &[WalkStep]) -> String {
    let own = [("a", 0x100, 0x200), ("handler", 0x200, 0x300), ("restorer", 0x300, 0x400)];
    let kernels = [("entry", kernel(0x100), kernel(0x200)), ("work", kernel(0x200), kernel(0x300))];
    let names = TracedSymbols::known(&[&own[..], &kernels].concat(), &[]);
    ToldStacks::new(Some(&names), 0x110).take(steps).all().replace("8000000000000", "k")
}

#[test]
fn the_kernel_is_left_to_where_it_was_entered_or_to_a_handler() {
    let syscall = WalkStep { way: Interrupt, from: 0x120, next: 0x122, to: kernel(0x100) };
    let work = step(Call, kernel(0x120), kernel(0x200));
    let entered = "110 120>k100 k120>k200";
    for (steps, expected) in [
        // After the system call, or at it once more.
        (&[syscall, work, step(InterruptReturn, kernel(0x210), 0x122)][..], "leave leave"),
        (&[syscall, work, step(InterruptReturn, kernel(0x210), 0x120)], "leave leave"),
        // A signal's handler, which goes back by another system call.
        (
            &[
                syscall,
                work,
                step(InterruptReturn, kernel(0x210), 0x200),
                step(Return, 0x210, 0x300),
                WalkStep { way: Interrupt, from: 0x310, next: 0x312, to: kernel(0x100) },
                step(InterruptReturn, kernel(0x110), 0x122),
            ],
            "leave leave 122>200 leave 300 310>k100 leave leave",
        ),
        // The kernel interrupts itself, and continues elsewhere, as after a fault at an address that it was given.
        (
            &[
                syscall,
                work,
                step(Interrupt, kernel(0x220), kernel(0x100)),
                step(InterruptReturn, kernel(0x130), kernel(0x240)),
                step(Return, kernel(0x250), kernel(0x125)),
            ],
            "k220>k100 leave leave",
        ),
        // IRET to its own function is a jump.
        (
            &[
                syscall,
                work,
                step(InterruptReturn, kernel(0x230), kernel(0x240)),
                step(Return, kernel(0x250), kernel(0x125)),
            ],
            "leave",
        ),
    ] {
        assert_eq!(told_with_kernel(steps), format!("{entered} {expected}"), "{steps:x?}");
    }
    // Without names, an interrupt is left by its return.
    let steps = [step(Interrupt, 0x18, 0x700), step(InterruptReturn, 0x710, 0x18)];
    assert_eq!(told_without_names(&steps), "10 18>700 leave");
}

#[test]
fn an_aborted_transaction_has_entered_and_left_nothing() {
    let names = TracedSymbols::known(&[("a", 0x100, 0x200), ("b", 0x200, 0x300), ("c", 0x300, 0x400)], &[]);
    let told = |before: &[WalkStep], within: &[WalkStep], to| {
        let mut told = ToldStacks::new(Some(&names), 0x110);
        told.take(before);
        for _ in 0..3 {
            told.stacks.begin_transaction();
            told.take(within).take(&[step(Abort, 0x3f0, to)]);
        }
        (told.all(), told.open)
    };
    let call = step(Call, 0x120, 0x200);
    // It has called: three rounds are as deep as one.
    let (all, open) = told(&[], &[call, step(Call, 0x220, 0x300)], 0x130);
    assert_eq!(
        (&*all, &open[..]),
        (&*["110", &["120>200 220>300 leave leave"; 3].join(" ")].join(" "), &[0x110][..])
    );
    // It was left, as by what begins a transaction for its caller.
    let (all, open) = told(&[call], &[step(Return, 0x230, 0x125), step(Call, 0x140, 0x300)], 0x240);
    assert_eq!(all, ["110 120>200", &["leave 140>300 leave =200"; 3].join(" ")].join(" "));
    assert_eq!(open, [0x110, 0x200]);
    // It is not known where it has begun.
    let mut told = ToldStacks::new(Some(&names), 0x110);
    told.take(&[call, step(Abort, 0x210, 0x130), step(Abort, 0x140, 0x310)]);
    assert_eq!(told.all(), "110 120>200 leave 310");
}

#[test]
fn stacks_have_an_end_however_deep_the_calls_are() {
    let mut told = ToldStacks::new(None, 0x10);
    let call = step(Call, 0x20, 0x10);
    let mut deepest = 0;
    for _ in 0..MOST_FRAMES + 10 {
        told.stacks.take(call, &mut |_| ());
        deepest = deepest.max(told.stacks.frames.len());
    }
    assert_eq!((deepest, told.stacks.frames.len()), (MOST_FRAMES, 11));
}
