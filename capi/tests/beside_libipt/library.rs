//! Both libraries, loaded side by side.

use crate::release::{V2_0_5, V2_1_2};
use std::{
    ffi::{c_char, c_int, c_void},
    path::PathBuf,
    sync::OnceLock,
};

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

/// `struct pt_version`.
#[repr(C)]
pub(crate) struct Version {
    pub(crate) major: u8,
    pub(crate) minor: u8,
    pub(crate) patch: u16,
    pub(crate) build: u32,
    pub(crate) ext: *const c_char,
}

/// `struct pt_event`, and a word after it that no call writes to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: c_int,
    pub(crate) flags: u32,
    pub(crate) rest: [u64; 7],
    pub(crate) after: u64,
}

impl Event {
    /// The size in the header.
    pub(crate) const SIZE: usize = 64;
    /// A value that no event has.
    pub(crate) const NONE: Self = Self { kind: -1, flags: 0x5555_5555, rest: [0x5555; 7], after: 0x5555 };
}

/// `struct pt_insn` or `struct pt_block`, followed by bytes that no call writes to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item(pub(crate) [u64; 8]);

impl Item {
    /// A value that neither has.
    pub(crate) const NONE: Self = Self([0x5555_5555_5555_5555; 8]);
}

/// A reader of memory.
pub(crate) type ReadMemory = unsafe extern "C" fn(*mut u8, usize, *const [u64; 3], u64, *mut c_void) -> c_int;

macro_rules! functions {
    ($(#[$doc:meta])* $library:ident, $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(#[$doc])*
        pub(crate) struct $library { $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl $library {
            fn of(library: &'static libloading::Library) -> Self {
                Self {
                    $(
                        // SAFETY: the header declares the function with these types.
                        $name: *unsafe { library.get(stringify!($name).as_bytes()) }.unwrap(),
                    )*
                }
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
    pt_qry_event: fn(Handle, *mut Event, usize) -> c_int;
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
    pt_insn_event: fn(Handle, *mut Event, usize) -> c_int;
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
    pt_blk_event: fn(Handle, *mut Event, usize) -> c_int;
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

/// Returns the file of the library that cargo builds for this test.
pub(crate) fn our_file() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libipt.so")
}

/// The releases with which ours is compared, if they are installed, and ours.
struct Loaded {
    v2_0_5: Option<Library>,
    v2_1_2: Option<(Library, NewerLibrary)>,
    ours: Library,
    ours_newer: NewerLibrary,
}

/// Loads all libraries. Ours comes last: the loader would take it for the others, which have the same soname.
fn loaded() -> &'static Loaded {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    LOADED.get_or_init(|| {
        // The functions are used until the program ends, so the libraries are never unloaded.
        let keep = |library| -> &'static libloading::Library { Box::leak(Box::new(library)) };
        let v2_0_5 = V2_0_5.open().map(|library| Library::of(keep(library)));
        let v2_1_2 = V2_1_2.open().map(keep).map(|library| (Library::of(library), NewerLibrary::of(library)));
        // SAFETY: the library has no constructors and no destructors.
        let ours = keep(unsafe { libloading::Library::new(our_file()) }.unwrap());
        Loaded { v2_0_5, v2_1_2, ours: Library::of(ours), ours_newer: NewerLibrary::of(ours) }
    })
}

/// Returns 2.0.5, whose answers ours gives, and ours; prints a line and returns `None` if that release is not there.
pub(crate) fn both() -> Option<[&'static Library; 2]> {
    let Loaded { v2_0_5, ours, .. } = loaded();
    let Some(theirs) = v2_0_5 else {
        println!("{}", V2_0_5.skipped());
        return None;
    };
    assert_ne!(theirs.pt_errstr as usize, ours.pt_errstr as usize);
    Some([theirs, ours])
}

/// Returns 2.1.2 and ours; prints a line and returns `None` if that release is not there.
pub(crate) fn both_newer() -> Option<[&'static NewerLibrary; 2]> {
    let Loaded { v2_1_2, ours_newer, .. } = loaded();
    let Some((_, theirs)) = v2_1_2 else {
        println!("{}", V2_1_2.skipped());
        return None;
    };
    assert_ne!(theirs.pt_evt_next as usize, ours_newer.pt_evt_next as usize);
    Some([theirs, ours_newer])
}

/// Returns 2.1.2 and ours, with the functions that 2.0.5 has, too.
pub(crate) fn both_with_2_1_2() -> Option<[&'static Library; 2]> {
    let Loaded { v2_1_2, ours, .. } = loaded();
    let Some((theirs, _)) = v2_1_2 else {
        println!("{}", V2_1_2.skipped());
        return None;
    };
    Some([theirs, ours])
}
