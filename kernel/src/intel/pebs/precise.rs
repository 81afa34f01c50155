//! The events that sample: the tables of precise events.

use super::PreciseEvent;

/// The precise events of a microarchitecture. An event that is not precise is counted, but produces no records.
///
/// Load latency (0BH with 10H, CDH with 01H) has its threshold by
/// [`PebsConfig::load_latency`](super::PebsConfig::load_latency); for precise store (CDH with 02H) this driver programs
/// only the counter.
///
/// Source: SDM vol. 3, Performance Monitoring, "Processor Event Based Sampling (PEBS)" of each microarchitecture with
/// its table of precise events, and "Extended PEBS". Entries missing there come from Intel's event tables (perfmon, the
/// events with PEBS) and from Linux's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreciseEvents {
    /// Core 2.
    Core,
    /// Nehalem and Westmere.
    Nehalem,
    /// Sandy Bridge and Ivy Bridge.
    SandyBridge,
    /// Haswell and Broadwell.
    Haswell,
    /// Skylake and its successors until Ice Lake.
    Skylake,
    /// Extended PEBS: each event samples on each counter.
    Extended,
    /// A processor whose table is unknown to this driver: any event is accepted.
    Unlisted,
}

impl PreciseEvents {
    /// Returns the table for a processor of family 06H without extended PEBS.
    pub(super) const fn of(model: u8) -> Self {
        match model {
            0x0f | 0x16 | 0x17 | 0x1d => Self::Core,
            0x1a | 0x1e | 0x1f | 0x2e | 0x25 | 0x2c | 0x2f => Self::Nehalem,
            0x2a | 0x2d | 0x3a | 0x3e => Self::SandyBridge,
            0x3c | 0x3f | 0x45 | 0x46 | 0x3d | 0x47 | 0x4f | 0x56 => Self::Haswell,
            0x4e | 0x5e | 0x55 | 0x66 | 0x8e | 0x9e | 0xa5 | 0xa6 => Self::Skylake,
            _ => Self::Unlisted,
        }
    }

    /// Returns the general-purpose counters that sample `event`, as bits; 0 if it is not precise.
    pub(crate) const fn counters(self, event: PreciseEvent) -> u8 {
        let rows = match self {
            Self::Core => CORE,
            Self::Nehalem => NEHALEM,
            Self::SandyBridge => SANDY_BRIDGE,
            Self::Haswell => HASWELL,
            Self::Skylake => SKYLAKE,
            Self::Extended | Self::Unlisted => return ALL,
        };
        let mut n = 0;
        while n < rows.len() {
            if rows[n].has(event) {
                return rows[n].counters;
            }
            n += 1;
        }
        0
    }
}

/// Events that have the same event select.
#[derive(Clone, Copy)]
struct Supported {
    select: u8,
    umask: Umask,
    counters: u8,
}

#[derive(Clone, Copy)]
enum Umask {
    Any,
    Is(u8),
    /// One or more of these bits, and no others.
    Among(u8),
}

impl Supported {
    const fn has(self, event: PreciseEvent) -> bool {
        let umask = match self.umask {
            Umask::Any => true,
            Umask::Is(umask) => event.umask == umask,
            Umask::Among(bits) => event.umask != 0 && event.umask & !bits == 0,
        };
        self.select == event.select && umask
    }
}

const ALL: u8 = 0xff;

const fn row(select: u8, umask: Umask) -> Supported {
    Supported { select, umask, counters: ALL }
}

const fn only(select: u8, umask: u8, counters: u8) -> Supported {
    Supported { select, umask: Umask::Is(umask), counters }
}

/// "PEBS Performance Events for Intel Core Microarchitecture".
const CORE: &[Supported] = &[
    only(0xc0, 0x00, 1),
    only(0xc1, 0xfe, 1),
    only(0xc5, 0x00, 1),
    only(0xc7, 0x1f, 1),
    Supported { select: 0xcb, umask: Umask::Among(0x1f), counters: 1 },
];

/// The manual has no table. From Intel's event tables of both microarchitectures, with those events of instructions and
/// branches that Linux accepts.
const NEHALEM: &[Supported] = &[
    row(0x0b, Umask::Among(0x13)),
    row(0x0c, Umask::Is(0x01)),
    row(0x0f, Umask::Among(0xbf)),
    row(0xc0, Umask::Any),
    row(0xc2, Umask::Among(0x07)),
    row(0xc4, Umask::Any),
    row(0xc5, Umask::Any),
    row(0xc7, Umask::Among(0x1f)),
    row(0xc8, Umask::Is(0x20)),
    row(0xcb, Umask::Among(0xdf)),
    row(0xf7, Umask::Among(0x07)),
];

/// "PEBS Performance Events for Sandy Bridge Microarchitecture", "Load Latency Performance Monitoring Facility",
/// "Precise Store Facility", and further loads from the event tables.
const SANDY_BRIDGE: &[Supported] = &[
    only(0xc0, 0x01, 1 << 1),
    row(0xc2, Umask::Among(0x03)),
    row(0xc4, Umask::Among(0x2f)),
    row(0xc5, Umask::Among(0x37)),
    only(0xcd, 0x01, 1 << 3),
    only(0xcd, 0x02, 1 << 3),
    row(0xd0, MEMORY),
    row(0xd1, Umask::Among(0x7f)),
    row(0xd2, Umask::Among(0x0f)),
    row(0xd3, Umask::Among(0x3f)),
    row(0xd4, Umask::Is(0x02)),
];

/// "PEBS Data Address Profiling", "Load Latency Performance Monitoring Facility", and the events that the event tables
/// list with PEBS; mispredicted returns (C5H, 08H) are in Broadwell's.
const HASWELL: &[Supported] = &[
    only(0xc0, 0x01, 1 << 1),
    row(0xc2, Umask::Among(0x03)),
    row(0xc4, Umask::Among(0x2f)),
    row(0xc5, Umask::Among(0x2d)),
    row(0xc8, Umask::Is(0x04)),
    row(0xc9, Umask::Is(0x04)),
    row(0xcd, Umask::Is(0x01)),
    row(0xd0, MEMORY),
    row(0xd1, Umask::Among(0x7f)),
    row(0xd2, Umask::Among(0x0f)),
    row(0xd3, Umask::Among(0x35)),
];

/// "Precise Events for the Skylake Microarchitecture", and from the event tables: load latency, NOPs, mispredicted
/// calls and returns, loads of uncacheable, remote and persistent memory.
const SKYLAKE: &[Supported] = &[
    only(0xc0, 0x01, 1 << 1),
    row(0xc0, Umask::Is(0x02)),
    row(0xc1, Umask::Is(0x3f)),
    row(0xc4, Umask::Among(0x6f)),
    row(0xc5, Umask::Among(0x2f)),
    row(0xc6, Umask::Is(0x01)),
    row(0xc8, Umask::Is(0x04)),
    row(0xc9, Umask::Is(0x04)),
    row(0xcd, Umask::Is(0x01)),
    row(0xd0, MEMORY),
    row(0xd1, Umask::Among(0xff)),
    row(0xd2, Umask::Among(0x0f)),
    row(0xd3, Umask::Among(0x1f)),
    row(0xd4, Umask::Is(0x04)),
];

/// Bits 1:0 select loads and stores, bits 7:4 their kinds.
const MEMORY: Umask = Umask::Among(0xf3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_and_branches_sample_where_the_tables_have_them() {
        use PreciseEvents::{Core, Extended, Haswell, Nehalem, SandyBridge, Skylake, Unlisted};
        // Event select and unit mask, and the counters that sample the event: instructions, the precise variant,
        // branches, the precise variant, mispredicted branches.
        let events = [(0xc0, 0), (0xc0, 1), (0xc4, 0), (0xc4, 4), (0xc5, 0)];
        for (table, counters) in [
            (Core, [1, 0, 0, 0, 1]),
            (Nehalem, [ALL; 5]),
            (SandyBridge, [0, 2, 0, ALL, 0]),
            (Haswell, [0, 2, 0, ALL, 0]),
            (Skylake, [0, 2, 0, ALL, 0]),
            (Extended, [ALL; 5]),
            (Unlisted, [ALL; 5]),
        ] {
            let found = events.map(|(select, umask)| table.counters(PreciseEvent { select, umask }));
            assert_eq!(found, counters, "{table:?}");
        }
    }

    #[test]
    fn unit_masks_are_those_of_the_tables() {
        use PreciseEvents::{Core, Haswell, Nehalem, SandyBridge, Skylake};
        for (table, select, umask, precise) in [
            (Core, 0xcb, 0x10, true),
            (Core, 0xcb, 0x20, false),
            (Core, 0xc9, 0x00, false),
            (Nehalem, 0x0b, 0x02, true),
            (Nehalem, 0x0b, 0x80, false),
            (Nehalem, 0x0c, 0x01, true),
            (Nehalem, 0x0c, 0x02, false),
            (Nehalem, 0x0f, 0x80, true),
            (Nehalem, 0x0f, 0x40, false),
            (Nehalem, 0x3c, 0x00, false),
            (Nehalem, 0xc2, 0x04, true),
            (Nehalem, 0xc2, 0x08, false),
            (Nehalem, 0xc7, 0x10, true),
            (Nehalem, 0xc7, 0x20, false),
            (Nehalem, 0xcb, 0x80, true),
            (Nehalem, 0xcb, 0x20, false),
            (Nehalem, 0xf7, 0x04, true),
            (Nehalem, 0xf7, 0x08, false),
            (SandyBridge, 0xc4, 0x20, true),
            // Branches that were not taken, and far branches.
            (SandyBridge, 0xc4, 0x10, false),
            (SandyBridge, 0xc4, 0x40, false),
            // These are precise if mispredicted.
            (SandyBridge, 0xc5, 0x10, true),
            (SandyBridge, 0xc5, 0x08, false),
            (SandyBridge, 0xcd, 0x02, true),
            (SandyBridge, 0xcd, 0x04, false),
            (SandyBridge, 0xd0, 0x82, true),
            (SandyBridge, 0xd0, 0x84, false),
            (SandyBridge, 0xd1, 0x40, true),
            (SandyBridge, 0xd1, 0x80, false),
            (SandyBridge, 0xd2, 0x08, true),
            (SandyBridge, 0xd2, 0x10, false),
            (SandyBridge, 0xd3, 0x20, true),
            (SandyBridge, 0xd3, 0x40, false),
            (Haswell, 0xc4, 0x10, false),
            (Haswell, 0xc4, 0x40, false),
            (Haswell, 0xc5, 0x08, true),
            (Haswell, 0xc5, 0x02, false),
            (Haswell, 0xc6, 0x01, false),
            (Haswell, 0xc8, 0x04, true),
            (Haswell, 0xc8, 0x01, false),
            (Haswell, 0xc9, 0x04, true),
            (Haswell, 0xc9, 0x02, false),
            // Precise stores no longer exist.
            (Haswell, 0xcd, 0x02, false),
            (Haswell, 0xd1, 0x80, false),
            (Haswell, 0xd3, 0x20, true),
            (Haswell, 0xd3, 0x02, false),
            (Skylake, 0xc0, 0x02, true),
            (Skylake, 0xc4, 0x10, false),
            (Skylake, 0xc4, 0x40, true),
            (Skylake, 0xc5, 0x02, true),
            (Skylake, 0xc5, 0x08, true),
            (Skylake, 0xc5, 0x10, false),
            (Skylake, 0xc6, 0x01, true),
            (Skylake, 0xc6, 0x02, false),
            (Skylake, 0xc8, 0x08, false),
            (Skylake, 0xc9, 0x08, false),
            (Skylake, 0xcd, 0x01, true),
            (Skylake, 0xcd, 0x02, false),
            (Skylake, 0xd0, 0x83, true),
            (Skylake, 0xd1, 0x80, true),
            (Skylake, 0xd1, 0x00, false),
            (Skylake, 0xd2, 0x10, false),
            (Skylake, 0xd3, 0x10, true),
            (Skylake, 0xd3, 0x20, false),
            (Skylake, 0xd4, 0x04, true),
            (Skylake, 0xd4, 0x02, false),
        ] {
            let event = PreciseEvent { select, umask };
            assert_eq!(table.counters(event) != 0, precise, "{table:?} {event:?}");
        }
        assert_eq!(SandyBridge.counters(PreciseEvent { select: 0xcd, umask: 1 }), 1 << 3);
    }

    #[test]
    fn each_model_has_its_table() {
        use PreciseEvents::{Core, Haswell, Nehalem, SandyBridge, Skylake, Unlisted};
        for (model, table) in [
            (0x17, Core),
            (0x1a, Nehalem),
            (0x2c, Nehalem),
            (0x3a, SandyBridge),
            (0x3c, Haswell),
            (0x3d, Haswell),
            (0x5e, Skylake),
            (0x5c, Unlisted),
            (0x6a, Unlisted),
        ] {
            assert_eq!(PreciseEvents::of(model), table, "{model:#x}");
        }
    }
}
