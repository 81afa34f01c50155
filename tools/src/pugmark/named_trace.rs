//! A trace with all that following its calls needs.

use super::{
    code::TracedCode,
    options::Input,
    progress::Progress,
    recording::Traced,
    symbols::TracedSymbols,
    walk::{Happening, Time, TraceClock, walk},
};
use anyhow::Result;
use pugmark_decoder_core::{config::Config, image::Image};
use std::path::PathBuf;

/// A trace, its code, the configuration of a decoder for it, and the names of its functions.
pub(super) struct NamedTrace {
    pub(super) trace: Vec<u8>,
    pub(super) code: TracedCode,
    pub(super) config: Config<'static>,
    pub(super) names: TracedSymbols,
    pub(super) clock: TraceClock,
}

impl NamedTrace {
    /// Loads a trace; `symbols` are files that have names of functions, too.
    ///
    /// # Errors
    /// If there is no code, or a file cannot be read.
    pub(super) fn load(
        input: &Input,
        traced: &Traced,
        symbols: &[PathBuf],
        progress: &mut Progress,
    ) -> Result<Self> {
        let code = input.code(traced)?;
        let trace = input.load(traced, progress)?;
        let config = input.config(traced)?;
        let names = TracedSymbols::of(traced, &code, input.symfs.as_deref(), symbols)?;
        let clock = TraceClock::of(&trace, config);
        Ok(Self { trace, code, config, names, clock })
    }

    /// Follows the calls, as [`walk`] does. Returns when the trace ends.
    pub(super) fn walk(&self, progress: &mut Progress, visit: &mut dyn FnMut(Time, Happening)) -> Time {
        self.walk_by(self.clock, progress, visit)
    }

    /// The same by another clock; with [`TraceClock::INSTRUCTIONS`] it is many times as fast.
    pub(super) fn walk_by(
        &self,
        clock: TraceClock,
        progress: &mut Progress,
        visit: &mut dyn FnMut(Time, Happening),
    ) -> Time {
        let sections = self.code.sections();
        walk(&self.trace, Image::new(&sections), self.config, clock, Some(&self.names), progress, visit)
    }
}
