use super::*;
use crate::{
    Release,
    event::{PtEvent, flag, kind},
};
use pugmark_decoder_core::{config::Clocks, errata::Errata, packet::PSB};

/// Returns the events after an empty PSB+, and the error at the end.
fn events(packets: &[u8], release: Release) -> (Vec<PtEvent>, i32) {
    let trace = [&PSB, &[0x02, 0x23][..], packets].concat();
    let options = EventOptions {
        errata: Errata::NONE,
        clocks: Clocks::UNKNOWN,
        keep_calibration: false,
        iflags: false,
        release,
    };
    let mut decoder = EventDecoder::new(&trace[..], options);
    decoder.sync_forward().unwrap();
    let mut events = vec![];
    loop {
        match decoder.next() {
            Ok(event) => events.push(event),
            Err(status) => return (events, status),
        }
    }
}

fn kinds(packets: &[u8], release: Release) -> Vec<i32> {
    // The first one is that tracing is off.
    events(packets, release).0[1..].iter().map(|event| event.kind).collect()
}

const PWRE: [u8; 4] = [0x02, 0x22, 0, 0x10];
const PWRX: [u8; 7] = [0x02, 0xa2, 0, 0, 0, 0, 0];
const CBR: [u8; 4] = [0x02, 0x03, 0x10, 0];
const OVF: [u8; 2] = [0x02, 0xf3];

#[test]
fn since_2_3_a_sleep_is_reported_at_its_end() {
    let sleep = [&PWRE[..], &CBR, &PWRX].concat();
    assert_eq!(kinds(&sleep, Release::V2_1), [kind::PWRE, kind::CBR, kind::PWRX]);
    assert_eq!(kinds(&sleep, Release::V2_3), [kind::CBR, kind::PWRE, kind::PWRX]);
    // A sleep that does not end is not reported.
    assert_eq!(kinds(&PWRE, Release::V2_3), []);
}

#[test]
fn since_2_3_an_overflow_reports_what_it_has_cut_off() {
    // PTW with a FUP, which is lost.
    let cut = [&PWRE[..], &[0x02, 0x92, 7, 0, 0, 0], &OVF].concat();
    assert_eq!(kinds(&cut, Release::V2_1), [kind::PWRE, kind::OVERFLOW]);
    let (events, _) = events(&cut, Release::V2_3);
    let found: Vec<_> =
        events[1..].iter().map(|event| (event.kind, event.has(flag::IP_SUPPRESSED))).collect();
    assert_eq!(found, [(kind::PWRE, false), (kind::PTWRITE, true), (kind::OVERFLOW, true)]);
}

#[test]
fn a_trigger_is_a_packet_since_2_3() {
    // Without a count, and with one although tracing is off.
    for (flags, found, status) in [(0, &[kind::TRIG][..], -7), (0x40, &[], -5)] {
        let trig = [0xd9, flags, 1, 1, 0];
        let trig = if flags == 0 { &trig[..3] } else { &trig };
        assert_eq!((&kinds(trig, Release::V2_3)[..], events(trig, Release::V2_3).1), (found, status));
        assert_eq!(events(trig, Release::V2_1).1, -4, "an unknown opcode");
    }
}
