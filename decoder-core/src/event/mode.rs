//! MODE.Exec: the execution mode and RFLAGS.IF.
//!
//! A MODE.Exec waits for the TIP, TIP.PGE or FUP that gives the place of the change. One that repeats the known state
//! causes no event.

use super::{EventDecoder, EventKind, waiting::Partner};
use crate::{error::ErrorKind, keeper::Keeper, mode::ExecMode, packet::ModeExec};

/// Returns the mode given by CS.L and CS.D.
pub(super) const fn exec_mode(mode: ModeExec) -> Option<ExecMode> {
    match (mode.cs_l, mode.cs_d) {
        (true, false) => Some(ExecMode::Bits64),
        (false, true) => Some(ExecMode::Bits32),
        (false, false) => Some(ExecMode::Bits16),
        (true, true) => None,
    }
}

impl<K: Keeper> EventDecoder<'_, K> {
    pub(super) fn mode_exec(&mut self, mode: ModeExec) -> Result<(), ErrorKind> {
        let known = self.state.mode.replace(mode);
        let changed = known.map(exec_mode) != Some(exec_mode(mode));
        let iflag = self.config().flags.iflags && known.map(|known| known.iflag) != Some(mode.iflag);
        if changed {
            let kind = EventKind::ExecMode(exec_mode(mode));
            self.state.waiting.push(Partner::FupOrTip, Some(kind), "MODE.Exec")?;
        }
        if iflag {
            let kind = EventKind::Iflags { enabled: mode.iflag };
            self.state.waiting.push(Partner::FupOrTip, Some(kind), "MODE.Exec")?;
        }
        // A MODE.Exec without an event still has a TIP or FUP that belongs to it.
        if !changed && !iflag {
            self.state.waiting.push(Partner::FupOrTip, None, "MODE.Exec")
        } else {
            Ok(())
        }
    }

    /// Compares a MODE.Exec in a PSB+ with the known state. RFLAGS.IF counts only if its changes are reported: without
    /// event trace they are not in the trace.
    pub(super) fn check_mode(&mut self, mode: ModeExec) -> Result<(), ErrorKind> {
        let known = *self.state.mode.get_or_insert(mode);
        let same = (known.cs_l, known.cs_d) == (mode.cs_l, mode.cs_d)
            && (known.iflag == mode.iflag || !self.config().flags.iflags);
        if same { Ok(()) } else { Err(ErrorKind::ModeMismatch { mode: exec_mode(mode) }) }
    }
}
