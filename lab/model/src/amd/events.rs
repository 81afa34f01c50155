//! The events that the core performance counters count.
//!
//! Source: BKDG for AMD Family 10h Processors, "Performance Counter Events"; PPR for AMD Family 17h Model 31h and PPR
//! for AMD Family 19h Model 11h, "Core Performance Monitor Counters".

use super::execution::Execution;
use crate::DeliveryKind;
use crate::branch::InstructionKind;

/// An event that can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Core clock cycles.
    Cycles,
    Instructions,
    Ops,
    Branches,
    MispredictedBranches,
    TakenBranches,
    MispredictedTakenBranches,
    FarTransfers,
    NearReturns,
    MispredictedNearReturns,
    ConditionalBranches,
    /// Interrupts that are delivered, including NMIs.
    Interrupts,
    Loads,
    Stores,
    /// Instructions that load and store.
    LoadStores,
    DataAccesses,
    /// Loads or stores whose line is not in the data cache.
    DataMisses,
    LoadMisses,
    StoreMisses,
    Fetches,
    FetchHits,
    FetchMisses,
}

/// The selection of events by an event's unit mask.
#[derive(Clone, Copy, Debug)]
pub(super) enum UnitMasks {
    /// The unit mask is ignored.
    Ignored(Event),
    /// Each bit adds an event to the count.
    Bits(&'static [(u8, Event)]),
}

/// An event-select value and its event.
#[derive(Clone, Copy, Debug)]
pub struct AmdEvent {
    pub(super) select: u16,
    pub(super) units: UnitMasks,
}

const fn without_unit_masks(select: u16, event: Event) -> AmdEvent {
    AmdEvent { select, units: UnitMasks::Ignored(event) }
}

/// Events on which families 0Fh to 15h agree.
pub(super) static K8_EVENTS: [AmdEvent; 15] = [
    without_unit_masks(0x040, Event::DataAccesses),
    without_unit_masks(0x041, Event::DataMisses),
    without_unit_masks(0x076, Event::Cycles),
    without_unit_masks(0x080, Event::Fetches),
    without_unit_masks(0x081, Event::FetchMisses),
    without_unit_masks(0x0c0, Event::Instructions),
    without_unit_masks(0x0c1, Event::Ops),
    without_unit_masks(0x0c2, Event::Branches),
    without_unit_masks(0x0c3, Event::MispredictedBranches),
    without_unit_masks(0x0c4, Event::TakenBranches),
    without_unit_masks(0x0c5, Event::MispredictedTakenBranches),
    without_unit_masks(0x0c6, Event::FarTransfers),
    without_unit_masks(0x0c8, Event::NearReturns),
    without_unit_masks(0x0c9, Event::MispredictedNearReturns),
    without_unit_masks(0x0cf, Event::Interrupts),
];

/// LsDispatch.
const DISPATCH: AmdEvent = AmdEvent {
    select: 0x029,
    units: UnitMasks::Bits(&[(1, Event::Loads), (2, Event::Stores), (4, Event::LoadStores)]),
};
/// LsMabAlloc: bits for loads and for stores.
const MAB_ALLOCATIONS: AmdEvent =
    AmdEvent { select: 0x041, units: UnitMasks::Bits(&[(1, Event::LoadMisses), (2, Event::StoreMisses)]) };

/// Families 17h and 19h before Zen 4.
pub(super) static ZEN2_EVENTS: [AmdEvent; 17] = [
    DISPATCH,
    without_unit_masks(0x02c, Event::Interrupts),
    without_unit_masks(0x040, Event::DataAccesses),
    MAB_ALLOCATIONS,
    without_unit_masks(0x076, Event::Cycles),
    without_unit_masks(0x080, Event::Fetches),
    without_unit_masks(0x081, Event::FetchMisses),
    without_unit_masks(0x0c0, Event::Instructions),
    without_unit_masks(0x0c1, Event::Ops),
    without_unit_masks(0x0c2, Event::Branches),
    without_unit_masks(0x0c3, Event::MispredictedBranches),
    without_unit_masks(0x0c4, Event::TakenBranches),
    without_unit_masks(0x0c5, Event::MispredictedTakenBranches),
    without_unit_masks(0x0c6, Event::FarTransfers),
    without_unit_masks(0x0c8, Event::NearReturns),
    without_unit_masks(0x0c9, Event::MispredictedNearReturns),
    without_unit_masks(0x0d1, Event::ConditionalBranches),
];

/// Zen 4 and Zen 5.
pub(super) static ZEN4_EVENTS: [AmdEvent; 16] = [
    DISPATCH,
    without_unit_masks(0x02c, Event::Interrupts),
    MAB_ALLOCATIONS,
    without_unit_masks(0x076, Event::Cycles),
    without_unit_masks(0x0c0, Event::Instructions),
    without_unit_masks(0x0c1, Event::Ops),
    without_unit_masks(0x0c2, Event::Branches),
    without_unit_masks(0x0c3, Event::MispredictedBranches),
    without_unit_masks(0x0c4, Event::TakenBranches),
    without_unit_masks(0x0c5, Event::MispredictedTakenBranches),
    without_unit_masks(0x0c6, Event::FarTransfers),
    without_unit_masks(0x0c8, Event::NearReturns),
    without_unit_masks(0x0c9, Event::MispredictedNearReturns),
    without_unit_masks(0x0d1, Event::ConditionalBranches),
    // IcTagHitMiss: 07h selects hits, 18h misses. Here only the lowest bit of each is used.
    AmdEvent {
        select: 0x18e,
        units: UnitMasks::Bits(&[(0x01, Event::FetchHits), (0x08, Event::FetchMisses)]),
    },
    without_unit_masks(0x120, Event::Cycles),
];

impl AmdEvent {
    /// Returns whether the event counts cycles.
    pub(super) const fn is_cycles(&self) -> bool {
        matches!(self.units, UnitMasks::Ignored(Event::Cycles))
    }

    /// Returns the number of selected events in the first cycle of an instruction.
    pub(super) fn in_first_cycle(&self, unit_mask: u8, execution: &Execution) -> u64 {
        self.sum(unit_mask, |event| event.in_instruction(execution))
    }

    /// Returns the number of events in each further cycle.
    pub(super) fn in_stall_cycle(&self, unit_mask: u8) -> u64 {
        self.sum(unit_mask, |event| u64::from(event == Event::Cycles))
    }

    /// Returns the number of events in the delivery of an interrupt or exception. `as_instruction`: the processor
    /// counts the delivery as an instruction.
    pub(super) fn in_delivery(&self, unit_mask: u8, kind: DeliveryKind, as_instruction: bool) -> u64 {
        self.sum(unit_mask, |event| event.in_delivery(kind, as_instruction))
    }

    /// Returns true if the event can be counted only with data accesses.
    pub(super) fn wants_data(&self, unit_mask: u8) -> bool {
        self.sum(unit_mask, |event| u64::from(event.is_of_data())) != 0
    }

    fn sum(&self, unit_mask: u8, of: impl Fn(Event) -> u64) -> u64 {
        match self.units {
            UnitMasks::Ignored(event) => of(event),
            UnitMasks::Bits(bits) => {
                bits.iter().filter(|(bit, _)| unit_mask & bit != 0).map(|&(_, event)| of(event)).sum()
            }
        }
    }
}

impl Event {
    const fn is_of_data(self) -> bool {
        matches!(
            self,
            Self::Loads
                | Self::Stores
                | Self::LoadStores
                | Self::DataAccesses
                | Self::DataMisses
                | Self::LoadMisses
                | Self::StoreMisses
        )
    }

    /// Counts the delivery of an interrupt or exception, a change of control flow, as a branch, a taken branch and a
    /// far transfer.
    fn in_delivery(self, kind: DeliveryKind, as_instruction: bool) -> u64 {
        u64::from(match self {
            Self::Cycles | Self::Branches | Self::TakenBranches | Self::FarTransfers => true,
            Self::Instructions => as_instruction || kind == DeliveryKind::SoftwareInterrupt,
            Self::Interrupts => matches!(kind, DeliveryKind::Interrupt | DeliveryKind::Nmi),
            _ => false,
        })
    }

    fn in_instruction(self, execution: &Execution) -> u64 {
        let branch = execution.decoded.may_transfer();
        let kind = execution.decoded.kind;
        let data = |of: fn(bool, bool) -> bool, missed_only: bool| {
            u64::from(execution.data.is_some_and(|data| {
                of(data.access.read, data.access.write) && (data.found.missed_l1 || !missed_only)
            }))
        };
        match self {
            Self::Cycles | Self::Instructions => 1,
            Self::Ops => execution.ops.into(),
            Self::Branches => branch.into(),
            Self::MispredictedBranches => execution.mispredicted.into(),
            Self::TakenBranches => execution.taken.into(),
            Self::MispredictedTakenBranches => (execution.taken && execution.mispredicted).into(),
            Self::FarTransfers => {
                matches!(kind, InstructionKind::Far | InstructionKind::InterruptReturn).into()
            }
            Self::NearReturns => (kind == InstructionKind::Return).into(),
            Self::MispredictedNearReturns => {
                (kind == InstructionKind::Return && execution.mispredicted).into()
            }
            Self::ConditionalBranches => (kind == InstructionKind::Conditional).into(),
            Self::Interrupts => 0,
            Self::Loads => data(|read, write| read && !write, false),
            Self::Stores => data(|read, write| write && !read, false),
            Self::LoadStores => data(|read, write| read && write, false),
            Self::DataAccesses => data(|_, _| true, false),
            Self::DataMisses => data(|_, _| true, true),
            Self::LoadMisses => data(|read, _| read, true),
            Self::StoreMisses => data(|read, write| write && !read, true),
            Self::Fetches => execution.fetches().count() as u64,
            Self::FetchHits => execution.fetches().filter(|fetch| !fetch.found.missed_l1).count() as u64,
            Self::FetchMisses => execution.fetches().filter(|fetch| fetch.found.missed_l1).count() as u64,
        }
    }
}
