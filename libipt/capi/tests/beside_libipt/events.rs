//! `pt_evt_*` of libipt 2.1.2 and of ours, and the packets of Event Trace.

use crate::{
    damage,
    library::{Config, Handle, NewerLibrary, Packet, both_newer},
    queries::{unknown, with_clocks},
};
use fastrand::Rng;
use std::{
    ffi::c_int,
    ptr::{self, null_mut},
};

/// `struct pt_event` as words, with values that no event has.
const NONE: [u64; 9] = [0x5555_5555_5555_5555; 9];
/// The size of the structure in bytes.
const SIZE: usize = size_of_val(&NONE);
/// `pte_internal` as a status, and `ptev_async_branch`.
const INTERNAL: c_int = -1;
const ASYNC_BRANCH: u32 = 3;
/// Errata with which ours reads packets as 2.0.5 does, except in the event decoder.
const SKD007: u32 = 1 << 2;
const SKZ84: u32 = 1 << 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Forward,
    Backward,
    Set(u64),
    Next(usize),
}

/// The result of a call: the returned and written values, and both offsets afterwards, each with its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    call: Call,
    status: c_int,
    event: [u64; 9],
    offsets: [(c_int, u64); 2],
}

fn call(library: &NewerLibrary, decoder: Handle, call: Call) -> Answer {
    let mut event = NONE;
    // SAFETY: the decoder is alive, and the event has as many bytes.
    let status = unsafe {
        match call {
            Call::Forward => (library.pt_evt_sync_forward)(decoder),
            Call::Backward => (library.pt_evt_sync_backward)(decoder),
            Call::Set(offset) => (library.pt_evt_sync_set)(decoder, offset),
            Call::Next(size) => (library.pt_evt_next)(decoder, &raw mut event, size),
        }
    };
    let offsets = [library.pt_evt_get_offset, library.pt_evt_get_sync_offset].map(|function| {
        let mut offset = 0x5555;
        // SAFETY: the decoder is alive, and the offset is writable.
        let status = unsafe { function(decoder, &raw mut offset) };
        (status, offset)
    });
    Answer { call, status, event, offsets }
}

/// Compares the traces of the vectors to their ends and damaged ones, with all kinds of events.
#[test]
fn each_event_of_a_damaged_trace_is_the_same() {
    let Some(both) = both_newer() else { return };
    let recorded = damage::recorded_with_event_trace();
    let (mut events, mut lost) = ([0; 34], 0);
    for seed in 0..damage::count() {
        let mut rng = Rng::with_seed(seed);
        let mut trace = damage::damaged(&mut rng, &recorded);
        damage::add_event_trace(&mut rng, &mut trace);
        let mut config = with_clocks(Config::new(&trace), &mut rng);
        config.errata[0] = if rng.bool() { 0 } else { rng.u32(..1 << 10) };
        config.flags[0] = rng.u32(..4);
        if rng.u8(..4) == 0 {
            config.callback = Some(unknown);
            config.context = ptr::without_provenance_mut(0x1234);
        }
        // SAFETY: the trace outlives the decoders.
        let decoders = both.map(|library| unsafe { (library.pt_evt_alloc_decoder)(&raw const config) });
        let hangs = damage::has_run(&trace);
        let mut failed = true;
        for _ in 0..200 {
            let which = match rng.u8(..64) {
                0 => Call::Set(rng.u64(..trace.len() as u64 + 2)),
                1 if !hangs => Call::Backward,
                2 => Call::Forward,
                3 => Call::Next(rng.usize(..SIZE)),
                _ if failed && rng.u8(..4) != 0 => Call::Forward,
                _ => Call::Next(SIZE),
            };
            let [theirs, ours] = [0, 1].map(|at| call(both[at], decoders[at], which));
            // 2.1.2 loses the asynchronous branch of a TIP if events have waited for other packets since before its
            // FUP.
            if theirs.status == INTERNAL && matches!(ours.event[0] as u32, ASYNC_BRANCH) {
                lost += 1;
                break;
            }
            assert_eq!(theirs, ours, "seed {seed}, errata {:#x}, {trace:02x?}", config.errata[0]);
            failed = theirs.status < 0;
            if !failed && which == Call::Next(SIZE) {
                events[(theirs.event[0] & 0xff) as usize] += 1;
            }
        }
        for (library, decoder) in both.iter().zip(decoders) {
            // SAFETY: the decoder is not used afterwards.
            unsafe { (library.pt_evt_free_decoder)(decoder) };
        }
    }
    println!("{} calls, events {events:?}, {lost} asynchronous branches lost", damage::count() * 200);
    assert!(lost * 50 < damage::count(), "{lost}");
    // Only instruction and block decoders make ticks.
    for (kind, &count) in events.iter().enumerate() {
        assert_eq!(count > 0, kind != 17, "{kind}: {events:?}");
    }
}

#[test]
fn the_packets_of_event_trace_are_those_of_the_newer_release() {
    let Some(both) = both_newer() else { return };
    let recorded = damage::recorded_with_event_trace();
    let mut kinds = [0; 29];
    for seed in 0..damage::count() {
        let mut rng = Rng::with_seed(seed);
        let mut trace = damage::damaged(&mut rng, &recorded);
        damage::add_event_trace(&mut rng, &mut trace);
        let mut config = Config::new(&trace);
        config.errata[0] = rng.u32(..1 << 10) & !(SKD007 | SKZ84);
        // SAFETY: the trace outlives the decoders.
        let decoders = both.map(|library| unsafe { (library.pt_pkt_alloc_decoder)(&raw const config) });
        loop {
            let [theirs, ours] = [0, 1].map(|at| packets(both[at], decoders[at]));
            assert_eq!(theirs, ours, "seed {seed}, errata {:#x}, {trace:02x?}", config.errata[0]);
            theirs.1.iter().for_each(|packet| kinds[packet.kind as usize] += 1);
            if theirs.0 < 0 {
                break;
            }
        }
        for (library, decoder) in both.iter().zip(decoders) {
            // SAFETY: the decoder is not used afterwards.
            unsafe { (library.pt_pkt_free_decoder)(decoder) };
        }
    }
    // No callback knows unknown packets, and without SKZ84 no packet is invalid.
    for (kind, &count) in kinds.iter().enumerate() {
        assert_eq!(count > 0, kind > 1, "{kind}: {kinds:?}");
    }
}

/// Returns the status of a synchronisation, the packets from there on, and their end with its error.
fn packets(library: &NewerLibrary, decoder: Handle) -> (c_int, Vec<Packet>, c_int, u64) {
    // SAFETY: the decoder is alive.
    let synced = unsafe { (library.pt_pkt_sync_forward)(decoder) };
    let (mut packets, mut offset, mut status) = (vec![], 0, synced);
    while status >= 0 {
        let mut packet = Packet::default();
        // SAFETY: the decoder is alive, and the packet has the size that is passed.
        status = unsafe { (library.pt_pkt_next)(decoder, &raw mut packet, size_of::<Packet>()) };
        packets.extend((status >= 0).then_some(packet));
    }
    // SAFETY: the decoder is alive, and the offset is writable.
    unsafe { (library.pt_pkt_get_offset)(decoder, &raw mut offset) };
    (synced, packets, status, offset)
}

#[test]
fn an_event_decoder_refuses_null_pointers_and_has_a_copy_of_its_configuration() {
    let Some(both) = both_newer() else { return };
    let trace = [damage::PSB.to_vec(), vec![0x02, 0x23]].concat();
    let mut config = Config::new(&trace);
    config.flags[0] = 3;
    let nothing: Handle = null_mut();
    let (mut word, mut event) = (0, NONE);
    let [theirs, ours] = both.map(|library| {
        // SAFETY: null is allowed for all arguments but those of live decoders.
        unsafe {
            let mut answers: Vec<c_int> = vec![
                c_int::from((library.pt_evt_alloc_decoder)(ptr::null()).is_null()),
                c_int::from((library.pt_evt_get_config)(nothing).is_null()),
                (library.pt_evt_sync_forward)(nothing),
                (library.pt_evt_sync_backward)(nothing),
                (library.pt_evt_sync_set)(nothing, 0),
                (library.pt_evt_get_offset)(nothing, &raw mut word),
                (library.pt_evt_get_sync_offset)(nothing, &raw mut word),
                (library.pt_evt_next)(nothing, &raw mut event, SIZE),
            ];
            let decoder = (library.pt_evt_alloc_decoder)(&raw const config);
            let own = *(library.pt_evt_get_config)(decoder);
            answers.extend([
                (library.pt_evt_next)(decoder, &raw mut event, SIZE),
                (library.pt_evt_sync_set)(decoder, 0),
                (library.pt_evt_get_offset)(decoder, null_mut()),
                (library.pt_evt_get_sync_offset)(decoder, null_mut()),
                (library.pt_evt_next)(decoder, null_mut(), SIZE),
                own.size as c_int,
                own.flags[0] as c_int,
                c_int::from(own.begin == config.begin && own.end == config.end),
            ]);
            (library.pt_evt_free_decoder)(decoder);
            (library.pt_evt_free_decoder)(nothing);
            answers
        }
    });
    assert_eq!(theirs, ours);
}
