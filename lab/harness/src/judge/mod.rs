//! Compares a guest's report of a workload with the truth: one file for each source.
//!
//! A source is hardware that traces, counts or samples. A new one is a file with its verdict and a line in the list
//! below. [`crate::expected`] lists the requests that a source declines, and asks the judge about the others.

use anyhow::{Result, bail, ensure};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::report::{End, Run};
use crate::symbols::Symbols;
use crate::truth::Truth;
use crate::workloads::Loss;

pub mod bts;
pub mod counters;
mod faults;
pub mod fit;
pub mod ibs;
pub mod lbr;
pub mod pebs;
mod pieces;
pub mod pt;
mod samples;
pub(crate) mod stubs;
#[cfg(test)]
mod verdict_texts;

/// Makes [`Source`] and [`Verdict`] from a list of the sources, each with the type of its verdict.
macro_rules! sources {
    ($(#[doc = $description:literal] $source:ident: $verdict:ty,)+) => {
        /// The hardware that traces, counts or samples.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Source {
            $(#[doc = $description] $source,)+
        }

        impl Source {
            /// All sources.
            pub const ALL: &[Self] = &[$(Self::$source),+];

            /// Returns the source's word: `source=` on the guest's command line, `--source` of `cargo xtask run`.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$source => <$verdict>::WORD),+ }
            }

            /// Returns the source's name in a heading.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$source => <$verdict>::TITLE),+ }
            }

            /// Returns a description of the source, with its vendor.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self { $(Self::$source => $description.trim_ascii()),+ }
            }

            /// Compares a run in which this source recorded something with the truth.
            ///
            /// # Errors
            /// Returns the first difference.
            pub fn judge(self, evidence: &Evidence<'_>, conditions: &Conditions<'_>) -> Result<Verdict> {
                match self {
                    $(Self::$source => <$verdict>::judge(evidence, conditions).map(Verdict::$source)),+
                }
            }
        }

        /// The recording of a workload, which agrees with the truth.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Verdict {
            $(#[doc = $description] $source($verdict),)+
        }

        impl fmt::Display for Verdict {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$source(verdict) => verdict.fmt(f)),+ }
            }
        }
    };
}

sources! {
    /// Intel Processor Trace
    Pt: pt::PtVerdict,
    /// Intel's Branch Trace Store
    Bts: bts::BtsVerdict,
    /// Intel's processor event-based sampling
    Pebs: pebs::PebsVerdict,
    /// Intel's last branch records
    Lbr: lbr::LbrVerdict,
    /// performance counters
    Counters: counters::CountersVerdict,
    /// AMD's Instruction Based Sampling
    Ibs: ibs::IbsVerdict,
}

impl FromStr for Source {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        match Self::ALL.iter().find(|source| source.word() == word) {
            Some(source) => Ok(*source),
            None => bail!("no source is called {word}"),
        }
    }
}

/// A run, and the data with which its report is compared.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The guest's report.
    pub run: &'a Run,
    /// The monitor's log.
    pub truth: &'a Truth,
    /// The symbols of the image that ran.
    pub symbols: &'a Symbols,
    /// The image that ran.
    pub image: &'a Path,
}

/// The conditions of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    /// The processor that the monitor presented.
    pub profile: &'a str,
    /// True if it is one of Intel's.
    pub is_intel: bool,
    /// The permitted loss.
    pub loss: Loss,
    /// The driver declined the last part of the request, and recorded the others.
    pub last_declined: bool,
}

/// A verdict of one source. It prints the parts that agree with the truth.
trait Judge: fmt::Display + Sized {
    /// See [`Source::word`].
    const WORD: &'static str;
    /// See [`Source::title`].
    const TITLE: &'static str;

    /// See [`Source::judge`].
    fn judge(evidence: &Evidence<'_>, conditions: &Conditions<'_>) -> Result<Self>;
}

/// Judges a run of a kernel that is in no table, only by the log: a decode, if there is one, must equal the truth.
///
/// # Errors
/// Returns the first difference.
pub fn judge_by_truth_alone(run: &Run, truth: &Truth, symbols: &Symbols) -> Result<Option<Verdict>> {
    if run.traces_nothing() {
        Ok(None)
    } else if run.records.is_empty() {
        pt::compare(run, truth, symbols).map(Verdict::Pt).map(Some)
    } else {
        bts::compare(run, truth, symbols).map(Verdict::Bts).map(Some)
    }
}

/// Returns an error unless the guest reports that the workload passed.
fn ended_well(run: &Run) -> Result<()> {
    match &run.end {
        None => bail!("the workload has not ended"),
        Some(End::Fail(reason)) => bail!("the guest says: {reason}"),
        Some(End::BrokeRules(what)) => bail!("the kernel broke rules of the hardware: {what}"),
        Some(End::Ok) => Ok(()),
    }
}

/// Checks that at least `least` percent of `all` exist.
///
/// # Errors
/// If there are fewer.
fn enough(what: &str, there: u64, all: u64, least: u64) -> Result<()> {
    let enough = there > 0 && there * 100 >= all * least;
    ensure!(enough, "{there} {what} of {all} are there, which is less than {least} %");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn what_is_lost_leaves_enough() {
        for (there, all, least, right) in [
            (100, 100, 100, true),
            (99, 100, 100, false),
            (40, 100, 40, true),
            (39, 100, 40, false),
            (0, 0, 100, false),
            (0, 100, 0, false),
        ] {
            assert_eq!(enough("x", there, all, least).is_ok(), right, "{there} of {all}");
        }
    }

    #[test]
    fn a_source_is_found_by_its_word() {
        let words: Vec<&str> = Source::ALL.iter().map(|source| source.word()).collect();
        assert_eq!(words, ["pt", "bts", "pebs", "lbr", "counters", "ibs"]);
        for source in Source::ALL {
            assert_eq!(source.word().parse::<Source>().unwrap(), *source);
        }
        assert!("PT".parse::<Source>().is_err());
        assert_eq!(Source::Bts.title(), "Branch Trace Store");
        assert_eq!(Source::Bts.description(), "Intel's Branch Trace Store");
    }

    #[test]
    fn a_kernel_in_no_table_is_judged_by_what_it_recorded() {
        let judge = |run: &Run, truth: &Truth| judge_by_truth_alone(run, truth, &Symbols::default());
        let (decoded, truth) = testing::decoded("foreign", 100, 50, 0, "", "");
        assert!(matches!(judge(&decoded, &truth), Ok(Some(Verdict::Pt(_)))));
        assert!(judge(&decoded, &Truth::default()).is_err());
        let (recorded, truth) = testing::recorded("foreign", 100, 100, "start", "");
        assert!(matches!(judge(&recorded, &truth), Ok(Some(Verdict::Bts(_)))));
        assert!(judge(&recorded, &Truth::default()).is_err());
        assert!(matches!(judge(&testing::run("foreign", "ok"), &truth), Ok(None)));
        assert!(judge(&testing::run("foreign", "fail so"), &truth).is_err());
    }
}
