//! Tests ptdump and ptxed as replacements of libipt's programs.

mod ptdump;
mod ptxed;
mod recording;
mod run;
mod scenarios;
mod sideband;
mod status;
mod triggers;
mod vectors;

#[test]
fn each_help_fits_on_a_screen_and_has_an_example() {
    for (program, help) in
        [("ptdump", pugmark_ipt_programs::ptdump::HELP), ("ptxed", pugmark_ipt_programs::ptxed::HELP)]
    {
        assert!(help.lines().count() <= 48, "{program}");
        for line in help.lines() {
            assert!(line.chars().count() <= 120, "{program}: {line}");
        }
        assert!(help.contains(&format!("\nExample: {program} ")), "{program}");
    }
}
