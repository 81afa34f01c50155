//! Computes the instructions that a tracer must trace, only from the truth and the declared filter.

use anyhow::Result;
use pugmark_protocol::{Level, SymbolRange};
use std::ops::Range;

use crate::symbols::Symbols;
use crate::truth::{Branch, BranchLevel, Record};

/// A filter as a workload declares it.
///
/// A range is given by two symbols. It holds the addresses from the first symbol up to, but not including, the second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this privilege level: 0, or 3 for all levels above 0.
    pub cpl: Option<u8>,
    /// Only under this CR3; bits 63:5 are compared.
    pub cr3: Option<u64>,
    /// Only between these symbols.
    pub range: Option<(String, String)>,
    /// Tracing stops before the first instruction between these symbols.
    pub stop: Option<(String, String)>,
}

impl Filter {
    /// Returns the addresses of the instructions that should have been traced, in order.
    ///
    /// # Errors
    /// If the image does not have a symbol of the filter.
    pub fn traced<'r>(
        &self,
        records: impl IntoIterator<Item = &'r Record>,
        symbols: &Symbols,
    ) -> Result<Vec<u64>> {
        let range = self.range.as_ref().map(|range| resolve(range, symbols)).transpose()?;
        let stop = self.stop.as_ref().map(|range| resolve(range, symbols)).transpose()?;
        Ok(records
            .into_iter()
            .take_while(|record| !stop.as_ref().is_some_and(|stop| stop.contains(&record.rip)))
            .filter(|record| !record.flags.is_software_interrupt())
            .filter(|record| self.cpl.is_none_or(|cpl| (cpl == 0) == (record.flags.cpl() == 0)))
            .filter(|record| self.cr3.is_none_or(|cr3| cr3 >> 5 == record.cr3 >> 5))
            .map(|record| record.rip)
            .filter(|ip| range.as_ref().is_none_or(|range| range.contains(ip)))
            .collect())
    }

    /// Returns the branches that should have been recorded, in order; `level` selects the privilege level of a branch.
    #[must_use]
    pub fn taken(&self, branches: &[Branch], level: BranchLevel) -> Vec<Branch> {
        let at_level = |branch: &&Branch| self.cpl.is_none_or(|cpl| (cpl == 0) == (level.cpl(branch) == 0));
        branches.iter().filter(at_level).copied().collect()
    }
}

fn resolve((from, to): &(String, String), symbols: &Symbols) -> Result<Range<u64>> {
    Ok(symbols.address(from)?..symbols.address(to)?)
}

impl From<pugmark_protocol::Filter<'_>> for Filter {
    fn from(filter: pugmark_protocol::Filter<'_>) -> Self {
        let range = |SymbolRange { from, to }: SymbolRange<'_>| (from.into(), to.into());
        Self {
            cpl: match filter.level {
                Level::Any => None,
                Level::Os => Some(0),
                Level::User => Some(3),
            },
            cr3: filter.cr3,
            range: filter.range.map(range),
            stop: filter.stop.map(range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crate::truth::{BranchKind, RecordFlags};

    fn record(rip: u64, cpl: u8, cr3: u64) -> Record {
        Record { rip, cr3, session: 1, flags: RecordFlags::new(cpl), cpu: 0 }
    }

    #[test]
    fn keeps_what_the_filter_names() {
        let symbols = Symbols::from_pairs([("a", 0x100), ("b", 0x200), ("c", 0x300)]);
        let software_interrupt =
            Record { flags: RecordFlags::new(3).software_interrupt(), ..record(0x104, 3, 0x2000) };
        let records = [
            record(0x100, 0, 0x1000),
            software_interrupt,
            record(0x1ff, 3, 0x2000),
            record(0x200, 3, 0x1000),
        ];
        for (text, expected) in [
            ("", &[0x100, 0x1ff, 0x200][..]),
            ("cpl=any cr3=any range=any stop=none", &[0x100, 0x1ff, 0x200]),
            ("cpl=0", &[0x100]),
            ("cpl=3", &[0x1ff, 0x200]),
            ("cr3=0x1000", &[0x100, 0x200]),
            ("range=a..b", &[0x100, 0x1ff]),
            ("range=b..c", &[0x200]),
            ("stop=b..c", &[0x100, 0x1ff]),
            ("cpl=3 range=a..b", &[0x1ff]),
        ] {
            let traced = testing::filter(text).traced(&records, &symbols).unwrap();
            assert_eq!(traced, expected, "{text}");
        }
    }

    #[test]
    fn refuses_symbols_that_the_image_does_not_have() {
        let filter = testing::filter("range=a..nowhere");
        assert!(filter.traced(&[], &Symbols::from_pairs([("a", 1)])).is_err());
    }

    #[test]
    fn a_branch_counts_for_the_level_that_it_has() {
        let branch = |from_cpl, to_cpl| Branch { from: 1, to: 2, kind: BranchKind::Far, from_cpl, to_cpl };
        let all = [branch(0, 0), branch(0, 3), branch(3, 3), branch(3, 0)];
        for (text, to, from) in [
            ("cpl=any", &[0, 1, 2, 3][..], &[0, 1, 2, 3][..]),
            ("cpl=0", &[0, 3], &[0, 1]),
            ("cpl=3", &[1, 2], &[2, 3]),
        ] {
            let filter = testing::filter(text);
            for (level, expected) in [(BranchLevel::To, to), (BranchLevel::From, from)] {
                let expected: Vec<Branch> = expected.iter().map(|&index: &usize| all[index]).collect();
                assert_eq!(filter.taken(&all, level), expected, "{text} {level:?}");
            }
        }
    }
}
