//! Each workload on each profile: decoded in place, held against the truth.

use pugmark_qemu_tests::images::Images;
use pugmark_qemu_tests::machine::Machine;
use pugmark_qemu_tests::matrix;

/// Boots everything on `profile`, the monitor set up with `options` on top.
fn all_as_the_table_says(profile: &str, options: &str) {
    let images = Images::build().unwrap();
    let symbols = images.guest_symbols().unwrap();
    let mut seen = Vec::new();
    let mut wrong = Vec::new();
    for boot in matrix::boots(profile, None) {
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
    assert_eq!(seen.len(), matrix::WORKLOADS.len(), "not every workload ran: {seen:?}");
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

/// What the manual leaves to the processor, the other way round.
#[test]
fn skylake_that_chooses_otherwise() {
    all_as_the_table_says(
        "skylake",
        "long-tnt=off deferred-tips=on psb-before-pge=off pmi-skid=150 visibility=0",
    );
}
