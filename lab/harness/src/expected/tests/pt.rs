//! Intel PT.

use super::checked;
use crate::expected::{Expected, expected};
use crate::judge::{Source, Verdict};
use crate::report::{End, Run};
use crate::testing::{self, decoded};
use crate::truth::Truth;
use anyhow::Result;

fn pt(run: &Run, profile: &str, truth: &Truth) -> Result<Option<Verdict>> {
    checked((Source::Pt, profile), (&[], 0), run, truth)
}

#[test]
fn the_driver_declines_where_it_is_due_and_nowhere_else() {
    let cycles = "refuse CPUID.14H.0:EBX[1] is clear";
    for (name, profile, words, traces, right) in [
        ("timing", "broadwell", cycles, false, true),
        ("timing", "broadwell", "refuse CPUID.14H.0:EBX[2] is clear", false, false),
        // The driver declined, and traced nonetheless.
        ("timing", "broadwell", cycles, true, false),
        ("timing", "broadwell", "", false, false),
        ("timing", "broadwell", "", true, false),
        ("timing", "skylake", cycles, false, false),
        ("timing", "skylake", "", true, true),
        ("sort", "broadwell", cycles, false, false),
        ("sort", "broadwell", "", true, true),
        ("sort", "broadwell", "", false, false),
        ("sort", "haswell", "", true, false),
        ("bubble-sort", "broadwell", "", true, false),
    ] {
        let (traced, truth) = decoded(name, 100, 50, 0, "", words);
        let run = if traces { traced } else { testing::run(name, &format!("{words}\nok")) };
        let found = pt(&run, profile, &truth);
        assert_eq!(found.is_ok(), right, "{name} on {profile}, {words:?}: {found:?}");
        if let Ok(verdict) = found {
            assert_eq!(verdict.is_some(), traces);
        }
    }
    // The driver declined, and the workload failed.
    let failed = testing::run("timing", "refuse CPUID.14H.0:EBX[1]\nfail something");
    assert!(pt(&failed, "broadwell", &Truth::default()).is_err());
}

#[test]
fn what_does_not_add_up_is_no_verdict() {
    let (run, truth) = decoded("sort", 100, 50, 0, "", "");
    let changed = |change: &dyn Fn(&mut Run)| {
        let (mut run, _) = decoded("sort", 100, 50, 0, "", "");
        change(&mut run);
        pt(&run, "skylake", &truth).is_ok()
    };
    assert!(pt(&run, "skylake", &truth).is_ok());
    assert!(changed(&|_| ()));
    assert!(!changed(&|run| run.end = None));
    assert!(!changed(&|run| run.end = Some(End::Fail("so".into()))));
    assert!(!changed(&|run| run.end = Some(End::BrokeRules("so".into()))));
    assert!(!changed(&|run| run.session = None));
    assert!(!changed(&|run| run.session = Some(2)));
    assert!(!changed(&|run| run.stat = None));
    assert!(!changed(&|run| run.stat.as_mut().unwrap().count += 1));
    assert!(!changed(&|run| run.stat.as_mut().unwrap().hash += 1));
    assert!(!changed(&|run| run.pieces[0].count += 1));
    assert!(!changed(&|run| run.pieces.clear()));
    // An empty truth would agree with everything.
    let empty =
        testing::run("sort", "session 1\nstat count=0 hash=0xcbf29ce484222325 bytes=1 pmis=0 loss=0\nok");
    assert!(pt(&empty, "skylake", &Truth::default()).is_err());
}

#[test]
fn each_bit_that_a_processor_lacks_is_named() {
    let refused = |workload: &str| {
        ["broadwell", "skylake", "icelake", "sapphire-rapids"].map(|profile| {
            match expected(Source::Pt, workload, profile).unwrap() {
                Expected::Declines(text) => text,
                Expected::Traces => "",
                other @ Expected::DeclinesLast(_) => panic!("{workload} on {profile}: {other:?}"),
            }
        })
    };
    let [cycles, filter, entries, range] =
        ["CPUID.14H.0:EBX[1]", "CPUID.14H.0:EBX[2]", "CPUID.14H.0:ECX[1]", "CPUID.14H.0:ECX[2]"];
    let [ptwrite, power, events] = ["CPUID.14H.0:EBX[4]", "CPUID.14H.0:EBX[5]", "CPUID.14H.0:EBX[7]"];
    let area = "only the debug store writes through page tables";
    for (workload, texts) in [
        ("sort", [""; 4]),
        ("stop", [""; 4]),
        ("overflow", [""; 4]),
        ("filter-cr3", [""; 4]),
        ("filter-os", [""; 4]),
        ("events", [events, events, events, ""]),
        ("ptwrite", [ptwrite, ptwrite, "", ""]),
        ("power", [power, power, power, ""]),
        ("area-absent", [area; 4]),
        ("area-read-only", [area; 4]),
        ("filter-range", [filter, "", "", ""]),
        ("trace-stop", [filter, "", "", ""]),
        ("timing", [cycles, "", "", ""]),
        ("small-buffers", [cycles, "", "", ""]),
        ("circular", [entries, "", "", ""]),
        ("ring", [entries, "", "", ""]),
        ("single-range", [range, "", "", ""]),
    ] {
        assert_eq!(refused(workload), texts, "{workload}");
    }
    for (profile, text) in [
        ("prescott", "absent: CPUID.14H is not there"),
        ("nehalem", "absent: CPUID.07H.0:EBX[25]"),
        ("k8", "absent: CPUID.14H is not there"),
        ("zen4", "absent: CPUID.07H.0:EBX[25]"),
    ] {
        for workload in ["sort", "timing", "area-absent"] {
            assert_eq!(
                expected(Source::Pt, workload, profile).unwrap(),
                Expected::Declines(text),
                "{profile}"
            );
        }
    }
}
