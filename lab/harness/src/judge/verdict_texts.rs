//! Tests of the text that each kind of verdict prints.

use std::time::Duration;

use super::Verdict;
use super::bts::BtsVerdict;
use super::counters::CountersVerdict;
use super::fit::Fit;
use super::ibs::IbsVerdict;
use super::lbr::{LbrVerdict, StackVerdict};
use super::pebs::PebsVerdict;
use super::pt::PtVerdict;
use crate::libipt::DecodeError;
use crate::time_limits::TimedOut;

#[test]
fn a_trace_is_equal_or_in_order_with_gaps() {
    let equal = PtVerdict { truth_count: 7, truth_hash: 0x2a, decoded: 7, longest_gap: 0 };
    assert_eq!(equal.to_string(), "count=7 hash=0x000000000000002a equal");
    let part = PtVerdict { decoded: 5, longest_gap: 2, ..equal };
    assert_eq!(part.to_string(), "count=7 hash=0x000000000000002a decoded=5 longest_gap=2 in order");
}

#[test]
fn branch_records_are_equal_or_in_order_with_gaps() {
    let equal = BtsVerdict {
        truth_count: 7,
        truth_hash: 0x2a,
        recorded: 7,
        longest_gap: 0,
        instructions: 9,
        decoded: 8,
    };
    let instructions = "instructions=9 decoded=8 in order";
    assert_eq!(equal.to_string(), format!("branches=7 hash=0x000000000000002a equal; {instructions}"));
    let part = BtsVerdict { recorded: 5, longest_gap: 2, ..equal };
    let text = "branches=7 hash=0x000000000000002a recorded=5 longest_gap=2 in order";
    assert_eq!(part.to_string(), format!("{text}; {instructions}"));
}

#[test]
fn samples_and_last_branches_are_printed_with_the_number_that_there_was() {
    let branches = StackVerdict { branches: 40, last: 16, calls: false };
    let calls = StackVerdict { branches: 40, last: 3, calls: true };
    let precise = PebsVerdict { events: 1, periods: 2, samples: 3, lost: 4 };
    assert_eq!(branches.to_string(), "the last 16 branches of 40 branches");
    assert_eq!(calls.to_string(), "the last 3 calls of 40 branches");
    let text = "events=1 periods=2 samples=3 lost=4, each at its event";
    assert_eq!(precise.to_string(), text);
    assert_eq!(Verdict::Pebs(precise).to_string(), text);
    let both = LbrVerdict(vec![branches, calls]);
    assert_eq!(both.to_string(), "the last 16 branches of 40 branches; the last 3 calls of 40 branches");
}

#[test]
fn counts_and_how_well_samples_fit_are_printed_in_numbers() {
    let fit = Fit { samples: 9, statistic: 11.0705, freedom: 5 };
    assert_eq!(fit.to_string(), "samples=9 chi2=11.1 df=5 p=0.0500");
    assert_eq!(Verdict::Ibs(IbsVerdict::Fits(fit)).to_string(), fit.to_string());
    let counts = CountersVerdict { counts: vec![(0xc0, 7), (0x1c2, 8)], samples: 3 };
    assert_eq!(counts.to_string(), "0xc0=7 0x1c2=8 equal; samples=3 in it");
    assert_eq!(IbsVerdict::Retired(6).to_string(), "samples=6 retired");
}

#[test]
fn what_went_wrong_is_printed_with_its_place_or_its_time() {
    let quiet = TimedOut::NoProgress(Duration::from_secs(5));
    assert_eq!(quiet.to_string(), "no line and no retired instruction for 5s");
    assert_eq!(TimedOut::NoEnd(Duration::from_millis(1500)).to_string(), "no end within 1.5s");
    let error = DecodeError { offset: 0x2a, after: 7, text: "bad packet" };
    assert_eq!(error.to_string(), "0x2a, after 7: bad packet");
}
