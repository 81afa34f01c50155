//! A recording unit as one source of PMIs, to be served by the [PMI handler](crate::pmi::Handler).

use super::running::Call;
use super::{Halted, Recording, Running};
use crate::msr::GeneralProtection;
use crate::pmi::{Abandoned, PmiSource, Requests, Route};

/// Service of a session in a PMI handler, with sinks of the type `K` that receive the recorded data.
///
/// The methods are called in the order in which [`PmiSource`] lists them.
pub(crate) trait Serve<K>: Recording {
    /// Returns the status bits: as [`PmiSource::status`].
    fn status(&self) -> Requests {
        Requests::NONE
    }

    /// Returns the route: as [`PmiSource::route`].
    fn route(&self) -> Route {
        Route::Counters
    }

    /// Returns whether there is a request: as [`PmiSource::asks`].
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn asks(&mut self) -> Result<bool, GeneralProtection> {
        Ok(false)
    }

    /// Returns whether there may be a request: as [`PmiSource::may_ask`].
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        self.asks()
    }

    /// Serves the session: as [`PmiSource::service`].
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn serve(&mut self, seen: Requests, sinks: &mut K, halted: &Halted) -> Result<bool, GeneralProtection>;

    /// Resumes the session: as [`PmiSource::resume`].
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    fn resume(&mut self, halted: Halted) -> Result<(), GeneralProtection>;

    /// Returns the number of late requests: as [`PmiSource::late_requests`].
    fn late_requests(&self) -> u8 {
        0
    }
}

/// A recording unit in a PMI handler, with the sinks that receive the recorded data.
///
/// If it is dropped while the unit is halted, it notes that the unit stays off.
#[derive(Debug)]
pub(crate) struct Source<'a, S: Recording, K> {
    call: Call<'a, S>,
    sinks: K,
    /// The proof that the unit is halted, until it is resumed.
    halted: Option<Halted>,
}

impl<'a, S: Serve<K>, K> Source<'a, S, K> {
    pub(crate) fn new(running: &'a mut Running<S>, sinks: K) -> Self {
        Self { call: Call::new(running), sinks, halted: None }
    }

    /// Returns the proof that the unit is halted. A handler has called [`PmiSource::quiesce`] before. For other callers
    /// of this safe trait, which may not have, the unit is halted here: its memory must not be read or armed while it
    /// records.
    fn take_halted(&mut self) -> Result<Halted, GeneralProtection> {
        self.call.begin();
        match self.halted.take() {
            Some(halted) => Ok(halted),
            None => Halted::halt(self.call.session()),
        }
    }
}

impl<S: Serve<K>, K> PmiSource for Source<'_, S, K> {
    fn status(&self) -> Requests {
        self.call.session_ref().status()
    }

    fn route(&self) -> Route {
        self.call.session_ref().route()
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        self.halted = Some(self.take_halted()?);
        Ok(())
    }

    fn asks(&mut self) -> Result<bool, GeneralProtection> {
        self.call.session().asks()
    }

    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        self.call.session().may_ask()
    }

    fn service(&mut self, seen: Requests) -> Result<bool, GeneralProtection> {
        let halted = self.take_halted()?;
        let served = self.call.session().serve(seen, &mut self.sinks, &halted);
        self.halted = Some(halted);
        served
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        let halted = self.take_halted()?;
        self.call.session().resume(halted)?;
        self.call.end();
        Ok(())
    }

    fn abandon(&mut self, why: Abandoned) {
        self.call.session().abandon(why);
        self.call.end();
    }

    fn late_requests(&self) -> u8 {
        self.call.session_ref().late_requests()
    }
}
