//! Each workload on each profile: the guest decodes its trace, and the result is checked against the truth.

use pugmark_qemu_tests::images::Images;
use pugmark_qemu_tests::machine::Machine;
use pugmark_qemu_tests::matrix;

/// Boots all workloads on `profile`; `options` are added to the monitor's.
fn all_as_the_table_says(profile: &str, options: &str) {
    as_the_table_says(profile, options, None);
}

/// The same for the workloads in `only`.
fn as_the_table_says(profile: &str, options: &str, only: Option<&str>) {
    let images = Images::build().unwrap();
    let symbols = images.guest_symbols().unwrap();
    let mut seen = Vec::new();
    let mut wrong = Vec::new();
    for boot in matrix::boots(profile, only) {
        let monitor_options = format!("{} {options}", boot.monitor_options);
        let outcome = Machine::on_monitor(&images, &monitor_options, &boot.command_line).run(|_| {}).unwrap();
        for run in &outcome.transcript.runs {
            seen.push(run.name.clone());
            match matrix::check(run, profile, &outcome.truth, &symbols) {
                Ok(Some(verdict)) => println!("{profile} {options} {}: {verdict}", run.name),
                Ok(None) => {
                    println!(
                        "{profile} {options} {}: {}",
                        run.name,
                        run.refusal.as_deref().unwrap_or_default()
                    );
                }
                Err(error) => wrong.push(format!("{profile} {options} {}: {error:#}", run.name)),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let due = only.map_or(matrix::WORKLOADS.len(), |only| only.split(',').count());
    assert_eq!(seen.len(), due, "not every workload ran: {seen:?}");
}

#[test]
fn broadwell() {
    all_as_the_table_says("broadwell", "");
}

#[test]
fn skylake() {
    all_as_the_table_says("skylake", "");
}

#[test]
fn icelake() {
    all_as_the_table_says("icelake", "");
}

#[test]
fn sapphire_rapids() {
    all_as_the_table_says("sapphire-rapids", "");
}

/// Behaviour that the manual leaves to the processor, chosen the other way.
const OTHERWISE: &str = "long-tnt=off deferred-tips=on psb-before-pge=off ret-elsewhere=pops compress-after-ovf=on \
                         pmi-skid=150 visibility=0";

#[test]
fn skylake_that_chooses_otherwise() {
    all_as_the_table_says("skylake", OTHERWISE);
}

/// The workloads that skylake declines.
#[test]
fn sapphire_rapids_that_chooses_otherwise() {
    as_the_table_says(
        "sapphire-rapids",
        OTHERWISE,
        Some("exceptions,events,user-interrupt,ptwrite,overflow"),
    );
}

/// The monitor steps each instruction instead of running several at once, so that interrupts, changes of level and
/// losses also come in the middle of such a stretch.
#[test]
fn skylake_instruction_by_instruction() {
    let only = "strings,timer,exceptions,shadows,syscall,user-interrupt,address-spaces,nmi,overflow";
    as_the_table_says("skylake", "stretch=1", Some(only));
}

/// The trace of one processor does not change if there are more.
#[test]
fn skylake_among_others() {
    let images = Images::build().unwrap();
    let symbols = images.guest_symbols().unwrap();
    let machine = Machine::on_monitor(&images, "profile=skylake", "only=sort,timer,nmi").processors(4);
    let outcome = machine.run(|_| {}).unwrap();
    for run in &outcome.transcript.runs {
        matrix::check(run, "skylake", &outcome.truth, &symbols).unwrap();
    }
    assert_eq!(outcome.transcript.runs.len(), 3);
}
