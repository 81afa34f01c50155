//! Runs processor event-based sampling (PEBS) for a workload.

use pugmark_boot::archive::Archive;
use pugmark_decoder_core::pebs::{Format, Record};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::cpuid::this_processor;
use pugmark_kernel::drain::{Piece, Sink};
use pugmark_kernel::intel::ds::{
    AreaPlan, BufferMode, BufferPlan, DsArea, DsConfig, DsRefusal, DsUnit, Gate, Half, LinearMemory, Records,
    Strictness,
};
use pugmark_kernel::intel::pebs::{Groups, Item, PebsCapabilities, PebsConfig, PreciseEvent, Samples};
use pugmark_kernel::lifecycle::StartError;
use pugmark_protocol::{EventKind, Level};

use super::branches::{Ready, StoreFailure, vector};
use super::linear::KernelLinear;
use super::plan::{Plan, Unfit};
use crate::arch::traps;

/// The events to sample, one after the other. Instructions are first, because every processor with PEBS can sample
/// them.
pub(super) const SAMPLED: [EventKind; 2] = [EventKind::Instructions, EventKind::Branches];

/// Events from one sample to the next. What the handler does after it lets the counters go on must be shorter than the
/// time in which the buffer fills.
const INSTRUCTIONS: u32 = 211;
const BRANCHES: u32 = 41;

/// The records for which the buffer has room, and how many of them the driver keeps free.
const RECORDS: u64 = 60;
const SPARE: u32 = 30;

/// Bytes of the registers in an adaptive record: RFLAGS, RIP, and 16 general-purpose registers.
const REGISTERS: u64 = 18 * 8;

/// Bytes that are archived of each sample.
const KEPT: usize = 2 * size_of::<u64>();

/// What is sampled, and the format of its records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampling {
    pub(super) kind: EventKind,
    pub(super) period: u32,
    format: Format,
}

impl Sampling {
    /// Returns the unit, its memory and its configuration for a plan.
    pub(super) fn ready(
        kind: EventKind,
        plan: &Plan,
        msr: GuardedMsr,
    ) -> Result<(Ready<DsConfig>, Self), StoreFailure> {
        let unfit = |unfit| StoreFailure::Unfit("samples", unfit);
        let unit = DsUnit::detect(this_processor, msr).map_err(StoreFailure::Detect)?;
        Unfit::of(plan).map_err(unfit)?;
        let capabilities = unit.capabilities().pebs.map_err(StoreFailure::NoSamples)?;
        let format = capabilities.format;
        let period = if kind == EventKind::Branches { BRANCHES } else { INSTRUCTIONS };
        let (event, counter) = choose(kind, &capabilities);
        let level = plan.filter.level;
        let config = PebsConfig::new()
            .general(counter, event, period.into())
            .os(level != Level::User)
            .user(level != Level::Os);
        // Check now, before a session is announced.
        let refused = |refusal| StoreFailure::Start(StartError::Refused(DsRefusal::Pebs(refusal)));
        config.check(&capabilities, SPARE).map_err(refused)?;
        let (groups, bytes) = match format {
            Format::Adaptive => (Groups::BASIC.registers(true), format.least_bytes() as u64 + REGISTERS),
            _ => (Groups::BASIC, format.least_bytes() as u64),
        };
        let mode = BufferMode::Interrupt { spare: SPARE };
        let buffer = BufferPlan { bytes: RECORDS * bytes, page_offset: 0, mode };
        let plan_of_area = AreaPlan::new().pebs(buffer, groups);
        let area = DsArea::allocate(KernelLinear, unit.capabilities(), &plan_of_area, Strictness::Strict)
            .map_err(StoreFailure::Area)?;
        let config = DsConfig::new().pebs(config).gate(Gate(traps::gate(vector(plan))));
        Ok(((unit, area, config), Self { kind, period, format }))
    }

    /// Returns a sink that archives of each drained sample what [`kept`] reads back. Invalid records are counted in
    /// `unplaced`.
    pub(super) fn sink<'a, 'm>(
        self,
        archive: &'a mut Archive<'m>,
        unplaced: &'a mut u64,
    ) -> Samples<impl FnMut(Item<'_>) -> bool + use<'a, 'm>> {
        Samples::new(self.format, |item| match item {
            Item::Record(record) => {
                archive.bytes(&keep(record));
                true
            }
            Item::Gap(gap) => archive.gap(gap),
            Item::Error(_) => {
                *unplaced += 1;
                true
            }
        })
    }

    /// Archives the samples that are left in the area.
    pub(super) fn finish(
        self,
        records: &Records<impl LinearMemory>,
        archive: &mut Archive<'_>,
        unplaced: &mut u64,
    ) {
        let mut sink = self.sink(archive, unplaced);
        for piece in records.pieces(Half::Pebs) {
            match piece {
                Piece::Bytes(bytes) => _ = sink.bytes(bytes),
                Piece::Gap(gap) => _ = sink.gap(gap),
            }
        }
    }
}

/// The eventing IP (the address of the event's instruction) and the address after the event of each archived sample;
/// `None` if the record does not have it.
pub(super) fn kept(bytes: &[u8]) -> impl Iterator<Item = (Option<u64>, Option<u64>)> {
    let word = |bytes: [u8; 8]| Some(u64::from_le_bytes(bytes)).filter(|address| *address != 0);
    bytes.as_chunks::<KEPT>().0.iter().map(move |kept| {
        let (words, _) = kept.as_chunks();
        (word(words[0]), word(words[1]))
    })
}

/// Encodes a sample with 0 for an unknown address: nothing is executed in the page at 0, which is absent.
fn keep(record: &Record<'_>) -> [u8; KEPT] {
    let mut kept = [0; KEPT];
    let (words, _) = kept.as_chunks_mut();
    words[0] = record.eventing_ip.unwrap_or(0).to_le_bytes();
    words[1] = record.next_ip().unwrap_or(0).to_le_bytes();
    kept
}

/// Returns the event to sample on this processor and the first counter that can sample it. If no counter can, the
/// driver reports that.
fn choose(kind: EventKind, capabilities: &PebsCapabilities) -> (PreciseEvent, u8) {
    let events = match kind {
        EventKind::Branches => [PreciseEvent::BR_INST_RETIRED, PreciseEvent::BR_INST_RETIRED_PEBS],
        _ => [PreciseEvent::INST_RETIRED, PreciseEvent::INST_RETIRED_PREC_DIST],
    };
    let first = |event| (event, capabilities.counters_for(event).trailing_zeros() as u8);
    let mut those = events.into_iter().map(first);
    those.find(|(_, counter)| *counter < 8).unwrap_or((events[0], 0))
}
