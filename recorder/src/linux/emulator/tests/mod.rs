//! Tests with a scripted program: the rings are written here, in place of the plugin.

mod near_branches;
mod processes;

use super::{
    super::{Fault, NotFollowed},
    *,
};
use crate::files::{IMAGE, TRACE};
use plugin::wire::{Kind, MESSAGE, Mapping};
use pugmark_decoder_core::{
    event::EventKind,
    flow::{FlowItem, InsnDecoder},
    hash::AddressHash,
    image::{AddressSpace, Image, Section},
};
use std::{fmt::Write as _, path::Path, sync::mpsc, thread::JoinHandle};

/// No process has this number.
const PID: u32 = 0x3fff_ff00;

/// The blocks of the program: where each begins, and its instructions.
const BLOCKS: [(u64, &[&[u8]]); 16] = [
    // 0: je 1014
    (0x1000, &[&[0x90], &[0x74, 0x11]]),
    // 1: syscall
    (0x1003, &[&[0x90], &[0x0f, 0x05]]),
    (0x1006, &[&[0x8b, 0], &[0x90], &[0x90]]),
    // 3: jmp 1000
    (0x100a, &[&[0xeb, 0xf4]]),
    // 4: ret
    (0x1014, &[&[0x90], &[0xc3]]),
    // 5: rep movsb
    (0x1020, &[&[0x90], &[0xf3, 0xa4]]),
    // 6: int3
    (0x1023, &[&[0x90], &[0xcc]]),
    // 7: call rax
    (0x1025, &[&[0x90], &[0xff, 0xd0]]),
    (0x1028, &[&[0x90]]),
    // 9: the last instructions of block 2
    (0x1008, &[&[0x90], &[0x90]]),
    // 10: a handler that returns
    (0x2000, &[&[0x90], &[0xc3]]),
    // 11: the return from a handler, by syscall
    (0x2010, &[&[0x90], &[0x0f, 0x05]]),
    // 12: another handler that returns
    (0x3000, &[&[0x90], &[0xc3]]),
    // 13: a handler that goes on at 3000: jmp 3000
    (0x3020, &[&[0xeb, 0xde]]),
    // 14: mov rax, 201; syscall; ret
    (0xffff_ffff_ff60_0400, &[&[0x48, 0xc7, 0xc0, 0xc9, 0, 0, 0], &[0x0f, 0x05], &[0xc3]]),
    // 15: a handler that goes on at 3000: nop; call 3000
    (0x3030, &[&[0x90], &[0xe8, 0xca, 0xff, 0xff, 0xff]]),
];

/// An entry that a thread writes into its ring.
#[derive(Clone, Copy, Debug)]
enum RingEntry<'a> {
    /// The number of a block.
    Run(u32),
    Message(Kind, &'a [u32]),
}

use RingEntry::{Message, Run};

const CALL: RingEntry<'_> = Message(Kind::Call, &[]);
const RETURN: [RingEntry<'_>; 3] = [Run(11), CALL, Message(Kind::SignalReturn, &[])];
const EXIT: RingEntry<'_> = Message(Kind::Exit, &[]);

struct Script {
    scratch: PathBuf,
    options: RecordOptions,
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

impl Script {
    fn new(name: &str) -> Self {
        let scratch = std::env::temp_dir().join(format!("pugmark-script-{name}-{}", std::process::id()));
        fs::create_dir_all(scratch.join("out")).unwrap();
        let options = RecordOptions { out: scratch.join("out"), ..RecordOptions::new(["scripted"]) };
        Self { scratch, options }
    }

    /// Records what is written into the rings of the folder. The emulator is a program that ends at once.
    fn emulation(&self) -> Emulation<'_> {
        self.emulation_of(Command::new("true").spawn().unwrap())
    }

    fn emulation_of(&self, child: Child) -> Emulation<'_> {
        Emulation::new(&self.options, Shared::for_tests(), child, None)
    }
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Makes the ring of a process that defines some blocks.
fn process_ring(
    emulation: &Emulation<'_>,
    (pid, generation): (u32, u32),
    blocks: std::ops::Range<usize>,
    fill: impl FnOnce(&plugin::wire::Header),
) -> Ring {
    let mut ring = Ring::create(&emulation.shared.rings, Mapping::Apart, |header| {
        header.pid.store(pid, Relaxed);
        header.generation.store(generation, Relaxed);
        fill(header);
    })
    .unwrap();
    for (number, (start, instructions)) in BLOCKS.iter().enumerate().take(blocks.end).skip(blocks.start) {
        let lengths: Vec<u8> = instructions.iter().map(|instruction| instruction.len() as u8).collect();
        let head = bytes_of(&[number as u32, *start as u32, (*start >> 32) as u32, lengths.len() as u32]);
        assert!(ring.write(Kind::Block, &[&head, &lengths, &instructions.concat()]));
    }
    ring
}

fn thread_ring(
    emulation: &Emulation<'_>,
    (pid, generation): (u32, u32),
    tid: u32,
    entries: &[RingEntry<'_>],
) -> Ring {
    let mut ring = Ring::create(&emulation.shared.rings, Mapping::WithOthers, |header| {
        header.pid.store(pid, Relaxed);
        header.tid.store(tid, Relaxed);
        header.generation.store(generation, Relaxed);
        header.made.store(u64::from(10 * generation + 1 + (tid - pid)), Relaxed);
    })
    .unwrap();
    write_entries(&mut ring, entries);
    ring
}

fn write_entries(ring: &mut Ring, entries: &[RingEntry<'_>]) {
    for entry in entries {
        match *entry {
            Run(block) => assert!(ring.write_word(block)),
            Message(kind, words) => assert!(ring.write(kind, &[&bytes_of(words)])),
        }
    }
}

/// Returns the flow that a decoder finds in a part: the addresses of the instructions, `+` where tracing begins, `-`
/// where an instruction ends it, `-ADDRESS` where it ends before the instruction there.
fn flow(part: &Part) -> String {
    let read = |name: &str| fs::read(part.dir.join(name)).unwrap();
    let (trace, code) = (read(TRACE), read("code.bin"));
    let section = |(base, at, len)| Section { base, bytes: &code[at..at + len], space: AddressSpace::Any };
    let sections: Vec<_> = places(part).into_iter().map(section).collect();
    let mut decoder = InsnDecoder::new(&trace, Image::new(&sections));
    decoder.sync_forward();
    let (mut text, mut hash) = (String::new(), AddressHash::new());
    while let Some(item) = decoder.next().unwrap_or_else(|error| panic!("{error} after{text}")) {
        let _ = match item {
            FlowItem::Insn(insn) => {
                hash.add(insn.ip);
                write!(text, " {:x}", insn.ip)
            }
            FlowItem::Event(event) => match event.kind {
                EventKind::Enabled { .. } => write!(text, " +"),
                EventKind::Disabled => write!(text, " -"),
                EventKind::AsyncDisabled { at } => write!(text, " -{at:x}"),
                _ => Ok(()),
            },
        };
    }
    assert_eq!((hash, part.unexplained), (part.truth, 0), "{text}");
    text.trim_start().to_owned()
}

/// Returns the sections of a part's image: where each begins, where its bytes are in the file, and how many.
fn places(part: &Part) -> Vec<(u64, usize, usize)> {
    let image: serde_json::Value = serde_json::from_slice(&fs::read(part.dir.join(IMAGE)).unwrap()).unwrap();
    let number = |section: &serde_json::Value, name: &str| section[name].as_u64().unwrap() as usize;
    let section = |section: &serde_json::Value| {
        (section["vaddr"].as_u64().unwrap(), number(section, "offset"), number(section, "len"))
    };
    image["sections"].as_array().unwrap().iter().map(section).collect()
}

/// The addresses of the handlers of SIGSEGV, SIGTRAP, SIGUSR1, SIGUSR2 and SIGHUP.
const HANDLERS: [RingEntry<'_>; 5] = [
    Message(Kind::Handler, &[11, 0x2000, 0]),
    Message(Kind::Handler, &[5, 0x2000, 0]),
    Message(Kind::Handler, &[10, 0x3000, 0]),
    Message(Kind::Handler, &[12, 0x3020, 0]),
    Message(Kind::Handler, &[1, 0x3030, 0]),
];

/// Records one thread that writes this, and returns its part.
fn one_thread(script: &Script, entries: &[RingEntry<'_>]) -> Part {
    let emulation = script.emulation();
    let _process = process_ring(&emulation, (PID, 0), 0..BLOCKS.len(), |_| ());
    let _thread = thread_ring(&emulation, (PID, 0), PID, &[&HANDLERS, entries].concat());
    let mut recording = emulation.run(&mut |_| {}).unwrap();
    assert_eq!((recording.parts.len(), recording.ending), (1, Ending::Exit(0)), "{entries:?}");
    recording.parts.remove(0)
}

#[test]
fn blocks_system_calls_and_signals_are_the_flow_that_they_stand_for() {
    let [r, c, s] = RETURN;
    let partial = |count: &'static [u32]| Message(Kind::Partial, count);
    let rows: [(&[RingEntry<'_>], &str); 23] = [
        // A jump that is not taken, a system call, a jump to where it began, one that is taken.
        (
            &[Run(0), Run(1), CALL, Run(2), Run(3), Run(0), Run(4)],
            "+ 1000 1001 1003 1004 - + 1006 1008 1009 100a 1000 1001 -1014",
        ),
        // A fault at the first, the second and the last instruction of a block.
        (
            &[Run(2), partial(&[1]), Run(10), r, c, s, Run(2), Run(3)],
            "+ -1006 + 2000 2001 2010 2011 - + 1006 1008 1009 -100a",
        ),
        (&[Run(2), partial(&[2]), Run(10), Run(1)], "+ 1006 -1008 + 2000 2001 -1003"),
        (&[Run(2), Run(10), Run(1)], "+ 1006 1008 -1009 + 2000 2001 -1003"),
        // The block ends early and goes on where it was.
        (&[Run(2), partial(&[2]), Run(9), Run(3)], "+ 1006 1008 1009 -100a"),
        (&[Run(2), partial(&[0]), Run(2), Run(3)], "+ 1006 1008 1009 -100a"),
        // It ends early after an instruction, and the next one begins a block of its own.
        (&[Run(2), partial(&[1]), Run(9), Run(3)], "+ 1006 1008 1009 -100a"),
        // Another signal, of which it is known where it came.
        (
            &[Run(2), Run(12), r, c, s, Run(3), Run(0)],
            "+ 1006 1008 1009 -100a + 3000 3001 2010 2011 - + 100a -1000",
        ),
        (&[Run(3), Run(12), r, c, s, Run(0)], "+ 100a -1000 + 3000 3001 2010 2011 -"),
        // An instruction that repeats itself, is done, is interrupted, faults.
        (&[Run(5), Run(6)], "+ 1020 1021 -1023"),
        (&[Run(5), Run(12), Run(1)], "+ 1020 -1021 + 3000 3001 -1003"),
        (&[Run(5), Run(10), Run(1)], "+ 1020 -1021 + 2000 2001 -1003"),
        // A software interrupt.
        (
            &[Run(6), Run(10), r, c, s, Run(7), Run(8)],
            "+ 1023 -1024 + 2000 2001 2010 2011 - + 1025 1026 -1028",
        ),
        // A signal after a jump: the return from the handler says where the jump went.
        (
            &[Run(0), Run(12), r, c, s, Run(4), Run(1)],
            "+ 1000 1001 -1014 + 3000 3001 2010 2011 - + 1014 1015 -1003",
        ),
        (
            &[Run(0), Run(12), r, c, s, Run(1), CALL],
            "+ 1000 1001 -1003 + 3000 3001 2010 2011 - + 1003 1004 -",
        ),
        (
            &[Run(4), Run(12), r, c, s, Run(2), Run(3)],
            "+ 1014 1015 -1006 + 3000 3001 2010 2011 - + 1006 1008 1009 -100a",
        ),
        // The handler does not return, or to where the jump cannot lead: the jump was not taken.
        (&[Run(0), Run(12), Run(1)], "+ 1000 1001 -1003 + 3000 3001 -1003"),
        (&[Run(0), Run(12), r, c, s, Run(2)], "+ 1000 1001 -1003 + 3000 3001 2010 2011 -"),
        // A signal in the handler of another.
        (
            &[Run(0), Run(12), Run(10), r, c, s, r, c, s, Run(4), Run(1)],
            "+ 1000 1001 -1014 + 3000 3001 -2010 + 2000 2001 2010 2011 - + 2010 2011 - + 1014 1015 -1003",
        ),
        // The handler calls the handler of another signal, or jumps there, which is no signal.
        (
            &[Run(0), Run(13), Run(12), r, c, s, Run(4), Run(1)],
            "+ 1000 1001 -1014 + 3020 3000 3001 2010 2011 - + 1014 1015 -1003",
        ),
        (
            &[Run(0), Run(15), Run(12), r, c, s, Run(4), Run(1)],
            "+ 1000 1001 -1014 + 3030 3031 3000 3001 2010 2011 - + 1014 1015 -1003",
        ),
        // The page with system calls of old is not executed.
        (&[Run(7), Run(14), CALL, Run(8), Run(1)], "+ 1025 1026 -ffffffffff600400 + 1028 -1029"),
        // No signal has a handler there any more, so the return leads there.
        (&[Message(Kind::Handler, &[10, 1, 0]), Run(4), Run(12), Run(1)], "+ 1014 1015 3000 3001 -1003"),
    ];
    let script = Script::new("flow");
    for (entries, expected) in rows {
        let part = one_thread(&script, &[entries, &[EXIT]].concat());
        assert_eq!(flow(&part), expected, "{entries:?}");
        assert_eq!(part.cause, Cause::Over);
        // A tick for each instruction and for each fault or interrupt, a thousand for each way back from the kernel.
        let events = expected.split(' ').filter(|word| word.len() > 1).count() as u64;
        let back = expected.matches('+').count() as u64;
        assert_eq!(part.tsc, (1000, 1000 + events + 1000 * back), "{entries:?}");
        assert!(places(&part).iter().all(|(base, ..)| *base < 0x4000), "{entries:?}");
    }
}

#[test]
fn the_limit_ends_the_flow_at_any_instruction() {
    let [r, c, s] = RETURN;
    let entries =
        [Run(0), Run(1), CALL, Run(2), Run(12), r, c, s, Run(3), Run(0), Run(12), r, c, s, Run(4), EXIT];
    let all = "+ 1000 1001 1003 1004 - + 1006 1008 1009 -100a + 3000 3001 2010 2011 - + 100a 1000 1001 -1014 + 3000 \
               3001 2010 2011 -";
    let mut script = Script::new("limit");
    assert_eq!(flow(&one_thread(&script, &entries)), all);
    let words: Vec<&str> = all.split(' ').collect();
    let executed: Vec<usize> = (0..words.len())
        .filter(|at| words[*at].parse::<u32>().is_ok() && !words[*at].contains('-') || words[*at] == "100a")
        .collect();
    for limit in 1..executed.len() {
        script.options.limit = Some(limit as u64);
        let part = one_thread(&script, &entries);
        // After the last instruction there is its end in the kernel, or the address of the one that is next.
        let mut expected = words[..=executed[limit - 1]].join(" ");
        let next = words[executed[limit - 1] + 1];
        let _ =
            if next.starts_with('-') { write!(expected, " {next}") } else { write!(expected, " -{next}") };
        assert_eq!((flow(&part), part.cause), (expected, Cause::Limit), "{limit}");
    }
}

#[test]
fn an_access_has_ended_the_thread_that_has_executed_nothing_after_it() {
    for (counts_alone, noted, signal, expected) in [
        (0, 7, 11, true),
        (0, 6, 11, false),
        (0, 7, 0, false),
        // The process's count is another thread's.
        (1, 3, 7, true),
        (1, 7, 7, false),
    ] {
        let script = Script::new("access");
        let emulation = script.emulation();
        let process = process_ring(&emulation, (PID, 0), 0..BLOCKS.len(), |_| ());
        let thread = thread_ring(&emulation, (PID, 0), PID, &[Run(2), Run(3)]);
        let header = thread.header();
        header.counted_self.store(3, Relaxed);
        header.counts_alone.store(counts_alone, Relaxed);
        process.header().counted.store(4, Relaxed);
        header.fault.set(plugin::wire::EmulatorFault { signal, address: Some(8), counted: noted });
        let recording = emulation.run(&mut |_| {}).unwrap();
        let fault = Fault { signal: signal.cast_signed(), address: Some(8) };
        assert_eq!(recording.parts[0].fault, expected.then_some(fault), "{counts_alone} {noted} {signal}");
    }
}

#[test]
fn the_thread_that_the_emulator_ends_got_the_signal_wherever_it_is() {
    let end = |signal, ip, cr2| plugin::wire::End { signal, ip, cr2 };
    // The end, an access that was noted at the last instruction, and what is expected: the access, and the place.
    for (end, noted, access, at) in [
        (end(6, None, None), None, None, None),
        (end(8, Some(0x1234), Some(0x1234)), None, None, Some(0x1234)),
        // The next instruction cannot be read, or its second half; without an address, nobody knows.
        (end(11, Some(0), Some(0)), None, Some(0), Some(0)),
        (end(11, Some(0x1ffe), Some(0x2000)), None, Some(0x2000), Some(0x1ffe)),
        (end(11, Some(0x1000), Some(0x100f)), None, None, Some(0x1000)),
        (end(11, None, Some(0)), None, None, None),
        (end(11, Some(0x1000), Some(8)), Some(11), Some(8), Some(0x1000)),
        // The access was another signal's.
        (end(6, Some(0x1000), Some(8)), Some(11), None, Some(0x1000)),
    ] {
        let script = Script::new("end");
        let emulation = script.emulation();
        process_ring(&emulation, (PID, 0), 0..BLOCKS.len(), |_| ());
        let [first, second] =
            [PID, PID + 1].map(|tid| thread_ring(&emulation, (PID, 0), tid, &[Run(2), Run(3)]));
        [&first, &second].iter().for_each(|ring| ring.header().counts_alone.store(1, Relaxed));
        second.header().end.set(end);
        if let Some(signal) = noted {
            second.header().fault.set(plugin::wire::EmulatorFault { signal, address: Some(8), counted: 0 });
        }
        let recording = emulation.run(&mut |_| {}).unwrap();
        let [other, part] = &recording.parts[..] else { panic!("two threads") };
        assert_eq!((other.signal, other.fault), (None, None), "{end:?}");
        assert_eq!(part.signal, Some(end.signal.cast_signed()), "{end:?}");
        assert_eq!(part.fault.and_then(|fault| fault.address), access, "{end:?}");
        assert!(at.is_none_or(|at| part.at == Some(at)), "{end:?} {:x?}", part.at);
    }
}

#[test]
fn of_two_threads_that_got_a_signal_at_once_nobody_knows_which_one_ended_the_process() {
    for (signals, expected) in [([0, 6], Some(2)), ([6, 0], Some(1)), ([6, 6], None), ([0, 0], None)] {
        let script = Script::new("both");
        let emulation = script.emulation();
        process_ring(&emulation, (PID, 0), 0..BLOCKS.len(), |_| ());
        for (tid, signal) in (PID..).zip(signals) {
            let ring = thread_ring(&emulation, (PID, 0), tid, &[Run(2), Run(3)]);
            ring.header().end.set(plugin::wire::End { signal, ip: None, cr2: None });
        }
        let recording = emulation.run(&mut |_| {}).unwrap();
        let part = Part::ended_in(&recording.parts);
        assert_eq!(part.map(|part| part.task), expected, "{signals:?}");
        let index = std::fs::read(script.options.out.join("recording.json")).unwrap();
        let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
        let marked = index["parts"].as_array().unwrap().iter().filter(|part| !part["signal"].is_null());
        let marked: Vec<_> = marked.map(|part| part["task"].as_u64().unwrap()).collect();
        assert_eq!(marked, Vec::from_iter(expected.map(u64::from)), "{signals:?}");
    }
}

#[test]
fn who_is_killed_has_executed_what_was_counted_but_for_the_last_instruction() {
    let script = Script::new("killed");
    for (counted, expected) in
        [(0, ""), (1, ""), (2, "+ 1006 -1008"), (3, "+ 1006 1008 -1009"), (9, "+ 1006 1008 -1009")]
    {
        let emulation = script.emulation();
        let process = process_ring(&emulation, (PID, 0), 0..BLOCKS.len(), |_| ());
        let thread = thread_ring(&emulation, (PID, 0), PID, &[Run(2)]);
        thread.header().counted_before.store(5, Relaxed);
        thread.header().counted_self.store(3, Relaxed);
        process.header().counted.store(2 + counted, Relaxed);
        let recording = emulation.run(&mut |_| {}).unwrap();
        assert_eq!(flow(&recording.parts[0]), expected, "{counted}");
    }
}

#[test]
fn a_thread_says_what_it_is_called_and_what_it_executed() {
    let script = Script::new("names");
    let padded = |text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect::<Vec<_>>()
    };
    let program = padded("/usr/bin/a\0./a-program-with-a-name\0a\0--\0");
    let time = [Message(Kind::Time, &[5, 1]), Message(Kind::Time, &[7, 0])];
    let entries = [&[Message(Kind::Program, &program), Run(2)][..], &time, &[Run(3), EXIT, Run(99)]].concat();
    let part = one_thread(&script, &entries);
    assert_eq!((&*part.program, &*part.thread.comm), ("/usr/bin/a", "a-program-with-"));
    assert_eq!((part.thread.arguments.join(" "), part.thread.tid), ("a --".into(), PID as i32));
    // Both files say the same of it.
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(part.dir.join(name)).unwrap()).unwrap()
    };
    let (truth, index) = (json("truth.json"), &json("recording.json")["parts"][0]);
    for (name, value) in [
        ("task", 1.into()),
        ("pid", PID.into()),
        ("tid", PID.into()),
        ("comm", "a-program-with-".into()),
        ("arguments", vec!["a", "--"].into()),
        ("tsc_first", part.tsc.0.into()),
        ("tsc_last", part.tsc.1.into()),
        ("ended", "over".into()),
        ("count", 3.into()),
        ("hash", format!("{:#018x}", part.truth.value()).into()),
        ("bytes", part.bytes.into()),
    ] {
        assert_eq!((&truth[name], &index[name]), (&value, &value), "{name}");
    }
    // The time never goes back.
    assert_eq!(part.tsc, (1000, 1000 + 0x1_0000_0005 + 1000 + 3 + 1));
    // The name is that which it had last.
    let worker = padded("worker");
    let entries = [&entries[..2], &[Message(Kind::Name, &worker), EXIT]].concat();
    assert_eq!(one_thread(&script, &entries).thread.comm, "worker");
    let old = padded("/bin/old");
    let entries = [Message(Kind::NotFollowed, &old), EXIT];
    let emulation = script.emulation();
    let _process = process_ring(&emulation, (PID, 0), 0..BLOCKS.len(), |_| ());
    let _thread = thread_ring(&emulation, (PID, 0), PID, &entries);
    let recording = emulation.run(&mut |_| {}).unwrap();
    assert_eq!(
        (recording.parts.len(), recording.not_followed),
        (0, vec![NotFollowed { pid: PID.cast_signed(), program: "/bin/old".into() }])
    );
}

#[test]
fn what_cannot_be_read_is_said() {
    let script = Script::new("damaged");
    for (entry, text) in [
        (Run(99), "block 99 is not defined"),
        (Run(MESSAGE | 0x7f << 24), "message 0xff000000 is of no known kind"),
        (Message(Kind::Partial, &[1, 2]), "a message Partial of 2 words"),
        (Message(Kind::Page, &[0, 0]), "a message Page of 2 words"),
    ] {
        let emulation = script.emulation();
        let _process = process_ring(&emulation, (PID, 0), 0..BLOCKS.len(), |_| ());
        let _thread = thread_ring(&emulation, (PID, 0), PID, &[entry]);
        let error = emulation.run(&mut |_| {}).unwrap_err();
        let text = format!("the program cannot be stepped: what the emulator reports cannot be read: {text}");
        assert_eq!(format!("{:#}", anyhow::Error::from(error)), text);
    }
}

#[test]
fn a_recording_that_is_given_up_kills_the_program_and_tells_the_plugin() {
    let script = Script::new("given-up");
    let child = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = child.id();
    let mut emulation = script.emulation_of(child);
    let process = process_ring(&emulation, (pid, 0), 0..1, |_| ());
    emulation.find_rings().unwrap();
    assert!(is_alive(pid) && !emulation.has_ended().unwrap() && !process.is_closed());
    drop(emulation);
    assert!(!is_alive(pid) && process.is_closed());
}

/// Ends what waits for room in the second ring, if that takes too long.
fn watch(emulation: &Emulation<'_>) -> (mpsc::Sender<()>, JoinHandle<()>) {
    let rings = emulation.shared.rings.clone();
    let (done, ends) = mpsc::channel();
    let watcher = std::thread::spawn(move || {
        if ends.recv_timeout(Duration::from_secs(20)) == Err(mpsc::RecvTimeoutError::Timeout) {
            Ring::open(&rings, 1).unwrap().close();
        }
    });
    (done, watcher)
}

#[test]
fn the_room_of_what_was_read_is_written_again() {
    let script = Script::new("round");
    let mut emulation = script.emulation();
    let _process = process_ring(&emulation, (PID, 0), 0..BLOCKS.len(), |_| ());
    let mut thread = thread_ring(&emulation, (PID, 0), PID, &[]);
    let (done, watcher) = watch(&emulation);
    emulation.find_rings().unwrap();
    for round in 0..13 {
        assert!(thread.write(Kind::Name, &[&[b'a'; 200_000]]), "no room in round {round}");
        assert!(emulation.read_threads().unwrap());
        assert!(!emulation.read_threads().unwrap());
    }
    write_entries(&mut thread, &[Run(2), Run(3)]);
    drop(done);
    watcher.join().unwrap();
    assert_eq!(flow(&emulation.run(&mut |_| {}).unwrap().parts[0]), "+ 1006 1008 1009 -100a");
}

#[test]
fn progress_is_reported_after_so_many_instructions() {
    let script = Script::new("progress");
    let emulation = script.emulation();
    let _process = process_ring(&emulation, (PID, 0), 0..BLOCKS.len(), |_| ());
    // Eight instructions each time.
    let entries = [[Run(2), Run(3), Run(0), Run(4)].repeat(1200), vec![EXIT]].concat();
    let _thread = thread_ring(&emulation, (PID, 0), PID, &entries);
    let mut seen = vec![];
    let recording = emulation.run(&mut |progress| seen.push(progress)).unwrap();
    let part = &recording.parts[0];
    // But for the last block.
    assert_eq!(part.truth.count(), 8 * 1200 - 2);
    assert!(!seen.is_empty() && seen.iter().all(|progress| progress.tasks == 1), "{seen:?}");
    assert!(
        seen.iter().all(|progress| progress.steps >= PROGRESS_EVERY && progress.bytes <= part.bytes),
        "{seen:?}"
    );
    assert!(seen.windows(2).all(|pair| pair[1].steps >= pair[0].steps + PROGRESS_EVERY), "{seen:?}");
}

#[test]
fn an_emulator_that_does_not_load_the_plugin_is_an_error() {
    let script = Script::new("no-plugin");
    let error = anyhow::Error::from(script.emulation().run(&mut |_| {}).unwrap_err());
    assert!(format!("{error:#}").contains("it did not load the plugin; try --engine stepping"), "{error:#}");
}

#[test]
fn a_zombie_does_not_live_whatever_a_process_is_called() {
    let script = Script::new("alive");
    // The name is in parentheses before the state, and may have some of its own.
    let program = script.scratch.join("a) Z (b");
    std::os::unix::fs::symlink(find_program(&"sleep".into()).unwrap(), &program).unwrap();
    let mut child = Command::new(program).arg("1000").spawn().unwrap();
    let pid = child.id();
    assert!(is_alive(pid) && is_alive(std::process::id()));
    child.kill().unwrap();
    // Nobody has waited for it.
    let begin = Instant::now();
    while is_alive(pid) && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(PAUSE);
    }
    assert!(!is_alive(pid) && Path::new(&format!("/proc/{pid}/stat")).exists());
    child.wait().unwrap();
    assert!(!is_alive(pid));
}
