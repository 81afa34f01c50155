//! `pt_insn_*` and `pt_blk_*` of both libraries.

use crate::{
    damage,
    library::{Config, Handle, Item, Library, PtEvent, both},
    queries::{unknown, with_clocks},
};
use fastrand::Rng;
use std::{
    ffi::{CString, c_int, c_void},
    fs,
    path::{Path, PathBuf},
    ptr::{self, null, null_mut},
};

/// A kind of decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecoderKind {
    Insns,
    Blocks,
}

impl DecoderKind {
    /// Returns the size of the decoder's structure.
    pub(crate) const fn size(self) -> usize {
        match self {
            Self::Insns => 40,
            Self::Blocks => 48,
        }
    }

    /// Returns the existing flags of the decoder's configuration.
    const fn flags(self) -> u32 {
        match self {
            Self::Insns => 1,
            Self::Blocks => 7,
        }
    }

    /// Returns the class of an instruction, or of the last one of a block.
    const fn class(self, item: &Item) -> usize {
        match self {
            Self::Insns => item.0[2] as u32 as usize,
            Self::Blocks => item.0[3] as u32 as usize,
        }
    }

    const fn functions(self, library: &Library) -> Functions {
        macro_rules! functions {
            ($($field:ident = $insn:ident, $block:ident;)*) => {
                match self {
                    Self::Insns => Functions { $($field: library.$insn),* },
                    Self::Blocks => Functions { $($field: library.$block),* },
                }
            };
        }
        functions! {
            alloc = pt_insn_alloc_decoder, pt_blk_alloc_decoder;
            free = pt_insn_free_decoder, pt_blk_free_decoder;
            forward = pt_insn_sync_forward, pt_blk_sync_forward;
            backward = pt_insn_sync_backward, pt_blk_sync_backward;
            set = pt_insn_sync_set, pt_blk_sync_set;
            get_offset = pt_insn_get_offset, pt_blk_get_offset;
            get_sync_offset = pt_insn_get_sync_offset, pt_blk_get_sync_offset;
            get_config = pt_insn_get_config, pt_blk_get_config;
            get_image = pt_insn_get_image, pt_blk_get_image;
            set_image = pt_insn_set_image, pt_blk_set_image;
            time = pt_insn_time, pt_blk_time;
            ratio = pt_insn_core_bus_ratio, pt_blk_core_bus_ratio;
            asid = pt_insn_asid, pt_blk_asid;
            next = pt_insn_next, pt_blk_next;
            event = pt_insn_event, pt_blk_event;
        }
    }
}

/// The functions of a kind of decoder.
struct Functions {
    alloc: unsafe extern "C" fn(*const Config) -> Handle,
    free: unsafe extern "C" fn(Handle),
    forward: unsafe extern "C" fn(Handle) -> c_int,
    backward: unsafe extern "C" fn(Handle) -> c_int,
    set: unsafe extern "C" fn(Handle, u64) -> c_int,
    get_offset: unsafe extern "C" fn(Handle, *mut u64) -> c_int,
    get_sync_offset: unsafe extern "C" fn(Handle, *mut u64) -> c_int,
    get_config: unsafe extern "C" fn(Handle) -> *const Config,
    get_image: unsafe extern "C" fn(Handle) -> Handle,
    set_image: unsafe extern "C" fn(Handle, Handle) -> c_int,
    time: unsafe extern "C" fn(Handle, *mut u64, *mut u32, *mut u32) -> c_int,
    ratio: unsafe extern "C" fn(Handle, *mut u32) -> c_int,
    asid: unsafe extern "C" fn(Handle, *mut [u64; 3], usize) -> c_int,
    next: unsafe extern "C" fn(Handle, *mut Item, usize) -> c_int,
    event: unsafe extern "C" fn(Handle, *mut PtEvent, usize) -> c_int,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Forward,
    Backward,
    Set(u64),
    Next(usize),
    Event(usize),
}

/// The result of a call: the returned and written values, and the decoder's state afterwards: both offsets, the time,
/// the ratio and the address space, each with its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    call: Call,
    pub(crate) status: c_int,
    pub(crate) item: Item,
    pub(crate) event: PtEvent,
    offsets: [(c_int, u64); 2],
    time: (c_int, u64, u32, u32),
    ratio: (c_int, u32),
    asid: (c_int, [u64; 3]),
}

fn call(functions: &Functions, decoder: Handle, call: Call) -> Answer {
    let (mut item, mut event) = (Item::NONE, PtEvent::NONE);
    // SAFETY: the decoder is alive, and the places are writable.
    let status = unsafe {
        match call {
            Call::Forward => (functions.forward)(decoder),
            Call::Backward => (functions.backward)(decoder),
            Call::Set(offset) => (functions.set)(decoder, offset),
            Call::Next(size) => (functions.next)(decoder, &raw mut item, size),
            Call::Event(size) => (functions.event)(decoder, &raw mut event, size),
        }
    };
    let offsets = [functions.get_offset, functions.get_sync_offset].map(|function| {
        let mut offset = 0x5555;
        // SAFETY: the decoder is alive, and the offset is writable.
        let status = unsafe { function(decoder, &raw mut offset) };
        (status, offset)
    });
    let (mut time, mut mtc, mut cyc, mut ratio, mut asid) = (0x5555, 0x5555, 0x5555, 0x5555, [0x5555; 3]);
    // SAFETY: the decoder is alive, and the places are writable.
    let known = unsafe { (functions.time)(decoder, &raw mut time, &raw mut mtc, &raw mut cyc) };
    // SAFETY: as before.
    let has_ratio = unsafe { (functions.ratio)(decoder, &raw mut ratio) };
    let size = offsets[0].1 as usize % 32;
    // SAFETY: as before; a size above that of the structure is allowed.
    let has_asid = unsafe { (functions.asid)(decoder, &raw mut asid, size) };
    let (time, ratio, asid) = ((known, time, mtc, cyc), (has_ratio, ratio), (has_asid, asid));
    Answer { call, status, item, event, offsets, time, ratio, asid }
}

/// Returns the usual next call: an event if the status announces one, and the next PSB after an error.
pub(crate) fn likely(last: &Answer, kind: DecoderKind) -> Call {
    match last.status {
        ..0 => Call::Forward,
        status if status & 1 != 0 => Call::Event(PtEvent::SIZE),
        _ => Call::Next(kind.size()),
    }
}

/// Reads code that depends on the address only: bytes that begin many kinds of instructions, and others. The context
/// selects the code, and the number of bytes that can be read at once.
unsafe extern "C" fn code(
    out: *mut u8,
    size: usize,
    asid: *const [u64; 3],
    ip: u64,
    context: *mut c_void,
) -> c_int {
    let seed = context.addr() as u64;
    // SAFETY: both libraries pass an address space.
    let asid = unsafe { *asid };
    let whole = Rng::with_seed(ip ^ seed).u8(..);
    if whole < 2 {
        return -13 - c_int::from(whole % 2);
    }
    let size = if whole < 32 { 1 + usize::from(whole) % size } else { size };
    for at in 0..size {
        let byte = byte(ip.wrapping_add(at as u64) ^ seed ^ asid[1].wrapping_mul(3) ^ asid[2]);
        // SAFETY: there are that many writable bytes.
        unsafe { out.add(at).write(byte) };
    }
    size as c_int
}

/// Returns a byte of code: often one that begins a branch or a prefix.
fn byte(seed: u64) -> u8 {
    /// Prefixes, and first bytes of branches.
    const BYTES: [u8; 32] = [
        0x0f, 0x0f, 0x66, 0x67, 0xf2, 0xf3, 0x48, 0x44, 0xc4, 0xc5, 0x62, 0x70, 0xe8, 0xe9, 0xeb, 0xe3, 0xc3,
        0xc2, 0xff, 0x9a, 0xea, 0xcc, 0xcd, 0xcf, 0x90, 0x01, 0x22, 0xae, 0xc7, 0x05, 0x38, 0x3a,
    ];
    let mut rng = Rng::with_seed(seed);
    if rng.u8(..8) == 0 { BYTES[rng.usize(..32)] } else { rng.u8(..) }
}

/// Files of code. Those with an odd number have short jumps in between, so that blocks have many instructions.
struct Files(PathBuf);

impl Files {
    const COUNT: u64 = 8;

    fn new(kind: DecoderKind) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-capi-{kind:?}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..Self::COUNT {
            let mut bytes: Vec<u8> = (0..0x1400).map(|at| byte(file << 32 | at)).collect();
            if file % 2 == 1 {
                for (at, byte) in bytes.iter_mut().enumerate() {
                    let mut rng = Rng::with_seed(!file ^ at as u64);
                    *byte = match rng.u8(..64) {
                        0 => 0xeb,
                        1 => 0x74,
                        2 => 0xe8,
                        3 => *byte,
                        _ => 0x90,
                    };
                }
            }
            // PTWRITE, MOV to CR3, VMLAUNCH and VMPTRLD, which events bind to.
            let mut rng = Rng::with_seed(file);
            for insn in
                [&[0xf3, 0x0f, 0xae, 0xe0][..], &[0x0f, 0x22, 0xd8], &[0x0f, 0x01, 0xc2], &[0x0f, 0xc7, 0x30]]
            {
                for _ in 0..20 {
                    let at = rng.usize(..0x1000);
                    bytes[at..at + insn.len()].copy_from_slice(insn);
                }
            }
            fs::write(folder.join(file.to_string()), bytes).unwrap();
        }
        Self(folder)
    }

    fn pick(&self, rng: &mut Rng) -> PathBuf {
        self.0.join(rng.u64(..Self::COUNT).to_string())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A decoder of each library, with an image that has files.
pub(crate) struct Decoders {
    both: [&'static Library; 2],
    functions: [Functions; 2],
    handles: [Handle; 2],
    images: [Handle; 2],
    caches: [Handle; 2],
}

impl Decoders {
    pub(crate) fn new(both: [&'static Library; 2], kind: DecoderKind, config: &Config) -> Self {
        let functions = both.map(|library| kind.functions(library));
        // SAFETY: the trace outlives the decoders.
        let handles = functions.each_ref().map(|functions| unsafe { (functions.alloc)(config) });
        // SAFETY: null is allowed.
        let images = both.map(|library| unsafe { (library.pt_image_alloc)(null()) });
        for at in 0..2 {
            // SAFETY: both are alive; the image is freed after the decoder.
            assert_eq!(unsafe { (functions[at].set_image)(handles[at], images[at]) }, 0);
            // SAFETY: as before.
            assert_eq!(unsafe { (functions[at].get_image)(handles[at]) }, images[at]);
        }
        // SAFETY: null is allowed.
        let caches = both.map(|library| unsafe { (library.pt_iscache_alloc)(null()) });
        Self { both, functions, handles, images, caches }
    }

    /// Sets the memory limit of mapped sections that no decoder uses.
    pub(crate) fn set_limit(&self, limit: u64) {
        for at in 0..2 {
            // SAFETY: the cache is alive.
            assert_eq!(unsafe { (self.both[at].pt_iscache_set_limit)(self.caches[at], limit) }, 0);
        }
    }

    /// Adds a file as [`add_file`](Self::add_file) does, but through the cache.
    pub(crate) fn add_cached(&self, file: &Path, offset: u64, size: u64, base: u64) {
        let name = CString::new(file.to_str().unwrap()).unwrap();
        let added = [0, 1].map(|at| {
            let (library, cache) = (self.both[at], self.caches[at]);
            // SAFETY: the cache is alive, and the name is a string.
            let isid = unsafe { (library.pt_iscache_add_file)(cache, name.as_ptr(), offset, size, base) };
            // SAFETY: the image is alive as well.
            (isid, unsafe { (library.pt_image_add_cached)(self.images[at], cache, isid, null()) })
        });
        assert_eq!(added[0], added[1]);
    }

    pub(crate) fn add_file(&self, file: &Path, offset: u64, size: u64, base: u64, asid: Option<[u64; 3]>) {
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

    pub(crate) fn answers(&self, which: Call) -> [Answer; 2] {
        [0, 1].map(|at| self.answer(at, which))
    }

    /// Returns the answer of one library, by its place.
    pub(crate) fn answer(&self, at: usize, which: Call) -> Answer {
        call(&self.functions[at], self.handles[at], which)
    }
}

impl Drop for Decoders {
    fn drop(&mut self) {
        for at in 0..2 {
            // SAFETY: the decoder is not used afterwards.
            unsafe { (self.functions[at].free)(self.handles[at]) };
            // SAFETY: nor is the image used.
            unsafe { (self.both[at].pt_image_free)(self.images[at]) };
            // SAFETY: nor is the cache used.
            unsafe { (self.both[at].pt_iscache_free)(self.caches[at]) };
        }
    }
}

/// Returns recorded traces and their code (file and address), without Event Trace, which 2.0.5 does not know.
fn recorded() -> Vec<(Vec<u8>, PathBuf, u64)> {
    let mut recorded = recorded_with_event_trace();
    recorded.retain(|(trace, ..)| !damage::has_event_trace(trace));
    recorded
}

/// Returns all recorded traces and their code.
pub(crate) fn recorded_with_event_trace() -> Vec<(Vec<u8>, PathBuf, u64)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/ptt/examples");
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
    compare_recorded(DecoderKind::Insns);
}

#[test]
fn the_blocks_of_recorded_traces_are_the_same() {
    compare_recorded(DecoderKind::Blocks);
}

fn compare_recorded(kind: DecoderKind) {
    let Some(both) = both() else { return };
    let (mut items, mut calls) = (0, 0);
    for (seed, (trace, file, base)) in recorded().into_iter().enumerate() {
        // libipt goes over 100000 instructions to the event, and maps the file for each of them.
        if kind == DecoderKind::Blocks && file.ends_with("linear-fup-tip_pgd.bin") {
            continue;
        }
        for errata in [0, 0x3ff] {
            let mut config = with_clocks(Config::new(&trace), &mut Rng::with_seed(seed as u64));
            config.errata[0] = errata;
            config.flags[0] = seed as u32 & kind.flags();
            let decoders = Decoders::new(both, kind, &config);
            decoders.add_file(&file, 0, u64::MAX, base, None);
            let mut next = Call::Forward;
            // Code that loops without a branch in the trace never ends.
            for _ in 0..10_000 {
                let [theirs, ours] = decoders.answers(next);
                assert_eq!(theirs, ours, "{}", file.display());
                calls += 1;
                items += u64::from(matches!(next, Call::Next(_)) && theirs.status >= 0);
                if next == Call::Forward && theirs.status == -7 {
                    break;
                }
                next = likely(&theirs, kind);
            }
        }
    }
    println!("{kind:?}: {items} items, {calls} calls");
    assert!(items > 50, "{items}");
}

#[test]
fn each_call_for_a_damaged_trace_and_any_code_gives_the_same_instruction_or_error() {
    compare_damaged(DecoderKind::Insns);
}

#[test]
fn each_call_for_a_damaged_trace_and_any_code_gives_the_same_block_or_error() {
    compare_damaged(DecoderKind::Blocks);
}

/// The stack size: libipt's block decoder recurses once for each new block up to a known one, for some code ten
/// thousand times, which exceeds a thread's usual two megabytes.
const STACK: usize = 1 << 30;

fn compare_damaged(kind: DecoderKind) {
    let compared = std::thread::Builder::new().stack_size(STACK).spawn(move || compare_all_damaged(kind));
    if let Err(panic) = compared.expect("a thread").join() {
        std::panic::resume_unwind(panic);
    }
}

fn compare_all_damaged(kind: DecoderKind) {
    let Some(both) = both() else { return };
    let traces = damage::recorded();
    let examples = recorded();
    let files = Files::new(kind);
    let (mut items, mut events, mut classes, mut calls) = (0_u64, [0; 20], [0; 10], 0_u64);
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
        config.flags[0] = rng.u32(..=kind.flags());
        // Filters and ranges are the configuration's last words.
        if rng.bool() {
            config.rest[0] = rng.u64(..0x333);
            for word in &mut config.rest[1..9] {
                *word = rng.u64(..0x10000);
            }
        }
        if rng.u8(..4) == 0 {
            config.callback = Some(unknown);
        }
        let decoders = Decoders::new(both, kind, &config);
        if rng.u8(..4) == 0 {
            // Code in four files, of which all, some or none stay mapped with their caches.
            decoders.set_limit([u64::MAX, 0, 0x8000, 0x1500][rng.usize(..4)]);
            for part in 0..4 {
                let (offset, base) = (rng.u64(..0x400), part * 0x1000);
                decoders.add_cached(&files.pick(&mut rng), offset, 0x1000, base);
            }
        } else if rng.bool() {
            // Most of the code is in one file; parts of others hide parts of it.
            decoders.add_file(&files.pick(&mut rng), 0, u64::MAX, 0, None);
            for _ in 0..rng.usize(..3) {
                let (offset, size) = (rng.u64(..0x1000), rng.u64(1..0x400));
                decoders.add_file(&files.pick(&mut rng), offset, size, rng.u64(..0x1000), None);
            }
        }
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
            assert_eq!(theirs, ours, "{kind:?}, seed {seed}, errata {:#x}, {trace:02x?}", config.errata[0]);
            calls += 1;
            if matches!(next, Call::Next(_)) && theirs.status >= 0 {
                items += 1;
                if let Some(count) = classes.get_mut(kind.class(&theirs.item)) {
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
                2 => Call::Event(rng.usize(..=PtEvent::SIZE)),
                3 => Call::Next(rng.usize(..=kind.size())),
                _ => likely(&theirs, kind),
            };
        }
    }
    println!("{kind:?}: {calls} calls, {items} items, classes {classes:?}, events {events:?}");
    assert!(items > 2000, "{items}");
    assert!(classes[1..].iter().all(|&count| count > 0), "{classes:?}");
    assert!(events.iter().filter(|&&count| count > 0).count() >= 19, "{events:?}");
}

#[test]
fn a_decoder_of_instructions_has_its_own_image_and_refuses_null_pointers_in_the_same_way() {
    compare_null(DecoderKind::Insns);
}

#[test]
fn a_decoder_of_blocks_has_its_own_image_and_refuses_null_pointers_in_the_same_way() {
    compare_null(DecoderKind::Blocks);
}

fn compare_null(kind: DecoderKind) {
    let Some(both) = both() else { return };
    let trace = [damage::PSB.to_vec(), vec![0x02, 0x23, 0x0d]].concat();
    let config = Config { flags: [1, 2, 3, 4], ..Config::new(&trace) };
    let nothing: Handle = null_mut();
    let (mut word, mut lost, mut asid, mut item, mut event) = (0, 0, [0; 3], Item::NONE, PtEvent::NONE);
    let [theirs, ours] = both.map(|library| {
        let functions = kind.functions(library);
        // SAFETY: null is allowed for all arguments but those of live decoders.
        unsafe {
            let mut answers: Vec<c_int> = vec![
                c_int::from((functions.alloc)(null()).is_null()),
                c_int::from((functions.get_config)(nothing).is_null()),
                c_int::from((functions.get_image)(nothing).is_null()),
                (functions.set_image)(nothing, nothing),
                (library.pt_image_set_callback)(nothing, None, null_mut()),
                (functions.forward)(nothing),
                (functions.backward)(nothing),
                (functions.set)(nothing, 0),
                (functions.get_offset)(nothing, &raw mut word),
                (functions.get_sync_offset)(nothing, &raw mut word),
                (functions.next)(nothing, &raw mut item, kind.size()),
                (functions.event)(nothing, &raw mut event, PtEvent::SIZE),
                (functions.time)(nothing, &raw mut word, &raw mut lost, &raw mut lost),
                (functions.ratio)(nothing, &raw mut lost),
                (functions.asid)(nothing, &raw mut asid, 24),
            ];
            let decoder = (functions.alloc)(&raw const config);
            let own = (functions.get_image)(decoder);
            answers.extend([
                c_int::from(own.is_null()),
                (functions.set_image)(decoder, nothing),
                c_int::from((functions.get_image)(decoder) == own),
                (library.pt_image_remove_by_asid)(own, null()),
                (functions.set)(decoder, 0),
                (functions.get_offset)(decoder, null_mut()),
                (functions.get_sync_offset)(decoder, null_mut()),
                (functions.next)(decoder, null_mut(), kind.size()),
                (functions.event)(decoder, null_mut(), PtEvent::SIZE),
                (functions.time)(decoder, null_mut(), &raw mut lost, &raw mut lost),
                (functions.ratio)(decoder, null_mut()),
                (functions.asid)(decoder, null_mut(), 24),
                (*(functions.get_config)(decoder)).flags[0] as c_int,
            ]);
            (functions.free)(decoder);
            (functions.free)(nothing);
            answers
        }
    });
    assert_eq!(theirs, ours);
}
