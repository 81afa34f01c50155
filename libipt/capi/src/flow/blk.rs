//! The block decoder: `pt_blk_*`.

use super::{block::PtBlock, walk::BlockDecoder, write_asid};
use crate::{
    config::PtConfig,
    error::Code,
    event::PtEvent,
    image::{Image, PtAsid},
    out::{write_offset, write_out, write_start},
    query::{write_ratio, write_time},
};
use std::{ffi::c_int, ptr};

/// Makes a block decoder for the buffer of the configuration; null if the configuration is too short or has no buffer.
///
/// # Safety
/// `config` is null or points to a `struct pt_config` with as many bytes as it says. Until the decoder is freed, its
/// buffer is readable, nobody but its callback writes to it, and its callback is null or a function of the header's
/// type, which does not use the decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_alloc_decoder(config: *const PtConfig) -> *mut BlockDecoder {
    // SAFETY: by contract.
    let Some(config) = (unsafe { PtConfig::from_user(config) }) else { return ptr::null_mut() };
    Box::into_raw(Box::new(BlockDecoder::new(config)))
}

/// Frees the decoder and its own image.
///
/// # Safety
/// `decoder` is null or from [`pt_blk_alloc_decoder`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_free_decoder(decoder: *mut BlockDecoder) {
    if !decoder.is_null() {
        // SAFETY: `pt_blk_alloc_decoder` made it from a box.
        drop(unsafe { Box::from_raw(decoder) });
    }
}

/// Goes to the next PSB.
///
/// # Safety
/// `decoder` is null or from [`pt_blk_alloc_decoder`], and nobody else uses it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_sync_forward(decoder: *mut BlockDecoder) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    let answer = decoder.sync_forward();
    decoder.flow.done(answer)
}

/// Goes to the last PSB before the current packet.
///
/// # Safety
/// As for [`pt_blk_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_sync_backward(decoder: *mut BlockDecoder) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    let answer = decoder.sync_backward();
    decoder.flow.done(answer)
}

/// Goes to the PSB at `offset`.
///
/// # Safety
/// As for [`pt_blk_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_sync_set(decoder: *mut BlockDecoder, offset: u64) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    let answer = decoder.sync_set(offset);
    decoder.flow.done(answer)
}

/// Writes the offset of the next packet.
///
/// # Safety
/// As for [`pt_blk_sync_forward`]; `offset` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_get_offset(decoder: *const BlockDecoder, offset: *mut u64) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_offset(decoder.map(|decoder| decoder.flow.query.offset()), offset) }
}

/// Writes the offset of the last synchronisation.
///
/// # Safety
/// As for [`pt_blk_get_offset`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_get_sync_offset(decoder: *const BlockDecoder, offset: *mut u64) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_offset(decoder.map(|decoder| decoder.flow.query.sync_offset()), offset) }
}

/// Returns the decoder's copy of its configuration, which lives as long as the decoder.
///
/// # Safety
/// As for [`pt_blk_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_get_config(decoder: *const BlockDecoder) -> *const PtConfig {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    decoder.map_or(ptr::null(), |decoder| &raw const decoder.flow.query.config)
}

/// Returns the decoder's image: its own unless another one was set.
///
/// # Safety
/// As for [`pt_blk_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_get_image(decoder: *mut BlockDecoder) -> *mut Image {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_mut() };
    decoder.map_or(ptr::null_mut(), |decoder| decoder.flow.image())
}

/// Sets the decoder's image; null selects its own.
///
/// # Safety
/// As for [`pt_blk_sync_forward`]; `image` is null or from `pt_image_alloc`, lives while the decoder has it, and is
/// used by nobody else while the decoder is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_set_image(decoder: *mut BlockDecoder, image: *mut Image) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    // SAFETY: by contract.
    unsafe { decoder.flow.set_image(image) };
    0
}

/// Writes the time of the last branch or event.
///
/// # Safety
/// As for [`pt_blk_sync_forward`]; each other pointer is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_time(
    decoder: *mut BlockDecoder,
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
/// As for [`pt_blk_sync_forward`]; `ratio` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_core_bus_ratio(decoder: *mut BlockDecoder, ratio: *mut u32) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_ratio(decoder.map(|decoder| decoder.flow.query.time()), ratio) }
}

/// Writes as much of the current address space as the caller's structure has.
///
/// # Safety
/// As for [`pt_blk_sync_forward`]; `asid` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_asid(decoder: *const BlockDecoder, asid: *mut PtAsid, size: usize) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_ref() }) else { return Code::Invalid.status() };
    // SAFETY: by contract.
    unsafe { write_asid(&decoder.flow.asid, asid, size) }
}

/// Writes as much of the next block as the caller's structure has, and returns the status. A block that ends with an
/// error is written, too.
///
/// # Safety
/// As for [`pt_blk_sync_forward`]; `block` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_next(decoder: *mut BlockDecoder, block: *mut PtBlock, size: usize) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    if block.is_null() {
        return Code::Invalid.status();
    }
    if size == size_of::<PtBlock>()
        // SAFETY: it is not null, and has that many bytes.
        && let Some(status) = unsafe { decoder.quick(block) }
    {
        return status;
    }
    if size == size_of::<PtBlock>() && block.is_aligned() {
        // SAFETY: it is not null, and has that many bytes.
        unsafe { block.write(PtBlock::EMPTY) };
        // SAFETY: it was initialised just now, and only the caller has it, so nobody else uses it.
        let answer = decoder.next(unsafe { &mut *block });
        return decoder.flow.done(answer);
    }
    let mut next = PtBlock::EMPTY;
    let answer = decoder.next(&mut next);
    let status = decoder.flow.done(answer);
    // SAFETY: it is not null, and has that many bytes.
    unsafe { write_out(&next, block, size) };
    status
}

/// Applies the pending event, writes as much of it as the caller's structure has, and returns the status.
///
/// # Safety
/// As for [`pt_blk_sync_forward`]; `event` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_blk_event(decoder: *mut BlockDecoder, event: *mut PtEvent, size: usize) -> c_int {
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
