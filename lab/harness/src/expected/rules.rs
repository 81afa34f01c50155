//! The rules of the table of expectations.

use Expected::{Declines, DeclinesLast};
use Only::{All, But, These};
use Source::{Bts, Counters, Ibs, Lbr, Pebs, Pt};

use super::{AMD, Expected, INTEL};
use crate::judge::Source;

/// The scope of a rule.
pub(super) enum Only<'r, T> {
    /// To all.
    All,
    /// To these only.
    These(&'r [T]),
    /// To all but these.
    But(&'r [T]),
}

impl<T: PartialEq> Only<'_, T> {
    fn has(&self, name: &T) -> bool {
        match self {
            All => true,
            These(names) => names.contains(name),
            But(names) => !names.contains(name),
        }
    }
}

/// The behaviour of some sources with some workloads on some profiles.
pub(super) struct Rule {
    pub(super) sources: Only<'static, Source>,
    pub(super) workloads: Only<'static, &'static str>,
    pub(super) profiles: Only<'static, &'static str>,
    pub(super) expected: Expected,
}

impl Rule {
    /// Returns true if the rule applies to this source, workload and profile.
    pub(super) fn applies(&self, source: Source, workload: &str, profile: &str) -> bool {
        self.sources.has(&source) && self.workloads.has(&workload) && self.profiles.has(&profile)
    }
}

const fn rule(
    sources: Only<'static, Source>,
    workloads: Only<'static, &'static str>,
    profiles: Only<'static, &'static str>,
    expected: Expected,
) -> Rule {
    Rule { sources, workloads, profiles, expected }
}

const PACKETS: Expected = Declines("only Intel PT has the packets");
const AREA: Expected = Declines("only the debug store writes through page tables");
const PAUSES: Expected = Declines("only the trace of Intel PT can be paused");

/// The rules; the first one that applies is used. Cases without a rule are recorded.
#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    // Processors without the source, which the driver detects before it looks at the request.
    rule(These(&[Pt]), All, These(&["prescott", "k8", "barcelona"]), Declines("absent: CPUID.14H is not there")),
    rule(These(&[Pt]), All, These(&["core2", "nehalem"]), Declines("absent: CPUID.07H.0:EBX[25]")),
    rule(These(&[Pt]), All, These(AMD), Declines("absent: CPUID.07H.0:EBX[25]")),
    rule(These(&[Bts, Pebs, Lbr]), All, These(AMD), Declines("absent: not a processor of Intel's")),
    rule(These(&[Bts, Pebs]), All, These(&["sapphire-rapids"]), Declines("absent: CPUID.1:EDX[21]")),
    rule(These(&[Lbr]), All, These(&["sapphire-rapids"]), Declines("absent: no last branch records are known")),

    // Requests that only one source supports, on any processor.
    rule(But(&[Pt]), These(&["events", "timing", "ptwrite", "power", "overflow"]), All, PACKETS),
    rule(But(&[Bts, Pebs]), These(&["area-absent", "area-read-only"]), All, AREA),
    rule(But(&[Pt]), These(&["pause"]), All, PAUSES),

    // Filters that a source lacks on every processor.
    rule(These(&[Bts]), These(&["filter-cr3"]), All, Declines("branch records cannot be filtered by CR3")),
    rule(These(&[Pebs]), These(&["filter-cr3"]), All, Declines("samples cannot be filtered by CR3")),
    rule(These(&[Lbr]), These(&["filter-cr3"]), All, Declines("last branches cannot be filtered by CR3")),
    rule(But(&[Pt]), These(&["filter-cr3"]), All, Declines("what is counted or sampled cannot be filtered by CR3")),
    rule(These(&[Bts]), These(IP_FILTERS), All, Declines("branch records cannot be filtered by address")),
    rule(These(&[Pebs]), These(IP_FILTERS), All, Declines("samples cannot be filtered by address")),
    rule(These(&[Lbr]), These(IP_FILTERS), All, Declines("last branches cannot be filtered by address")),
    rule(But(&[Pt]), These(IP_FILTERS), All, Declines("what is counted or sampled cannot be filtered by address")),
    rule(These(&[Ibs]), These(LEVELS), All, Declines("the samples of IBS cannot be filtered by privilege level")),

    // Features that Intel PT lacks on some processors.
    rule(These(&[Pt]), These(&["events"]), But(&["sapphire-rapids"]), Declines("CPUID.14H.0:EBX[7]")),
    rule(These(&[Pt]), These(&["ptwrite"]), These(&["broadwell", "skylake"]), Declines("CPUID.14H.0:EBX[4]")),
    rule(These(&[Pt]), These(&["power"]), But(&["sapphire-rapids"]), Declines("CPUID.14H.0:EBX[5]")),
    rule(These(&[Pt]), These(IP_FILTERS), These(&["broadwell"]), Declines("CPUID.14H.0:EBX[2]")),
    rule(These(&[Pt]), These(&["timing", "small-buffers"]), These(&["broadwell"]), Declines("CPUID.14H.0:EBX[1]")),
    rule(These(&[Pt]), These(&["circular", "ring"]), These(&["broadwell"]), Declines("CPUID.14H.0:ECX[1]")),
    rule(These(&[Pt]), These(&["single-range"]), These(&["broadwell"]), Declines("CPUID.14H.0:ECX[2]")),

    // Features that the other sources lack on some processors.
    rule(These(&[Pebs]), All, These(&["prescott"]), Declines("IA32_MISC_ENABLE[12]")),
    rule(These(&[Pebs]), All, These(&["core2"]), DeclinesLast("event 0xc4, unit mask 0x00, is not precise")),
    rule(These(&[Lbr]), These(LEVELS), These(&["prescott", "core2"]),
        Declines("last branch records cannot be filtered by privilege level")),
    rule(These(&[Lbr]), All, These(&["prescott", "core2", "nehalem"]), DeclinesLast("there is no call-stack mode")),
    rule(These(&[Counters]), All, These(&["prescott"]), Declines("absent: CPUID.0AH:EAX[7:0] is 0")),
    rule(These(&[Ibs]), All, These(INTEL), Declines("CPUID.0 names another vendor than AMD")),
    rule(These(&[Ibs]), All, These(&["k8"]), Declines("absent: CPUID.8000_0001H:ECX[10]")),
];

/// Workloads that are traced only in some code.
const IP_FILTERS: &[&str] = &["filter-range", "trace-stop"];
/// Workloads that are traced only at some privilege level.
const LEVELS: &[&str] = &["filter-os", "filter-user"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expected::all_profiles;
    use crate::workloads;

    fn named<'r>(only: &Only<'r, &'static str>) -> &'r [&'static str] {
        match only {
            All => &[],
            These(names) | But(names) => names,
        }
    }

    #[test]
    fn each_rule_names_workloads_and_profiles_that_there_are() {
        for rule in RULES {
            for name in named(&rule.workloads) {
                assert!(workloads::find(name).is_ok(), "{name}");
            }
            for name in named(&rule.profiles) {
                assert!(all_profiles().any(|profile| profile == *name), "{name}");
            }
        }
    }

    /// Checks that each rule is reached: it may be misspelt, or stand after one that hides it.
    #[test]
    fn each_rule_is_the_first_that_applies_to_something() {
        let mut used = vec![false; RULES.len()];
        for source in Source::ALL {
            for workload in workloads::WORKLOADS {
                for profile in all_profiles() {
                    let first = RULES.iter().position(|rule| rule.applies(*source, workload.name, profile));
                    first.into_iter().for_each(|index| used[index] = true);
                }
            }
        }
        assert_eq!(used.iter().position(|used| !used), None);
    }
}
