//! Tests of the text that each kind of verdict prints.

use std::time::Duration;

use crate::libipt::DecodeError;
use crate::patience::GivenUp;
use crate::samples::Fit;
use crate::{amd_matrix, branches, judge, last, precise, store_matrix};

#[test]
fn a_trace_is_equal_or_in_order_with_gaps() {
    let equal = judge::Verdict { truth_count: 7, truth_hash: 0x2a, decoded: 7, longest_gap: 0 };
    assert_eq!(equal.to_string(), "count=7 hash=0x000000000000002a equal");
    let part = judge::Verdict { decoded: 5, longest_gap: 2, ..equal };
    assert_eq!(part.to_string(), "count=7 hash=0x000000000000002a decoded=5 longest_gap=2 in order");
}

#[test]
fn branch_records_are_equal_or_in_order_with_gaps() {
    let equal = branches::Verdict {
        truth_count: 7,
        truth_hash: 0x2a,
        recorded: 7,
        longest_gap: 0,
        instructions: 9,
        decoded: 8,
    };
    let instructions = "instructions=9 decoded=8 in order";
    assert_eq!(equal.to_string(), format!("branches=7 hash=0x000000000000002a equal; {instructions}"));
    let part = branches::Verdict { recorded: 5, longest_gap: 2, ..equal };
    let text = "branches=7 hash=0x000000000000002a recorded=5 longest_gap=2 in order";
    assert_eq!(part.to_string(), format!("{text}; {instructions}"));
}

#[test]
fn samples_and_last_branches_are_told_with_what_there_was() {
    let branches = last::Verdict { branches: 40, last: 16, calls: false };
    let calls = last::Verdict { branches: 40, last: 3, calls: true };
    let precise = precise::Verdict { events: 1, due: 2, samples: 3, lost: 4 };
    assert_eq!(branches.to_string(), "the last 16 branches of 40 branches");
    assert_eq!(calls.to_string(), "the last 3 calls of 40 branches");
    let text = "events=1 periods=2 samples=3 lost=4, each at its event";
    assert_eq!(precise.to_string(), text);
    assert_eq!(store_matrix::Verdict::Samples(precise).to_string(), text);
    let both = store_matrix::Verdict::Last(vec![branches, calls]);
    assert_eq!(both.to_string(), "the last 16 branches of 40 branches; the last 3 calls of 40 branches");
}

#[test]
fn counts_and_how_well_samples_fit_are_told_in_numbers() {
    let fit = Fit { samples: 9, statistic: 11.0705, freedom: 5 };
    assert_eq!(fit.to_string(), "samples=9 chi2=11.1 df=5 p=0.0500");
    assert_eq!(amd_matrix::Verdict::Samples(fit).to_string(), fit.to_string());
    let counts = amd_matrix::Verdict::Counts(vec![(0xc0, 7), (0x1c2, 8)], 3);
    assert_eq!(counts.to_string(), "0xc0=7 0x1c2=8 equal; samples=3 in it");
    assert_eq!(amd_matrix::Verdict::Retired(6).to_string(), "samples=6 retired");
}

#[test]
fn what_went_wrong_is_told_with_its_place_or_its_time() {
    let quiet = GivenUp::Quiet(Duration::from_secs(5));
    assert_eq!(quiet.to_string(), "no line and no retired instruction for 5s");
    assert_eq!(GivenUp::Endless(Duration::from_millis(1500)).to_string(), "no end within 1.5s");
    let error = DecodeError { offset: 0x2a, after: 7, text: "bad packet" };
    assert_eq!(error.to_string(), "0x2a, after 7: bad packet");
}
