//! The units of the campaign.

mod memory;
mod pt;
mod store;

use crate::common::Collector;
use memory::Shared;
pub(crate) use pt::PtKind;
use pugmark_kernel::drain::Sink;
use pugmark_kernel::loss::Gap;
pub(crate) use store::StoreKind;

/// A sink that takes everything, or leaves all in the buffer until the end.
struct Take {
    collector: Collector,
    leaves: bool,
}

impl Take {
    fn new(leaves: bool) -> Self {
        Self { collector: Collector::new(), leaves }
    }
}

impl Sink for Take {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        if self.leaves { 0 } else { self.collector.bytes(bytes) }
    }

    fn gap(&mut self, gap: Gap) -> bool {
        !self.leaves && self.collector.gap(gap)
    }
}
