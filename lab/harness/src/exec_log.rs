//! Reads QEMU's own execution log, with which the monitor's truth is compared.
//!
//! QEMU writes a line for each block of instructions that it enters, and before a block's first line the bytes of its
//! instructions. It also writes each exit of the SVM guest, with its reason and the guest's RIP, which shows the
//! outcome of an instruction. The guest leaves a block at its end, or earlier for the next address in the log.
//! [`crate::qemu_log`] compares the truth with this log.

use anyhow::{Context, Result, ensure};
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use crate::scratch::open;

/// The bit of QEMU's translation flags that marks code of an SVM guest.
const SVM_GUEST: u64 = 1 << 21;
/// The bits that hold the privilege level.
const CPL: u64 = 0b11;
/// SVM's codes of exits between two blocks: a debug exception, an interrupt, an NMI.
///
/// Source: AMD64 Architecture Programmer's Manual, vol. 2, appendix C, "SVM Intercept Exit Codes".
const BETWEEN_BLOCKS: [u64; 3] = [0x41, 0x60, 0x61];
/// The common beginning of the names of the log's files.
const NAME: &str = "log.";

/// The granularity of QEMU's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// For each block of instructions. Only for a machine with one processor.
    Blocks,
    /// For each instruction, of a machine that executes [singly](crate::machine::Machine::singly), which takes several
    /// times as long. Several processors share the blocks, so without this a processor's log would lack the bytes of
    /// blocks that another processor entered first.
    Instructions,
}

/// Returns QEMU's arguments for a log, in `folder`, of the instructions in `ranges`.
#[must_use]
pub fn arguments(folder: &Path, ranges: &[Range<u64>]) -> Vec<String> {
    let range = |range: &Range<u64>| format!("{:#x}..{:#x}", range.start, range.end - 1);
    let filter = ranges.iter().map(range).collect::<Vec<_>>().join(",");
    // One file per thread, because exits do not name their processor.
    let files = folder.join(format!("{NAME}%d")).to_string_lossy().into_owned();
    ["-d", "exec,nochain,in_asm,tid", "-D", &files, "-dfilter", &filter].map(ToString::to_string).to_vec()
}

/// The execution of a processor as an SVM guest.
#[derive(Clone, Debug, Default)]
pub struct ExecLog {
    /// The addresses of the instructions that the processor began.
    pub(crate) begun: Vec<u64>,
    /// The privilege level of each of these instructions.
    pub(crate) levels: Vec<u8>,
    pub(crate) exits: Vec<Exit>,
    /// The addresses of string instructions with a REP prefix.
    pub(crate) repeating: HashSet<u64>,
    /// The addresses of short jumps to themselves.
    pub(crate) selves: HashSet<u64>,
    /// The bytes of the instructions, by their addresses.
    pub(crate) code: HashMap<u64, Vec<u8>>,
}

impl ExecLog {
    /// Adds the instructions of a block that the guest enters.
    fn enter(&mut self, block: &[u64], level: u8) {
        self.begun.extend(block);
        self.levels.resize(self.begun.len(), level);
    }

    /// Removes `block`, which QEMU has entered but not executed, because it had something else to do first.
    fn withdraw(&mut self, block: &[u64]) {
        self.begun.truncate(self.begun.len() - block.len());
        self.levels.truncate(self.begun.len());
    }

    /// Handles the guest's move from `block` to `next`. If `next` is in the block and the block's end cannot lead
    /// there, or `faulted` (an instruction of the block caused the exit), the guest left the block at `next`: that
    /// instruction was begun, and those after it were not.
    fn leave(&mut self, block: &[u64], next: u64, faulted: bool) {
        let Some(left) = block.iter().position(|&address| address == next) else { return };
        let Some(last) = block.last().filter(|_| block.len() > 1) else { return };
        if faulted || !self.leads(*last, next) {
            self.begun.truncate(self.begun.len() - block.len() + left + 1);
            self.levels.truncate(self.begun.len());
        }
    }

    /// Returns true if the instruction at `address` can lead to `next`.
    fn leads(&self, address: u64, next: u64) -> bool {
        let Some(code) = self.code.get(&address) else { return true };
        let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
        match instruction.flow_control() {
            FlowControl::Next => instruction.next_ip() == next,
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::Call => {
                [instruction.near_branch_target(), instruction.next_ip()].contains(&next)
            }
            _ => true,
        }
    }
}

/// An exit from the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Number of instructions that were begun before it.
    pub(crate) after: usize,
    /// The reason, as SVM encodes it.
    pub(crate) code: u64,
    /// The guest's RIP.
    pub(crate) rip: u64,
}

/// Reads the execution of `processor` from the log in `folder`.
///
/// # Errors
/// If a file cannot be read, a line has an unknown form, or the instructions of a block were not shown.
pub fn read(folder: &Path, processor: u16, lines: Lines) -> Result<ExecLog> {
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        if file.file_name().to_string_lossy().starts_with(NAME)
            && let Some(log) = read_file(&file.path(), processor, lines)?
        {
            ensure!(!log.exits.is_empty(), "QEMU has not logged the guest's exits");
            return Ok(log);
        }
    }
    Ok(ExecLog::default())
}

/// Reads one thread's file; `None` if the thread did not run this processor as a guest.
fn read_file(path: &Path, processor: u16, lines: Lines) -> Result<Option<ExecLog>> {
    let mut log = ExecLog::default();
    // The address of the last instruction, if the line before this one has bytes of it.
    let mut begins = None;
    // The instructions' addresses: of each block by its place in QEMU's memory, of the block that was translated last,
    // and of the block that the guest is in.
    let mut blocks: HashMap<u64, Rc<[u64]>> = HashMap::new();
    let mut translated = Vec::new();
    let mut inside: Rc<[u64]> = Rc::default();
    let mut text = BufReader::new(open(path)?);
    let mut line = String::new();
    while {
        line.clear();
        text.read_line(&mut line)? > 0
    } {
        if line.starts_with("Trace ") {
            let entry = trace_line(&line).with_context(|| format!("unknown form: {line:?}"))?;
            if entry.processor != processor {
                return Ok(None);
            }
            if !translated.is_empty() {
                blocks.insert(entry.block, std::mem::take(&mut translated).into());
            }
            if entry.flags & SVM_GUEST != 0 {
                log.leave(&inside, entry.address, false);
                inside = if lines == Lines::Instructions {
                    [entry.address].into()
                } else {
                    let block = blocks.get(&entry.block);
                    let block = block.filter(|block| block.first() == Some(&entry.address));
                    block.with_context(|| format!("the block is not known: {line:?}"))?.clone()
                };
                log.enter(&inside, (entry.flags & CPL) as u8);
            }
        } else if let Some(address) = stop_line(&line) {
            if inside.first() == Some(&address) {
                log.withdraw(&std::mem::take(&mut inside));
            }
        } else if line.starts_with("vmexit(") {
            let (code, rip) = exit_line(&line).with_context(|| format!("unknown form: {line:?}"))?;
            log.leave(&inside, rip, !BETWEEN_BLOCKS.contains(&code));
            inside = Rc::default();
            log.exits.push(Exit { after: log.begun.len(), code, rip });
        } else if let Some(LoggedBytes { address, bytes, begins: is_first }) = code_line(&line) {
            if !is_first && let Some(begun) = begins.and_then(|begins| log.code.get_mut(&begins)) {
                begun.extend(bytes);
                continue;
            }
            if is_repeated(&bytes) {
                log.repeating.insert(address);
            } else if matches!(bytes[..], [0x70..=0x7f | 0xe0..=0xe3 | 0xeb, 0xfe]) {
                log.selves.insert(address);
            }
            log.code.insert(address, bytes);
            translated.push(address);
            begins = Some(address);
            continue;
        }
        begins = None;
    }
    Ok((!log.begun.is_empty()).then_some(log))
}

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
struct LogEntry {
    processor: u16,
    /// QEMU's address of the block.
    block: u64,
    address: u64,
    flags: u64,
}

/// Parses `Trace processor: 0x… [cs_base/pc/flags/cflags] …`.
fn trace_line(line: &str) -> Option<LogEntry> {
    let (processor, rest) = line.strip_prefix("Trace ")?.split_once(':')?;
    let (block, fields) = rest.split_once('[')?;
    let block = u64::from_str_radix(block.trim().strip_prefix("0x")?, 16).ok()?;
    let mut fields = fields.split_once(']')?.0.split('/');
    let mut hex = || u64::from_str_radix(fields.next()?, 16).ok();
    let (_cs_base, address, flags) = (hex()?, hex()?, hex()?);
    Some(LogEntry { processor: processor.parse().ok()?, block, address, flags })
}

/// Parses `Stopped execution of TB chain before 0x… [pc] …`, which follows the line of a block that was not
/// executed, and returns the address of that block.
fn stop_line(line: &str) -> Option<u64> {
    let fields = line.strip_prefix("Stopped execution of TB chain before ")?.split_once('[')?.1;
    u64::from_str_radix(fields.split_once(']')?.0, 16).ok()
}

/// Parses `vmexit(code, information, information, rip)!` and returns the code and RIP.
fn exit_line(line: &str) -> Option<(u64, u64)> {
    let fields = line.strip_prefix("vmexit(")?.split_once(')')?.0;
    let mut hex = fields.split(", ").map(|field| u64::from_str_radix(field, 16).ok());
    let code = hex.next()??;
    Some((code, hex.nth(2)??))
}

/// Bytes of an instruction.
#[derive(Debug, PartialEq, Eq)]
struct LoggedBytes {
    address: u64,
    bytes: Vec<u8>,
    /// The instruction begins here; otherwise these bytes continue the previous line.
    begins: bool,
}

/// Parses `0xaddress:  bytes  mnemonic`; the mnemonic is absent if the bytes continue the previous line.
fn code_line(line: &str) -> Option<LoggedBytes> {
    let (address, rest) = line.strip_prefix("0x")?.split_once(':')?;
    let byte = |word: &str| u8::from_str_radix(word, 16).ok().filter(|_| word.len() == 2);
    let mut words = rest.split_whitespace().peekable();
    let bytes = std::iter::from_fn(|| words.next_if(|word| byte(word).is_some()).and_then(byte)).collect();
    Some(LoggedBytes {
        address: u64::from_str_radix(address, 16).ok()?,
        bytes,
        begins: words.peek().is_some(),
    })
}

/// Returns true if the bytes are a string instruction with a REP prefix.
fn is_repeated(bytes: &[u8]) -> bool {
    let opcode = opcode(bytes);
    let prefixes = &bytes[..bytes.len() - opcode.len()];
    let repeated = prefixes.iter().any(|byte| matches!(byte, 0xf2 | 0xf3));
    repeated && matches!(opcode, [0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf, ..])
}

/// Returns the bytes of an instruction of 64-bit code from its opcode on.
pub(crate) fn opcode(bytes: &[u8]) -> &[u8] {
    let is_prefix =
        |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3);
    let prefixes = bytes.iter().take_while(|byte| is_prefix(byte)).count();
    &bytes[prefixes..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_form_that_qemu_writes() {
        let line = "Trace 3: 0x7f5b3c000100 [0000000000000000/0000000000101234/00a0c0b3/ff000201] main";
        let entry =
            LogEntry { processor: 3, block: 0x7f5b_3c00_0100, address: 0x10_1234, flags: 0x00a0_c0b3 };
        assert_eq!(trace_line(line), Some(entry));
        assert_eq!(trace_line("Trace 0: 0x7f5b3c000100"), None);
        let exit = "vmexit(0000004e, 0000000000000002, 0000010000000000, 0000000000101761)!";
        assert_eq!(exit_line(exit), Some((0x4e, 0x10_1761)));
        assert_eq!(exit_line("vmexit(0000004e, 0000000000000002)!"), None);
    }

    #[test]
    fn a_block_that_was_not_executed_is_not_in_the_log() {
        // Two NOPs and a RET, which could lead back to the first of them.
        let text = "\
            0x00001000:  90                       nop\n\
            0x00001001:  90                       nop\n\
            0x00001002:  c3                       retq\n\
            Trace 0: 0x7f00 [0000000000000000/0000000000001000/0070c2b0/ff020201] \n\
            Stopped execution of TB chain before 0x7f00 [0000000000001000] name\n\
            Trace 0: 0x7f00 [0000000000000000/0000000000001000/0070c2b0/ff020201] \n\
            0x00002000:  f4                       hlt\n\
            Trace 0: 0x7f10 [0000000000000000/0000000000002000/0070c2b0/ff020201] \n\
            Stopped execution of TB chain before 0x7a00 [0000000010000000] the monitor\n\
            vmexit(00000078, 0000000000000000, 0000000000000000, 0000000000002000)!\n";
        let scratch = crate::scratch::Scratch::new().unwrap();
        std::fs::write(scratch.file("log.1"), text).unwrap();
        let log = read(scratch.folder(), 0, Lines::Blocks).unwrap();
        assert_eq!((log.begun, log.levels), (vec![0x1000, 0x1001, 0x1002, 0x2000], vec![0; 4]));
        assert_eq!(log.exits, [Exit { after: 4, code: 0x78, rip: 0x2000 }]);
    }

    #[test]
    fn repeated_instructions_are_known_by_their_bytes() {
        for (line, expected) in [
            ("0x00101761:  48 c7 45 00 00 00 00 00  movq     $0, (%rbp)", None),
            ("0x00101761:  f3 48 a5                 rep movsq (%rsi), (%rdi)", Some(0x10_1761)),
            ("0x00101761:  f2 ae                    repne scasb", Some(0x10_1761)),
            ("0x00101761:  a4                       movsb", None),
            ("0x00101761:  f3 90                    pause", None),
            ("0x00101761:  f3 0f 1e fa              endbr64", None),
        ] {
            let repeated = code_line(line).filter(|code| is_repeated(&code.bytes)).map(|code| code.address);
            assert_eq!(repeated, expected, "{line}");
        }
    }

    #[test]
    fn a_log_is_what_the_processor_did_as_a_guest() {
        let text = "\
            IN: \n\
            0x00126fa9:  48 c7 05 54 c0 0e 00 02  movq     $2, 0xec054(%rip)\n\
            0x00126fb1:  00 00 00\n\
            \n\
            Trace 1: 0x7f00 [0000000000000000/0000000000126fa9/0070c2b3/ff020201] \n\
            Trace 1: 0x7a00 [0000000000000000/0000000010000000/0050c2b0/ff020201] the monitor\n\
            vmexit(00000041, 0000000000000000, 0000000000000000, 0000000000126fb4)!\n\
            0x00126fb4:  f3 a4                    rep movsb (%rsi), (%rdi)\n\
            Trace 1: 0x7f10 [0000000000000000/0000000000126fb4/0070c2b0/ff020201] \n\
            0x00126fb6:  75 fe                    jne      0x126fb6\n\
            Trace 1: 0x7f20 [0000000000000000/0000000000126fb6/0070c2b0/ff020201] \n";
        let scratch = crate::scratch::Scratch::new().unwrap();
        std::fs::write(scratch.file("log.7"), text).unwrap();
        let log = read(scratch.folder(), 1, Lines::Blocks).unwrap();
        assert_eq!((log.begun, log.levels), (vec![0x12_6fa9, 0x12_6fb4, 0x12_6fb6], vec![3, 0, 0]));
        assert_eq!(log.exits, [Exit { after: 1, code: 0x41, rip: 0x12_6fb4 }]);
        assert_eq!((log.repeating, log.selves), (HashSet::from([0x12_6fb4]), HashSet::from([0x12_6fb6])));
        let long = vec![0x48, 0xc7, 0x05, 0x54, 0xc0, 0x0e, 0x00, 0x02, 0, 0, 0];
        let code = [(0x12_6fa9, long), (0x12_6fb4, vec![0xf3, 0xa4]), (0x12_6fb6, vec![0x75, 0xfe])];
        assert_eq!(log.code, HashMap::from(code));
        // Other processors have no log.
        for other in [0, 2] {
            assert!(read(scratch.folder(), other, Lines::Blocks).unwrap().begun.is_empty());
        }
        // Without the exits the outcome of an instruction is unknown.
        std::fs::write(scratch.file("log.7"), text.replace("vmexit", "")).unwrap();
        assert!(read(scratch.folder(), 1, Lines::Blocks).is_err());
        // A line of an unknown form is an error.
        std::fs::write(scratch.file("log.7"), format!("{text}vmexit(00000041)!\n")).unwrap();
        assert!(read(scratch.folder(), 1, Lines::Blocks).is_err());
    }

    #[test]
    fn a_block_is_left_at_its_end_or_where_the_log_has_the_guest_next() {
        let code = "\
            IN: \n\
            0x00001000:  90                       nop\n\
            0x00001001:  8b 00                    movl     (%rax), %eax\n\
            0x00001003:  8b 01                    movl     (%rcx), %eax\n";
        let all = [0x1000, 0x1001, 0x1003];
        // The end of the block, the next line, and the number of its instructions that were begun.
        for (end, after, begun) in [
            ("0x00001005:  75 f9  jne 0x1000", Next::Line(0x2000), 4),
            // The branch leads back; or it cannot lead there, so a request to the processor ended the block at that
            // instruction.
            ("0x00001005:  75 f9  jne 0x1000", Next::Line(0x1000), 4),
            ("0x00001005:  75 09  jne 0x1010", Next::Line(0x1000), 1),
            ("0x00001005:  75 09  jne 0x1010", Next::Line(0x1001), 2),
            ("0x00001005:  90     nop", Next::Line(0x1003), 3),
            ("0x00001005:  90     nop", Next::Line(0x1006), 4),
            // A return can lead anywhere.
            ("0x00001005:  c3     retq", Next::Line(0x1001), 4),
            // Page faults, also at the branch.
            ("0x00001005:  75 f9  jne 0x1000", Next::Exit(0x4e, 0x1000), 1),
            ("0x00001005:  c3     retq", Next::Exit(0x4e, 0x1003), 3),
            ("0x00001005:  c3     retq", Next::Exit(0x4e, 0x1005), 4),
            // Exits between two blocks: a breakpoint, an interrupt, an NMI.
            ("0x00001005:  75 f9  jne 0x1000", Next::Exit(0x41, 0x1000), 4),
            ("0x00001005:  75 09  jne 0x1010", Next::Exit(0x60, 0x1000), 1),
            ("0x00001005:  75 09  jne 0x1010", Next::Exit(0x61, 0x1010), 4),
        ] {
            let line = |block, address: u64| format!("Trace 0: {block} [0/{address:016x}/0070c2b0/0] \n");
            let next = match after {
                Next::Line(address) => format!("0x{address:08x}:  90  nop\n{}", line("0x7f80", address)),
                Next::Exit(code, rip) => format!("vmexit({code:08x}, 0, 0, {rip:016x})!\n"),
            };
            let scratch = crate::scratch::Scratch::new().unwrap();
            let last = "vmexit(00000072, 0, 0, 0)!\n";
            let text = format!("{code}{end}\n\n{}{next}{last}", line("0x7f00", 0x1000));
            std::fs::write(scratch.file("log.0"), text).unwrap();
            let log = read(scratch.folder(), 0, Lines::Blocks).unwrap();
            let mut expected: Vec<u64> = all.into_iter().chain([0x1005]).take(begun).collect();
            expected.extend(if let Next::Line(address) = after { Some(address) } else { None });
            assert_eq!(log.begun, expected, "{end} {after:x?}");
            assert_eq!((log.levels.len(), log.exits[0].after), (expected.len(), expected.len()));
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Next {
        Line(u64),
        Exit(u64, u64),
    }

    #[test]
    fn a_block_that_was_never_shown_is_not_passed_over() {
        let shown = "0x00001000:  90  nop\n";
        let line = |address| format!("Trace 0: 0x7f00 [0/{address}/0070c2b0/0] \n");
        let end = "vmexit(00000072, 0, 0, 0)!\n";
        let scratch = crate::scratch::Scratch::new().unwrap();
        for (text, known) in [
            (format!("{shown}{}{}{end}", line("1000"), line("1000")), true),
            (format!("{}{end}", line("1000")), false),
            (format!("{shown}{}{}{end}", line("1000"), line("1001")), false),
        ] {
            std::fs::write(scratch.file("log.0"), &text).unwrap();
            assert_eq!(read(scratch.folder(), 0, Lines::Blocks).is_ok(), known, "{text}");
            assert!(read(scratch.folder(), 0, Lines::Instructions).is_ok(), "{text}");
        }
    }
}
