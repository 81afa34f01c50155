//! The QEMU of this machine: its program, its version, and its emulation of several processors.

use anyhow::{Context, Result};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

/// The name of QEMU's program.
pub const QEMU: &str = "qemu-system-x86_64";

/// The message if the program cannot be started.
pub(crate) const CANNOT_START: &str =
    "cannot start QEMU (`qemu-system-x86_64`; Debian's package qemu-system-x86 has it)";

/// The common part of all machines: a PC whose memory is a file, without a display and a network, which a guest can end
/// by port F4H.
#[derive(Clone, Copy, Debug)]
pub struct Board<'a> {
    /// QEMU's arguments that select how it executes the guest.
    pub accelerator: &'a [&'a str],
    /// Properties of the board, each with a comma before it.
    pub properties: &'a str,
    /// The memory in MiB.
    pub memory: u64,
    /// The file that becomes the memory.
    pub ram: &'a Path,
}

impl Board<'_> {
    /// Returns the command that starts QEMU with this board.
    #[must_use]
    pub fn command(&self) -> Command {
        let Self { accelerator, properties, memory, ram } = *self;
        let backend = format!("memory-backend-file,id=ram,size={memory}M,share=on,mem-path=");
        let mut command = Command::new(QEMU);
        command
            .args(accelerator)
            .args(["-cpu", "max", "-m", &format!("{memory}M")])
            .args(["-machine", &format!("pc,memory-backend=ram{properties}")])
            .arg("-object")
            .arg(with_path(&backend, ram))
            .args(["-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot"])
            .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        command
    }
}

/// Returns the command that starts the program of another one by these words, if there are any: the words, and those
/// of the command. What is set besides words is lost.
#[must_use]
pub fn behind(words: &[OsString], command: Command) -> Command {
    let Some((program, rest)) = words.split_first() else { return command };
    let mut whole = Command::new(program);
    whole.args(rest).arg(command.get_program()).args(command.get_args());
    whole
}

/// Returns the last property of an argument of QEMU's, `prefix`, with a path as its value.
#[must_use]
pub fn with_path(prefix: &str, path: &Path) -> OsString {
    let mut text = prefix.as_bytes().to_vec();
    for &byte in path.as_os_str().as_bytes() {
        // In a value a comma is written twice.
        text.extend_from_slice(if byte == b',' { b",," } else { std::slice::from_ref(&byte) });
    }
    OsString::from_vec(text)
}

/// The first version that never executes stale translations after another vCPU modifies code: by its commit
/// deba78709ae8, "Always lock pages before translation".
const TRANSLATES_SAFELY: (u32, u32) = (8, 1);

/// The first version with a property of the accelerator that gives each instruction a block of its own; older ones have
/// an option for it, which newer ones have removed.
const HAS_ONE_INSN_PER_TB: (u32, u32) = (8, 1);

/// Returns QEMU's version: its first two numbers.
///
/// # Errors
/// If QEMU cannot be started, or does not print a version.
pub fn version() -> Result<(u32, u32)> {
    let output = Command::new(QEMU).arg("--version").output().context(CANNOT_START)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    parse_version(&text)
        .with_context(|| format!("cannot find the version in what `{QEMU} --version` prints: {text:?}"))
}

/// Returns the version in `QEMU emulator version 7.2.22 (…)`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_once("version ")?.1.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Returns the value of `-accel` for a guest that may modify its own code, by QEMU's version and number of processors.
///
/// Before 8.1, a vCPU may translate code while another one writes to it, and the stale translation is kept: Linux,
/// which replaces the first byte of an instruction by an INT3 and then by another byte, executes that INT3 forever. On
/// one thread the vCPUs take turns, and no write occurs during a translation.
#[must_use]
pub const fn accelerator(version: (u32, u32), processors: u16) -> &'static str {
    if processors > 1 && is_older(version, TRANSLATES_SAFELY) { "tcg,thread=single" } else { "tcg" }
}

/// Returns QEMU's arguments with which each instruction is executed separately, by the version of QEMU.
#[must_use]
pub const fn one_by_one(version: (u32, u32)) -> &'static [&'static str] {
    if is_older(version, HAS_ONE_INSN_PER_TB) {
        &["-accel", "tcg", "-singlestep"]
    } else {
        &["-accel", "tcg,one-insn-per-tb=on"]
    }
}

const fn is_older(version: (u32, u32), than: (u32, u32)) -> bool {
    version.0 < than.0 || version.0 == than.0 && version.1 < than.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_path_does_not_end_it() {
        for (path, expected) in [("/a/b", "file=/a/b"), ("/a,b,,c", "file=/a,,b,,,,c"), ("", "file=")] {
            assert_eq!(with_path("file=", Path::new(path)), *expected);
        }
    }

    #[test]
    fn another_program_starts_qemu_with_its_arguments() {
        let mut command = Command::new("q");
        command.args(["-a", "b c"]);
        let whole = behind(&["record".into(), "--".into()], command);
        assert_eq!(whole.get_program(), "record");
        assert_eq!(whole.get_args().collect::<Vec<_>>(), ["--", "q", "-a", "b c"]);
        assert_eq!(behind(&[], Command::new("q")).get_program(), "q");
    }

    #[test]
    fn reads_qemus_version() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright";
        assert_eq!(parse_version(debian), Some((7, 2)));
        assert_eq!(parse_version("QEMU emulator version 10.0.2"), Some((10, 0)));
        assert_eq!(parse_version("something else"), None);
    }

    #[test]
    fn each_version_executes_singly_by_its_own_arguments() {
        for (version, expected) in [
            ((7, 2), &["-accel", "tcg", "-singlestep"][..]),
            ((8, 0), &["-accel", "tcg", "-singlestep"]),
            ((8, 1), &["-accel", "tcg,one-insn-per-tb=on"]),
            ((10, 0), &["-accel", "tcg,one-insn-per-tb=on"]),
        ] {
            assert_eq!(one_by_one(version), expected, "{version:?}");
        }
    }

    #[test]
    fn several_processors_take_turns_in_an_old_qemu() {
        for (version, processors, expected) in [
            ((7, 2), 1, "tcg"),
            ((7, 2), 2, "tcg,thread=single"),
            ((8, 0), 2, "tcg,thread=single"),
            ((8, 1), 2, "tcg"),
            ((9, 0), 4, "tcg"),
        ] {
            assert_eq!(accelerator(version, processors), expected, "{version:?}, {processors} processors");
        }
    }
}
