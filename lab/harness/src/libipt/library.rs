//! The releases of libipt, each loaded once.

use super::binding::{Config, Library};
use super::release::Release;
use std::{
    ffi::{CStr, c_int},
    ptr,
    sync::{Mutex, PoisonError},
};

const VENDOR_INTEL: u64 = 1;

/// One of Intel's processors: family, model and stepping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The display family.
    pub family: u16,
    /// The display model.
    pub model: u8,
    /// The stepping.
    pub stepping: u8,
}

impl Library {
    /// Loads the release at its first use; `None` if it is not found.
    pub(super) fn get(release: &'static Release) -> Option<&'static Self> {
        static LOADED: Mutex<Vec<(&Release, Option<&Library>)>> = Mutex::new(vec![]);
        // A thread that panics with the lock held leaves the list intact.
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = loaded.iter().find(|(known, _)| ptr::eq(*known, release));
        known.map(|(_, library)| *library).unwrap_or_else(|| {
            // Its functions are used until the program ends, so it is never unloaded.
            let library = Self::load(release).map(|library| &*Box::leak(Box::new(library)));
            loaded.push((release, library));
            library
        })
    }

    fn load(release: &Release) -> Option<Self> {
        // Its functions are used until the program ends, so it is never unloaded.
        Self::of(Box::leak(Box::new(release.open()?)))
    }

    /// Returns the configuration for a trace of this processor; a processor that libipt does not know has no errata.
    pub(super) fn config(&self, cpu: Option<Cpu>, trace: &[u8]) -> Config {
        let mut config = Config::new(trace);
        // `struct pt_cpu`.
        config.cpu = cpu.map_or(0, |Cpu { family, model, stepping }| {
            VENDOR_INTEL | u64::from(family) << 32 | u64::from(model) << 48 | u64::from(stepping) << 56
        });
        // SAFETY: both have the sizes of intel-pt.h; for an unknown processor the errata stay unchanged.
        unsafe { (self.pt_cpu_errata)(&raw mut config.errata, &raw const config.cpu) };
        config
    }

    /// Returns libipt's text for an error that one of its functions returned.
    pub(super) fn error_text(&self, status: c_int) -> &'static str {
        // SAFETY: it accepts every number.
        let text = unsafe { (self.pt_errstr)(-status) };
        // SAFETY: it returns a string constant of the library, which stays loaded.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("unreadable")
    }
}
