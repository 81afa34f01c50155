//! The query decoder: `pt_qry_*`.

pub(crate) mod decoder;
mod events;
mod opcode;
mod outcomes;
mod overflow;
pub(crate) mod packets;

use self::decoder::{Answer, QueryDecoder};
use crate::{
    config::PtConfig,
    error::Code,
    event::PtEvent,
    out::{write_offset, write_start},
};
use pugmark_decoder_core::time::Estimate;
use std::{ffi::c_int, mem::offset_of, ptr};

/// `enable_iflags_events` among the flags of a query decoder.
pub(crate) const INTERRUPT_FLAG_EVENTS: u32 = 1 << 1;

/// Converts an answer that is a status to the function's value.
fn code(answer: Answer<c_int>) -> c_int {
    answer.unwrap_or_else(|error| error)
}

/// Makes a query decoder for the buffer of the configuration; null if the configuration is too short or has no buffer.
///
/// # Safety
/// `config` is null or points to a `struct pt_config` with as many bytes as it says. Until the decoder is freed, its
/// buffer is readable, nobody but its callback writes to it, and its callback is null or a function of the header's
/// type, which does not use the decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_alloc_decoder(config: *const PtConfig) -> *mut QueryDecoder {
    // SAFETY: by contract.
    let Some(config) = (unsafe { PtConfig::from_user(config) }) else { return ptr::null_mut() };
    Box::into_raw(Box::new(QueryDecoder::new(config, config.flags[0] & INTERRUPT_FLAG_EVENTS != 0)))
}

/// Frees the decoder.
///
/// # Safety
/// `decoder` is null or from [`pt_qry_alloc_decoder`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_free_decoder(decoder: *mut QueryDecoder) {
    if !decoder.is_null() {
        // SAFETY: `pt_qry_alloc_decoder` made it from a box.
        drop(unsafe { Box::from_raw(decoder) });
    }
}

/// Goes to the next PSB, and writes the address there.
///
/// # Safety
/// `decoder` is null or from [`pt_qry_alloc_decoder`], and nobody else uses it during the call; `ip` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_sync_forward(decoder: *mut QueryDecoder, ip: *mut u64) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    // SAFETY: by contract.
    code(decoder.sync_forward(unsafe { ip.as_mut() }))
}

/// Goes to the last PSB before the current packet, and writes the address there.
///
/// # Safety
/// As for [`pt_qry_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_sync_backward(decoder: *mut QueryDecoder, ip: *mut u64) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    // SAFETY: by contract.
    code(decoder.sync_backward(unsafe { ip.as_mut() }))
}

/// Goes to the PSB at `offset`, and writes the address there.
///
/// # Safety
/// As for [`pt_qry_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_sync_set(decoder: *mut QueryDecoder, ip: *mut u64, offset: u64) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    // SAFETY: by contract.
    code(decoder.sync_set(offset, unsafe { ip.as_mut() }))
}

/// Writes the offset of the next packet.
///
/// # Safety
/// As for [`pt_qry_sync_forward`]; `offset` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_get_offset(decoder: *const QueryDecoder, offset: *mut u64) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_offset(decoder.map(QueryDecoder::offset), offset) }
}

/// Writes the offset of the last synchronisation.
///
/// # Safety
/// As for [`pt_qry_get_offset`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_get_sync_offset(decoder: *const QueryDecoder, offset: *mut u64) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_offset(decoder.map(QueryDecoder::sync_offset), offset) }
}

/// Returns the decoder's copy of its configuration, which lives as long as the decoder.
///
/// # Safety
/// As for [`pt_qry_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_get_config(decoder: *const QueryDecoder) -> *const PtConfig {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    decoder.map_or(ptr::null(), |decoder| &raw const decoder.config)
}

/// Writes 1 if the next conditional branch is taken, 0 if not.
///
/// # Safety
/// As for [`pt_qry_sync_forward`]; `taken` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_cond_branch(decoder: *mut QueryDecoder, taken: *mut c_int) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    if taken.is_null() {
        return Code::Invalid.status();
    }
    match decoder.cond_branch() {
        Ok((is_taken, status)) => {
            // SAFETY: it is not null, so it is writable.
            unsafe { taken.write(is_taken.into()) };
            status
        }
        Err(error) => error,
    }
}

/// Writes the target of the next indirect branch, unless the status says that the address is suppressed.
///
/// # Safety
/// As for [`pt_qry_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_indirect_branch(decoder: *mut QueryDecoder, ip: *mut u64) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    // SAFETY: by contract.
    let Some(ip) = (unsafe { ip.as_mut() }) else { return Code::Invalid.status() };
    code(decoder.indirect_branch(ip))
}

/// Writes as much of the next event as the caller's structure has.
///
/// # Safety
/// As for [`pt_qry_sync_forward`]; `event` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_event(decoder: *mut QueryDecoder, event: *mut PtEvent, size: usize) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    if event.is_null() || size < offset_of!(PtEvent, variant) {
        return Code::Invalid.status();
    }
    code(decoder.next_event(|next| {
        // SAFETY: it is not null, and has that many bytes.
        unsafe { write_start(next, event, size) };
    }))
}

/// Writes the time of the last answer.
///
/// # Safety
/// As for [`pt_qry_sync_forward`]; each other pointer is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_time(
    decoder: *mut QueryDecoder,
    time: *mut u64,
    lost_mtc: *mut u32,
    lost_cyc: *mut u32,
) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_time(decoder.map(QueryDecoder::time), time, lost_mtc, lost_cyc) }
}

/// Writes the ratio of core clock to bus clock at the last answer.
///
/// # Safety
/// As for [`pt_qry_sync_forward`]; `ratio` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_qry_core_bus_ratio(decoder: *mut QueryDecoder, ratio: *mut u32) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_ratio(decoder.map(QueryDecoder::time), ratio) }
}

/// Writes a time. Before the first TSC packet it is relative to the start, and the function fails.
///
/// # Safety
/// Each pointer is null or writable.
pub(crate) unsafe fn write_time(
    known: Option<&Estimate>,
    time: *mut u64,
    lost_mtc: *mut u32,
    lost_cyc: *mut u32,
) -> c_int {
    let Some(known) = known.filter(|_| !time.is_null()) else { return Code::Invalid.status() };
    // SAFETY: it is not null, so it is writable.
    unsafe { time.write(known.relative()) };
    for (place, lost) in [(lost_mtc, known.lost_mtc()), (lost_cyc, known.lost_cyc())] {
        if !place.is_null() {
            // SAFETY: it is not null, so it is writable.
            unsafe { place.write(lost) };
        }
    }
    if known.time().is_ok() { 0 } else { Code::NoTime.status() }
}

/// Writes the ratio of core clock to bus clock.
///
/// # Safety
/// `ratio` is null or writable.
pub(crate) unsafe fn write_ratio(known: Option<&Estimate>, ratio: *mut u32) -> c_int {
    let Some(known) = known.filter(|_| !ratio.is_null()) else { return Code::Invalid.status() };
    let Some(value) = known.core_bus_ratio() else { return Code::NoCbr.status() };
    // SAFETY: it is not null, so it is writable.
    unsafe { ratio.write(value.into()) };
    0
}
