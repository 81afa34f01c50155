//! The block decoder: `pt_blk_*`.

use super::{block::PtBlock, functions::flow_functions, walk::BlockDecoder, write_asid};
use crate::{
    config::PtConfig,
    error::Code,
    event::PtEvent,
    image::{Image, PtAsid},
    out::{write_offset, write_out, write_start},
    query::{write_ratio, write_time},
};
use std::{ffi::c_int, ptr};

flow_functions!(
    BlockDecoder,
    pt_blk_alloc_decoder,
    pt_blk_free_decoder,
    pt_blk_sync_forward,
    pt_blk_sync_backward,
    pt_blk_sync_set,
    pt_blk_get_offset,
    pt_blk_get_sync_offset,
    pt_blk_get_config,
    pt_blk_get_image,
    pt_blk_set_image,
    pt_blk_time,
    pt_blk_core_bus_ratio,
    pt_blk_asid,
    pt_blk_event,
);

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
