//! Blocks and recoveries around TRIG packets, as libipt's master branch of 2026 has them. Debian's libipt 2.0 does not
//! support TRIG.

use crate::ptxed::lines;

/// 1000: nop; 1001: call 1008; 1006: jmp 1006; 1008: nop; 1009: jmp 100c; 100b: nop; 100c: ptwrite eax; 1010: call
/// 1006.
const CODE: [u8; 21] = [
    0x90, 0xe8, 2, 0, 0, 0, 0xeb, 0xfe, 0x90, 0xeb, 0x01, 0x90, 0xf3, 0x0f, 0xae, 0xe0, 0xe8, 0xf1, 0xff,
    0xff, 0xff,
];
/// FUP (1006), TIP.PGD.
const STOP: [u8; 4] = [0x3d, 0x06, 0x10, 0x01];

/// Returns the last two digits of each instruction's address, `|` where a block begins, and events.
fn blocks(name: &str, trace: &[u8], args: &[&str]) -> String {
    let lines = lines(name, &CODE, trace, &[&["--no-inst", "--block:show-blocks"], args].concat());
    let short = lines.iter().map(|line| match line.as_str() {
        "[block]" => "|".into(),
        line => {
            line.strip_prefix("00000000000010").map_or_else(|| format!(" {line} "), |ip| format!(" {ip}"))
        }
    });
    short.collect::<String>().replace("  ", " ").trim().to_owned()
}

const BOTH: [&str; 2] = ["--block:end-on-call", "--block:end-on-jump"];

#[test]
fn calls_and_jumps_that_are_counted_end_no_block() {
    // TRIG (7 instructions later, in the loop), then the end.
    let counted = [&[0xd9, 0x40, 1, 7, 0][..], &STOP].concat();
    let shown = "| 00 01 08 09 0c 10 06 [trig 01] [disabled]";
    assert_eq!(blocks("counted", &counted, &BOTH), shown);
    // With a FUP, calls and jumps do end blocks.
    let named = [&[0xd9, 0xc0, 1, 0, 0, 0x3d, 0x00, 0x10][..], &STOP].concat();
    let shown = "[trig 01] | 00 01| 08 09| 0c 10 [disabled]";
    assert_eq!(blocks("named", &named, &BOTH), shown);
}

#[test]
fn a_jump_to_the_instruction_that_an_event_is_of_ends_no_block() {
    // PTW with its FUP (100c), and without one.
    let named = [&[0x02, 0x92, 7, 0, 0, 0, 0x3d, 0x0c, 0x10][..], &STOP].concat();
    assert_eq!(blocks("through", &named, &BOTH), "| 00 01| 08 09 0c [ptwrite: 7] | 10 [disabled]");
    let found = [&[0x02, 0x12, 7, 0, 0, 0][..], &STOP].concat();
    assert_eq!(blocks("found", &found, &BOTH), "| 00 01| 08 09| 0c [ptwrite: 7] | 10 [disabled]");
}

#[test]
fn a_trigger_that_is_not_where_a_recovery_went_on_is_an_error_of_that() {
    // 1000: nop; 1001: jz 1003, without an outcome. TIP (1000), TRIG with FUP (1001); PTW, TRIG with FUP (1000).
    for (name, located, place, errors) in [
        ("place", &[0x2d, 0x00, 0x10][..], 0x01, [0x1b, 0x23]),
        ("ptwrite", &[0x02, 0x12, 7, 0, 0, 0], 0x00, [0x21, 0x26]),
    ] {
        let trace = [located, &[0xd9, 0xc0, 1, 0, 0, 0x3d, place, 0x10]].concat();
        let args = ["--no-inst", "--resync-on-error"];
        let shown = lines(&format!("trigger-{name}"), &[0x90, 0x74, 0x00, 0x90], &trace, &args);
        let [first, second] = errors;
        let mismatch = format!("[{first:x}, 1001: error: trace stream does not match query]");
        let error = format!("[{second:x}, 1003: resync error: unknown packet]");
        assert_eq!(shown[2..], [mismatch, error], "{name}");
    }
}

#[test]
fn a_trigger_is_counted_from_where_a_recovery_went_on() {
    // 1000: nop; 1001: jz 1003, without an outcome. TIP (1000), TRIG (1 instruction later), FUP (1001), TIP.PGD.
    let trace = [0x2d, 0x00, 0x10, 0xd9, 0x40, 1, 1, 0, 0x3d, 0x01, 0x10, 0x01];
    let shown = lines("trigger-anchor", &[0x90, 0x74, 0x00], &trace, &["--no-inst", "--resync-on-error"]);
    assert_eq!(shown[3..], ["0000000000001000", "[trig 01]", "[disabled]"]);
}
