//! Keeps the addresses of AMD's samples.

use pugmark_boot::samples::SampleMemory;
use pugmark_decoder_core::ibs::Sample;
use pugmark_kernel::amd::counters::{Overflow, OverflowSink};
use pugmark_kernel::amd::ibs::SampleSink;

/// Maximum number of samples of a workload.
const ROOM: usize = 1 << 16;

/// The addresses of samples.
pub(super) struct Addresses {
    pub(super) kept: SampleMemory<u64>,
    /// Number of samples without a known address.
    pub(super) unplaced: u64,
}

impl Addresses {
    pub(super) fn new() -> Self {
        Self { kept: SampleMemory::with_room(ROOM), unplaced: 0 }
    }

    /// Returns a sink that keeps the addresses of samples. `interrupted` is the RIP interrupted by the interrupt being
    /// served, if known.
    pub(super) fn sink(&mut self, interrupted: Option<u64>) -> AddressSink<'_> {
        AddressSink { addresses: self, interrupted }
    }
}

/// Keeps the addresses of samples.
pub(super) struct AddressSink<'a> {
    addresses: &'a mut Addresses,
    interrupted: Option<u64>,
}

impl AddressSink<'_> {
    fn store(&mut self, address: Option<u64>) -> bool {
        match address {
            Some(address) => self.addresses.kept.store(address),
            None => {
                self.addresses.unplaced += 1;
                true
            }
        }
    }
}

impl OverflowSink for AddressSink<'_> {
    fn overflow(&mut self, _: Overflow) -> bool {
        self.store(self.interrupted)
    }
}

impl SampleSink for AddressSink<'_> {
    fn sample(&mut self, sample: &Sample) -> bool {
        match sample {
            Sample::Op(op) => self.store(op.rip()),
            Sample::Fetch(fetch) => self.store(fetch.linear_address()),
        }
    }
}
