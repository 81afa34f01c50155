use super::super::{CallEvent, CallStacks, Time, TraceClock, WalkedFunctions, WalkedLane, walk_lanes};
use super::*;
use crate::pugmark::{code::TracedCode, coverage::Executed, made_traces::made_traces};
use crate::symbols::TracedSymbols;
use pugmark_decoder_core::{
    config::Config,
    flow::{FlowItem, InsnDecoder},
    image::Image,
    time::Timeline,
};
use std::collections::BTreeMap;

/// A call of the visitor: something that happens, or a watched instruction.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Happens(Time, CallEvent),
    At(Time, u64),
}

/// A visitor that notes every call. It watches where execution comes to another part of the code, if there are parts.
#[derive(Default)]
struct Notes {
    told: Vec<Told>,
    /// A part of the code has 2 to the power of this many bytes.
    bits: Option<u32>,
    /// The address of the last instruction, if nothing has happened since.
    here: Option<u64>,
}

impl Visitor for Notes {
    fn call_event(&mut self, time: Time, what: CallEvent) {
        self.here = None;
        self.told.push(Told::Happens(time, what));
    }

    fn watches(&mut self, ip: u64) -> bool {
        let comes = self.bits.is_some() && self.here.is_none_or(|here| self.tells_apart(here, ip));
        self.here = Some(ip);
        comes
    }

    fn tells_apart(&mut self, before: u64, ip: u64) -> bool {
        self.bits.is_some_and(|bits| before >> bits != ip >> bits)
    }

    fn at(&mut self, time: Time, ip: u64) {
        self.told.push(Told::At(time, ip));
    }
}

/// Walks one instruction at a time.
fn walk_by_insns(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    clock: TraceClock,
    progress: &mut Progress,
    state: &mut State<'_, impl Visitor + ?Sized>,
) {
    let mut timeline = Timeline::new(trace, config);
    let mut decoder = InsnDecoder::with_config(trace, image, config);
    let mut when = |span, insns| clock.time(&mut timeline, span, insns).map(|(at, _)| at);
    while decoder.resync().is_some() {
        state.damaged = loop {
            let item = match decoder.next() {
                Ok(Some(item)) => item,
                end => break end.is_err(),
            };
            state.goes_on_decoding();
            match &item {
                FlowItem::Insn(insn) => {
                    state.watches(insn, |insns| when(decoder.span(), insns));
                    progress.step(|| decoder.offset());
                }
                FlowItem::Event(event) => state.passes(event, |insns| when(Span::at(event.offset), insns)),
            }
        };
        // Functions still open end with the last instruction.
        state.set_time(when(decoder.span(), state.time.insns));
    }
    state.goes_on_decoding();
}

/// Walks a trace by blocks and by instructions. Returns what each walk tells its visitor.
fn told(
    (trace, code): (&[u8], &TracedCode),
    clock: TraceClock,
    names: Option<&TracedSymbols>,
    bits: Option<u32>,
) -> [Vec<Told>; 2] {
    let sections = code.sections();
    let image = Image::new(&sections);
    [true, false].map(|by_blocks| {
        let mut notes = Notes { bits, ..Notes::default() };
        let functions = names.map(WalkedFunctions::named).unwrap_or_default();
        let mut state = State::new(CallStacks::new(functions), &mut notes);
        let (config, mut progress) = (Config::default(), Progress::hidden());
        if by_blocks {
            let session = Session::alone(trace, image, config);
            (state, _) = walk(&session, clock, false, &mut progress, vec![state]).remove(0);
        } else {
            walk_by_insns(trace, image, config, clock, &mut progress, &mut state);
        }
        let end = CallEvent::End(state.at);
        state.say(end);
        state.change(|stacks, tell| stacks.end(tell));
        notes.told
    })
}

#[test]
fn block_by_block_the_same_happens_as_instruction_by_instruction() {
    let (mut call_events, mut places, mut losses, mut timed) = (0, 0, 0, 0);
    for made in made_traces(12) {
        let functions = made.program.functions();
        // Some have no name.
        let named = functions.iter().enumerate().filter(|(number, _)| number % 5 > 0);
        let named: Vec<_> =
            named.map(|(_, function)| ("f", *function.range.start(), *function.range.end() + 1)).collect();
        let names = TracedSymbols::known(&named, &[]);
        let own = TraceClock::of(&made.trace, None, Config::default());
        timed += u64::from(own.unit != Unit::Instructions);
        for (clock, names, bits) in [
            (TraceClock::INSTRUCTIONS, None, None),
            (TraceClock::INSTRUCTIONS, Some(&names), Some(6)),
            (own, Some(&names), None),
            (own, None, Some(4)),
        ] {
            let [by_blocks, by_insns] = told((&made.trace, &made.code), clock, names, bits);
            let differs = by_blocks.iter().zip(&by_insns).position(|(one, other)| one != other);
            let around = |told: &[Told]| {
                let at = differs.unwrap_or(told.len().min(by_blocks.len()).min(by_insns.len()));
                format!(
                    "{:x?}",
                    told.get(at.saturating_sub(2)..).unwrap_or_default().iter().take(4).collect::<Vec<_>>()
                )
            };
            assert!(
                by_blocks == by_insns,
                "{}, {bits:?}: by blocks {}, by instructions {}",
                made.what,
                around(&by_blocks),
                around(&by_insns)
            );
            for told in by_blocks {
                match told {
                    Told::Happens(_, CallEvent::Loss(_)) => losses += 1,
                    Told::Happens(..) => call_events += 1,
                    Told::At(..) => places += 1,
                }
            }
        }
    }
    println!("{call_events} call_events, {places} places, {losses} losses, {timed} traces with a clock");
    assert!(call_events > 10_000 && places > 10_000 && losses > 30 && timed > 50);
}

#[test]
fn a_trace_that_ends_with_a_branch_ends_after_it() {
    // 1000: jz 1000
    let mut code = TracedCode::default();
    code.add(0x1000, vec![0x74, 0xfe]);
    // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TSC (1000), TNT (taken), TSC (9000)
    let trace = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
        \x19\0\x10\0\0\0\0\0\x06\x19\0\x90\0\0\0\0\0";
    let clock = TraceClock::of(trace, None, Config::default());
    let [by_blocks, by_insns] = told((trace, &code), clock, None, None);
    assert_eq!(by_blocks, by_insns);
    let ends =
        |told: &Told| matches!(told, Told::Happens(Time { insns: 1, .. }, CallEvent::End(Some(0x1000))));
    assert!(by_blocks.iter().any(ends), "{by_blocks:x?}");
}

/// The number of instructions executed while each function was the innermost one.
struct InnermostFunctions<'n> {
    names: &'n TracedSymbols,
    open: Vec<u64>,
    before: u64,
    counts: BTreeMap<Option<String>, u64>,
}

impl InnermostFunctions<'_> {
    fn name(&self, ip: u64) -> Option<String> {
        self.names.function(ip).map(|(name, _)| name.to_owned())
    }
}

impl Visitor for InnermostFunctions<'_> {
    fn call_event(&mut self, time: Time, what: CallEvent) {
        let passed = time.insns - std::mem::replace(&mut self.before, time.insns);
        if passed > 0 {
            let top = *self.open.last().expect("a function is open where instructions are executed");
            *self.counts.entry(self.name(top)).or_default() += passed;
        }
        match what {
            CallEvent::Enter { to, .. } | CallEvent::Again { to, .. } => self.open.push(to),
            CallEvent::Leave | CallEvent::Back => drop(self.open.pop()),
            _ => {}
        }
    }
}

#[test]
fn the_innermost_function_is_that_of_the_instruction_and_what_was_executed_is_counted_in_the_same_walk() {
    let (mut instructions, mut several) = (0, 0);
    for made in made_traces(10) {
        let functions = made.program.functions();
        // Some have no name, and each is cut in two: the code of both falls and jumps from one to the other.
        let cut = functions.iter().enumerate().filter(|(number, _)| number % 5 > 0).flat_map(
            |(number, function)| {
                let (from, to) = (*function.range.start(), *function.range.end() + 1);
                let middle = from + (to - from) / 2;
                [(format!("f{number}"), from, middle), (format!("f{number}.cold"), middle, to)]
            },
        );
        let cut: Vec<_> = cut.collect();
        let named: Vec<_> = cut.iter().map(|(name, from, to)| (&**name, *from, *to)).collect();
        let names = TracedSymbols::known(&named, &[]);
        let sections = made.code.sections();
        let session = Session::alone(&made.trace, Image::new(&sections), Config::default());
        let mut found =
            InnermostFunctions { names: &names, open: vec![], before: 0, counts: BTreeMap::new() };
        let lane = WalkedLane { names: &names, visitor: &mut found };
        let mut progress = Progress::hidden();
        let end = walk_lanes(&session, TraceClock::INSTRUCTIONS, true, &mut progress, vec![lane]).remove(0);
        let executed = Executed::in_lanes(&session, &mut progress).remove(0);
        assert_eq!(Executed::of(end.counted.unwrap()), executed, "{}", made.what);
        let mut expected: BTreeMap<Option<String>, u64> = BTreeMap::new();
        for (ip, count) in &executed.insns {
            *expected.entry(found.name(*ip)).or_default() += count;
        }
        assert_eq!(found.counts, expected, "{}", made.what);
        instructions += expected.values().sum::<u64>();
        several += expected.len();
    }
    println!("{instructions} instructions of {several} functions");
    assert!(instructions > 50_000 && several > 500, "{instructions} {several}");
}
