//! The Branch Trace Store (BTS): the processor writes a record of each taken branch into a buffer that the debug store
//! (DS) area in memory describes.

use alloc::boxed::Box;
use pugmark_boot::archive::Archive;
use pugmark_boot::branches::{Context, decode};
use pugmark_kernel::drain::KeepAll;
use pugmark_kernel::intel::bts::BtsConfig;
use pugmark_kernel::intel::ds::{AreaPlan, BufferMode, BufferPlan, DsConfig, Half};
use pugmark_kernel::intel::pt::{Layout, Mode};
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_protocol::Level;

use super::debug_store::{self, Store, StoreRunning};
use super::source::Source;
use crate::arch::paging::PageTableRoot;
use crate::plan::{Need, Plan};
use crate::report::{Flow, Recorded, RecordingError, SessionReport};
use crate::session::{Prepared, Running, Serve, SourceError, Stopped};
use pugmark_machine::traps::stub_addresses;

/// Bytes of memory for a workload's records.
const ARCHIVE_SIZE: usize = 4 << 20;
/// The length of a branch record in bytes.
const RECORD: u64 = 24;
/// Size of a buffer that is not drained, as a multiple of Intel PT's: a record takes 24 bytes where PT needs one bit.
const UNDRAINED: u64 = 8;

/// The Branch Trace Store.
pub(super) struct BranchTraceStore;

impl Source for BranchTraceStore {
    fn prepare(&self, _: u32, plan: &Plan) -> Result<Prepared, SourceError> {
        let unit = debug_store::detect()?;
        plan.require("branch records", &[Need::DebugStore]).map_err(SourceError::refused)?;
        let levels = BtsConfig::new().os(plan.os()).user(plan.user());
        let memory = AreaPlan::new().bts(buffer(plan));
        let store = Store::allocate(unit, &memory, DsConfig::new().bts(levels), plan)?;
        let archive = Archive::with_room(ARCHIVE_SIZE);
        // The records do not show that none were written while the buffer was drained.
        let archive = if plan.mode == Mode::Overwrite { archive } else { archive.apart() };
        let start = move || Ok(RunningBts { running: store.start()?, archive });
        Ok(Prepared::new(plan.delivery, start).drained_between_spaces())
    }
}

/// Returns the plan of a buffer for the same number of bytes as the plan has for PT.
fn buffer(plan: &Plan) -> BufferPlan {
    let bytes = match plan.layout {
        Layout::SingleRange { bytes } => bytes * UNDRAINED,
        Layout::Topa { size, regions, .. } => size.bytes() * u64::from(regions),
        Layout::MixedTopa { bytes, .. } => bytes,
    };
    let mode = match plan.mode {
        Mode::Overwrite => BufferMode::Circular,
        Mode::StopWhenFull { .. } | Mode::Circular { .. } => BufferMode::INTERRUPT,
    };
    BufferPlan { bytes: bytes - bytes % RECORD, page_offset: 0, mode }
}

struct RunningBts {
    running: StoreRunning,
    archive: Archive,
}

impl Running for RunningBts {
    fn serve(&mut self, _: Option<u64>, serve: Serve<'_>) -> Result<Pmi, GeneralProtection> {
        self.archive.enter(PageTableRoot::current().cr3());
        // The Branch Trace Store takes no samples.
        serve(&mut [&mut self.running.source(&mut self.archive, &mut KeepAll)])
    }

    fn drain(&mut self) -> Result<(), GeneralProtection> {
        self.archive.enter(PageTableRoot::current().cr3());
        self.running.drain(&mut self.archive, &mut KeepAll).map(|_| ())
    }

    fn stop(self: Box<Self>, _: &mut Handler) -> Result<Stopped, SourceError> {
        let Self { running, mut archive } = *self;
        let stopped = running.stop().map_err(|failed| SourceError::does_not_stop(failed.fault))?;
        archive.enter(PageTableRoot::current().cr3());
        archive.keep(stopped.records.chunks(Half::Bts));
        let loss = *stopped.records.loss(Half::Bts);
        Ok(Stopped::new(BranchRecords { archive }, loss))
    }
}

struct BranchRecords {
    archive: Archive,
}

impl Recorded for BranchRecords {
    fn report(&self, session: &SessionReport<'_>) -> Result<(), RecordingError> {
        let Self { archive } = self;
        let one_level = session.plan.filter.level != Level::Any;
        let context = Context { handlers: &[stub_addresses()], one_level };
        session.say_flow(archive, |sections, histogram| {
            let decoded = decode(archive, sections, &context, histogram);
            Flow {
                pieces: decoded.pieces,
                records: Some(decoded.records),
                total: decoded.total,
                overflows: 0,
                error: decoded.first_error.map(RecordingError::Branches),
            }
        })?;
        Ok(())
    }
}
