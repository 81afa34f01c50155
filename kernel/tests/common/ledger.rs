//! Compares delivered bytes and reported losses with the bytes that the processor wrote.

use super::Ram;
use pugmark_kernel::drain::{Chunk, Sink};
use pugmark_kernel::intel::pt::Trace;
use pugmark_kernel::loss::{Gap, Loss, Overwritten};

/// A sink that checks each byte: it knows the next one of all written bytes.
#[derive(Debug)]
pub(crate) struct Ledger<'a> {
    ram: &'a Ram,
    /// The number of the next byte.
    next: u64,
    /// True if the next byte may be a later one, because an unknown number of bytes was overwritten.
    floats: bool,
    /// True if the next bytes must be a PSB.
    psb: bool,
    /// True if regions may end with PAD packets from the driver.
    pub(crate) pads: bool,
    /// The number of bytes that the sink still takes.
    pub(crate) appetite: Option<usize>,
    /// The reported losses, counted as a driver counts them.
    pub(crate) told: Loss,
    pub(crate) delivered: u64,
    /// The number of bytes delivered or reported as overwritten since the trace began.
    accounted: u64,
    what: String,
}

impl<'a> Ledger<'a> {
    pub(crate) fn new(ram: &'a Ram, what: &str) -> Self {
        let (pads, appetite, what) = (false, None, what.to_owned());
        Self {
            ram,
            next: 0,
            floats: false,
            psb: true,
            pads,
            appetite,
            told: Loss::NONE,
            delivered: 0,
            accounted: 0,
            what,
        }
    }

    /// Begins a trace that is checked from its beginning; bytes written before it may be missing.
    pub(crate) fn begin(&mut self) {
        (self.next, self.floats, self.psb) = (0, false, true);
        self.accounted = 0;
        self.told = Loss::NONE;
    }

    /// Returns the number of bytes delivered or reported as certainly overwritten since the trace began.
    pub(crate) fn accounted(&self) -> u64 {
        self.accounted
    }

    /// Takes the rest of a stopped trace; then nothing may be missing.
    pub(crate) fn finish(&mut self, trace: &Trace<&Ram>) {
        self.appetite = None;
        for chunk in trace.chunks() {
            match chunk {
                Chunk::Bytes(bytes) => assert_eq!(self.bytes(bytes), bytes.len()),
                Chunk::Gap(gap) => assert!(self.gap(gap)),
            }
        }
        self.assert_complete();
    }

    /// Checks that all written bytes were delivered, or reported as lost.
    pub(crate) fn assert_complete(&self) {
        let written = self.ram.written();
        let complete = self.next == written || self.floats && self.next <= written;
        assert!(complete, "{}: {} of {written} bytes are accounted for", self.what, self.next);
    }
}

impl Sink for Ledger<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        let taken = self.appetite.unwrap_or(usize::MAX).min(bytes.len());
        if let Some(appetite) = &mut self.appetite {
            *appetite -= taken;
        }
        let bytes = &bytes[..taken];
        if let (true, Some(&first)) = (core::mem::take(&mut self.psb), bytes.first()) {
            assert_eq!(first, 0x02, "{}: a PSB comes first", self.what);
        }
        for (number, &byte) in self.ram.numbers(bytes).into_iter().zip(bytes) {
            if number == Some(self.next) || self.floats && number.is_some_and(|number| number > self.next) {
                self.floats = false;
                self.next = number.map_or(self.next, |number| number + 1);
                self.accounted += 1;
            } else {
                let padded = self.pads && byte == 0 && number.is_none_or(|number| number < self.next);
                assert!(padded, "{}: byte {number:?} comes instead of {}", self.what, self.next);
            }
        }
        self.delivered += taken as u64;
        taken
    }

    fn gap(&mut self, gap: Gap) -> bool {
        if self.appetite == Some(0) {
            return false;
        }
        match gap {
            Gap::Stop => self.told.stop += 1,
            Gap::Error => self.told.error += 1,
            Gap::Full => self.told.full += 1,
            Gap::Excluded => self.told.excluded += 1,
            Gap::Abandoned => self.told.abandoned += 1,
            Gap::TurnedOff => self.told.turned_off += 1,
            Gap::Wrap(overwritten) => {
                self.next += overwritten.least();
                self.accounted += overwritten.least();
                self.told.wrapped_bytes += overwritten.least();
                match overwritten {
                    Overwritten::Exactly(bytes) => {
                        assert!(bytes > 0, "{}: nothing was overwritten", self.what)
                    }
                    Overwritten::AtLeast(_) | Overwritten::Perhaps => self.floats = true,
                }
                match overwritten {
                    Overwritten::Perhaps => self.told.perhaps_wrapped += 1,
                    Overwritten::Exactly(_) | Overwritten::AtLeast(_) => self.told.wrap += 1,
                }
            }
        }
        self.psb = !matches!(gap, Gap::Wrap(_));
        true
    }
}
