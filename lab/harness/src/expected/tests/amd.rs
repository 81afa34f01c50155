//! AMD's counters and samples.

use super::checked;
use crate::expected::check;
use crate::judge::{Evidence, Source, Verdict};
use crate::report::Run;
use crate::scratch::Scratch;
use crate::symbols::Symbols;
use crate::testing::{self, CODE};
use crate::truth::{Record, RecordFlags, Truth};
use anyhow::Result;

/// The event selects that the guest counts.
const SELECTS: [u16; 4] = [0xc0, 0xc2, 0xc6, 0xc0];

fn verdict(run: &Run, source: Source, profile: &str, truth: &Truth) -> Result<Option<Verdict>> {
    // NOPs, a jump, INT 80h, and stubs of NOPs at 3000H.
    let mut code = vec![0x90; 0x3000];
    code[0x10..0x12].copy_from_slice(&[0xeb, 0]);
    code[0x20..0x22].copy_from_slice(&[0xcd, 0x80]);
    checked((source, profile), (&code, 0x3000), run, truth)
}

const SECTION: &str = "section base=0x1000 len=0x3000 from=0x1000 cr3=any";

/// Returns ten NOPs, a jump, INT 80h and its handler's first NOP, in each of sessions 1 to 4.
fn ran() -> Truth {
    let session = |session| {
        let of = move |rip| testing::record(session, rip);
        let int = Record { flags: RecordFlags::new(0).software_interrupt(), ..of(CODE + 0x20) };
        (0..10).map(move |n| of(CODE + n)).chain([of(CODE + 0x10), int, of(0x3800)])
    };
    testing::truth((1..=4).flat_map(session))
}

#[test]
fn counts_and_samples_are_the_truths() {
    let counts = |values: [u64; 4]| -> String {
        let line =
            |(session, (select, value))| format!("count session={session} event={select:#x} value={value}\n");
        (1..).zip(SELECTS.into_iter().zip(values)).map(line).collect()
    };
    let intel = |[instructions, branches]: [u64; 2]| {
        format!(
            "count session=1 event=0xc0 value={instructions}\ncount session=2 event=0xc4 value={branches}\n"
        )
    };
    // 13 instructions, one branch, no far transfer, one delivery.
    let right = counts([13, 2, 1, 13]);
    let samples = |period: u64, taken: u64, skipped: u64, unplaced: u64| {
        let line = "samples session=4 of=instructions lost=0";
        let sample = if taken > 0 { format!("sample 4 {CODE} {taken}\n") } else { String::new() };
        format!("{line} period={period} taken={taken} skipped={skipped} unplaced={unplaced}\n{sample}")
    };
    let good = samples(4, 3, 0, 0);
    for (text, profile, is_right) in [
        (format!("{right}{good}"), "zen4", true),
        (format!("{right}{}", samples(4, 1, 1, 1)), "zen4", true),
        (format!("{right}{}", samples(4, 2, 0, 0)), "zen4", false),
        (format!("{right}{}", samples(0, 3, 0, 0)), "zen4", false),
        (format!("{right}{}", samples(4, 3, 0, 1)), "zen4", false),
        (format!("{right}{}", samples(4, 3, 1, 0)), "zen4", false),
        (format!("{right}{}", samples(3, 4, 0, 0)), "zen4", true),
        (right.clone(), "zen4", false),
        (format!("{right}{good}{good}"), "zen4", false),
        (good.clone(), "zen4", false),
        (format!("{}{good}", counts([12, 2, 1, 13])), "zen4", false),
        (format!("{}{good}", counts([13, 1, 1, 13])), "zen4", false),
        (format!("{}{good}", counts([13, 2, 0, 13])), "zen4", false),
        (format!("{}{good}", counts([13, 2, 1, 14])), "zen4", false),
        (format!("{right}{good}lost stray=5\n"), "zen4", true),
        (format!("{right}{good}lost stop=1\n"), "zen4", false),
        (format!("{right}{good}lost stop=0\n"), "zen4", true),
        (format!("{right}{good}refuse so\n"), "zen4", false),
        (format!("{right}{}", good.replace("sample 4 4096", "sample 4 8192")), "zen4", false),
        (
            format!("{right}{}", good.replace("session=4", "session=5").replace("sample 4", "sample 5")),
            "zen4",
            false,
        ),
        (format!("{right}{}", good.replace("lost=0", "lost=1")), "zen4", false),
        // On k8 an interrupt counts as an instruction, but the INT already is one.
        (format!("{right}{good}"), "k8", true),
        (format!("{right}{good}"), "skylake", false),
        // On a processor of Intel's INT is a branch; nothing is sampled.
        (intel([13, 2]), "skylake", true),
        (intel([13, 2]), "zen4", false),
        (intel([13, 1]), "skylake", false),
        (intel([12, 2]), "skylake", false),
        (format!("{}{good}", intel([13, 2])), "skylake", false),
    ] {
        let run = testing::run("sort", &format!("{SECTION}\n{text}ok"));
        let found = verdict(&run, Source::Counters, profile, &ran());
        assert_eq!(found.is_ok(), is_right, "{text} on {profile}: {found:?}");
    }
    let failed = testing::run("sort", &format!("{SECTION}\n{right}{good}fail so"));
    assert!(verdict(&failed, Source::Counters, "zen4", &ran()).is_err());
    let unknown = testing::run("bubble-sort", &format!("{SECTION}\n{right}{good}ok"));
    assert!(verdict(&unknown, Source::Counters, "zen4", &ran()).is_err());
}

#[test]
fn samples_of_ops_lie_where_they_ran() {
    let of = |what: &str, at: u64, taken: u64, unplaced: u64| {
        let line = format!("samples session=1 of={what} period=256 lost=0 skipped=0 unplaced={unplaced}");
        let sample = if taken > 0 { format!("sample 1 {at} {taken}\n") } else { String::new() };
        format!("{line} taken={taken}\n{sample}")
    };
    for (name, text, right) in [
        ("sort", of("ops", CODE, 5, 0), true),
        ("sort", of("ops", CODE + 0x100, 5, 0), false),
        ("sort", of("ops", CODE, 5, 1), false),
        ("sort", of("ops", CODE, 0, 0), false),
        ("sort", of("cycles", CODE, 5, 0), true),
        ("sort", of("cycles", CODE + 0x100, 5, 0), false),
        ("sort", of("cycles", CODE, 0, 0), false),
        ("sort", format!("{}lost stop=1\n", of("ops", CODE, 5, 0)), false),
        ("sort", String::new(), false),
        ("filter-user", of("ops", CODE, 5, 0), false),
    ] {
        let run = testing::run(name, &format!("{SECTION}\n{text}ok"));
        let found = verdict(&run, Source::Ibs, "zen4", &ran());
        assert_eq!(found.is_ok(), right, "{name} {text}: {found:?}");
    }
}

#[test]
fn a_distribution_that_is_not_the_truths_is_seen() {
    // The functions of the first and the second NOP have equally many ops.
    let truth = testing::truth((0..20).map(|n| testing::record(1, CODE + n % 2 * 0x100)));
    let symbols = Symbols::from_pairs([("a", CODE), ("b", CODE + 0x100), ("trap_stubs", 0x3000)]);
    let scratch = Scratch::new().unwrap();
    let image = testing::image(&scratch, &[0x90; 0x3000]);
    for (first, second, right) in [(50, 50, true), (60, 40, true), (95, 5, false), (5, 95, false)] {
        let line = "samples session=1 of=ops period=256 lost=0 skipped=0 unplaced=0 taken=100";
        let text = format!("{SECTION}\n{line}\nsample 1 0x1000 {first}\nsample 1 0x1100 {second}\nok");
        let run = testing::run("sort", &text);
        let evidence = Evidence { run: &run, truth: &truth, symbols: &symbols, image: &image };
        let found = check(Source::Ibs, "zen4", &evidence);
        assert_eq!(found.is_ok(), right, "{first} {second}: {found:?}");
        // With NMIs of other origin only the number of samples is checked, and here it is too large.
        let run = testing::run("foreign-nmis", &text);
        assert!(check(Source::Ibs, "zen4", &Evidence { run: &run, ..evidence }).is_err());
    }
}
