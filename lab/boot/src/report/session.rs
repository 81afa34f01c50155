//! The session that is being reported.

use alloc::vec::Vec;
use pugmark_boot::code_section::code_section;
use pugmark_boot::symbols::Symbols;
use pugmark_decoder_core::image::{AddressSpace, Section};
use pugmark_kernel::loss::Loss;
use pugmark_kernel::pmi::Counts;
use pugmark_protocol::{Line, Lost};

use super::error::RecordingError;
use crate::arch::image;
use crate::arch::serial::say;
use crate::plan::Plan;
use crate::workload::Workload;

/// The recording of a session, from any source.
pub(crate) trait Recorded {
    /// Reports the recording.
    ///
    /// # Errors
    /// If the recording does not match the plan.
    fn report(&self, session: &SessionReport<'_>) -> Result<(), RecordingError>;
}

/// The session that is being reported.
pub(crate) struct SessionReport<'a> {
    /// The workload's name.
    pub(crate) name: &'a str,
    pub(crate) workload: &'a dyn Workload,
    pub(crate) plan: &'a Plan,
    /// The session's number.
    pub(crate) number: u16,
    pub(crate) loss: &'a Loss,
    pub(crate) counts: &'a Counts,
    pub(crate) symbols: &'a Symbols<'a>,
    pub(crate) options: ReportOptions,
}

/// The options of the command line for reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportOptions {
    /// Send the trace bytes to the debug console, and report which code was traced.
    pub(crate) dump: bool,
    /// Do not decode a trace.
    pub(crate) no_decode: bool,
    /// The machine is set up to overflow.
    pub(crate) overflows: bool,
}

impl SessionReport<'_> {
    /// Returns the code that ran.
    pub(super) fn sections(&self) -> Vec<Section<'_>> {
        let text =
            Section { base: image::text().start, bytes: image::text_bytes(), space: AddressSpace::Any };
        [text].into_iter().chain(self.workload.sections()).collect()
    }

    /// Reports the code that ran and, for a source without a trace, the losses; `full` is the number of losses for lack
    /// of memory.
    pub(crate) fn say_code_and_losses(&self, full: u64) {
        self.say_code(&self.sections());
        let lost = Lost {
            stops: self.loss.stop,
            full: self.loss.full + full,
            strays: self.counts.stray,
            ..Lost::default()
        };
        say(Line::Lost(self.name, lost));
    }

    pub(super) fn say_code(&self, sections: &[Section<'_>]) {
        for section in sections {
            say(Line::Section(self.name, code_section(section)));
        }
    }
}
