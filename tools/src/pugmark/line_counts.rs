//! The counts of lines of source, of which a compiler may have made several copies.

use crate::symbols::{SourceLine, SourcePlace};
use rustc_hash::FxHashMap;
use std::{collections::BTreeMap, rc::Rc};

/// The suffix of the part of a function that compilers put aside because it is seldom executed.
const COLD: &str = ".cold";

/// The counts of a line.
#[derive(Clone, Debug, Default)]
struct CountedLine {
    /// Executed instructions.
    instructions: u64,
    /// The count of the instruction that was executed most, of each copy of the line.
    copies: FxHashMap<(Rc<str>, Vec<SourcePlace>), u64>,
}

/// The counts of lines, by file and number.
#[derive(Clone, Debug, Default)]
pub(super) struct LineCounts(BTreeMap<(Rc<str>, u32), CountedLine>);

impl LineCounts {
    /// Adds instructions that are next to each other, of which `all` were executed, the most frequent one `most` times.
    /// `function` is the one that they are in, and `source` those of the source, the innermost first.
    pub(super) fn add(&mut self, function: &Rc<str>, source: &[SourcePlace], all: u64, most: u64) {
        let [SourcePlace { line: Some(line), .. }, callers @ ..] = source else { return };
        let counted = self.0.entry((line.file.clone(), line.line)).or_default();
        counted.instructions += all;
        if most > 0 {
            let function =
                function.split_once(COLD).map_or_else(|| function.clone(), |(begin, _)| begin.into());
            let known = counted.copies.entry((function, callers.to_vec())).or_default();
            *known = most.max(*known);
        }
    }

    /// Returns each line with the number of its executed instructions, and with how often it was executed: a copy as
    /// often as the one of its instructions that was executed most, and all copies together.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SourceLine, u64, u64)> {
        self.0.iter().map(|((file, line), counted)| {
            let line = SourceLine { file: file.clone(), line: *line };
            (line, counted.instructions, counted.copies.values().sum())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(function: &str, line: u32) -> SourcePlace {
        let line = SourceLine { file: "a.c".into(), line };
        SourcePlace { function: Some(function.into()), line: Some(line) }
    }

    #[test]
    fn a_line_was_executed_as_often_as_all_its_copies_together() {
        let mut counts = LineCounts::default();
        let [f, g, cold]: [Rc<str>; 3] = ["f", "g", "f.cold"].map(Rc::from);
        // The line is in a function of its own, twice in f, and in g; a part of one copy in f was put aside.
        counts.add(&"leaf".into(), &[place("leaf", 3)], 10, 5);
        counts.add(&f, &[place("leaf", 3), place("f", 10)], 6, 3);
        counts.add(&f, &[place("leaf", 3), place("f", 10)], 4, 4);
        counts.add(&cold, &[place("leaf", 3), place("f", 10)], 1, 1);
        counts.add(&f, &[place("leaf", 3), place("f", 11)], 7, 7);
        counts.add(&g, &[place("leaf", 3), place("g", 10)], 0, 0);
        counts.add(&g, &[SourcePlace::default()], 9, 9);
        let found: Vec<_> = counts.iter().map(|(line, all, most)| (line.line, all, most)).collect();
        assert_eq!(found, [(3, 28, 5 + 4 + 7)]);
    }
}
