//! The registers of an x86-64 processor as GDB knows them, of which a trace has one: RIP.

use gdbstub::arch::{Arch, Registers};
use std::{fmt::Write, sync::LazyLock};

/// The architecture.
#[derive(Debug)]
pub(super) enum X86_64 {}

impl Arch for X86_64 {
    type Usize = u64;
    type Registers = KnownRegisters;
    type BreakpointKind = usize;
    type RegId = ();

    fn target_description_xml() -> Option<&'static str> {
        Some(&DESCRIPTION)
    }
}

/// The registers that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownRegisters {
    /// The address of the next instruction.
    pub(super) rip: Option<u64>,
}

impl Registers for KnownRegisters {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        self.rip.unwrap_or(0)
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        for (name, bits, _) in FEATURES.iter().flat_map(|(_, registers)| registers.iter()).flat_map(each) {
            match self.rip.filter(|_| name == RIP) {
                Some(rip) => rip.to_le_bytes().into_iter().for_each(|byte| write_byte(Some(byte))),
                None => (0..bits / 8).for_each(|_| write_byte(None)),
            }
        }
    }

    fn gdb_deserialize(&mut self, _: &[u8]) -> Result<(), ()> {
        // Nothing is written: the answer to GDB says so.
        Ok(())
    }
}

/// The name of the instruction pointer.
const RIP: &str = "rip";

/// Registers that follow one another: their names, the size of each in bits, and its type.
type RegisterRow = (&'static str, usize, &'static str);

/// Lists the registers of a row.
fn each((names, bits, kind): &RegisterRow) -> impl Iterator<Item = (&str, usize, &str)> {
    names.split(' ').map(|name| (name, *bits, *kind))
}

/// The registers in the order of the protocol, which is that of their numbers in GDB.
///
/// Source: GDB, gdb/features/i386: 64bit-core.xml, 64bit-sse.xml, 64bit-linux.xml, 64bit-segments.xml.
const FEATURES: [(&str, &[RegisterRow]); 4] = [
    (
        "org.gnu.gdb.i386.core",
        &[
            ("rax rbx rcx rdx rsi rdi", 64, "int64"),
            ("rbp rsp", 64, "data_ptr"),
            ("r8 r9 r10 r11 r12 r13 r14 r15", 64, "int64"),
            (RIP, 64, "code_ptr"),
            ("eflags cs ss ds es fs gs", 32, "int32"),
            ("st0 st1 st2 st3 st4 st5 st6 st7", 80, "i387_ext"),
            ("fctrl fstat ftag fiseg fioff foseg fooff fop", 32, "int"),
        ],
    ),
    (
        "org.gnu.gdb.i386.sse",
        &[
            (
                "xmm0 xmm1 xmm2 xmm3 xmm4 xmm5 xmm6 xmm7 xmm8 xmm9 xmm10 xmm11 xmm12 xmm13 xmm14 xmm15",
                128,
                "uint128",
            ),
            ("mxcsr", 32, "int"),
        ],
    ),
    ("org.gnu.gdb.i386.linux", &[("orig_rax", 64, "int")]),
    ("org.gnu.gdb.i386.segments", &[("fs_base gs_base", 64, "int")]),
];

/// The description of the registers for GDB.
static DESCRIPTION: LazyLock<String> = LazyLock::new(|| {
    let mut text = "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target>\
                    <architecture>i386:x86-64</architecture><osabi>GNU/Linux</osabi>"
        .to_owned();
    for (feature, registers) in FEATURES {
        text += &format!("<feature name=\"{feature}\">");
        for (name, bits, kind) in registers.iter().flat_map(each) {
            // Writing to a string cannot fail.
            let _ = write!(text, "<reg name=\"{name}\" bitsize=\"{bits}\" type=\"{kind}\"/>");
        }
        text += "</feature>";
    }
    text + "</target>"
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rip_is_the_17th_register_and_no_other_is_known() {
        for rip in [None, Some(0x1122_3344_5566_7788_u64)] {
            let mut bytes = vec![];
            KnownRegisters { rip }.gdb_serialize(|byte| bytes.push(byte));
            // GDB's own count of the bytes of these features.
            assert_eq!(bytes.len(), 17 * 8 + 7 * 4 + 8 * 10 + 8 * 4 + 16 * 16 + 4 + 8 + 16);
            let known: Vec<_> =
                bytes.iter().enumerate().filter_map(|(at, byte)| Some((at, (*byte)?))).collect();
            let expected = rip.map(|rip| (128..).zip(rip.to_le_bytes()).collect());
            assert_eq!(known, expected.unwrap_or_else(Vec::new));
        }
    }

    #[test]
    fn the_description_has_every_register_once() {
        let text = X86_64::target_description_xml().unwrap();
        let document = roxmltree::Document::parse_with_options(
            text,
            roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() },
        );
        let document = document.unwrap();
        let registers = document.descendants().filter(|node| node.has_tag_name("reg"));
        let mut names: Vec<_> = registers.filter_map(|node| node.attribute("name")).collect();
        assert_eq!((names.len(), names[16]), (17 + 7 + 8 + 8 + 17 + 3, "rip"));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 60);
    }
}
