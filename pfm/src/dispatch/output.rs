//! The result of a dispatch: registers to write (PMCs), and registers to read (PMDs).

use super::ibs_control::{FETCH_MSR, OP_MSR};
use core::fmt;

/// The number of IbsFetchCtl among the PMCs.
pub(super) const IBS_FETCH_PMC: u8 = 6;
/// The number of IbsFetchCtl among the PMDs.
pub(super) const IBS_FETCH_PMD: u8 = 6;
/// The number of IbsOpCtl among the PMCs.
pub(super) const IBS_OP_PMC: u8 = 7;
/// The number of IbsOpCtl among the PMDs.
pub(super) const IBS_OP_PMD: u8 = 9;

/// Maximum number of counters of a processor.
pub const MAX_COUNTERS: usize = 6;

/// Maximum number of registers: the counters and both IBS units.
const MAX_REGISTERS: usize = MAX_COUNTERS + 2;

/// A control register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pmc {
    /// libpfm3's number: that of the counter; 6 for IbsFetchCtl, 7 for IbsOpCtl.
    pub number: u8,
    /// The MSR that libpfm3 returns, or 0 if it returns none. [`msr`](Self::msr) returns the correct one.
    pub address: u32,
    /// The value to write.
    pub value: u64,
}

/// The control registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRegister {
    /// PERFEVTSELn of the counter with this number.
    Counter(u8),
    /// IbsFetchCtl, of the IBS fetch unit.
    IbsFetch,
    /// IbsOpCtl, of the IBS op unit.
    IbsOp,
}

impl Pmc {
    /// Returns the MSR to write.
    #[must_use]
    pub const fn msr(&self) -> u32 {
        match self.number {
            IBS_FETCH_PMC => FETCH_MSR,
            IBS_OP_PMC => OP_MSR,
            _ => self.address,
        }
    }

    /// Returns the register that this is.
    #[must_use]
    pub const fn register(&self) -> ControlRegister {
        match self.number {
            IBS_FETCH_PMC => ControlRegister::IbsFetch,
            IBS_OP_PMC => ControlRegister::IbsOp,
            counter => ControlRegister::Counter(counter),
        }
    }
}

impl fmt::Display for Pmc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pmc{}@{:#x}={:#x}", self.number, self.address, self.value)
    }
}

/// A data register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pmd {
    /// libpfm3's number: that of the counter; 6 for IbsFetchCtl, 9 for IbsOpCtl.
    pub number: u8,
    /// The MSR that libpfm3 returns, or 0 if it returns none.
    pub address: u32,
    /// The RDPMC index of the counter; 0 for an IBS unit.
    pub rdpmc: u32,
}

impl fmt::Display for Pmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pmd{}@{:#x}/rdpmc{}", self.number, self.address, self.rdpmc)
    }
}

/// The data registers of an IBS unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IbsPmds {
    /// The index of the first data register, the unit's control register, in [`Dispatch::pmds`].
    pub base: usize,
    /// The number of the first data register.
    pub number: u8,
    /// The number of data registers. For fetches these are control, linear and physical address; for ops control, rIP,
    /// data 1 to 3, linear and physical address.
    pub count: u8,
}

impl IbsPmds {
    /// Returns a mask in which bit n is set if PMD n belongs to the unit.
    #[must_use]
    pub const fn mask(self) -> u64 {
        ((1 << self.count) - 1) << self.number
    }
}

/// The registers of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatch {
    pmcs: [Pmc; MAX_REGISTERS],
    pmds: [Pmd; MAX_REGISTERS],
    length: usize,
    pub(super) fetch_base: Option<usize>,
    pub(super) op_base: Option<usize>,
}

impl Dispatch {
    /// Returns the control registers: one for each event, in their order, then IBS fetch, then IBS op.
    #[must_use]
    pub fn pmcs(&self) -> &[Pmc] {
        self.pmcs.get(..self.length).unwrap_or_default()
    }

    /// Returns the data registers: one for each control register.
    #[must_use]
    pub fn pmds(&self) -> &[Pmd] {
        self.pmds.get(..self.length).unwrap_or_default()
    }

    /// Returns the data registers of the IBS fetch unit, if the request's features use it.
    #[must_use]
    pub fn ibs_fetch(&self) -> Option<IbsPmds> {
        self.fetch_base.map(|base| IbsPmds { base, number: IBS_FETCH_PMD, count: 3 })
    }

    /// Returns the data registers of the IBS op unit, if the request's features use it.
    #[must_use]
    pub fn ibs_op(&self) -> Option<IbsPmds> {
        self.op_base.map(|base| IbsPmds { base, number: IBS_OP_PMD, count: 7 })
    }

    /// Appends a pair of registers and returns its index.
    pub(super) fn push(&mut self, pmc: Pmc, pmd: Pmd) -> Option<usize> {
        let index = self.length;
        *self.pmcs.get_mut(index)? = pmc;
        *self.pmds.get_mut(index)? = pmd;
        self.length += 1;
        Some(index)
    }
}
