//! `struct pt_block`.

use std::ffi::c_int;

/// `struct pt_block`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtBlock {
    pub(crate) ip: u64,
    pub(crate) end_ip: u64,
    pub(crate) isid: c_int,
    pub(crate) mode: c_int,
    pub(crate) class: c_int,
    pub(crate) insns: u16,
    pub(crate) raw: [u8; 15],
    pub(crate) size: u8,
    /// The same flags as those of an instruction.
    pub(crate) flags: u16,
}

impl PtBlock {
    pub(crate) const EMPTY: Self =
        Self { ip: 0, end_ip: 0, isid: 0, mode: 0, class: 0, insns: 0, raw: [0; 15], size: 0, flags: 0 };

    /// Writes a block whose instructions are all whole. It writes field by field: reading a whole structure just after
    /// writing its fields would stall (no store forwarding).
    ///
    /// # Safety
    /// `out` is writable.
    #[inline(always)]
    pub(crate) unsafe fn write_whole(self, out: *mut Self) {
        macro_rules! write {
            ($($field:ident = $value:expr;)*) => {$(
                // SAFETY: it is a part of the structure.
                let place = unsafe { &raw mut (*out).$field };
                // SAFETY: by contract.
                unsafe { place.write_unaligned($value) };
            )*};
        }
        write! {
            ip = self.ip;
            end_ip = self.end_ip;
            isid = self.isid;
            mode = self.mode;
            class = self.class;
            insns = self.insns;
            raw = [0; 15];
            size = 0;
            flags = self.flags;
        }
    }
}
