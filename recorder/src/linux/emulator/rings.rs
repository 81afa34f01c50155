//! All rings that the recorder and its plugin in the emulator share, in memory that both map.
//!
//! They are in one file without a name, which is mapped when a program is executed, and stays mapped in what that
//! forks. So a ring can be begun where the program has used all its descriptors, has changed its root or its user, or
//! may not write files of that size; and nothing is left of the rings when the last process that has them ends.
//!
//! This file is compiled twice: as part of `pugmark` and as part of the plugin, which has no other crates.

#![allow(dead_code, reason = "the plugin writes, the recorder reads")]
#![allow(unreachable_pub, reason = "in the plugin's own crate it is not")]

use super::wire::{Header, RING_BYTES};
use std::{
    ffi::{c_int, c_long, c_void},
    fs, io,
    os::fd::AsRawFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

/// The number of rings that a recording can have: memory is only used for those that are written to. A program that is
/// executed takes two.
const MOST: usize = 1 << 17;
/// The size of the [`RingsHeader`], with which the file begins.
const HEADER_BYTES: usize = 4096;

/// The fields before the rings.
#[repr(C)]
pub struct RingsHeader {
    /// The thread of the recorder that lives as long as the recording, or with the bit [`GONE`] no longer does.
    pub recorder: AtomicU32,
    /// The number of rings that were begun.
    used: AtomicU32,
    /// The number of threads and processes that got no ring.
    pub refused: AtomicU32,
    /// The number of the next process: a number of the system can be given again.
    pub generations: AtomicU32,
    /// The latest time of all threads of all processes.
    pub clock: AtomicU64,
}

/// The bit that the system sets in a robust futex when the thread ends whose number is in it, whatever ends it: the
/// recorder was killed, and reads no more. Source: Linux, "A description of what robust futexes are".
pub const GONE: u32 = 1 << 30;

/// The mapped file of the rings.
pub struct Rings {
    header: NonNull<RingsHeader>,
    /// The number of rings that the file has room for.
    room: usize,
}

// SAFETY: the memory stays mapped as long as the value exists, and what is in it is atomic.
unsafe impl Send for Rings {}
// SAFETY: as above.
unsafe impl Sync for Rings {}

impl Rings {
    /// Returns the size of the file for as many rings as a recording can have, or as fit into `largest` bytes.
    pub fn file_size(largest: u64) -> u64 {
        Self::size(Self::room(largest)) as u64
    }

    /// Returns the number of rings that a file has room for.
    fn room(file: u64) -> usize {
        usize::try_from(file)
            .unwrap_or(usize::MAX)
            .saturating_sub(HEADER_BYTES)
            .div_euclid(RING_BYTES)
            .min(MOST)
    }

    const fn size(room: usize) -> usize {
        HEADER_BYTES + room * RING_BYTES
    }

    /// Maps a file whose size is a [`file_size`](Self::file_size).
    pub fn map(file: &fs::File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        if Self::file_size(size) != size {
            return Err(io::Error::other("not the file of the rings"));
        }
        let room = Self::room(size);
        let flags = MAP_SHARED | MAP_NORESERVE;
        // SAFETY: the kernel chooses the address.
        let mapped =
            unsafe { mmap(ptr::null_mut(), Self::size(room), PROT_READ_WRITE, flags, file.as_raw_fd(), 0) };
        mapped_at(mapped).map(|header| Self { header: header.cast(), room })
    }

    pub fn header(&self) -> &RingsHeader {
        // SAFETY: mapped, aligned to a page, and all fields are atomic.
        unsafe { self.header.as_ref() }
    }

    /// Returns true if the recorder has ended without a word.
    pub fn recorder_is_gone(&self) -> bool {
        self.header().recorder.load(Relaxed) & GONE != 0
    }

    /// Returns the number of rings that were begun. Another can begin at any time, so who asks twice has two answers.
    pub fn begun(&self) -> u32 {
        self.header().used.load(Relaxed).min(self.room as u32)
    }

    /// Returns the place of a ring that was begun.
    pub fn place(&self, number: u32) -> Option<NonNull<Header>> {
        let base = self.header.as_ptr().cast::<u8>();
        let place = base.wrapping_add(Self::size(number as usize)).cast();
        NonNull::new(place).filter(|_| number < self.begun())
    }

    /// Takes the place of the next ring; `None` if there is none left.
    pub fn take(&self) -> Option<NonNull<Header>> {
        let number = self.header().used.fetch_add(1, Relaxed);
        if number as usize >= self.room {
            self.header().used.store(self.room as u32, Relaxed);
            return None;
        }
        self.place(number)
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's alone, and each ring in it keeps the value.
        unsafe { munmap(self.header.as_ptr().cast(), Self::size(self.room)) };
    }
}

unsafe extern "C" {
    pub fn mmap(
        address: *mut c_void,
        size: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: c_long,
    ) -> *mut c_void;
    pub fn munmap(address: *mut c_void, size: usize) -> c_int;
}

pub const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
const MAP_NORESERVE: c_int = 0x4000;

pub fn mapped_at(address: *mut c_void) -> io::Result<NonNull<c_void>> {
    NonNull::new(address).filter(|mapped| mapped.as_ptr() as isize != -1).ok_or_else(io::Error::last_os_error)
}

#[cfg(test)]
pub mod tests {
    use super::super::wire::{Mapping, Ring};
    use super::*;
    use std::sync::Arc;

    /// Returns rings in a file that has room for `room` of them.
    pub fn rings(room: usize) -> Arc<Rings> {
        let path = std::env::temp_dir().join(format!("pugmark-rings-{:?}", std::thread::current().id()));
        let path = path.with_extension(std::process::id().to_string());
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        fs::remove_file(path).unwrap();
        file.set_len(Rings::size(room) as u64).unwrap();
        Arc::new(Rings::map(&file).unwrap())
    }

    #[test]
    fn who_gets_no_ring_is_counted() {
        for room in [0, 1, 5] {
            let rings = rings(room);
            let ring = || Ring::create(&rings, Mapping::WithOthers, |_| ()).is_some();
            assert!((0..room).all(|_| ring()));
            for refused in 1..3 {
                assert!(!ring());
                assert_eq!((rings.header().refused.load(Relaxed), rings.begun()), (refused, room as u32));
            }
        }
    }

    #[test]
    fn a_file_has_as_many_rings_as_it_may_be_large() {
        let whole = Rings::file_size(u64::MAX);
        assert_eq!((whole, Rings::room(whole)), (Rings::size(MOST) as u64, MOST));
        let four = Rings::size(4) as u64;
        let rooms = [0, 4095, 4096, four - 1, four, four + 1, whole].map(Rings::room);
        assert_eq!(rooms, [0, 0, 0, 3, 4, 4, MOST]);
        let file = fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(Rings::map(&file).is_err());
    }
}
