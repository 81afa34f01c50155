//! libipt's functions, types and constants, as version 2 of intel-pt.h declares them.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr::{self, NonNull},
    sync::{Mutex, PoisonError},
};

use super::release::Release;

pub(super) type Handle = NonNull<c_void>;
pub(super) type ReadMemory =
    unsafe extern "C" fn(*mut u8, usize, *const AddressSpace, u64, *mut c_void) -> c_int;

/// libipt's functions; the signatures are those of intel-pt.h, version 2.
pub(super) struct Library {
    pub(super) alloc_decoder: unsafe extern "C" fn(*const Config) -> Option<Handle>,
    pub(super) free_decoder: unsafe extern "C" fn(Handle),
    pub(super) sync_forward: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) get_offset: unsafe extern "C" fn(Handle, *mut u64) -> c_int,
    pub(super) get_image: unsafe extern "C" fn(Handle) -> Option<NonNull<c_void>>,
    pub(super) set_callback:
        unsafe extern "C" fn(NonNull<c_void>, Option<ReadMemory>, *const c_void) -> c_int,
    pub(super) next: unsafe extern "C" fn(Handle, *mut Insn, usize) -> c_int,
    pub(super) event: unsafe extern "C" fn(Handle, *mut InsnEvent, usize) -> c_int,
    pub(super) packets_alloc: unsafe extern "C" fn(*const Config) -> Option<Handle>,
    pub(super) packets_free: unsafe extern "C" fn(Handle),
    pub(super) packets_sync_forward: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) packets_get_offset: unsafe extern "C" fn(Handle, *mut u64) -> c_int,
    pub(super) packets_next: unsafe extern "C" fn(Handle, *mut Packet, usize) -> c_int,
    errstr: unsafe extern "C" fn(c_int) -> *const c_char,
    cpu_errata: unsafe extern "C" fn(*mut [u32; 16], *const VendorCpu) -> c_int,
}

pub(super) const EVENT_OVERFLOW: c_int = 6;
pub(super) const STATUS_EVENT_PENDING: c_int = 1 << 0;
pub(super) const STATUS_END_OF_STREAM: c_int = 1 << 2;
pub(super) const ERROR_END_OF_STREAM: c_int = 7;
pub(super) const ERROR_NO_MEMORY_MAPPED: c_int = 13;

const VENDOR_INTEL: c_int = 1;

/// One of Intel's processors: family, model and stepping.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The display family.
    pub family: u16,
    /// The display model.
    pub model: u8,
    /// The stepping.
    pub stepping: u8,
}

/// `struct pt_config`, which begins with its size; libipt treats the fields after that size as zero.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    begin: *const u8,
    end: *const u8,
    callback: usize,
    context: usize,
    cpu: VendorCpu,
    errata: [u32; 16],
}

/// `struct pt_cpu`.
#[repr(C)]
struct VendorCpu {
    vendor: c_int,
    cpu: Cpu,
}

/// `struct pt_insn`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Insn {
    pub(super) ip: u64,
    /// The section's number; 0 for code from a callback.
    pub(super) section: c_int,
    mode: c_int,
    pub(super) class: c_int,
    raw: [u8; 15],
    size: u8,
    flags: u32,
}

/// `struct pt_event`. It must not be larger: libipt 2.0.5 clears the rest of a larger one, but at a wrong address.
#[repr(C)]
#[derive(Default)]
pub(super) struct InsnEvent {
    pub(super) kind: c_int,
    flags: u32,
    rest: [u64; 7],
}

/// `struct pt_packet`. It must not be larger, for the same reason.
#[repr(C)]
#[derive(Default)]
pub(super) struct Packet {
    kind: c_int,
    size: u8,
    payload: [u64; 2],
}

impl Insn {
    /// Returns the instruction's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        self.raw.get(..self.size.into()).unwrap_or_default()
    }
}

impl InsnEvent {
    /// Returns true if the event only reports state, as those of a PSB+ do: bit 1 of the flags, `status_update`.
    pub(super) const fn is_status_update(&self) -> bool {
        self.flags & 1 << 1 != 0
    }
}

// The sizes of intel-pt.h. The memory that libipt clears at a wrong address is far after the structure, on the stack.
const _: () = assert!(size_of::<InsnEvent>() == 64 && size_of::<Packet>() == 24 && size_of::<Insn>() == 40);

/// `struct pt_asid`.
#[repr(C)]
pub(super) struct AddressSpace {
    _size: usize,
    pub(super) cr3: u64,
    _vmcs: u64,
}

impl Library {
    /// Loads the release at its first use; `None` if it is not found.
    pub(super) fn get(release: &'static Release) -> Option<&'static Self> {
        static LOADED: Mutex<Vec<(&Release, Option<&Library>)>> = Mutex::new(vec![]);
        // A thread that panics with the lock held leaves the list intact.
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = loaded.iter().find(|(known, _)| ptr::eq(*known, release));
        known.map(|(_, library)| *library).unwrap_or_else(|| {
            // Its functions are used until the program ends, so it is never unloaded.
            let library = Self::load(release).map(|library| &*Box::leak(Box::new(library)));
            loaded.push((release, library));
            library
        })
    }

    fn load(release: &Release) -> Option<Self> {
        let library = release.open()?;
        // Its functions are used until the program ends, so it is never unloaded.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        /// The function of this name, with the type of the field to which it is assigned.
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: intel-pt.h declares the function of this name with this type.
                *unsafe { library.get($name) }.ok()?
            };
        }
        Some(Self {
            alloc_decoder: function!(b"pt_insn_alloc_decoder"),
            free_decoder: function!(b"pt_insn_free_decoder"),
            sync_forward: function!(b"pt_insn_sync_forward"),
            get_offset: function!(b"pt_insn_get_offset"),
            get_image: function!(b"pt_insn_get_image"),
            set_callback: function!(b"pt_image_set_callback"),
            next: function!(b"pt_insn_next"),
            event: function!(b"pt_insn_event"),
            packets_alloc: function!(b"pt_pkt_alloc_decoder"),
            packets_free: function!(b"pt_pkt_free_decoder"),
            packets_sync_forward: function!(b"pt_pkt_sync_forward"),
            packets_get_offset: function!(b"pt_pkt_get_offset"),
            packets_next: function!(b"pt_pkt_next"),
            errstr: function!(b"pt_errstr"),
            cpu_errata: function!(b"pt_cpu_errata"),
        })
    }

    /// Returns the configuration for a trace of this processor; a processor unknown to libipt has no errata.
    pub(super) fn config(&self, cpu: Option<Cpu>, trace: &[u8]) -> Config {
        let mut errata = [0; 16];
        let (vendor, cpu) =
            cpu.map_or((0, Cpu { family: 0, model: 0, stepping: 0 }), |cpu| (VENDOR_INTEL, cpu));
        let cpu = VendorCpu { vendor, cpu };
        // SAFETY: both have the sizes of intel-pt.h; for an unknown processor the errata stay unchanged.
        unsafe { (self.cpu_errata)(&raw mut errata, &raw const cpu) };
        let range = trace.as_ptr_range();
        let size = size_of::<Config>();
        Config { size, begin: range.start, end: range.end, callback: 0, context: 0, cpu, errata }
    }

    /// Returns libipt's text for an error that one of its functions returned.
    pub(super) fn error_text(&self, status: c_int) -> &'static str {
        // SAFETY: it accepts every number.
        let text = unsafe { (self.errstr)(-status) };
        // SAFETY: it returns a string constant of the library, which stays loaded.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("unreadable")
    }
}
