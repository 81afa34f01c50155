//! The flow of instructions.

use super::std::{format, string::String, string::ToString, vec, vec::Vec};

use super::bytes_of;
use crate::{
    block,
    bts::{BranchRecords, BtsBlockDecoder, BtsInsnDecoder, Layout, ModeRange, Options},
    event::EventKind,
    flow,
    image::{AddressSpace, Image, Section},
    mode::ExecMode,
};

/// A function at 1000; each line is one instruction.
const CODE: &[u8] = &[
    0x31, 0xc0, // 1000 xor eax, eax
    0x74, 0x01, // 1002 jz 1005
    0xf4, // 1004 hlt
    0xe8, 5, 0, 0, 0, // 1005 call 100f
    0xff, 0xe0, // 100a jmp rax
    0xcd, 0x80, // 100c int 80
    0xc3, // 100e ret
    0x90, // 100f nop
    0x0f, 0x05, // 1010 syscall
    0x90, // 1012 nop
    0xeb, 0xeb, // 1013 jmp 1000
];

/// A handler: nop; iretq.
const HANDLER: &[u8] = &[0x90, 0x48, 0xcf];
const HANDLERS: &[core::ops::RangeInclusive<u64>] = &[0x8000..=0x8000, 0x9000..=0x9fff];

fn items(records: &[(u64, u64)], options: Options<'_>, sections: &[Section<'_>]) -> Vec<String> {
    let bytes = bytes_of(records, Layout::Bits64);
    let image = Image::new(sections);
    let mut decoder = BtsBlockDecoder::new(BranchRecords::new(&bytes, Layout::Bits64), image, options);
    let mut seen = vec![];
    let mut executed = vec![];
    assert_eq!(decoder.offset(), 0);
    loop {
        match decoder.next() {
            Ok(Some(block::BlockItem::Block(block))) => {
                executed.extend(decoder.insns(&block).map(|(ip, _)| ip));
                assert_eq!(executed.last(), Some(&block.end_ip), "{seen:?}");
                seen.push(format!("{:x}..{:x} {}", block.ip, block.end_ip, block.insns));
            }
            Ok(Some(block::BlockItem::Event(event))) => {
                assert!(event.offset <= decoder.offset() && event.offset.is_multiple_of(24), "{event:?}");
                assert!(!event.status, "{event:?}");
                let kind = match event.kind {
                    EventKind::Enabled { resumed: false } => "begin".to_string(),
                    EventKind::Enabled { resumed: true } => "resume".to_string(),
                    EventKind::AsyncBranch { from } => format!("async {from:x}"),
                    EventKind::AsyncDisabled { at } => format!("out at {at:x}"),
                    EventKind::Disabled => "out".to_string(),
                    other => format!("{other:?}"),
                };
                seen.push(event.ip.map_or(kind.clone(), |ip| format!("{kind} {ip:x}")));
            }
            Ok(None) => break,
            Err(error) => seen.push(error.to_string()),
        }
        assert!(seen.len() < 100, "{seen:?}");
    }
    assert_eq!(decoder.offset(), bytes.len() as u64, "{seen:?}");
    // The instruction layer returns the same instructions.
    let mut flow = BtsInsnDecoder::new(BranchRecords::new(&bytes, Layout::Bits64), image, options);
    let mut insns = vec![];
    loop {
        match flow.next() {
            Ok(Some(flow::FlowItem::Insn(insn))) => insns.push(insn.ip),
            Ok(None) => break,
            Ok(Some(flow::FlowItem::Event(_))) | Err(_) => {}
        }
    }
    assert_eq!(insns, executed);
    seen
}

fn sections() -> [Section<'static>; 2] {
    let any = AddressSpace::Any;
    [Section { base: 0x1000, bytes: CODE, space: any }, Section { base: 0x8000, bytes: HANDLER, space: any }]
}

#[test]
fn each_record_closes_a_block() {
    let known = Options { start: Some(0x1000), handlers: Some(HANDLERS), ..Options::default() };
    let unknown = Options { start: None, handlers: None, ..Options::default() };
    type Row = (&'static str, Options<'static>, &'static [(u64, u64)], &'static [&'static str]);
    let rows: [Row; 27] = [
        ("nothing", known, &[], &[]),
        (
            "from the start to the end",
            Options { end: Some(0x1002), ..known },
            &[],
            &["begin 1000", "1000..1002 2"],
        ),
        ("a branch", known, &[(0x1002, 0x1005)], &["begin 1000", "1000..1002 2"]),
        (
            "without a start, what is before it is unknown",
            unknown,
            &[(0x1002, 0x1005)],
            &["begin 1002", "1002..1002 1"],
        ),
        (
            "a conditional branch that is not taken leaves no record",
            known,
            &[(0x1005, 0x100f), (0x1013, 0x1000)],
            &["begin 1000", "1000..1005 4", "Unreachable", "begin 1013", "1013..1013 1"],
        ),
        (
            "a call and a jump",
            known,
            &[(0x1002, 0x1005), (0x1005, 0x100f)],
            &["begin 1000", "1000..1002 2", "1005..1005 1"],
        ),
        (
            "up to the last instruction",
            Options { end: Some(0x1000), ..known },
            &[(0x1002, 0x1005), (0x1005, 0x100f), (0x1010, 0x8000), (0x8001, 0x1012), (0x1013, 0x1000)],
            &[
                "begin 1000",
                "1000..1002 2",
                "1005..1005 1",
                "100f..100f 1",
                "async 1010 8000",
                "8000..8001 2",
                "1012..1013 2",
                "1000..1000 1",
            ],
        ),
        (
            "an interrupt before an instruction",
            known,
            &[(0x1004, 0x8000), (0x8001, 0x1004), (0x1005, 0x100f)],
            &["begin 1000", "1000..1002 2", "async 1004 8000", "8000..8001 2", "1004..1005 2"],
        ),
        (
            "an interrupt right after a branch",
            known,
            &[(0x1002, 0x1005), (0x1005, 0x8000), (0x8001, 0x1005), (0x1005, 0x100f)],
            &["begin 1000", "1000..1002 2", "async 1005 8000", "8000..8001 2", "1005..1005 1"],
        ),
        (
            "an interrupt before an indirect branch",
            Options { start: Some(0x100a), ..known },
            &[(0x100a, 0x8000), (0x8001, 0x100a), (0x100a, 0x1012), (0x1013, 0x1000)],
            &["begin 100a", "async 100a 8000", "8000..8001 2", "100a..100a 1", "1012..1013 2"],
        ),
        (
            "is not seen where handlers are not known",
            Options { start: Some(0x100a), ..unknown },
            &[(0x100a, 0x8000), (0x8001, 0x100a), (0x100a, 0x1012)],
            &["begin 100a", "100a..100a 1", "8000..8001 2", "100a..100a 1"],
        ),
        (
            "a direct branch tells by its target",
            Options { start: Some(0x1000), ..unknown },
            &[(0x1002, 0x8000), (0x8001, 0x1002), (0x1002, 0x1005)],
            &["begin 1000", "1000..1000 1", "async 1002 8000", "8000..8001 2", "1002..1002 1"],
        ),
        (
            "a software interrupt is an event and no instruction",
            Options { start: Some(0x100c), ..known },
            &[(0x100c, 0x8000), (0x8001, 0x100e), (0x100e, 0x1012)],
            &["begin 100c", "async 100c 8000", "8000..8001 2", "100e..100e 1"],
        ),
        (
            "a trap after a branch",
            known,
            &[(0x1002, 0x1005), (0x1002, 0x8000), (0x8001, 0x1005), (0x1005, 0x100f)],
            &["begin 1000", "1000..1002 2", "async 1005 8000", "8000..8001 2", "1005..1005 1"],
        ),
        (
            "a system call",
            Options { start: Some(0x100f), ..known },
            &[(0x1010, 0x8001), (0x8001, 0x1012), (0x1013, 0x1000)],
            &["begin 100f", "100f..1010 2", "8001..8001 1", "1012..1013 2"],
        ),
        (
            "a branch that the code does not have",
            known,
            &[(0x1002, 0x1006), (0x1013, 0x1000)],
            &[
                "0x0: the instruction at 0x1002 does not lead to 0x1006, and no handler is there",
                "begin 1013",
                "1013..1013 1",
            ],
        ),
        (
            "a straight instruction that branches",
            known,
            &[(0x1000, 0x1012)],
            &["0x0: the instruction at 0x1000 does not lead to 0x1012, and no handler is there"],
        ),
        (
            "a record is missing: the way ends at a branch",
            known,
            &[(0x1002, 0x1005), (0x1013, 0x1000)],
            &[
                "begin 1000",
                "1000..1002 2",
                "0x18: no path without a branch from 0x1005 to 0x1013, it ends at 0x1005",
                "begin 1013",
                "1013..1013 1",
            ],
        ),
        (
            "a record is missing: the origin lies before the instruction that comes next",
            Options { start: Some(0x1005), ..known },
            &[(0x1005, 0x100f), (0x1002, 0x1005)],
            &["begin 1005", "1005..1005 1", "Unreachable", "begin 1002", "1002..1002 1"],
        ),
        (
            "the origin is within an instruction",
            known,
            &[(0x1001, 0x8000)],
            &["Unreachable", "begin 1001", "async 1001 8000"],
        ),
        (
            "no memory at either end",
            known,
            &[(0x1002, 0x1005), (0x1005, 0x100f), (0x1010, 0x7000), (0x7010, 0x1012), (0x1013, 0x1000)],
            &[
                "begin 1000",
                "1000..1002 2",
                "1005..1005 1",
                "100f..1010 2",
                "0x48: no memory in the image for the instruction at 0x7000",
                "begin 1012",
                "1012..1013 2",
            ],
        ),
        (
            "no memory where the way begins",
            Options { start: Some(0x500), ..known },
            &[(0x1002, 0x1005)],
            &["0x0: no memory in the image for the instruction at 0x500", "begin 1002", "1002..1002 1"],
        ),
        (
            "after what was never written it begins anew",
            known,
            &[(0x1002, 0x1005), (0, 0), (0x1005, 0x100f)],
            &[
                "begin 1000",
                "1000..1002 2",
                "0x18: empty branch records, 1 in a row",
                "begin 1005",
                "1005..1005 1",
            ],
        ),
        (
            "a trap leads to a handler",
            known,
            &[(0x1002, 0x1005), (0x1002, 0x1012)],
            &["begin 1000", "1000..1002 2", "Unreachable", "Impossible"],
        ),
        (
            "after an error there is no trap of the branch before it",
            Options { start: Some(0x1005), ..known },
            &[(0x1005, 0x100f), (0x7000, 0x1012), (0x1005, 0x8000)],
            &[
                "begin 1005",
                "1005..1005 1",
                "Unreachable",
                "0x18: no memory in the image for the instruction at 0x7000",
                "Unreachable",
                "begin 1005",
                "async 1005 8000",
            ],
        ),
        (
            "a handler that was interrupted at its begin is returned to",
            Options { start: Some(0x8001), ..known },
            &[(0x8001, 0x8000), (0x8001, 0x1012), (0x1013, 0x1000)],
            &["begin 8001", "8001..8001 1", "8000..8001 2", "1012..1013 2"],
        ),
        (
            "the end is not reached",
            Options { end: Some(0x1001), ..known },
            &[(0x1002, 0x1005)],
            &["begin 1000", "1000..1002 2", "Unreachable"],
        ),
    ];
    for (name, options, records, expected) in rows {
        let seen = items(records, options, &sections());
        let short = |text: &String| match text {
            text if text.contains("no path without a branch") => "Unreachable".to_string(),
            text if text.contains("does not lead") => "Impossible".to_string(),
            text => text.clone(),
        };
        let agrees = seen.len() == expected.len()
            && seen.iter().zip(expected).all(|(seen, expected)| seen == expected || short(seen) == *expected);
        assert!(agrees, "{name}:\n{seen:#?}\nis not\n{expected:#?}");
    }
}

#[test]
fn what_ran_in_the_other_level_is_left_out() {
    // User code is at 1000. Kernel code, which is not in the image, is at ffff_8000_0000_0000 and above.
    const KERNEL: u64 = 0xffff_8000_0000_0000;
    let one = Options { start: Some(0x100f), one_level: true, ..Options::default() };
    type Row = (&'static str, &'static [(u64, u64)], &'static [&'static str]);
    let rows: [Row; 9] = [
        (
            "branches into the level are stored: after a system call",
            &[(KERNEL + 0x90, 0x1012), (0x1013, 0x1000)],
            &["begin 100f", "100f..1010 2", "out", "resume 1012", "1012..1013 2"],
        ),
        (
            "branches into the level are stored: an interrupt",
            &[(KERNEL + 0x90, 0x1010), (KERNEL + 0x90, 0x1012), (0x1013, 0x1000)],
            &[
                "begin 100f",
                "100f..100f 1",
                "out at 1010",
                "resume 1010",
                "1010..1010 1",
                "out",
                "resume 1012",
                "1012..1013 2",
            ],
        ),
        (
            "branches into the level are stored: the handler goes elsewhere",
            &[(KERNEL + 0x90, 0x1000), (0x1002, 0x1005)],
            &["begin 100f", "100f..1010 2", "out", "begin 1000", "1000..1002 2"],
        ),
        (
            "branches out of the level are stored: a system call",
            &[(0x1010, KERNEL), (0x1013, 0x1000)],
            &["begin 100f", "100f..1010 2", "resume 1012", "1012..1013 2"],
        ),
        (
            "branches out of the level are stored: an interrupt",
            &[(0x100f, KERNEL), (0x1010, KERNEL), (0x1013, 0x1000)],
            &[
                "begin 100f",
                "async 100f ffff800000000000",
                "resume 100f",
                "100f..1010 2",
                "resume 1012",
                "1012..1013 2",
            ],
        ),
        (
            "branches out of the level are stored: the handler goes elsewhere",
            &[(0x1010, KERNEL), (0x1002, 0x1005), (0x1005, 0x100f)],
            &["begin 100f", "100f..1010 2", "Unreachable", "begin 1002", "1002..1002 1", "1005..1005 1"],
        ),
        (
            "the handler is in the image, and leads out before it returns",
            &[(0x1010, 0x8000), (KERNEL + 0x90, 0x1000), (0x1002, 0x1005)],
            &["begin 100f", "100f..1010 2", "8000..8001 2", "out", "begin 1000", "1000..1002 2"],
        ),
        (
            "no memory where the level goes on",
            &[(0x1010, KERNEL), (0x7010, 0x1012), (0x1013, 0x1000)],
            &["begin 100f", "100f..1010 2", "Unreachable", "Unreachable", "begin 1012", "1012..1013 2"],
        ),
        (
            "a gap is a gap",
            &[(0x1010, KERNEL), (0x1013, 0x1000), (0x100a, 0x1012)],
            &[
                "begin 100f",
                "100f..1010 2",
                "resume 1012",
                "1012..1013 2",
                "Unreachable",
                "begin 100a",
                "100a..100a 1",
            ],
        ),
    ];
    for (name, records, expected) in rows {
        let mut seen = items(records, one, &sections());
        for text in &mut seen {
            if text.starts_with("0x") {
                *text = "Unreachable".to_string();
            }
        }
        assert_eq!(seen, expected, "{name}");
    }
    // A software interrupt returns to the instruction after it.
    let seen =
        items(&[(0x100c, KERNEL), (0x100e, 0x1012)], Options { start: Some(0x100c), ..one }, &sections());
    assert_eq!(seen, ["begin 100c", "async 100c ffff800000000000", "resume 100e", "100e..100e 1"]);
}

#[test]
fn the_kernel_alone_begins_anew_where_nothing_says_how_it_was_entered() {
    let options = Options { start: Some(0x8000), one_level: true, ..Options::default() };
    let records = [(0x8001, 0x7fff_0000_0000), (0x100f, 0x100f), (0x1002, 0x1005)];
    let seen = items(&records[..1], options, &sections());
    assert_eq!(seen, ["begin 8000", "8000..8001 2"]);
    let seen = items(&[records[0], records[2]], options, &sections());
    assert_eq!(seen, ["begin 8000", "8000..8001 2", "begin 1002", "1002..1002 1"]);
    // The path from the last record ends at a branch without a record: so that was in the level that is not traced.
    let seen = items(&[(0x8001, 0x1000), (0x100a, 0x1012)], options, &sections());
    assert_eq!(seen, ["begin 8000", "8000..8001 2", "begin 100a", "100a..100a 1"]);
    // The code at the entry is not in the image: that is reported once.
    let seen = items(&[records[0], (0x7000, 0x1002), records[2]], options, &sections());
    let missing = "0x18: no memory in the image for the instruction at 0x7000";
    assert_eq!(seen, ["begin 8000", "8000..8001 2", missing, "begin 1002", "1002..1002 1"]);
}

#[test]
fn blocks_end_at_the_borders_of_sections_and_of_modes() {
    let any = AddressSpace::Any;
    let (first, second) = ([0x90, 0x90, 0x0f], [0x1f, 0x00, 0x90, 0xeb, 0xf8]);
    // The instruction at 1002 is in both sections.
    let split = [
        Section { base: 0x1000, bytes: &first, space: any },
        Section { base: 0x1003, bytes: &second, space: any },
    ];
    let options = Options { start: Some(0x1000), ..Options::default() };
    let seen = items(&[(0x1006, 0x1000)], options, &split);
    assert_eq!(seen, ["begin 1000", "1000..1002 3", "1005..1006 2"]);
    // 40 is INC EAX in 32-bit code, and a prefix in 64-bit code.
    let code = [0x90, 0x40, 0x90, 0xeb, 0xfb];
    let sections = [Section { base: 0x2000, bytes: &code, space: any }];
    let modes = [ModeRange { addresses: 0x2001..=0x2002, mode: ExecMode::Bits32 }];
    for (modes, expected) in [
        (&modes[..], &["begin 2000", "2000..2000 1", "2001..2002 2", "2003..2003 1"][..]),
        (&[], &["begin 2000", "2000..2003 3"]),
    ] {
        let options = Options { start: Some(0x2000), modes, ..Options::default() };
        assert_eq!(items(&[(0x2003, 0x2000)], options, &sections), expected);
    }
}

#[test]
fn the_work_for_a_record_has_a_bound() {
    let code = vec![0x90; (2 << 20) + 2];
    let sections = [Section { base: 0x10_0000, bytes: &code, space: AddressSpace::Any }];
    let options = Options { start: Some(0x10_0000), ..Options::default() };
    let seen = items(&[(0x20_0000, 0x10_0000)], options, &sections);
    assert_eq!(seen, ["begin 100000", "100000..1fffff 1048576", "async 200000 100000"]);
    let seen = items(&[(0x20_0001, 0x10_0000)], options, &sections);
    assert_eq!(seen[0], "0x0: no path without a branch from 0x100000 to 0x200001, it ends at 0x100000");
}

#[test]
fn lost_records_are_an_overflow_and_begin_anew() {
    let sample = |from, to| bytes_of(&[(from, to)], Layout::PerfSample);
    let lost = [2u32.to_le_bytes(), [0, 0, 24, 0], [7; 4], [7; 4], [3, 0, 0, 0], [0; 4]].concat();
    let bytes = [sample(0x1002, 0x1005), lost, sample(0x1013, 0x1000)].concat();
    let sections = sections();
    let records = BranchRecords::new(&bytes, Layout::PerfSample);
    let mut decoder = BtsBlockDecoder::new(records, Image::new(&sections), Options::default());
    let mut events = vec![];
    while let Some(item) = decoder.next().expect("no error") {
        if let block::BlockItem::Event(event) = item {
            events.push((event.kind, event.ip, event.offset));
        }
    }
    let begin = EventKind::Enabled { resumed: false };
    assert_eq!(
        events,
        [(begin, Some(0x1002), 0), (EventKind::Overflow, None, 24), (begin, Some(0x1013), 48)]
    );
}

#[test]
fn any_records_come_to_an_end() {
    let mut rng = fastrand::Rng::with_seed(4);
    let sections = sections();
    for round in 0..crate::rounds(2_000) {
        let mut address = |from: bool| match rng.u8(..8) {
            0 => rng.u64(..),
            1 => 0,
            2 => 0x8000 + rng.u64(..4),
            _ if from => 0x1000 + rng.u64(..0x18),
            _ => [0x1000, 0x1005, 0x100f, 0x1012, 0x8000][rng.usize(..5)],
        };
        let records: Vec<_> = (0..20).map(|_| (address(true), address(false))).collect();
        let options = Options {
            start: (round % 3 == 0).then_some(0x1000),
            end: (round % 5 == 0).then_some(0x1013),
            handlers: (round % 2 == 0).then_some(HANDLERS),
            one_level: round % 7 < 3,
            ..Options::default()
        };
        // `items` has a limit, and compares the two layers.
        items(&records, options, &sections);
    }
}
