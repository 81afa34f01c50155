//! Registers of the local APIC, as far as the monitor looks at them.
//!
//! Source: SDM vol. 3, Advanced Programmable Interrupt Controller (APIC), "Local APIC Register Address Map", "Interrupt
//! Command Register (ICR)".

/// Interrupt command register, bits 31:0: writing it sends.
pub const ICR_LOW: usize = 0x300;
/// LVT performance monitoring counters register.
pub const LVT_PC: usize = 0x340;

/// What a write of the interrupt command register's low half sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Something a running processor takes.
    Interrupt,
    /// INIT.
    Init,
    /// Start-up.
    StartUp,
}

impl Command {
    /// By the delivery mode, bits 10:8.
    #[must_use]
    pub const fn of(value: u32) -> Self {
        match value >> 8 & 7 {
            5 => Self::Init,
            6 => Self::StartUp,
            _ => Self::Interrupt,
        }
    }
}

/// The command that sends a fixed interrupt to the sender.
#[must_use]
pub const fn self_interrupt(vector: u8) -> u32 {
    const ASSERT: u32 = 1 << 14;
    const SELF: u32 = 0b01 << 18;
    SELF | ASSERT | vector as u32
}

/// Flags of the nested entry for the page laid under the registers': present, user, and writable if asked for.
#[must_use]
pub const fn window_flags(write: bool) -> u64 {
    if write { 0b111 } else { 0b101 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_apart_by_delivery_mode() {
        let rows = [
            (0x0004_4030, Command::Interrupt),
            (0x0004_4400, Command::Interrupt),
            (0x000c_4500, Command::Init),
            (0x0000_c500, Command::Init),
            (0x000c_4608, Command::StartUp),
        ];
        for (value, command) in rows {
            assert_eq!(Command::of(value), command, "{value:#x}");
        }
    }

    #[test]
    fn a_self_interrupt_is_fixed_edge_and_to_self() {
        assert_eq!(self_interrupt(0x40), 0x0004_4040);
        assert_eq!(Command::of(self_interrupt(0xff)), Command::Interrupt);
    }

    #[test]
    fn a_read_does_not_make_the_page_writable() {
        assert_eq!((window_flags(false), window_flags(true)), (5, 7));
    }
}
