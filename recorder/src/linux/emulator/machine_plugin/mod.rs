//! The plugin in QEMU's system emulator: it reports to the recorder which blocks of instructions each virtual processor
//! executes.
//!
//! Blocks and their places of leaving are as in a program's emulator. What else a trace of a whole machine needs is
//! asked for where it can change: the mode and level of a block when it is executed for the first time, CR3 after an
//! instruction that can write it, and at the first block of an interrupt's handler what the processor has pushed, which
//! says where the interrupt came.

mod gates;
pub(super) mod state;

use super::{
    NO_REGISTERS, PROCESS, PluginProcess,
    api::{Add, Api, Info, Opaque, PluginId},
    callbacks,
    exec::Origin,
    lock, monotonic,
    rings::Rings,
    wire::{Kind, Mapping, Ring},
};
use gates::{Gates, pushes_error_code};
use state::{Machine, State};
use std::{
    ffi::{c_uint, c_void},
    ptr::null_mut,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool, AtomicPtr, AtomicU8, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

static MACHINE: OnceLock<Machine> = OnceLock::new();
/// Virtual processors share one count: there is one, or all run on one thread.
static SHARED_COUNT: OnceLock<bool> = OnceLock::new();
/// There are several that share it.
static TAKES_TURNS: AtomicBool = AtomicBool::new(false);
static MOST_PROCESSORS: AtomicU64 = AtomicU64::new(1);

const VCPUS: usize = 1 << 12;
static PROCESSORS: [AtomicPtr<VirtualProcessor>; VCPUS] = [const { AtomicPtr::new(null_mut()) }; VCPUS];
/// The processor that has begun the last block, while they share one count.
static LAST: AtomicPtr<VirtualProcessor> = AtomicPtr::new(null_mut());

/// The words of a frame that a message has, whatever their size in memory: address, segment and flags, and an error
/// code before them if there is one.
const FRAME_WORDS: usize = 4;

/// One virtual processor.
struct VirtualProcessor {
    ring: Ring,
    index: c_uint,
    /// The number of instructions of the last block.
    expected: u64,
    /// The last block can have changed registers that are reported.
    looks: bool,
    cr3: Option<u64>,
    gates: Gates,
    state: State,
    /// Time that did not pass by instructions.
    waited: u64,
}

/// A translated block; it lives as long as the emulator.
struct TranslatedBlock {
    number: u32,
    count: u32,
    address: u64,
    bytes: u32,
    flags: AtomicU8,
}

/// The block was not executed yet.
const NEW: u8 = 1 << 0;
/// It begins a handler.
const ENTRY: u8 = 1 << 1;
/// It can change registers that are reported.
const CHANGES: u8 = 1 << 2;
/// It begins where a processor begins after a reset.
const RESET: u8 = 1 << 3;

const RESET_ADDRESS: u64 = 0xffff_fff0;
/// Addresses of which only 64-bit code at level 0 is executed, but for the page of the old system calls.
const UPPER_HALF: u64 = 1 << 63;
const OLD_CALLS: u64 = 0xffff_ffff_ff60_0000;

impl VirtualProcessor {
    fn begin(index: c_uint) -> Option<Box<Self>> {
        let guard = lock();
        let process = guard.as_ref()?;
        let generation = process.generation;
        let ring = Ring::create(&process.rings, Mapping::WithOthers, |header| {
            header.pid.store(std::process::id(), Relaxed);
            header.tid.store(index + 1, Relaxed);
            header.generation.store(generation, Relaxed);
            header.made.store(monotonic(), Relaxed);
        })?;
        let (expected, waited) = (0, 0);
        let (gates, state) = (Gates::default(), State::default());
        let processor = Self { ring, index, expected, looks: true, cr3: None, gates, state, waited };
        processor.ring.header().counted_before.store(processor.counted(), Relaxed);
        Some(Box::new(processor))
    }

    /// Returns the number of instructions that the processor has begun; of all, while they share one count.
    #[inline]
    fn counted(&self) -> u64 {
        if let Some(Api { add: Add::ByProcessor(counts), .. }) = super::API.get() {
            return counts.get(self.index);
        }
        let own = self.ring.header().counted_self.load(Relaxed);
        // SAFETY: points into the ring of definitions, which stays mapped.
        own + unsafe { &*super::COUNTED.load(Relaxed) }.load(Relaxed)
    }

    /// Reports that the last block was left early, if it was.
    #[inline]
    fn settle(&mut self) {
        let counted = self.counted();
        let begun = counted.wrapping_sub(self.ring.header().counted_before.load(Relaxed));
        if begun != self.expected {
            self.ring.write(Kind::Partial, &[&(begun as u32).to_le_bytes()]);
        }
        self.ring.header().counted_before.store(counted, Relaxed);
        self.expected = 0;
    }

    /// Reports that the last block was left early, if it was, because another processor executes now.
    fn pause(&mut self) {
        let before = self.ring.header().counted_before.load(Relaxed);
        self.settle();
        // At the end the recorder takes the difference, at most the block's length, for what was begun.
        self.ring.header().counted_before.store(before, Relaxed);
    }

    /// Goes on after others have executed.
    fn go_on(&mut self) {
        let counted = self.counted();
        self.ring.header().counted_before.store(counted, Relaxed);
    }

    /// Does what is seldom necessary before a block.
    #[cold]
    fn look(&mut self, block: &TranslatedBlock, flags: u8) {
        let Some(machine) = MACHINE.get() else { return };
        let is_upper = block.address >= UPPER_HALF && block.address & !0xfff != OLD_CALLS;
        let wants_state = self.looks || flags & (ENTRY | RESET) != 0 || flags & NEW != 0 && !is_upper;
        if wants_state {
            self.state = machine.state(self.index);
            if self.cr3 != Some(self.state.cr3) {
                self.cr3 = Some(self.state.cr3);
                self.ring.write(Kind::Space, &[&self.state.cr3.to_le_bytes()]);
            }
        }
        self.looks = flags & CHANGES != 0;
        let read = |address, bytes: &mut [u8]| machine.read(self.index, address, bytes);
        let mut flags = flags;
        if flags & NEW != 0 {
            self.gates.refresh(&self.state, read);
            let is_entry = self.gates.vector(block.address).is_some();
            flags = flags & !NEW | if is_entry { ENTRY } else { 0 };
            if is_entry && !wants_state {
                self.state = machine.state(self.index);
            }
            self.describe(machine, block, is_upper);
            block.flags.store(flags, Release);
        }
        if flags & ENTRY != 0 {
            self.report_frame(machine, block);
        }
    }

    /// Reports how a block is executed, and the rest of its pages, if its addresses are linear ones.
    fn describe(&self, machine: &Machine, block: &TranslatedBlock, is_upper: bool) {
        let (bits, cpl, base) = match is_upper {
            true => (64, 0, 0),
            false => (self.state.bits, self.state.cpl, self.state.cs_base),
        };
        let how = u32::from(bits) | u32::from(cpl) << 8;
        if let Some(process) = lock().as_mut() {
            let number = block.number.to_le_bytes();
            process.definitions.write(Kind::State, &[&number, &how.to_le_bytes(), &base.to_le_bytes()]);
            let mut code = vec![0; block.bytes as usize];
            if base == 0 && machine.read(self.index, block.address, &mut code) {
                process.report_pages(block.address, &code, |from, page| {
                    _ = machine.read(self.index, from, page)
                });
            }
        }
    }

    /// Reports what the processor has pushed for the handler that begins with this block, and the time.
    fn report_frame(&mut self, machine: &Machine, block: &TranslatedBlock) {
        let size = usize::from(self.state.bits) / 8;
        let mut pushed = [0; 8 * FRAME_WORDS];
        let pushed = &mut pushed[..size * FRAME_WORDS];
        let vector = self.gates.vector(block.address).unwrap_or(gates::SEVERAL);
        if size == 0 || !machine.read(self.index, self.state.stack, pushed) {
            return;
        }
        let mut words = [0; 8 * FRAME_WORDS];
        for (word, from) in words.chunks_mut(8).zip(pushed.chunks(size)) {
            word[..size].copy_from_slice(from);
        }
        let what = u32::from(vector) | u32::from(pushes_error_code(&self.state, vector)) << 16;
        self.follow_clock();
        self.ring.write(Kind::Frame, &[&what.to_le_bytes(), &words]);
    }

    /// Advances the time to that of the processor that is farthest ahead, and lets all know the time of this one.
    fn follow_clock(&mut self) {
        if !has_several() {
            return;
        }
        // SAFETY: the file stays mapped.
        let clock = unsafe { &*super::CLOCK.load(Relaxed) };
        let own = self.counted() + self.waited;
        let latest = clock.fetch_max(own, Relaxed).max(own);
        self.waited += latest - own;
        self.ring.write(Kind::Time, &[&latest.to_le_bytes()]);
    }
}

/// Returns the processor that a callback is of; the emulator calls back on its thread, so nobody else has it.
#[inline]
fn processor(index: c_uint) -> Option<*mut VirtualProcessor> {
    let place = PROCESSORS.get(index as usize)?;
    let known = place.load(Relaxed);
    if known.is_null() { begin(index, place) } else { Some(known) }
}

#[cold]
fn begin(index: c_uint, place: &AtomicPtr<VirtualProcessor>) -> Option<*mut VirtualProcessor> {
    let begun = Box::into_raw(VirtualProcessor::begin(index)?);
    place.store(begun, Relaxed);
    Some(begun)
}

/// Virtual processors that share one count take turns: notes that it is another one's.
#[cold]
fn take_turn(own: *mut VirtualProcessor) {
    let last = LAST.load(Relaxed);
    if last == own {
        return;
    }
    LAST.store(own, Relaxed);
    if !last.is_null() {
        // SAFETY: from `Box::into_raw`, never freed, and all processors are on this thread.
        unsafe { &mut *last }.pause();
    }
    // SAFETY: as above.
    unsafe { &mut *own }.go_on();
}

extern "C" fn block_begins(index: c_uint, block: *mut c_void) {
    // SAFETY: each block is registered with a value that lives as long as the emulator.
    let block = unsafe { &*block.cast::<TranslatedBlock>() };
    let Some(own) = processor(index) else { return };
    if TAKES_TURNS.load(Relaxed) {
        take_turn(own);
    }
    // SAFETY: see `processor`.
    let processor = unsafe { &mut *own };
    processor.settle();
    let flags = block.flags.load(Acquire);
    if flags != 0 || processor.looks {
        processor.look(block, flags);
    }
    processor.expected = u64::from(block.count);
    processor.ring.write_word(block.number);
}

/// Notes that an instruction begins, where processors share no count.
extern "C" fn instruction_begins(index: c_uint, _: *mut c_void) {
    if let Some(own) = processor(index) {
        // SAFETY: see `processor`.
        let counted = &unsafe { &*own }.ring.header().counted_self;
        counted.store(counted.load(Relaxed) + 1, Relaxed);
    }
}

/// Returns true if an instruction can change CR3 or where the interrupt descriptor table is: MOV to CR3, LIDT, VMRUN,
/// RSM.
fn changes_state(code: &[u8]) -> bool {
    let is_segment = |byte: u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67);
    let is_prefix = |byte: u8| is_segment(byte) || matches!(byte, 0x40..=0x4f | 0xf0 | 0xf2 | 0xf3);
    let opcode = code.iter().position(|byte| !is_prefix(*byte)).map_or(&[][..], |at| &code[at..]);
    match *opcode {
        [0x0f, 0x01, modrm, ..] => modrm == 0xd8 || modrm < 0xc0 && modrm >> 3 & 7 == 3,
        [0x0f, 0x22, modrm, ..] => modrm >> 3 & 7 == 3,
        [0x0f, 0xaa, ..] => true,
        _ => false,
    }
}

/// Notes that the emulator has translated a block.
pub(super) fn translates(block: Opaque) {
    let (Some(api), mut process) = (super::API.get(), lock()) else { return };
    let Some(process) = process.as_mut().filter(|process| !process.definitions.is_closed()) else { return };
    let count = (api.block_length)(block);
    let instructions: Vec<Opaque> = (0..count).map(|n| (api.block_instruction)(block, n)).collect();
    let Some(&first) = instructions.first() else { return };
    let address = (api.instruction_address)(first);
    let mut code = Vec::new();
    let mut changes = false;
    let mut read = |instruction: &Opaque| {
        let begin = code.len();
        let length = api.read_instruction(*instruction, &mut code);
        changes |= changes_state(&code[begin..]);
        length
    };
    let lengths: Vec<u8> = instructions.iter().map(&mut read).collect();
    let number = process.blocks;
    process.blocks += 1;
    let (number_bytes, count_bytes) = (number.to_le_bytes(), (count as u32).to_le_bytes());
    process
        .definitions
        .write(Kind::Block, &[&number_bytes, &address.to_le_bytes(), &count_bytes, &lengths, &code]);
    let flags = NEW | if changes { CHANGES } else { 0 } | if address == RESET_ADDRESS { RESET } else { 0 };
    let bytes = code.len() as u32;
    let noted = TranslatedBlock { number, count: count as u32, address, bytes, flags: AtomicU8::new(flags) };
    let noted = Box::into_raw(Box::new(noted)).cast();
    (api.on_block)(block, block_begins, NO_REGISTERS, noted);
    for instruction in instructions {
        match api.add {
            Add::ByProcessor(counts) => counts.count(instruction, 1),
            Add::At(add) if shares_count() => add.count(instruction, super::COUNTED.load(Relaxed).cast(), 1),
            Add::At(_) => (api.on_instruction)(instruction, instruction_begins, NO_REGISTERS, null_mut()),
        }
    }
}

/// Returns true if instructions are counted in one number.
fn shares_count() -> bool {
    *SHARED_COUNT.get_or_init(|| {
        let by_processor = matches!(super::API.get(), Some(Api { add: Add::ByProcessor(_), .. }));
        let shares = !(by_processor || Machine::has_threads() && has_several());
        TAKES_TURNS.store(shares && has_several(), Relaxed);
        shares
    })
}

fn has_several() -> bool {
    MOST_PROCESSORS.load(Relaxed) > 1
}

/// Notes how far each processor is in its last block: the emulator is about to end.
pub(super) fn ends() {
    for place in &PROCESSORS {
        let processor = place.load(Relaxed);
        if !processor.is_null() {
            // SAFETY: from `Box::into_raw`, and never freed.
            let processor = unsafe { &*processor };
            if let Some(Api { add: Add::ByProcessor(_), .. }) = super::API.get() {
                processor.ring.header().counted_self.store(processor.counted(), Relaxed);
            }
        }
    }
}

/// Returns what keeps the plugin from recording the machine of this emulator, if it emulates one.
pub(super) fn missing(info: &Info) -> Option<&'static str> {
    match info.target() {
        "x86_64" | "i386" if Machine::find().is_some() => None,
        "x86_64" | "i386" => Some("it does not export cpu_dump_state, qemu_get_cpu and cpu_memory_rw_debug"),
        _ => Some("it does not emulate x86"),
    }
}

/// Begins to report; `None` if this QEMU lacks something.
pub(super) fn install(id: PluginId, info: &Info, origin: Origin, rings: Arc<Rings>) -> Option<()> {
    let machine = Machine::find()?;
    let _ = MACHINE.set(machine);
    let api = super::API.get_or_init(|| Api::find(info.version).unwrap_or_else(|| std::process::abort()));
    MOST_PROCESSORS.store(info.most_processors.max(1) as u64, Relaxed);
    *PROCESS.lock().ok()? = Some(PluginProcess::begin(origin, rings, vec![])?);
    callbacks::register_for_machine(api, id);
    Some(())
}
