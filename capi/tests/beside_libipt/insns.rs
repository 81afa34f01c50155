//! `pt_insn_*` of both libraries.

use crate::{
    damage,
    library::{Config, Event, Handle, Insn, Library, both},
    queries::{unknown, with_clocks},
};
use fastrand::Rng;
use std::{
    ffi::{CString, c_int, c_void},
    fs,
    path::{Path, PathBuf},
    ptr::{self, null, null_mut},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Forward,
    Backward,
    Set(u64),
    Next(usize),
    Event(usize),
}

/// What a call left behind: what it returned and wrote, then both offsets, the time, the ratio and the address space with
/// their statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    call: Call,
    status: c_int,
    insn: Insn,
    event: Event,
    offsets: [(c_int, u64); 2],
    time: (c_int, u64, u32, u32),
    ratio: (c_int, u32),
    asid: (c_int, [u64; 3]),
}

fn call(library: &Library, decoder: Handle, call: Call) -> Answer {
    let (mut insn, mut event) = (Insn::NONE, Event::NONE);
    // SAFETY: the decoder is alive, and the places are writable.
    let status = unsafe {
        match call {
            Call::Forward => (library.pt_insn_sync_forward)(decoder),
            Call::Backward => (library.pt_insn_sync_backward)(decoder),
            Call::Set(offset) => (library.pt_insn_sync_set)(decoder, offset),
            Call::Next(size) => (library.pt_insn_next)(decoder, &raw mut insn, size),
            Call::Event(size) => (library.pt_insn_event)(decoder, &raw mut event, size),
        }
    };
    let offsets = [library.pt_insn_get_offset, library.pt_insn_get_sync_offset].map(|function| {
        let mut offset = 0x5555;
        // SAFETY: the decoder is alive, and the offset is writable.
        let status = unsafe { function(decoder, &raw mut offset) };
        (status, offset)
    });
    let (mut time, mut mtc, mut cyc, mut ratio, mut asid) = (0x5555, 0x5555, 0x5555, 0x5555, [0x5555; 3]);
    // SAFETY: the decoder is alive, and the places are writable.
    let known = unsafe { (library.pt_insn_time)(decoder, &raw mut time, &raw mut mtc, &raw mut cyc) };
    // SAFETY: as before.
    let has_ratio = unsafe { (library.pt_insn_core_bus_ratio)(decoder, &raw mut ratio) };
    let size = offsets[0].1 as usize % 32;
    // SAFETY: as before; the size is at most what the structure has, or more.
    let has_asid = unsafe { (library.pt_insn_asid)(decoder, &raw mut asid, size) };
    let (time, ratio, asid) = ((known, time, mtc, cyc), (has_ratio, ratio), (has_asid, asid));
    Answer { call, status, insn, event, offsets, time, ratio, asid }
}

/// What everybody calls: an event where the status says that there is one, and the next PSB after an error.
fn likely(last: &Answer) -> Call {
    match last.status {
        ..0 => Call::Forward,
        status if status & 1 != 0 => Call::Event(Event::SIZE),
        _ => Call::Next(Insn::SIZE),
    }
}

/// Code that depends on the address only: bytes that begin many kinds of instructions, and others. The context says which
/// code, and how much of it can be read at once.
unsafe extern "C" fn code(
    out: *mut u8,
    size: usize,
    asid: *const [u64; 3],
    ip: u64,
    context: *mut c_void,
) -> c_int {
    /// Prefixes, and first bytes of branches.
    const BYTES: [u8; 32] = [
        0x0f, 0x0f, 0x66, 0x67, 0xf2, 0xf3, 0x48, 0x44, 0xc4, 0xc5, 0x62, 0x70, 0xe8, 0xe9, 0xeb, 0xe3, 0xc3,
        0xc2, 0xff, 0x9a, 0xea, 0xcc, 0xcd, 0xcf, 0x90, 0x01, 0x22, 0xae, 0xc7, 0x05, 0x38, 0x3a,
    ];
    let seed = context.addr() as u64;
    // SAFETY: both libraries pass an address space.
    let asid = unsafe { *asid };
    let whole = Rng::with_seed(ip ^ seed).u8(..);
    if whole < 2 {
        return -13 - c_int::from(whole % 2);
    }
    let size = if whole < 32 { 1 + usize::from(whole) % size } else { size };
    for at in 0..size {
        let mut rng = Rng::with_seed(ip.wrapping_add(at as u64) ^ seed ^ asid[1].wrapping_mul(3) ^ asid[2]);
        let byte = if rng.u8(..8) == 0 { BYTES[rng.usize(..32)] } else { rng.u8(..) };
        // SAFETY: there are that many writable bytes.
        unsafe { out.add(at).write(byte) };
    }
    size as c_int
}

/// A decoder of each library, with an image that has files.
struct Decoders {
    both: [&'static Library; 2],
    handles: [Handle; 2],
    images: [Handle; 2],
}

impl Decoders {
    fn new(both: [&'static Library; 2], config: &Config) -> Self {
        // SAFETY: the trace outlives the decoders.
        let handles = both.map(|library| unsafe { (library.pt_insn_alloc_decoder)(config) });
        // SAFETY: null is allowed.
        let images = both.map(|library| unsafe { (library.pt_image_alloc)(null()) });
        for at in 0..2 {
            // SAFETY: both are alive; the image is freed after the decoder.
            assert_eq!(unsafe { (both[at].pt_insn_set_image)(handles[at], images[at]) }, 0);
            // SAFETY: as before.
            assert_eq!(unsafe { (both[at].pt_insn_get_image)(handles[at]) }, images[at]);
        }
        Self { both, handles, images }
    }

    fn add_file(&self, file: &Path, offset: u64, size: u64, base: u64, asid: Option<[u64; 3]>) {
        let name = CString::new(file.to_str().unwrap()).unwrap();
        let asid = asid.as_ref().map_or(null(), ptr::from_ref);
        let added = [0, 1].map(|at| {
            let add = self.both[at].pt_image_add_file;
            // SAFETY: the image is alive, the name is a string, and the address space is as long as it says.
            unsafe { add(self.images[at], name.as_ptr(), offset, size, asid, base) }
        });
        assert_eq!(added[0], added[1]);
    }

    fn set_code(&self, seed: u64) {
        for at in 0..2 {
            let context = ptr::without_provenance_mut(seed as usize);
            // SAFETY: the image is alive.
            unsafe { (self.both[at].pt_image_set_callback)(self.images[at], Some(code), context) };
        }
    }

    fn answers(&self, which: Call) -> [Answer; 2] {
        [0, 1].map(|at| call(self.both[at], self.handles[at], which))
    }
}

impl Drop for Decoders {
    fn drop(&mut self) {
        for at in 0..2 {
            // SAFETY: it is not used any more.
            unsafe { (self.both[at].pt_insn_free_decoder)(self.handles[at]) };
            // SAFETY: nor is the image.
            unsafe { (self.both[at].pt_image_free)(self.images[at]) };
        }
    }
}

/// Recorded traces and their code: file and address.
fn recorded() -> Vec<(Vec<u8>, PathBuf, u64)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/ptt/examples");
    let mut found = vec![];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (trace, code) = (path.with_extension("pt"), path.with_extension("bin"));
        if path.extension() != Some("bin".as_ref()) || !trace.exists() {
            continue;
        }
        let command = fs::read_to_string(path.with_extension("cmd.json")).unwrap_or_default();
        let base = command
            .split("\"base\":")
            .nth(1)
            .and_then(|rest| rest.split(['"', ',']).find(|word| word.trim().starts_with("0x")));
        let base = base
            .map_or(0x1000, |text| u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap());
        found.push((fs::read(trace).unwrap(), code, base));
    }
    found.sort();
    assert!(found.len() > 50, "{}", found.len());
    found
}

#[test]
fn the_instructions_of_recorded_traces_are_the_same() {
    let Some(both) = both() else { return };
    let (mut insns, mut calls) = (0, 0);
    for (seed, (trace, file, base)) in recorded().into_iter().enumerate() {
        for errata in [0, 0x3ff] {
            let mut config = with_clocks(Config::new(&trace), &mut Rng::with_seed(seed as u64));
            config.errata[0] = errata;
            config.flags[0] = seed as u32 % 2;
            let decoders = Decoders::new(both, &config);
            decoders.add_file(&file, 0, u64::MAX, base, None);
            let mut next = Call::Forward;
            // Code that goes in circles without a branch in the trace never ends.
            for _ in 0..10_000 {
                let [theirs, ours] = decoders.answers(next);
                assert_eq!(theirs, ours, "{}", file.display());
                calls += 1;
                insns += u64::from(matches!(next, Call::Next(_)) && theirs.status >= 0);
                if next == Call::Forward && theirs.status == -7 {
                    break;
                }
                next = likely(&theirs);
            }
        }
    }
    println!("{insns} instructions, {calls} calls");
    assert!(insns > 500, "{insns}");
}

#[test]
fn each_call_for_a_damaged_trace_and_any_code_gives_the_same_instruction_or_error() {
    let Some(both) = both() else { return };
    let traces = damage::recorded();
    let examples = recorded();
    let (mut insns, mut events, mut classes, mut calls) = (0_u64, [0; 20], [0; 10], 0_u64);
    for seed in 0..damage::count() {
        let mut rng = Rng::with_seed(seed);
        let (trace, file, base) = &examples[rng.usize(..examples.len())];
        let trace = match rng.u8(..3) {
            0 => damage::changed(&mut rng, trace),
            1 => damage::plausible(&mut rng),
            _ => damage::damaged(&mut rng, &traces),
        };
        let mut config = with_clocks(Config::new(&trace), &mut rng);
        config.errata[0] = if rng.bool() { 0 } else { rng.u32(..1 << 10) };
        config.flags[0] = rng.u32(..2);
        // Filters and ranges: the configuration's last words.
        if rng.bool() {
            config.rest[0] = rng.u64(..0x333);
            for word in &mut config.rest[1..9] {
                *word = rng.u64(..0x10000);
            }
        }
        if rng.u8(..4) == 0 {
            config.callback = Some(unknown);
        }
        let decoders = Decoders::new(both, &config);
        for _ in 0..rng.usize(..4) {
            let asid = rng.bool().then(|| [24, if rng.bool() { u64::MAX } else { 0 }, u64::MAX]);
            decoders.add_file(file, rng.u64(..8), rng.u64(1..64), base + rng.u64(..32), asid);
        }
        if rng.u8(..4) != 0 {
            decoders.set_code(rng.u64(..1 << 40));
        }
        let hangs = damage::has_run(&trace);
        let mut next = Call::Forward;
        for _ in 0..1000 {
            let [theirs, ours] = decoders.answers(next);
            assert_eq!(theirs, ours, "seed {seed}, errata {:#x}, {trace:02x?}", config.errata[0]);
            calls += 1;
            if matches!(next, Call::Next(_)) && theirs.status >= 0 {
                insns += 1;
                if let Some(count) = classes.get_mut(theirs.insn.class as usize) {
                    *count += 1;
                }
            }
            if let Some(count) = events.get_mut(theirs.event.kind as usize) {
                *count += 1;
            }
            next = match rng.u8(..64) {
                _ if next == Call::Forward && theirs.status == -7 && rng.bool() => break,
                0 => Call::Set(rng.u64(..trace.len() as u64 + 2)),
                1 if !hangs => Call::Backward,
                2 => Call::Event(rng.usize(..72)),
                3 => Call::Next(rng.usize(..=Insn::SIZE)),
                _ => likely(&theirs),
            };
        }
    }
    println!("{calls} calls, {insns} instructions, classes {classes:?}, events {events:?}");
    assert!(insns > 10_000, "{insns}");
    assert!(classes[1..].iter().all(|&count| count > 0), "{classes:?}");
    assert!(events.iter().filter(|&&count| count > 0).count() >= 19, "{events:?}");
}

#[test]
fn a_decoder_of_instructions_has_its_own_image_and_refuses_null_pointers_in_the_same_way() {
    let Some(both) = both() else { return };
    let trace = [damage::PSB.to_vec(), vec![0x02, 0x23, 0x0d]].concat();
    let config = Config { flags: [1, 2, 3, 4], ..Config::new(&trace) };
    let nothing: Handle = null_mut();
    let (mut word, mut lost, mut asid, mut insn, mut event) = (0, 0, [0; 3], Insn::NONE, Event::NONE);
    let [theirs, ours] = both.map(|library| {
        // SAFETY: null is allowed everywhere but for what is passed to decoders that are alive.
        unsafe {
            let mut answers: Vec<c_int> = vec![
                c_int::from((library.pt_insn_alloc_decoder)(null()).is_null()),
                c_int::from((library.pt_insn_get_config)(nothing).is_null()),
                c_int::from((library.pt_insn_get_image)(nothing).is_null()),
                (library.pt_insn_set_image)(nothing, nothing),
                (library.pt_image_set_callback)(nothing, None, null_mut()),
                (library.pt_insn_sync_forward)(nothing),
                (library.pt_insn_sync_backward)(nothing),
                (library.pt_insn_sync_set)(nothing, 0),
                (library.pt_insn_get_offset)(nothing, &raw mut word),
                (library.pt_insn_get_sync_offset)(nothing, &raw mut word),
                (library.pt_insn_next)(nothing, &raw mut insn, Insn::SIZE),
                (library.pt_insn_event)(nothing, &raw mut event, Event::SIZE),
                (library.pt_insn_time)(nothing, &raw mut word, &raw mut lost, &raw mut lost),
                (library.pt_insn_core_bus_ratio)(nothing, &raw mut lost),
                (library.pt_insn_asid)(nothing, &raw mut asid, 24),
            ];
            let decoder = (library.pt_insn_alloc_decoder)(&raw const config);
            let own = (library.pt_insn_get_image)(decoder);
            answers.extend([
                c_int::from(own.is_null()),
                (library.pt_insn_set_image)(decoder, nothing),
                c_int::from((library.pt_insn_get_image)(decoder) == own),
                (library.pt_image_remove_by_asid)(own, null()),
                (library.pt_insn_sync_set)(decoder, 0),
                (library.pt_insn_get_offset)(decoder, null_mut()),
                (library.pt_insn_get_sync_offset)(decoder, null_mut()),
                (library.pt_insn_next)(decoder, null_mut(), Insn::SIZE),
                (library.pt_insn_event)(decoder, null_mut(), Event::SIZE),
                (library.pt_insn_time)(decoder, null_mut(), &raw mut lost, &raw mut lost),
                (library.pt_insn_core_bus_ratio)(decoder, null_mut()),
                (library.pt_insn_asid)(decoder, null_mut(), 24),
                (*(library.pt_insn_get_config)(decoder)).flags[0] as c_int,
            ]);
            (library.pt_insn_free_decoder)(decoder);
            (library.pt_insn_free_decoder)(nothing);
            answers
        }
    });
    assert_eq!(theirs, ours);
}
