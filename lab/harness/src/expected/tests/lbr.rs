//! Last branch records.

use super::checked;
use crate::judge::{Source, Verdict};
use crate::report::Run;
use crate::testing;
use crate::truth::{Branch, BranchKind, Record, Truth};
use anyhow::Result;

fn lbr(run: &Run, profile: &str, truth: &Truth) -> Result<Option<Verdict>> {
    checked((Source::Lbr, profile), (&[], 0), run, truth)
}

#[test]
fn last_branches_are_there_in_each_mode() {
    let branch = Branch { from: 1, to: 100, kind: BranchKind::Call, from_cpl: 0, to_cpl: 0 };
    let truth = || testing::truth([1, 2].map(|session| Record::of_branch(branch, session, 0)));
    let plain = "last session=1 stack=branches entries=1\nbranch 1 1 100\n";
    let calls = "last session=2 stack=calls entries=1\nbranch 2 1 100\n";
    let none = "refuse there is no call-stack mode";
    for (profile, lines, right) in [
        ("skylake", &[plain, calls][..], true),
        ("skylake", &[plain], false),
        ("skylake", &[calls], false),
        ("skylake", &[calls, plain], false),
        ("skylake", &[plain, calls, none], false),
        ("skylake", &[plain, calls, "fail something"], false),
        ("nehalem", &[plain, none], true),
        ("nehalem", &[plain], false),
        ("nehalem", &[plain, calls, none], false),
        ("nehalem", &[none], false),
        // No records, because the session has no branches; and a record that is not the truth's.
        ("nehalem", &["last session=3 stack=branches entries=0", none], false),
        ("nehalem", &["last session=1 stack=branches entries=1\nbranch 1 1 101\n", none], false),
    ] {
        let run = testing::run("sort", &format!("{}\nok", lines.join("\n")).replace("something\nok", "so"));
        let found = lbr(&run, profile, &truth());
        assert_eq!(found.is_ok(), right, "{profile} {lines:?}: {found:?}");
    }
}
