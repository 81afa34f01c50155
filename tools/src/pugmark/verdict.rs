//! The exit status of a command that decodes traces.

use super::notes::CommandNotes;
use crate::output::tell;
use crate::symbols::OTHER_CODE;
use std::process::ExitCode;

/// Everything that is missing from a command's result, in its traces and in what was recorded beside them.
///
/// [`Input::traces`](super::options::Input::traces) adds what the recording says that it lost; the command adds what it
/// finds in the traces.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Losses that the recording reports, and parts of its file that cannot be read. They were told when it was read.
    pub(super) recorded: usize,
    /// Errors in the traces, and places where the processor lost packets.
    pub(super) errors: usize,
    /// Nothing was executed.
    pub(super) is_empty: bool,
    /// The notes of the traces.
    pub(super) notes: CommandNotes,
}

impl Verdict {
    /// Returns true if nothing is missing.
    pub(super) fn is_good(&self) -> bool {
        self.recorded == 0 && self.errors == 0 && !self.is_empty && self.notes.unfit().is_empty()
    }

    /// Warns of what the traces lack. Returns the exit status: a failure if anything is missing.
    pub(super) fn status(&self) -> ExitCode {
        if self.errors > 0 {
            tell(format_args!(
                "pugmark: warning: {} errors and losses in the traces: `pugmark decode` says where",
                self.errors
            ));
        } else if self.is_empty {
            tell(format_args!("pugmark: warning: no code was executed: `pugmark decode` says why"));
        }
        for file in self.notes.unfit() {
            tell(format_args!("pugmark: warning: --symbols {}: {OTHER_CODE}", file.display()));
        }
        if self.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
