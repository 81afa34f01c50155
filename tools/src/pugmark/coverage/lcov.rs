//! Lines of source: one by one, and as lcov's tracefiles have them, which `genhtml` and many other programs read.
//!
//! Source: lcov 1.16, geninfo(1), "FILES".

use super::{executed::Executed, formats::Report};
use crate::pugmark::line_counts::LineCounts;
use crate::symbols::{SourceLine, SourcePlace};
use std::{
    collections::BTreeMap,
    io::{self, Write},
    iter,
    rc::Rc,
};

/// The lines of a file of source that have code, and the functions that begin there, each with how often it was
/// executed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FileLines {
    functions: BTreeMap<(u32, String), u64>,
    lines: BTreeMap<u32, u64>,
    /// The conditional branches of each line: how often each was taken and not taken, if it was executed.
    branches: BTreeMap<u32, Vec<Option<[u64; 2]>>>,
}

impl Report<'_> {
    /// Returns the lines of the blocks' file in a run.
    fn source_files(&self, executed: &Executed) -> BTreeMap<Rc<str>, FileLines> {
        let mut files: BTreeMap<Rc<str>, FileLines> = BTreeMap::new();
        let Some((source, moved)) = self.source else { return files };
        let mut counts = LineCounts::default();
        for (blocks, piece) in
            self.blocks.iter().flat_map(|blocks| blocks.pieces.iter().map(|piece| (*blocks, piece)))
        {
            let [from, to] = [piece.addresses.start, piece.addresses.end].map(|at| at.wrapping_sub(moved));
            let (rows, function) = (source.lines(from..to), Rc::from(&*piece.name));
            for (row, line) in &rows {
                let place = row.start.wrapping_add(moved)..row.end.wrapping_add(moved);
                let (mut all, mut most) = (0, 0);
                for (_, count) in executed.insns.range(place.clone()) {
                    (all, most) = (all + count, most.max(*count));
                }
                let branches = blocks.conditional(place).map(|(ip, next)| executed.decisions(ip, next));
                let branches: Vec<_> = branches.collect();
                if !branches.is_empty() {
                    let known = &mut files.entry(line.file.clone()).or_default().branches;
                    known.entry(line.line).or_default().extend(branches);
                }
                // Where it was inlined is of interest only if it was executed.
                let inlined = if most > 0 { source.find(row.start) } else { Rc::default() };
                let own = SourcePlace { function: None, line: Some(line.clone()) };
                let chain: Vec<_> = iter::once(own).chain(inlined.iter().skip(1).cloned()).collect();
                counts.add(&function, &chain, all, most);
            }
            if let Some((_, SourceLine { file, line })) = rows.first().filter(|(row, _)| row.start <= from) {
                let count = executed.insns.get(&piece.addresses.start).copied().unwrap_or_default();
                let functions = &mut files.entry(file.clone()).or_default().functions;
                *functions.entry((*line, piece.name.clone())).or_default() += count;
            }
        }
        for (SourceLine { file, line }, _, count) in counts.iter() {
            files.entry(file).or_default().lines.insert(line, count);
        }
        files
    }

    /// Writes a line for each line of source that has code, with how often it was executed. Returns whether the file
    /// has any.
    pub(super) fn lines(&self, out: &mut dyn Write) -> io::Result<bool> {
        let files = self.source_files(self.executed);
        let others = self.other.map(|other| self.source_files(other)).unwrap_or_default();
        for (file, FileLines { lines, .. }) in &files {
            for (line, &mine) in lines {
                let other =
                    others.get(file).and_then(|file| file.lines.get(line)).copied().unwrap_or_default();
                if let Some(sign) = self.sign(mine > 0, other > 0) {
                    writeln!(out, "{sign}{:8}  {file}:{line}", mine.max(other))?;
                }
            }
        }
        Ok(!files.is_empty())
    }

    /// Writes a tracefile. Returns whether the file has lines.
    pub(super) fn lcov(&self, out: &mut dyn Write) -> io::Result<bool> {
        let files = self.source_files(self.executed);
        for (file, FileLines { functions, lines, branches }) in &files {
            writeln!(out, "TN:\nSF:{file}")?;
            for (line, name) in functions.keys() {
                writeln!(out, "FN:{line},{name}")?;
            }
            for ((_, name), count) in functions {
                writeln!(out, "FNDA:{count},{name}")?;
            }
            let hit = |counts: &mut dyn Iterator<Item = &u64>| counts.filter(|count| **count > 0).count();
            writeln!(out, "FNF:{}\nFNH:{}", functions.len(), hit(&mut functions.values()))?;
            let mut counts = vec![];
            for (line, branches) in branches {
                for (block, decisions) in branches.iter().enumerate() {
                    for branch in [0, 1] {
                        let count = decisions.map(|decisions| decisions[branch]);
                        let text = count.map_or("-".into(), |count| count.to_string());
                        writeln!(out, "BRDA:{line},{block},{branch},{text}")?;
                        counts.push(count.unwrap_or_default());
                    }
                }
            }
            writeln!(out, "BRF:{}\nBRH:{}", counts.len(), hit(&mut counts.iter()))?;
            for (line, count) in lines {
                writeln!(out, "DA:{line},{count}")?;
            }
            writeln!(out, "LF:{}\nLH:{}\nend_of_record", lines.len(), hit(&mut lines.values()))?;
        }
        Ok(!files.is_empty())
    }
}
