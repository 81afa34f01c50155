//! The addresses of the LBR stack's registers, by family and model.

use crate::msr::RegisterAt;

/// The registers of an LBR stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    /// The number of branches that the stack holds.
    pub(super) depth: u8,
    /// The arrangement of branches in registers.
    pub(super) entries: Entries,
    /// MSR_LASTBRANCH_TOS, which gives the newest entry; without it, entry 0 is the newest.
    pub(super) top: Option<RegisterAt>,
    /// True if the processor has MSR_LBR_SELECT.
    pub(super) select: bool,
    /// True if MSR_LBR_SELECT has EN_CALLSTACK.
    pub(super) call_stack: bool,
    /// True if the stack's registers can be written.
    pub(super) writable: bool,
}

/// The arrangement of branches in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entries {
    /// One register for each branch: the source in bits 31:0, the target in bits 63:32.
    One {
        /// The first register.
        first: RegisterAt,
    },
    /// One register for the source and one for the target.
    Two {
        /// The first register of each.
        from: RegisterAt,
        to: RegisterAt,
    },
    /// Another register for further information.
    Three { from: RegisterAt, to: RegisterAt, info: RegisterAt },
}

/// Returns one register for each branch, from this address on.
const fn one(first: u32) -> Entries {
    Entries::One { first: RegisterAt::new(first) }
}

/// Returns the registers of the sources, and those of the targets, from these addresses on.
const fn two(from: u32, to: u32) -> Entries {
    Entries::Two { from: RegisterAt::new(from), to: RegisterAt::new(to) }
}

/// Returns the registers of the sources, the targets, and further information, from these addresses on.
const fn three(from: u32, to: u32, info: u32) -> Entries {
    Entries::Three { from: RegisterAt::new(from), to: RegisterAt::new(to), info: RegisterAt::new(info) }
}

/// MSR_LASTBRANCH_TOS.
const TOS: RegisterAt = RegisterAt::new(0x1c9);
/// MSR_LASTBRANCH_TOS on NetBurst.
const TOS_NETBURST: RegisterAt = RegisterAt::new(0x1da);

impl Stack {
    /// Returns the stack of a processor with this family and model, as CPUID.1 reports them, with the extended fields
    /// added; `None` if it is unknown.
    pub(super) const fn of(family: u8, model: u8) -> Option<Self> {
        Some(match (family, model) {
            (0x0f, 0..=2) => Self::netburst(4, one(0x1db)),
            (0x0f, _) => Self::netburst(16, WIDE),
            // Pentium M, Core Solo and Duo.
            (0x06, 0x09 | 0x0d | 0x0e) => Self::plain(8, one(0x40), TOS),
            // Core 2.
            (0x06, 0x0f | 0x16 | 0x17 | 0x1d) => Self::plain(4, LOW, TOS),
            // Atoms: 45 and 32 nm; Silvermont and Airmont; Knights Landing and Mill; Goldmont.
            (0x06, 0x1c | 0x26 | 0x27 | 0x35 | 0x36) => Self::plain(8, LOW, TOS),
            (0x06, 0x37 | 0x4a | 0x4d | 0x5a | 0x5d | 0x4c | 0x75) => Self::selected(8, LOW, false),
            (0x06, 0x57 | 0x85) => Self::selected(8, WIDE, false),
            (0x06, 0x5c | 0x5f) => Self::selected(32, WIDE, true),
            // Nehalem, Westmere, Sandy Bridge, Ivy Bridge.
            (0x06, 0x1a | 0x1e | 0x1f | 0x2e | 0x25 | 0x2c | 0x2f | 0x2a | 0x2d | 0x3a | 0x3e) => {
                Self::selected(16, WIDE, false)
            }
            // Haswell, Broadwell.
            (0x06, 0x3c | 0x3f | 0x45 | 0x46 | 0x3d | 0x47 | 0x4f | 0x56) => Self::selected(16, WIDE, true),
            // Goldmont Plus, Tremont; Skylake and its successors, until the stack became architectural.
            (0x06, 0x7a | 0x86 | 0x96 | 0x9c) => Self::selected(32, WIDE_INFO, true),
            (0x06, 0x4e | 0x5e | 0x55 | 0x66 | 0x8e | 0x9e | 0xa5 | 0xa6) => {
                Self::selected(32, WIDE_INFO, true)
            }
            (0x06, 0x6a | 0x6c | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7) => Self::selected(32, WIDE_INFO, true),
            _ => return None,
        })
    }

    /// Returns the architectural stack.
    pub(super) const fn architectural(depth: u8) -> Self {
        let entries = three(0x1500, 0x1600, 0x1200);
        Self { depth, entries, top: None, select: false, call_stack: false, writable: true }
    }

    const fn netburst(depth: u8, entries: Entries) -> Self {
        Self { writable: false, ..Self::plain(depth, entries, TOS_NETBURST) }
    }

    const fn plain(depth: u8, entries: Entries, top: RegisterAt) -> Self {
        Self { depth, entries, top: Some(top), select: false, call_stack: false, writable: true }
    }

    const fn selected(depth: u8, entries: Entries, call_stack: bool) -> Self {
        Self { depth, entries, top: Some(TOS), select: true, call_stack, writable: true }
    }
}

const LOW: Entries = two(0x40, 0x60);
const WIDE: Entries = two(0x680, 0x6c0);
const WIDE_INFO: Entries = three(0x680, 0x6c0, 0xdc0);
