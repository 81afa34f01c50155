//! Lines of ptxed that the recorded runs do not cover.

use crate::run::{Folder, Tool};
use pugmark_decoder_core::packet::PSB;

/// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND.
const START: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";

/// Runs ptxed on code at 1000 with a trace that begins there, and returns the lines.
pub(crate) fn lines(name: &str, code: &[u8], trace: &[u8], args: &[&str]) -> Vec<String> {
    let folder = Folder::new(name, &[("t", &[START, trace].concat()), ("code", code)]);
    folder.lines(Tool::Ptxed, &[&["--raw", "code:0x1000"], args, &["--pt", "t"]].concat())
}

#[test]
fn what_cannot_be_read_again_is_reported_and_ends_a_block() {
    // 1000: nop; 1001: lock nop; 1003: ret. TIP.PGD without an address.
    let code = [0x90, 0xf0, 0x90, 0xc3];
    let trace = [0x01];
    let refused = "[xed decode error: (5) BAD_LOCK_PREFIX]";
    let bytes = |bytes: &str| format!("{bytes:<45}");
    assert_eq!(
        lines("refused-insn", &code, &trace, &["--insn-decoder", "--check"]),
        [
            "0000000000001000  nop".into(),
            format!("0000000000001001{} {refused}", bytes(" f0 90")),
            "[1c, 1001: xed error: (5) BAD_LOCK_PREFIX]".into(),
            "0000000000001003  ret ".into(),
            "[disabled]".into(),
        ]
    );
    assert_eq!(
        lines("refused-quiet", &code, &trace, &["--insn-decoder", "--no-inst"]),
        ["0000000000001000", "0000000000001001", "0000000000001003", "[disabled]"]
    );
    // The length of an instruction is unknown within a block, so all following bytes are shown, up to fifteen.
    assert_eq!(
        lines("refused-block", &code, &trace, &["--no-inst", "--check", "--stat:insn"]),
        [
            "0000000000001000".into(),
            format!("0000000000001001{} {refused}", bytes(" f0 90 c3")),
            "[1c, 1001: reconstruct error: decoder out of sync]".into(),
            "[1c, 1001: xed error: (5) BAD_LOCK_PREFIX]".into(),
            "[disabled]".into(),
            "insn: 3.".into(),
        ]
    );
}

#[test]
fn a_block_ends_with_its_section_and_an_empty_one_comes_before_an_error_about_code() {
    // 1000: nop; 1001: not mapped. TNT: no event is pending.
    let shown = lines("section-end", &[0x90], &[0x06], &["--no-inst", "--block:show-blocks", "--stat"]);
    assert_eq!(
        shown,
        [
            "[block 1]",
            "0000000000001000",
            "[block 2]",
            "[1c, 1001: error: no memory mapped at this address]",
            "insn: 1.",
            "blocks:\t2.",
        ]
    );
    // On the way to an event the block stays open.
    let event = [0x3d, 0x10, 0x10, 0x01];
    let shown = lines("way-to-event", &[0x90], &event, &["--no-inst", "--block:show-blocks"]);
    assert_eq!(shown, ["[block]", "0000000000001000", "[1e, 1001: error: no memory mapped at this address]"]);
}

#[test]
fn code_that_was_executed_before_makes_longer_blocks() {
    // 1000: nop; 1001: call 1006; 1006: jnz 1000; 1008: ret
    let code = [0x90, 0xe8, 0, 0, 0, 0, 0x75, 0xf8, 0xc3];
    // TNT: taken, not taken.
    let shown = lines("known", &code, &[0x0c, 0x01], &["--no-inst", "--block:show-blocks"]);
    let block = "[block]";
    assert_eq!(
        shown,
        [
            block,
            "0000000000001000",
            "0000000000001001",
            block,
            "0000000000001006",
            block,
            "0000000000001000",
            "0000000000001001",
            "0000000000001006",
            block,
            "0000000000001008",
            "[disabled]",
        ]
    );
}

#[test]
fn the_instruction_decoder_holds_the_packet_after_a_block() {
    // 1000: nop; 1001: nop; 1002: jnz 1000; 1004: ret
    let code = [0x90, 0x90, 0x75, 0xfc, 0xc3];
    // TNT: not taken; CBR; TIP.PGD without an address.
    let trace = [0x04, 0x02, 0x03, 0x0f, 0x00, 0x01];
    let shown = lines("held", &code, &trace, &["--no-inst", "--insn-decoder", "--offset"]);
    let at = |offset: u64, text: &str| format!("{offset:016x}  {text}");
    assert_eq!(
        shown,
        [
            at(0x1c, "0000000000001000"),
            at(0x20, "0000000000001001"),
            at(0x20, "0000000000001002"),
            format!("[{}", at(0x20, "cbr: f]")),
            at(0x21, "0000000000001004"),
            format!("[{}", at(0x21, "disabled]")),
        ]
    );
    // The same if only errors have an offset. 1001: lock nop; 1003: jnz 1000; 1005: ret
    let code = [0x90, 0xf0, 0x90, 0x75, 0xfb, 0xc3];
    let shown = lines("held-check", &code, &trace, &["--quiet", "--insn-decoder", "--check"]);
    assert_eq!(shown, ["[20, 1001: xed error: (5) BAD_LOCK_PREFIX]"]);
}

#[test]
fn counts_are_those_of_the_decoder_or_those_asked_for() {
    let of = |args: &[&str]| lines("counts", &[0xc3], &[0x01], &[&["--quiet"], args].concat());
    assert_eq!(of(&["--stat"]), ["insn: 1.", "blocks:\t1."]);
    assert_eq!(of(&["--insn-decoder", "--stat"]), ["insn: 1."]);
    assert_eq!(of(&["--insn-decoder", "--stat:blocks"]), ["blocks:\t0."]);
    assert_eq!(of(&["--stat:insn", "--stat"]), ["insn: 1."]);
}

/// Returns a 64-bit ELF file with these program headers: type, offset, size and address.
fn elf(headers: &[(u32, u64, u64, u64)]) -> Vec<u8> {
    let mut file = vec![0; 64];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    file[32] = 64;
    file[56] = headers.len() as u8;
    for (kind, offset, size, vaddr) in headers {
        let words = [u64::from(*kind), *offset, *vaddr, 0, *size, *size, 0];
        file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    file
}

#[test]
fn elf_files_that_are_damaged_say_where() {
    let one = elf(&[(1, 0, 2, 0x1000)]);
    let folder = Folder::new(
        "elf",
        &[
            ("t", START),
            ("short", b"\x7fELF"),
            ("class", b"\x7fELF\x03\x01\x01\0\0\0\0\0\0\0\0\0"),
            ("header", &one[..63]),
            ("segment", &one[..119]),
            ("notes", &elf(&[(4, 0, 2, 0x1000)])),
            ("far", &elf(&[(1, 0, 2, 0x2000), (1, 0x1000, 2, 0x1000)])),
            ("cut", &elf(&[(1, 0, 2, 0x2000), (1, 0, 2, 0x1000)])[..170]),
            ("table", &{
                let mut file = one.clone();
                file[39] = 0x80;
                file
            }),
        ],
    );
    let text = "{prog}: warning: ";
    for (argument, out, err, status) in [
        ("none", "", "failed to open none: No such file or directory.", 1),
        (".", "", ". failed to read file header: Is a directory.", 1),
        ("short", "", "short failed to read file header: Success.", 1),
        ("header", "", "header error reading ELF header: Success.", 1),
        ("table", "", "table ELF header too big.", 1),
        ("segment", "", "segment error reading phdr 0: Success.", 1),
        ("t", "", "ignoring t: not an ELF file.", 1),
        ("notes", "", "notes: did not find any load sections.", 0),
        (
            "far",
            "far: offset=0x0 size=0x2 vaddr=0x2000.\n",
            "far: failed to create section for phdr 1: invalid argument.",
            0,
        ),
        ("cut", "cut: offset=0x0 size=0x2 vaddr=0x2000.\n", "cut error reading phdr 1: Success.", 1),
        // Moving the segments requires all of them to be known.
        ("cut:0x1000", "", "cut error reading phdr 1: Success.", 1),
    ] {
        let ran = folder.run(Tool::Ptxed, &["-v", "--quiet", "--elf", argument, "--pt", "t:0-16"]);
        assert_eq!((ran.err, ran.status), (format!("{text}{err}\n"), Some(status)), "{argument}");
        assert_eq!(ran.out, out, "{argument}");
    }
    let ran = folder.run(Tool::Ptxed, &["--elf", "class"]);
    assert_eq!((ran.err.as_str(), ran.status), ("{prog}: unsupported ELF class: 3\n", Some(1)));
}

#[test]
fn errors_of_the_command_line_have_libipts_texts() {
    let folder = Folder::new("ptxed-usage", &[("t", START), ("code", &[0xc3])]);
    for (args, status, text) in [
        (&["--pt", "t", "--pt", "t"][..], 1, "{prog}: duplicate pt sources: t.\n"),
        (&["--pt", "t", "--cpu", "6/78"], 1, "{prog}: please specify cpu before the pt source file.\n"),
        (
            &["--pt", "t", "--filter:addr2_a", "1"],
            1,
            "{prog}: please specify --filter:addr2_a before --pt.\n",
        ),
        (
            &["--pt", "t", "--block-decoder"],
            1,
            "--block-decoder: please specify {prog} before the pt source file.\n",
        ),
        (&["--filter:addr0_cfg", "16"], 1, "{prog}: --filter:addr0_cfg: value too big: 16.\n"),
        (&["--filter:addr4_a", "1"], 1, "{prog}: unknown option: --filter:addr4_a.\n"),
        (&["--pevent", "t"], 1, "{prog}: unknown option: --pevent.\n"),
        (&["--pevent:sample-config"], 1, "{prog}: bad sample config (null): internal error.\n"),
        (&["--pevent:sample-config", "1"], 1, "{prog}: bad sample config 1: invalid argument.\n"),
        (&["--pevent:primary"], 1, "{prog}: --pevent:primary: missing argument.\n"),
        (&["--pevent:kcore"], 1, "{prog}: --pevent:kcore: missing argument.\n"),
        (&["--pevent:kcore", "t"], 1, "{prog}: warning: ignoring t: not an ELF file.\n"),
        (
            &["--raw", "code"],
            1,
            "{prog}: failed to parse base addressfrom 'code'.\n{prog}: --raw: failed to load 'code'.\n",
        ),
        (
            &["--raw", "code:1:0x10"],
            1,
            "{prog}: failed to add code at 0x10: invalid argument.\n{prog}: --raw: failed to load 'code'.\n",
        ),
        (
            &["--raw", "code:2-1:0x10"],
            1,
            "{prog}: bad file code:2-1: invalid argument.\n{prog}: --raw: failed to load 'code:2-1'.\n",
        ),
        (&["--iscache-limit"], 1, "{prog}: --iscache-limit: missing argument.\n"),
        (&["--elf"], 0, "{prog}: --elf: missing argument.\n"),
    ] {
        let ran = folder.run(Tool::Ptxed, args);
        assert_eq!((ran.err.as_str(), ran.status), (text, Some(status)), "{args:?}");
    }
    let ran = folder.run(Tool::Ptxed, &["--cpu", "6/1", "--pt", "none"]);
    assert_eq!(ran.out, "[0, 0: config error: unknown cpu]\n");
    assert_eq!((ran.err.as_str(), ran.status), ("{prog}: failed to open none: 2.\n", Some(1)));
}

/// PSB, MODE.Exec (64 bit), FUP (`here`), PSBEND.
fn psb(here: u16) -> Vec<u8> {
    let [low, high] = here.to_le_bytes();
    [&PSB[..], &[0x99, 0x01, 0x3d, low, high, 0x02, 0x23]].concat()
}

#[test]
fn what_follows_an_event_of_a_branch_belongs_to_a_block() {
    // 1000: nop; 1001: iretq; 1003: nop, 1004: nop; 1005: nop. CFE (IRET), TIP (1004).
    let code = [0x90, 0x48, 0xcf, 0x90, 0x90, 0x90];
    let iret = [0x02, 0x13, 0x02, 0x00, 0x2d, 0x04, 0x10];
    let cbr = [0x02, 0x03, 0x05, 0x00];
    for (name, after, shown) in [
        ("event", &cbr[..], &["[block 2]", "[cbr: 5]", "[end of trace]"][..]),
        ("code", &[0x06], &["[block 2]", "0000000000001004", "0000000000001005"]),
        ("error", &[0xc9], &["[block 2]", "[22, 1004: error: unknown opcode]"]),
        ("end", &[], &["[end of trace]"]),
    ] {
        let args = ["--no-inst", "--block:show-blocks", "--stat:blocks"];
        let lines = lines(&format!("after-{name}"), &code, &[&iret, after].concat(), &args);
        let block = ["[block 1]", "0000000000001000", "0000000000001001", "[iret]"];
        assert_eq!(lines[..4], block, "{name}");
        assert_eq!(lines[4..4 + shown.len()], *shown, "{name}");
    }
}

#[test]
fn the_end_of_tracing_after_a_target_is_of_an_empty_block_and_after_a_call_of_its_block() {
    // 1000: jmp rax; 1002: call 1007; 1007: nop. TIP.PGD (there).
    let code = [0xff, 0xe0, 0xe8, 0, 0, 0, 0, 0x90];
    let args = ["--no-inst", "--block:show-blocks", "--block:end-on-call"];
    for (name, trace, blocks) in [
        ("target", &[0x2d, 0x02, 0x10, 0x21, 0x02, 0x10][..], 2),
        ("call", &[0x2d, 0x02, 0x10, 0x21, 0x07, 0x10], 2),
        ("branch", &[0x01], 1),
    ] {
        let lines = lines(&format!("ends-{name}"), &code, trace, &args);
        assert_eq!(lines.iter().filter(|line| *line == "[block]").count(), blocks, "{name}: {lines:?}");
        assert_eq!(lines.last().unwrap(), "[disabled]", "{name}");
    }
}

#[test]
fn a_psb_in_the_middle_is_where_it_says_and_so_is_the_end_after_it() {
    let code = [0x90; 8];
    assert_eq!(
        lines("psb-place", &code, &[psb(0x1002), psb(0x1003)].concat(), &["--no-inst"]),
        ["0000000000001000", "0000000000001001", "0000000000001002", "[end of trace]"]
    );
}

#[test]
fn an_error_after_a_direct_branch_is_at_its_target_taken_or_not() {
    // 1000: jz 1004; 1002: nop. TNT, then an invalid packet.
    for outcome in [0x04, 0x06] {
        let shown = lines("after-jump", &[0x74, 0x02, 0x90, 0x90, 0x90], &[outcome, 0xc9], &["--no-inst"]);
        assert_eq!(shown, ["0000000000001000", "[1c, 1004: error: unknown opcode]"], "{outcome:x}");
    }
}

#[test]
fn an_error_after_a_mismatch_is_after_the_instruction() {
    // 1000: nop; 1001: call rax; 1003: hlt. FUP (1003), TIP (1000), then an invalid packet.
    let shown = lines(
        "after-mismatch",
        &[0x90, 0xff, 0xd0, 0xf4],
        &[0x3d, 0x03, 0x10, 0x2d, 0x00, 0x10, 0xc9],
        &["--no-inst", "--resync-on-error"],
    );
    assert_eq!(
        shown[2..],
        [
            "[1e, 1001: error: trace stream does not match query]",
            "[interrupt]",
            "[21, 1003: error: unknown opcode]",
            "[21, 1003: resync error: unknown opcode]",
        ]
    );
}

#[test]
fn a_deferred_tip_is_held_until_the_outcomes_before_it_are_used() {
    // 1000: jmp rax; 1002: jz 1004; 1004: nop. TNT, TIP (1002), FUP (1005), TIP.PGD.
    let code = [0xff, 0xe0, 0x74, 0x00, 0x90, 0x90];
    let trace = [0x06, 0x2d, 0x02, 0x10, 0x3d, 0x05, 0x10, 0x01];
    assert_eq!(
        lines("deferred", &code, &trace, &["--no-inst", "--offset"])[..2],
        ["000000000000001c  0000000000001000", "000000000000001c  0000000000001002"]
    );
}

#[test]
fn options_choose_columns_and_details() {
    // 1000: nop; 1001: nop; 1002: nop. TSC, CBR, FUP (1001), TIP (1000), FUP (1001), TIP.PGD.
    let trace = b"\x19\x07\0\0\0\0\0\0\x02\x03\x05\0\x3d\x01\x10\x2d\0\x10\x3d\x01\x10\x01";
    let show =
        |args: &[&str]| lines("columns", &[0x90; 3], trace, &[&["--no-inst"], args].concat()).join("|");
    let (first, at) = ("0000000000001000", "0000000000000007");
    for (args, shown) in [
        (&[][..], format!("[cbr: 5]|{first}|[interrupt]|{first}|[disabled]")),
        (&["--quiet"], String::new()),
        (&["--time"], format!("[cbr: 5]|{at}  {first}|[interrupt]|{at}  {first}|[disabled]")),
        (&["--event:time"], format!("[{at}  cbr: 5]|{first}|[{at}  interrupt]|{first}|[{at}  disabled]")),
        (
            &["--event:ip"],
            format!(
                "[cbr: 5]|{first}|[interrupt, from: 0000000000001001, to: {first}]|{first}|\
                 [disabled, at: 0000000000001001]"
            ),
        ),
        (
            &["--offset"],
            format!(
                "[0000000000000027  cbr: 5]|000000000000002a  {first}|[000000000000002a  interrupt]|\
                 0000000000000030  {first}|[0000000000000030  disabled]"
            ),
        ),
        (&["--quiet", "--stat"], "insn: 2.|blocks:\t2.".into()),
    ] {
        assert_eq!(show(args), shown, "{args:?}");
    }
    // Tick events require --event:tick, and events for RFLAGS.IF require --event:iflags.
    let tick = [0x06, 0x19, 7, 0, 0, 0, 0, 0, 0, 0x06];
    let jumps = |args: &[&str]| lines("ticks", &[0x75, 0xfe], &tick, &[&["--no-inst"], args].concat()).len();
    assert_eq!((jumps(&[]), jumps(&["--event:tick"])), (3, 4));
    let iflags = [0x99, 0x05, 0x3d, 0x00, 0x10];
    let flags = |args: &[&str]| lines("iflags", &[0x90], &iflags, &[&["--no-inst"], args].concat());
    assert_eq!(flags(&["--event:iflags"]), ["[interrupts enabled]", "[end of trace]"]);
    assert_eq!(flags(&[]), ["[end of trace]"]);
}

#[test]
fn a_mode_that_contradicts_is_at_its_place_and_what_else_contradicts_is_after_the_psb() {
    // 1000: nop; 1001: nop; 1002: jnz 1000; 1004: ret
    let code = [0x90, 0x90, 0x75, 0xfc, 0xc3];
    for (name, before, status, line) in [
        // TNT (taken); MODE.Exec (32 bit), FUP (1000).
        ("mode", &[0x06][..], &[0x99, 0x02, 0x3d, 0x00, 0x10][..], "[2c, 1000: error: bad status update]"),
        // The PSB+ says that tracing is off, but tracing continues.
        ("off", &[], &[], "[2b, 0: error: bad status update]"),
        // TIP.PGD: tracing is off. FUP (1000): it is on.
        ("on", &[0x01], &[0x3d, 0x00, 0x10], "[2f, 1000: error: bad status update]"),
    ] {
        let trace = [before, &PSB, status, &[0x02, 0x23]].concat();
        for decoder in ["--insn-decoder", "--block-decoder"] {
            let lines =
                lines(&format!("contradicts-{name}{decoder}"), &code, &trace, &["--no-inst", decoder]);
            assert_eq!(lines.last().unwrap(), line, "{name} {decoder}: {lines:?}");
        }
    }
}

#[test]
fn instructions_that_wait_for_the_end_of_their_block_are_shown_at_the_end_of_the_trace() {
    // 1000: nop; 1001: nop; 1002: jnz 1000. TNT: not taken.
    let code = [0x90, 0x90, 0x75, 0xfc, 0xc3];
    let shown = lines("waiting", &code, &[0x04], &["--no-inst", "--insn-decoder", "--offset"]);
    let insns = [0x1000, 0x1001, 0x1002].map(|ip| format!("{:016x}  {ip:016x}", 0x1c));
    assert_eq!(shown, [&insns[..], &["[end of trace]".to_owned()]].concat());
}
