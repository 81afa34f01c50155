//! What `pugmark coverage` prints.

use super::{
    blocks::{BasicBlock, FileBlocks},
    executed::Executed,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::Path,
};

/// What was executed, and what it is compared with.
pub(super) struct Report<'a> {
    pub(super) executed: &'a Executed,
    pub(super) other: Option<&'a Executed>,
    pub(super) blocks: Option<&'a FileBlocks>,
}

/// How much of a function or section was executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    blocks: usize,
    hit: usize,
    /// In the other run.
    other: usize,
}

impl Executed {
    /// How often a block was entered.
    fn count(&self, block: &BasicBlock) -> u64 {
        self.insns.get(&block.addresses.start).copied().unwrap_or_default()
    }
}

impl Report<'_> {
    fn all_blocks(&self) -> impl Iterator<Item = (&FileBlocks, &BasicBlock)> {
        self.blocks.into_iter().flat_map(|blocks| blocks.blocks.iter().map(move |block| (blocks, block)))
    }

    /// How often a block was entered in both runs.
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

    /// Whether a line is printed, and what it begins with: all that was executed, or the difference.
    fn sign(&self, mine: bool, others: bool) -> Option<&'static str> {
        match (self.other, mine, others) {
            (None, ..) => Some(""),
            (_, true, false) => Some("- "),
            (_, false, true) => Some("+ "),
            _ => None,
        }
    }

    /// A line for each function of which something was executed, or of which the runs have executed different parts.
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
            Some(_) => writeln!(out, "   hit   other  blocks  function")?,
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
        writeln!(
            out,
            "{} of {} blocks hit ({:.1} %), in {executed} functions",
            all.hit,
            all.blocks,
            percent(all.hit)
        )?;
        if self.other.is_some() {
            writeln!(
                out,
                "{} of {} in the other trace ({:.1} %)",
                all.other,
                all.blocks,
                percent(all.other)
            )?;
        }
        Ok(())
    }

    /// Whether the runs have executed different blocks of a function.
    fn differs(&self, piece: &super::blocks::Piece) -> bool {
        let inside = self.all_blocks().filter(|(_, block)| piece.addresses.contains(&block.addresses.start));
        inside.map(|(_, block)| self.counts(block)).any(|(mine, other)| (mine > 0) != (other > 0))
    }

    /// A line for each block.
    pub(super) fn blocks(&self, out: &mut dyn Write) -> io::Result<()> {
        for (blocks, block) in self.all_blocks() {
            let (mine, other) = self.counts(block);
            let Some(sign) = self.sign(mine > 0, other > 0) else { continue };
            let (from, to, name) = (block.addresses.start, block.addresses.end, blocks.name(block));
            let word = if mine.max(other) > 0 { "hit" } else { "missed" };
            writeln!(out, "{sign}{word:6} {from:#x}-{to:#x} {} {name}", mine.max(other))?;
        }
        Ok(())
    }

    /// A line for each branch: where it is, where it went, how often.
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
                writeln!(out, "{sign}{from:#x} {to:#x} {}", mine.max(other))?;
            }
        }
        Ok(())
    }

    /// One JSON object.
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

    /// A drcov file, version 2, with the blocks that were hit.
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
            path.display()
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
