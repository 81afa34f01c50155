//! Address spaces.

/// The address spaces that a section is mapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSpace {
    /// All of them.
    Any,
    /// The one with this CR3. Bits 4:0 do not count; PIP packets do not have them.
    Cr3(u64),
    /// Those of the virtual machine of the VMCS at this address. Bits 11:0 do not count; VMCS packets do not have them.
    Vmcs(u64),
    /// The one with this CR3 of the virtual machine of that VMCS.
    Guest {
        /// The VMCS's address.
        vmcs: u64,
        /// CR3.
        cr3: u64,
    },
}

/// The address space that code was executed in, as far as the trace says: the values of the last PIP and VMCS
/// packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asid {
    /// CR3, without bits 4:0.
    pub cr3: Option<u64>,
    /// The address of the VMCS, without bits 11:0.
    pub vmcs: Option<u64>,
}

impl From<Option<u64>> for Asid {
    /// The address space with this CR3 and an unknown VMCS.
    fn from(cr3: Option<u64>) -> Self {
        Self { cr3, vmcs: None }
    }
}

impl AddressSpace {
    /// The CR3, if it is restricted to one.
    #[must_use]
    pub const fn cr3(self) -> Option<u64> {
        match self {
            Self::Any | Self::Vmcs(_) => None,
            Self::Cr3(cr3) | Self::Guest { cr3, .. } => Some(cr3),
        }
    }

    /// The VMCS, if it is restricted to one.
    #[must_use]
    pub const fn vmcs(self) -> Option<u64> {
        match self {
            Self::Any | Self::Cr3(_) => None,
            Self::Vmcs(vmcs) | Self::Guest { vmcs, .. } => Some(vmcs),
        }
    }

    /// Whether `space` is one of these address spaces. An unknown part of `space` matches everything.
    #[must_use]
    pub fn contains(self, space: impl Into<Asid>) -> bool {
        let Asid { cr3, vmcs } = space.into();
        may_be(self.cr3(), cr3, 5) && may_be(self.vmcs(), vmcs, 12)
    }
}

/// Whether `known` equals `wanted` apart from the lowest `bits` bits, or one of them is unknown.
const fn may_be(wanted: Option<u64>, known: Option<u64>, bits: u32) -> bool {
    match (wanted, known) {
        (Some(wanted), Some(known)) => (wanted ^ known) >> bits == 0,
        _ => true,
    }
}
