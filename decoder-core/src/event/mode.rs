//! MODE.Exec: the execution mode, and RFLAGS.IF with it.
//!
//! It waits for the TIP, TIP.PGE or FUP that says where the mode changed. A packet that repeats what is known makes
//! no event.

use super::{
    EventDecoder, EventKind,
    fup::{Waiter, Waiting},
};
use crate::{error::ErrorKind, mode::ExecMode, packet::ModeExec};

/// What MODE.Exec packets said last; forgotten at an overflow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mode {
    known: Option<ModeExec>,
}

impl Mode {
    pub(super) const fn new() -> Self {
        Self { known: None }
    }

    pub(super) fn know(&mut self, mode: ModeExec) {
        self.known = Some(mode);
    }
}

/// The mode that CS.L and CS.D make.
pub(super) const fn exec_mode(mode: ModeExec) -> Option<ExecMode> {
    match (mode.cs_l, mode.cs_d) {
        (true, false) => Some(ExecMode::Bits64),
        (false, true) => Some(ExecMode::Bits32),
        (false, false) => Some(ExecMode::Bits16),
        (true, true) => None,
    }
}

impl EventDecoder<'_> {
    pub(super) fn mode_exec(&mut self, mode: ModeExec) -> Result<(), ErrorKind> {
        self.waiting.push(Waiter::Mode(mode), "MODE.Exec")
    }

    /// Publishes the modes that wait, at a TIP, TIP.PGE or TIP.PGD.
    #[inline]
    pub(super) fn publish_modes(&mut self, offset: u64, ip: Option<u64>) -> Result<(), ErrorKind> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let waiting = core::mem::replace(&mut self.waiting, Waiting::new());
        for waiter in waiting.as_slice() {
            if let Waiter::Mode(mode) = waiter {
                self.publish_mode(offset, ip, *mode)?;
            }
        }
        Ok(())
    }

    /// Publishes what `mode` changes.
    pub(super) fn publish_mode(
        &mut self,
        offset: u64,
        ip: Option<u64>,
        mode: ModeExec,
    ) -> Result<(), ErrorKind> {
        let known = self.mode.known.replace(mode);
        if known.map(|known| (known.cs_l, known.cs_d)) != Some((mode.cs_l, mode.cs_d)) {
            self.publish(offset, ip, EventKind::ExecMode(exec_mode(mode)))?;
        }
        if self.config().flags.iflags && known.map(|known| known.iflag) != Some(mode.iflag) {
            self.publish(offset, ip, EventKind::Iflags { enabled: mode.iflag })?;
        }
        Ok(())
    }
}
