//! Output formats of `pugmark coverage`.

use super::{
    blocks::{BasicBlock, FileBlocks},
    executed::Executed,
};
use crate::symbols::{SourceLine, SourceLines, TracedSymbols};
use crate::text::printable;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::Path,
};

/// A run, and the one that it is compared with.
pub(super) struct Report<'a> {
    pub(super) executed: &'a Executed,
    pub(super) other: Option<&'a Executed>,
    pub(super) blocks: Option<&'a FileBlocks>,
    /// The lines of the blocks' file, and its load bias.
    pub(super) source: Option<(&'a SourceLines, u64)>,
    /// The functions of all that was traced.
    pub(super) names: &'a [TracedSymbols],
}

/// The blocks of a function or section, and those that were executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    blocks: usize,
    hit: usize,
    /// In the other run.
    other: usize,
}

impl Executed {
    /// Returns the number of times that a block was entered.
    fn count(&self, block: &BasicBlock) -> u64 {
        self.insns.get(&block.addresses.start).copied().unwrap_or_default()
    }
}

impl Report<'_> {
    fn all_blocks(&self) -> impl Iterator<Item = (&FileBlocks, &BasicBlock)> {
        self.blocks.into_iter().flat_map(|blocks| blocks.blocks.iter().map(move |block| (blocks, block)))
    }

    /// Returns the number of times that a block was entered in each run.
    fn counts(&self, block: &BasicBlock) -> (u64, u64) {
        (self.executed.count(block), self.other.map_or(0, |other| other.count(block)))
    }

    fn shares(&self) -> (Share, BTreeMap<usize, Share>) {
        let (mut all, mut pieces) = (Share::default(), BTreeMap::<usize, Share>::new());
        for (_, block) in self.all_blocks() {
            let (hit, other) = self.counts(block);
            for share in [&mut all, pieces.entry(block.piece).or_default()] {
                share.blocks += 1;
                share.hit += usize::from(hit > 0);
                share.other += usize::from(other > 0);
            }
        }
        (all, pieces)
    }

    /// Returns a line's first characters; `None` if it is not printed. With another run only differences are printed.
    pub(super) fn sign(&self, mine: bool, others: bool) -> Option<&'static str> {
        match (self.other, mine, others) {
            (None, ..) => Some(""),
            (_, true, false) => Some("- "),
            (_, false, true) => Some("+ "),
            _ => None,
        }
    }

    /// Writes a line for each executed function; with another run, for each whose executed blocks differ.
    pub(super) fn functions(&self, out: &mut dyn Write) -> io::Result<()> {
        let (all, pieces) = self.shares();
        let Some(blocks) = self.blocks else { return Ok(()) };
        let mut rows: Vec<_> =
            pieces.into_iter().map(|(piece, share)| (share, &blocks.pieces[piece])).collect();
        rows.sort_by_key(|(_, piece)| piece.addresses.start);
        let executed = rows.iter().filter(|(share, _)| share.hit > 0).count();
        let percent = |hit: usize| hit as f64 * 100.0 / all.blocks.max(1) as f64;
        match self.other {
            None => writeln!(out, "   hit  blocks       %  function")?,
            Some(_) => writeln!(out, "     -       +  blocks  function")?,
        }
        for (Share { blocks, hit, other }, piece) in rows {
            match self.other {
                None if hit > 0 => {
                    writeln!(
                        out,
                        "{hit:6}  {blocks:6}  {:6.1}  {}",
                        hit as f64 * 100.0 / blocks as f64,
                        piece.name
                    )?;
                }
                Some(_) if self.differs(piece) => {
                    writeln!(out, "{hit:6}  {other:6}  {blocks:6}  {}", piece.name)?
                }
                _ => {}
            }
        }
        let sign = if self.other.is_some() { "- " } else { "" };
        let Share { blocks, hit, other } = all;
        writeln!(out, "{sign}{hit} of {blocks} blocks hit ({:.1} %), in {executed} functions", percent(hit))?;
        if self.other.is_some() {
            writeln!(out, "+ {other} of {blocks} blocks hit ({:.1} %)", percent(other))?;
        }
        Ok(())
    }

    /// Returns true if the runs have executed different blocks of a function.
    fn differs(&self, piece: &super::blocks::Piece) -> bool {
        let inside = self.all_blocks().filter(|(_, block)| piece.addresses.contains(&block.addresses.start));
        inside.map(|(_, block)| self.counts(block)).any(|(mine, other)| (mine > 0) != (other > 0))
    }

    /// Writes a line for each block, with its line of source if that is known.
    pub(super) fn blocks(&self, out: &mut dyn Write) -> io::Result<()> {
        for (blocks, block) in self.all_blocks() {
            let (mine, other) = self.counts(block);
            let Some(sign) = self.sign(mine > 0, other > 0) else { continue };
            let (from, to, name) = (block.addresses.start, block.addresses.end, blocks.name(block));
            let word = if mine.max(other) > 0 { "hit" } else { "missed" };
            write!(out, "{sign}{word:6} {from:#x}-{to:#x} {} {name}", mine.max(other))?;
            match self.line(from) {
                Some(line) => writeln!(out, "  {line}")?,
                None => writeln!(out)?,
            }
        }
        Ok(())
    }

    /// Writes a line for each branch: its address, its target and its count, and the functions of both places if known.
    pub(super) fn edges(&self, out: &mut dyn Write) -> io::Result<()> {
        let none = BTreeMap::new();
        let others = self.other.map_or(&none, |other| &other.edges);
        let mut all: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for (edge, count) in &self.executed.edges {
            all.entry(*edge).or_default().0 = *count;
        }
        for (edge, count) in others {
            all.entry(*edge).or_default().1 = *count;
        }
        for ((from, to), (mine, other)) in all {
            if let Some(sign) = self.sign(mine > 0, other > 0) {
                write!(out, "{sign}{from:#x} {to:#x} {}", mine.max(other))?;
                match [from, to].map(|ip| self.place(ip)) {
                    [None, None] => writeln!(out)?,
                    places => {
                        let [from, to] = places.map(|place| place.unwrap_or_else(|| "[unknown]".into()));
                        writeln!(out, "  {from} -> {to}")?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the line of source at an address of the blocks' file.
    fn line(&self, ip: u64) -> Option<SourceLine> {
        let (source, moved) = self.source?;
        source.find(ip.wrapping_sub(moved)).first()?.line.clone()
    }

    /// Returns the function at an address, and the offset of the address in it.
    fn place(&self, ip: u64) -> Option<String> {
        self.names.iter().find(|names| names.function(ip).is_some()).map(|names| names.place(ip))
    }

    /// Writes one JSON object.
    pub(super) fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let (all, _) = self.shares();
        let run = |executed: &Executed| {
            let edge = |((from, to), count): (&(u64, u64), &u64)| json!([from, to, count]);
            json!({
                "instructions": executed.insns.values().sum::<u64>(),
                "addresses": executed.insns.len(),
                "errors": executed.errors,
                "edges": executed.edges.iter().map(edge).collect::<Vec<_>>(),
            })
        };
        let block = |(blocks, block): (&FileBlocks, &BasicBlock)| {
            let (count, other) = self.counts(block);
            let mut object = json!({ "from": block.addresses.start, "to": block.addresses.end,
                "name": blocks.name(block), "count": count });
            if self.other.is_some() {
                object["other"] = other.into();
            }
            object
        };
        let mut object = run(self.executed);
        if self.blocks.is_some() {
            object["blocks_hit"] = all.hit.into();
            object["blocks"] = Value::Array(self.all_blocks().map(block).collect());
        }
        if let Some(other) = self.other {
            object["other"] = run(other);
        }
        writeln!(out, "{object}")
    }

    /// Writes a drcov file, version 2, with the blocks that were hit.
    ///
    /// Source: DynamoRIO, ext/drcovlib: a table of modules as text, then 8 bytes for each block: its offset in the
    /// module (4), its size (2), the module's number (2).
    pub(super) fn drcov(&self, module: &Path, moved: u64, out: &mut dyn Write) -> io::Result<()> {
        let Some(blocks) = self.blocks else { return Ok(()) };
        let end = blocks.pieces.iter().map(|piece| piece.addresses.end).max().unwrap_or(moved);
        let mut records = vec![];
        for (_, block) in self.all_blocks().filter(|(_, block)| self.executed.count(block) > 0) {
            let mut from = block.addresses.start;
            // A size has 16 bits.
            while from < block.addresses.end {
                let size = (block.addresses.end - from).min(u16::MAX.into());
                let start = u32::try_from(from.wrapping_sub(moved)).map_err(io::Error::other)?;
                records.push((start, size as u16));
                from += size;
            }
        }
        let path = std::path::absolute(module)?;
        writeln!(out, "DRCOV VERSION: 2\nDRCOV FLAVOR: pugmark\nModule Table: version 2, count 1")?;
        writeln!(out, "Columns: id, base, end, entry, checksum, timestamp, path")?;
        writeln!(
            out,
            " 0, {moved:#018x}, {end:#018x}, {:#018x}, 0x00000000, 0x00000000, {}",
            0,
            printable(&path.display().to_string())
        )?;
        writeln!(out, "BB Table: {} bbs", records.len())?;
        for (start, size) in records {
            out.write_all(&start.to_le_bytes())?;
            out.write_all(&size.to_le_bytes())?;
            out.write_all(&0_u16.to_le_bytes())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_file::{GLOBAL, ObjectFile};

    /// At 1000 `first`: xor eax, eax; je 1005. Then hlt, and at 1005 `second`: nop; jmp 1000; call 1010; jmp rax.
    const CODE: &[u8] = &[0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8, 0xe8, 3, 0, 0, 0, 0xff, 0xe0];

    /// Returns one block of `first`, those of `second` at 1005, 1008 and 100d, and the section at 3000: ret and nop.
    fn file_blocks(moved: u64) -> FileBlocks {
        let symbols = [("first", 0x1000, 4, GLOBAL, 2), ("second", 0x1005, 10, GLOBAL, 2)];
        let pieces: &[(u64, u64, &[u8])] = &[(0x2000, 0x3000, &[0xc3, 0x90]), (0x1000, 0x1000, CODE)];
        let file = ObjectFile { pieces, symbols: &symbols }.bytes();
        FileBlocks::of(&object::File::parse(&*file).unwrap(), moved).unwrap()
    }

    fn executed(insns: &[(u64, u64)], edges: &[((u64, u64), u64)], errors: usize) -> Executed {
        Executed {
            insns: insns.iter().copied().collect(),
            edges: edges.iter().copied().collect(),
            errors,
            ..Executed::default()
        }
    }

    /// Returns a run that has entered three blocks, and one that has entered four.
    fn runs() -> [Executed; 2] {
        let one = executed(
            &[(0x1000, 3), (0x1002, 3), (0x1005, 2), (0x1006, 2), (0x100d, 1)],
            &[((0x1002, 0x1005), 2), ((0x1006, 0x1000), 1)],
            0,
        );
        let other = executed(
            &[(0x1000, 1), (0x1002, 1), (0x1005, 5), (0x1008, 4), (0x3000, 6)],
            &[((0x1002, 0x1005), 7), ((0x1002, 0x1004), 4)],
            2,
        );
        [one, other]
    }

    impl<'a> Report<'a> {
        /// Reports a run without another one to compare with.
        fn of(executed: &'a Executed) -> Self {
            Self { executed, other: None, blocks: None, source: None, names: &[] }
        }
    }

    type Print = fn(&Report<'_>, &mut dyn Write) -> io::Result<()>;

    /// Prints the first run alone, and the comparison of both runs.
    fn printed(print: Print) -> [String; 2] {
        let ([one, other], blocks) = (runs(), file_blocks(0));
        [None, Some(&other)].map(|other| {
            let mut text = vec![];
            print(&Report { other, blocks: Some(&blocks), ..Report::of(&one) }, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        })
    }

    #[test]
    fn functions_have_the_share_of_their_blocks_and_of_two_runs_those_that_differ() {
        let [alone, both] = printed(|report, mut out| report.functions(&mut out));
        let expected = "   hit  blocks       %  function\n     1       1   100.0  first\n     \
                        2       3    66.7  second\n3 of 6 blocks hit (50.0 %), in 2 functions\n";
        assert_eq!(alone, expected);
        let expected = "     -       +  blocks  function\n     2       2       3  second\n     \
                        0       1       2  code\n- 3 of 6 blocks hit (50.0 %), in 2 functions\n\
                        + 4 of 6 blocks hit (66.7 %)\n";
        assert_eq!(both, expected);
    }

    #[test]
    fn blocks_were_hit_or_missed_and_of_two_runs_only_one_has_hit_them() {
        let [alone, both] = printed(|report, mut out| report.blocks(&mut out));
        let expected = "hit    0x1000-0x1004 3 first\nhit    0x1005-0x1008 2 second\n\
                        missed 0x1008-0x100d 0 second+0x3\nhit    0x100d-0x100f 1 second+0x8\n\
                        missed 0x3000-0x3001 0 code\nmissed 0x3001-0x3002 0 code+0x1\n";
        assert_eq!(alone, expected);
        let expected = "+ hit    0x1008-0x100d 4 second+0x3\n- hit    0x100d-0x100f 1 second+0x8\n\
                        + hit    0x3000-0x3001 6 code\n";
        assert_eq!(both, expected);
    }

    #[test]
    fn edges_are_counted_and_of_two_runs_only_one_has_taken_them() {
        let [alone, both] = printed(|report, mut out| report.edges(&mut out));
        assert_eq!(alone, "0x1002 0x1005 2\n0x1006 0x1000 1\n");
        assert_eq!(both, "+ 0x1002 0x1004 4\n- 0x1006 0x1000 1\n");
        // Each trace may know other functions.
        let names = [("first", 0x1000, 0x1004), ("second", 0x1005, 0x100f)];
        let names = names.map(|function| TracedSymbols::known(&[function], &[]));
        let mut text = vec![];
        let [one, other] = &runs();
        Report { other: Some(other), names: &names, ..Report::of(one) }.edges(&mut text).unwrap();
        let expected = "+ 0x1002 0x1004 4  first+0x2 -> [unknown]\n- 0x1006 0x1000 1  second+0x1 -> first\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn an_object_has_all_of_both_runs() {
        let [alone, both] = printed(|report, mut out| report.json(&mut out));
        let [alone, both]: [Value; 2] = [&alone, &both].map(|text| serde_json::from_str(text).unwrap());
        let blocks = |with_other: bool| -> Vec<Value> {
            let rows = [
                (0x1000, 0x1004, "first", 3, 1),
                (0x1005, 0x1008, "second", 2, 5),
                (0x1008, 0x100d, "second+0x3", 0, 4),
                (0x100d, 0x100f, "second+0x8", 1, 0),
                (0x3000, 0x3001, "code", 0, 6),
                (0x3001, 0x3002, "code+0x1", 0, 0),
            ];
            let row = |(from, to, name, count, other)| match with_other {
                false => json!({ "from": from, "to": to, "name": name, "count": count }),
                true => json!({ "from": from, "to": to, "name": name, "count": count, "other": other }),
            };
            rows.into_iter().map(row).collect()
        };
        let mut expected = json!({
            "instructions": 11, "addresses": 5, "errors": 0, "edges": [[0x1002, 0x1005, 2], [0x1006, 0x1000, 1]],
            "blocks_hit": 3, "blocks": blocks(false),
        });
        assert_eq!(alone, expected);
        expected["blocks"] = blocks(true).into();
        expected["other"] = json!({
            "instructions": 17, "addresses": 5, "errors": 2, "edges": [[0x1002, 0x1004, 4], [0x1002, 0x1005, 7]],
        });
        assert_eq!(both, expected);
        // Without a file there are no blocks.
        let mut text = vec![];
        Report::of(&runs()[0]).json(&mut text).unwrap();
        let object: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((object.get("blocks"), object.get("blocks_hit")), (None, None));
    }

    #[test]
    fn a_drcov_file_has_the_blocks_that_were_hit_by_their_place_in_the_module() {
        let blocks = file_blocks(0x40_0000);
        let hit = executed(&[(0x40_1000, 1), (0x40_1008, 9), (0x40_3001, 1)], &[], 0);
        let report = Report { blocks: Some(&blocks), ..Report::of(&hit) };
        let mut file = vec![];
        report.drcov(Path::new("/a/program"), 0x40_0000, &mut file).unwrap();
        let text = "DRCOV VERSION: 2\nDRCOV FLAVOR: pugmark\nModule Table: version 2, count 1\n\
                    Columns: id, base, end, entry, checksum, timestamp, path\n \
                    0, 0x0000000000400000, 0x0000000000403002, 0x0000000000000000, 0x00000000, 0x00000000, /a/program\n\
                    BB Table: 3 bbs\n";
        let records = b"\0\x10\0\0\x04\0\0\0\x08\x10\0\0\x05\0\0\0\x01\x30\0\0\x01\0\0\0";
        assert_eq!(file, [text.as_bytes(), records].concat());
    }

    #[test]
    fn a_block_that_is_longer_than_a_size_of_16_bits_is_several_records() {
        let nops = vec![0x90; 0x1_ffff];
        let file = ObjectFile { pieces: &[(0x1000, 0, &nops)], symbols: &[] }.bytes();
        let blocks = FileBlocks::of(&object::File::parse(&*file).unwrap(), 0).unwrap();
        let hit = executed(&[(0, 1)], &[], 0);
        let mut file = vec![];
        let report = Report { blocks: Some(&blocks), ..Report::of(&hit) };
        report.drcov(Path::new("/a"), 0, &mut file).unwrap();
        let table = b"BB Table: 3 bbs\n\0\0\0\0\xff\xff\0\0\xff\xff\0\0\xff\xff\0\0\xfe\xff\x01\0\x01\0\0\0";
        assert!(file.ends_with(table), "{:x?}", &file[file.len() - 48..]);
    }
}
