//! The blocks that the emulator of a machine has translated, and how they are executed.

use super::super::{
    super::block::Block,
    plugin::wire::{Kind, MESSAGE, Ring, bytes},
    process::PAGE,
};
use pugmark_decoder_core::insn;
use pugmark_model::{Context, ExecMode};
use std::{collections::HashMap, rc::Rc};

/// A block with the state in which it is executed. Its addresses are offsets in the code segment.
#[derive(Debug)]
pub(super) struct MachineBlock {
    pub(super) block: Block,
    pub(super) mode: ExecMode,
    pub(super) cpl: u8,
}

/// The blocks of all processors.
pub(super) struct MachineBlocks {
    pub(super) ring: Ring,
    blocks: Vec<Defined>,
    /// The contents of pages by number, as they were reported last.
    pages: HashMap<u64, Box<[u8]>>,
}

enum Defined {
    /// Not executed yet: its linear address, the lengths of its instructions, and their bytes.
    Translated(u64, Vec<u8>, Vec<u8>),
    Executed(Rc<MachineBlock>),
}

impl MachineBlock {
    /// Returns the state before the instruction at an address of this block.
    pub(super) fn context(&self, ip: u64, cr3: u64) -> Context {
        Context { ip, cs_base: 0, cr3, cpl: self.cpl, mode: self.mode, iflag: true }
    }

    /// Returns true if its last instruction is a far transfer, which can change the level and the mode.
    pub(super) fn is_far(&self) -> bool {
        let last = self.block.len() - 1;
        insn::decode(self.block.instruction(last), self.mode, self.block.ip(last))
            .is_ok_and(|insn| insn.class.is_far())
    }

    /// Returns true if a block is executed in the same state.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (self.mode, self.cpl) == (other.mode, other.cpl)
    }
}

impl MachineBlocks {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring, blocks: vec![], pages: HashMap::new() }
    }

    /// Reads all definitions. Returns whether there were any.
    pub(super) fn read(&mut self) -> bool {
        let mut any = false;
        while let Some(begin) = self.ring.peek().filter(|begin| begin & MESSAGE != 0) {
            any = true;
            match self.ring.take(begin) {
                (Some(Kind::Block), words) => self.add(&words),
                (Some(Kind::State), words) => self.describe(&words),
                (Some(Kind::Page), words) => {
                    if let [low, high, page @ ..] = &*words {
                        let address = u64::from(*low) | u64::from(*high) << 32;
                        self.pages.insert(address / PAGE, bytes(page).into());
                    }
                }
                // The plugin writes nothing else here.
                _ => {}
            }
        }
        self.ring.release();
        any
    }

    fn add(&mut self, words: &[u32]) {
        let [_, low, high, count, rest @ ..] = words else { return };
        let rest = bytes(rest);
        let lengths = (*count as usize).min(rest.len());
        let code = rest.get(lengths.next_multiple_of(4)..).unwrap_or_default();
        let address = u64::from(*low) | u64::from(*high) << 32;
        self.blocks.push(Defined::Translated(address, rest[..lengths].to_vec(), code.to_vec()));
    }

    fn describe(&mut self, words: &[u32]) {
        let [number, how, low, high] = *words else { return };
        let Some(defined) = self.blocks.get_mut(number as usize) else { return };
        let Defined::Translated(address, lengths, code) = defined else { return };
        let mode = match how & 0xff {
            64 => ExecMode::Bits64,
            32 => ExecMode::Bits32,
            _ => ExecMode::Bits16,
        };
        let base = u64::from(low) | u64::from(high) << 32;
        let start = match mode {
            ExecMode::Bits64 => *address,
            ExecMode::Bits32 | ExecMode::Bits16 => address.wrapping_sub(base) & 0xffff_ffff,
        };
        if let Some(block) = Block::of_machine(start, lengths, code, mode) {
            *defined = Defined::Executed(Rc::new(MachineBlock { block, mode, cpl: (how >> 8) as u8 & 3 }));
        }
    }

    /// Returns a block that is executed; `None` if it was not defined.
    pub(super) fn block(&mut self, number: u32) -> Option<Rc<MachineBlock>> {
        if self.known(number).is_none() {
            self.read();
        }
        self.known(number)
    }

    /// Returns the contents of a page, as they were reported last.
    pub(super) fn page(&self, number: u64) -> Option<&[u8]> {
        self.pages.get(&number).map(|page| &**page)
    }

    /// Returns a block that was asked for before.
    pub(super) fn known(&self, number: u32) -> Option<Rc<MachineBlock>> {
        match self.blocks.get(number as usize)? {
            Defined::Executed(block) => Some(block.clone()),
            Defined::Translated(..) => None,
        }
    }
}
