//! A ring of words that the plugin in the emulator writes and the recorder reads, and the messages in it.
//!
//! Each process of the program has a ring of definitions, each of its threads a ring of what it executed. What was
//! written stays readable after the process was killed.
//!
//! This file is compiled twice: as part of `pugmark` and as part of the plugin, which has no other crates.

#![allow(dead_code, reason = "the plugin writes, the recorder reads")]
#![allow(unreachable_pub, reason = "in the plugin's own crate it is not")]

use super::rings::{PROT_READ_WRITE, Rings, mapped_at, mmap, munmap};
use std::{
    ffi::{c_int, c_void},
    io,
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

/// The number of words in a ring.
const WORDS: u64 = 1 << 19;
/// The number of words after which a message is continued by another one.
const LONGEST: usize = 1 << 16;
/// The size of the [`Header`] of a ring.
const HEADER_BYTES: usize = 4096;
/// The size of a ring.
pub const RING_BYTES: usize = HEADER_BYTES + 4 * WORDS as usize;

/// The time after which a writer looks again if a full ring has room. The reader takes longer to read all of it, so it
/// does not wait meanwhile.
const FULL: Duration = Duration::from_micros(500);

/// A word with this bit begins a message: a kind, and the number of words that follow. In a thread's ring any other
/// word is the number of a block that begins to be executed.
pub const MESSAGE: u32 = 1 << 31;
const KIND_SHIFT: u32 = 24;
const LENGTH: u32 = (1 << KIND_SHIFT) - 1;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Definitions: a block. Its number, its address (2 words), the number of instructions, their lengths (a byte
    /// each), their bytes.
    Block,
    /// Definitions: a page of code. Its address (2 words), its bytes.
    Page,
    /// The program's file, what it was called when it was executed, and its arguments, each ended by a zero byte.
    Program,
    /// Only this number of instructions of the last block began.
    Partial,
    /// A signal's number, and the address of its handler (2 words), or 0. Definitions: one that a forked process
    /// inherited.
    Handler,
    /// The time is at least this (2 words).
    Time,
    /// The thread's name.
    Name,
    /// The lines of `/proc/PID/maps` that are the program's, after a system call that can have mapped code.
    Maps,
    /// The thread is in the kernel, by the system call at the end of its last block.
    Call,
    /// That system call is the return from a signal handler.
    SignalReturn,
    /// The thread is about to execute another program. If it continues, that failed.
    Exec,
    /// A program was executed that cannot be followed; its path.
    NotFollowed,
    /// The thread has ended.
    Exit,
    /// The thread is about to start a thread or a process: how many it has started with this one.
    Starts,
    /// The emulator has done otherwise than the system would have: a [`DeviationKind`](super::deviations::DeviationKind).
    Deviates,
    /// Definitions of a machine: how a block is executed. Its number, its mode and level (the mode's bits, from bit 8
    /// on the level), the base of its code segment (2 words). Its address in a machine is linear.
    State,
    /// CR3 (2 words), from the next block on.
    Space,
    /// The next block begins a handler: its vector, in bit 16 whether an exception with that vector pushes an error
    /// code, and the first values on the stack (2 words each).
    Frame,
    /// The begin of the next message, which is long.
    Begin,
}

const KINDS: [Kind; 19] = [
    Kind::Block,
    Kind::Page,
    Kind::Program,
    Kind::Partial,
    Kind::Handler,
    Kind::Time,
    Kind::Name,
    Kind::Maps,
    Kind::Call,
    Kind::SignalReturn,
    Kind::Exec,
    Kind::NotFollowed,
    Kind::Exit,
    Kind::Starts,
    Kind::Deviates,
    Kind::State,
    Kind::Space,
    Kind::Frame,
    Kind::Begin,
];

/// The fields before a ring's words.
#[repr(C)]
pub struct Header {
    /// The other fields are filled in.
    pub ready: AtomicU32,
    /// The number of words that were written, and of those that were read.
    head: AtomicU64,
    tail: AtomicU64,
    /// The recorder wants nothing more.
    closed: AtomicU32,
    /// The process and the thread that write; the thread is 0 for definitions.
    pub pid: AtomicU32,
    pub tid: AtomicU32,
    /// The number of the process's ring of definitions: a process that executes another program begins another one.
    pub generation: AtomicU32,
    /// A thread's ring: the thread that has started this one, and the number of the message that says so there; zeros
    /// if there is none.
    pub starter: AtomicU32,
    pub start: AtomicU32,
    /// When the ring was made, in nanoseconds of the monotonic clock.
    pub made: AtomicU64,
    /// Definitions of a forked process: the process that it was forked from, the generation there, and the number of
    /// blocks that it inherited. The process is 0 if it was not forked.
    pub parent: AtomicU32,
    pub parent_generation: AtomicU32,
    pub inherited: AtomicU32,
    /// Definitions: how many processes this one has forked. A process is counted before it exists, so that the recorder
    /// waits for its rings, whatever its parent does meanwhile.
    pub forks: AtomicU32,
    /// Definitions: the number of instructions that began in the process while it had one thread.
    pub counted: AtomicU64,
    /// The same for a thread, as it was when its last block began, and now.
    pub counted_before: AtomicU64,
    pub counted_self: AtomicU64,
    /// The number of a thread's table, from 1: no ring follows, but a table of numbers.
    pub table: AtomicU32,
    /// Definitions: the emulator counts in numbers of its own, and they were all shown in tables.
    pub counts_by_processor: AtomicU32,
    pub counts_shown: AtomicU32,
    /// Definitions: the number of the last signal of a fault that is handled; 0 if there is none.
    pub fault_handled: AtomicU32,
    /// A thread's ring: the count of the process's instructions is not the thread's, too.
    pub counts_alone: AtomicU32,
    /// A thread's ring: the last access at which the emulator got a signal.
    pub fault: NotedFault,
    /// A thread's ring: its end by a signal.
    pub end: NotedEnd,
}

/// A signal that ends a thread, and with it its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub signal: u32,
    /// The address of the instruction that is not executed any more; `None` if the emulator does not tell.
    pub ip: Option<u64>,
    /// CR2: the address of the last page fault.
    pub cr2: Option<u64>,
}

/// An [`End`] in a ring; there is none as long as the signal is 0.
#[repr(C)]
pub struct NotedEnd {
    signal: AtomicU32,
    /// Bit 0: there is an address of an instruction; bit 1: CR2.
    known: AtomicU32,
    ip: AtomicU64,
    cr2: AtomicU64,
}

impl NotedEnd {
    pub fn set(&self, End { signal, ip, cr2 }: End) {
        self.known.store(u32::from(ip.is_some()) | u32::from(cr2.is_some()) << 1, Relaxed);
        self.ip.store(ip.unwrap_or_default(), Relaxed);
        self.cr2.store(cr2.unwrap_or_default(), Relaxed);
        self.signal.store(signal, Relaxed);
    }

    pub fn get(&self) -> Option<End> {
        let (signal, known) = (self.signal.load(Relaxed), self.known.load(Relaxed));
        let ip = (known & 1 != 0).then(|| self.ip.load(Relaxed));
        let cr2 = (known & 2 != 0).then(|| self.cr2.load(Relaxed));
        (signal != 0).then_some(End { signal, ip, cr2 })
    }
}

/// An access at which the emulator got a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmulatorFault {
    pub signal: u32,
    /// The address; `None` if the system does not tell.
    pub address: Option<u64>,
    /// The thread's count of instructions.
    pub counted: u64,
}

/// An [`EmulatorFault`] in a ring; there is none as long as the signal is 0.
#[repr(C)]
pub struct NotedFault {
    signal: AtomicU32,
    has_address: AtomicU32,
    address: AtomicU64,
    counted: AtomicU64,
}

impl NotedFault {
    pub fn set(&self, EmulatorFault { signal, address, counted }: EmulatorFault) {
        self.has_address.store(address.is_some().into(), Relaxed);
        self.address.store(address.unwrap_or_default(), Relaxed);
        self.counted.store(counted, Relaxed);
        self.signal.store(signal, Relaxed);
    }

    pub fn get(&self) -> Option<EmulatorFault> {
        let signal = self.signal.load(Relaxed);
        let address = (self.has_address.load(Relaxed) != 0).then(|| self.address.load(Relaxed));
        (signal != 0).then(|| EmulatorFault { signal, address, counted: self.counted.load(Relaxed) })
    }
}

/// A ring.
pub struct Ring {
    rings: Arc<Rings>,
    header: NonNull<Header>,
    /// It is mapped a second time, at an address of its own.
    apart: bool,
    /// The writer's head or the reader's tail, and the other side's as it was last seen.
    own: u64,
    other: u64,
    /// The reader's: what was taken of a message that is not whole.
    begin: Vec<u32>,
}

// SAFETY: the memory stays mapped as long as the value exists, and is accessed by one writer and one reader.
unsafe impl Send for Ring {}

unsafe extern "C" {
    fn mremap(address: *mut c_void, size: usize, new_size: usize, flags: c_int, ...) -> *mut c_void;
}

const MAP_PRIVATE: c_int = 2;
const MAP_FIXED: c_int = 0x10;
const MAP_ANONYMOUS: c_int = 0x20;
const MREMAP_MAYMOVE: c_int = 1;
const MREMAP_FIXED: c_int = 2;

/// Where a new ring is mapped.
#[derive(Clone, Copy, Debug)]
pub enum Mapping {
    /// Where all rings are.
    WithOthers,
    /// At an address of its own.
    Apart,
    /// In place of what is mapped at this address.
    InPlaceOf(*mut c_void),
}

/// Maps a ring a second time.
///
/// A shared mapping from which nothing is moved is copied; no descriptor of the file is needed for that. Source:
/// mremap(2), old_size.
fn map_again(ring: NonNull<Header>, mapping: Mapping) -> io::Result<NonNull<Header>> {
    let (flags, address) = match mapping {
        Mapping::WithOthers => return Ok(ring),
        Mapping::Apart => (MREMAP_MAYMOVE, ptr::null_mut()),
        Mapping::InPlaceOf(address) => (MREMAP_MAYMOVE | MREMAP_FIXED, address),
    };
    // SAFETY: what is at `ring` stays; the kernel chooses the new address, or the caller gives up what was there.
    mapped_at(unsafe { mremap(ring.as_ptr().cast(), 0, RING_BYTES, flags, address) }).map(NonNull::cast)
}

impl Ring {
    /// Makes a ring, filled in by `fill` before others see it; `None` if there is none left, or no memory for it.
    pub fn create(rings: &Arc<Rings>, mapping: Mapping, fill: impl FnOnce(&Header)) -> Option<Self> {
        let made = rings.take().and_then(|place| map_again(place, mapping).ok());
        let Some(header) = made else {
            rings.header().refused.fetch_add(1, Relaxed);
            return None;
        };
        let apart = !matches!(mapping, Mapping::WithOthers);
        let ring = Self { rings: rings.clone(), header, apart, own: 0, other: 0, begin: vec![] };
        fill(ring.header());
        ring.header().ready.store(1, Release);
        Some(ring)
    }

    /// Returns the ring with a number, to read it; `None` as long as it is not there.
    pub fn open(rings: &Arc<Rings>, number: u32) -> Option<Self> {
        let header = rings.place(number)?;
        let ring = Self { rings: rings.clone(), header, apart: false, own: 0, other: 0, begin: vec![] };
        (ring.header().ready.load(Acquire) != 0).then_some(ring)
    }

    pub fn header(&self) -> &Header {
        // SAFETY: mapped, aligned to a page, and all fields are atomic.
        unsafe { self.header.as_ref() }
    }

    /// The count of numbers in a table.
    pub const NUMBERS: usize = WORDS as usize / 2;

    /// Returns the numbers of a table. Nobody writes to it as to a ring.
    pub fn numbers(&self) -> &[AtomicU64] {
        let numbers = self.header.as_ptr().cast::<u8>().wrapping_add(HEADER_BYTES).cast::<AtomicU64>();
        // SAFETY: within the mapping, aligned, and all numbers are atomic.
        unsafe { std::slice::from_raw_parts(numbers, Self::NUMBERS) }
    }

    /// Returns the file that it is in.
    pub fn rings(&self) -> &Arc<Rings> {
        &self.rings
    }

    /// Returns the address of the mapping.
    pub fn address(&self) -> *mut c_void {
        self.header.as_ptr().cast()
    }

    /// Puts zeros in its place, which nobody reads. It must have been mapped apart from the others.
    pub fn replace_by_memory(&mut self) {
        let flags = MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS;
        // SAFETY: the mapping is this value's alone.
        unsafe { mmap(self.address(), RING_BYTES, PROT_READ_WRITE, flags, -1, 0) };
    }

    fn words(&self) -> &[AtomicU32; WORDS as usize] {
        let words = self.header.as_ptr().cast::<u8>().wrapping_add(HEADER_BYTES).cast();
        // SAFETY: within the mapping, aligned, and all words are atomic.
        unsafe { &*words }
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        &self.words()[(at % WORDS) as usize]
    }

    /// Writes the number of a block. Returns false if the recorder wants nothing more.
    #[inline]
    pub fn write_word(&mut self, word: u32) -> bool {
        if self.own + 1 - self.other > WORDS && !self.wait_for_room(1) {
            return false;
        }
        self.word(self.own).store(word, Relaxed);
        self.own += 1;
        self.header().head.store(self.own, Release);
        true
    }

    /// Writes a message of several parts, each padded to whole words. Returns false if the recorder wants nothing more.
    pub fn write(&mut self, kind: Kind, parts: &[&[u8]]) -> bool {
        if let [long] = parts
            && let Some((begin, rest)) = long.split_at_checked(4 * LONGEST)
        {
            return self.write_short(Kind::Begin, &[begin]) && self.write(kind, &[rest]);
        }
        self.write_short(kind, parts)
    }

    fn write_short(&mut self, kind: Kind, parts: &[&[u8]]) -> bool {
        let words: usize = parts.iter().map(|part| part.len().div_ceil(4)).sum();
        let length = words as u64;
        assert!(words <= LONGEST, "a message of {words} words");
        if self.own + length + 1 - self.other > WORDS && !self.wait_for_room(length + 1) {
            return false;
        }
        self.word(self.own).store(MESSAGE | (kind as u32) << KIND_SHIFT | length as u32, Relaxed);
        let mut at = self.own + 1;
        for part in parts {
            for word in part.chunks(4) {
                let mut bytes = [0; 4];
                bytes[..word.len()].copy_from_slice(word);
                self.word(at).store(u32::from_le_bytes(bytes), Relaxed);
                at += 1;
            }
        }
        self.own = at;
        self.header().head.store(at, Release);
        true
    }

    #[cold]
    fn wait_for_room(&mut self, words: u64) -> bool {
        loop {
            self.other = self.header().tail.load(Acquire);
            if self.is_closed() {
                return false;
            }
            if self.own + words - self.other <= WORDS {
                return true;
            }
            std::thread::sleep(FULL);
        }
    }

    /// Tells the writer that nothing more is wanted.
    pub fn close(&self) {
        self.header().closed.store(1, Relaxed);
    }

    /// Returns true if the recorder was killed.
    pub fn recorder_is_gone(&self) -> bool {
        self.rings.recorder_is_gone()
    }

    /// Returns true if the recorder wants nothing more, or was killed.
    pub fn is_closed(&self) -> bool {
        self.header().closed.load(Relaxed) != 0 || self.recorder_is_gone()
    }

    /// Returns the next word without taking it.
    #[inline]
    pub fn peek(&mut self) -> Option<u32> {
        if self.own == self.other {
            self.other = self.header().head.load(Acquire);
            if self.own == self.other {
                return None;
            }
        }
        Some(self.word(self.own).load(Relaxed))
    }

    /// Takes the word that was peeked.
    #[inline]
    pub fn take_word(&mut self) {
        self.own += 1;
    }

    /// Returns words that can be taken: if not all of them, those up to the end of the memory, where the ring begins
    /// again.
    pub fn unread(&mut self) -> &[AtomicU32] {
        if self.own == self.other {
            self.other = self.header().head.load(Acquire);
        }
        let (begin, count) = ((self.own % WORDS) as usize, (self.other - self.own) as usize);
        let rest = &self.words()[begin..];
        &rest[..count.min(rest.len())]
    }

    /// Takes the first of the words that are [`unread`](Self::unread).
    pub fn take_words(&mut self, count: usize) {
        self.own += count as u64;
    }

    /// Takes the message that was peeked: its kind, and what it says. [`Kind::Begin`] says nothing yet.
    pub fn take(&mut self, begin: u32) -> (Option<Kind>, Vec<u32>) {
        let kind = KINDS.get((begin & !MESSAGE) as usize >> KIND_SHIFT).copied();
        let length = u64::from(begin & LENGTH);
        let mut words = std::mem::take(&mut self.begin);
        words.extend((1..=length).map(|n| self.word(self.own + n).load(Relaxed)));
        self.own += 1 + length;
        if kind == Some(Kind::Begin) {
            self.begin = std::mem::take(&mut words);
        }
        (kind, words)
    }

    /// Returns the number of words written so far.
    pub fn written(&self) -> u64 {
        self.header().head.load(Acquire)
    }

    /// Returns the number of words taken so far.
    pub fn taken(&self) -> u64 {
        self.own
    }

    /// Returns to the writer the room of the words that were taken.
    pub fn release(&self) {
        self.header().tail.store(self.own, Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.apart {
            // SAFETY: the mapping is this value's alone.
            unsafe { munmap(self.address(), RING_BYTES) };
        }
    }
}

/// Returns the bytes of words.
pub fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::rings::{GONE, tests::rings};
    use super::*;
    use std::thread;

    #[test]
    fn a_ring_apart_is_the_one_that_others_read() {
        let rings = rings(2);
        assert!(Ring::open(&rings, 0).is_none());
        let mut first = Ring::create(&rings, Mapping::Apart, |header| header.pid.store(7, Relaxed)).unwrap();
        let address = first.address();
        assert!(first.write_word(3));
        // As in a forked process: the other ring is at the same address from then on.
        let mut second = Ring::create(&rings, Mapping::InPlaceOf(address), |_| ()).unwrap();
        std::mem::forget(first);
        assert!(second.write_word(4) && second.address() == address);
        for (number, pid, word) in [(0, 7, 3), (1, 0, 4)] {
            let mut ring = Ring::open(&rings, number).unwrap();
            assert_eq!((ring.header().pid.load(Relaxed), ring.peek()), (pid, Some(word)));
        }
        assert!(Ring::open(&rings, 2).is_none());
    }

    #[test]
    fn a_writer_does_not_wait_for_a_recorder_that_is_gone() {
        let rings = rings(2);
        let mut ring = Ring::create(&rings, Mapping::WithOthers, |_| ()).unwrap();
        assert!((0..WORDS).all(|_| ring.write_word(1)));
        rings.header().recorder.store(GONE, Relaxed);
        assert!(!ring.write_word(1) && !ring.write(Kind::Name, &[b"name"]));
    }

    #[test]
    fn a_message_that_is_longer_than_the_ring_arrives_whole() {
        let rings = rings(2);
        let mut writer = Ring::create(&rings, Mapping::WithOthers, |_| ()).unwrap();
        let mut reader = Ring::open(&rings, 0).unwrap();
        let lengths = [0, 1, 4 * LONGEST - 1, 4 * LONGEST, 4 * LONGEST + 1, 3 * RING_BYTES];
        let text = |length: usize| (0..length).map(|n| n as u8 ^ (n >> 16) as u8).collect::<Vec<_>>();
        let writes = thread::spawn(move || {
            for length in lengths {
                assert!(writer.write_word(7) && writer.write(Kind::Maps, &[&text(length)]));
            }
        });
        for length in lengths {
            let mut next = || {
                loop {
                    reader.release();
                    match reader.peek() {
                        Some(word) if word & MESSAGE == 0 => {
                            reader.take_word();
                            return (None, vec![word]);
                        }
                        Some(begin) => match reader.take(begin) {
                            (Some(Kind::Begin), words) => assert!(words.is_empty()),
                            message => return message,
                        },
                        None => thread::yield_now(),
                    }
                }
            };
            assert_eq!(next(), (None, vec![7]));
            let (kind, words) = next();
            let mut expected = text(length);
            expected.resize(length.next_multiple_of(4), 0);
            assert!(kind == Some(Kind::Maps) && bytes(&words) == expected, "{length} bytes");
        }
        writes.join().unwrap();
    }
}
