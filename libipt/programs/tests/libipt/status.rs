//! The exit statuses of the programs where their output cannot be written.

use crate::run::{Folder, Tool};
use std::fs::File;

/// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, taken).
const TRACE: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x0e";
/// 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000.
const CODE: [u8; 8] = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];

/// Command lines that print something.
const PRINTING: [(Tool, &[&str]); 6] = [
    (Tool::Ptdump, &["trace"]),
    (Tool::Ptdump, &["--help"]),
    (Tool::Ptdump, &["--version"]),
    (Tool::Ptxed, &["--raw", "code:0x1000", "--pt", "trace"]),
    (Tool::Ptxed, &["--help"]),
    (Tool::Ptxed, &["--version"]),
];

fn folder(name: &str) -> Folder {
    Folder::new(name, &[("trace", TRACE), ("code", &CODE)])
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_a_failure_with_a_reason() {
    let folder = folder("full");
    for (tool, arguments) in PRINTING {
        folder.lines(tool, arguments);
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = folder.command(tool, arguments).stdout(full).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{tool:?} {arguments:?}: {stderr}");
        assert!(stderr.contains("No space left on device"), "{tool:?} {arguments:?}: {stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let folder = folder("closed");
    for (tool, arguments) in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = folder.command(tool, arguments).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), output.stderr), (Some(0), vec![]), "{tool:?} {arguments:?}");
    }
}

#[test]
fn a_message_that_cannot_be_written_changes_no_status() {
    let folder = folder("silent");
    let Ok(full) = File::options().write(true).open("/dev/full") else { return };
    for (tool, arguments) in [(Tool::Ptdump, &["missing"][..]), (Tool::Ptxed, &["--pt", "missing"])] {
        let full = full.try_clone().unwrap();
        let output = folder.command(tool, arguments).stderr(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{tool:?} {arguments:?}");
    }
}
