//! Counts how often each block begins, without a report of each time.
//!
//! The emulator adds to a number for each block: from version 2 of the interface on to one of each virtual processor,
//! before that to one at an address, as long as the process has one thread; its other threads are called back. The
//! recorder sees the numbers in tables beside the rings, where they come at the latest when a thread or a process ends.
//!
//! # Repeated instructions
//! The emulator begins a block again for each repetition of a string instruction, or for some of them. It is one
//! instruction, so the repetitions are counted, too: one is what comes after the instruction before anything that
//! follows it in memory has begun.

use super::{
    API, HAS_THREADS, PAGE, PluginProcess, PluginThread, THREADS, USER_END, VCPUS,
    api::{Add, Api, ByProcessor, Opaque},
    lock, program_memory,
    rings::Rings,
    wire::{Header, Mapping, Ring},
    with_thread,
};
use std::{
    ffi::{c_int, c_uint, c_void},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

/// Executions are counted, and not reported one by one.
pub(super) static IS_COUNTING: AtomicBool = AtomicBool::new(false);

/// The end of the repeated instruction that each virtual processor has begun last, until what follows it begins.
static REPEATED: [AtomicU64; VCPUS] = [const { AtomicU64::new(0) }; VCPUS];

const NO_REGISTERS: c_int = 0;

/// A repeated instruction in a block.
struct RepeatedInBlock {
    block: u32,
    end: u64,
}

/// The tables of a thread: how often each block has begun, and how often its repeated instruction was repeated.
#[derive(Default)]
pub(super) struct Tables(Vec<Ring>);

impl Tables {
    /// Returns the number at a place, if its table was made.
    #[inline]
    fn known(&self, place: usize) -> Option<&AtomicU64> {
        self.0.get(place / Ring::NUMBERS)?.numbers().get(place % Ring::NUMBERS)
    }

    /// Returns the number at a place: twice a block's number, and 1 more for repetitions.
    fn number(
        &mut self,
        place: usize,
        rings: &Arc<Rings>,
        mut fill_in: impl FnMut(&Header),
    ) -> Option<&AtomicU64> {
        let table = place / Ring::NUMBERS;
        while self.0.len() <= table {
            let index = self.0.len() as u32 + 1;
            let made = Ring::create(rings, Mapping::Apart, |header| {
                fill_in(header);
                header.table.store(index, Relaxed);
            })?;
            self.0.push(made);
        }
        self.known(place)
    }

    /// Puts other tables in their place, which translated code adds to from now on.
    fn replace(&mut self, rings: &Arc<Rings>, fill_in: impl Fn(&Header)) {
        for (index, table) in self.0.iter_mut().enumerate() {
            let mapping = Mapping::InPlaceOf(table.address());
            let made = Ring::create(rings, mapping, |header| {
                fill_in(header);
                header.table.store(index as u32 + 1, Relaxed);
            });
            match made {
                // The other process's table is no longer mapped.
                Some(made) => std::mem::forget(std::mem::replace(table, made)),
                None => table.replace_by_memory(),
            }
        }
    }
}

impl PluginProcess {
    /// Returns the address of a block's number for the process's only thread.
    fn place_of(&mut self, block: u32) -> Option<*mut c_void> {
        let (generation, pid) = (self.generation, self.definitions.header().pid.load(Relaxed));
        let fill_in = |header: &Header| fill_in(header, (pid, generation), pid);
        let number = self.tables.number(2 * block as usize, &self.rings, fill_in)?;
        Some((&raw const *number).cast_mut().cast())
    }

    /// Begins the own counts of a forked process. The thread is the only one, on this virtual processor.
    pub(super) fn forget_counts(&mut self, index: c_uint) {
        let (generation, pid) = (self.generation, self.definitions.header().pid.load(Relaxed));
        self.tables.replace(&self.rings, |header| fill_in(header, (pid, generation), pid));
        self.shown.clear();
        self.clear(index);
        self.definitions.header().counts_by_processor.store(u32::from(!self.boards.is_empty()), Relaxed);
    }

    /// Puts memory that nobody reads in place of the other process's tables, in a forked process that is not followed.
    pub(super) fn replace_tables_by_memory(&mut self) {
        self.tables.0.iter_mut().for_each(Ring::replace_by_memory);
        self.shown.clear();
    }

    /// Passes on what the emulator has counted on a virtual processor, with the places in tables.
    fn counted(&self, index: c_uint, mut show: impl FnMut(usize, u64)) {
        let Some(Api { add: Add::ByProcessor(counts), .. }) = API.get() else { return };
        for block in 0..self.blocks as usize {
            let board = self.boards[block / ByProcessor::ENTRIES];
            match counts.entry(board, index, block % ByProcessor::ENTRIES) {
                0 => {}
                count => show(2 * block, count),
            }
        }
    }

    /// Shows the recorder what the emulator has counted for a thread until now.
    fn show(&mut self, thread: &PluginThread) {
        let (index, header) = (thread.index, thread.ring.header());
        let (own, tid) = (process_of(header), header.tid.load(Relaxed));
        let mut shown = self.shown.remove(&tid).unwrap_or_default();
        let rings = self.rings.clone();
        self.counted(index, |place, count| {
            if let Some(number) = shown.number(place, &rings, |header| fill_in(header, own, tid)) {
                number.store(count, Relaxed);
            }
        });
        self.shown.insert(tid, shown);
    }

    /// Notes that a thread has ended, and another one can have its virtual processor.
    pub(super) fn end_counts(&mut self, thread: &PluginThread) {
        self.show(thread);
        self.shown.remove(&thread.ring.header().tid.load(Relaxed));
        self.clear(thread.index);
    }

    /// Sets the emulator's numbers of a virtual processor to 0, which nobody uses now.
    fn clear(&self, index: c_uint) {
        let Some(Api { add: Add::ByProcessor(counts), .. }) = API.get() else { return };
        self.boards.iter().for_each(|board| counts.clear(*board, index));
    }
}

/// Returns the process's number and generation.
fn process_of(header: &Header) -> (u32, u32) {
    (header.pid.load(Relaxed), header.generation.load(Relaxed))
}

fn fill_in(header: &Header, (pid, generation): (u32, u32), tid: u32) {
    header.pid.store(pid, Relaxed);
    header.generation.store(generation, Relaxed);
    header.tid.store(tid, Relaxed);
}

impl PluginThread {
    /// Adds 1 in the thread's own tables.
    #[inline]
    fn count(&mut self, place: usize) {
        if self.tables.known(place).is_none() && self.make_number(place).is_none() {
            return;
        }
        if let Some(number) = self.tables.known(place) {
            number.store(number.load(Relaxed) + 1, Relaxed);
        }
    }

    #[cold]
    fn make_number(&mut self, place: usize) -> Option<()> {
        let header = self.ring.header();
        let (own, tid) = (process_of(header), header.tid.load(Relaxed));
        let fill_in = |header: &Header| fill_in(header, own, tid);
        self.tables.number(place, self.ring.rings(), fill_in).map(|_| ())
    }
}

/// Counts the executions of a block that is being translated.
pub(super) fn translates(
    process: &mut PluginProcess,
    (block, instructions): (Opaque, &[Opaque]),
    address: u64,
    (lengths, code): (&[u8], &[u8]),
) {
    let Some(api) = API.get() else { return };
    let number = process.blocks;
    match api.add {
        Add::ByProcessor(counts) => {
            let entry = number as usize % ByProcessor::ENTRIES;
            if entry == 0 {
                process.boards.push(counts.new_board());
                process.definitions.header().counts_by_processor.store(1, Relaxed);
            }
            counts.count_block(block, process.boards[number as usize / ByProcessor::ENTRIES], entry);
        }
        Add::At(_) if HAS_THREADS.load(Relaxed) => {
            (api.on_block)(block, block_begins, NO_REGISTERS, number as usize as *mut c_void);
        }
        Add::At(add) => {
            if let Some(place) = process.place_of(number) {
                add.count_block(block, place);
            }
        }
    }
    let end = address + code.len() as u64;
    if follows_repeated(address) {
        (api.on_block)(block, after_repeated, NO_REGISTERS, address as usize as *mut c_void);
    }
    let last = usize::from(lengths.last().copied().unwrap_or_default());
    if let Some(instruction) = instructions.last()
        && is_repeated(&code[code.len() - last..])
    {
        // Translated code has the address until the process ends.
        let repeated = Box::leak(Box::new(RepeatedInBlock { block: number, end }));
        (api.on_instruction)(*instruction, repeated_begins, NO_REGISTERS, (&raw mut *repeated).cast());
    }
}

/// Notes that a block begins in a thread of several.
extern "C" fn block_begins(index: c_uint, block: *mut c_void) {
    with_thread(index, |thread| thread.count(2 * (block as usize)));
}

extern "C" fn repeated_begins(index: c_uint, repeated: *mut c_void) {
    // SAFETY: it was made for this instruction, and nobody changes it.
    let RepeatedInBlock { block, end } = unsafe { &*repeated.cast::<RepeatedInBlock>() };
    let Some(last) = REPEATED.get(index as usize) else { return };
    if last.load(Relaxed) == *end {
        with_thread(index, |thread| thread.count(2 * *block as usize + 1));
    } else {
        last.store(*end, Relaxed);
    }
}

/// Notes that a block begins before which a repeated instruction may be.
extern "C" fn after_repeated(index: c_uint, address: *mut c_void) {
    let Some(last) = REPEATED.get(index as usize) else { return };
    if last.load(Relaxed) == address as u64 {
        last.store(0, Relaxed);
    }
}

/// Shows the recorder the counts of all threads: the process is about to end, or to execute another program.
pub(super) fn show_all() {
    let mut process = lock();
    let Some(process) = process.as_mut() else { return };
    for place in &THREADS {
        let thread = place.load(Relaxed);
        if !thread.is_null() {
            // SAFETY: from `Box::into_raw`. It is freed by nobody who has not locked the process.
            process.show(unsafe { &*thread });
        }
    }
    process.definitions.header().counts_shown.store(1, Relaxed);
}

/// Returns true if an instruction is repeated as often as a register says.
fn is_repeated(instruction: &[u8]) -> bool {
    let is_prefix =
        |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3);
    let count = instruction.iter().take_while(|byte| is_prefix(byte)).count();
    let (prefixes, opcode) = instruction.split_at(count);
    let is_string = matches!(opcode, [0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf]);
    is_string && prefixes.iter().any(|prefix| matches!(prefix, 0xf2 | 0xf3))
}

/// Returns true if the bytes before the address of a block that is being translated may be those of a repeated
/// instruction.
fn follows_repeated(address: u64) -> bool {
    const LONGEST: usize = 5;
    // The page with old system calls is not mapped.
    if address >= USER_END {
        return false;
    }
    let mut before = [0; LONGEST];
    let near = (address % PAGE) as usize;
    // An instruction that begins in the page before matters, too, if it can be read.
    let known = if near < LONGEST
        && program_memory::read(address.wrapping_sub(LONGEST as u64), &mut before).is_some()
    {
        &before[..]
    } else {
        let known = &mut before[..near.min(LONGEST)];
        program_memory::read_translated(address - known.len() as u64, known);
        known
    };
    (0..known.len()).any(|begin| is_repeated(&known[begin..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_instructions_with_a_prefix_are_repeated() {
        for (bytes, expected) in [
            (&[0xf3, 0xa4][..], true),
            (&[0xf3, 0x48, 0xab], true),
            (&[0x66, 0xf3, 0xa5], true),
            (&[0xf2, 0xae], true),
            (&[0xa4], false),
            (&[0xf3, 0x90], false),
            (&[0xf3, 0x0f, 0xb8, 0xc0], false),
            (&[0xf3, 0xc3], false),
            (&[], false),
        ] {
            assert_eq!(is_repeated(bytes), expected, "{bytes:02x?}");
        }
        let code: [u8; 10] = [0x90, 0x90, 0x90, 0xf3, 0x48, 0xa5, 0x90, 0xf3, 0xc3, 0];
        let begin = code.as_ptr() as u64;
        let follows: Vec<usize> = (5..10).filter(|at| follows_repeated(begin + *at as u64)).collect();
        assert_eq!(follows, [6]);
        assert!(!follows_repeated(0xffff_ffff_ff60_0400), "the page with old system calls");
    }
}
