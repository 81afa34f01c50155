//! Runs libipt's packet, query, instruction and block decoders, to compare their speed with ours.
//!
//! As in [`libipt`](crate::libipt), the library is loaded at run time. Code comes from files, because libipt caches the
//! blocks of code in sections that it has mapped, but not those of code that a callback reads. The section cache is
//! large enough for all code, because without it libipt unmaps a section, and discards its blocks, whenever execution
//! moves to another one.

use crate::libipt::binding::{
    Block, Config, ERROR_BAD_QUERY, Handle, Insn, Library, Packet, PtEvent, STATUS_END_OF_STREAM,
    STATUS_EVENT_PENDING, STATUS_IP_SUPPRESSED,
};
use crate::libipt::edges::EdgeFinder;
use anyhow::{Context, Result, ensure};
use std::{
    ffi::{CString, c_int},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    ptr,
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

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedDecode {
    /// The number of items.
    pub count: u64,
    /// Checksum of the items, modulo 2^64. It makes each item used, and two decoders with equal sums have most probably
    /// decoded the same.
    pub sum: u64,
}

impl TimedDecode {
    /// Adds an item with this value.
    #[inline(always)]
    pub fn add(&mut self, value: u64) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(value);
    }
}

/// libipt, for which speed is measured.
pub struct Libipt(Library);

/// The packets that are looked into.
impl Packet {
    // Kinds of packets, of `enum pt_packet_type`.
    const PSB: c_int = 3;
    const FUP: c_int = 5;
    const TIP_PGD: c_int = 8;
    const TNT_8: c_int = 9;
    const TNT_64: c_int = 10;
    const TSC: c_int = 15;
    const MTC: c_int = 17;
    const CYC: c_int = 18;

    /// Returns the value of the packet: for a TNT its outcomes as a number and their count, for a packet with an IP the
    /// address, for a TSC, an MTC or a CYC its number. For the others, which are rare, only the kind is used.
    #[inline(always)]
    fn held(&self, last_ip: &mut u64) -> u64 {
        let [first, second] = self.payload;
        match self.kind {
            Self::TNT_8 | Self::TNT_64 => (first & 0xff) + second,
            Self::FUP..=Self::TIP_PGD => {
                // The field `ipc` holds IPBytes.
                *last_ip = match first & 0xff {
                    1 => *last_ip & !0xffff | second,
                    2 => *last_ip & !0xffff_ffff | second,
                    3 => ((second << 16).cast_signed() >> 16).cast_unsigned(),
                    4 => *last_ip & !0xffff_ffff_ffff | second,
                    6 => second,
                    _ => return 0,
                };
                *last_ip
            }
            Self::PSB => {
                *last_ip = 0;
                0
            }
            Self::TSC | Self::CYC => first,
            Self::MTC => first & 0xff,
            _ => 0,
        }
    }
}

impl Libipt {
    /// Loads the installed library; `None` if there is none.
    #[must_use]
    pub fn load() -> Option<Self> {
        Self::load_from(Path::new("libipt.so.2"))
    }

    /// Loads the library from a file; `None` if it is not found or lacks a function.
    #[must_use]
    pub fn load_from(file: &Path) -> Option<Self> {
        // SAFETY: libipt has no constructors and no destructors.
        let library = unsafe { libloading::Library::new(file) }.ok()?;
        // Its functions are used until the program ends, so it is never unloaded.
        Some(Self(Library::of(Box::leak(Box::new(library)))?))
    }

    /// Decodes the packets from the first PSB (the packet at which a decoder can start) to the first error. The sum is
    /// of the values that `Packet::held` returns.
    ///
    /// # Errors
    /// If libipt returns no decoder.
    pub fn packets(&self, trace: &[u8]) -> Result<TimedDecode> {
        let config = Config::new(trace);
        // SAFETY: libipt copies the configuration and only reads the trace, which outlives the decoder.
        let decoder =
            there(unsafe { (self.0.pt_pkt_alloc_decoder)(&raw const config) }, "libipt: no packet decoder")?;
        let mut packet = Packet::default();
        let (mut decoded, mut last_ip) = (TimedDecode::default(), 0);
        // SAFETY: the decoder is allocated.
        if unsafe { (self.0.pt_pkt_sync_forward)(decoder) } >= 0 {
            // SAFETY: the decoder is allocated, and the packet has the given size.
            while unsafe { (self.0.pt_pkt_next)(decoder, &raw mut packet, size_of::<Packet>()) } >= 0 {
                decoded.add(packet.held(&mut last_ip));
            }
        }
        // SAFETY: the decoder was allocated and is not used any more.
        unsafe { (self.0.pt_pkt_free_decoder)(decoder) };
        Ok(decoded)
    }

    /// Queries each branch, without code, and takes each event in between. The count is of branches, the sum of
    /// outcomes (1 for taken) and targets. After an error it continues at the next PSB.
    ///
    /// Without code the kind of the next branch is unknown. The query for the outcome of a conditional branch comes
    /// first; if it is the wrong one, libipt reports that at once.
    ///
    /// # Errors
    /// If libipt returns no decoder.
    pub fn query(&self, trace: &[u8]) -> Result<TimedDecode> {
        let config = Config::new(trace);
        // SAFETY: libipt copies the configuration and only reads the trace, which outlives the decoder.
        let decoder =
            there(unsafe { (self.0.pt_qry_alloc_decoder)(&raw const config) }, "libipt: no query decoder")?;
        let (mut decoded, mut ip) = (TimedDecode::default(), 0);
        // SAFETY: the decoder is allocated.
        while let mut status @ 0.. = unsafe { (self.0.pt_qry_sync_forward)(decoder, &raw mut ip) } {
            while status >= 0 {
                status = self.next_branch_event(decoder, status, &mut decoded);
            }
        }
        // SAFETY: the decoder was allocated and is not used any more.
        unsafe { (self.0.pt_qry_free_decoder)(decoder) };
        Ok(decoded)
    }

    #[inline]
    fn next_branch_event(&self, decoder: Handle, status: c_int, decoded: &mut TimedDecode) -> c_int {
        if status & STATUS_EVENT_PENDING != 0 {
            let mut event = PtEvent::NONE;
            // SAFETY: the decoder is allocated, and the event has the given size.
            return unsafe { (self.0.pt_qry_event)(decoder, &raw mut event, PtEvent::SIZE) };
        }
        let (mut taken, mut target) = (0, 0);
        // SAFETY: the decoder is allocated.
        let status = unsafe { (self.0.pt_qry_cond_branch)(decoder, &raw mut taken) };
        if status >= 0 {
            decoded.add(taken.unsigned_abs().into());
        }
        if status != -ERROR_BAD_QUERY {
            return status;
        }
        // SAFETY: the decoder is allocated.
        let status = unsafe { (self.0.pt_qry_indirect_branch)(decoder, &raw mut target) };
        if status >= 0 {
            decoded.add(if status & STATUS_IP_SUPPRESSED == 0 { target } else { 0 });
        }
        status
    }

    /// Makes an image of files, which can be used for many traces.
    ///
    /// # Errors
    /// If libipt refuses a file.
    pub fn image(&self, sections: &[FileSection]) -> Result<LibiptImage<'_>> {
        // SAFETY: caches need no name.
        let cache = there(unsafe { (self.0.pt_iscache_alloc)(ptr::null()) }, "libipt: no section cache")?;
        let mut image = LibiptImage { libipt: self, cache, handle: None };
        // SAFETY: images need no name.
        let handle = there(unsafe { (self.0.pt_image_alloc)(ptr::null()) }, "libipt: no image")?;
        image.handle = Some(handle);
        // SAFETY: the cache is allocated.
        let status = unsafe { (self.0.pt_iscache_set_limit)(cache, u64::MAX) };
        ensure!(status >= 0, "libipt: no limit for the section cache: error {}", -status);
        for FileSection { file, offset, len, base } in sections {
            let name = CString::new(file.as_os_str().as_bytes())?;
            // SAFETY: the cache is allocated, and the name ends with zero.
            let section = unsafe { (self.0.pt_iscache_add_file)(cache, name.as_ptr(), *offset, *len, *base) };
            ensure!(section >= 0, "libipt: cannot add {} at {base:#x}: error {}", file.display(), -section);
            // SAFETY: both are allocated, and the section is in the cache; no address space means every one.
            let status = unsafe { (self.0.pt_image_add_cached)(handle, cache, section, ptr::null()) };
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

/// The output of the instruction flow decoder.
enum Step<'a> {
    /// The decoder has synchronised.
    Sync,
    Event(&'a PtEvent),
    Insn(&'a Insn),
}

impl LibiptImage<'_> {
    /// Decodes the instructions from the first PSB on; after an error it continues at the next PSB. The sum is of their
    /// addresses.
    ///
    /// # Errors
    /// If libipt returns no decoder.
    pub fn insns(&self, trace: &[u8]) -> Result<TimedDecode> {
        let mut decoded = TimedDecode::default();
        self.walk(trace, |step| {
            if let Step::Insn(insn) = step {
                decoded.add(insn.ip);
            }
        })?;
        Ok(decoded)
    }

    /// Finds the edges between blocks in these instructions, and passes each to `edge`.
    ///
    /// # Errors
    /// If libipt returns no decoder.
    pub fn edges(&self, trace: &[u8], mut edge: impl FnMut(u16)) -> Result<()> {
        let mut edges = EdgeFinder::default();
        self.walk(trace, |step| match step {
            Step::Sync => edges = EdgeFinder::default(),
            Step::Event(event) => edges.event(event.kind, event.is_status_update()),
            Step::Insn(insn) => {
                let bytes = insn.bytes();
                edges.insn(insn.ip, insn.isid, insn.class, bytes).into_iter().for_each(&mut edge);
            }
        })
    }

    /// Passes on the output of libipt's instruction flow decoder, from the first PSB on; after an error from the next.
    #[inline(always)]
    fn walk(&self, trace: &[u8], mut each: impl FnMut(Step<'_>)) -> Result<()> {
        let libipt = self.libipt;
        let config = Config::new(trace);
        let image = self.handle.context("libipt: no image")?;
        // SAFETY: libipt copies the configuration and only reads the trace, which outlives the decoder.
        let decoder = there(
            unsafe { (libipt.0.pt_insn_alloc_decoder)(&raw const config) },
            "libipt: no instruction decoder",
        )?;
        // SAFETY: both are allocated; the image is freed after the decoder.
        let set = unsafe { (libipt.0.pt_insn_set_image)(decoder, image) };
        let (mut insn, mut event) = (Insn::default(), PtEvent::NONE);
        if set >= 0 {
            // SAFETY: the decoder is allocated.
            while let mut status @ 0.. = unsafe { (libipt.0.pt_insn_sync_forward)(decoder) } {
                each(Step::Sync);
                while status >= 0 && status & STATUS_END_OF_STREAM == 0 {
                    if status & STATUS_EVENT_PENDING != 0 {
                        // SAFETY: the decoder is allocated, and the event has the given size.
                        status = unsafe { (libipt.0.pt_insn_event)(decoder, &raw mut event, PtEvent::SIZE) };
                        if status >= 0 {
                            each(Step::Event(&event));
                        }
                        continue;
                    }
                    insn.class = 0;
                    // SAFETY: the decoder is allocated, and the instruction has the given size.
                    status = unsafe {
                        (libipt.0.pt_insn_next)(decoder, (&raw mut insn).cast(), size_of::<Insn>())
                    };
                    // After an error, the instruction before it counts if its class is known.
                    if status >= 0 || insn.class != 0 {
                        each(Step::Insn(&insn));
                    }
                }
            }
        }
        // SAFETY: the decoder was allocated and is not used any more.
        unsafe { (libipt.0.pt_insn_free_decoder)(decoder) };
        Ok(())
    }

    /// Returns the numbers of instructions and of blocks from the first PSB on; after an error it continues at the next
    /// PSB.
    ///
    /// # Errors
    /// If libipt returns no decoder.
    pub fn blocks(&self, trace: &[u8]) -> Result<(u64, u64)> {
        let libipt = self.libipt;
        let config = Config::new(trace);
        let image = self.handle.context("libipt: no image")?;
        // SAFETY: libipt copies the configuration and only reads the trace, which outlives the decoder.
        let decoder =
            there(unsafe { (libipt.0.pt_blk_alloc_decoder)(&raw const config) }, "libipt: no block decoder")?;
        // SAFETY: both are allocated; the image is freed after the decoder.
        let status = unsafe { (libipt.0.pt_blk_set_image)(decoder, image) };
        let mut counts = (0, 0);
        if status >= 0 {
            // SAFETY: the decoder is allocated.
            while let status @ 0.. = unsafe { (libipt.0.pt_blk_sync_forward)(decoder) } {
                self.until_error(decoder, status, &mut counts);
            }
        }
        // SAFETY: the decoder was allocated and is not used any more.
        unsafe { (libipt.0.pt_blk_free_decoder)(decoder) };
        Ok(counts)
    }

    fn until_error(&self, decoder: Handle, mut status: c_int, (insns, blocks): &mut (u64, u64)) {
        let mut block = Block::default();
        let mut event = PtEvent::NONE;
        loop {
            while status & STATUS_EVENT_PENDING != 0 {
                // SAFETY: the decoder is allocated, and the event has the given size.
                status = unsafe { (self.libipt.0.pt_blk_event)(decoder, &raw mut event, PtEvent::SIZE) };
                if status < 0 {
                    return;
                }
            }
            if status & STATUS_END_OF_STREAM != 0 {
                return;
            }
            block.insns = 0;
            // SAFETY: the decoder is allocated, and the block has the given size.
            status =
                unsafe { (self.libipt.0.pt_blk_next)(decoder, (&raw mut block).cast(), size_of::<Block>()) };
            // An error may follow some instructions of the block; these count too.
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
            unsafe { (self.libipt.0.pt_image_free)(image) };
        }
        // SAFETY: it was allocated, and no image has it any more.
        unsafe { (self.libipt.0.pt_iscache_free)(self.cache) };
    }
}

/// Returns what libipt has allocated.
fn there(handle: Handle, missing: &'static str) -> Result<Handle> {
    ensure!(!handle.is_null(), missing);
    Ok(handle)
}
