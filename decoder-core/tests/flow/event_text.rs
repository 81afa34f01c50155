//! Events as text, as the scenarios have them: in the words of libipt's ptxed.

use core::fmt;
use pugmark_decoder_core::event::{Event, EventKind};
use pugmark_decoder_core::{mode::ExecMode, packet::PtwPayload};

/// An [`Event`] as text, made by [`event_text`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventText<'a> {
    event: &'a Event,
    with_ip: bool,
}

/// Returns the event as libipt's ptxed prints it between its brackets; with addresses if `with_ip`.
pub(crate) const fn event_text(event: &Event, with_ip: bool) -> EventText<'_> {
    EventText { event, with_ip }
}

impl fmt::Display for EventText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = self.event.ip.filter(|_| self.with_ip);
        match self.event.kind {
            EventKind::Enabled { resumed } => f.write_str(if resumed { "resumed" } else { "enabled" })?,
            EventKind::Disabled => f.write_str("disabled")?,
            EventKind::AsyncDisabled { at } => {
                f.write_str("disabled")?;
                optional(f, "at", Some(at).filter(|_| self.with_ip))?;
            }
            EventKind::AsyncBranch { from } => {
                f.write_str("interrupt")?;
                optional(f, "from", Some(from).filter(|_| self.with_ip))?;
                return optional(f, "to", ip);
            }
            EventKind::Paging(pip) | EventKind::AsyncPaging(pip) => {
                write!(f, "paging, cr3: {:016x}{}", pip.cr3, if pip.non_root { ", nr" } else { "" })?;
                return self.context_ip(f);
            }
            EventKind::Vmcs(vmcs) | EventKind::AsyncVmcs(vmcs) => {
                write!(f, "vmcs, base: {:016x}", vmcs.base)?;
                return self.context_ip(f);
            }
            EventKind::Overflow => f.write_str("overflow")?,
            EventKind::ExecMode(mode) => f.write_str(match mode {
                Some(ExecMode::Bits16) => "exec mode: 16-bit",
                Some(ExecMode::Bits32) => "exec mode: 32-bit",
                Some(ExecMode::Bits64) => "exec mode: 64-bit",
                None => "exec mode: <unknown>",
            })?,
            EventKind::Tsx { aborted: true, .. } => f.write_str("aborted")?,
            EventKind::Tsx { speculative: true, .. } => f.write_str("begin transaction")?,
            EventKind::Tsx { .. } => f.write_str("committed")?,
            EventKind::Stop => return f.write_str("stopped"),
            EventKind::Exstop => f.write_str("exstop")?,
            EventKind::Mwait(mwait) => write!(f, "mwait {:x} {:x}", mwait.hints, mwait.ext)?,
            EventKind::Pwre(pwre) => {
                let hw = if pwre.hw { " hw" } else { "" };
                return write!(f, "pwre c{}.{}{hw}", c_state(pwre.state), c_state(pwre.sub_state));
            }
            EventKind::Pwrx(pwrx) => {
                f.write_str("pwrx ")?;
                for (set, why) in [(pwrx.interrupt, "int: "), (pwrx.store, "st: "), (pwrx.autonomous, "hw: ")]
                {
                    f.write_str(if set { why } else { "" })?;
                }
                return write!(f, "c{} (c{})", c_state(pwrx.last), c_state(pwrx.deepest));
            }
            EventKind::Ptwrite(PtwPayload::Four(value)) => write!(f, "ptwrite: {value:x}")?,
            EventKind::Ptwrite(PtwPayload::Eight(value)) => write!(f, "ptwrite: {value:x}")?,
            EventKind::Tick => f.write_str("tick")?,
            EventKind::Cbr { ratio } => return write!(f, "cbr: {ratio:x}"),
            EventKind::Mnt { payload } => return write!(f, "mnt: {payload:x}"),
            EventKind::Iflags { enabled } => {
                f.write_str(if enabled { "interrupts enabled" } else { "interrupts disabled" })?;
            }
            EventKind::Interrupt { vector, cr2 } => {
                write!(f, "interrupt {vector}")?;
                optional(f, "cr2", cr2)?;
            }
            EventKind::Iret => f.write_str("iret")?,
            EventKind::Smi => f.write_str("smi")?,
            EventKind::Rsm => f.write_str("rsm")?,
            EventKind::Sipi { vector } => return write!(f, "sipi: {vector:x}"),
            EventKind::Init => f.write_str("init")?,
            EventKind::Vmentry => f.write_str("vmentry")?,
            EventKind::Vmexit { vector, reason, qualification } => {
                f.write_str("vmexit")?;
                if let Some(vector) = vector {
                    write!(f, ", intr: {vector}")?;
                }
                optional(f, "vmxr", reason)?;
                optional(f, "vmxq", qualification)?;
            }
            EventKind::Shutdown => f.write_str("shutdown")?,
            EventKind::Uintr { vector } => write!(f, "uintr {vector}")?,
            EventKind::Uiret => f.write_str("uiret")?,
            EventKind::Swintr { vector } => write!(f, "swintr {vector}")?,
            EventKind::Syscall => f.write_str("syscall")?,
            EventKind::Trigger { trbv, icnt, mult } => {
                write!(f, "trig {trbv:02x}{}", if mult { ", mult" } else { "" })?;
                optional(f, "ip", ip)?;
                return match icnt {
                    None | Some(0) => Ok(()),
                    Some(icnt) => write!(f, ", icnt: {icnt}"),
                };
            }
            // ptxed never prints these.
            EventKind::Tip => f.write_str("tip")?,
            EventKind::Tnt(tnt) => {
                f.write_str("tnt ")?;
                return tnt.outcomes().try_for_each(|taken| f.write_str(if taken { "!" } else { "." }));
            }
            // Kinds that a later version of the decoder has.
            _ => f.write_str("event")?,
        }
        optional(f, "ip", ip)
    }
}

impl EventText<'_> {
    /// Writes the address of a change of context, which ptxed prints as 0 if there is none.
    fn context_ip(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.event.kind {
            EventKind::AsyncPaging(_) | EventKind::AsyncVmcs(_) if self.with_ip => {
                optional(f, "ip", Some(self.event.ip.unwrap_or(0)))
            }
            _ => Ok(()),
        }
    }
}

fn optional(f: &mut fmt::Formatter<'_>, name: &str, value: Option<u64>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, ", {name}: {value:016x}"))
}

/// Returns the number of a C-state, which is one more than the packets' value (modulo 16).
const fn c_state(state: u8) -> u8 {
    state.wrapping_add(1) & 15
}
