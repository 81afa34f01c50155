//! Reports samples that consist of an address only.

use pugmark_boot::samples::SampleMemory;
use pugmark_boot::tally::tally;
use pugmark_protocol::{Line, Sample, Samples};

use super::session::SessionReport;
use crate::arch::serial::say;

impl SessionReport<'_> {
    /// Reports the sampled addresses, and the counts of the other samples.
    pub(crate) fn say_addresses(&self, samples: Samples, addresses: &SampleMemory<u64>) {
        let session = self.number;
        let taken = addresses.samples().len() as u64;
        say(Line::Samples(self.name, Samples { session, taken, ..samples }));
        for (address, count) in tally(addresses.samples()) {
            say(Line::Sample(self.name, Sample { session, address, count }));
        }
    }
}
