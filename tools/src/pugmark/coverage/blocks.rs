//! The basic blocks of an ELF file, and where it was loaded.
//!
//! Blocks are found by a linear sweep: each function of the symbol table from its first instruction to its last,
//! and each executable section without functions from its beginning to its end. A block ends after a branch or a call,
//! and where a direct branch of the same piece leads to. What only indirect branches reach is not known before
//! it is executed: [`FileBlocks::split`] cuts blocks there.

use crate::symbols::{extent, functions};
use crate::text::printable;
use anyhow::{Context, Result};
use object::{Object, ObjectSection, SectionFlags, elf::SHF_EXECINSTR};
use pugmark_decoder_core::{
    insn::{self, Class},
    mode::ExecMode,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A basic block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BasicBlock {
    /// Its addresses.
    pub(crate) addresses: Range<u64>,
    /// The number of its function or section, in [`FileBlocks::pieces`].
    pub(crate) piece: usize,
}

/// A function, or a section without functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) name: String,
    pub(crate) addresses: Range<u64>,
}

/// The basic blocks of an ELF file, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileBlocks {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) blocks: Vec<BasicBlock>,
    /// The addresses of all instructions.
    insns: BTreeSet<u64>,
    /// The branches among them.
    branches: BTreeMap<u64, Class>,
}

impl FileBlocks {
    /// Finds the blocks of a file whose addresses are moved by `moved`.
    pub(crate) fn of(file: &object::File<'_>, moved: u64) -> Result<Self> {
        let mode = if file.is_64() { ExecMode::Bits64 } else { ExecMode::Bits32 };
        let mut found = Self::default();
        let (all, mut left) = (functions(file), extent(file));
        let executable =
            |flags| matches!(flags, SectionFlags::Elf { sh_flags, .. } if sh_flags.0 & SHF_EXECINSTR.0 != 0);
        for section in file.sections().filter(|section| executable(section.flags())) {
            let name = section.name().unwrap_or("?");
            let bytes = section.data().with_context(|| format!("section {name}"))?;
            let base = section.address();
            let end = base.checked_add(bytes.len() as u64);
            let whole =
                base..end.with_context(|| format!("section {name}: it ends above the last address"))?;
            // Sections of a damaged file may be the same bytes over and over.
            left = left.checked_sub(bytes.len()).context("its sections of code overlap")?;
            let inside = all
                .range(whole.clone())
                .map(|(from, (name, end))| (*from, (name.clone(), *end.min(&whole.end))));
            let mut pieces: BTreeMap<_, _> = inside.collect();
            if pieces.is_empty() {
                pieces.insert(whole.start, (printable(name).into(), whole.end));
            }
            for (from, (name, to)) in pieces {
                let code = &bytes[(from - base) as usize..(to - base) as usize];
                found.sweep(name, from.wrapping_add(moved), code, mode);
            }
        }
        found.blocks.sort_by_key(|block| block.addresses.start);
        Ok(found)
    }

    /// Finds the blocks of a piece of code.
    fn sweep(&mut self, name: String, base: u64, code: &[u8], mode: ExecMode) {
        let addresses = base..base.saturating_add(code.len() as u64);
        let (mut insns, mut begins) = (vec![], BTreeSet::from([base]));
        let mut ip = base;
        while ip < addresses.end {
            let Ok(insn) = insn::decode(&code[(ip - base) as usize..], mode, ip) else {
                // No instruction: data, or code of another mode. The next block cannot go on with the one before.
                ip += 1;
                continue;
            };
            let next = insn.next(ip);
            insns.push((ip, next));
            if insn.class.is_branch() {
                self.branches.insert(ip, insn.class);
                begins.insert(next);
                begins.extend(insn.target.filter(|target| addresses.contains(target)));
            }
            ip = next;
        }
        let piece = self.pieces.len();
        let mut open: Option<Range<u64>> = None;
        for &(ip, next) in &insns {
            match &mut open {
                Some(block) if block.end == ip && !begins.contains(&ip) => block.end = next,
                _ => {
                    let block = open.replace(ip..next);
                    self.blocks.extend(block.map(|addresses| BasicBlock { addresses, piece }));
                }
            }
        }
        self.blocks.extend(open.map(|addresses| BasicBlock { addresses, piece }));
        self.insns.extend(insns.iter().map(|(ip, _)| *ip));
        self.pieces.push(Piece { name, addresses });
    }

    /// Cuts blocks before each of these addresses that is an instruction in the middle of one.
    pub(crate) fn split(&mut self, targets: impl Iterator<Item = u64>) {
        let targets: BTreeSet<u64> = targets.filter(|target| self.insns.contains(target)).collect();
        let split = |block: BasicBlock| {
            let BasicBlock { addresses, piece } = block;
            let inner = targets.range(addresses.start + 1..addresses.end).copied();
            let begins: Vec<u64> = [addresses.start].into_iter().chain(inner).collect();
            let ends = begins[1..].iter().copied().chain([addresses.end]);
            let blocks = begins.iter().copied().zip(ends);
            blocks.map(|(from, to)| BasicBlock { addresses: from..to, piece }).collect::<Vec<_>>()
        };
        self.blocks = std::mem::take(&mut self.blocks).into_iter().flat_map(split).collect();
    }

    /// Returns the addresses of the instructions in a range.
    pub(crate) fn insns(&self, addresses: &Range<u64>) -> impl DoubleEndedIterator<Item = u64> {
        self.insns.range(addresses.clone()).copied()
    }

    /// Returns the branch at an address.
    pub(crate) fn branch(&self, ip: u64) -> Option<Class> {
        self.branches.get(&ip).copied()
    }

    /// Returns the address of each conditional branch in a range, and that of the instruction after it.
    pub(crate) fn conditional(&self, addresses: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let conditional = self.branches.range(addresses).filter(|(_, class)| **class == Class::CondJump);
        conditional.filter_map(|(ip, _)| Some((*ip, *self.insns.range(ip + 1..).next()?)))
    }

    /// Returns the name of a block: its function or section, and how far in it is.
    pub(crate) fn name(&self, block: &BasicBlock) -> String {
        let Piece { name, addresses } = &self.pieces[block.piece];
        match block.addresses.start.wrapping_sub(addresses.start) {
            0 => name.clone(),
            offset => format!("{name}+{offset:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0: xor eax, eax; 2: je 5; 4: hlt; 5: nop; 6: jmp 0; 8: call 10; d: jmp rax.
    const CODE: &[u8] = &[0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8, 0xe8, 3, 0, 0, 0, 0xff, 0xe0];

    fn swept(base: u64, code: &[u8]) -> FileBlocks {
        let mut blocks = FileBlocks::default();
        blocks.sweep("f".into(), base, code, ExecMode::Bits64);
        blocks
    }

    fn ranges(blocks: &FileBlocks) -> Vec<(u64, u64)> {
        blocks.blocks.iter().map(|block| (block.addresses.start, block.addresses.end)).collect()
    }

    #[test]
    fn a_block_ends_after_a_branch_and_where_one_leads_to() {
        let blocks = swept(0x1000, CODE);
        let expected =
            [(0x1000, 0x1004), (0x1004, 0x1005), (0x1005, 0x1008), (0x1008, 0x100d), (0x100d, 0x100f)];
        assert_eq!(ranges(&blocks), expected);
        assert_eq!(blocks.name(&blocks.blocks[0]), "f");
        assert_eq!(blocks.name(&blocks.blocks[2]), "f+0x5");
    }

    #[test]
    fn bytes_that_are_no_instruction_are_in_no_block() {
        // 06 is not an instruction in 64-bit mode, and neither is a JMP that is cut off.
        assert_eq!(ranges(&swept(0, &[0x90, 0x06, 0x90, 0x90, 0xe9])), [(0, 1), (2, 4)]);
        assert_eq!(ranges(&swept(0, &[])), []);
    }

    #[test]
    fn a_block_that_is_entered_in_its_middle_is_two() {
        let mut blocks = swept(0x1000, CODE);
        // The second address is within an instruction, the third is where a block begins already.
        blocks.split([0x1006, 0x1007, 0x1008, 0x2000].into_iter());
        let expected = [
            (0x1000, 0x1004),
            (0x1004, 0x1005),
            (0x1005, 0x1006),
            (0x1006, 0x1008),
            (0x1008, 0x100d),
            (0x100d, 0x100f),
        ];
        assert_eq!(ranges(&blocks), expected);
    }

    #[test]
    fn the_blocks_of_a_file_are_in_order_whatever_the_order_of_its_sections() {
        use crate::object_file::{GLOBAL, ObjectFile};
        let symbols = [("first", 0x1000, 4, GLOBAL, 2), ("second", 0x1005, 10, GLOBAL, 2)];
        let pieces: &[(u64, u64, &[u8])] = &[(0x2000, 0x3000, &[0xc3, 0x90]), (0x1000, 0x1000, CODE)];
        let file = ObjectFile { pieces, symbols: &symbols }.bytes();
        let blocks = FileBlocks::of(&object::File::parse(&*file).unwrap(), 0x10).unwrap();
        let named: Vec<_> = blocks
            .blocks
            .iter()
            .map(|block| (block.addresses.start, block.addresses.end, blocks.name(block)))
            .collect();
        let expected = [
            (0x1010, 0x1014, "first"),
            (0x1015, 0x1018, "second"),
            (0x1018, 0x101d, "second+0x3"),
            (0x101d, 0x101f, "second+0x8"),
            // Without functions, a section is a piece.
            (0x3010, 0x3011, "code"),
            (0x3011, 0x3012, "code+0x1"),
        ];
        assert_eq!(named, expected.map(|(from, to, name)| (from, to, name.to_owned())));
    }
}
