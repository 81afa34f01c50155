//! A session in a PMI handler.

use super::PtSession;
use crate::drain::Sink;
use crate::lifecycle::{Halted, Serve};
use crate::memory::Frames;
use crate::msr::{GeneralProtection, GlobalStatus, Msr};
use crate::pmi::Requests;

impl<M: Msr, F: Frames, K: Sink + ?Sized> Serve<&mut K> for PtSession<M, F> {
    fn status(&self) -> Requests {
        GlobalStatus::TRACE_TOPA_PMI.into()
    }

    fn serve(
        &mut self,
        seen: Requests,
        sink: &mut &mut K,
        halted: &Halted,
    ) -> Result<bool, GeneralProtection> {
        self.asked |= !seen.is_empty();
        if !self.asked {
            return Ok(false);
        }
        self.collect(true, halted)?;
        self.deliver(*sink, halted);
        self.asked = false;
        Ok(true)
    }

    fn resume(&mut self, halted: Halted) -> Result<(), GeneralProtection> {
        self.collect(false, &halted)?;
        self.go_on(halted)
    }
}
