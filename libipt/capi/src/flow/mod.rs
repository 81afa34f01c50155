//! The instruction decoder (`pt_insn_*`) and the block decoder (`pt_blk_*`, in `blk`).

mod base;
pub mod blk;
pub mod block;
mod blocks;
pub mod insns;
mod node;
mod quick;
pub mod walk;

use self::insns::InsnDecoder;
use crate::{
    config::PtConfig,
    error::Code,
    event::PtEvent,
    image::{Image, PtAsid, insn::PtInsn},
    out::{write_offset, write_out, write_start},
    query::{write_ratio, write_time},
};
use std::{ffi::c_int, mem::offset_of, ptr};

/// Makes an instruction decoder for the buffer of the configuration; null if the configuration is too short or has no
/// buffer.
///
/// # Safety
/// `config` is null or points to a `struct pt_config` with as many bytes as it says. Until the decoder is freed, its
/// buffer is readable, nobody but its callback writes to it, and its callback is null or a function of the header's
/// type, which does not use the decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_alloc_decoder(config: *const PtConfig) -> *mut InsnDecoder {
    // SAFETY: by contract.
    let Some(config) = (unsafe { PtConfig::from_user(config) }) else { return ptr::null_mut() };
    Box::into_raw(Box::new(InsnDecoder::new(config)))
}

/// Frees the decoder and its own image.
///
/// # Safety
/// `decoder` is null or from [`pt_insn_alloc_decoder`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_free_decoder(decoder: *mut InsnDecoder) {
    if !decoder.is_null() {
        // SAFETY: `pt_insn_alloc_decoder` made it from a box.
        drop(unsafe { Box::from_raw(decoder) });
    }
}

/// Goes to the next PSB.
///
/// # Safety
/// `decoder` is null or from [`pt_insn_alloc_decoder`], and nobody else uses it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_sync_forward(decoder: *mut InsnDecoder) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    let answer = decoder.sync_forward();
    decoder.flow.done(answer)
}

/// Goes to the last PSB before the current packet.
///
/// # Safety
/// As for [`pt_insn_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_sync_backward(decoder: *mut InsnDecoder) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    let answer = decoder.sync_backward();
    decoder.flow.done(answer)
}

/// Goes to the PSB at `offset`.
///
/// # Safety
/// As for [`pt_insn_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_sync_set(decoder: *mut InsnDecoder, offset: u64) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    let answer = decoder.sync_set(offset);
    decoder.flow.done(answer)
}

/// Writes the offset of the next packet.
///
/// # Safety
/// As for [`pt_insn_sync_forward`]; `offset` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_get_offset(decoder: *const InsnDecoder, offset: *mut u64) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_offset(decoder.map(|decoder| decoder.flow.query.offset()), offset) }
}

/// Writes the offset of the last synchronisation.
///
/// # Safety
/// As for [`pt_insn_get_offset`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_get_sync_offset(decoder: *const InsnDecoder, offset: *mut u64) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_offset(decoder.map(|decoder| decoder.flow.query.sync_offset()), offset) }
}

/// Returns the decoder's copy of its configuration, which lives as long as the decoder.
///
/// # Safety
/// As for [`pt_insn_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_get_config(decoder: *const InsnDecoder) -> *const PtConfig {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    decoder.map_or(ptr::null(), |decoder| &raw const decoder.flow.query.config)
}

/// Returns the decoder's image: its own unless another one was set.
///
/// # Safety
/// As for [`pt_insn_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_get_image(decoder: *mut InsnDecoder) -> *mut Image {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_mut() };
    decoder.map_or(ptr::null_mut(), |decoder| decoder.flow.image())
}

/// Sets the decoder's image; null selects its own.
///
/// # Safety
/// As for [`pt_insn_sync_forward`]; `image` is null or from `pt_image_alloc`, lives while the decoder has it, and is
/// used by nobody else while the decoder is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_set_image(decoder: *mut InsnDecoder, image: *mut Image) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    // SAFETY: by contract.
    unsafe { decoder.flow.set_image(image) };
    0
}

/// Writes the time of the last branch or event.
///
/// # Safety
/// As for [`pt_insn_sync_forward`]; each other pointer is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_time(
    decoder: *mut InsnDecoder,
    time: *mut u64,
    lost_mtc: *mut u32,
    lost_cyc: *mut u32,
) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_time(decoder.map(|decoder| decoder.flow.query.time()), time, lost_mtc, lost_cyc) }
}

/// Writes the ratio of core clock to bus clock at the last branch or event.
///
/// # Safety
/// As for [`pt_insn_sync_forward`]; `ratio` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_core_bus_ratio(decoder: *mut InsnDecoder, ratio: *mut u32) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_ratio(decoder.map(|decoder| decoder.flow.query.time()), ratio) }
}

/// Writes as much of the current address space as the caller's structure has.
///
/// # Safety
/// As for [`pt_insn_sync_forward`]; `asid` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_asid(decoder: *const InsnDecoder, asid: *mut PtAsid, size: usize) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_ref() }) else { return Code::Invalid.status() };
    // SAFETY: by contract.
    unsafe { write_asid(&decoder.flow.asid, asid, size) }
}

/// Writes as much of an address space as the caller's structure has, and its size.
///
/// # Safety
/// `asid` is null or points to `size` writable bytes.
unsafe fn write_asid(known: &PtAsid, asid: *mut PtAsid, size: usize) -> c_int {
    if asid.is_null() || size < offset_of!(PtAsid, cr3) {
        return Code::Invalid.status();
    }
    let known = PtAsid { size: size.min(size_of::<PtAsid>()), ..*known };
    // SAFETY: by contract.
    unsafe { write_start(&known, asid, size) };
    0
}

/// Writes as much of the next instruction as the caller's structure has, and returns the status.
///
/// # Safety
/// As for [`pt_insn_sync_forward`]; `insn` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_next(decoder: *mut InsnDecoder, insn: *mut PtInsn, size: usize) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    if insn.is_null() {
        return Code::Invalid.status();
    }
    if size == size_of::<PtInsn>() {
        // SAFETY: it is not null, and has that many bytes.
        return unsafe { decoder.next(insn) };
    }
    let answer = decoder.slow(|next, is_whole| {
        // libipt fills in the caller's structure directly if that has the same size.
        if is_whole {
            // SAFETY: it is not null, and has that many bytes.
            unsafe { write_out(next, insn, size) };
        }
    });
    decoder.flow.done(answer)
}

/// Applies the pending event, writes as much of it as the caller's structure has, and returns the status.
///
/// # Safety
/// As for [`pt_insn_sync_forward`]; `event` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_insn_event(decoder: *mut InsnDecoder, event: *mut PtEvent, size: usize) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    if event.is_null() {
        return Code::Invalid.status();
    }
    let answer = decoder.event(|next| {
        // SAFETY: it is not null, and has that many bytes.
        unsafe { write_start(next, event, size) };
    });
    decoder.flow.done(answer)
}
