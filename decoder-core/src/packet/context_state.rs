//! PIP and VMCS: the address space (CR3) and the virtual machine of the traced code.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "Paging Information Packet (PIP)", "VMCS Packet".
//!
//! ```
//! use pugmark_decoder_core::packet::{Packet, Pip};
//!
//! let bytes = [0x02, 0x43, 0x01, 0x10, 0, 0, 0, 0];
//! let (packet, _) = Packet::parse(&bytes).unwrap().unwrap();
//! assert_eq!(packet, Packet::Pip(Pip { cr3: 0x1_0000, non_root: true }));
//! ```

use super::{EmitError, Parsed, emit::put};

const CR3: u64 = (1 << 52) - (1 << 5);
const VMCS_POINTER: u64 = (1 << 52) - (1 << 12);

/// CR3, and the VMX mode in which it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pip {
    /// CR3 with bits 4:0 zero (bits 51:5 are in the packet; other bits are not emitted).
    pub cr3: u64,
    /// True in VMX non-root operation.
    pub non_root: bool,
}

impl Pip {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let &[_, _, a, b, c, d, e, f, ..] = bytes else { return Ok(None) };
        let payload = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        Ok(Some((Self { cr3: payload >> 1 << 5, non_root: payload & 1 != 0 }, 8)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let payload = (self.cr3 & CR3) >> 5 << 1 | u64::from(self.non_root);
        let [a, b, c, d, e, f, ..] = payload.to_le_bytes();
        put(out, &[0x02, 0x43, a, b, c, d, e, f])
    }
}

/// The VMCS pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vmcs {
    /// The physical address, 4 KiB aligned, below 2^52. Other bits are not emitted.
    pub base: u64,
}

impl Vmcs {
    pub(super) fn parse(bytes: &[u8]) -> Parsed<Self> {
        let &[_, _, a, b, c, d, e, ..] = bytes else { return Ok(None) };
        Ok(Some((Self { base: u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]) << 12 }, 7)))
    }

    pub(super) fn emit(self, out: &mut [u8]) -> Result<usize, EmitError> {
        let [a, b, c, d, e, ..] = ((self.base & VMCS_POINTER) >> 12).to_le_bytes();
        put(out, &[0x02, 0xc8, a, b, c, d, e])
    }
}
