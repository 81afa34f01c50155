//! Version, texts of errors, errata, configurations, and null pointers.

use crate::library::{Config, Handle, Packet, both};
use std::{
    collections::BTreeSet,
    ffi::{CStr, c_int},
    ptr::{null, null_mut},
};

#[test]
fn the_version_is_debians_with_an_extension() {
    let Some(both) = both() else { return };
    // SAFETY: the function has no arguments.
    let [theirs, ours] = both.map(|library| unsafe { (library.pt_library_version)() });
    let number =
        |version: &crate::library::Version| (version.major, version.minor, version.patch, version.build);
    assert_eq!(number(&ours), (2, 0, 5, 0));
    assert_eq!(number(&ours), number(&theirs));
    // SAFETY: the pointer is to a text of the library.
    assert_eq!(unsafe { CStr::from_ptr(ours.ext) }, c"pugmark");
}

#[test]
fn every_error_has_libipts_text() {
    let Some(both) = both() else { return };
    for code in -3..40 {
        // SAFETY: the function takes any number and returns a text of its library.
        let [theirs, ours] = both.map(|library| unsafe { CStr::from_ptr((library.pt_errstr)(code)) });
        assert_eq!(theirs, ours, "{code}");
    }
}

/// Returns a `struct pt_cpu`: vendor, family, model, stepping.
fn cpu(vendor: u32, family: u16, model: u8) -> u64 {
    u64::from(vendor) | u64::from(family) << 32 | u64::from(model) << 48
}

/// Processors that only releases of libipt after 2.0.5 know: ours has the newer table.
const NEWER: [(u16, u8); 17] = [
    (6, 0xaa),
    (6, 0xac),
    (6, 0xad),
    (6, 0xae),
    (6, 0xaf),
    (6, 0xb5),
    (6, 0xb6),
    (6, 0xb7),
    (6, 0xba),
    (6, 0xbd),
    (6, 0xc5),
    (6, 0xc6),
    (6, 0xcc),
    (6, 0xcf),
    (6, 0xd5),
    (6, 0xdd),
    (0x12, 1),
];

#[test]
fn errata_are_libipts_but_for_processors_that_2_0_5_did_not_know_yet() {
    let Some(both) = both() else { return };
    let mut differ = BTreeSet::new();
    for vendor in 0..3 {
        for (family, model) in (0..0x20).flat_map(|family| (0..=255).map(move |model| (family, model))) {
            let cpu = cpu(vendor, family, model);
            let [theirs, ours] = both.map(|library| {
                let mut errata = [u32::MAX; 16];
                // SAFETY: both are as long as the header's structures.
                (unsafe { (library.pt_cpu_errata)(&raw mut errata, &raw const cpu) }, errata)
            });
            if theirs != ours {
                assert_eq!((vendor, ours.0), (1, 0));
                differ.insert((family, model));
            }
        }
    }
    let newer = NEWER.into_iter().chain([(0x12, 3), (0x13, 1)]).collect();
    assert_eq!(differ, newer);
}

#[test]
fn configurations_of_every_length_are_taken_or_refused_and_copied_in_the_same_way() {
    let Some(both) = both() else { return };
    let trace = [0; 8];
    let config = Config {
        cpu: 0x0102_0304,
        errata: [7; 16],
        cpuid_15h: [0x22; 2],
        mtc_freq: 3,
        nom_freq: 4,
        flags: [0x33; 4],
        rest: [0x11; 19],
        ..Config::new(&trace)
    };
    for size in 0..size_of::<Config>() {
        for (begin, end) in [
            (config.begin, config.end),
            (config.end, config.begin),
            (null(), config.end),
            (config.begin, null()),
        ] {
            // A callback cut short is an invalid address: neither library calls it here.
            let config = Config { size, begin, end, ..config };
            let copies = both.map(|library| {
                // SAFETY: the trace outlives the decoder.
                let decoder = unsafe { (library.pt_pkt_alloc_decoder)(&raw const config) };
                // SAFETY: the decoder is alive or null.
                let copy = unsafe { (library.pt_pkt_get_config)(decoder) };
                // SAFETY: the copy has the size of the header's structure, whose last word is before `rest`'s end.
                let bytes = (!copy.is_null()).then(|| unsafe { *copy.cast::<[u8; 280]>() });
                // SAFETY: it is not used afterwards.
                unsafe { (library.pt_pkt_free_decoder)(decoder) };
                bytes
            });
            assert_eq!(copies[0], copies[1], "{size} {begin:?} {end:?}");
        }
    }
}

#[test]
fn null_pointers_are_refused_in_the_same_way() {
    let Some(both) = both() else { return };
    let trace = [0; 8];
    let config = Config::new(&trace);
    let (mut offset, mut packet, mut errata) = (0, Packet::default(), [0; 16]);
    let nothing: Handle = null_mut();
    let [theirs, ours] = both.map(|library| {
        // SAFETY: null is allowed for all arguments but those of live decoders.
        unsafe {
            let mut answers: Vec<c_int> = vec![
                (library.pt_cpu_errata)(null_mut(), &raw const config.cpu),
                (library.pt_cpu_errata)(&raw mut errata, null()),
                c_int::from((library.pt_pkt_alloc_decoder)(null()).is_null()),
                c_int::from((library.pt_alloc_encoder)(null()).is_null()),
                c_int::from((library.pt_pkt_get_config)(nothing).is_null()),
                c_int::from((library.pt_enc_get_config)(nothing).is_null()),
                (library.pt_pkt_sync_forward)(nothing),
                (library.pt_pkt_sync_backward)(nothing),
                (library.pt_pkt_sync_set)(nothing, 0),
                (library.pt_pkt_get_offset)(nothing, &raw mut offset),
                (library.pt_pkt_get_sync_offset)(nothing, &raw mut offset),
                (library.pt_pkt_next)(nothing, &raw mut packet, size_of::<Packet>()),
                (library.pt_enc_sync_set)(nothing, 0),
                (library.pt_enc_get_offset)(nothing, &raw mut offset),
                (library.pt_enc_next)(nothing, &raw const packet),
            ];
            let decoder = (library.pt_pkt_alloc_decoder)(&raw const config);
            answers.extend([
                (library.pt_pkt_get_offset)(decoder, null_mut()),
                (library.pt_pkt_get_sync_offset)(decoder, null_mut()),
                (library.pt_pkt_next)(decoder, null_mut(), 24),
            ]);
            (library.pt_pkt_free_decoder)(decoder);
            (library.pt_pkt_free_decoder)(nothing);
            let encoder = (library.pt_alloc_encoder)(&raw const config);
            answers.extend([
                (library.pt_enc_get_offset)(encoder, null_mut()),
                (library.pt_enc_next)(encoder, null()),
            ]);
            (library.pt_free_encoder)(encoder);
            (library.pt_free_encoder)(nothing);
            answers
        }
    });
    assert_eq!(theirs, ours);
}
