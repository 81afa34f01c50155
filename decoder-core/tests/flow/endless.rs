//! Walks that never reach the next event: each ends with an error, and all of them together take time linear in the
//! trace. Similar walks that do end are decoded.

use pugmark_decoder_core::{
    Error, ErrorKind,
    block::{BlockDecoder, BlockItem},
    block_cache::{BlockCache, ExecutionSink, WORDS_PER_BLOCK},
    event::{Event, EventKind},
    flow::{FlowItem, InsnDecoder},
    image::{AddressSpace, Asid, CodeReader, Image, Section},
};

const PSB: &[u8] = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
/// One outcome, taken.
const TAKEN: &[u8] = b"\x06";

/// Maximum number of instructions of all endless walks in code of a reader: those before the first error, those for
/// each byte of the trace, and some more for each walk that are not checked.
const WASTED: u64 = 1 << 24;
const WASTED_PER_BYTE: u64 = 1 << 10;
const CHECKED_EVERY: u64 = 1 << 12;

/// Returns PSB, MODE.Exec (64 bit), FUP, PSBEND.
fn psb_plus(ip: u64) -> Vec<u8> {
    let [a, b, c, d, e, f, ..] = ip.to_le_bytes();
    [PSB, b"\x99\x01", &[0x7d, a, b, c, d, e, f], b"\x02\x23"].concat()
}

/// Returns a FUP and a TIP with full addresses: an interrupt.
fn interrupt(from: u64, to: u64) -> Vec<u8> {
    let address = |ip: u64| ip.to_le_bytes()[..6].to_vec();
    [b"\x7d".to_vec(), address(from), b"\x6d".to_vec(), address(to)].concat()
}

/// A receiver of the addresses of instructions and of events.
#[derive(Debug, Default, PartialEq)]
struct Walked {
    insns: u64,
    last: u64,
    events: Vec<Event>,
}

impl ExecutionSink for Walked {
    const BLOCKS: bool = true;

    fn block(&mut self, block: &pugmark_decoder_core::block::Block) {
        self.insns += u64::from(block.insns);
        self.last = block.end_ip;
    }

    fn event(&mut self, event: &Event) {
        self.events.push(*event);
    }
}

/// Decodes by instructions; returns the walk and the errors.
fn walk_insns(trace: &[u8], image: Image<'_>) -> (Walked, Vec<Error>) {
    let (mut walked, mut errors) = (Walked::default(), vec![]);
    let mut decoder = InsnDecoder::new(trace, image);
    while decoder.resync().is_some() {
        loop {
            match decoder.next() {
                Ok(Some(FlowItem::Insn(insn))) => {
                    walked.insns += 1;
                    walked.last = insn.ip;
                }
                Ok(Some(FlowItem::Event(event))) => walked.events.push(event),
                Ok(None) => break,
                Err(error) => {
                    errors.push(error);
                    break;
                }
            }
        }
    }
    (walked, errors)
}

/// Decodes by instructions, by blocks and by a visit, with the same results.
fn walk_all(trace: &[u8], image: Image<'_>) -> (Walked, Vec<Error>) {
    let (by_insn, errors) = walk_insns(trace, image);
    let (mut by_block, mut of_blocks) = (Walked::default(), vec![]);
    let mut decoder = BlockDecoder::new(trace, image);
    while decoder.resync().is_some() {
        loop {
            match decoder.next() {
                Ok(Some(BlockItem::Block(block))) => by_block.block(&block),
                Ok(Some(BlockItem::Event(event))) => by_block.event(&event),
                Ok(None) => break,
                Err(error) => {
                    of_blocks.push(error);
                    break;
                }
            }
        }
    }
    assert_eq!((&by_insn, &errors), (&by_block, &of_blocks));
    let (mut visited, mut of_visit) = (Walked::default(), vec![]);
    let mut memory = vec![0; 256 * WORDS_PER_BLOCK];
    let mut cache = BlockCache::new(&mut memory);
    let mut decoder = BlockDecoder::new(trace, image);
    while decoder.resync().is_some() {
        of_visit.extend(decoder.visit(&mut cache, &mut visited).err());
    }
    assert_eq!((&by_insn, &errors), (&visited, &of_visit));
    (by_insn, errors)
}

/// Returns a reader that has these bytes at each multiple of their number.
fn everywhere(bytes: &[u8]) -> impl Fn(&mut [u8], u64, Asid) -> usize {
    move |out: &mut [u8], ip: u64, _: Asid| {
        for (byte, at) in out.iter_mut().zip(ip..) {
            *byte = bytes[at as usize % bytes.len()];
        }
        out.len()
    }
}

#[test]
fn code_without_end_is_an_error_with_its_place_and_the_number_of_instructions() {
    // ADD; JMP and CALL to the next instruction.
    let codes: [&[u8]; 3] = [&[0; 2], &[0xeb, 0], &[0xe8, 0, 0, 0, 0, 0x90, 0x90, 0x90]];
    for (code, walk) in codes.into_iter().zip([walk_all, walk_insns, walk_insns]) {
        let reader = everywhere(code);
        let image = Image::new(&[]).with_reader(CodeReader::new(&reader));
        let trace = [&psb_plus(0x1000), TAKEN].concat();
        let (walked, errors) = walk(&trace, image);
        let [Error { kind: ErrorKind::EndlessCode { ip, insns }, offset }] = errors[..] else {
            panic!("{code:x?}: {errors:x?}")
        };
        // The instruction at which the walk ends is not reported.
        assert_eq!(walked.insns + 1, insns, "{code:x?}");
        assert!((walked.last + 1..walked.last + 16).contains(&ip), "{code:x?}: {ip:x}");
        assert_eq!(offset, trace.len() as u64, "after the outcome that no branch uses");
        assert!(insns <= WASTED + WASTED_PER_BYTE * trace.len() as u64 + CHECKED_EVERY, "{insns}");
    }
}

#[test]
fn a_walk_after_each_psb_takes_time_that_is_linear_in_the_trace() {
    let reader = everywhere(&[0; 2]);
    let image = Image::new(&[]).with_reader(CodeReader::new(&reader));
    let psbs = 100;
    let trace: Vec<u8> = (0..psbs).flat_map(|n| [psb_plus(n << 32), TAKEN.to_vec()].concat()).collect();
    let (walked, errors) = walk_insns(&trace, image);
    assert_eq!(errors.len(), psbs as usize);
    let most = WASTED + WASTED_PER_BYTE * trace.len() as u64 + CHECKED_EVERY * psbs;
    assert!(walked.insns <= most, "{} instructions, at most {most}", walked.insns);
}

#[test]
fn code_that_wraps_around_in_32_bit_mode_ends_as_the_image_does() {
    // The last page of the address space and the first one.
    let (low, high) = ([0x90; 0x1000], [0x90; 0x1000]);
    let space = AddressSpace::Any;
    let sections =
        [Section { base: 0, bytes: &low, space }, Section { base: 0xffff_f000, bytes: &high, space }];
    let mut trace = [&psb_plus(0xffff_f000), TAKEN].concat();
    trace[17] = 0x02;
    let (_, errors) = walk_all(&trace, Image::new(&sections));
    assert!(matches!(errors[..], [Error { kind: ErrorKind::NoMemory { .. }, .. }]), "{errors:x?}");
}

#[test]
fn long_code_that_ends_is_decoded() {
    // NOPs up to the limit of a reader's walk, JMPs to the next instruction, then JE and one more NOP.
    let nops = [vec![0x90; 3 << 20], vec![0x74, 0, 0x90]].concat();
    let jumps = [[0xeb, 0].repeat(1 << 20), vec![0x74, 0, 0x90]].concat();
    let calls = [[0xe8, 0, 0, 0, 0].repeat(1 << 18), vec![0x74, 0, 0x90]].concat();
    for (code, insns) in [(nops, 3 << 20), (jumps, 1 << 20), (calls, 1 << 18)] {
        let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
        let reader = |out: &mut [u8], ip: u64, _: Asid| {
            let rest = usize::try_from(ip.wrapping_sub(0x1000)).ok().and_then(|at| code.get(at..));
            out.iter_mut().zip(rest.unwrap_or_default()).map(|(to, from)| *to = *from).count()
        };
        let trace = [&psb_plus(0x1000), TAKEN].concat();
        for image in [Image::new(&sections), Image::new(&[]).with_reader(CodeReader::new(&reader))] {
            let (walked, errors) = walk_all(&trace, image);
            assert_eq!((walked.insns, errors), (insns + 1, vec![]));
        }
    }
}

#[test]
fn a_loop_that_an_interrupt_ends_is_no_error() {
    // 1000: JMP 1000; 2000: IRET. Also with a NOP before the JMP.
    for (code, at) in [(&[0xeb, 0xfe][..], 0), (&[0x90, 0xeb, 0xfd], 0), (&[0x90, 0xeb, 0xfd], 1)] {
        let space = AddressSpace::Any;
        let sections = [
            Section { base: 0x1000, bytes: code, space },
            Section { base: 0x2000, bytes: &[0x48, 0xcf], space },
        ];
        let mut trace = psb_plus(0x1000);
        let times = 1000;
        for _ in 0..times {
            trace.extend(interrupt(0x1000 + at, 0x2000));
            // Time passes, and the handler returns.
            trace.extend(b"\x59\x12\x03");
            trace.extend([b"\x6d", &(0x1000 + at).to_le_bytes()[..6]].concat());
        }
        let (walked, errors) = walk_all(&trace, Image::new(&sections));
        assert_eq!((errors, walked.events.len()), (vec![], times));
        assert!(walked.events.iter().all(|event| event.kind == EventKind::AsyncBranch { from: 0x1000 + at }));
        // The loop's instructions before the interrupt, once, and each IRET.
        assert_eq!(walked.insns, at + times as u64);
        // An interrupt from outside the loop does not end the loop.
        trace.extend(interrupt(0x3000, 0x2000));
        let (_, errors) = walk_all(&trace, Image::new(&sections));
        assert!(matches!(errors[..], [Error { kind: ErrorKind::EndlessLoop { .. }, .. }]), "{errors:x?}");
    }
}
