//! Each workload on each profile: the guest decodes its trace, and the result is compared with the truth.

use pugmark_harness::judge::Source;
use pugmark_harness::sweep::Sweep;

/// Returns all workloads on `profile`.
fn all(profile: &str) -> Sweep<'_> {
    Sweep::new(Source::Pt, profile)
}

#[test]
fn broadwell() {
    all("broadwell").run().unwrap();
}

#[test]
fn skylake() {
    all("skylake").run().unwrap();
}

#[test]
fn icelake() {
    all("icelake").run().unwrap();
}

#[test]
fn sapphire_rapids() {
    all("sapphire-rapids").run().unwrap();
}

/// Implementation-specific behaviour, chosen the other way.
const OTHERWISE: &str = "long-tnt=off deferred-tips=on psb-before-pge=off ret-elsewhere=pops compress-after-ovf=on \
                         pmi-skid=150 visibility=0";

#[test]
fn skylake_that_chooses_otherwise() {
    all("skylake").monitor_options(OTHERWISE).run().unwrap();
}

/// The workloads that skylake declines.
#[test]
fn sapphire_rapids_that_chooses_otherwise() {
    let sweep = all("sapphire-rapids").only("exceptions,events,user-interrupt,ptwrite,overflow");
    sweep.monitor_options(OTHERWISE).run().unwrap();
}

/// The monitor steps each instruction instead of running several at full speed, so that interrupts, changes of level
/// and losses also occur in the middle of such a stretch.
#[test]
fn skylake_instruction_by_instruction() {
    let only = "strings,timer,exceptions,shadows,syscall,user-interrupt,address-spaces,nmi,overflow";
    all("skylake").only(only).monitor_options("stretch=1").run().unwrap();
}

/// Traces all processors at the same time; buffers of two pages make an interrupt of each page.
#[test]
fn skylake_on_four_processors() {
    let only = "recursion,sort,timer,small-buffers,circular,nmi,stop,ring";
    all("skylake").only(only).processors(4).run().unwrap();
}
