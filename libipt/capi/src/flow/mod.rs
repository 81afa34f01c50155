//! The instruction decoder (`pt_insn_*`) and the block decoder (`pt_blk_*`, in `blk`).

mod base;
pub mod blk;
pub mod block;
mod blocks;
mod functions;
pub mod insns;
mod node;
mod quick;
pub mod walk;

use self::{functions::flow_functions, insns::InsnDecoder};
use crate::{
    config::PtConfig,
    error::Code,
    event::PtEvent,
    image::{Image, PtAsid, insn::PtInsn},
    out::{write_offset, write_out, write_start},
    query::{write_ratio, write_time},
};
use std::{ffi::c_int, mem::offset_of, ptr};

flow_functions!(
    InsnDecoder,
    pt_insn_alloc_decoder,
    pt_insn_free_decoder,
    pt_insn_sync_forward,
    pt_insn_sync_backward,
    pt_insn_sync_set,
    pt_insn_get_offset,
    pt_insn_get_sync_offset,
    pt_insn_get_config,
    pt_insn_get_image,
    pt_insn_set_image,
    pt_insn_time,
    pt_insn_core_bus_ratio,
    pt_insn_asid,
    pt_insn_event,
);

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
