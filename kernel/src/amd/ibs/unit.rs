//! IBS units that are off: detection, interrupt routing and start.

use super::running::IbsRunning;
use super::session::IbsSession;
use super::{IbsConfig, IbsRefusal};
use crate::amd::{AmdCapabilities, EilvtError, ExtendedLvt, Northbridge, eilvt, northbridge};
use crate::cpuid::CpuIdReader;
use crate::lifecycle::{self, Absent, InUse, Missing, NotStarted, StartError};
use crate::msr::amd::{IbsCtl, IbsFetchCtl, IbsOpCtl};
use crate::msr::{GeneralProtection, Msr, Register, TypedMsr};
use core::marker::PhantomData;
use pugmark_decoder_core::ibs::Part;

/// The IBS units of one logical processor, off.
///
/// The value cannot be sent to another thread of execution: it belongs to the processor on which it was found.
#[derive(Debug)]
pub struct IbsUnit<M: Msr> {
    pub(super) msr: M,
    pub(super) part: Part,
    routed: bool,
    of_this_processor: PhantomData<*const ()>,
}

impl<M: Msr> IbsUnit<M> {
    /// Detects the units: first by CPUID, then by checking that their registers work and that no other owner uses them.
    ///
    /// # Errors
    ///
    /// The units are absent, or another owner uses them.
    pub fn detect(cpuid: impl CpuIdReader, mut msr: M) -> Result<Self, Absent> {
        let part = AmdCapabilities::read(cpuid)?.ibs_part().ok_or(Missing::Ibs)?;
        probe(&mut msr)?;
        Ok(Self { msr, part, routed: false, of_this_processor: PhantomData })
    }

    /// Returns the processor, and the capabilities of its units.
    #[must_use]
    pub const fn part(&self) -> &Part {
        &self.part
    }

    /// Makes the units' interrupt an NMI, in the extended entry that IBS_CTL names. Call it on each processor, and
    /// again when a processor returns from a sleep state that resets the entry.
    ///
    /// On family 10h, firmware may not have selected an entry. This function then writes the first free one to all
    /// northbridges: the entry is the same for all processors.
    ///
    /// # Errors
    ///
    /// There is no entry, or another owner uses it.
    pub fn route(
        &mut self,
        apic: &mut impl ExtendedLvt,
        northbridge: Option<&mut dyn Northbridge>,
    ) -> Result<u8, EilvtError> {
        let ctl: IbsCtl = self.msr.read()?;
        let n = match ctl.lvt_offset() {
            Some(n) => n,
            None => self.assign(ctl, apic, northbridge)?,
        };
        eilvt::route(apic, n)?;
        self.routed = true;
        Ok(n)
    }

    /// Starts sampling.
    ///
    /// # Errors
    ///
    /// The processor refuses. The units are returned, and those that can be turned off are off.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn start(self, config: &IbsConfig) -> Result<IbsRunning<M>, NotStarted<IbsSession<M>>> {
        match config.plan(&self.part) {
            Ok(plan) if self.routed => IbsRunning::start(IbsSession::new(self, plan)),
            Ok(_) => Err(NotStarted::Off {
                unit: self,
                memory: (),
                error: StartError::Refused(IbsRefusal::NotRouted),
            }),
            Err(refusal) => {
                Err(NotStarted::Off { unit: self, memory: (), error: StartError::Refused(refusal) })
            }
        }
    }

    /// Checks that no other owner has turned a unit on since the detection.
    pub(super) fn claim(&mut self) -> Result<(), StartError<IbsRefusal>> {
        in_use(&mut self.msr)?.map_or(Ok(()), |in_use| Err(in_use.into()))
    }

    fn assign(
        &mut self,
        ctl: IbsCtl,
        apic: &mut impl ExtendedLvt,
        nodes: Option<&mut dyn Northbridge>,
    ) -> Result<u8, EilvtError> {
        let not_assigned = |ctl: IbsCtl| EilvtError::NotAssigned { ibs_ctl: ctl.0 };
        let nodes = nodes.filter(|_| self.part.family == 0x10).ok_or(not_assigned(ctl))?;
        let n = eilvt::free(apic)?;
        northbridge::assign(nodes, n);
        let ctl: IbsCtl = self.msr.read()?;
        match ctl.lvt_offset() {
            Some(offset) if offset == n => Ok(n),
            _ => Err(not_assigned(ctl)),
        }
    }
}

/// Returns the other owner, if there is one.
fn in_use(msr: &mut impl Msr) -> Result<Option<InUse>, GeneralProtection> {
    let fetch: IbsFetchCtl = msr.read()?;
    let op: IbsOpCtl = msr.read()?;
    let used = fetch.contains(IbsFetchCtl::EN) || op.contains(IbsOpCtl::EN);
    Ok(used.then_some(InUse::Ibs { fetch, op }))
}

/// Checks that the registers work and are unused.
fn probe(msr: &mut impl Msr) -> Result<(), Absent> {
    if let Some(in_use) = in_use(msr)? {
        return Err(in_use.into());
    }
    // SAFETY: this writes a period to a unit that is off.
    unsafe { lifecycle::probe(msr, IbsOpCtl::AT, |_| PATTERN, IbsOpCtl::MAX_CNT.bits()) }
}

/// An arbitrary period.
const PATTERN: IbsOpCtl = IbsOpCtl::from_bits_retain(0x5a5a);
