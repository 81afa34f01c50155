//! `pt_qry_*` of both libraries.

use crate::{
    damage,
    library::{Config, Handle, Library, PtEvent, both},
    packets,
};
use fastrand::Rng;
use std::{
    ffi::c_int,
    ptr::{self, null_mut},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Forward,
    Backward,
    Set(u64),
    Branch,
    Target,
    Event(usize),
    /// A forward synchronisation without a place for the address.
    ForwardOnly,
}

/// The result of a call: the returned and written values, and the decoder's state afterwards: both offsets, the time
/// and the ratio, each with its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    call: Call,
    status: c_int,
    ip: u64,
    taken: c_int,
    event: PtEvent,
    offsets: [(c_int, u64); 2],
    time: (c_int, u64, u32, u32),
    ratio: (c_int, u32),
}

fn call(library: &Library, decoder: Handle, call: Call) -> Answer {
    let (mut ip, mut taken, mut event) = (0x5555, 0x5555, PtEvent::NONE);
    // SAFETY: the decoder is alive, and the places are writable.
    let status = unsafe {
        match call {
            Call::Forward => (library.pt_qry_sync_forward)(decoder, &raw mut ip),
            Call::ForwardOnly => (library.pt_qry_sync_forward)(decoder, null_mut()),
            Call::Backward => (library.pt_qry_sync_backward)(decoder, &raw mut ip),
            Call::Set(offset) => (library.pt_qry_sync_set)(decoder, &raw mut ip, offset),
            Call::Branch => (library.pt_qry_cond_branch)(decoder, &raw mut taken),
            Call::Target => (library.pt_qry_indirect_branch)(decoder, &raw mut ip),
            Call::Event(size) => (library.pt_qry_event)(decoder, &raw mut event, size),
        }
    };
    let offsets = [library.pt_qry_get_offset, library.pt_qry_get_sync_offset].map(|function| {
        let mut offset = 0x5555;
        // SAFETY: the decoder is alive, and the offset is writable.
        let status = unsafe { function(decoder, &raw mut offset) };
        (status, offset)
    });
    let (mut time, mut mtc, mut cyc, mut ratio) = (0x5555, 0x5555, 0x5555, 0x5555);
    // SAFETY: the decoder is alive, and the places are writable.
    let known = unsafe { (library.pt_qry_time)(decoder, &raw mut time, &raw mut mtc, &raw mut cyc) };
    // SAFETY: as before.
    let has_ratio = unsafe { (library.pt_qry_core_bus_ratio)(decoder, &raw mut ratio) };
    let (time, ratio) = ((known, time, mtc, cyc), (has_ratio, ratio));
    Answer { call, status, ip, taken, event, offsets, time, ratio }
}

/// Decodes every packet that it is asked about. With size 0 both libraries would ask again forever.
pub(crate) unsafe extern "C" fn unknown(
    packet: *mut [u64; 2],
    config: *const Config,
    at: *const u8,
    context: *mut std::ffi::c_void,
) -> c_int {
    // SAFETY: by the same contract.
    match unsafe { packets::unknown(packet, config, at, context) } {
        0 => 1,
        size => size,
    }
}

/// Returns the next call of a caller that does not know the code: an event if one is announced, otherwise either kind
/// of branch, and the other kind if that fails.
fn likely(last: &Answer, rng: &mut Rng) -> Call {
    match (last.call, last.status) {
        (_, 0..) if last.status & 1 != 0 => Call::Event(PtEvent::SIZE),
        (Call::Branch, -8) => Call::Target,
        (Call::Target, -8) => Call::Event(PtEvent::SIZE),
        (_, ..0) => Call::Forward,
        _ if rng.u8(..8) == 0 => Call::Target,
        _ => Call::Branch,
    }
}

/// Returns the time's parameters of a processor, or none.
pub(crate) fn with_clocks(config: Config, rng: &mut Rng) -> Config {
    let some = |rng: &mut Rng, most: u32| if rng.u8(..4) == 0 { 0 } else { rng.u32(..=most) };
    Config {
        cpuid_15h: [some(rng, 4), some(rng, 400)],
        mtc_freq: some(rng, 15) as u8,
        nom_freq: some(rng, 60) as u8,
        ..config
    }
}

/// Returns all answers from each PSB to the first error.
fn compare_all(both: [&Library; 2], config: &Config, seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    // SAFETY: the trace outlives the decoders.
    let decoders = both.map(|library| unsafe { (library.pt_qry_alloc_decoder)(config) });
    let (mut count, mut next) = (0, Call::Forward);
    loop {
        let [theirs, ours] = [0, 1].map(|at| call(both[at], decoders[at], next));
        assert_eq!(theirs, ours);
        count += 1;
        if next == Call::Forward && theirs.status == -7 {
            break;
        }
        next = likely(&theirs, &mut rng);
    }
    for (library, decoder) in both.iter().zip(decoders) {
        // SAFETY: the decoder is not used afterwards.
        unsafe { (library.pt_qry_free_decoder)(decoder) };
    }
    count
}

#[test]
fn the_answers_for_recorded_traces_are_the_same() {
    let Some(both) = both() else { return };
    let mut calls = 0;
    for (seed, trace) in damage::recorded().iter().enumerate() {
        let config = with_clocks(Config::new(trace), &mut Rng::with_seed(seed as u64));
        calls += compare_all(both, &config, seed as u64);
    }
    println!("{calls} calls");
    assert!(calls > 500, "{calls}");
}

#[test]
fn each_query_of_a_damaged_trace_has_the_same_answer() {
    let Some(both) = both() else { return };
    let recorded = damage::recorded();
    let mut events = [0; 20];
    for seed in 0..damage::count() {
        let mut rng = Rng::with_seed(seed);
        let trace = damage::damaged(&mut rng, &recorded);
        let mut config = with_clocks(Config::new(&trace), &mut rng);
        config.errata[0] = if rng.bool() { 0 } else { rng.u32(..1 << 10) };
        if rng.u8(..4) == 0 {
            config.callback = Some(unknown);
            config.context = ptr::without_provenance_mut(0x1234);
        }
        // SAFETY: the trace outlives the decoders.
        let decoders = both.map(|library| unsafe { (library.pt_qry_alloc_decoder)(&raw const config) });
        let hangs = damage::has_run(&trace);
        let mut last: Option<Answer> = None;
        for _ in 0..300 {
            let which = match (rng.u8(..64), &last) {
                (0, _) => Call::Set(rng.u64(..trace.len() as u64 + 2)),
                (1, _) if !hangs => Call::Backward,
                (2, _) => Call::ForwardOnly,
                (3, _) => Call::Event(rng.usize(..=PtEvent::SIZE)),
                (4..8, _) => Call::Branch,
                (8..10, _) => Call::Target,
                (10, _) => Call::Event(PtEvent::SIZE),
                (_, None) => Call::Forward,
                (_, Some(last)) => likely(last, &mut rng),
            };
            let [theirs, ours] = [0, 1].map(|at| call(both[at], decoders[at], which));
            assert_eq!(theirs, ours, "seed {seed}, errata {:#x}, {trace:02x?}", config.errata[0]);
            if let Ok(kind) = usize::try_from(theirs.event.kind) {
                events[kind] += 1;
            }
            last = Some(theirs);
        }
        for (library, decoder) in both.iter().zip(decoders) {
            // SAFETY: the decoder is not used afterwards.
            unsafe { (library.pt_qry_free_decoder)(decoder) };
        }
    }
    println!("{} calls, events {events:?}", damage::count() * 300);
    // Only instruction and block decoders make ticks.
    for (kind, &count) in events.iter().enumerate() {
        assert_eq!(count > 0, kind != 17, "{kind}: {events:?}");
    }
}

#[test]
fn a_search_backward_in_a_run_of_psbs_cut_off_at_the_end_ends() {
    let Some([_, ours]) = both() else { return };
    for psbs in 1..5 {
        for (before, after) in [(0, 0), (3, 0), (0, 1), (5, 7)] {
            let trace: Vec<u8> = [vec![0; before], damage::PSB.repeat(psbs), vec![0; after]].concat();
            let config = Config::new(&trace);
            // SAFETY: the trace outlives the decoder.
            let decoder = unsafe { (ours.pt_qry_alloc_decoder)(&raw const config) };
            assert_eq!(call(ours, decoder, Call::Backward).status, -7);
            // SAFETY: the decoder is not used afterwards.
            unsafe { (ours.pt_qry_free_decoder)(decoder) };
        }
    }
}

#[test]
fn an_address_or_structure_of_nowhere_is_refused_in_the_same_way() {
    let Some(both) = both() else { return };
    let trace = [damage::PSB.to_vec(), vec![0x02, 0x23, 0x0d]].concat();
    let config = Config::new(&trace);
    let nothing: Handle = null_mut();
    let (mut word, mut taken, mut lost, mut event) = (0, 0, 0, PtEvent::NONE);
    let [theirs, ours] = both.map(|library| {
        // SAFETY: null is allowed for all arguments but those of live decoders.
        unsafe {
            let mut answers: Vec<c_int> = vec![
                c_int::from((library.pt_qry_alloc_decoder)(ptr::null()).is_null()),
                c_int::from((library.pt_qry_get_config)(nothing).is_null()),
                (library.pt_qry_sync_forward)(nothing, &raw mut word),
                (library.pt_qry_sync_backward)(nothing, &raw mut word),
                (library.pt_qry_sync_set)(nothing, &raw mut word, 0),
                (library.pt_qry_get_offset)(nothing, &raw mut word),
                (library.pt_qry_get_sync_offset)(nothing, &raw mut word),
                (library.pt_qry_cond_branch)(nothing, &raw mut taken),
                (library.pt_qry_indirect_branch)(nothing, &raw mut word),
                (library.pt_qry_event)(nothing, &raw mut event, PtEvent::SIZE),
                (library.pt_qry_time)(nothing, &raw mut word, &raw mut lost, &raw mut lost),
                (library.pt_qry_core_bus_ratio)(nothing, &raw mut lost),
            ];
            let decoder = (library.pt_qry_alloc_decoder)(&raw const config);
            answers.extend([
                (library.pt_qry_sync_set)(decoder, null_mut(), 0),
                (library.pt_qry_sync_backward)(decoder, null_mut()),
                (library.pt_qry_get_offset)(decoder, null_mut()),
                (library.pt_qry_get_sync_offset)(decoder, null_mut()),
                (library.pt_qry_cond_branch)(decoder, null_mut()),
                (library.pt_qry_indirect_branch)(decoder, null_mut()),
                (library.pt_qry_event)(decoder, null_mut(), PtEvent::SIZE),
                (library.pt_qry_time)(decoder, null_mut(), &raw mut lost, &raw mut lost),
                (library.pt_qry_time)(decoder, &raw mut word, null_mut(), null_mut()),
                (library.pt_qry_core_bus_ratio)(decoder, null_mut()),
                (*(library.pt_qry_get_config)(decoder)).size as c_int,
            ]);
            (library.pt_qry_free_decoder)(decoder);
            (library.pt_qry_free_decoder)(nothing);
            answers
        }
    });
    assert_eq!(theirs, ours);
}
