//! What the recorder and its plugin in the emulator share: rings of words in files that both map, and the messages in
//! them.
//!
//! Each process of the program has a ring of definitions, each of its threads a ring of what it executed. The plugin
//! writes, the recorder reads. What a process wrote before it was killed stays readable.
//!
//! This file is compiled twice: as part of `pugmark` and as part of the plugin, which has no other crates.

#![allow(dead_code, reason = "the plugin writes, the recorder reads")]
#![allow(unreachable_pub, reason = "in the plugin's own crate it is not")]

use std::{
    ffi::{c_int, c_long, c_void},
    fs::{self, OpenOptions},
    io,
    os::fd::AsRawFd,
    path::Path,
    ptr::{self, NonNull},
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

/// The number of words in a ring.
const WORDS: u64 = 1 << 19;
/// The number of words after which a message is continued by another one.
const LONGEST: usize = 1 << 16;
const HEADER_BYTES: usize = 4096;
const BYTES: usize = HEADER_BYTES + 4 * WORDS as usize;

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
    /// The begin of the next message, which is long.
    Begin,
}

const KINDS: [Kind; 15] = [
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
    Kind::Begin,
];

/// What stands before a ring's words.
#[repr(C)]
pub struct Header {
    /// How many words were written, and how many were read.
    head: AtomicU64,
    tail: AtomicU64,
    /// The recorder wants nothing more.
    closed: AtomicU32,
    /// The process and the thread that write.
    pub pid: AtomicU32,
    pub tid: AtomicU32,
    /// The number of the process's ring of definitions in its file's name: a process that executes another program
    /// begins another one.
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
}

/// A mapped ring.
pub struct Ring {
    header: NonNull<Header>,
    /// The writer's head or the reader's tail, and the other side's as it was last seen.
    own: u64,
    other: u64,
    /// The reader's: what was taken of a message that is not whole.
    begin: Vec<u32>,
}

// SAFETY: the memory stays mapped as long as the value exists, and is accessed by one writer and one reader.
unsafe impl Send for Ring {}

unsafe extern "C" {
    fn mmap(
        address: *mut c_void,
        size: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: c_long,
    ) -> *mut c_void;
    fn munmap(address: *mut c_void, size: usize) -> c_int;
}

const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
const MAP_PRIVATE: c_int = 2;
const MAP_FIXED: c_int = 0x10;
const MAP_ANONYMOUS: c_int = 0x20;

/// Maps `size` bytes of a file; in place of what is mapped at `address`, unless that is null.
pub fn map(file: &fs::File, size: usize, address: *mut c_void) -> io::Result<NonNull<c_void>> {
    let fixed = if address.is_null() { 0 } else { MAP_FIXED };
    // SAFETY: the kernel chooses the address, or the caller gives up what was there.
    let mapped = unsafe { mmap(address, size, PROT_READ_WRITE, MAP_SHARED | fixed, file.as_raw_fd(), 0) };
    NonNull::new(mapped).filter(|mapped| mapped.as_ptr() as isize != -1).ok_or_else(io::Error::last_os_error)
}

impl Ring {
    /// Makes a ring in a file that does not exist, filled in by `fill` before others see it. It takes the place of the
    /// ring at `replaced`, if that is not null.
    pub fn create(path: &Path, replaced: *mut c_void, fill: impl FnOnce(&Header)) -> io::Result<Self> {
        let hidden = path.with_extension("new");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&hidden)?;
        file.set_len(BYTES as u64)?;
        let ring = Self { header: map(&file, BYTES, replaced)?.cast(), own: 0, other: 0, begin: vec![] };
        fill(ring.header());
        fs::rename(hidden, path)?;
        Ok(ring)
    }

    /// Maps a ring to read it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() != BYTES as u64 {
            return Err(io::Error::other("not a ring"));
        }
        Ok(Self { header: map(&file, BYTES, ptr::null_mut())?.cast(), own: 0, other: 0, begin: vec![] })
    }

    pub fn header(&self) -> &Header {
        // SAFETY: mapped, aligned to a page, and all fields are atomic.
        unsafe { self.header.as_ref() }
    }

    /// The address of the mapping.
    pub fn address(&self) -> *mut c_void {
        self.header.as_ptr().cast()
    }

    /// Puts zeros in its place, which nobody reads.
    pub fn replace_by_memory(&mut self) {
        let flags = MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS;
        // SAFETY: the mapping is this value's alone.
        unsafe { mmap(self.address(), BYTES, PROT_READ_WRITE, flags, -1, 0) };
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        let words = self.header.as_ptr().cast::<u8>().wrapping_add(HEADER_BYTES).cast::<AtomicU32>();
        // SAFETY: within the mapping, aligned, and all words are atomic.
        unsafe { &*words.wrapping_add((at % WORDS) as usize) }
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
            if self.header().closed.load(Relaxed) != 0 {
                return false;
            }
            if self.own + words - self.other <= WORDS {
                return true;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Tells the writer that nothing more is wanted.
    pub fn close(&self) {
        self.header().closed.store(1, Relaxed);
    }

    pub fn is_closed(&self) -> bool {
        self.header().closed.load(Relaxed) != 0
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

    /// How many words were written so far.
    pub fn written(&self) -> u64 {
        self.header().head.load(Acquire)
    }

    /// How many words were taken so far.
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
        // SAFETY: the mapping is this value's alone.
        unsafe { munmap(self.address(), BYTES) };
    }
}

/// The bytes of words.
pub fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_message_that_is_longer_than_the_ring_arrives_whole() {
        let path = std::env::temp_dir().join(format!("pugmark-wire-{}", std::process::id()));
        let mut writer = Ring::create(&path, ptr::null_mut(), |_| ()).unwrap();
        let mut reader = Ring::open(&path).unwrap();
        fs::remove_file(path).unwrap();
        let lengths = [0, 1, 4 * LONGEST - 1, 4 * LONGEST, 4 * LONGEST + 1, 3 * BYTES];
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
