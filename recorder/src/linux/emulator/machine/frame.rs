//! Where an interrupt or exception came, as the handler's frame says.
//!
//! Source: SDM vol. 3, Interrupt and Exception Handling, "Exception- or Interrupt-Handler Procedures" and "64-Bit Mode
//! Stack Frame": the processor pushes the code segment's selector and the offset of the instruction to return to, and
//! with some exceptions an error code below.

use super::blocks::MachineBlock;
use crate::linux::block::Exit;
use pugmark_model::{DeliveryKind, ExecMode};

/// The vector of an event that nothing is known of: that of a local APIC's timer in Linux. Only event trace packets
/// would have it, which are not written.
pub(super) const UNKNOWN: u8 = crate::linux::pt_unit::TIMER_VECTOR;

/// The first values on the stack of a handler.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    vector: u16,
    has_error_code: bool,
    words: [u64; 4],
}

/// EFLAGS.VM: the interrupted code is in virtual-8086 mode, which is at level 3, whatever its segments are.
const VIRTUAL_8086: u64 = 1 << 17;

/// The place at which an event came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventPlace {
    pub(super) ip: u64,
    /// The level, if a frame says it.
    pub(super) cpl: Option<u8>,
}

impl From<u64> for EventPlace {
    fn from(ip: u64) -> Self {
        Self { ip, cpl: None }
    }
}

/// The way of a processor from one block to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// This number of instructions retired, and the last of them led there.
    ByItself { retired: usize },
    /// This number of instructions retired, and then an event came.
    Event { retired: usize, kind: DeliveryKind, vector: u8, at: EventPlace },
}

impl Came {
    /// Returns how a block was left for `next`, as far as that is known without the frame of a handler.
    pub(super) fn without_frame(before: &MachineBlock, begun: usize, next: &MachineBlock) -> Self {
        let (block, place) = (&before.block, next.block.start);
        let is_like = before.is_like(next);
        let event = |retired, kind, at| Self::Event { retired, kind, vector: UNKNOWN, at };
        let Some(last) = begun.checked_sub(1) else {
            let stays = is_like && place == block.start;
            return if stays {
                Self::ByItself { retired: 0 }
            } else {
                event(0, DeliveryKind::Interrupt, block.start.into())
            };
        };
        if begun < block.len() {
            return match place {
                _ if is_like && place == block.ip(begun) => Self::ByItself { retired: begun },
                // The emulator begins an instruction again that it has to execute in another way.
                _ if is_like && place == block.ip(last) => Self::ByItself { retired: last },
                _ => event(last, DeliveryKind::Fault, block.ip(last).into()),
            };
        }
        let is_far = before.is_far();
        if block.can_lead_to(place) && (is_like || is_far) {
            return match block.exit {
                Exit::Interrupt(vector) => {
                    let at = block.ip(last).into();
                    Self::Event { retired: last, kind: DeliveryKind::SoftwareInterrupt, vector, at }
                }
                Exit::Repeated if place == block.ip(last) => Self::ByItself { retired: last },
                _ => Self::ByItself { retired: begun },
            };
        }
        match block.exit {
            // The emulator begins an instruction again that has written to its own page, also the last one.
            _ if is_like && place == block.ip(last) => Self::ByItself { retired: last },
            Exit::Repeated => event(last, DeliveryKind::Interrupt, block.ip(last).into()),
            Exit::At(target) => event(begun, DeliveryKind::Interrupt, target.into()),
            _ => event(begun, DeliveryKind::Interrupt, block.end().into()),
        }
    }
}

impl Frame {
    /// Makes a frame of the words of a message.
    pub(super) fn new(what: u32, words: &[u32]) -> Self {
        let mut frame = Self { vector: what as u16, has_error_code: what >> 16 != 0, words: [0; 4] };
        for (word, [low, high]) in frame.words.iter_mut().zip(words.as_chunks().0) {
            *word = u64::from(*low) | u64::from(*high) << 32;
        }
        frame
    }

    /// Returns how a block of which this number of instructions began was left for the handler; `None` if the frame
    /// does not fit to it: then no event was delivered, or several.
    pub(super) fn place(&self, before: &MachineBlock, begun: usize) -> Option<Came> {
        let [with, without] = [1, 0].map(|at| {
            let [ip, cs, flags] = [at, at + 1, at + 2].map(|at| self.words[at]);
            let is_virtual = before.mode != ExecMode::Bits64 && flags & VIRTUAL_8086 != 0;
            EventPlace { ip, cpl: Some(if is_virtual { 3 } else { cs as u8 & 3 }) }
        });
        let both = if self.has_error_code { [with, without] } else { [without, with] };
        // Another reading than the vector's only counts where nothing but the address can fit.
        let vector = u8::try_from(self.vector).unwrap_or(UNKNOWN);
        came(before, begun, both[0], vector)
            .or_else(|| came(before, begun, both[1], vector).filter(|_| !goes_anywhere(before.block.exit)))
    }
}

fn goes_anywhere(exit: Exit) -> bool {
    matches!(exit, Exit::Called | Exit::Anywhere)
}

fn came(before: &MachineBlock, begun: usize, at: EventPlace, vector: u8) -> Option<Came> {
    let block = &before.block;
    let event = |retired, kind| Some(Came::Event { retired, kind, vector, at });
    let Some(last) = begun.checked_sub(1) else {
        return (at.ip == block.start).then(|| event(0, DeliveryKind::Interrupt)).flatten();
    };
    let is_at_last = at.ip == block.ip(last);
    if begun < block.len() {
        return match at.ip {
            _ if is_at_last => event(last, DeliveryKind::Fault),
            ip if ip == block.ip(begun) => event(begun, DeliveryKind::Interrupt),
            _ => None,
        };
    }
    let leads = block.can_lead_to(at.ip);
    match block.exit {
        Exit::Interrupt(vector) if at.ip == block.end() => {
            let (at, kind) = (block.ip(last), DeliveryKind::SoftwareInterrupt);
            Some(Came::Event {
                retired: last,
                kind,
                vector,
                at: EventPlace { ip: at, cpl: Some(before.cpl) },
            })
        }
        Exit::Interrupt(_) => is_at_last.then(|| event(last, DeliveryKind::Fault)).flatten(),
        Exit::Repeated if is_at_last => event(last, DeliveryKind::Interrupt),
        // Direct jumps do not fault; all others can, at their own address.
        Exit::NextOr(_) | Exit::At(_) if leads => event(begun, DeliveryKind::Interrupt),
        _ if is_at_last => event(last, DeliveryKind::Fault),
        _ if leads => event(begun, DeliveryKind::Interrupt),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::block::Block;

    const START: u64 = 0x1000;

    /// Returns a block of NOPs and a last instruction, which begins at 1002h.
    fn block(last: &[u8]) -> MachineBlock {
        let bytes = [&[0x90, 0x90], last].concat();
        let block = Block::of_machine(START, &[1, 1, last.len() as u8], &bytes, ExecMode::Bits64);
        MachineBlock { block: block.unwrap(), mode: ExecMode::Bits64, cpl: 0 }
    }

    fn event(retired: usize, kind: DeliveryKind, ip: u64) -> Option<Came> {
        Some(Came::Event { retired, kind, vector: 13, at: EventPlace { ip, cpl: Some(3) } })
    }

    #[test]
    fn the_frame_says_where_a_block_was_left() {
        use DeliveryKind::{Fault, Interrupt, SoftwareInterrupt};
        const NOP: &[u8] = &[0x90];
        const RET: &[u8] = &[0xc3];
        const JMP: &[u8] = &[0xeb, 0xfe];
        const REP: &[u8] = &[0xf3, 0xa4];
        const INT: &[u8] = &[0xcd, 0x80];
        let software = Came::Event {
            retired: 2,
            kind: SoftwareInterrupt,
            vector: 0x80,
            at: EventPlace { ip: START + 2, cpl: Some(0) },
        };
        // The last instruction, how many begun, the address in the frame, and the way.
        for (last, begun, ip, expected) in [
            (NOP, 0, START, event(0, Interrupt, START)),
            (NOP, 2, START + 1, event(1, Fault, START + 1)),
            (NOP, 2, START + 2, event(2, Interrupt, START + 2)),
            (NOP, 2, START + 3, None),
            (NOP, 3, START + 2, event(2, Fault, START + 2)),
            (NOP, 3, START + 3, event(3, Interrupt, START + 3)),
            (NOP, 3, START + 4, None),
            // A return faults, or the interrupt came where it went.
            (RET, 3, START + 2, event(2, Fault, START + 2)),
            (RET, 3, 0x7777, event(3, Interrupt, 0x7777)),
            // A jump to itself does not fault.
            (JMP, 3, START + 2, event(3, Interrupt, START + 2)),
            // Between two iterations, and after the last one.
            (REP, 3, START + 2, event(2, Interrupt, START + 2)),
            (REP, 3, START + 4, event(3, Interrupt, START + 4)),
            (INT, 3, START + 4, Some(software)),
            (INT, 3, START + 2, event(2, Fault, START + 2)),
        ] {
            let before = block(last);
            for has_error_code in [false, true] {
                // An error code that could be an address of the block's, too.
                let words = if has_error_code { [START + 7, ip, 0x33, 2] } else { [ip, 0x33, 2, 0] };
                let frame = Frame { vector: 13, has_error_code, words };
                assert_eq!(frame.place(&before, begun), expected, "{last:x?} {begun} {ip:x}");
            }
        }
        // No interrupt of hardware pushes an error code, even if it has the vector of an exception that does.
        let frame = Frame { vector: 13, has_error_code: true, words: [START + 3, 0x33, 0x202, 0] };
        assert_eq!(frame.place(&block(NOP), 3), event(3, Interrupt, START + 3));
    }

    #[test]
    fn virtual_8086_mode_is_at_level_3_whatever_its_segment_is() {
        let block = Block::of_machine(START, &[1], &[0x90], ExecMode::Bits16).unwrap();
        let before = MachineBlock { block, mode: ExecMode::Bits16, cpl: 3 };
        for (flags, cpl) in [(VIRTUAL_8086 | 2, 3), (2, 0)] {
            for has_error_code in [false, true] {
                let frame = [START + 1, 0x7c0, flags];
                let words = if has_error_code {
                    [0, frame[0], frame[1], frame[2]]
                } else {
                    [frame[0], frame[1], frame[2], 0]
                };
                let frame = Frame { vector: 13, has_error_code, words };
                let at = EventPlace { ip: START + 1, cpl: Some(cpl) };
                let expected = Came::Event { retired: 1, kind: DeliveryKind::Interrupt, vector: 13, at };
                assert_eq!(frame.place(&before, 1), Some(expected));
            }
        }
    }

    #[test]
    fn without_a_frame_the_next_block_says_it() {
        let next = |start| {
            let block = Block::of_machine(start, &[1], &[0x90], ExecMode::Bits64).unwrap();
            MachineBlock { block, mode: ExecMode::Bits64, cpl: 0 }
        };
        let event = |retired, kind, ip: u64| Came::Event { retired, kind, vector: UNKNOWN, at: ip.into() };
        let itself = |retired| Came::ByItself { retired };
        for (last, begun, place, expected) in [
            (&[0x90][..], 3, START + 3, itself(3)),
            (&[0x90], 3, 0x8000, event(3, DeliveryKind::Interrupt, START + 3)),
            (&[0x90], 2, START + 2, itself(2)),
            // The emulator begins the instruction again.
            (&[0x90], 2, START + 1, itself(1)),
            (&[0x90], 2, 0x8000, event(1, DeliveryKind::Fault, START + 1)),
            (&[0x90], 0, START, itself(0)),
            (&[0x90], 0, 0x8000, event(0, DeliveryKind::Interrupt, START)),
            (&[0xf3, 0xa4], 3, START + 2, itself(2)),
            (&[0xf3, 0xa4], 3, START + 4, itself(3)),
            // The emulator begins the last instruction again.
            (&[0xe8, 0, 0, 0, 0], 3, START + 2, itself(2)),
            (&[0xc3], 3, 0x8000, itself(3)),
            (&[0xeb, 0x10], 3, 0x8000, event(3, DeliveryKind::Interrupt, START + 0x14)),
        ] {
            assert_eq!(Came::without_frame(&block(last), begun, &next(place)), expected, "{last:x?} {begun}");
        }
        // Only a far transfer changes the level.
        let user = MachineBlock { cpl: 3, ..next(START + 3) };
        let interrupted = event(3, DeliveryKind::Interrupt, START + 3);
        assert_eq!(Came::without_frame(&block(&[0x90]), 3, &user), interrupted);
        assert_eq!(Came::without_frame(&block(&[0x48, 0xcf]), 3, &user), itself(3));
    }
}
