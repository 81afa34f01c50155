//! Processor families: their tables, modifiers and counters.

use crate::table::{self, Revision, Table};
use core::fmt;

/// A family of processors that share a table of events.
pub(crate) struct Family {
    /// The display family: CPUID's base family plus the extended one.
    pub(crate) number: u8,
    pub(crate) table: &'static Table,
    pub(crate) modifiers: &'static [Modifier],
    pub(crate) bank: CounterBank,
}

/// The counters of a core and the addresses of their registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterBank {
    /// Four counters: PERFEVTSELn at `C001_0000 + n`, PERFCTRn at `C001_0004 + n`.
    Legacy,
    /// Six counters, since family 15h: PERFEVTSELn at `C001_0200 + 2n`, PERFCTRn at the address after it.
    Extended,
}

impl CounterBank {
    /// Returns the number of counters.
    #[must_use]
    pub const fn counters(self) -> u8 {
        match self {
            Self::Legacy => 4,
            Self::Extended => 6,
        }
    }

    /// Returns the MSR of PERFEVTSELn.
    #[must_use]
    pub const fn select_msr(self, n: u8) -> u32 {
        match self {
            Self::Legacy => 0xc001_0000 + n as u32,
            Self::Extended => 0xc001_0200 + 2 * n as u32,
        }
    }

    /// Returns the MSR of PERFCTRn.
    #[must_use]
    pub const fn counter_msr(self, n: u8) -> u32 {
        match self {
            Self::Legacy => 0xc001_0004 + n as u32,
            Self::Extended => 0xc001_0201 + 2 * n as u32,
        }
    }
}

/// A modifier of an event string, by libpfm4's letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modifier {
    /// `k`: count at CPL 0.
    Kernel,
    /// `u`: count above CPL 0.
    User,
    /// `e`: count edges.
    Edge,
    /// `i`: invert the comparison with the counter mask.
    Invert,
    /// `c`: the counter mask, 0 to 255.
    CounterMask,
    /// `h`: count only in the host of virtual machines.
    Host,
    /// `g`: count only in guests.
    Guest,
}

impl Modifier {
    /// Returns its letter.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Kernel => "k",
            Self::User => "u",
            Self::Edge => "e",
            Self::Invert => "i",
            Self::CounterMask => "c",
            Self::Host => "h",
            Self::Guest => "g",
        }
    }
}

impl fmt::Display for Modifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.letter())
    }
}

/// The modifiers of K7 and K8, in the order of the canonical string.
const BASIC: &[Modifier] =
    &[Modifier::Kernel, Modifier::User, Modifier::Edge, Modifier::Invert, Modifier::CounterMask];
/// The modifiers since family 10h.
const VIRTUAL: &[Modifier] = &[
    Modifier::Kernel,
    Modifier::User,
    Modifier::Edge,
    Modifier::Invert,
    Modifier::CounterMask,
    Modifier::Host,
    Modifier::Guest,
];

pub(crate) static K7: Family =
    Family { number: 6, table: &table::K7, modifiers: BASIC, bank: CounterBank::Legacy };
pub(crate) static K8: Family =
    Family { number: 0xf, table: &table::K8, modifiers: BASIC, bank: CounterBank::Legacy };
pub(crate) static FAM10H: Family = since_10h(0x10, &table::FAM10H, CounterBank::Legacy);
pub(crate) static FAM11H: Family = since_10h(0x11, &table::FAM11H, CounterBank::Legacy);
pub(crate) static FAM12H: Family = since_10h(0x12, &table::FAM12H, CounterBank::Legacy);
pub(crate) static FAM14H: Family = since_10h(0x14, &table::FAM14H, CounterBank::Legacy);
pub(crate) static FAM15H: Family = since_10h(0x15, &table::FAM15H, CounterBank::Extended);
pub(crate) static FAM16H: Family = since_10h(0x16, &table::FAM16H, CounterBank::Legacy);
pub(crate) static ZEN1: Family = since_10h(0x17, &table::ZEN1, CounterBank::Extended);
pub(crate) static ZEN2: Family = since_10h(0x17, &table::ZEN2, CounterBank::Extended);
pub(crate) static ZEN3: Family = since_10h(0x19, &table::ZEN3, CounterBank::Extended);
pub(crate) static ZEN4: Family = since_10h(0x19, &table::ZEN4, CounterBank::Extended);
pub(crate) static ZEN5: Family = since_10h(0x1a, &table::ZEN5, CounterBank::Extended);

const fn since_10h(number: u8, table: &'static Table, bank: CounterBank) -> Family {
    Family { number, table, modifiers: VIRTUAL, bank }
}

/// Finds the family and revision of a processor by its display family, display model and stepping.
///
/// Source: AMD's revision guides; for the models of each Zen, Linux and libpfm.
pub(crate) fn detect(family: u8, model: u8, stepping: u8) -> Option<(&'static Family, Revision)> {
    Some(match (family, model) {
        (6, _) => (&K7, Revision::A),
        (0xf, _) => (&K8, k8_revision(model, stepping)),
        (0x10, _) => (&FAM10H, fam10h_revision(model)),
        (0x11, _) => (&FAM11H, Revision::A),
        (0x12, _) => (&FAM12H, Revision::A),
        (0x14, _) => (&FAM14H, Revision::A),
        (0x15, _) => (&FAM15H, Revision::A),
        (0x16, _) => (&FAM16H, Revision::A),
        (0x17, ..0x30) => (&ZEN1, Revision::A),
        (0x17, _) => (&ZEN2, Revision::A),
        (0x19, 0x10..0x20 | 0x60..) => (&ZEN4, Revision::A),
        (0x19, _) => (&ZEN3, Revision::A),
        (0x1a, _) => (&ZEN5, Revision::A),
        _ => return None,
    })
}

/// Returns the revision of a K8 processor.
const fn k8_revision(model: u8, stepping: u8) -> Revision {
    match (model >> 4, model & 0xf) {
        (0, 5) if stepping < 2 => Revision::B,
        (0, 4) if stepping == 0 => Revision::B,
        (0, _) => Revision::C,
        (1, _) => Revision::D,
        (2 | 3, _) => Revision::E,
        (4 | 5 | 0xc, _) => Revision::F,
        (6..=8, _) => Revision::G,
        _ => Revision::B,
    }
}

/// Returns the revision of a family 10h processor.
const fn fam10h_revision(model: u8) -> Revision {
    match model {
        4..=6 => Revision::C,
        8 | 9 => Revision::D,
        10 => Revision::E,
        _ => Revision::B,
    }
}
