//! Finds counters that something else has turned off, and reclaims them when they are free.

use super::{CounterSession, CounterSlot, CounterState, MERGE, begin_of};
use crate::msr::amd::{PerfCntrGlobalCtl, PerfCntrGlobalStatusClr, PerfEvtSel};
use crate::msr::{GeneralProtection, Msr, TypedMsr};

impl<M: Msr> CounterSession<M> {
    /// Rewrites the registers of a counter that something else has changed, unless another owner uses it now.
    pub(super) fn reclaim(&mut self, n: usize) -> Result<(), GeneralProtection> {
        let Some(slot) = self.slot(n).filter(|slot| slot.off) else { return Ok(()) };
        if slot.state == CounterState::Lost {
            if self.unit.msr.read_at(self.bank.select(slot.counter))?.contains(PerfEvtSel::EN) {
                return Ok(());
            }
            self.load(slot, begin_of(&slot.event))?;
            if self.version_2() {
                self.write(PerfCntrGlobalStatusClr(1 << slot.counter))?;
            }
        }
        self.program(slot)?;
        if let Some(slot) = self.slot_mut(n) {
            if slot.state == CounterState::Lost {
                (slot.begin, slot.state) = (begin_of(&slot.event), CounterState::Armed);
            }
            slot.off = false;
        }
        Ok(())
    }

    /// Writes the event of a counter, which counts only once the global register enables it.
    pub(super) fn program(&mut self, slot: CounterSlot) -> Result<(), GeneralProtection> {
        if slot.pair {
            self.select(slot.counter + 1, MERGE)?;
        }
        match self.version_2() {
            true => self.select(slot.counter, self.selected(&slot) | PerfEvtSel::EN),
            false => Ok(()),
        }
    }

    /// Notes if a counter that the driver has let count is off, or counts something else, and returns whether that is
    /// so. `global` is PerfCntrGlobalCtl.
    pub(super) fn look_at(&mut self, n: usize, global: u64) -> Result<bool, GeneralProtection> {
        let Some(slot) = self.slot(n) else { return Ok(false) };
        if slot.off || !matches!(slot.state, CounterState::Armed | CounterState::Taken(_)) {
            return Ok(slot.off);
        }
        // The kernel may be about to report a change of SVM.
        let event = |select: PerfEvtSel| select.difference(PerfEvtSel::EN | PerfEvtSel::HOST_ONLY);
        let select = self.unit.msr.read_at(self.bank.select(slot.counter))?;
        let merges = !slot.pair || self.unit.msr.read_at(self.bank.select(slot.counter + 1))? == MERGE;
        let same = event(select) == event(self.selected(&slot));
        let on = select.contains(PerfEvtSel::EN) && merges && global & slot.bits() == slot.bits();
        if same && on {
            return Ok(false);
        }
        self.counts.turned_off += 1;
        if let Some(slot) = self.slot_mut(n) {
            slot.off = true;
            if !same {
                slot.state = CounterState::Lost;
            }
        }
        Ok(true)
    }

    /// Notes the counters that something else has turned off. They must not be halted.
    pub(super) fn look(&mut self) -> Result<(), GeneralProtection> {
        let global = self.global()?;
        for n in 0..self.len() {
            self.look_at(n, global)?;
        }
        Ok(())
    }

    /// Returns PerfCntrGlobalCtl; all ones if it does not exist.
    pub(super) fn global(&mut self) -> Result<u64, GeneralProtection> {
        match self.version_2() {
            true => Ok(self.unit.msr.read::<PerfCntrGlobalCtl>()?.0),
            false => Ok(u64::MAX),
        }
    }
}
