//! Recordings that `--image` names: their code, processor and clocks.

use crate::run::{Folder, Tool};
use pugmark_decoder_core::packet::PSB;
use serde_json::{Value, json};

/// MODE.Exec (64 bit), FUP (1000), PSBEND.
const STATE: &[u8] = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
/// TNT (taken, taken).
const TNT: &[u8] = b"\x0e";
/// 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000.
const CODE: [u8; 8] = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];

/// Writes a recording with this trace into the folder `rec`.
fn part(folder: &Folder, trace: &[&[u8]], truth: &Value) {
    let image = json!({"sections": [{"file": "code.bin", "offset": 0, "len": 8, "vaddr": 0x1000}]});
    folder.add("rec/trace.pt", &trace.concat());
    folder.add("rec/code.bin", &CODE);
    folder.add("rec/image.json", image.to_string().as_bytes());
    folder.add("rec/truth.json", truth.to_string().as_bytes());
}

#[test]
fn each_program_prints_the_names_of_processors() {
    let folder = Folder::new("list", &[]);
    for tool in [Tool::Ptdump, Tool::Ptxed] {
        let shown = folder.lines(tool, &["--cpu", "list"]);
        assert!(
            shown.len() > 40 && shown.iter().any(|line| line.contains("skylake           6/94 ")),
            "{shown:?}"
        );
    }
}

#[test]
fn an_image_makes_the_command_lines_of_ptdump_and_ptxed_short() {
    let folder = Folder::new("image", &[]);
    // TSC (1000), TMA, CBR, MTC, which together give the time.
    let timing = b"\x19\0\x10\0\0\0\0\0\x02\x73\x10\0\0\x02\0\x02\x03\x02\0\x59\x03";
    // MTC, FUP (1006), TIP.PGD: an event with a time for ptxed to show.
    let end = b"\x59\x05\x3d\x06\x10\x01";
    let cpuid = json!({"eax": 1, "ebx": 4});
    let truth = json!({"cpu": "6/94/3", "mtc_freq": 3, "nom_freq": 4, "cpuid_15h": cpuid});
    part(&folder, &[&PSB, STATE, timing, TNT, end], &truth);
    let same = |program: Tool, short: &[&str], long: &[&str]| {
        let [short, long] = [short, long].map(|arguments| folder.run(program, arguments));
        assert_eq!((short.err.as_str(), short.status), ("", Some(0)));
        assert_eq!(short.out, long.out, "{}", long.err);
        short.out
    };
    let clocks = ["--mtc-freq", "3", "--nom-freq", "4", "--cpuid-0x15.eax", "1", "--cpuid-0x15.ebx", "4"];
    let long = [&["--time", "--cpu", "6/94/3"], &clocks[..], &["rec/trace.pt"]].concat();
    for image in
        [&["--image", "rec"][..], &["--image", "rec/image.json"], &["--image", "rec", "rec/trace.pt"]]
    {
        let shown = same(Tool::Ptdump, &[&["--time"], image].concat(), &long);
        assert!(shown.contains("mtc        3") && shown.contains("tsc  "), "{shown}");
    }
    let code = ["--raw", "rec/code.bin:0x1000", "--time", "--event:time", "--cpu", "skylake"];
    let long = [&code[..], &clocks, &["--pt", "rec/trace.pt"]].concat();
    for image in
        [&["--image", "rec"][..], &["--image", "rec/image.json"], &["--image", "rec", "--pt", "rec/trace.pt"]]
    {
        let shown = same(Tool::Ptxed, &[&["--time", "--event:time"], image].concat(), &long);
        assert!(shown.contains("0000000000001006  jmp") && shown.contains("  disabled]"), "{shown}");
    }
    // The command line overrides the recording.
    let other = ["--time", "--cpu", "none", "--mtc-freq", "4"];
    let long = [&other[..], &clocks[2..], &["rec/trace.pt"]].concat();
    same(Tool::Ptdump, &[&other[..], &["--image", "rec"]].concat(), &long);
    let long = [&code[..4], &clocks[2..], &other[1..], &["--pt", "rec/trace.pt"]].concat();
    same(Tool::Ptxed, &[&["--event:time"], &other[..], &["--image", "rec"]].concat(), &long);
    for (program, arguments, reason) in [
        (Tool::Ptdump, &["--image", "none"][..], "failed to load image none: No such file or directory."),
        (Tool::Ptxed, &["--image", "none"], "failed to load image none: No such file or directory."),
        (
            Tool::Ptxed,
            &["--image", "rec/truth.json"],
            "failed to load image rec/truth.json: missing field `sections`",
        ),
        (Tool::Ptxed, &["--pt", "rec/trace.pt", "--image", "rec"], "please specify --image before --pt."),
        (Tool::Ptxed, &["--image"], "--image: missing argument."),
    ] {
        let ran = folder.run(program, arguments);
        assert!(ran.err.contains(reason), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn a_given_processor_goes_before_the_recordings_own() {
    let folder = Folder::new("cpu", &[]);
    let unknown = "config error: unknown cpu]";
    for (described, given, is_unknown) in [
        ("6/94/3", &[][..], false),
        ("6/1/0", &[], true),
        ("6/94/3", &["--cpu", "6/1"], true),
        ("6/1/0", &["--cpu", "6/94"], false),
        ("6/1/0", &["--cpu", "none"], false),
    ] {
        let truth = json!({"cpu": described});
        part(&folder, &[&PSB, STATE, TNT], &truth);
        // In both orders, and with and without the trace's name.
        for arguments in [
            [given, &["--image", "rec"]].concat(),
            [&["--image", "rec"], given].concat(),
            [&["--image", "rec"], given, &["--pt", "rec/trace.pt"]].concat(),
        ] {
            let shown = folder.run(Tool::Ptxed, &arguments).out;
            assert_eq!(shown.contains(unknown), is_unknown, "{described} {arguments:?}: {shown}");
        }
        for arguments in [[given, &["--image", "rec"]].concat(), [&["--image", "rec"], given].concat()] {
            let shown = folder.run(Tool::Ptdump, &arguments);
            let shown = shown.out + &shown.err;
            assert_eq!(shown.contains("unknown cpu"), is_unknown, "{described} {arguments:?}: {shown}");
        }
    }
}
