//! `pt_enc_*` of both libraries.

use crate::{
    damage,
    library::{Config, Packet, both},
};
use fastrand::Rng;

/// Returns a packet of any kind, also an unknown one, with any payload.
fn packet(rng: &mut Rng) -> Packet {
    let word = |rng: &mut Rng| match rng.u8(..4) {
        0 => rng.u64(..8),
        1 => rng.u64(..0x400),
        2 => 1 << rng.u32(..64),
        _ => rng.u64(..),
    };
    Packet { kind: rng.i32(-1..29), size: rng.u8(..), padding: [0; 3], payload: [word(rng), word(rng)] }
}

#[test]
fn each_packet_is_written_or_refused_in_the_same_way() {
    let Some(both) = both() else { return };
    let mut written = 0;
    for seed in 0..damage::count() {
        let mut rng = Rng::with_seed(seed);
        let room = rng.usize(..120);
        let mut buffers = [vec![0xee; room], vec![0xee; room]];
        let configs = buffers.each_mut().map(|buffer| Config {
            begin: buffer.as_mut_ptr(),
            end: buffer.as_mut_ptr_range().end,
            ..Config::new(&[])
        });
        // SAFETY: the buffers outlive the encoders.
        let encoders = [0, 1].map(|at| unsafe { (both[at].pt_alloc_encoder)(&raw const configs[at]) });
        for _ in 0..30 {
            let (packet, set) = (packet(&mut rng), rng.u64(..room as u64 * 2 + 1));
            let is_set = rng.u8(..8) == 0;
            let [theirs, ours] = [0, 1].map(|at| {
                let (library, encoder) = (both[at], encoders[at]);
                // SAFETY: the encoder is alive.
                let status = unsafe {
                    if is_set {
                        (library.pt_enc_sync_set)(encoder, set)
                    } else {
                        (library.pt_enc_next)(encoder, &raw const packet)
                    }
                };
                let mut offset = 0;
                // SAFETY: the encoder is alive, and the offset is writable.
                let known = unsafe { (library.pt_enc_get_offset)(encoder, &raw mut offset) };
                (status, known, offset)
            });
            assert_eq!(theirs, ours, "seed {seed}, set {is_set} {set}, {packet:x?}, {room}");
            written += u64::from(!is_set && theirs.0 > 0);
        }
        for at in [0, 1] {
            // SAFETY: the encoder is not used afterwards.
            unsafe { (both[at].pt_free_encoder)(encoders[at]) };
        }
        let [theirs, ours] = buffers;
        assert_eq!(theirs, ours, "seed {seed}");
    }
    assert!(written > damage::count(), "{written}");
}

#[test]
fn an_encoders_configuration_is_a_copy() {
    let Some(both) = both() else { return };
    let mut buffer = [0; 8];
    let config = Config { begin: buffer.as_mut_ptr(), errata: [9; 16], ..Config::new(&buffer) };
    let [theirs, ours] = both.map(|library| {
        // SAFETY: the buffer outlives the encoder.
        let encoder = unsafe { (library.pt_alloc_encoder)(&raw const config) };
        // SAFETY: the encoder is alive.
        let copy = unsafe { (library.pt_enc_get_config)(encoder) };
        assert_ne!(copy, &raw const config);
        // SAFETY: the copy has the size of the header's structure.
        let bytes = unsafe { *copy.cast::<[u8; 280]>() };
        // SAFETY: the encoder is not used afterwards.
        unsafe { (library.pt_free_encoder)(encoder) };
        bytes
    });
    assert_eq!(theirs, ours);
}
