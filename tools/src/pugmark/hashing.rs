//! Hashes the addresses of the instructions of many blocks.

use pugmark_decoder_core::{
    block::Block,
    hash::{AddressHash, Run},
    mode::ExecMode,
};
use pugmark_recorder::OFTEN;

/// 2 to this power is the number of blocks that can be remembered: more than the hot code of a large program has.
const BLOCKS: u32 = 14;

/// The hash of the addresses of the blocks' instructions. A block that comes often is hashed as one run.
///
/// A block is identified by its code, begin, mode and number of instructions.
#[derive(Debug)]
pub(super) struct Hashing {
    hash: AddressHash,
    /// The number of the code that is executed.
    image: usize,
    known: Vec<Known>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    ip: u64,
    insns: u32,
    image: usize,
    /// The block's mode; `None` if the slot is empty.
    mode: Option<ExecMode>,
    /// Executions of this block, minus those of other blocks in the same slot.
    seen: u16,
    run: Option<Box<Run>>,
}

impl Hashing {
    pub(super) fn new() -> Self {
        Self { hash: AddressHash::new(), image: 0, known: vec![Known::default(); 1 << BLOCKS] }
    }

    /// Turns to the code with this number, which the next blocks are of.
    pub(super) const fn turn_to(&mut self, image: usize) {
        self.image = image;
    }

    /// Adds the instructions of a block; `addresses` iterates over their addresses.
    #[inline]
    pub(super) fn add<I: Iterator<Item = u64>>(&mut self, block: &Block, addresses: impl Fn() -> I) {
        let key = block.ip ^ u64::from(block.insns) << 48;
        let key = key.wrapping_add((self.image as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let known = &mut self.known[(key >> (64 - BLOCKS)) as usize];
        let is_known = (known.ip, known.insns, known.mode, known.image)
            == (block.ip, block.insns, Some(block.mode), self.image);
        match &known.run {
            Some(run) if is_known => self.hash.add_run(run),
            _ => {
                addresses().for_each(|address| self.hash.add(address));
                known.meet(block, self.image, is_known, addresses);
            }
        }
    }

    pub(super) fn hash(&self) -> AddressHash {
        self.hash
    }
}

impl Known {
    fn meet<I: Iterator<Item = u64>>(
        &mut self,
        block: &Block,
        image: usize,
        is_known: bool,
        addresses: impl Fn() -> I,
    ) {
        if is_known {
            self.seen += 1;
            if self.seen == OFTEN {
                self.run = Some(Box::new(Run::new(addresses())));
            }
        } else if self.seen > 1 {
            self.seen -= 1;
        } else {
            let Block { ip, insns, mode, .. } = *block;
            *self = Self { ip, insns, image, mode: Some(mode), seen: 1, run: None };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_come_often_are_hashed_as_those_that_do_not() {
        let (mut hashing, mut plain) = (Hashing::new(), AddressHash::new());
        // Some blocks begin at the same place, some have the same length, and there are more of them than places.
        let mut random = 1_u64;
        for round in 0..60_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let often = round % 3 != 0;
            let ip = 0x40_0000 + if often { (random >> 60) * 16 } else { (random >> 40) * 16 };
            let insns = 1 + (random >> 32) as u32 % 4;
            let mode = if random >> 36 & 0xf == 0 { ExecMode::Bits32 } else { ExecMode::Bits64 };
            // Other code may be at the same place, in a block of the same length.
            let image = (random >> 44) as usize % 2;
            let width = if mode == ExecMode::Bits64 { 3 + image as u64 } else { 2 };
            let block =
                Block { ip, end_ip: 0, insns, section: 0, mode, speculative: false, truncated: false };
            let addresses = || (0..u64::from(insns)).map(move |number| ip + width * number);
            hashing.turn_to(image);
            hashing.add(&block, addresses);
            addresses().for_each(|address| plain.add(address));
            assert_eq!(hashing.hash(), plain, "{round}");
        }
        let runs = hashing.known.iter().filter(|known| known.run.is_some()).count();
        assert!(runs > 30, "{runs}");
    }
}
