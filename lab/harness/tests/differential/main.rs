//! Compares the decoder with libipt on random control-flow graphs and on damaged traces.
//!
//! Damaged and short traces are compared with each release that is found, the others with 2.0.5. Traces contain only
//! packets known to 2.0.5. The following command runs a hundred thousand of each in two minutes:
//!
//! ```text
//! PUGMARK_LONG=1 cargo test --release -p pugmark-harness --test differential -- --nocapture
//! ```

mod block_caches;
mod classes;
mod damage;
mod minimal;
mod own_decoder;
mod releases;
mod short;
mod stream;
mod subject;
mod tampered;

use classes::{Class, Verdict};
use releases::{Reading, Shares};
use std::collections::BTreeMap;

/// Returns the number of cases of a test.
fn cases() -> u64 {
    if std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1") { 100_000 } else { 4000 }
}

/// Reports that a test was skipped.
fn skipped() {
    println!("{}", pugmark_harness::libipt::REFERENCE.skipped());
}

/// The traces that were compared with a release, counted by their fate.
#[derive(Default)]
struct Tally {
    /// Equal results, by walk.
    same: [u64; 2],
    /// Differences of the walk by the manual that have no name, while the other walk is right.
    only_as_libipt: u64,
    differ: BTreeMap<Class, u64>,
    unexplained: Vec<String>,
}

impl Tally {
    /// Counts a trace; `describe` names it and the results of both decoders.
    fn add(&mut self, verdict: Verdict, describe: impl FnOnce() -> String) {
        match verdict {
            Verdict::Same(walk) => self.same[walk] += 1,
            Verdict::OnlyAsLibipt => self.only_as_libipt += 1,
            Verdict::Differs(class) => *self.differ.entry(class).or_default() += 1,
            Verdict::Unexplained => self.unexplained.push(describe()),
        }
    }

    /// Checks that no more than the given number are unexplained, and the shares of the rest.
    fn check(&self, what: &str, reading: &Reading, most_unexplained: u64, shares: &Shares) {
        let Self { same: [libipt, manual], only_as_libipt: only, differ, unexplained } = self;
        let (same, all) = (libipt + manual + only, self.all());
        let name = reading.release.folder_name();
        println!(
            "{name}: {all} {what} traces: {libipt} the same, {manual} more by the manual, {only} only as libipt, \
             {differ:?}, {} unexplained",
            unexplained.len()
        );
        let shown = &unexplained[..unexplained.len().min(8)];
        assert!(unexplained.len() as u64 <= most_unexplained, "{name}: {}", shown.join("\n"));
        // Measured: none to one of a thousand.
        assert!(only * 1000 <= all * 2, "{name}: only as libipt: {only} of {all}");
        for (class, most) in Class::ALL.into_iter().zip(shares.most) {
            let count = differ.get(&class).copied().unwrap_or_default();
            assert!(count > 0, "{name}: {class:?} is empty");
            assert!(count * 1000 <= all * most, "{name}: {class:?}: {count} of {all}");
        }
        assert!(same * 1000 > all * shares.least, "{name}: less is the same than was: {same} of {all}");
    }

    fn all(&self) -> u64 {
        let explained = self.same.iter().chain(self.differ.values()).sum::<u64>();
        explained + self.only_as_libipt + self.unexplained.len() as u64
    }
}
