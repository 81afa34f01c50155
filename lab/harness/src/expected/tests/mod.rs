//! Tests of the whole check: the requests that a source declines, and the judgement of the others.

use anyhow::Result;

use super::Expected::{Declines, DeclinesLast, Traces};
use super::Source::{Bts, Counters, Ibs, Lbr, Pebs, Pt};
use super::*;
use crate::report::Run;
use crate::scratch::Scratch;
use crate::symbols::Symbols;
use crate::testing;
use crate::truth::Truth;

mod amd;
mod bts;
mod lbr;
mod pebs;
mod pt;

/// Checks a run of an image that has this code, and its table of stubs at this address.
fn checked(
    (source, profile): (Source, &str),
    (code, stubs): (&[u8], u64),
    run: &Run,
    truth: &Truth,
) -> Result<Option<Verdict>> {
    let scratch = Scratch::new()?;
    let (image, symbols) = (testing::image(&scratch, code), Symbols::from_pairs([("trap_stubs", stubs)]));
    check(source, profile, &Evidence { run, truth, symbols: &symbols, image: &image })
}

#[test]
fn a_source_is_on_the_profiles_that_have_it() {
    let intel = |from: usize, to: usize| INTEL[from..to].to_vec();
    for (source, expected) in [
        (Pt, intel(3, 7)),
        (Bts, intel(0, 6)),
        (Pebs, intel(1, 6)),
        (Lbr, intel(0, 6)),
        (Counters, [intel(1, 7), AMD.to_vec()].concat()),
        (Ibs, AMD[1..].to_vec()),
    ] {
        assert_eq!(profiles(source), expected, "{source:?}");
    }
    assert_eq!(all_profiles().count(), 15);
}

#[test]
fn what_is_in_no_table_is_an_error() {
    assert!(expected(Pt, "sort", "skylake").is_ok());
    assert!(expected(Pt, "bubble-sort", "skylake").is_err());
    assert!(expected(Bts, "sort", "haswell").is_err());
}

const PACKETS: Expected = Declines("only Intel PT has the packets");
const AREA: Expected = Declines("only the debug store writes through page tables");
const PAUSES: Expected = Declines("only the trace of Intel PT can be paused");
const NOT_PRECISE: Expected = DeclinesLast("event 0xc4, unit mask 0x00, is not precise");
const NO_CALLS: Expected = DeclinesLast("there is no call-stack mode");
const LBR_LEVELS: Expected = Declines("last branch records cannot be filtered by privilege level");
const IBS_LEVELS: Expected = Declines("the samples of IBS cannot be filtered by privilege level");
const COUNTED_CR3: Expected = Declines("what is counted or sampled cannot be filtered by CR3");
const COUNTED_IP: Expected = Declines("what is counted or sampled cannot be filtered by address");
const NO_DS: Expected = Declines("absent: CPUID.1:EDX[21]");
const NO_LBR: Expected = Declines("absent: no last branch records are known");
const NO_IBS: Expected = Declines("absent: CPUID.8000_0001H:ECX[10]");
const NOT_INTEL: Expected = Declines("absent: not a processor of Intel's");
const NO_GLOBAL_CTRL: Expected = Declines("absent: CPUID.0AH:EAX[7:0] is 0");
const IBS_NOT_AMD: Expected = Declines("CPUID.0 names another vendor than AMD");

/// A row of the table: source, workload, profile, and the expectation.
type Row = (Source, &'static str, &'static str, Expected);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (Pt,       "sort",           "broadwell",       Traces),
    (Pt,       "timing",         "broadwell",       Declines("CPUID.14H.0:EBX[1]")),
    (Bts,      "sort",           "core2",           Traces),
    (Bts,      "filter-os",      "prescott",        Traces),
    (Bts,      "area-absent",    "skylake",         Traces),
    (Bts,      "events",         "skylake",         PACKETS),
    (Bts,      "timing",         "core2",           PACKETS),
    (Bts,      "ptwrite",        "skylake",         PACKETS),
    (Bts,      "power",          "skylake",         PACKETS),
    (Bts,      "overflow",       "skylake",         PACKETS),
    (Bts,      "filter-cr3",     "nehalem",         Declines("branch records cannot be filtered by CR3")),
    (Bts,      "filter-range",   "nehalem",         Declines("branch records cannot be filtered by address")),
    (Bts,      "trace-stop",     "nehalem",         Declines("branch records cannot be filtered by address")),
    (Bts,      "sort",           "sapphire-rapids", NO_DS),
    (Bts,      "timing",         "sapphire-rapids", NO_DS),
    (Bts,      "sort",           "zen4",            NOT_INTEL),
    (Pebs,     "sort",           "prescott",        Declines("IA32_MISC_ENABLE[12]")),
    (Pebs,     "timing",         "prescott",        PACKETS),
    (Pebs,     "sort",           "core2",           NOT_PRECISE),
    (Pebs,     "sort",           "nehalem",         Traces),
    (Pebs,     "area-absent",    "nehalem",         Traces),
    (Pebs,     "filter-os",      "nehalem",         Traces),
    (Pebs,     "timing",         "nehalem",         PACKETS),
    (Pebs,     "filter-cr3",     "core2",           Declines("samples cannot be filtered by CR3")),
    (Pebs,     "filter-range",   "core2",           Declines("samples cannot be filtered by address")),
    (Pebs,     "sort",           "sapphire-rapids", NO_DS),
    (Pebs,     "sort",           "zen4",            NOT_INTEL),
    (Lbr,      "sort",           "core2",           NO_CALLS),
    (Lbr,      "sort",           "broadwell",       Traces),
    (Lbr,      "area-absent",    "broadwell",       AREA),
    (Lbr,      "area-read-only", "core2",           AREA),
    (Lbr,      "timing",         "core2",           PACKETS),
    (Lbr,      "filter-os",      "core2",           LBR_LEVELS),
    (Lbr,      "filter-user",    "core2",           LBR_LEVELS),
    (Lbr,      "filter-user",    "nehalem",         NO_CALLS),
    (Lbr,      "filter-user",    "skylake",         Traces),
    (Lbr,      "filter-cr3",     "broadwell",       Declines("last branches cannot be filtered by CR3")),
    (Lbr,      "trace-stop",     "broadwell",       Declines("last branches cannot be filtered by address")),
    (Lbr,      "sort",           "sapphire-rapids", NO_LBR),
    (Lbr,      "timing",         "sapphire-rapids", NO_LBR),
    (Lbr,      "sort",           "k8",              NOT_INTEL),
    (Counters, "sort",           "k8",              Traces),
    (Counters, "filter-os",      "zen4",            Traces),
    (Counters, "timing",         "zen4",            PACKETS),
    (Counters, "area-read-only", "zen4",            AREA),
    (Counters, "filter-cr3",     "zen4",            COUNTED_CR3),
    (Counters, "trace-stop",     "zen4",            COUNTED_IP),
    (Counters, "sort",           "skylake",         Traces),
    (Counters, "sort",           "prescott",        NO_GLOBAL_CTRL),
    (Counters, "filter-range",   "skylake",         COUNTED_IP),
    (Counters, "overflow",       "skylake",         PACKETS),
    (Ibs,      "sort",           "zen2",            Traces),
    (Ibs,      "sort",           "barcelona",       Traces),
    (Ibs,      "sort",           "k8",              NO_IBS),
    (Ibs,      "events",         "k8",              PACKETS),
    (Ibs,      "area-absent",    "zen4",            AREA),
    (Ibs,      "filter-os",      "zen4",            IBS_LEVELS),
    (Ibs,      "filter-user",    "k8",              IBS_LEVELS),
    (Ibs,      "filter-range",   "zen4",            COUNTED_IP),
    (Ibs,      "sort",           "skylake",         IBS_NOT_AMD),
    (Pt,       "pause",          "broadwell",       Traces),
    (Bts,      "pause",          "skylake",         PAUSES),
    (Lbr,      "pause",          "icelake",         PAUSES),
    (Counters, "pause",          "zen4",            PAUSES),
    (Ibs,      "pause",          "zen4",            PAUSES),
];

#[test]
fn each_processor_declines_what_it_does_not_have() {
    for &(source, workload, profile, row) in ROWS {
        assert_eq!(expected(source, workload, profile).unwrap(), row, "{source:?} {workload} on {profile}");
        // Nothing is measured in these runs, so a run that should measure something is wrong.
        let declines = matches!(row, Declines(_));
        let (Declines(text) | DeclinesLast(text)) = row else { continue };
        for (lines, right) in [
            (format!("refuse {text} and more\nok"), declines),
            (format!("refuse x{text}\nok"), false),
            ("refuse something else\nok".into(), false),
            ("ok".into(), false),
            (format!("refuse {text}\nfail so"), false),
            (format!("refuse {text}\nlast session=1 stack=branches entries=0\nok"), false),
            (format!("refuse {text}\ncount session=1 event=0xc0 value=1\nok"), false),
            (format!("refuse {text}\nstat count=1 hash=0x1 bytes=1 pmis=0 loss=0\nok"), false),
        ] {
            let run = testing::run(workload, &lines);
            let found = checked((source, profile), (&[], 0), &run, &Truth::default());
            let what = format!("{source:?} {workload} on {profile}, {:?}: {found:?}", run.refusal);
            assert_eq!(found.is_ok(), right, "{what}");
            assert_eq!(matches!(found, Ok(None)), right, "{what}");
        }
    }
}

#[test]
fn a_driver_that_declines_what_it_has_is_wrong() {
    for &(source, workload, profile, row) in ROWS {
        if row == Traces {
            for lines in ["ok", "refuse only Intel PT has the packets\nok"] {
                let run = testing::run(workload, lines);
                let found = checked((source, profile), (&[], 0), &run, &Truth::default());
                assert!(found.is_err(), "{source:?} {workload} on {profile}: {found:?}");
            }
        }
    }
}
