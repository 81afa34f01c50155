//! Runs libipt's instruction flow decoder.

use super::{
    Cpu, DecodeError, Decoded, Section, TOO_MANY_INSTRUCTIONS,
    binding::{
        ERROR_END_OF_STREAM, ERROR_NO_MEMORY_MAPPED, EVENT_OVERFLOW, Handle, Insn, Library, PtEvent,
        STATUS_END_OF_STREAM, STATUS_EVENT_PENDING,
    },
    edges::EdgeFinder,
};
use std::{
    ffi::{c_int, c_void},
    slice,
};

/// An instruction flow decoder of libipt.
pub(super) struct Decoder<'a> {
    libipt: &'a Library,
    handle: Handle,
    most: usize,
    decoded: Decoded,
}

impl<'a> Decoder<'a> {
    /// Makes a decoder that returns at most `most` instructions.
    pub(super) fn new(
        libipt: &'a Library,
        cpu: Option<Cpu>,
        trace: &'a [u8],
        sections: &'a &'a [Section<'a>],
        most: usize,
    ) -> Option<Self> {
        let config = libipt.config(cpu, trace);
        // SAFETY: the trace outlives the decoder; libipt copies the configuration and only reads the trace.
        let handle = unsafe { (libipt.pt_insn_alloc_decoder)(&raw const config) };
        if handle.is_null() {
            return None;
        }
        let decoder = Self { libipt, handle, most, decoded: Decoded::default() };
        // SAFETY: the decoder was allocated above and not freed.
        let image = unsafe { (libipt.pt_insn_get_image)(handle) };
        // SAFETY: the image is the decoder's; the sections outlive it.
        let status = unsafe {
            (libipt.pt_image_set_callback)(image, Some(read_memory), (&raw const *sections).cast_mut().cast())
        };
        (status >= 0).then_some(decoder)
    }

    /// Decodes up to the first error.
    pub(super) fn run_to_error(mut self) -> Decoded {
        // SAFETY: the decoder is allocated.
        let status = unsafe { (self.libipt.pt_insn_sync_forward)(self.handle) };
        let end = if status < 0 { Err(status) } else { self.until_error(status) };
        if let Err(status) = end
            && status != -ERROR_END_OF_STREAM
        {
            self.error(status);
        }
        std::mem::take(&mut self.decoded)
    }

    /// Decodes to the end; after each error from the next PSB on.
    pub(super) fn run(mut self) -> Decoded {
        let mut last_sync_error = None;
        loop {
            // SAFETY: the decoder is allocated.
            let status = unsafe { (self.libipt.pt_insn_sync_forward)(self.handle) };
            if status == -ERROR_END_OF_STREAM {
                break;
            }
            if status < 0 {
                self.error(status);
                let offset = Some(self.offset());
                if last_sync_error >= offset {
                    break;
                }
                last_sync_error = offset;
                continue;
            }
            if let Err(status) = self.until_error(status)
                && status != -ERROR_END_OF_STREAM
            {
                self.error(status);
            }
            if self.decoded.addresses.len() >= self.most {
                break;
            }
        }
        std::mem::take(&mut self.decoded)
    }

    fn until_error(&mut self, mut status: c_int) -> Result<(), c_int> {
        let mut edges = EdgeFinder::default();
        while self.decoded.addresses.len() < self.most {
            while status & STATUS_EVENT_PENDING != 0 {
                let mut event = PtEvent::NONE;
                // SAFETY: the decoder is allocated, and the event has the given size.
                status = unsafe { (self.libipt.pt_insn_event)(self.handle, &raw mut event, PtEvent::SIZE) };
                if status < 0 {
                    return Err(status);
                }
                edges.event(event.kind, event.is_status_update());
                self.decoded.overflows += u64::from(event.kind == EVENT_OVERFLOW);
            }
            if status & STATUS_END_OF_STREAM != 0 {
                return Ok(());
            }
            let mut insn = Insn::default();
            // SAFETY: the decoder is allocated, and the instruction has the given size.
            status =
                unsafe { (self.libipt.pt_insn_next)(self.handle, (&raw mut insn).cast(), size_of::<Insn>()) };
            // An error may be caused by the data after an instruction; then that instruction counts too.
            if status >= 0 || insn.class != 0 {
                self.decoded.addresses.push(insn.ip);
                self.decoded.edges.extend(edges.insn(insn.ip, insn.isid, insn.class, insn.bytes()));
            }
            if status < 0 {
                return Err(status);
            }
        }
        let (offset, after) = (self.offset(), self.decoded.addresses.len());
        self.decoded.errors.push(DecodeError { offset, after, text: TOO_MANY_INSTRUCTIONS });
        Ok(())
    }

    fn error(&mut self, status: c_int) {
        let (offset, after) = (self.offset(), self.decoded.addresses.len());
        self.decoded.errors.push(DecodeError { offset, after, text: self.libipt.error_text(status) });
    }

    /// Returns libipt's offset in the trace; 0 if it is out of sync.
    fn offset(&self) -> u64 {
        let mut offset = 0;
        // SAFETY: the decoder is allocated; it writes one number.
        unsafe { (self.libipt.pt_insn_get_offset)(self.handle, &raw mut offset) };
        offset
    }
}

impl Drop for Decoder<'_> {
    fn drop(&mut self) {
        // SAFETY: the decoder was allocated and is not used any more.
        unsafe { (self.libipt.pt_insn_free_decoder)(self.handle) };
    }
}

/// Reads code for libipt; a `read_memory_callback_t`.
///
/// # Safety
/// `context` is the pointer passed by [`Decoder::new`], and `buffer` has room for `size` bytes.
unsafe extern "C" fn read_memory(
    buffer: *mut u8,
    size: usize,
    asid: *const [u64; 3],
    ip: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller promises it; the decoder lives no longer than the sections.
    let sections = unsafe { *context.cast_const().cast::<&[Section<'_>]>() };
    // SAFETY: the caller promises it; libipt zeroes the buffer or has it on its stack, and uses only the bytes that
    // were read.
    let buffer = unsafe { slice::from_raw_parts_mut(buffer, size) };
    // SAFETY: libipt passes the address space that it is decoding.
    let [_, cr3, _] = unsafe { *asid };
    match read(sections, ip, cr3, buffer) {
        0 => -ERROR_NO_MEMORY_MAPPED,
        read => c_int::try_from(read).unwrap_or(c_int::MAX),
    }
}

/// Copies bytes from `address` on and returns the number of contiguous bytes.
fn read(sections: &[Section<'_>], address: u64, cr3: u64, out: &mut [u8]) -> usize {
    let there = |section: &&Section<'_>| section.cr3.is_none_or(|own| own == cr3);
    let own = sections.iter().rev().filter(there);
    // Usually one section has all bytes, and no other begins within them.
    let begins_within = |section: &Section<'_>| section.base.wrapping_sub(address) < out.len() as u64;
    let first = own.clone().find(|section| at(section, address).is_some());
    if let Some(section) = first
        && own.clone().all(|other| std::ptr::eq(other, section) || !begins_within(other))
        && let Some(bytes) = at(section, address).and_then(|at| section.bytes.get(at..at + out.len()))
    {
        out.copy_from_slice(bytes);
        return out.len();
    }
    let byte = |address| own.clone().find_map(|section| section.bytes.get(at(section, address)?).copied());
    let bytes = (0..).map_while(|index| byte(address.checked_add(index)?));
    out.iter_mut().zip(bytes).map(|(out, byte)| *out = byte).count()
}

/// Returns the index of the byte at `address`, if the section has it.
fn at(section: &Section<'_>, address: u64) -> Option<usize> {
    let at = usize::try_from(address.checked_sub(section.base)?).ok()?;
    (at < section.bytes.len()).then_some(at)
}
