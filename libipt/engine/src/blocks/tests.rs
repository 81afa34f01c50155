use super::*;
use crate::{Code, EventOptions, Release, event::kind};
use pugmark_decoder_core::{
    config::{AddressFilter, Clocks},
    errata::Errata,
    image::{AddressSpace, Image, Section},
    mode::ExecMode,
    packet::PSB,
};

/// PSB+ at 1000, in 64-bit code.
const START: [u8; 13] = [0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23, 0x00, 0x00];

const OPTIONS: BlockOptions = BlockOptions {
    events: EventOptions {
        errata: Errata::NONE,
        clocks: Clocks::UNKNOWN,
        keep_calibration: false,
        iflags: false,
        release: Release::V2_3,
    },
    filter: AddressFilter::NONE,
    ticks: false,
    end_on_call: false,
    end_on_jump: false,
};

/// A block's mode and the addresses of its instructions, or the kind of an event.
type Item = Result<(Option<ExecMode>, Vec<u64>), i32>;

/// Decodes up to the first error.
fn decode(code: &[u8], trace: &[u8]) -> (Vec<Item>, i32) {
    let sections = [Section { base: 0x1000, bytes: code, space: AddressSpace::Any }];
    let mut decoder = BlockDecoder::new(trace, Image::new(&sections), OPTIONS);
    let (mut items, mut block) = (vec![], Block::default());
    let mut answer = decoder.sync_forward();
    loop {
        answer = match answer {
            Err(error) => return (items, error),
            Ok(FlowStatus { event_pending: true, .. }) => decoder.event().map(|(event, status)| {
                items.push(Err(event.kind));
                status
            }),
            Ok(FlowStatus { end: true, .. }) => return (items, 0),
            Ok(_) => {
                let answer = decoder.next(&mut block);
                items.push(Ok((block.mode, block.insns.iter().map(|insn| insn.ip).collect())));
                answer
            }
        };
    }
}

#[test]
fn code_that_never_needs_the_trace_ends_with_an_error() {
    // 1000: nop; 1001: jmp 1003; 1003: jmp 1000. A TNT, which nothing takes.
    let trace = [&PSB[..], &START, &[0x06]].concat();
    let (items, error) = decode(&[0x90, 0xeb, 0, 0xeb, 0xfb], &trace);
    assert_eq!(error, Code::BadQuery.status());
    let insns: usize = items.iter().flatten().map(|(_, insns)| insns.len()).sum();
    assert!((4..20).contains(&insns), "{items:x?}");
}

#[test]
fn known_code_keeps_its_mode_when_the_trace_gives_none() {
    // 1000: nop; 1001: jz 1000. Twice, the second time without a MODE.Exec in the PSB+.
    let again = [&PSB[..], &START[2..], &[0x04]].concat();
    let trace = [&PSB[..], &START, &[0x04, 0x01], &again].concat();
    let (items, _) = decode(&[0x90, 0x74, 0xfd, 0xcc], &trace);
    let modes: Vec<_> = items.iter().flatten().filter(|(_, insns)| insns.len() == 2).collect();
    assert_eq!(modes.len(), 1, "{items:x?}");
    assert!(items.contains(&Err(kind::DISABLED)), "{items:x?}");
}
