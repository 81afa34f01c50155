//! Events as text, in the words of libipt's ptxed.

use crate::event::{PtEvent, flag, kind};
use core::fmt;

/// A [`PtEvent`] as text, made by [`event_text`].
#[derive(Clone, Copy, Debug)]
pub struct EventText<'a> {
    event: &'a PtEvent,
    with_ip: bool,
}

/// Returns the event as libipt's ptxed prints it between its brackets; with addresses if `with_ip`.
#[must_use]
pub const fn event_text(event: &PtEvent, with_ip: bool) -> EventText<'_> {
    EventText { event, with_ip }
}

impl fmt::Display for EventText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second, third, _] = self.event.variant;
        match self.event.kind {
            kind::ENABLED => f.write_str(if second & flag::RESUMED != 0 { "resumed" } else { "enabled" })?,
            kind::DISABLED => f.write_str("disabled")?,
            kind::ASYNC_DISABLED => {
                f.write_str("disabled")?;
                self.address(f, "at", first)?;
            }
            kind::ASYNC_BRANCH => {
                f.write_str("interrupt")?;
                self.address(f, "from", first)?;
                return self.ip(f, "to");
            }
            kind::PAGING | kind::ASYNC_PAGING => {
                write!(f, "paging, cr3: {first:016x}{}", if second & 1 != 0 { ", nr" } else { "" })?;
                return self.context_ip(f, third);
            }
            kind::VMCS | kind::ASYNC_VMCS => {
                write!(f, "vmcs, base: {first:016x}")?;
                return self.context_ip(f, second);
            }
            kind::OVERFLOW => f.write_str("overflow")?,
            kind::EXEC_MODE => write!(f, "exec mode: {}", mode(first))?,
            kind::TSX if second & flag::ABORTED != 0 => f.write_str("aborted")?,
            kind::TSX if second & flag::SPECULATIVE != 0 => f.write_str("begin transaction")?,
            kind::TSX => f.write_str("committed")?,
            kind::STOP => f.write_str("stopped")?,
            kind::EXSTOP => f.write_str("exstop")?,
            kind::MWAIT => write!(f, "mwait {:x} {:x}", second as u32, second >> 32)?,
            kind::PWRE => {
                let hw = if first & flag::PWRE_HW != 0 { " hw" } else { "" };
                write!(f, "pwre c{}.{}{hw}", c_state(first), c_state(first >> 8))?;
            }
            kind::PWRX => write_wake_up(f, first)?,
            kind::PTWRITE => write!(f, "ptwrite: {third:x}")?,
            kind::TICK => f.write_str("tick")?,
            kind::CBR => write!(f, "cbr: {first:x}")?,
            kind::MNT => write!(f, "mnt: {first:x}")?,
            kind::TRIG => {
                write!(f, "trig {:02x}{}", first & 0xff, if third & 1 != 0 { ", mult" } else { "" })?;
                self.ip(f, "ip")?;
                return match first >> 16 {
                    0 => Ok(()),
                    icnt => write!(f, ", icnt: {icnt}"),
                };
            }
            _ => self.event_trace(f)?,
        }
        self.ip(f, "ip")
    }
}

impl EventText<'_> {
    /// Writes an event of Event Trace, without its address.
    fn event_trace(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second, third, _] = self.event.variant;
        // After the bits that say what there is.
        let vector = first >> 8 & 0xff;
        match self.event.kind {
            kind::IFLAGS if first & 1 != 0 => f.write_str("interrupts enabled"),
            kind::IFLAGS => f.write_str("interrupts disabled"),
            kind::INTERRUPT => {
                write!(f, "interrupt {vector}")?;
                let has_cr2 = first & flag::INTERRUPT_HAS_CR2 != 0;
                optional(f, "cr2", Some(second).filter(|_| has_cr2))
            }
            kind::IRET => f.write_str("iret"),
            kind::SMI => f.write_str("smi"),
            kind::RSM => f.write_str("rsm"),
            kind::SIPI => write!(f, "sipi: {first:x}"),
            kind::INIT => f.write_str("init"),
            kind::VMENTRY => f.write_str("vmentry"),
            kind::VMEXIT => {
                f.write_str("vmexit")?;
                if first & flag::VMEXIT_HAS_VECTOR != 0 {
                    write!(f, ", intr: {vector}")?;
                }
                let (has_reason, has_qualification) =
                    (first & flag::VMEXIT_HAS_REASON != 0, first & flag::VMEXIT_HAS_QUALIFICATION != 0);
                optional(f, "vmxr", Some(second).filter(|_| has_reason))?;
                optional(f, "vmxq", Some(third).filter(|_| has_qualification))
            }
            kind::SHUTDOWN => f.write_str("shutdown"),
            kind::UINTR => write!(f, "uintr {first}"),
            kind::UIRET => f.write_str("uiret"),
            kind::SWINTR => write!(f, "swintr {first}"),
            kind::SYSCALL => f.write_str("syscall"),
            // ptxed is never given a TIP or TNT.
            _ => f.write_str("event"),
        }
    }

    fn address(&self, f: &mut fmt::Formatter<'_>, name: &str, address: u64) -> fmt::Result {
        optional(f, name, Some(address).filter(|_| self.with_ip))
    }

    fn ip(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        optional(f, name, self.event.ip().filter(|_| self.with_ip))
    }

    /// Writes the address of a change of context, which ptxed prints as 0 if there is none.
    fn context_ip(&self, f: &mut fmt::Formatter<'_>, ip: u64) -> fmt::Result {
        match self.event.kind {
            kind::ASYNC_PAGING | kind::ASYNC_VMCS => self.address(f, "ip", ip),
            _ => Ok(()),
        }
    }
}

fn optional(f: &mut fmt::Formatter<'_>, name: &str, value: Option<u64>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, ", {name}: {value:016x}"))
}

const fn mode(mode: u64) -> &'static str {
    match mode {
        1 => "16-bit",
        2 => "32-bit",
        3 => "64-bit",
        _ => "<unknown>",
    }
}

/// Returns the number of a C-state, which is one more than the packets' value (modulo 16).
const fn c_state(state: u64) -> u64 {
    (state + 1) & 15
}

/// Writes the end of a sleep: the reasons, the last state and the deepest one.
fn write_wake_up(f: &mut fmt::Formatter<'_>, word: u64) -> fmt::Result {
    f.write_str("pwrx ")?;
    for (bit, why) in
        [(flag::PWRX_INTERRUPT, "int: "), (flag::PWRX_STORE, "st: "), (flag::PWRX_AUTONOMOUS, "hw: ")]
    {
        f.write_str(if word & bit != 0 { why } else { "" })?;
    }
    write!(f, "c{} (c{})", c_state(word & 0xff), c_state(word >> 8 & 0xff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_where_they_are_asked_for() {
        let event = PtEvent::new(kind::ASYNC_BRANCH, [0x1002, 0x2000, 0]);
        assert_eq!(event_text(&event, false).to_string(), "interrupt");
        let shown = event_text(&event, true).to_string();
        assert_eq!(shown, "interrupt, from: 0000000000001002, to: 0000000000002000");
    }

    #[test]
    fn an_address_that_there_is_not_is_shown_only_of_a_change_of_context() {
        let suppressed = |kind| PtEvent { flags: flag::IP_SUPPRESSED, ..PtEvent::new(kind, [0x12, 0, 0]) };
        for (kind, text) in [
            (kind::ASYNC_PAGING, "paging, cr3: 0000000000000012, ip: 0000000000000000"),
            (kind::PAGING, "paging, cr3: 0000000000000012"),
            (kind::TRIG, "trig 12"),
            (kind::EXSTOP, "exstop"),
            (kind::SWINTR, "swintr 18"),
        ] {
            assert_eq!(event_text(&suppressed(kind), true).to_string(), text);
        }
    }
}
