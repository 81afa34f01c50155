//! The event decoder: `pt_evt_*`, which libipt has since 2.1.
//!
//! It makes an event of everything in a trace, also of branches. Events have the addresses and times of packets; no
//! code is read.

use crate::{
    config::PtConfig,
    error::Code,
    event::PtEvent,
    out::{write_offset, write_out},
    packets::{CallerTrace, status},
};
use pugmark_ipt::{EventOptions, Release};
use std::{ffi::c_int, mem, ptr};

/// Flags in the configuration.
pub(crate) const KEEP_CALIBRATION: u32 = 1 << 0;
pub(crate) const INTERRUPT_FLAG_EVENTS: u32 = 1 << 1;

/// `struct pt_event_decoder`.
#[derive(Debug)]
pub struct EventDecoder {
    config: PtConfig,
    events: pugmark_ipt::EventDecoder<CallerTrace>,
}

impl EventDecoder {
    /// # Safety
    /// As in [`pt_evt_alloc_decoder`].
    unsafe fn new(mut config: PtConfig) -> Self {
        let [flags, ..] = mem::take(&mut config.flags);
        let options = EventOptions {
            errata: config.errata.into(),
            clocks: config.clocks(),
            keep_calibration: flags & KEEP_CALIBRATION != 0,
            iflags: flags & INTERRUPT_FLAG_EVENTS != 0,
            release: Release::V2_1,
        };
        // SAFETY: by contract.
        let trace = unsafe { CallerTrace::new(config) };
        Self { config, events: pugmark_ipt::EventDecoder::new(trace, options) }
    }
}

/// Makes an event decoder for the buffer of the configuration; null if the configuration is too short or has no buffer.
///
/// # Safety
/// `config` is null or points to a `struct pt_config` with as many bytes as it says. Until the decoder is freed, its
/// buffer is readable, nobody but its callback writes to it, and its callback is null or a function of the header's
/// type, which does not use the decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_evt_alloc_decoder(config: *const PtConfig) -> *mut EventDecoder {
    // SAFETY: by contract.
    let Some(config) = (unsafe { PtConfig::from_user(config) }) else { return ptr::null_mut() };
    // SAFETY: by contract.
    Box::into_raw(Box::new(unsafe { EventDecoder::new(config) }))
}

/// Frees the decoder.
///
/// # Safety
/// `decoder` is null or from [`pt_evt_alloc_decoder`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_evt_free_decoder(decoder: *mut EventDecoder) {
    if !decoder.is_null() {
        // SAFETY: `pt_evt_alloc_decoder` made it from a box.
        drop(unsafe { Box::from_raw(decoder) });
    }
}

/// Goes to the next PSB, and reads its PSB+.
///
/// # Safety
/// `decoder` is null or from [`pt_evt_alloc_decoder`], and nobody else uses it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_evt_sync_forward(decoder: *mut EventDecoder) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    status(decoder.events.sync_forward())
}

/// Goes to the last PSB before the current packet, and reads its PSB+.
///
/// # Safety
/// As for [`pt_evt_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_evt_sync_backward(decoder: *mut EventDecoder) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    status(decoder.events.sync_backward())
}

/// Goes to the PSB at `offset`, and reads its PSB+.
///
/// # Safety
/// As for [`pt_evt_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_evt_sync_set(decoder: *mut EventDecoder, offset: u64) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    status(decoder.events.sync_set(offset))
}

/// Writes the offset of the packet that the next event comes from.
///
/// # Safety
/// As for [`pt_evt_sync_forward`]; `offset` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_evt_get_offset(decoder: *const EventDecoder, offset: *mut u64) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_offset(decoder.map(|decoder| decoder.events.offset()), offset) }
}

/// Writes the offset of the last synchronisation.
///
/// # Safety
/// As for [`pt_evt_get_offset`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_evt_get_sync_offset(decoder: *const EventDecoder, offset: *mut u64) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_offset(decoder.map(|decoder| decoder.events.sync_offset()), offset) }
}

/// Returns the configuration of the decoder's packet decoder, without flags. It lives as long as the decoder.
///
/// # Safety
/// As for [`pt_evt_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_evt_get_config(decoder: *const EventDecoder) -> *const PtConfig {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    decoder.map_or(ptr::null(), |decoder| &raw const decoder.config)
}

/// Writes as much of the next event as the caller's structure has.
///
/// # Safety
/// As for [`pt_evt_sync_forward`]; `event` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_evt_next(decoder: *mut EventDecoder, event: *mut PtEvent, size: usize) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    if event.is_null() {
        return Code::Invalid.status();
    }
    match decoder.events.next() {
        Ok(next) => {
            // SAFETY: it is not null, and has that many bytes.
            unsafe { write_out(&next, event, size) };
            0
        }
        Err(status) => status,
    }
}
