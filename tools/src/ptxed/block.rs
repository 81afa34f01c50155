//! Blocks: where one ends and the next begins.
//!
//! Without an event to come to, a block decoder remembers for each instruction it has passed where its block went on;
//! code that is executed again makes longer blocks than code that is new.

use pugmark_decoder_core::event::{Event, EventKind};
use pugmark_decoder_core::flow::Insn;
use pugmark_decoder_core::image::Window;
use pugmark_decoder_core::insn::Class;
use std::collections::HashSet;

/// The most instructions of a block.
const MOST: u32 = 65535;
/// The most new instructions of a block.
const MOST_NEW: u32 = 1024;

/// Finds blocks in a flow of instructions.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Near calls end blocks.
    end_on_call: bool,
    /// Near jumps end blocks.
    end_on_jump: bool,
    /// The instructions that a block went through with no event to come, by where their bytes are.
    known: HashSet<usize>,
    current: Option<Block>,
    /// The last block was ended by a direct branch on the way to an event: the event may still be of it.
    reaches: bool,
    /// The instructions of new code that are known once it is known where its block goes on.
    filling: Vec<usize>,
}

/// The block so far.
#[derive(Clone, Copy, Debug)]
struct Block {
    insns: u32,
    /// New instructions since the block left known ones.
    new: u32,
    walk: Walk,
    /// Where the section is that it lies in.
    section: (u64, *const u8),
}

/// What the decoder is on its way to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// A branch that the trace decides.
    Branch,
    /// An event.
    Event,
    /// An event of the instruction at this address: the way goes through it.
    Through(u64),
    /// A trigger that fired so many instructions on. They are counted one by one, and no call or jump among them ends a
    /// block.
    Count,
}

impl Course {
    /// To the event that comes next, if there is one.
    pub(super) fn to(event: Option<&Event>) -> Self {
        let Some(event) = event else { return Self::Branch };
        match (event.kind, event.ip) {
            (EventKind::Trigger { icnt: Some(_), .. }, _) => Self::Count,
            (EventKind::Ptwrite(_) | EventKind::Iret | EventKind::Uiret | EventKind::Vmentry, Some(ip)) => {
                Self::Through(ip)
            }
            _ => Self::Event,
        }
    }

    /// Whether a direct branch to `target` may end a block.
    fn may_end(self, target: u64) -> bool {
        match self {
            Self::Branch | Self::Event => true,
            Self::Through(ip) => target != ip,
            Self::Count => false,
        }
    }
}

/// How a block goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// To an event.
    ToEvent,
    /// Over instructions that are known.
    Known,
    /// Over new ones.
    New,
}

impl Blocks {
    /// Nothing is known yet. Near calls and near jumps end blocks if asked to.
    pub(super) fn new(end_on_call: bool, end_on_jump: bool) -> Self {
        Self {
            end_on_call,
            end_on_jump,
            known: HashSet::new(),
            current: None,
            reaches: false,
            filling: Vec::new(),
        }
    }

    /// The block ends here: an event, a synchronisation.
    pub(super) fn end(&mut self) {
        self.known.extend(self.filling.drain(..));
        self.current = None;
        self.reaches = false;
    }

    /// The block ends in an error.
    pub(super) fn fail(&mut self) {
        // Only where it was to be decided how to go on is known.
        self.known.extend(self.filling.pop());
        self.filling.clear();
        self.current = None;
        self.reaches = false;
    }

    /// Whether a block is open that the next instruction may belong to.
    pub(super) fn is_open(&self) -> bool {
        self.current.is_some()
    }

    /// Whether an event that comes now, and has its place on the way, is of the last block.
    pub(super) fn reaches_event(&self) -> bool {
        self.is_open() || self.reaches
    }

    /// Takes the next instruction, which lies in `window`; `target` is where it goes as a direct branch. Whether it
    /// begins a block.
    pub(super) fn add(
        &mut self,
        insn: &Insn,
        target: Option<u64>,
        window: Window<'_>,
        course: Course,
    ) -> bool {
        let section = (window.base, window.bytes.as_ptr());
        let open = self.current.take().filter(|block| block.section == section && block.insns < MOST);
        if open.is_none() {
            self.known.extend(self.filling.drain(..));
        }
        let begins = open.is_none();
        let mut block = open.unwrap_or_else(|| {
            let walk = match course {
                Course::Event | Course::Through(_) | Course::Count => Walk::ToEvent,
                Course::Branch if self.known.contains(&place(insn.ip, window)) => Walk::Known,
                Course::Branch => Walk::New,
            };
            Block { insns: 0, new: 0, walk, section }
        });
        block.insns += 1;
        let next = insn.ip.wrapping_add(insn.len.into());
        let behind = match insn.class {
            Class::NearJump | Class::NearCall => target.unwrap_or(next),
            _ => next,
        };
        let crosses = window.from(insn.ip).len() < insn.len.into();
        let mut ends = crosses
            || match insn.class {
                Class::Other | Class::Ptwrite => false,
                Class::NearCall => self.end_on_call && course.may_end(behind),
                Class::NearJump => self.end_on_jump && course.may_end(behind),
                _ => true,
            };
        if block.walk == Walk::New {
            self.filling.push(place(insn.ip, window));
            block.new += 1;
            ends |= match insn.class {
                Class::NearCall => true,
                Class::NearJump => behind < next,
                _ => false,
            } || block.new == MOST_NEW;
        }
        if block.walk != Walk::ToEvent {
            let inside = !window.from(behind).is_empty();
            ends |= !inside;
            let known = inside && self.known.contains(&place(behind, window));
            block.walk = match (known, block.walk) {
                (true, _) => Walk::Known,
                (false, Walk::New) => Walk::New,
                (false, _) => {
                    block.new = 0;
                    Walk::New
                }
            };
        }
        let is_direct = matches!(insn.class, Class::NearCall | Class::NearJump);
        self.reaches = ends && is_direct && block.walk == Walk::ToEvent;
        self.current = (!ends).then_some(block);
        begins
    }
}

/// The address of the byte that `ip` names: the same wherever a section is mapped.
fn place(ip: u64, window: Window<'_>) -> usize {
    window.from(ip).as_ptr() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::mode::ExecMode;

    const BASE: u64 = 0x1000;
    static BYTES: [u8; 0x2000] = [0x90; 0x2000];

    /// The lengths of the blocks of NOPs, the last one left out, when these addresses are executed one after the other.
    fn lengths(blocks: &mut Blocks, course: Course, ips: impl Iterator<Item = u64>) -> Vec<usize> {
        let window = Window { base: BASE, bytes: &BYTES };
        let begins = ips.map(|ip| {
            let insn = Insn { ip, len: 1, class: Class::Other, mode: ExecMode::Bits64, speculative: false };
            blocks.add(&insn, None, window, course)
        });
        let begins: Vec<_> = begins.collect();
        let at: Vec<_> = (0..begins.len()).filter(|index| begins[*index]).collect();
        at.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    #[test]
    fn new_code_is_counted_from_where_known_code_was_left() {
        let new = MOST_NEW as usize;
        let all = || BASE..BASE + 0x2000;
        assert_eq!(lengths(&mut Blocks::new(false, false), Course::Branch, all()), [new; 7]);
        // To an event there is no such limit.
        assert_eq!(lengths(&mut Blocks::new(false, false), Course::Event, all()), [0; 0]);

        let mut blocks = Blocks::new(false, false);
        lengths(&mut blocks, Course::Branch, BASE + 100..BASE + 200);
        blocks.end();
        // A hundred new ones, a hundred known ones, and new ones again.
        assert_eq!(lengths(&mut blocks, Course::Branch, all())[..2], [200 + new, new]);
    }

    #[test]
    fn an_error_ends_a_block_and_what_was_new_in_it_stays_new() {
        let mut blocks = Blocks::new(false, false);
        lengths(&mut blocks, Course::Branch, BASE..BASE + 100);
        assert!(blocks.is_open());
        blocks.fail();
        assert!(!blocks.is_open() && !blocks.reaches_event());
        // Only the last one is known, and new ones are counted from there.
        let found = lengths(&mut blocks, Course::Branch, BASE..BASE + 0x2000);
        assert_eq!(found[..2], [100 + MOST_NEW as usize, MOST_NEW as usize]);
    }

    #[test]
    fn a_block_has_no_more_than_the_most_instructions() {
        let round = BASE..BASE + 0x1000;
        let rounds = || (0..40).flat_map(|_| round.clone());
        assert_eq!(lengths(&mut Blocks::new(false, false), Course::Event, rounds()), [MOST as usize; 2]);
    }
}
