//! A recording unit as one source of PMIs, to be served by the [PMI handler](crate::pmi::Handler).

use super::{Halted, Recording};
use crate::msr::GeneralProtection;
use crate::pmi::{Abandoned, PmiSource, Requests, Route};

/// How a session is served in a PMI handler, with sinks of the type `K` that receive what it has recorded.
///
/// The methods are called in the order in which [`PmiSource`] lists them.
pub(crate) trait Serve<K>: Recording {
    /// As [`PmiSource::status`].
    fn status(&self) -> Requests {
        Requests::NONE
    }

    /// As [`PmiSource::route`].
    fn route(&self) -> Route {
        Route::Counters
    }

    /// As [`PmiSource::asks`].
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn asks(&mut self) -> Result<bool, GeneralProtection> {
        Ok(false)
    }

    /// As [`PmiSource::may_ask`].
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        self.asks()
    }

    /// As [`PmiSource::service`].
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn serve(&mut self, seen: Requests, sinks: &mut K, halted: &Halted) -> Result<bool, GeneralProtection>;

    /// As [`PmiSource::resume`].
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn resume(&mut self, halted: Halted) -> Result<(), GeneralProtection>;

    /// As [`PmiSource::abandon`].
    fn abandon(&mut self, why: Abandoned);

    /// As [`PmiSource::late_requests`].
    fn late_requests(&self) -> u8 {
        0
    }
}

/// A recording unit in a PMI handler, with the sinks that receive what it has recorded.
#[derive(Debug)]
pub(crate) struct Source<'a, S, K> {
    session: &'a mut S,
    sinks: K,
    /// The proof that the unit is halted, until it is resumed.
    halted: Option<Halted>,
}

impl<'a, S: Serve<K>, K> Source<'a, S, K> {
    pub(crate) const fn new(session: &'a mut S, sinks: K) -> Self {
        Self { session, sinks, halted: None }
    }

    /// Returns the proof that the unit is halted. A handler has called [`PmiSource::quiesce`] before; other callers of
    /// this safe trait may not have, and then the unit is halted here: memory is never read or armed while it records.
    fn take_halted(&mut self) -> Result<Halted, GeneralProtection> {
        match self.halted.take() {
            Some(halted) => Ok(halted),
            None => Halted::halt(self.session),
        }
    }
}

impl<S: Serve<K>, K> PmiSource for Source<'_, S, K> {
    fn status(&self) -> Requests {
        self.session.status()
    }

    fn route(&self) -> Route {
        self.session.route()
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        self.halted = Some(self.take_halted()?);
        Ok(())
    }

    fn asks(&mut self) -> Result<bool, GeneralProtection> {
        self.session.asks()
    }

    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        self.session.may_ask()
    }

    fn service(&mut self, seen: Requests) -> Result<bool, GeneralProtection> {
        let halted = self.take_halted()?;
        let served = self.session.serve(seen, &mut self.sinks, &halted);
        self.halted = Some(halted);
        served
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        let halted = self.take_halted()?;
        self.session.resume(halted)
    }

    fn abandon(&mut self, why: Abandoned) {
        self.session.abandon(why);
    }

    fn late_requests(&self) -> u8 {
        self.session.late_requests()
    }
}
