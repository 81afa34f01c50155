//! Intel Processor Trace (PT): packets of control flow, in a buffer of physical memory.

use alloc::boxed::Box;
use pugmark_boot::archive::Archive;
use pugmark_boot::decode::decode;
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::intel::pt::{
    Buffer, BufferError, PtCapabilities, PtConfigRefusal, PtRefusal, PtRunning, PtStopped, PtUnit,
};
use pugmark_kernel::lifecycle::StartError;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi::{Handler, Pmi};

use super::frames::KernelFrames;
use super::source::Source;
use super::toggle::Toggle;
use crate::arch::registers;
use crate::plan::{Need, Plan};
use crate::report::{Flow, Recorded, RecordingError, SessionReport};
use crate::session::{self, Prepared, Running, Serve, SourceError, Stopped};

/// Bytes of memory for a workload's trace.
const ARCHIVE_SIZE: usize = 4 << 20;

/// Intel Processor Trace.
pub(super) struct ProcessorTrace;

impl Source for ProcessorTrace {
    fn prepare(&self, _: u32, plan: &Plan) -> Result<Prepared, SourceError> {
        let capabilities =
            PtCapabilities::of_this_processor().map_err(|absent| SourceError::absent(absent.into()))?;
        let offered = [Need::Cr3Filter, Need::AddressFilters, Need::Packets, Need::Pauses];
        plan.require("packets", &offered).map_err(SourceError::refused)?;
        let config = plan.config;
        config.check(&capabilities).map_err(refused)?;
        let unit = PtUnit::with_capabilities(capabilities, registers::msr()).map_err(SourceError::absent)?;
        let unit = unit.gated_by(session::gate());
        let mut toggle = plan.pauses.and_then(Toggle::new);
        let buffer =
            Buffer::allocate(KernelFrames, &capabilities, plan.layout, plan.mode).map_err(refused)?;
        let archive = Archive::with_room(ARCHIVE_SIZE);
        Ok(Prepared::new(plan.delivery, move || {
            let running = unit.start(&config, buffer).map_err(|failed| not_started(failed.error()))?;
            if let Some(toggle) = &mut toggle {
                toggle.start().map_err(SourceError::failed)?;
            }
            Ok(RunningPt { running, archive, toggle })
        }))
    }
}

pub(super) fn not_started(error: StartError<PtRefusal>) -> SourceError {
    let is_refusal = match &error {
        StartError::Refused(PtRefusal::Buffer(BufferError::Missing(_))) => true,
        StartError::Refused(PtRefusal::Config(refusal)) => matches!(
            refusal,
            PtConfigRefusal::Missing(_) | PtConfigRefusal::Encoding { .. } | PtConfigRefusal::Ranges { .. }
        ),
        _ => false,
    };
    SourceError::new(is_refusal, error)
}

/// Makes the error that the processor does not support the request.
pub(super) fn refused(refusal: impl Into<PtRefusal>) -> SourceError {
    not_started(StartError::Refused(refusal.into()))
}

struct RunningPt {
    running: PtRunning<GuardedMsr, KernelFrames>,
    archive: Archive,
    toggle: Option<Toggle>,
}

impl Running for RunningPt {
    fn serve(&mut self, _: Option<u64>, serve: Serve<'_>) -> Result<Pmi, GeneralProtection> {
        let Self { running, archive, toggle } = self;
        serve(&mut [&mut running.source(archive), toggle])
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.running.resume().map(|_| ())
    }

    fn stop(self: Box<Self>, _: &mut Handler) -> Result<Stopped, SourceError> {
        let Self { running, mut archive, toggle } = *self;
        toggle.map_or(Ok(()), Toggle::stop).map_err(SourceError::does_not_stop)?;
        let PtStopped { trace, loss, .. } =
            running.stop().map_err(|failed| SourceError::does_not_stop(failed.fault))?;
        archive.keep(trace.chunks());
        Ok(Stopped::new(PtRecording { archive }, loss))
    }
}

struct PtRecording {
    archive: Archive,
}

impl Recorded for PtRecording {
    fn report(&self, session: &SessionReport<'_>) -> Result<(), RecordingError> {
        let Self { archive } = self;
        let is_whole = session.say_flow(archive, |sections, histogram| {
            let decoded = decode(archive, sections, histogram);
            Flow {
                pieces: decoded.pieces,
                records: None,
                total: decoded.total,
                overflows: decoded.overflows,
                error: decoded.first_error.map(RecordingError::Packets),
            }
        })?;
        if is_whole {
            session.workload.check_trace(archive.trace()).map_err(RecordingError::Mismatch)?;
        }
        Ok(())
    }
}
