//! A profile for LLVM's BOLT: branches and the ways between them, by their addresses in the file, as `llvm-bolt -pa`
//! reads them.
//!
//! Source: LLVM, bolt/Profile/DataAggregator.h, `parseAggregatedLBREntry`: `B` is a branch, with its place, its target,
//! its count and how often it was mispredicted; `F` is a way without branches, with its first and last instruction and
//! its count; `X:0` is anywhere outside of the file.

use super::{blocks::FileBlocks, executed::Executed};
use pugmark_decoder_core::insn::Class::{
    CondJump, FarCall, FarJump, IndirectCall, IndirectJump, NearCall, NearJump,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

/// Writes the profile of a file whose addresses are `moved`. Returns the number of executed instructions that are in no
/// block of it.
pub(super) fn write(
    executed: &Executed,
    blocks: &FileBlocks,
    moved: u64,
    out: &mut dyn Write,
) -> io::Result<u64> {
    let count = |ip: u64| executed.insns.get(&ip).copied().unwrap_or(0);
    let place = |ip: u64| ip.wrapping_sub(moved);
    let mut left_out: u64 = executed.insns.values().sum();
    let mut jumped: BTreeMap<u64, u64> = BTreeMap::new();
    for ((from, to), count) in &executed.edges {
        if let Some(CondJump | NearJump | IndirectJump | FarJump) = blocks.branch(*from) {
            *jumped.entry(*to).or_default() += count;
        }
    }
    // Counts of each address as it was reached from other code of the file.
    let mut reached: BTreeMap<u64, u64> = BTreeMap::new();
    let mut ways = vec![];
    let mut not_taken = BTreeSet::new();
    for block in &blocks.blocks {
        let (begin, next) = (block.addresses.start, block.addresses.end);
        let insns = || blocks.insns(&block.addresses);
        left_out = left_out.saturating_sub(insns().map(count).sum());
        let Some(last) = insns().next_back().filter(|_| count(begin) > 0) else { continue };
        let goes_on = match blocks.branch(last) {
            Some(CondJump) => {
                not_taken.insert((last, next));
                executed.edges.get(&(last, next)).copied().unwrap_or(0)
            }
            // A call need not return; the code after it may have been reached by a jump.
            None | Some(NearCall | IndirectCall | FarCall) => {
                count(begin).min(count(next).saturating_sub(jumped.get(&next).copied().unwrap_or(0)))
            }
            Some(_) => 0,
        };
        *reached.entry(next).or_default() += goes_on;
        ways.push((begin, next, goes_on));
        ways.push((begin, last, count(begin).saturating_sub(goes_on)));
    }
    for (edge, count) in executed.edges.iter().filter(|(edge, _)| !not_taken.contains(edge)) {
        let (from, to) = *edge;
        *reached.entry(to).or_default() += count;
        writeln!(out, "B {:x} {:x} {count} 0", place(from), place(to))?;
    }
    for begin in blocks.pieces.iter().map(|piece| piece.addresses.start) {
        let others = count(begin).saturating_sub(reached.get(&begin).copied().unwrap_or(0));
        if others > 0 {
            writeln!(out, "B X:0 {:x} {others} 0", place(begin))?;
        }
    }
    for (from, to, count) in ways.into_iter().filter(|(from, to, count)| from != to && *count > 0) {
        writeln!(out, "F {:x} {:x} {count}", place(from), place(to))?;
    }
    Ok(left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_file::{GLOBAL, ObjectFile};

    /// 1000 `first`: xor eax, eax; jz 1005; hlt; nop; call 1010; ret. 1010 `second`: nop; jmp 1014; nop; nop; ret.
    const CODE: &[u8] = &[
        0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xe8, 5, 0, 0, 0, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0x90, 0xeb, 1,
        0x90, 0x90, 0xc3,
    ];

    #[test]
    fn branches_and_the_ways_between_them_have_the_addresses_of_the_file() {
        let symbols = [("first", 0x1000, 12, GLOBAL, 1), ("second", 0x1010, 6, GLOBAL, 1)];
        let file = ObjectFile { pieces: &[(0x1000, 0x1000, CODE)], symbols: &symbols }.bytes();
        let moved = 0x40_0000;
        let at = |ip: u64| ip + moved;
        let blocks = FileBlocks::of(&object::File::parse(&*file).unwrap(), moved).unwrap();
        // `first` was called three times from another file, and `second` once.
        let insns = [
            (0x1000, 3),
            (0x1002, 3),
            (0x1004, 1),
            (0x1005, 3),
            (0x1006, 3),
            (0x100b, 3),
            (0x1010, 4),
            (0x1011, 4),
            (0x1014, 4),
            (0x1015, 4),
            // No instruction of the file.
            (0x100c, 7),
        ];
        let edges = [
            ((0x1002, 0x1005), 2),
            ((0x1002, 0x1004), 1),
            ((0x1006, 0x1010), 3),
            ((0x1011, 0x1014), 4),
            ((0x1015, 0x100b), 3),
        ];
        let executed = Executed {
            insns: insns.into_iter().map(|(ip, count)| (at(ip), count)).collect(),
            edges: edges.into_iter().map(|((from, to), count)| ((at(from), at(to)), count)).collect(),
            calls: [at(0x1006)].into(),
            ..Executed::default()
        };
        let mut text = vec![];
        assert_eq!(write(&executed, &blocks, moved, &mut text).unwrap(), 7);
        let expected = "\
            B 1002 1005 2 0\nB 1006 1010 3 0\nB 1011 1014 4 0\nB 1015 100b 3 0\n\
            B X:0 1000 3 0\nB X:0 1010 1 0\n\
            F 1000 1004 1\nF 1000 1002 2\nF 1004 1005 1\nF 1005 100b 3\nF 1010 1011 4\nF 1014 1015 4\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    /// 1000: call 1000, which does not return; nop; 1006: jmp 1008; jmp 1005.
    #[test]
    fn a_call_that_does_not_return_and_a_jump_to_the_next_instruction_do_not_go_on() {
        let code = &[0xe8, 0xfb, 0xff, 0xff, 0xff, 0x90, 0xeb, 0, 0xeb, 0xfb];
        let symbols = [("first", 0x1000, 10, GLOBAL, 1)];
        let file = ObjectFile { pieces: &[(0x1000, 0x1000, code)], symbols: &symbols }.bytes();
        let blocks = FileBlocks::of(&object::File::parse(&*file).unwrap(), 0).unwrap();
        let executed = Executed {
            insns: [0x1000, 0x1005, 0x1006, 0x1008].map(|ip| (ip, 1)).into(),
            edges: [((0x1006, 0x1008), 1), ((0x1008, 0x1005), 1)].into(),
            ..Executed::default()
        };
        let mut text = vec![];
        assert_eq!(write(&executed, &blocks, 0, &mut text).unwrap(), 0);
        let expected = "B 1006 1008 1 0\nB 1008 1005 1 0\nB X:0 1000 1 0\nF 1005 1006 1\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
