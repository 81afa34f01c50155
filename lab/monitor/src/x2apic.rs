//! The local APIC's registers as MSRs: x2APIC mode.
//!
//! The local APIC below stays in xAPIC mode. A register of x2APIC mode is the one of the page with the same number,
//! except where the modes differ: the interrupt command register is one register, a local APIC ID has 32 bits, the
//! logical ID follows from it, and a register has bits that must be 0.
//!
//! Source: SDM vol. 3, Advanced Programmable Interrupt Controller (APIC), "Extended XAPIC (x2APIC)": "x2APIC Register
//! Address Space", "Reserved Bit Checking", "x2APIC State Transitions", "Local x2APIC Interrupt Command Register",
//! "Deriving Logical x2APIC ID from the Local x2APIC ID".

use crate::local_apic::{
    CURRENT_COUNT, DIVIDE, EOI, ESR, ICR_LOW, INITIAL_COUNT, ISR, LVT_ERROR, LVT_LINT0, LVT_LINT1, LVT_PC,
    LVT_THERMAL, LVT_TIMER, SVR, TPR,
};

/// IA32_APIC_BASE\[10\], EXTD: x2APIC mode.
pub const EXTD: u64 = 1 << 10;
/// IA32_APIC_BASE\[11\], EN: the local APIC is on.
pub const EN: u64 = 1 << 11;

const VERSION: usize = 0x30;
const PPR: usize = 0xa0;
/// The last register of TMR and IRR, which follow ISR.
const LAST_IRR: usize = 0x270;
const CMCI: usize = 0x2f0;

/// Returns whether IA32_APIC_BASE, which holds `present`, accepts `value`: the page does not move, and the change of
/// mode is legal. `offered`: CPUID reports x2APIC mode.
#[must_use]
pub fn accepts_apic_base(present: u64, value: u64, offered: bool) -> bool {
    let mode = |base: u64| (base & EN != 0, base & EXTD != 0);
    let changes = match (mode(present), mode(value)) {
        (_, (_, true)) if !offered => false,
        // EXTD without EN is not a mode.
        (_, (false, true)) => false,
        // From x2APIC mode only to "disabled", and from there only to xAPIC mode.
        ((true, true), (true, false)) | ((false, false), (true, true)) => false,
        _ => true,
    };
    changes && (value ^ present) & !0xfff == 0
}

/// The result of a read of an MSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum X2Read {
    /// The register of the page at this offset.
    Register(usize),
    /// The local APIC ID.
    Id,
    /// The logical ID.
    LogicalId,
    /// The interrupt command register.
    Command,
}

/// The effect of a write of an MSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum X2Write {
    /// Writes the register of the page at this offset.
    Register(usize, u32),
    /// Sends a command to a destination of 32 bits.
    Command {
        /// Bits 63:32.
        destination: u32,
        /// Bits 31:0.
        low: u32,
    },
    /// Sends the processor an interrupt with this vector.
    SelfInterrupt(u8),
}

/// Returns the result of a read of `msr`; `None`: it raises #GP.
#[must_use]
pub const fn read(msr: u32) -> Option<X2Read> {
    let Some(offset) = offset(msr) else { return None };
    Some(match offset {
        0x20 => X2Read::Id,
        0xd0 => X2Read::LogicalId,
        ICR_LOW => X2Read::Command,
        VERSION | TPR | PPR | SVR | ISR..=LAST_IRR | ESR | CMCI => X2Read::Register(offset),
        LVT_TIMER..=LVT_ERROR | INITIAL_COUNT | CURRENT_COUNT | DIVIDE => X2Read::Register(offset),
        _ => return None,
    })
}

/// Returns the effect of a write of `msr`; `None`: it raises #GP.
#[must_use]
pub const fn write(msr: u32, value: u64) -> Option<X2Write> {
    const VECTOR: u64 = 0xff;
    const DELIVERY: u64 = 0b111 << 8;
    /// Delivery status, and Remote IRR: read only.
    const STATUS: u64 = 1 << 12 | 1 << 14;
    const PIN: u64 = 1 << 13 | 1 << 15;
    const MASK: u64 = 1 << 16;
    const TIMER_MODE: u64 = 0b11 << 17;
    /// The vector, delivery mode, destination mode, level, trigger mode, shorthand and destination.
    const COMMAND: u64 = 0xffff_ffff << 32 | 0xc_cfff;

    let Some(offset) = offset(msr) else { return None };
    let may = match offset {
        EOI | ESR => 0,
        TPR => 0xff,
        // The vector, Enable, Focus Processor Checking, EOI-Broadcast Suppression.
        SVR => 0x13ff,
        CMCI | LVT_THERMAL | LVT_PC => VECTOR | DELIVERY | STATUS | MASK,
        LVT_TIMER => VECTOR | STATUS | MASK | TIMER_MODE,
        LVT_LINT0 | LVT_LINT1 => VECTOR | DELIVERY | STATUS | PIN | MASK,
        LVT_ERROR => VECTOR | STATUS | MASK,
        INITIAL_COUNT => 0xffff_ffff,
        DIVIDE => 0b1011,
        ICR_LOW => COMMAND,
        SELF_IPI => VECTOR,
        _ => return None,
    };
    if value & !may != 0 {
        return None;
    }
    Some(match offset {
        ICR_LOW => X2Write::Command { destination: (value >> 32) as u32, low: value as u32 },
        SELF_IPI => X2Write::SelfInterrupt(value as u8),
        _ => X2Write::Register(offset, value as u32),
    })
}

/// SELF IPI, which the page does not have.
const SELF_IPI: usize = 0x3f0;

/// Returns the page offset of the register with this number.
const fn offset(msr: u32) -> Option<usize> {
    match msr {
        0x800..=0x83f => Some(((msr - 0x800) as usize) << 4),
        _ => None,
    }
}

/// Returns the logical ID of a local APIC with this ID: the cluster in bits 31:16, the member as a bit.
#[must_use]
pub const fn logical_id(id: u32) -> u32 {
    (id >> 4) << 16 | 1 << (id & 0xf)
}

/// Returns bits 63:32 of xAPIC mode's interrupt command register that name the same processors; `None` if none of a
/// machine whose processors have IDs below 8 is named. Their logical IDs in the flat model are then the same bits.
#[must_use]
pub const fn destination_in_page(destination: u32, low: u32) -> Option<u32> {
    const LOGICAL: u32 = 1 << 11;
    let shorthand = low >> 18 & 3 != 0;
    match destination {
        _ if shorthand => Some(0),
        u32::MAX => Some(0xff << 24),
        // Cluster 0.
        0..=0xffff if low & LOGICAL != 0 => Some((destination & 0xff) << 24),
        // FFH is an ordinary ID, but addresses all processors in xAPIC mode.
        0..=0xfe => Some(destination << 24),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_change_as_the_manuals_state_diagram_says() {
        const PAGE: u64 = 0xfee0_0100;
        let states = [0, EN, EN | EXTD, EXTD];
        // From each row's state to each column's.
        let legal = [[true, true, false, false], [true, true, true, false], [true, false, true, false]];
        for (from, row) in states.iter().zip(legal) {
            for (to, legal) in states.iter().zip(row) {
                assert_eq!(accepts_apic_base(PAGE | from, PAGE | to, true), legal, "{from:#x} {to:#x}");
                let without = accepts_apic_base(PAGE | from & !EXTD, PAGE | to, false);
                assert_eq!(without, to & EXTD == 0, "{from:#x} {to:#x}");
            }
        }
        assert!(!accepts_apic_base(0xfee0_0900, 0xfee1_0900, true), "the page stays where it is");
        assert!(!accepts_apic_base(0xfee0_0900, 0x10_fee0_0d00, true));
    }

    /// Checks SDM vol. 3, the table "Local APIC Register Address Map Supported by x2APIC": the readable registers, and
    /// a valid value for each writable one.
    #[test]
    fn each_register_is_there_as_the_manuals_table_says() {
        let table: [(core::ops::RangeInclusive<u32>, bool, Option<u64>); 20] = [
            (0x800..=0x801, false, None),
            (0x802..=0x803, true, None),
            (0x804..=0x807, false, None),
            (0x808..=0x808, true, Some(0x20)),
            (0x809..=0x809, false, None),
            (0x80a..=0x80a, true, None),
            (0x80b..=0x80b, false, Some(0)),
            (0x80c..=0x80c, false, None),
            (0x80d..=0x80d, true, None),
            (0x80e..=0x80e, false, None),
            (0x80f..=0x80f, true, Some(0x1ff)),
            (0x810..=0x827, true, None),
            (0x828..=0x828, true, Some(0)),
            (0x829..=0x82e, false, None),
            (0x82f..=0x830, true, Some(0x400)),
            (0x831..=0x831, false, None),
            (0x832..=0x838, true, Some(0x1_0030)),
            (0x839..=0x839, true, None),
            (0x83e..=0x83e, true, Some(0b1011)),
            (0x840..=0x8ff, false, None),
        ];
        for (msrs, readable, value) in table {
            for msr in msrs {
                assert_eq!(read(msr).is_some(), readable, "{msr:#x}");
                // Bit 11 is reserved in each, except the destination mode of 830H and the count of 838H.
                let bad = value.unwrap_or(0) | 1 << 11;
                let any = [0x830, 0x838].contains(&msr);
                assert_eq!(write(msr, bad).is_some(), any, "{msr:#x}");
                assert_eq!(value.and_then(|value| write(msr, value)).is_some(), value.is_some(), "{msr:#x}");
                if msr != 0x830 {
                    assert_eq!(write(msr, value.unwrap_or(0) | 1 << 32), None, "{msr:#x}");
                }
            }
        }
        assert_eq!((read(0x83f), write(0x83f, 0x30)), (None, Some(X2Write::SelfInterrupt(0x30))));
        assert_eq!((read(0x7ff), write(0x7ff, 0)), (None, None));
        // Only 0 can be written to EOI and ESR.
        assert_eq!([(0x80b, 1), (0x828, 1)].map(|(msr, value)| write(msr, value)), [None; 2]);
    }

    #[test]
    fn registers_are_those_of_the_page_but_for_what_differs() {
        assert_eq!(read(0x834), Some(X2Read::Register(0x340)));
        assert_eq!(write(0x834, 0x400), Some(X2Write::Register(0x340, 0x400)));
        assert_eq!(
            [0x802, 0x80d, 0x830].map(read),
            [X2Read::Id, X2Read::LogicalId, X2Read::Command].map(Some)
        );
        let command = X2Write::Command { destination: 3, low: 0x4400 };
        assert_eq!(write(0x830, 3 << 32 | 0x4400), Some(command));
        // Delivery status, bit 12, no longer exists.
        let reserved = (0..32).filter(|bit| write(0x830, 1 << bit).is_none());
        assert!(reserved.eq([12, 13, 16, 17].into_iter().chain(20..32)));
    }

    #[test]
    fn destinations_of_32_bits_are_those_of_8() {
        // 14H is bit 4 of cluster 1.
        assert_eq!([0, 3, 0x14].map(logical_id), [1, 8, 1 << 16 | 1 << 4]);
        for (destination, low, high) in [
            (3, 0x4400, Some(0x0300_0000)),
            (u32::MAX, 0x4400, Some(0xff00_0000)),
            (0xfe, 0x4400, Some(0xfe00_0000)),
            (0xff, 0x4400, None),
            (0x100, 0x4400, None),
            (0xff, 0x4c00, Some(0xff00_0000)),
            (logical_id(3), 0x4c00, Some(0x0800_0000)),
            (0x10f, 0x4c00, Some(0x0f00_0000)),
            (0x1_0001, 0x4c00, None),
            // With a shorthand the destination is ignored.
            (0x1234_5678, 0xc_4400, Some(0)),
        ] {
            assert_eq!(destination_in_page(destination, low), high, "{destination:#x} {low:#x}");
        }
    }
}
