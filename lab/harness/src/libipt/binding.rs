//! libipt's functions and structures, as version 2 of intel-pt.h declares them, found in a library at run time. The
//! tests of our own libipt.so.2 have this file as a module, too.
#![allow(dead_code, missing_docs, reason = "the names are those of intel-pt.h; no user needs all of them")]

use super::release::Version;
use std::ffi::{c_char, c_int, c_void};

pub(crate) const EVENT_OVERFLOW: c_int = 6;
pub(crate) const STATUS_EVENT_PENDING: c_int = 1 << 0;
pub(crate) const STATUS_IP_SUPPRESSED: c_int = 1 << 1;
pub(crate) const STATUS_END_OF_STREAM: c_int = 1 << 2;
pub(crate) const ERROR_END_OF_STREAM: c_int = 7;
pub(crate) const ERROR_BAD_QUERY: c_int = 8;
pub(crate) const ERROR_NO_MEMORY_MAPPED: c_int = 13;

/// A decoder, an encoder or a configuration of a library.
pub(crate) type Handle = *mut c_void;

/// `struct pt_packet`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) kind: c_int,
    pub(crate) size: u8,
    pub(crate) padding: [u8; 3],
    pub(crate) payload: [u64; 2],
}

/// `struct pt_config`, followed by room that only a newer caller's structure has.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) size: usize,
    pub(crate) begin: *const u8,
    pub(crate) end: *const u8,
    pub(crate) callback: Option<Callback>,
    pub(crate) context: *mut c_void,
    pub(crate) cpu: u64,
    pub(crate) errata: [u32; 16],
    pub(crate) cpuid_15h: [u32; 2],
    pub(crate) mtc_freq: u8,
    pub(crate) nom_freq: u8,
    pub(crate) flags: [u32; 4],
    pub(crate) rest: [u64; 19],
}

pub(crate) type Callback =
    unsafe extern "C" fn(*mut [u64; 2], *const Config, *const u8, *mut c_void) -> c_int;

impl Config {
    pub(crate) fn new(trace: &[u8]) -> Self {
        let range = trace.as_ptr_range();
        Self {
            size: 280,
            begin: range.start,
            end: range.end,
            callback: None,
            context: std::ptr::null_mut(),
            cpu: 0,
            errata: [0; 16],
            cpuid_15h: [0; 2],
            mtc_freq: 0,
            nom_freq: 0,
            flags: [0; 4],
            rest: [0; 19],
        }
    }
}

/// `struct pt_event`, and a word after it that no call writes to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PtEvent {
    pub(crate) kind: c_int,
    pub(crate) flags: u32,
    pub(crate) rest: [u64; 7],
    pub(crate) after: u64,
}

impl PtEvent {
    /// The size in the header.
    pub(crate) const SIZE: usize = 64;
    /// A value that no event has.
    pub(crate) const NONE: Self = Self { kind: -1, flags: 0x5555_5555, rest: [0x5555; 7], after: 0x5555 };

    /// Returns true if the event only repeats the state, as those of a PSB+ do: bit 1 of the flags, `status_update`.
    pub(crate) const fn is_status_update(&self) -> bool {
        self.flags & 1 << 1 != 0
    }
}

/// `struct pt_insn` or `struct pt_block`, followed by bytes that no call writes to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item(pub(crate) [u64; 8]);

impl Item {
    /// A value that neither has.
    pub(crate) const NONE: Self = Self([0x5555_5555_5555_5555; 8]);
}

/// `struct pt_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Insn {
    pub(crate) ip: u64,
    /// The section's number; 0 for code from a callback.
    pub(crate) isid: c_int,
    pub(crate) mode: c_int,
    pub(crate) class: c_int,
    pub(crate) raw: [u8; 15],
    pub(crate) size: u8,
    pub(crate) flags: u32,
}

impl Insn {
    /// Returns the instruction's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.raw.get(..self.size.into()).unwrap_or_default()
    }
}

/// `struct pt_block`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    pub(crate) ip: u64,
    pub(crate) end_ip: u64,
    pub(crate) isid: c_int,
    pub(crate) mode: c_int,
    pub(crate) class: c_int,
    pub(crate) insns: u16,
    pub(crate) raw: [u8; 15],
    pub(crate) size: u8,
    pub(crate) flags: u16,
}

// The sizes of the header. A structure that libipt writes to must not be larger: version 2.0.5 clears the rest of a
// larger one, but at a wrong address far after it. A smaller one is filled up to its size.
const _: () = assert!(size_of::<Packet>() == 24 && size_of::<Insn>() == 40 && size_of::<Block>() == 48);

/// A reader of memory.
pub(crate) type ReadMemory = unsafe extern "C" fn(*mut u8, usize, *const [u64; 3], u64, *mut c_void) -> c_int;

macro_rules! functions {
    ($(#[$doc:meta])* $library:ident, $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(#[$doc])*
        pub(crate) struct $library { $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl $library {
            /// Finds the functions; `None` if the library lacks one.
            pub(crate) fn of(library: &'static libloading::Library) -> Option<Self> {
                Some(Self {
                    $(
                        // SAFETY: the header declares the function with these types.
                        $name: *unsafe { library.get(stringify!($name).as_bytes()) }.ok()?,
                    )*
                })
            }
        }
    };
}

functions! {
    /// The functions, by their names in the header of 2.0.5.
    Library,
    pt_library_version: fn() -> Version;
    pt_errstr: fn(c_int) -> *const c_char;
    pt_cpu_errata: fn(*mut [u32; 16], *const u64) -> c_int;
    pt_alloc_encoder: fn(*const Config) -> Handle;
    pt_free_encoder: fn(Handle);
    pt_enc_sync_set: fn(Handle, u64) -> c_int;
    pt_enc_get_offset: fn(Handle, *mut u64) -> c_int;
    pt_enc_get_config: fn(Handle) -> *const Config;
    pt_enc_next: fn(Handle, *const Packet) -> c_int;
    pt_pkt_alloc_decoder: fn(*const Config) -> Handle;
    pt_pkt_free_decoder: fn(Handle);
    pt_pkt_sync_forward: fn(Handle) -> c_int;
    pt_pkt_sync_backward: fn(Handle) -> c_int;
    pt_pkt_sync_set: fn(Handle, u64) -> c_int;
    pt_pkt_get_offset: fn(Handle, *mut u64) -> c_int;
    pt_pkt_get_sync_offset: fn(Handle, *mut u64) -> c_int;
    pt_pkt_get_config: fn(Handle) -> *const Config;
    pt_pkt_next: fn(Handle, *mut Packet, usize) -> c_int;
    pt_qry_alloc_decoder: fn(*const Config) -> Handle;
    pt_qry_free_decoder: fn(Handle);
    pt_qry_sync_forward: fn(Handle, *mut u64) -> c_int;
    pt_qry_sync_backward: fn(Handle, *mut u64) -> c_int;
    pt_qry_sync_set: fn(Handle, *mut u64, u64) -> c_int;
    pt_qry_get_offset: fn(Handle, *mut u64) -> c_int;
    pt_qry_get_sync_offset: fn(Handle, *mut u64) -> c_int;
    pt_qry_get_config: fn(Handle) -> *const Config;
    pt_qry_cond_branch: fn(Handle, *mut c_int) -> c_int;
    pt_qry_indirect_branch: fn(Handle, *mut u64) -> c_int;
    pt_qry_event: fn(Handle, *mut PtEvent, usize) -> c_int;
    pt_qry_time: fn(Handle, *mut u64, *mut u32, *mut u32) -> c_int;
    pt_qry_core_bus_ratio: fn(Handle, *mut u32) -> c_int;
    pt_insn_alloc_decoder: fn(*const Config) -> Handle;
    pt_insn_free_decoder: fn(Handle);
    pt_insn_sync_forward: fn(Handle) -> c_int;
    pt_insn_sync_backward: fn(Handle) -> c_int;
    pt_insn_sync_set: fn(Handle, u64) -> c_int;
    pt_insn_get_offset: fn(Handle, *mut u64) -> c_int;
    pt_insn_get_sync_offset: fn(Handle, *mut u64) -> c_int;
    pt_insn_get_config: fn(Handle) -> *const Config;
    pt_insn_get_image: fn(Handle) -> Handle;
    pt_insn_set_image: fn(Handle, Handle) -> c_int;
    pt_insn_time: fn(Handle, *mut u64, *mut u32, *mut u32) -> c_int;
    pt_insn_core_bus_ratio: fn(Handle, *mut u32) -> c_int;
    pt_insn_asid: fn(Handle, *mut [u64; 3], usize) -> c_int;
    pt_insn_next: fn(Handle, *mut Item, usize) -> c_int;
    pt_insn_event: fn(Handle, *mut PtEvent, usize) -> c_int;
    pt_blk_alloc_decoder: fn(*const Config) -> Handle;
    pt_blk_free_decoder: fn(Handle);
    pt_blk_sync_forward: fn(Handle) -> c_int;
    pt_blk_sync_backward: fn(Handle) -> c_int;
    pt_blk_sync_set: fn(Handle, u64) -> c_int;
    pt_blk_get_offset: fn(Handle, *mut u64) -> c_int;
    pt_blk_get_sync_offset: fn(Handle, *mut u64) -> c_int;
    pt_blk_get_config: fn(Handle) -> *const Config;
    pt_blk_get_image: fn(Handle) -> Handle;
    pt_blk_set_image: fn(Handle, Handle) -> c_int;
    pt_blk_time: fn(Handle, *mut u64, *mut u32, *mut u32) -> c_int;
    pt_blk_core_bus_ratio: fn(Handle, *mut u32) -> c_int;
    pt_blk_asid: fn(Handle, *mut [u64; 3], usize) -> c_int;
    pt_blk_next: fn(Handle, *mut Item, usize) -> c_int;
    pt_blk_event: fn(Handle, *mut PtEvent, usize) -> c_int;
    pt_image_set_callback: fn(Handle, Option<ReadMemory>, *mut c_void) -> c_int;
    pt_iscache_alloc: fn(*const c_char) -> Handle;
    pt_iscache_free: fn(Handle);
    pt_iscache_name: fn(Handle) -> *const c_char;
    pt_iscache_set_limit: fn(Handle, u64) -> c_int;
    pt_iscache_add_file: fn(Handle, *const c_char, u64, u64, u64) -> c_int;
    pt_iscache_read: fn(Handle, *mut u8, u64, c_int, u64) -> c_int;
    pt_image_alloc: fn(*const c_char) -> Handle;
    pt_image_free: fn(Handle);
    pt_image_name: fn(Handle) -> *const c_char;
    pt_image_add_file: fn(Handle, *const c_char, u64, u64, *const [u64; 3], u64) -> c_int;
    pt_image_add_cached: fn(Handle, Handle, c_int, *const [u64; 3]) -> c_int;
    pt_image_copy: fn(Handle, Handle) -> c_int;
    pt_image_remove_by_filename: fn(Handle, *const c_char, *const [u64; 3]) -> c_int;
    pt_image_remove_by_asid: fn(Handle, *const [u64; 3]) -> c_int;
}

functions! {
    /// Functions that libipt has since 2.1, and those that have more answers since then.
    NewerLibrary,
    pt_evt_alloc_decoder: fn(*const Config) -> Handle;
    pt_evt_free_decoder: fn(Handle);
    pt_evt_sync_forward: fn(Handle) -> c_int;
    pt_evt_sync_backward: fn(Handle) -> c_int;
    pt_evt_sync_set: fn(Handle, u64) -> c_int;
    pt_evt_get_offset: fn(Handle, *mut u64) -> c_int;
    pt_evt_get_sync_offset: fn(Handle, *mut u64) -> c_int;
    pt_evt_get_config: fn(Handle) -> *const Config;
    pt_evt_next: fn(Handle, *mut [u64; 9], usize) -> c_int;
    pt_pkt_alloc_decoder: fn(*const Config) -> Handle;
    pt_pkt_free_decoder: fn(Handle);
    pt_pkt_sync_forward: fn(Handle) -> c_int;
    pt_pkt_get_offset: fn(Handle, *mut u64) -> c_int;
    pt_pkt_next: fn(Handle, *mut Packet, usize) -> c_int;
}
