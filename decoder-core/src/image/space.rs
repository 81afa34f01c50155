//! Address spaces.

/// The address spaces that a section is mapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSpace {
    /// All address spaces.
    Any,
    /// The address space with this CR3. Bits 4:0 are ignored; PIP packets do not have them.
    Cr3(u64),
    /// The spaces of the virtual machine with the VMCS at this address. Bits 11:0 are ignored: VMCS packets lack them.
    Vmcs(u64),
    /// The address space with this CR3 of the virtual machine with that VMCS.
    Guest {
        /// The VMCS's address.
        vmcs: u64,
        /// CR3.
        cr3: u64,
    },
}

/// The address space that code was executed in, as far as the trace gives it: the values of the last PIP and VMCS
/// packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asid {
    /// CR3, without bits 4:0.
    pub cr3: Option<u64>,
    /// The address of the VMCS, without bits 11:0.
    pub vmcs: Option<u64>,
}

impl From<Option<u64>> for Asid {
    /// Returns the address space with this CR3 and an unknown VMCS.
    fn from(cr3: Option<u64>) -> Self {
        Self { cr3, vmcs: None }
    }
}

impl AddressSpace {
    /// Returns the CR3, if restricted to one.
    #[must_use]
    pub const fn cr3(self) -> Option<u64> {
        match self {
            Self::Any | Self::Vmcs(_) => None,
            Self::Cr3(cr3) | Self::Guest { cr3, .. } => Some(cr3),
        }
    }

    /// Returns the VMCS, if restricted to one.
    #[must_use]
    pub const fn vmcs(self) -> Option<u64> {
        match self {
            Self::Any | Self::Cr3(_) => None,
            Self::Vmcs(vmcs) | Self::Guest { vmcs, .. } => Some(vmcs),
        }
    }

    /// Returns true if `space` is one of these address spaces. An unknown part of `space` matches everything.
    #[must_use]
    pub fn contains(self, space: impl Into<Asid>) -> bool {
        let Asid { cr3, vmcs } = space.into();
        may_be(self.cr3(), cr3, 5) && may_be(self.vmcs(), vmcs, 12)
    }
}

/// Returns true if `known` equals `wanted` except in the lowest `bits` bits, or one of them is unknown.
const fn may_be(wanted: Option<u64>, known: Option<u64>, bits: u32) -> bool {
    match (wanted, known) {
        (Some(wanted), Some(known)) => (wanted ^ known) >> bits == 0,
        _ => true,
    }
}
