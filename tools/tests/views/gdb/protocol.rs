//! The protocol itself, as a debugger speaks it.

use super::{PUGMARK, Recorded};
use std::{
    io::{Read, Write},
    process::{Child, Command, Stdio},
};

/// A loop of three rounds.
const LOOP: &str = r#"
__asm__(".globl _start\n_start: nop\n mov $3, %ecx\n1: dec %ecx\n jnz 1b\n"
        " mov $231, %eax\n xor %edi, %edi\n syscall\n");
"#;

/// A debugger that speaks to `pugmark gdb`.
struct Debugger(Child);

impl Debugger {
    fn new(recorded: &Recorded) -> Self {
        let mut command = Command::new(PUGMARK);
        command.args(["gdb", "--stdio", "rec"]).current_dir(recorded.0.folder());
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Sends a request and returns the answer.
    fn ask(&mut self, request: &str) -> String {
        let sum = request.bytes().fold(0_u8, u8::wrapping_add);
        write!(self.0.stdin.as_mut().unwrap(), "${request}#{sum:02x}").unwrap();
        let out = self.0.stdout.as_mut().unwrap();
        let mut next = || {
            let mut byte = [0];
            out.read_exact(&mut byte).unwrap();
            char::from(byte[0])
        };
        while next() != '$' {}
        let mut answer = String::new();
        loop {
            match next() {
                '#' => break,
                letter => answer.push(letter),
            }
        }
        let sum = [next(), next()].iter().collect::<String>();
        let own = answer.bytes().fold(0_u8, u8::wrapping_add);
        assert_eq!(u8::from_str_radix(&sum, 16).unwrap(), own, "{answer}");
        // After the last answer nobody reads that any more.
        let _ = self.0.stdin.as_mut().unwrap().write_all(b"+");
        answer
    }

    /// Returns the instruction pointer: the 17th register.
    fn ip(&mut self) -> u64 {
        let registers = unpacked(&self.ask("g"));
        assert_eq!(registers.len(), 2 * 560);
        assert!(registers[..256].bytes().all(|letter| letter == b'x'), "{registers}");
        let bytes: Vec<u8> = (128..136)
            .map(|byte| u8::from_str_radix(&registers[2 * byte..2 * byte + 2], 16).unwrap())
            .collect();
        u64::from_le_bytes(bytes.try_into().unwrap())
    }
}

/// Writes out letters that an answer repeats: `0*"` is 0 and five more, for `"` is 29 and 5.
fn unpacked(answer: &str) -> String {
    let mut text = String::new();
    let mut letters = answer.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '*' => {
                let count = letters.next().unwrap() as usize - 29;
                let last = text.chars().last().unwrap();
                text.extend(std::iter::repeat_n(last, count));
            }
            letter => text.push(letter),
        }
    }
    text
}

#[test]
fn a_debugger_steps_searches_and_leaves() {
    let recorded = Recorded::new(LOOP, &["-static", "-nostdlib"], &[]);
    let addresses = recorded.addresses("rec");
    let mut gdb = Debugger::new(&recorded);
    let features = gdb.ask("qSupported:multiprocess+;swbreak+");
    for feature in
        ["ReverseContinue+", "ReverseStep+", "swbreak+", "qXfer:exec-file:read+", "qXfer:auxv:read+"]
    {
        assert!(features.contains(feature), "{features}");
    }
    assert_eq!(gdb.ask("?"), "T05thread:p01.01;");
    assert_eq!(gdb.ip(), addresses[0]);
    assert_eq!(gdb.ask("bc"), "T05thread:p01.01;replaylog:begin;");
    assert_eq!(gdb.ask("vCont;s:p1.1"), "T05thread:p01.01;");
    assert_eq!(gdb.ip(), addresses[1]);
    // The loop's last instruction is executed three times.
    let jump = addresses[3];
    assert_eq!(gdb.ask(&format!("Z0,{jump:x},1")), "OK");
    for _ in 0..3 {
        assert_eq!(gdb.ask("vCont;c:p1.-1"), "T05thread:p01.01;swbreak:;");
        assert_eq!(gdb.ip(), jump);
    }
    assert_eq!(gdb.ask("vCont;c:p1.-1"), "T05thread:p01.01;replaylog:end;");
    assert_eq!(gdb.ip(), *addresses.last().unwrap());
    assert_eq!(gdb.ask("bc"), "T05thread:p01.01;swbreak:;");
    assert_eq!(gdb.ask("Hcp1.0"), "OK");
    assert_eq!(gdb.ask("bs"), "T05thread:p01.01;");
    assert_eq!(gdb.ip(), addresses[6]);
    assert_eq!(gdb.ask(&format!("z0,{jump:x},1")), "OK");
    assert_eq!(gdb.ask("bc"), "T05thread:p01.01;replaylog:begin;");
    // NOP, in memory that cannot be written; and memory that is not there.
    assert_eq!(gdb.ask(&format!("m{:x},1", addresses[0])), "90");
    assert_eq!(gdb.ask(&format!("M{:x},1:cc", addresses[0])), "E0e");
    assert_eq!(gdb.ask("m10,4"), "E0e");
    assert_eq!(gdb.ask("D;1"), "OK");
    assert!(gdb.0.wait().unwrap().success());
}

#[test]
fn a_debugger_that_goes_without_a_word_ends_it() {
    let recorded = Recorded::new(LOOP, &["-static", "-nostdlib"], &[]);
    let mut gdb = Debugger::new(&recorded);
    gdb.ask("?");
    drop(gdb.0.stdin.take());
    assert!(gdb.0.wait().unwrap().success());
}
