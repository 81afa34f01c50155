//! A session with all that following its calls needs.

use super::{
    loaded::LoadedSession,
    options::Input,
    progress::Progress,
    recording::{IndexedPart, Traced},
    visitors::{Time, TraceClock, Visitor, WalkedLane, walk_lanes},
};
use crate::symbols::TracedSymbols;
use anyhow::Result;
use std::{path::PathBuf, rc::Rc};

/// Traces, their code, and the names of the functions of each lane.
pub(super) struct NamedSession {
    pub(super) loaded: LoadedSession,
    pub(super) names: Vec<Rc<TracedSymbols>>,
}

impl NamedSession {
    /// Loads traces; `symbols` are files that have names of functions, too.
    ///
    /// # Errors
    /// If there is no code, or a file cannot be read.
    pub(super) fn load(
        input: &Input,
        traced: &Traced,
        symbols: &[PathBuf],
        progress: &mut Progress,
    ) -> Result<Self> {
        let loaded = LoadedSession::load(input, traced, progress)?;
        let names = (0..loaded.lanes.len()).map(|lane| loaded.symbols(lane, input, symbols));
        let names = names.collect::<Result<_>>()?;
        Ok(Self { loaded, names })
    }

    /// Returns the thread of a lane, or the part of a recording.
    pub(super) fn part(&self, lane: usize) -> Option<&IndexedPart> {
        self.loaded.lanes.get(lane)?.part.as_ref()
    }

    /// Follows the calls, with a visitor for each lane. Returns when each ends, and the number of errors.
    pub(super) fn walk<V: Visitor>(&self, progress: &mut Progress, visitors: &mut [V]) -> (Vec<Time>, usize) {
        self.walk_by(self.loaded.shown_clock(), progress, visitors)
    }

    /// Returns the same by another clock; with [`TraceClock::INSTRUCTIONS`] it is many times as fast.
    pub(super) fn walk_by<V: Visitor>(
        &self,
        clock: TraceClock,
        progress: &mut Progress,
        visitors: &mut [V],
    ) -> (Vec<Time>, usize) {
        let sections = self.loaded.sections();
        let lanes = visitors.iter_mut().zip(&self.names);
        let lanes = lanes.map(|(visitor, names)| WalkedLane { names, visitor }).collect();
        let ends = walk_lanes(&self.loaded.session(&sections), clock, false, progress, lanes);
        let errors: usize = ends.iter().map(|end| end.errors).sum();
        let errors = errors + self.loaded.misses(ends.iter().map(|end| end.time.insns).sum(), errors);
        (ends.into_iter().map(|end| end.time).collect(), errors)
    }
}
