//! The configuration of decoders and encoders, and the errata of processors.

use crate::error::Code;
use pugmark_decoder_core::{
    config::Clocks,
    errata::{Cpu, Errata},
};
use std::{
    ffi::{c_int, c_void},
    mem::offset_of,
    ptr, slice,
};

/// `struct pt_cpu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PtCpu {
    pub(crate) vendor: c_int,
    pub(crate) family: u16,
    pub(crate) model: u8,
    pub(crate) stepping: u8,
}

/// `pcv_intel`.
const INTEL: c_int = 1;

/// `struct pt_errata`: a bit for each erratum, then reserved words.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PtErrata {
    pub(crate) bits: u32,
    pub(crate) reserved: [u32; 15],
}

impl PtErrata {
    pub(crate) const BDM70: u32 = 1 << 0;
    pub(crate) const BDM64: u32 = 1 << 1;
    pub(crate) const SKD007: u32 = 1 << 2;
    pub(crate) const SKD022: u32 = 1 << 3;
    pub(crate) const SKD010: u32 = 1 << 4;
    pub(crate) const SKL014: u32 = 1 << 5;
    pub(crate) const APL12: u32 = 1 << 6;
    pub(crate) const APL11: u32 = 1 << 7;
    pub(crate) const SKL168: u32 = 1 << 8;
    pub(crate) const SKZ84: u32 = 1 << 9;

    const NONE: Self = Self { bits: 0, reserved: [0; 15] };

    pub(crate) const fn has(&self, erratum: u32) -> bool {
        self.bits & erratum != 0
    }
}

impl From<Errata> for PtErrata {
    fn from(errata: Errata) -> Self {
        let bits = [
            (errata.bdm70, Self::BDM70),
            (errata.bdm64, Self::BDM64),
            (errata.skd007, Self::SKD007),
            (errata.skd022, Self::SKD022),
            (errata.skd010, Self::SKD010),
            (errata.skl014, Self::SKL014),
            (errata.apl12, Self::APL12),
            (errata.apl11, Self::APL11),
            (errata.skl168, Self::SKL168),
            (errata.skz84, Self::SKZ84),
        ];
        let bits = bits.iter().filter(|(set, _)| *set).fold(0, |bits, (_, bit)| bits | bit);
        Self { bits, ..Self::NONE }
    }
}

impl From<PtErrata> for Errata {
    fn from(errata: PtErrata) -> Self {
        let has = |erratum| errata.has(erratum);
        Self {
            bdm70: has(PtErrata::BDM70),
            bdm64: has(PtErrata::BDM64),
            skd007: has(PtErrata::SKD007),
            skd022: has(PtErrata::SKD022),
            skd010: has(PtErrata::SKD010),
            skl014: has(PtErrata::SKL014),
            apl12: has(PtErrata::APL12),
            apl11: has(PtErrata::APL11),
            skl168: has(PtErrata::SKL168),
            skz84: has(PtErrata::SKZ84),
        }
    }
}

/// `struct pt_conf_addr_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PtFilter {
    pub(crate) config: u64,
    pub(crate) ranges: [[u64; 2]; 4],
    pub(crate) reserved: [u64; 8],
}

impl PtFilter {
    /// Returns true if an address is traced: inside a filter range, if there is one, and outside every range that stops
    /// tracing.
    pub(crate) fn traces(&self, address: u64) -> bool {
        const FILTER: u64 = 1;
        const STOP: u64 = 2;
        let kind = |at: usize| self.config >> (4 * at) & 0xf;
        let is_in = |wanted: u64| {
            let ranges = self.ranges.iter().enumerate();
            ranges
                .filter(|(at, _)| kind(*at) == wanted)
                .any(|(_, &[first, last])| (first..=last).contains(&address))
        };
        !is_in(STOP) && (is_in(FILTER) || (0..4).all(|at| kind(at) != FILTER))
    }
}

/// The caller's reader of unknown packets.
pub(crate) type Callback =
    unsafe extern "C" fn(*mut c_void, *const PtConfig, *const u8, *mut c_void) -> c_int;

/// `struct pt_config`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PtConfig {
    pub(crate) size: usize,
    pub(crate) begin: *mut u8,
    pub(crate) end: *mut u8,
    pub(crate) callback: Option<Callback>,
    pub(crate) context: *mut c_void,
    pub(crate) cpu: PtCpu,
    pub(crate) errata: PtErrata,
    pub(crate) cpuid_15h_eax: u32,
    pub(crate) cpuid_15h_ebx: u32,
    pub(crate) mtc_freq: u8,
    pub(crate) nom_freq: u8,
    /// The flags of the kind of decoder that gets the configuration.
    pub(crate) flags: [u32; 4],
    pub(crate) filter: PtFilter,
}

impl PtConfig {
    const EMPTY: Self = Self {
        size: 0,
        begin: ptr::null_mut(),
        end: ptr::null_mut(),
        callback: None,
        context: ptr::null_mut(),
        cpu: PtCpu { vendor: 0, family: 0, model: 0, stepping: 0 },
        errata: PtErrata::NONE,
        cpuid_15h_eax: 0,
        cpuid_15h_ebx: 0,
        mtc_freq: 0,
        nom_freq: 0,
        flags: [0; 4],
        filter: PtFilter { config: 0, ranges: [[0; 2]; 4], reserved: [0; 8] },
    };

    /// Copies the caller's configuration. Fields that an older caller does not know are zero; those that a newer caller
    /// has after the end of our structure are ignored. `None`: the configuration is too short, or has no buffer.
    ///
    /// # Safety
    /// `user` is null or points to as many readable bytes as its field `size` says, at least up to that field.
    pub(crate) unsafe fn from_user(user: *const Self) -> Option<Self> {
        if user.is_null() {
            return None;
        }
        let user = user.cast::<u8>();
        // SAFETY: the size is the first field, and readable by contract.
        let size = unsafe { user.cast::<usize>().read_unaligned() };
        if size < offset_of!(Self, callback) {
            return None;
        }
        let size = size.min(size_of::<Self>());
        let mut config = Self::EMPTY;
        // SAFETY: the caller's structure has that many bytes by contract, ours is not smaller, and every pattern of
        // bytes is a value of its fields.
        unsafe { ptr::copy_nonoverlapping(user, (&raw mut config).cast::<u8>(), size) };
        config.size = size;
        let is_buffer = !config.begin.is_null() && !config.end.is_null() && config.begin <= config.end;
        is_buffer.then_some(config)
    }

    /// Returns the number of bytes in the buffer.
    pub(crate) fn len(&self) -> u64 {
        (self.end.addr() - self.begin.addr()) as u64
    }

    /// Returns the processor's clocks.
    pub(crate) fn clocks(&self) -> Clocks {
        Clocks {
            mtc_freq: self.mtc_freq,
            nom_freq: self.nom_freq,
            cpuid_15h_eax: self.cpuid_15h_eax,
            cpuid_15h_ebx: self.cpuid_15h_ebx,
            ..Clocks::UNKNOWN
        }
    }

    /// Returns `offset` if it is inside the buffer.
    pub(crate) fn checked(&self, offset: u64) -> Option<u64> {
        (offset <= self.len()).then_some(offset)
    }

    /// Returns the buffer.
    ///
    /// # Safety
    /// The buffer is readable as long as the slice is used, and nobody writes to it meanwhile.
    pub(crate) unsafe fn trace<'a>(&self) -> &'a [u8] {
        // SAFETY: by contract; `from_user` checked the order of both ends.
        unsafe { slice::from_raw_parts(self.begin, self.end.addr() - self.begin.addr()) }
    }
}

/// Models that have erratum SKL014 in libipt 2.0.5, but not in later versions. The callers' traces may be that old;
/// handling the erratum does not change traces without it.
const WITH_SKL014: [u8; 4] = [0x8f, 0x97, 0x9a, 0xbf];

/// Writes the errata of a processor.
///
/// # Safety
/// Each pointer is null, or points to its structure; `errata` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_cpu_errata(errata: *mut PtErrata, cpu: *const PtCpu) -> c_int {
    // SAFETY: it is null or points to the structure by contract.
    let Some(cpu) = (unsafe { cpu.as_ref() }) else { return Code::Invalid.status() };
    if errata.is_null() {
        return Code::Invalid.status();
    }
    let known = match cpu.vendor {
        INTEL => Errata::of(Cpu::intel(cpu.family, cpu.model, cpu.stepping)).ok(),
        _ => None,
    };
    let mut bits = known.map_or(PtErrata::NONE, PtErrata::from);
    if cpu.vendor == INTEL && cpu.family == 6 && WITH_SKL014.contains(&cpu.model) {
        bits.bits |= PtErrata::SKL014;
    }
    // SAFETY: it is not null, so it points to a writable structure by contract.
    unsafe { errata.write(bits) };
    if known.is_some() { 0 } else { Code::BadCpu.status() }
}
