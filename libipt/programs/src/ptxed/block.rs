//! Finds the boundaries of the blocks of instructions that libipt's block decoder returns.
//!
//! While no event is pending, libipt's block decoder caches for each instruction how its block continues. Code that is
//! executed again therefore makes longer blocks than new code.

use pugmark_decoder_core::event::{Event, EventKind};
use pugmark_decoder_core::flow::ExecutedInsn;
use pugmark_decoder_core::image::Window;
use pugmark_decoder_core::insn::Class;
use std::collections::HashSet;

/// The maximum number of instructions in a block.
const MAX_INSNS: u32 = 65535;
/// The maximum number of new instructions in a block.
const MAX_NEW_INSNS: u32 = 1024;

/// Finds blocks in a flow of instructions.
#[derive(Debug)]
pub(super) struct BlockFinder {
    /// True if near calls end blocks.
    end_on_call: bool,
    /// True if near jumps end blocks.
    end_on_jump: bool,
    /// The known instructions, which a block has passed with no event pending, by the address of their bytes in this
    /// process.
    known: HashSet<usize>,
    current: Option<OpenBlock>,
    /// True if a direct branch ended the last block on the way to an event, which may still belong to that block.
    reaches: bool,
    /// New instructions. They become known when the continuation of their block is known.
    new_insns: Vec<usize>,
}

/// The block so far.
#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    insns: u32,
    /// The number of new instructions since the last known one.
    new: u32,
    continuation: Continuation,
    /// The address of the block's section, and of its bytes in this process.
    section: (u64, *const u8),
}

/// The decoder's next goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// A branch whose outcome is in the trace.
    Branch,
    /// An event.
    Event,
    /// An event of the instruction at this address, which is executed on the way.
    Through(u64),
    /// A trigger that fired a given number of instructions later. The instructions up to the trigger are counted one by
    /// one, and no call or jump among them ends a block.
    Count,
}

impl Goal {
    /// Returns the goal to the next event, if there is one.
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

    /// Returns true if a direct branch to `target` may end a block.
    fn may_end(self, target: u64) -> bool {
        match self {
            Self::Branch | Self::Event => true,
            Self::Through(ip) => target != ip,
            Self::Count => false,
        }
    }
}

/// The continuation of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Continuation {
    /// The way to an event.
    ToEvent,
    /// Known instructions.
    Known,
    /// New instructions.
    New,
}

impl BlockFinder {
    /// Starts with no known instructions. Near calls and near jumps end blocks if the arguments say so.
    pub(super) fn new(end_on_call: bool, end_on_jump: bool) -> Self {
        Self {
            end_on_call,
            end_on_jump,
            known: HashSet::new(),
            current: None,
            reaches: false,
            new_insns: Vec::new(),
        }
    }

    /// Ends the block because of an event or a synchronisation.
    pub(super) fn end(&mut self) {
        self.known.extend(self.new_insns.drain(..));
        self.current = None;
        self.reaches = false;
    }

    /// Ends the block because of an error.
    pub(super) fn fail(&mut self) {
        // Only the last instruction, which precedes the error, becomes known.
        self.known.extend(self.new_insns.pop());
        self.new_insns.clear();
        self.current = None;
        self.reaches = false;
    }

    /// Returns true if a block is open that the next instruction may belong to.
    pub(super) fn is_open(&self) -> bool {
        self.current.is_some()
    }

    /// Returns true if an event that takes effect at an instruction on the way belongs to the last block.
    pub(super) fn reaches_event(&self) -> bool {
        self.is_open() || self.reaches
    }

    /// Adds the next instruction, which is in `window`. `target` is its target if it is a direct branch. Returns true
    /// if the instruction begins a block.
    pub(super) fn add(
        &mut self,
        insn: &ExecutedInsn,
        target: Option<u64>,
        window: Window<'_>,
        goal: Goal,
    ) -> bool {
        let section = (window.base, window.bytes.as_ptr());
        let open = self.current.take().filter(|block| block.section == section && block.insns < MAX_INSNS);
        if open.is_none() {
            self.known.extend(self.new_insns.drain(..));
        }
        let begins = open.is_none();
        let mut block = open.unwrap_or_else(|| {
            let continuation = match goal {
                Goal::Event | Goal::Through(_) | Goal::Count => Continuation::ToEvent,
                Goal::Branch if self.known.contains(&byte_address(insn.ip, window)) => Continuation::Known,
                Goal::Branch => Continuation::New,
            };
            OpenBlock { insns: 0, new: 0, continuation, section }
        });
        block.insns += 1;
        let next = insn.ip.wrapping_add(insn.len.into());
        let after = match insn.class {
            Class::NearJump | Class::NearCall => target.unwrap_or(next),
            _ => next,
        };
        let crosses = window.from(insn.ip).len() < insn.len.into();
        let mut ends = crosses
            || match insn.class {
                Class::Other | Class::Ptwrite => false,
                Class::NearCall => self.end_on_call && goal.may_end(after),
                Class::NearJump => self.end_on_jump && goal.may_end(after),
                _ => true,
            };
        if block.continuation == Continuation::New {
            self.new_insns.push(byte_address(insn.ip, window));
            block.new += 1;
            ends |= match insn.class {
                Class::NearCall => true,
                Class::NearJump => after < next,
                _ => false,
            } || block.new == MAX_NEW_INSNS;
        }
        if block.continuation != Continuation::ToEvent {
            let inside = !window.from(after).is_empty();
            ends |= !inside;
            let known = inside && self.known.contains(&byte_address(after, window));
            block.continuation = match (known, block.continuation) {
                (true, _) => Continuation::Known,
                (false, Continuation::New) => Continuation::New,
                (false, _) => {
                    block.new = 0;
                    Continuation::New
                }
            };
        }
        let is_direct = matches!(insn.class, Class::NearCall | Class::NearJump);
        self.reaches = ends && is_direct && block.continuation == Continuation::ToEvent;
        self.current = (!ends).then_some(block);
        begins
    }
}

/// Returns the address in this process of the byte at `ip`, which does not depend on where its section is mapped.
fn byte_address(ip: u64, window: Window<'_>) -> usize {
    window.from(ip).as_ptr() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::mode::ExecMode;

    const BASE: u64 = 0x1000;
    static BYTES: [u8; 0x2000] = [0x90; 0x2000];

    /// Executes NOPs at these addresses and returns the lengths of their blocks, except for the last one.
    fn lengths(blocks: &mut BlockFinder, goal: Goal, ips: impl Iterator<Item = u64>) -> Vec<usize> {
        let window = Window { base: BASE, bytes: &BYTES };
        let begins = ips.map(|ip| {
            let insn =
                ExecutedInsn { ip, len: 1, class: Class::Other, mode: ExecMode::Bits64, speculative: false };
            blocks.add(&insn, None, window, goal)
        });
        let begins: Vec<_> = begins.collect();
        let at: Vec<_> = (0..begins.len()).filter(|index| begins[*index]).collect();
        at.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    #[test]
    fn new_code_is_counted_from_where_known_code_was_left() {
        let new = MAX_NEW_INSNS as usize;
        let all = || BASE..BASE + 0x2000;
        assert_eq!(lengths(&mut BlockFinder::new(false, false), Goal::Branch, all()), [new; 7]);
        // The way to an event has no such limit.
        assert_eq!(lengths(&mut BlockFinder::new(false, false), Goal::Event, all()), [0; 0]);

        let mut blocks = BlockFinder::new(false, false);
        lengths(&mut blocks, Goal::Branch, BASE + 100..BASE + 200);
        blocks.end();
        // A hundred new instructions, a hundred known ones, and new ones again.
        assert_eq!(lengths(&mut blocks, Goal::Branch, all())[..2], [200 + new, new]);
    }

    #[test]
    fn an_error_ends_a_block_and_what_was_new_in_it_stays_new() {
        let mut blocks = BlockFinder::new(false, false);
        lengths(&mut blocks, Goal::Branch, BASE..BASE + 100);
        assert!(blocks.is_open());
        blocks.fail();
        assert!(!blocks.is_open() && !blocks.reaches_event());
        // Only the last one is known, so the count of new ones starts there.
        let found = lengths(&mut blocks, Goal::Branch, BASE..BASE + 0x2000);
        assert_eq!(found[..2], [100 + MAX_NEW_INSNS as usize, MAX_NEW_INSNS as usize]);
    }

    #[test]
    fn a_block_has_no_more_than_the_most_instructions() {
        let round = BASE..BASE + 0x1000;
        let rounds = || (0..40).flat_map(|_| round.clone());
        assert_eq!(
            lengths(&mut BlockFinder::new(false, false), Goal::Event, rounds()),
            [MAX_INSNS as usize; 2]
        );
    }
}
