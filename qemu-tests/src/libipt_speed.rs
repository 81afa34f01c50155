//! Runs libipt's packet and block decoders, to compare their speed with ours.
//!
//! As in [`libipt`](crate::libipt), the library is loaded at run time. Code comes from files, because libipt caches the
//! blocks of code in sections that it has mapped, but not those of code that a callback reads. The section cache is
//! large enough for all code, because without it libipt unmaps a section, and forgets its blocks, whenever execution
//! goes to another one.

use anyhow::{Context, Result, ensure};
use std::{
    ffi::{CString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    ptr::{self, NonNull},
};

/// Code in a file.
#[derive(Clone, Debug)]
pub struct FileSection {
    /// The file.
    pub file: PathBuf,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub len: u64,
    /// The address in memory.
    pub base: u64,
}

type Handle = NonNull<c_void>;

/// libipt's functions; the signatures are those of intel-pt.h, version 2.
pub struct Libipt {
    pkt_alloc: unsafe extern "C" fn(*const PtConfig) -> Option<Handle>,
    pkt_free: unsafe extern "C" fn(Handle),
    pkt_sync_forward: unsafe extern "C" fn(Handle) -> c_int,
    pkt_next: unsafe extern "C" fn(Handle, *mut PtPacket, usize) -> c_int,
    blk_alloc: unsafe extern "C" fn(*const PtConfig) -> Option<Handle>,
    blk_free: unsafe extern "C" fn(Handle),
    blk_sync_forward: unsafe extern "C" fn(Handle) -> c_int,
    blk_next: unsafe extern "C" fn(Handle, *mut Block, usize) -> c_int,
    blk_event: unsafe extern "C" fn(Handle, *mut PtEvent, usize) -> c_int,
    blk_set_image: unsafe extern "C" fn(Handle, Handle) -> c_int,
    image_alloc: unsafe extern "C" fn(*const c_char) -> Option<Handle>,
    image_free: unsafe extern "C" fn(Handle),
    image_add_cached: unsafe extern "C" fn(Handle, Handle, c_int, *const c_void) -> c_int,
    cache_alloc: unsafe extern "C" fn(*const c_char) -> Option<Handle>,
    cache_free: unsafe extern "C" fn(Handle),
    cache_set_limit: unsafe extern "C" fn(Handle, u64) -> c_int,
    cache_add_file: unsafe extern "C" fn(Handle, *const c_char, u64, u64, u64) -> c_int,
}

/// `struct pt_config` up to its errata; libipt treats the fields after the given size as zero.
#[repr(C)]
struct PtConfig {
    size: usize,
    begin: *const u8,
    end: *const u8,
    callback: usize,
    context: usize,
    cpu: [u32; 2],
    errata: [u32; 16],
}

// The structures that libipt writes to must not be larger than its own: version 2.0.5 clears the rest of a larger one,
// but at a wrong address far after it. A smaller one is filled as far as it reaches.

/// `struct pt_packet`.
#[repr(C)]
struct PtPacket {
    kind: c_int,
    size: u8,
    payload: [u64; 2],
}

/// `struct pt_block`.
#[repr(C)]
#[derive(Default)]
struct Block {
    ip: u64,
    end_ip: u64,
    isid: c_int,
    mode: c_int,
    class: c_int,
    insns: u16,
    raw: [u8; 15],
    size: u8,
    flags: u16,
}

/// `struct pt_event`.
#[repr(C)]
#[derive(Default)]
struct PtEvent {
    kind: c_int,
    flags: u32,
    rest: [u64; 7],
}

const _: () = assert!(size_of::<PtPacket>() == 24 && size_of::<Block>() == 48 && size_of::<PtEvent>() == 64);

const STATUS_EVENT_PENDING: c_int = 1 << 0;
const STATUS_END_OF_STREAM: c_int = 1 << 2;

impl Libipt {
    /// Loads the library; `None` if it is not installed.
    #[must_use]
    pub fn load() -> Option<Self> {
        // SAFETY: libipt has no constructors and no destructors.
        let library = unsafe { libloading::Library::new("libipt.so.2") }.ok()?;
        // Its functions are used until the program ends, so it is never unloaded.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        /// The function of this name, with the type of the field to which it is assigned.
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: intel-pt.h declares the function of this name with this type.
                *unsafe { library.get($name) }.ok()?
            };
        }
        Some(Self {
            pkt_alloc: function!(b"pt_pkt_alloc_decoder"),
            pkt_free: function!(b"pt_pkt_free_decoder"),
            pkt_sync_forward: function!(b"pt_pkt_sync_forward"),
            pkt_next: function!(b"pt_pkt_next"),
            blk_alloc: function!(b"pt_blk_alloc_decoder"),
            blk_free: function!(b"pt_blk_free_decoder"),
            blk_sync_forward: function!(b"pt_blk_sync_forward"),
            blk_next: function!(b"pt_blk_next"),
            blk_event: function!(b"pt_blk_event"),
            blk_set_image: function!(b"pt_blk_set_image"),
            image_alloc: function!(b"pt_image_alloc"),
            image_free: function!(b"pt_image_free"),
            image_add_cached: function!(b"pt_image_add_cached"),
            cache_alloc: function!(b"pt_iscache_alloc"),
            cache_free: function!(b"pt_iscache_free"),
            cache_set_limit: function!(b"pt_iscache_set_limit"),
            cache_add_file: function!(b"pt_iscache_add_file"),
        })
    }

    /// Returns the number of packets from the first PSB (the packet at which a decoder can start) to the first error.
    ///
    /// # Errors
    /// libipt gives no decoder.
    pub fn packets(&self, trace: &[u8]) -> Result<u64> {
        let config = config(trace);
        // SAFETY: libipt copies the configuration and only reads the trace, which outlives the decoder.
        let decoder = unsafe { (self.pkt_alloc)(&raw const config) }.context("libipt: no packet decoder")?;
        let mut packet = PtPacket { kind: 0, size: 0, payload: [0; 2] };
        let mut count = 0;
        // SAFETY: the decoder is allocated.
        if unsafe { (self.pkt_sync_forward)(decoder) } >= 0 {
            // SAFETY: the decoder is allocated, and the packet has the given size.
            while unsafe { (self.pkt_next)(decoder, &raw mut packet, size_of::<PtPacket>()) } >= 0 {
                count += 1;
            }
        }
        // SAFETY: the decoder was allocated and is not used any more.
        unsafe { (self.pkt_free)(decoder) };
        Ok(count)
    }

    /// Makes an image of files, which can be used for many traces.
    ///
    /// # Errors
    /// libipt refuses a file.
    pub fn image(&self, sections: &[FileSection]) -> Result<LibiptImage<'_>> {
        // SAFETY: caches need no name.
        let cache = unsafe { (self.cache_alloc)(ptr::null()) }.context("libipt: no section cache")?;
        let mut image = LibiptImage { libipt: self, cache, handle: None };
        // SAFETY: images need no name.
        let handle = unsafe { (self.image_alloc)(ptr::null()) }.context("libipt: no image")?;
        image.handle = Some(handle);
        // SAFETY: the cache is allocated.
        let status = unsafe { (self.cache_set_limit)(cache, u64::MAX) };
        ensure!(status >= 0, "libipt: no limit for the section cache: error {}", -status);
        for FileSection { file, offset, len, base } in sections {
            let name = CString::new(file.as_os_str().as_bytes())?;
            // SAFETY: the cache is allocated, and the name ends with zero.
            let section = unsafe { (self.cache_add_file)(cache, name.as_ptr(), *offset, *len, *base) };
            ensure!(section >= 0, "libipt: cannot add {} at {base:#x}: error {}", file.display(), -section);
            // SAFETY: both are allocated, and the section is in the cache; no address space means every one.
            let status = unsafe { (self.image_add_cached)(handle, cache, section, ptr::null()) };
            ensure!(status >= 0, "libipt: cannot use {} at {base:#x}: error {}", file.display(), -status);
        }
        Ok(image)
    }
}

/// An image of libipt.
pub struct LibiptImage<'a> {
    libipt: &'a Libipt,
    cache: Handle,
    /// Always there once the image is complete.
    handle: Option<Handle>,
}

impl LibiptImage<'_> {
    /// Returns the numbers of instructions and of blocks from the first PSB on; after an error it goes on at the next
    /// PSB.
    ///
    /// # Errors
    /// libipt gives no decoder.
    pub fn blocks(&self, trace: &[u8]) -> Result<(u64, u64)> {
        let libipt = self.libipt;
        let config = config(trace);
        let image = self.handle.context("libipt: no image")?;
        // SAFETY: libipt copies the configuration and only reads the trace, which outlives the decoder.
        let decoder = unsafe { (libipt.blk_alloc)(&raw const config) }.context("libipt: no block decoder")?;
        // SAFETY: both are allocated; the image is freed after the decoder.
        let status = unsafe { (libipt.blk_set_image)(decoder, image) };
        let mut counts = (0, 0);
        if status >= 0 {
            // SAFETY: the decoder is allocated.
            while let status @ 0.. = unsafe { (libipt.blk_sync_forward)(decoder) } {
                self.until_error(decoder, status, &mut counts);
            }
        }
        // SAFETY: the decoder was allocated and is not used any more.
        unsafe { (libipt.blk_free)(decoder) };
        Ok(counts)
    }

    fn until_error(&self, decoder: Handle, mut status: c_int, (insns, blocks): &mut (u64, u64)) {
        let mut block = Block::default();
        let mut event = PtEvent::default();
        loop {
            while status & STATUS_EVENT_PENDING != 0 {
                // SAFETY: the decoder is allocated, and the event has the given size.
                status = unsafe { (self.libipt.blk_event)(decoder, &raw mut event, size_of::<PtEvent>()) };
                if status < 0 {
                    return;
                }
            }
            if status & STATUS_END_OF_STREAM != 0 {
                return;
            }
            block.insns = 0;
            // SAFETY: the decoder is allocated, and the block has the given size.
            status = unsafe { (self.libipt.blk_next)(decoder, &raw mut block, size_of::<Block>()) };
            // An error may come after some instructions of the block; these count too.
            *insns += u64::from(block.insns);
            *blocks += u64::from(block.insns > 0);
            if status < 0 {
                return;
            }
        }
    }
}

impl Drop for LibiptImage<'_> {
    fn drop(&mut self) {
        if let Some(image) = self.handle {
            // SAFETY: it was allocated, and no decoder has it any more.
            unsafe { (self.libipt.image_free)(image) };
        }
        // SAFETY: it was allocated, and no image has it any more.
        unsafe { (self.libipt.cache_free)(self.cache) };
    }
}

fn config(trace: &[u8]) -> PtConfig {
    let range = trace.as_ptr_range();
    let size = size_of::<PtConfig>();
    PtConfig {
        size,
        begin: range.start,
        end: range.end,
        callback: 0,
        context: 0,
        cpu: [0; 2],
        errata: [0; 16],
    }
}
