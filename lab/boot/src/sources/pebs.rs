//! Processor event-based sampling (PEBS): the processor writes a record with the exact instruction of every n-th event
//! into a buffer that the debug store (DS) area in memory describes.

use alloc::boxed::Box;
use pugmark_boot::samples::PreciseSamples;
use pugmark_decoder_core::pebs::Format;
use pugmark_kernel::drain::{Chunk, KeepAll, Sink};
use pugmark_kernel::intel::ds::{AreaPlan, BufferMode, BufferPlan, DsConfig, DsRefusal, Half};
use pugmark_kernel::intel::pebs::{
    Counter, Groups, Item, PebsCapabilities, PebsConfig, PreciseEvent, Samples as RecordSink,
};
use pugmark_kernel::lifecycle::StartError;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_protocol::{EventKind, Line, Precise, Samples};

use super::debug_store::{self, Store, StoreRunning};
use super::source::Source;
use crate::arch::serial::say;
use crate::plan::{Need, Plan};
use crate::report::{Recorded, RecordingError, SessionReport};
use crate::session::{Prepared, Running, Serve, SourceError, Stopped};

/// The events to sample, one in each pass. Instructions are first, because every processor with PEBS can sample them.
const SAMPLED: [EventKind; 2] = [EventKind::Instructions, EventKind::Branches];

/// Events from one sample to the next, or fewer on a processor that does not support that period. The part of the
/// handler after it resumes the counters must be shorter than the time in which the buffer fills.
const INSTRUCTIONS: u32 = 211;
const BRANCHES: u32 = 41;

/// Number of records for which the buffer has room, and number of those that the driver keeps free.
const RECORDS: u64 = 60;
const SPARE: u32 = 30;

/// Bytes of the registers in an adaptive record: RFLAGS, RIP, and 16 general-purpose registers.
const REGISTERS: u64 = 18 * 8;

/// Maximum number of samples of a workload.
const ROOM: usize = 1 << 16;

/// Processor event-based sampling.
pub(super) struct PreciseSampling;

impl Source for PreciseSampling {
    fn passes(&self, _: u32) -> u32 {
        SAMPLED.len() as u32
    }

    fn prepare(&self, pass: u32, plan: &Plan) -> Result<Prepared, SourceError> {
        let kind = SAMPLED[pass as usize];
        let unit = debug_store::detect()?;
        plan.require("samples", &[Need::DebugStore]).map_err(SourceError::refused)?;
        let capabilities = unit.capabilities().pebs.map_err(SourceError::refused)?;
        let format = capabilities.format;
        let (event, counter) = choose(kind, &capabilities);
        let wanted = if kind == EventKind::Branches { BRANCHES } else { INSTRUCTIONS };
        let period =
            capabilities.periods(Counter::General(counter), Some(event)).at_most(wanted.into()) as u32;
        let config = PebsConfig::new().general(counter, event, period.into()).os(plan.os()).user(plan.user());
        // Check now, before a session is announced.
        config
            .check(&capabilities, SPARE)
            .map_err(|refusal| debug_store::not_started(StartError::Refused(DsRefusal::Pebs(refusal))))?;
        let (groups, bytes) = match format {
            Format::Adaptive => (Groups::BASIC.registers(true), format.least_bytes() as u64 + REGISTERS),
            _ => (Groups::BASIC, format.least_bytes() as u64),
        };
        let mode = BufferMode::Interrupt { spare: SPARE };
        let buffer = BufferPlan { bytes: RECORDS * bytes, page_offset: 0, mode };
        let memory = AreaPlan::new().pebs(buffer, groups);
        let store = Store::allocate(unit, &memory, DsConfig::new().pebs(config), plan)?;
        let records = DrainedRecords { format, kept: PreciseSamples::with_room(ROOM), invalid: 0 };
        Ok(Prepared::new(plan.delivery, move || {
            Ok(RunningPebs { running: store.start()?, kind, period, records })
        }))
    }
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

/// The records that were drained.
struct DrainedRecords {
    format: Format,
    kept: PreciseSamples,
    /// Number of invalid records.
    invalid: u64,
}

impl DrainedRecords {
    /// Returns a sink that keeps drained records.
    fn sink(&mut self) -> RecordSink<impl FnMut(Item<'_>) -> bool> {
        let Self { format, kept, invalid } = self;
        RecordSink::new(*format, |item| {
            match item {
                Item::Record(record) => kept.store(record.eventing_ip, record.next_ip()),
                Item::Gap(_) => kept.gap(),
                Item::Error(_) => *invalid += 1,
            }
            true
        })
    }
}

struct RunningPebs {
    running: StoreRunning,
    kind: EventKind,
    period: u32,
    records: DrainedRecords,
}

impl Running for RunningPebs {
    fn serve(&mut self, _: Option<u64>, serve: Serve<'_>) -> Result<Pmi, GeneralProtection> {
        // This source has no branch records.
        serve(&mut [&mut self.running.source(&mut KeepAll, &mut self.records.sink())])
    }

    fn stop(self: Box<Self>, _: &mut Handler) -> Result<Stopped, SourceError> {
        let Self { running, kind: event, period, mut records } = *self;
        let stopped = running.stop().map_err(|failed| SourceError::does_not_stop(failed.fault))?;
        let mut sink = records.sink();
        for chunk in stopped.records.chunks(Half::Pebs) {
            match chunk {
                Chunk::Bytes(bytes) => _ = sink.bytes(bytes),
                Chunk::Gap(gap) => _ = sink.gap(gap),
            }
        }
        drop(sink);
        let loss = *stopped.records.loss(Half::Pebs);
        let DrainedRecords { kept, invalid: unplaced, .. } = records;
        let samples =
            Samples { event, period: period.into(), lost: loss.samples, unplaced, ..Samples::default() };
        Ok(Stopped::new(PreciseRecording { kept, samples }, loss))
    }
}

struct PreciseRecording {
    kept: PreciseSamples,
    /// The event and its period, and the counts of the other samples.
    samples: Samples,
}

impl Recorded for PreciseRecording {
    fn report(&self, report: &SessionReport<'_>) -> Result<(), RecordingError> {
        let &SessionReport { name, number: session, .. } = report;
        let taken = self.kept.samples().len() as u64;
        say(Line::Samples(name, Samples { session, taken, ..self.samples }));
        for sample in self.kept.samples() {
            if sample.after_gap {
                say(Line::Missing(name, session));
            }
            say(Line::Precise(name, Precise { session, event: sample.event, next: sample.next }));
        }
        report.say_code_and_losses(self.kept.full());
        Ok(())
    }
}
