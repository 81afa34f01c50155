//! Intel PT whose trace is decoded in place, in the PMI handler: no byte is kept or copied.

use alloc::boxed::Box;
use alloc::vec;
use pugmark_decoder_core::block_cache::{BlockCache, ExecutionSink, InstructionRun};
use pugmark_decoder_core::event::Event;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_decoder_core::resume::{BlockStream, Kept, Lost as Missing};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::drain::Sink;
use pugmark_kernel::intel::pt::{Buffer, PtCapabilities, PtDecoder, PtRunning, PtStopped, PtUnit};
use pugmark_kernel::loss::Gap;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_protocol::{After, Line, Lost, Piece, Stat};

use super::frames::KernelFrames;
use super::pt::{not_started, refused};
use super::source::Source;
use crate::arch::serial::say;
use crate::arch::{clock, image, registers};
use crate::plan::Plan;
use crate::report::{Recorded, RecordingError, SessionReport};
use crate::session::{Prepared, Running, Serve, SourceError, Stopped};
use crate::workload::expect;

/// Intel PT, decoded in place. It knows only the kernel's code.
pub(crate) struct InPlace;

/// Words of memory for the decoder's known code.
const CACHE: usize = 64 << 10;

impl Source for InPlace {
    fn prepare(&self, _: u32, plan: &Plan) -> Result<Prepared, SourceError> {
        let capabilities =
            PtCapabilities::of_this_processor().map_err(|absent| SourceError::absent(absent.into()))?;
        let config = plan.config;
        let for_decoder = config.for_decoder(&capabilities).map_err(refused)?;
        let unit = PtUnit::with_capabilities(capabilities, registers::msr()).map_err(SourceError::absent)?;
        let buffer =
            Buffer::allocate(KernelFrames, &capabilities, plan.layout, plan.mode).map_err(refused)?;
        // The memory stays with the decoder forever: this source records once.
        let text =
            Section { base: image::text().start, bytes: image::text_bytes(), space: AddressSpace::Any };
        let code = Image::new(Box::leak(Box::new([text])));
        let stream = BlockStream::new(code, for_decoder, Box::leak(Box::new(<Kept>::new())));
        let decoder = PtDecoder::new(stream, BlockCache::new(vec![0; CACHE].leak()), Executed::new());
        Ok(Prepared::new(plan.delivery, move || {
            let running = unit.start(&config, buffer).map_err(|failed| not_started(failed.error()))?;
            Ok(RunningInPlace { running, decoder: Clocked { decoder, ticks: 0 } })
        }))
    }
}

/// The instructions that were executed.
struct Executed {
    all: AddressHash,
    first: Option<u64>,
    last: u64,
}

impl Executed {
    const fn new() -> Self {
        Self { all: AddressHash::new(), first: None, last: 0 }
    }
}

impl ExecutionSink for Executed {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        for ip in insns {
            self.all.add(ip);
            self.first.get_or_insert(ip);
            self.last = ip;
        }
    }
    fn event(&mut self, _: &Event) {}
    fn lost(&mut self, _: &Missing) {}
}

type Decoder = PtDecoder<'static, 'static, 'static, Executed>;

/// A decoder, and the time that it has worked.
struct Clocked {
    decoder: Decoder,
    ticks: u64,
}

impl Sink for Clocked {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        let before = clock::tsc();
        let taken = self.decoder.bytes(bytes);
        self.ticks += clock::tsc().wrapping_sub(before);
        taken
    }
    fn gap(&mut self, gap: Gap) -> bool {
        self.decoder.gap(gap)
    }
}

struct RunningInPlace {
    running: PtRunning<GuardedMsr, KernelFrames>,
    decoder: Clocked,
}

impl Running for RunningInPlace {
    fn serve(&mut self, _: Option<u64>, serve: Serve<'_>) -> Result<Pmi, GeneralProtection> {
        serve(&mut [&mut self.running.source(&mut self.decoder)])
    }

    fn stop(self: Box<Self>, _: &mut Handler) -> Result<Stopped, SourceError> {
        let Self { running, mut decoder } = *self;
        let PtStopped { mut trace, loss, .. } =
            running.stop().map_err(|failed| SourceError::does_not_stop(failed.fault))?;
        trace.drain_to(&mut decoder);
        decoder.decoder.finish();
        Ok(Stopped::new(decoder, loss))
    }
}

impl Recorded for Clocked {
    fn report(&self, session: &SessionReport<'_>) -> Result<(), RecordingError> {
        let &SessionReport { name, loss, counts, .. } = session;
        let Self { decoder, ticks } = self;
        let Executed { all, first, last } = &decoder.sink;
        let (count, hash) = (all.count(), all.value());
        let lost = Lost {
            overflows: decoder.stream.counters().overflows,
            stops: loss.stop,
            wraps: loss.wrap + loss.perhaps_wrapped,
            full: loss.full,
            strays: counts.stray,
        };
        let stat = Stat {
            count,
            hash,
            bytes: decoder.bytes_decoded(),
            pmis: counts.served + counts.unannounced,
            loss: lost.total(),
            decode_us: Some(clock::microseconds(*ticks)),
            branches: None,
        };
        say(Line::Stat(name, stat));
        let first = first.unwrap_or_default();
        say(Line::Piece(name, 0, Piece { count, hash, first, last: *last, after: After::Start }));
        say(Line::Lost(name, lost));
        expect("the number of gaps", decoder.gaps(), 0).map_err(RecordingError::Mismatch)?;
        expect("the number of decoding errors", decoder.stream.errors(), 0).map_err(RecordingError::Mismatch)
    }
}
