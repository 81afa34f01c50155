//! The plugin that QEMU's user-mode emulator loads: it reports to the recorder which blocks of instructions each thread
//! executes.
//!
//! The build script compiles this file into a shared object, which `pugmark` carries along. It is also a module of this
//! crate, so that it is checked and tested like everything else.
//!
//! Source: QEMU's documentation, "QEMU TCG Plugins", and `include/qemu/qemu-plugin.h`.
//!
//! # How it knows what was executed
//! The emulator translates code in blocks, which end at branches at the latest. At each begin of a block the plugin
//! writes the block's number. A block may be left early, by an exception for example: therefore instructions are
//! counted where it can be left, and a block that did not begin all of its instructions is reported as partial by the
//! next one.

#![allow(unreachable_pub, reason = "in the plugin's own crate it is not")]

#[path = "api.rs"]
mod api;
#[path = "callbacks.rs"]
mod callbacks;
#[path = "calls.rs"]
mod calls;
#[path = "counts.rs"]
mod counts;
#[path = "deviations.rs"]
pub mod deviations;
#[path = "dying.rs"]
mod dying;
#[path = "environment.rs"]
mod environment;
#[path = "exec.rs"]
mod exec;
#[path = "faults.rs"]
mod faults;
#[path = "fork.rs"]
mod fork;
#[path = "imports.rs"]
mod imports;
#[path = "leaving.rs"]
mod leaving;
#[path = "machine_plugin/mod.rs"]
mod machine_plugin;
#[path = "mapped.rs"]
mod mapped;
#[path = "meeting.rs"]
mod meeting;
#[path = "program_memory.rs"]
mod program_memory;
#[path = "rings.rs"]
pub mod rings;
#[path = "starter.rs"]
mod starter;
#[path = "wire.rs"]
pub mod wire;

use api::{Add, Api, Info, Opaque, PluginId};
pub use exec::{EmulatorCommand, Origin, addresses, command};
use meeting::meets_threads;
use rings::Rings;
use std::{
    collections::HashMap,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    fs,
    ptr::null_mut,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicPtr, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};
use wire::{Kind, Mapping, Ring};

/// The status with which a machine's emulator ends if it has loaded the plugin and was only asked that.
pub const PROBED: c_int = 93;

/// The duration of a visit to the kernel in ticks; the same as in the recorder's model of the hardware.
const KERNEL_TICKS: u64 = 1000;

const PAGE: u64 = 4096;
/// The end of user space. The emulator itself does what the page with old system calls above does.
const USER_END: u64 = 1 << 47;

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    fn gettid() -> c_int;
    fn clock_gettime(clock: c_int, time: *mut [i64; 2]) -> c_int;
}

static API: OnceLock<Api> = OnceLock::new();

/// The version of the plugin interface that the emulator is asked for. The recorder puts another one into the file if
/// the emulator no longer knows this one.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the emulator looks for this name")]
pub static qemu_plugin_version: c_int = 1;

/// A value of the interface's enumerations.
const NO_REGISTERS: c_int = 0;

/// One process of the program.
struct PluginProcess {
    origin: Origin,
    rings: Arc<Rings>,
    generation: u32,
    definitions: Ring,
    blocks: u32,
    /// The pages of code, as they were reported last.
    pages: HashMap<u64, Box<[u8]>>,
    /// The file, what it was called when it was executed, and the arguments, each ended by a zero.
    program: Vec<u8>,
    /// The handlers of signals.
    handlers: HashMap<u32, u64>,
    /// The program's mappings, as they were reported last.
    maps: Vec<u8>,
    /// Who has started the threads that have not reported themselves yet, by their numbers.
    started: HashMap<u32, starter::Starter>,
    /// Counts: those of the only thread, the emulator's numbers, and what the recorder sees of them by thread.
    tables: counts::Tables,
    boards: Vec<api::Board>,
    shown: HashMap<u32, counts::Tables>,
}

static PROCESS: Mutex<Option<PluginProcess>> = Mutex::new(None);
/// More than one thread has existed in the process: instructions are counted by thread.
static HAS_THREADS: AtomicBool = AtomicBool::new(false);
/// The difference between an address in the emulator and the program's.
static GUEST_BASE: AtomicU64 = AtomicU64::new(0);
/// The latest time of all threads of all processes, beside the rings.
static CLOCK: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// The count of the process's instructions while it has one thread, in the ring of definitions.
static COUNTED: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

/// Nothing is reported: neither of threads that are not followed, nor without rings.
static IS_OFF: AtomicBool = AtomicBool::new(false);
static MAIN_ONLY: AtomicBool = AtomicBool::new(false);

const VCPUS: usize = 1 << 16;
static THREADS: [AtomicPtr<PluginThread>; VCPUS] = [const { AtomicPtr::new(null_mut()) }; VCPUS];

/// One thread of the program.
struct PluginThread {
    ring: Ring,
    index: c_uint,
    /// True if the count of the process's instructions is this thread's, too.
    first: bool,
    /// The count of the virtual processor when the thread began: another one had it before.
    counted_at_begin: u64,
    /// The number of instructions of the last block.
    expected: u64,
    /// Time that did not pass by instructions.
    waited: u64,
    /// The arguments of the system call in progress.
    arguments: [u64; 5],
    /// The number of threads and processes that it has started, or tried to.
    starts: u32,
    tables: counts::Tables,
}

/// Locks this process's state: `None` in a process that has no rings, which reports nothing more.
fn lock() -> std::sync::MutexGuard<'static, Option<PluginProcess>> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the numbers of this process and thread as `/proc` has them, which the recorder has mounted, too: a process
/// in a namespace of its own has another one there than for itself.
fn numbers() -> (u32, u32) {
    let read = || {
        let link = fs::read_link("/proc/thread-self").ok()?;
        let (process, thread) = link.to_str()?.split_once("/task/")?;
        Some((process.parse().ok()?, thread.parse().ok()?))
    };
    // SAFETY: takes and returns numbers.
    read().unwrap_or_else(|| (std::process::id(), unsafe { gettid() } as u32))
}

/// Returns the program's address of one of the emulator's.
fn of_program(address: u64) -> u64 {
    address.wrapping_sub(GUEST_BASE.load(Relaxed))
}

fn monotonic() -> u64 {
    const CLOCK_MONOTONIC: c_int = 1;
    let mut time = [0; 2];
    // SAFETY: fills in two numbers.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &raw mut time) };
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}

impl PluginProcess {
    fn begin(origin: Origin, rings: Arc<Rings>, program: Vec<u8>) -> Option<Self> {
        let generation = rings.header().generations.fetch_add(1, Relaxed);
        let definitions = Self::ring(&rings, generation, Mapping::Apart, None)?;
        Some(Self {
            origin,
            rings,
            generation,
            definitions,
            blocks: 0,
            pages: HashMap::new(),
            program,
            handlers: HashMap::new(),
            maps: vec![],
            started: HashMap::new(),
            tables: counts::Tables::default(),
            boards: vec![],
            shown: HashMap::new(),
        })
    }

    fn ring(
        rings: &Arc<Rings>,
        generation: u32,
        mapping: Mapping,
        parent: Option<(u32, u32, u32)>,
    ) -> Option<Ring> {
        let ring = Ring::create(rings, mapping, |header| {
            header.pid.store(numbers().0, Relaxed);
            header.generation.store(generation, Relaxed);
            header.made.store(monotonic(), Relaxed);
            if let Some((parent, generation, blocks)) = parent {
                header.parent.store(parent, Relaxed);
                header.parent_generation.store(generation, Relaxed);
                header.inherited.store(blocks, Relaxed);
            }
        })?;
        COUNTED.store((&raw const ring.header().counted).cast_mut(), Relaxed);
        Some(ring)
    }

    /// Reports the pages of a block that are new or that have changed. `read` reads the program's memory: the emulator
    /// has just read code of the page, so it is there, unless another thread unmaps it meanwhile.
    fn report_pages(&mut self, address: u64, code: &[u8], read: impl Fn(u64, &mut [u8])) {
        if code.is_empty() {
            return;
        }
        for page in address / PAGE..=(address + code.len() as u64 - 1) / PAGE {
            let begin = (page * PAGE).max(address);
            let end = ((page + 1) * PAGE).min(address + code.len() as u64);
            let own = &code[(begin - address) as usize..(end - address) as usize];
            let within = (begin % PAGE) as usize;
            if self.pages.get(&page).is_some_and(|known| known[within..within + own.len()] == *own) {
                continue;
            }
            let mut now = vec![0; PAGE as usize].into_boxed_slice();
            read(page * PAGE, &mut now);
            // The translated bytes count, if another thread writes at the same time.
            now[within..within + own.len()].copy_from_slice(own);
            self.definitions.write(Kind::Page, &[&(page * PAGE).to_le_bytes(), &now]);
            self.pages.insert(page, now);
        }
    }
}

impl PluginThread {
    fn begin(index: c_uint) -> Option<Box<Self>> {
        // SAFETY: takes and returns numbers.
        let starter = starter::of(unsafe { gettid() } as u32);
        let (pid, tid) = numbers();
        let guard = lock();
        let process = guard.as_ref()?;
        let generation = process.generation;
        let ring = Ring::create(&process.rings, Mapping::WithOthers, |header| {
            header.pid.store(pid, Relaxed);
            header.tid.store(tid, Relaxed);
            header.generation.store(generation, Relaxed);
            header.made.store(monotonic(), Relaxed);
            starter::fill_in(starter, header);
        })?;
        let first = !HAS_THREADS.load(Relaxed) || index == 0;
        let (expected, waited, arguments, starts, counted_at_begin) = (0, 0, [0; 5], 0, 0);
        let tables = counts::Tables::default();
        let mut thread =
            Self { ring, index, first, counted_at_begin, expected, waited, arguments, starts, tables };
        if let Some(Api { add: Add::ByProcessor(counts), .. }) = API.get() {
            thread.counted_at_begin = counts.get(index);
        }
        let counted = thread.counted();
        thread.ring.header().counted_before.store(counted, Relaxed);
        thread.ring.header().counts_alone.store((!first).into(), Relaxed);
        thread.ring.write(Kind::Program, &[&process.program]);
        drop(guard);
        thread.report_maps();
        thread.follow_clock();
        Some(Box::new(thread))
    }

    /// Returns the number of instructions that the thread has begun.
    #[inline]
    fn counted(&self) -> u64 {
        if let Some(Api { add: Add::ByProcessor(counts), .. }) = API.get() {
            return counts.get(self.index) - self.counted_at_begin;
        }
        let own = self.ring.header().counted_self.load(Relaxed);
        // SAFETY: points into the ring of definitions, which stays mapped.
        own + if self.first { unsafe { &*COUNTED.load(Relaxed) }.load(Relaxed) } else { 0 }
    }

    /// Ends the last block, and reports that it was left early, if it was.
    fn settle(&mut self) {
        if !counts::IS_COUNTING.load(Relaxed) {
            self.begin_block(0);
        }
    }

    /// Ends the last block, and notes how many instructions the next one has.
    #[inline]
    fn begin_block(&mut self, expected: u64) {
        let counted = self.counted();
        let before = &self.ring.header().counted_before;
        let begun = counted - before.load(Relaxed);
        before.store(counted, Relaxed);
        if begun != std::mem::replace(&mut self.expected, expected) {
            self.report_partial(begun);
        }
    }

    #[cold]
    fn report_partial(&mut self, begun: u64) {
        self.ring.write(Kind::Partial, &[&(begun as u32).to_le_bytes()]);
    }

    /// Reports the program's mappings; those from before if the system does not tell them, as when the program has
    /// used all its descriptors.
    fn report_maps(&mut self) {
        let known = |maps: Option<Vec<u8>>| {
            let mut process = lock();
            let known = &mut process.as_mut()?.maps;
            if let Some(maps) = maps {
                *known = maps;
            }
            Some(known.clone())
        };
        if let Some(maps) = known(mapped::by_program()) {
            self.ring.write(Kind::Maps, &[&maps]);
        }
    }

    /// Lets the time of this thread and of the others be the same.
    #[cold]
    fn meet(&mut self) {
        self.publish_clock();
        self.follow_clock();
    }

    /// Lets all threads know the time of this one.
    fn publish_clock(&self) {
        // SAFETY: the file stays mapped.
        unsafe { &*CLOCK.load(Relaxed) }.fetch_max(self.counted() + self.waited, Release);
    }

    /// Advances the time to that of the thread that is farthest ahead.
    fn follow_clock(&mut self) {
        // SAFETY: the file stays mapped.
        let latest = unsafe { &*CLOCK.load(Relaxed) }.load(Acquire);
        let own = self.counted() + self.waited;
        if latest > own {
            self.waited += latest - own;
            self.ring.write(Kind::Time, &[&latest.to_le_bytes()]);
        }
    }
}

/// Calls `act` with the thread that runs on a virtual processor. The emulator calls back on that thread, so nobody else
/// has it.
#[inline]
fn with_thread(index: c_uint, act: impl FnOnce(&mut PluginThread)) {
    let Some(place) = THREADS.get(index as usize) else { return };
    let mut thread = place.load(Relaxed);
    if thread.is_null() {
        let Some(begun) = begin_thread(index, place) else { return };
        thread = begun;
    }
    // SAFETY: from `Box::into_raw`, and this is the thread that it is of.
    act(unsafe { &mut *thread });
}

/// Begins to report a thread; `None` if nothing is reported of it.
#[cold]
fn begin_thread(index: c_uint, place: &AtomicPtr<PluginThread>) -> Option<*mut PluginThread> {
    if IS_OFF.load(Relaxed) || index != 0 && MAIN_ONLY.load(Relaxed) {
        return None;
    }
    let begun = Box::into_raw(PluginThread::begin(index)?);
    place.store(begun, Relaxed);
    faults::watch(index);
    Some(begun)
}

/// In what a block is registered with: threads can wait for one another in it.
const MEETS_THREADS: u64 = 1 << 63;

extern "C" fn block_begins(index: c_uint, block: *mut c_void) {
    let (number, expected) = (block as u64 as u32, (block as u64 & !MEETS_THREADS) >> 32);
    with_thread(index, |thread| {
        thread.begin_block(expected);
        if block as u64 & MEETS_THREADS != 0 {
            thread.meet();
        }
        thread.ring.write_word(number);
    });
}

/// Notes that instructions begin in a process that has had more than one thread.
extern "C" fn instructions_begin(index: c_uint, count: *mut c_void) {
    let Some(place) = THREADS.get(index as usize) else { return };
    let thread = place.load(Relaxed);
    if !thread.is_null() {
        // SAFETY: see `with_thread`; the block that the instructions are in has begun.
        let counted = unsafe { &*thread }.ring.header();
        counted.counted_self.store(counted.counted_self.load(Relaxed) + count as u64, Relaxed);
    }
}

/// Notes that the emulator has translated a block.
fn translates(block: Opaque) {
    let (Some(api), mut process) = (API.get(), lock()) else { return };
    let Some(process) = process.as_mut().filter(|process| !process.definitions.is_closed()) else { return };
    if IS_OFF.load(Relaxed) {
        return;
    }
    let count = (api.block_length)(block);
    let instructions: Vec<Opaque> = (0..count).map(|n| (api.block_instruction)(block, n)).collect();
    let Some(&first) = instructions.first() else { return };
    let address = (api.instruction_address)(first);
    let in_memory = (api.instruction_in_memory)(first) as u64;
    if in_memory != 0 && address < USER_END {
        GUEST_BASE.store(in_memory.wrapping_sub(address), Relaxed);
    }
    let mut code = Vec::with_capacity(count * leaving::LONGEST as usize);
    let lengths: Vec<u8> = if address < USER_END {
        instructions.iter().map(|insn| api.read_instruction(*insn, &mut code)).collect()
    } else {
        // Nothing is there; QEMU 10 crashes where it is asked for bytes.
        code.resize(count, 0);
        vec![1; count]
    };
    let number = process.blocks;
    if counts::IS_COUNTING.load(Relaxed) {
        counts::translates(process, (block, &instructions), address, (&lengths, &code));
    } else if address < USER_END {
        process.report_pages(address, &code, |from, page| _ = program_memory::read(from, page));
    }
    process.blocks += 1;
    let (number_bytes, count_bytes) = (number.to_le_bytes(), (count as u32).to_le_bytes());
    process
        .definitions
        .write(Kind::Block, &[&number_bytes, &address.to_le_bytes(), &count_bytes, &lengths, &code]);
    if counts::IS_COUNTING.load(Relaxed) {
        return;
    }
    let by_thread = HAS_THREADS.load(Relaxed);
    let mut starts = lengths.iter().scan(0, |end, length| {
        *end += usize::from(*length);
        Some(*end - usize::from(*length))
    });
    let meets = by_thread && starts.any(|start| meets_threads(&code[start..]));
    let flag = if meets { MEETS_THREADS } else { 0 };
    let data = (u64::from(number) | (count as u64) << 32 | flag) as *mut c_void;
    (api.on_block)(block, block_begins, NO_REGISTERS, data);
    for (number, count) in leaving::counted(address, &lengths, &code) {
        let insn = instructions[number];
        match api.add {
            Add::ByProcessor(counts) => counts.count(insn, count),
            Add::At(_) if by_thread => {
                (api.on_instruction)(insn, instructions_begin, NO_REGISTERS, count as *mut c_void);
            }
            Add::At(add) => add.count(insn, COUNTED.load(Relaxed).cast(), count),
        }
    }
}

/// Notes that a virtual processor has ended.
fn thread_ends(index: c_uint) {
    let Some(place) = THREADS.get(index as usize) else { return };
    // Nobody looks at the thread while the process is locked.
    let mut process = lock();
    let thread = place.swap(null_mut(), Relaxed);
    if thread.is_null() {
        return;
    }
    // SAFETY: from `Box::into_raw`, and the thread executes nothing more.
    let thread = unsafe { Box::from_raw(thread) };
    if let Some(process) = process.as_mut().filter(|_| counts::IS_COUNTING.load(Relaxed)) {
        process.end_counts(&thread);
    }
}

/// Notes how far each thread is in its last block, if the recorder cannot read that: the process is about to end.
fn threads_stand_still() {
    if counts::IS_COUNTING.load(Relaxed) {
        return counts::show_all();
    }
    // Nobody frees a thread while the process is locked.
    let _process = lock();
    for place in &THREADS {
        let thread = place.load(Relaxed);
        if !thread.is_null() {
            // SAFETY: from `Box::into_raw`, and it is not freed.
            let thread = unsafe { &*thread };
            thread.ring.header().counted_self.store(thread.counted(), Relaxed);
        }
    }
}

/// Installs the plugin: the emulator calls it before the program begins.
///
/// # Safety
/// `arguments` are `count` texts, as the emulator gives them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: PluginId,
    info: *const Info,
    count: c_int,
    arguments: *mut *mut c_char,
) -> c_int {
    let (mut plugin, mut file, mut reverses) = (None, None, false);
    for n in 0..count as usize {
        // SAFETY: as the caller says.
        let argument = unsafe { *arguments.wrapping_add(n) };
        // SAFETY: as the caller says.
        let argument = unsafe { CStr::from_ptr(argument) }.to_str().unwrap_or_default();
        match argument.split_once('=') {
            Some(("plugin", path)) => plugin = Some(path.to_owned()),
            Some(("rings", path)) => file = Some(path.to_owned()),
            // Somebody asks whether the emulator loads this plugin. A program goes on without it.
            // SAFETY: as the caller says.
            Some(("probe", _)) if !unsafe { &*info }.is_machine => return 0,
            Some(("probe", _)) => {
                // SAFETY: as the caller says.
                let missing = machine_plugin::missing(unsafe { &*info });
                missing.iter().for_each(|missing| eprintln!("{missing}"));
                std::process::exit(if missing.is_none() { PROBED } else { 1 });
            }
            Some(("reverses", flag)) => reverses = flag == "1",
            Some(("follow", flag)) => MAIN_ONLY.store(flag == "0", Relaxed),
            Some(("count", flag)) => counts::IS_COUNTING.store(flag == "1", Relaxed),
            _ => {}
        }
    }
    let begin = || {
        let (follow, count) = (!MAIN_ONLY.load(Relaxed), counts::IS_COUNTING.load(Relaxed));
        let origin = Origin { plugin: plugin?, rings: file?, follow, count, reverses };
        let file = fs::OpenOptions::new().read(true).write(true).open(&origin.rings).ok()?;
        let rings = Arc::new(Rings::map(&file).ok()?);
        CLOCK.store((&raw const rings.header().clock).cast_mut(), Relaxed);
        // SAFETY: as the caller says.
        let info = unsafe { &*info };
        if info.is_machine {
            return machine_plugin::install(id, info, origin, rings);
        }
        origin.note();
        mapped::note_own();
        let line = fs::read("/proc/self/cmdline").ok()?;
        let words: Vec<_> = line.split_inclusive(|byte| *byte == 0).collect();
        let [own, words] = exec::of_emulator_and_program(&words)?;
        if reverses || own.contains(&environment::OPTION.to_bytes_with_nul()) {
            let _ = environment::hide_own();
        }
        let mut words = words.iter().copied();
        // The file comes after the first argument in the emulator's command line, and before it here.
        let (name, path) = (words.next()?, words.next()?);
        let whole = exec::whole_path(path);
        let program = [&*whole, path, name].into_iter().chain(words).flatten().copied().collect();
        let api = API.get_or_init(|| Api::find(info.version).unwrap_or_else(|| std::process::abort()));
        *lock() = Some(PluginProcess::begin(origin, rings, program)?);
        // SAFETY: registers a function.
        unsafe { pthread_atfork(Some(fork::begins), Some(fork::goes_on), Some(fork::forked)) };
        callbacks::register(api, id);
        dying::watch();
        Some(())
    };
    if begin().is_some() { 0 } else { -1 }
}
