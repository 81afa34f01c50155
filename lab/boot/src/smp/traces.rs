//! Traces that have ended: their bytes are copied and decoded, and lines report the result.

use alloc::vec::Vec;
use pugmark_boot::archive::Archive;
use pugmark_boot::decode::decode;
use pugmark_boot::histogram::Histogram;
use pugmark_decoder_core::image::{AddressSpace, Section};
use pugmark_kernel::intel::pt::Trace;
use pugmark_kernel::loss::Loss;
use pugmark_protocol::{Filter, Line, Lost, Stat};

use super::SmpWorkload;
use crate::arch::image;
use crate::arch::serial::say;
use crate::runner::RunError;
use crate::sources::KernelFrames;
use crate::workload::{Mismatch, expect};

/// A trace that has ended.
pub(super) struct Ended {
    /// The marker of its records in the log.
    pub(super) session: u16,
    archive: Archive,
    loss: Loss,
}

/// Returns the kernel's code.
pub(super) fn code() -> Section<'static> {
    Section { base: image::text().start, bytes: image::text_bytes(), space: AddressSpace::Any }
}

impl Ended {
    /// Copies the bytes of a trace that has ended, at most `room` of them.
    pub(super) fn new(session: u16, trace: &Trace<KernelFrames>, loss: Loss, room: usize) -> Self {
        let mut archive = Archive::with_room(room);
        archive.keep(trace.chunks());
        Self { session, archive, loss }
    }

    /// Returns the copied bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        self.archive.trace()
    }

    /// Decodes and reports the run `name`. Nothing may be missing. `worked` is the result of checking the work.
    pub(super) fn report(&self, smp: &SmpWorkload<'_>, name: &str, worked: Result<(), Mismatch>) {
        let Self { session, archive, loss } = self;
        say(Line::Run(name));
        say(Line::Session(name, *session));
        say(Line::Filter(name, Filter::default()));
        let sections: Vec<_> = [code()].into();
        let decoded = decode(archive, &sections, &mut Histogram::new(smp.symbols));
        let lost = Lost {
            overflows: decoded.overflows,
            stops: loss.stop,
            wraps: loss.wrap + loss.perhaps_wrapped,
            full: loss.full + archive.full(),
            strays: 0,
        };
        let stat = Stat {
            count: decoded.total.count(),
            hash: decoded.total.value(),
            bytes: archive.trace().len() as u64,
            pmis: 0,
            loss: lost.total(),
            decode_us: None,
            branches: None,
        };
        say(Line::Stat(name, stat));
        for (index, piece) in decoded.pieces.into_iter().enumerate() {
            say(Line::Piece(name, index, piece));
        }
        say(Line::Lost(name, lost));
        let checked = worked
            .and_then(|()| expect("the number of losses", lost.total(), 0))
            .and_then(|()| expect("the number of decoding errors", decoded.errors, 0));
        (smp.report)(name, checked.map_err(RunError::Workload));
    }
}
