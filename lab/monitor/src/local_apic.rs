//! The registers and commands of the local APIC that the monitor uses.
//!
//! Source: SDM vol. 3, Advanced Programmable Interrupt Controller (APIC), "Local APIC Register Address Map", "Interrupt
//! Command Register (ICR)", "Determining IPI Destination", "Local APIC State After It Receives an INIT Reset
//! ("Wait-for-SIPI" State)".

/// Local APIC ID register.
pub const ID: usize = 0x20;
/// Task-priority register.
pub const TPR: usize = 0x80;
/// End-of-interrupt register.
pub const EOI: usize = 0xb0;
/// Logical destination register.
pub const LDR: usize = 0xd0;
/// Destination format register.
pub const DFR: usize = 0xe0;
/// Spurious-interrupt vector register.
pub const SVR: usize = 0xf0;
/// In-service register: the first of eight.
pub const ISR: usize = 0x100;
/// Error status register.
pub const ESR: usize = 0x280;
/// Interrupt command register, bits 31:0. A write sends the command.
pub const ICR_LOW: usize = 0x300;
/// Interrupt command register, bits 63:32: the destination.
pub const ICR_HIGH: usize = 0x310;
/// LVT timer register.
pub const LVT_TIMER: usize = 0x320;
/// LVT thermal sensor register.
pub const LVT_THERMAL: usize = 0x330;
/// LVT performance monitoring counters register.
pub const LVT_PC: usize = 0x340;
/// LVT LINT0 register.
pub const LVT_LINT0: usize = 0x350;
/// LVT LINT1 register.
pub const LVT_LINT1: usize = 0x360;
/// LVT error register.
pub const LVT_ERROR: usize = 0x370;
/// Initial count register of the timer.
pub const INITIAL_COUNT: usize = 0x380;
/// Current count register of the timer.
pub const CURRENT_COUNT: usize = 0x390;
/// Divide configuration register of the timer.
pub const DIVIDE: usize = 0x3e0;

/// [`SVR`]: the local APIC is on.
pub const SVR_ENABLE: u32 = 1 << 8;
/// [`ICR_LOW`]: the last command has not been sent yet.
pub const ICR_PENDING: u32 = 1 << 12;
/// An LVT entry after INIT: masked.
pub const LVT_RESET: u32 = 1 << 16;
/// [`DFR`] after INIT: the flat model.
pub const DFR_RESET: u32 = u32::MAX;

/// The register writes, in this order, that leave the local APIC as INIT does. They do not clear interrupts that are
/// pending or in service. The performance-monitoring LVT entry is not listed, because it belongs to the model.
pub const VALUES_AFTER_INIT: [(usize, u32); 14] = [
    (LVT_TIMER, LVT_RESET),
    (LVT_THERMAL, LVT_RESET),
    (LVT_LINT0, LVT_RESET),
    (LVT_LINT1, LVT_RESET),
    (LVT_ERROR, LVT_RESET),
    (INITIAL_COUNT, 0),
    (DIVIDE, 0),
    (TPR, 0),
    (LDR, 0),
    (DFR, DFR_RESET),
    (ICR_HIGH, 0),
    // Off.
    (SVR, 0xff),
    // The written value is irrelevant: the first write latches the errors that have occurred, the second latches none.
    (ESR, 0),
    (ESR, 0),
];

/// The command that a write of the interrupt command register's low half sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcrCommand {
    /// An interrupt that a running processor takes.
    Interrupt,
    /// INIT.
    Init,
    /// INIT level de-assert, which processors since the Pentium 4 ignore.
    Deassert,
    /// Start-up interrupt with its vector.
    StartUp(u8),
}

impl IcrCommand {
    /// Decodes the delivery mode, bits 10:8. For INIT also the level, bit 14, and the trigger mode, bit 15.
    #[must_use]
    pub const fn from_icr(low: u32) -> Self {
        const LEVEL: u32 = 1 << 14;
        const TRIGGERED_BY_LEVEL: u32 = 1 << 15;
        match low >> 8 & 7 {
            5 if low & (LEVEL | TRIGGERED_BY_LEVEL) == TRIGGERED_BY_LEVEL => Self::Deassert,
            5 => Self::Init,
            6 => Self::StartUp(low as u8),
            _ => Self::Interrupt,
        }
    }
}

/// The processors that receive a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The processor with this local APIC ID; all ones: every processor.
    Physical(u8),
    /// The processors whose logical destination register matches.
    Logical(u8),
    /// Every processor except the sender.
    Others,
    /// The sender, or every processor including the sender. INIT and start-up cannot be sent in this way.
    Sender,
}

/// The registers by which a processor is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApicIdentity {
    /// Local APIC ID.
    pub id: u8,
    /// Content of [`LDR`].
    pub ldr: u32,
    /// Content of [`DFR`].
    pub dfr: u32,
}

impl Destination {
    /// Decodes the shorthand, bits 19:18, the destination mode, bit 11, and the destination, bits 63:56 of the whole
    /// register.
    #[must_use]
    pub const fn from_icr(high: u32, low: u32) -> Self {
        const LOGICAL: u32 = 1 << 11;
        let destination = (high >> 24) as u8;
        match low >> 18 & 3 {
            0 if low & LOGICAL != 0 => Self::Logical(destination),
            0 => Self::Physical(destination),
            3 => Self::Others,
            _ => Self::Sender,
        }
    }

    /// Returns whether `processor` is addressed; `sender`: it sends the command.
    #[must_use]
    pub const fn includes(self, processor: &ApicIdentity, sender: bool) -> bool {
        const ALL: u8 = u8::MAX;
        let own = (processor.ldr >> 24) as u8;
        match self {
            Self::Physical(id) => id == ALL || id == processor.id,
            Self::Logical(ALL) => true,
            Self::Logical(mask) if processor.dfr >> 28 == 0xf => own & mask != 0,
            // The cluster model: bits 7:4 are the cluster, bits 3:0 its members.
            Self::Logical(mask) => own >> 4 == mask >> 4 && own & mask & 0xf != 0,
            Self::Others => !sender,
            Self::Sender => sender,
        }
    }
}

/// Returns the command that sends a fixed interrupt to the sender.
#[must_use]
pub const fn self_interrupt_command(vector: u8) -> u32 {
    const ASSERT: u32 = 1 << 14;
    const SELF: u32 = 0b01 << 18;
    SELF | ASSERT | vector as u32
}

/// The command that sends an NMI to the destination in [`ICR_HIGH`].
pub const NMI_COMMAND: u32 = 0x4400;
/// The command that sends INIT to the destination in [`ICR_HIGH`].
pub const INIT_COMMAND: u32 = 0x4500;

/// Returns the command that sends a start-up interrupt to the destination in [`ICR_HIGH`].
#[must_use]
pub const fn start_up_command(vector: u8) -> u32 {
    0x4600 | vector as u32
}

/// Access to the registers of a local APIC.
pub trait ApicRegisters {
    /// Reads the register at this offset.
    fn read(&mut self, register: usize) -> u32;
    /// Writes the register at this offset.
    fn write(&mut self, register: usize, value: u32);
}

/// Sends a command to the processor with local APIC ID `id`, and waits until the local APIC has sent it. Restores the
/// destination afterwards, because it belongs to the guest.
pub fn send_command(registers: &mut impl ApicRegisters, id: u8, command: u32) {
    let guests = registers.read(ICR_HIGH);
    registers.write(ICR_HIGH, u32::from(id) << 24);
    registers.write(ICR_LOW, command);
    while registers.read(ICR_LOW) & ICR_PENDING != 0 {
        core::hint::spin_loop();
    }
    registers.write(ICR_HIGH, guests);
}

/// Returns the flags of the nested page-table entry that temporarily maps a page in the registers' place: present,
/// user, and writable if `write` is set.
#[must_use]
pub const fn window_entry_flags(write: bool) -> u64 {
    if write { 0b111 } else { 0b101 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_apart_by_delivery_mode() {
        let rows = [
            (0x0004_4030, IcrCommand::Interrupt),
            (0x0004_4400, IcrCommand::Interrupt),
            (0x000c_4500, IcrCommand::Init),
            (0x0000_c500, IcrCommand::Init),
            (0x0000_0500, IcrCommand::Init),
            (0x0000_8500, IcrCommand::Deassert),
            (0x000c_8500, IcrCommand::Deassert),
            (0x000c_4608, IcrCommand::StartUp(8)),
            (0x0000_06ff, IcrCommand::StartUp(0xff)),
            (NMI_COMMAND, IcrCommand::Interrupt),
            (INIT_COMMAND, IcrCommand::Init),
            (start_up_command(0x12), IcrCommand::StartUp(0x12)),
        ];
        for (value, command) in rows {
            assert_eq!(IcrCommand::from_icr(value), command, "{value:#x}");
        }
    }

    #[test]
    fn a_command_reaches_whom_it_names() {
        const FLAT: u32 = u32::MAX;
        const CLUSTER: u32 = 0x0fff_ffff;
        let rows = [
            // Physical: one processor, all, another one.
            ((0x0300_0000, 0x4500), (3, 0, FLAT), false, true),
            ((0xff00_0000, 0x4500), (3, 0, FLAT), false, true),
            ((0xff00_0000, 0x4500), (3, 0, FLAT), true, true),
            ((0x0200_0000, 0x4500), (3, 0, FLAT), false, false),
            // Only the destination byte is compared.
            ((0x03ff_ffff, 0x4500), (3, 0, FLAT), false, true),
            // Logical, flat model: bits in common.
            ((0x0600_0000, 0x4d00), (3, 0x0400_0000, FLAT), false, true),
            ((0x0300_0000, 0x4d00), (3, 0x0400_0000, FLAT), false, false),
            ((0xff00_0000, 0x4d00), (3, 0, FLAT), false, true),
            ((0x3000_0000, 0x4d00), (3, 0x2000_0000, FLAT), false, true),
            // Logical, cluster model: the same cluster and members in common.
            ((0x2300_0000, 0x4d00), (3, 0x2200_0000, CLUSTER), false, true),
            ((0x2100_0000, 0x4d00), (3, 0x2200_0000, CLUSTER), false, false),
            ((0x3200_0000, 0x4d00), (3, 0x2200_0000, CLUSTER), false, false),
            // Shorthands ignore the destination.
            ((0x0300_0000, 0xc_4500), (3, 0, FLAT), true, false),
            ((0x0200_0000, 0xc_4500), (3, 0, FLAT), false, true),
            ((0x0200_0000, 0x4_4500), (3, 0, FLAT), true, true),
            ((0x0300_0000, 0x4_4500), (3, 0, FLAT), false, false),
            ((0x0300_0000, 0x8_4500), (3, 0, FLAT), false, false),
        ];
        for ((high, low), (id, ldr, dfr), sender, expected) in rows {
            let processor = ApicIdentity { id, ldr, dfr };
            let reached = Destination::from_icr(high, low).includes(&processor, sender);
            assert_eq!(reached, expected, "{high:#x} {low:#x} to {processor:x?}, sender: {sender}");
        }
    }

    #[test]
    fn init_masks_all_entries_and_switches_off() {
        let value =
            |register| VALUES_AFTER_INIT.iter().find(|(at, _)| *at == register).map(|(_, value)| *value);
        let rows = [
            (0x320, 0x1_0000),
            (0x330, 0x1_0000),
            (0x350, 0x1_0000),
            (0x360, 0x1_0000),
            (0x370, 0x1_0000),
            (0x380, 0),
            (0x3e0, 0),
            (0x80, 0),
            (0xd0, 0),
            (0xe0, 0xffff_ffff),
            (0xf0, 0xff),
            (0x310, 0),
        ];
        for (register, reset) in rows {
            assert_eq!(value(register), Some(reset), "{register:#x}");
        }
        assert_eq!(value(0x340), None);
        assert_eq!(value(0x20), None, "the ID stays");
        assert_eq!(value(0x300), None, "a write of it would send");
    }

    #[test]
    fn a_self_interrupt_is_fixed_edge_and_to_self() {
        assert_eq!(self_interrupt_command(0x40), 0x0004_4040);
        assert_eq!(IcrCommand::from_icr(self_interrupt_command(0xff)), IcrCommand::Interrupt);
    }

    /// An interrupt command register that needs several reads until a command has been sent.
    #[derive(Default)]
    struct Sender {
        high: u32,
        looks: u32,
        sent: Option<(u32, u32)>,
    }

    impl ApicRegisters for Sender {
        fn read(&mut self, register: usize) -> u32 {
            match register {
                0x310 => self.high,
                0x300 => {
                    self.looks = self.looks.saturating_sub(1);
                    self.sent.map_or(0, |(_, low)| low) | if self.looks > 0 { 1 << 12 } else { 0 }
                }
                _ => panic!("{register:#x} is read"),
            }
        }

        fn write(&mut self, register: usize, value: u32) {
            assert_eq!(self.looks, 0, "the command before is on its way");
            match register {
                0x310 => self.high = value,
                0x300 => (self.sent, self.looks) = (Some((self.high, value)), 3),
                _ => panic!("{register:#x} is written"),
            }
        }
    }

    #[test]
    fn a_command_of_the_monitors_leaves_the_guests_destination_as_it_was() {
        let mut registers = Sender { high: 0x0500_0000, ..Sender::default() };
        send_command(&mut registers, 3, NMI_COMMAND);
        assert_eq!(registers.sent, Some((0x0300_0000, 0x4400)));
        assert_eq!(registers.high, 0x0500_0000);
    }

    #[test]
    fn a_read_does_not_make_the_page_writable() {
        assert_eq!((window_entry_flags(false), window_entry_flags(true)), (5, 7));
    }
}
