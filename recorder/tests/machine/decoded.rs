//! The instructions and events that a decoder finds in a part of a recording.

use pugmark_decoder_core::{
    event::EventKind,
    flow::{FlowItem, InsnDecoder},
    hash::AddressHash,
    image::{AddressSpace, Image, Section},
};
use pugmark_recorder::{
    Part,
    files::{CODE, IMAGE, TRACE},
};
use std::fs;

/// A step of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An instruction retired.
    Executed(u64),
    /// An interrupt or exception came before the instruction at an address retired.
    Event(u64),
}

/// The steps of a processor, and the address spaces that the trace names.
#[derive(Default)]
pub(crate) struct Steps {
    pub(crate) all: Vec<Step>,
    pub(crate) spaces: Vec<u64>,
}

impl Steps {
    /// Returns the steps; of equal instructions that follow one another only the first.
    pub(crate) fn without_repetitions(&self) -> impl Iterator<Item = Step> {
        let mut last = None;
        self.all.iter().copied().filter(move |step| last.replace(*step) != Some(*step))
    }
}

/// The steps of a part, and the hash of its instructions.
pub(crate) struct Decoded {
    pub(crate) steps: Steps,
    pub(crate) hash: AddressHash,
}

/// Decodes a part.
pub(crate) fn decode(part: &Part) -> Decoded {
    let read = |name: &str| fs::read(part.dir.join(name)).unwrap();
    let (trace, code) = (read(TRACE), read(CODE));
    let image: serde_json::Value = serde_json::from_slice(&read(IMAGE)).unwrap();
    let sections = image["sections"].as_array().unwrap().iter().map(|section| {
        let number = |name: &str| section[name].as_u64().unwrap();
        let (at, len) = (number("offset") as usize, number("len") as usize);
        Section { base: number("vaddr"), bytes: &code[at..at + len], space: AddressSpace::Any }
    });
    let sections: Vec<_> = sections.collect();
    let mut decoder = InsnDecoder::new(&trace, Image::new(&sections));
    decoder.sync_forward();
    let mut found = Decoded { steps: Steps::default(), hash: AddressHash::new() };
    while let Some(item) = decoder.next().unwrap_or_else(|error| panic!("{}: {error}", part.dir.display())) {
        match item {
            FlowItem::Insn(insn) => {
                found.hash.add(insn.ip);
                found.steps.all.push(Step::Executed(insn.ip));
            }
            FlowItem::Event(event) => match event.kind {
                EventKind::AsyncBranch { from, .. } => found.steps.all.push(Step::Event(from)),
                EventKind::Paging(pip) | EventKind::AsyncPaging(pip) => found.steps.spaces.push(pip.cr3),
                _ => {}
            },
        }
    }
    found
}
