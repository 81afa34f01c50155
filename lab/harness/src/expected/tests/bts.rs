//! Branch records.

use super::checked;
use crate::judge::{Source, Verdict};
use crate::report::Run;
use crate::testing::{self, recorded};
use crate::truth::Truth;
use anyhow::Result;

const ABSENT: &str = "absent: CPUID.1:EDX[21]";
const PACKETS: &str = "only Intel PT has the packets";

fn bts(run: &Run, profile: &str, truth: &Truth) -> Result<Option<Verdict>> {
    checked((Source::Bts, profile), (&[], 0), run, truth)
}

#[test]
fn the_driver_declines_where_it_is_due_and_nowhere_else() {
    let (absent, packets) = (format!("refuse {ABSENT} is clear"), format!("refuse {PACKETS}"));
    for (name, profile, words, traces, right) in [
        ("sort", "core2", "", true, true),
        ("sort", "core2", &*absent, false, false),
        ("sort", "core2", &absent, true, false),
        ("sort", "sapphire-rapids", &absent, false, true),
        ("sort", "sapphire-rapids", &absent, true, false),
        ("sort", "sapphire-rapids", &packets, false, false),
        ("sort", "sapphire-rapids", "", false, false),
        ("sort", "sapphire-rapids", "", true, false),
        ("timing", "core2", &packets, false, true),
        ("timing", "core2", "refuse it cannot", false, false),
        ("bubble-sort", "core2", "", true, false),
    ] {
        let (traced, truth) = recorded(name, 100, 100, "start", words);
        let run = if traces { traced } else { testing::run(name, &format!("{words}\nok")) };
        let found = bts(&run, profile, &truth);
        assert_eq!(found.is_ok(), right, "{name} on {profile}, {words:?}: {found:?}");
        if let Ok(verdict) = found {
            assert_eq!(verdict.is_some(), traces);
        }
    }
}
