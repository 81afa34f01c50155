use super::super::{Happening, Time, TraceClock, WalkedFunctions, walk_by_insns};
use super::*;
use crate::pugmark::{
    made_traces::{MadeTrace, made_traces},
    symbols::TracedSymbols,
};

/// What happens, and what is said of the instructions that are watched.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Happens(Time, Happening),
    At(Time, u64),
}

/// Notes all that it is told. It watches where execution comes to another part of the code, if there are parts.
#[derive(Default)]
struct Notes {
    told: Vec<Told>,
    /// Code is in one part with all code whose addresses are the same without so many of their bits.
    bits: Option<u32>,
    /// The address of the last instruction, if nothing has happened since.
    here: Option<u64>,
}

impl Visitor for Notes {
    fn happens(&mut self, time: Time, what: Happening) {
        self.here = None;
        self.told.push(Told::Happens(time, what));
    }

    fn comes_to(&mut self, ip: u64) -> bool {
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

/// What is told of a trace, by blocks and by instructions.
fn told(made: &MadeTrace, names: Option<&TracedSymbols>, bits: Option<u32>) -> [Vec<Told>; 2] {
    let sections = made.code.sections();
    let image = Image::new(&sections);
    [true, false].map(|by_blocks| {
        let mut notes = Notes { bits, ..Notes::default() };
        let functions = names.map(WalkedFunctions::named).unwrap_or_default();
        let mut state = State { functions, ..State::new(&mut notes) };
        let (config, mut progress) = (Config::default(), Progress::hidden());
        if by_blocks {
            walk(&made.trace, image, config, &mut progress, &mut state);
        } else {
            let clock = TraceClock::INSTRUCTIONS;
            walk_by_insns(&made.trace, image, config, clock, &mut progress, &mut state);
        }
        let end = Happening::End(state.at);
        state.say(end);
        state.unwind(0);
        notes.told
    })
}

#[test]
fn block_by_block_the_same_happens_as_instruction_by_instruction() {
    let (mut happenings, mut places, mut losses) = (0, 0, 0);
    for made in made_traces(12) {
        let functions = made.program.functions();
        // Some have no name.
        let named = functions.iter().enumerate().filter(|(number, _)| number % 5 > 0);
        let named: Vec<_> =
            named.map(|(_, function)| ("f", *function.range.start(), *function.range.end() + 1)).collect();
        let names = TracedSymbols::known(&named, &[]);
        for (names, bits) in [(None, None), (Some(&names), None), (None, Some(4)), (Some(&names), Some(6))] {
            let [by_blocks, by_insns] = told(&made, names, bits);
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
                    Told::Happens(_, Happening::Loss(_)) => losses += 1,
                    Told::Happens(..) => happenings += 1,
                    Told::At(..) => places += 1,
                }
            }
        }
    }
    println!("{happenings} happenings, {places} places, {losses} losses");
    assert!(happenings > 10_000 && places > 10_000 && losses > 30);
}
