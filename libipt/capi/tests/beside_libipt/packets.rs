//! `pt_pkt_*` of both libraries.

use crate::{
    damage,
    library::{Config, Handle, Library, Packet, both},
};
use fastrand::Rng;
use std::{ffi::c_int, ptr};

/// The result of a call: the call, its status, the packet, and both offsets with their statuses.
type Answer = (Call, c_int, Packet, [(c_int, u64); 2]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Next(usize),
    Forward,
    Backward,
    Set(u64),
}

const SIZE: usize = size_of::<Packet>();
/// `ppt_mode`, and the field of newer headers in its payload.
const MODE: c_int = 11;
const INTERRUPT_FLAG: u64 = 1 << 34;

fn offsets(library: &Library, decoder: Handle) -> [(c_int, u64); 2] {
    [library.pt_pkt_get_offset, library.pt_pkt_get_sync_offset].map(|function| {
        let mut offset = 0x5555;
        // SAFETY: the decoder is alive, and the offset is writable.
        let status = unsafe { function(decoder, &raw mut offset) };
        (status, offset)
    })
}

fn call(library: &Library, decoder: Handle, call: Call) -> Answer {
    let mut packet = Packet::default();
    // SAFETY: the decoder is alive, and the packet has the size that is passed.
    let status = unsafe {
        match call {
            Call::Next(size) => (library.pt_pkt_next)(decoder, &raw mut packet, size),
            Call::Forward => (library.pt_pkt_sync_forward)(decoder),
            Call::Backward => (library.pt_pkt_sync_backward)(decoder),
            Call::Set(offset) => (library.pt_pkt_sync_set)(decoder, offset),
        }
    };
    // In a shorter structure libipt leaves stack contents where the packet has no field, also after an error.
    let written = match call {
        Call::Next(SIZE) if status >= 0 => packet,
        Call::Next(5..) if status >= 0 => Packet { payload: [0; 2], padding: [0; 3], ..packet },
        _ => Packet::default(),
    };
    // 2.0.5 has no field for the interrupt flag of a MODE.Exec.
    let written = match written.kind {
        MODE => Packet { payload: [written.payload[0] & !INTERRUPT_FLAG, 0], ..written },
        _ => written,
    };
    (call, status, written, offsets(library, decoder))
}

/// Returns all packets from each PSB to the first error.
fn compare_all(both: [&Library; 2], config: &Config) -> u64 {
    // SAFETY: the trace outlives the decoders.
    let decoders = both.map(|library| unsafe { (library.pt_pkt_alloc_decoder)(config) });
    let answer = |which| [0, 1].map(|at| call(both[at], decoders[at], which));
    let mut count = 0;
    loop {
        let [theirs, ours] = answer(Call::Forward);
        assert_eq!(theirs, ours);
        if theirs.1 < 0 {
            break;
        }
        loop {
            let [theirs, ours] = answer(Call::Next(SIZE));
            assert_eq!(theirs, ours);
            if theirs.1 < 0 {
                break;
            }
            count += 1;
        }
    }
    for (library, decoder) in both.iter().zip(decoders) {
        // SAFETY: the decoder is not used afterwards.
        unsafe { (library.pt_pkt_free_decoder)(decoder) };
    }
    count
}

#[test]
fn the_packets_of_recorded_traces_are_the_same() {
    let Some(both) = both() else { return };
    let packets: u64 = damage::recorded().iter().map(|trace| compare_all(both, &Config::new(trace))).sum();
    assert!(packets > 5000, "{packets}");
}

/// Decodes every packet that it is asked about. The second byte has the size, modulo eight, and decides if the packet
/// is refused.
pub(crate) unsafe extern "C" fn unknown(
    packet: *mut [u64; 2],
    config: *const Config,
    at: *const u8,
    context: *mut std::ffi::c_void,
) -> c_int {
    // SAFETY: both libraries pass their own copy of the configuration.
    let end = unsafe { (*config).end };
    let next = at.wrapping_add(1);
    // SAFETY: the byte is in the trace.
    let value = if next < end { unsafe { *next } } else { 0 };
    // SAFETY: both libraries pass the structure's place.
    unsafe { (*packet)[1] = context.addr() as u64 };
    match value {
        0xf0.. => -c_int::from(value - 0xef),
        0xe0.. => 300,
        _ => c_int::from(value % 8),
    }
}

#[test]
fn each_call_on_a_damaged_trace_returns_the_same() {
    let Some(both) = both() else { return };
    let recorded = damage::recorded();
    for seed in 0..damage::count() {
        let mut rng = Rng::with_seed(seed);
        let trace = damage::damaged(&mut rng, &recorded);
        let mut config = Config::new(&trace);
        // Each erratum has a bit of the first word; libipt's packet decoder checks only that of SKZ84.
        config.errata[0] = if rng.bool() { 0 } else { rng.u32(..1 << 10) };
        if rng.bool() {
            config.callback = Some(unknown);
            config.context = ptr::without_provenance_mut(0x1234);
        }
        // SAFETY: the trace outlives the decoders.
        let decoders = both.map(|library| unsafe { (library.pt_pkt_alloc_decoder)(&raw const config) });
        let mut failed = false;
        for _ in 0..300 {
            let which = match rng.u8(..32) {
                0 => Call::Set(rng.u64(..trace.len() as u64 + 2)),
                1 => Call::Next(rng.usize(..SIZE)),
                2 => Call::Backward,
                3 => Call::Forward,
                _ if failed && rng.bool() => Call::Forward,
                _ => Call::Next(SIZE),
            };
            let [theirs, ours] = [0, 1].map(|at| call(both[at], decoders[at], which));
            assert_eq!(theirs, ours, "seed {seed}, errata {:#x}, {trace:02x?}", config.errata[0]);
            failed = theirs.1 < 0;
        }
        for (library, decoder) in both.iter().zip(decoders) {
            // SAFETY: the decoder is not used afterwards.
            unsafe { (library.pt_pkt_free_decoder)(decoder) };
        }
    }
}
