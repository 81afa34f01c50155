//! Draining recorded data: a [`Sink`] receives bytes in place, and gaps where something is missing.
//!
//! ```
//! use pugmark_kernel::{drain::Sink, loss::Gap};
//!
//! /// Counts bytes and gaps, and needs no byte afterwards.
//! #[derive(Default)]
//! struct Count(u64, u64);
//!
//! impl Sink for Count {
//!     fn bytes(&mut self, bytes: &[u8]) -> usize {
//!         self.0 += bytes.len() as u64;
//!         bytes.len()
//!     }
//!     fn gap(&mut self, _: Gap) -> bool {
//!         self.1 += 1;
//!         true
//!     }
//! }
//!
//! let mut count = Count::default();
//! assert_eq!(count.bytes(&[0x02, 0x82]), 2);
//! assert!(count.gap(Gap::Full));
//! assert_eq!((count.0, count.1), (2, 1));
//! ```

mod relay;

pub use relay::{Relay, RelayReader, RelayWriter};

use crate::loss::Gap;

/// A receiver of a trace while it runs.
///
/// The methods are called in the PMI handler with the trace off: they must neither wait nor allocate. If a call panics
/// and unwinds, its data is offered again, and the trace is off until the next use of the driver
/// ([`Abandoned::NotResumed`](crate::pmi::Abandoned::NotResumed)). The bytes are in the buffer itself and can be
/// decoded in place or copied. They are complete in memory for this processor. Another processor may read them, or a
/// copy, once it has seen a value that was published after the call, as with a [`Relay`]: the driver executes a full
/// fence before the call.
pub trait Sink {
    /// Receives the next bytes, in the order in which they were traced. A packet may continue in the next call.
    ///
    /// Returns the number of bytes, from the first, that are no longer needed: the processor traces into their memory
    /// again. The rest stay in the buffer and are offered again. A number above `bytes.len()` means all bytes.
    fn bytes(&mut self, bytes: &[u8]) -> usize;

    /// Reports that something is missing before the next bytes.
    ///
    /// Returns whether the sink has noted this. If not, the gap and everything after it stay in the buffer and are
    /// offered again.
    fn gap(&mut self, gap: Gap) -> bool;
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        (**self).bytes(bytes)
    }

    fn gap(&mut self, gap: Gap) -> bool {
        (**self).gap(gap)
    }
}

/// A sink that takes nothing: the PMI handler only updates its counts and continues in the regions that are still free.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAll;

impl Sink for KeepAll {
    fn bytes(&mut self, _: &[u8]) -> usize {
        0
    }

    fn gap(&mut self, _: Gap) -> bool {
        false
    }
}

/// A part of the recorded data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk<'a> {
    /// Bytes that directly follow the bytes before them, unless a gap is between the two.
    Bytes(&'a [u8]),
    /// Something is missing here.
    Gap(Gap),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_borrowed_sink_answers_as_the_sink_itself() {
        struct Some(usize, bool);
        impl Sink for Some {
            fn bytes(&mut self, bytes: &[u8]) -> usize {
                self.0.min(bytes.len())
            }

            fn gap(&mut self, _: Gap) -> bool {
                self.1
            }
        }
        fn ask(mut sink: impl Sink) -> (usize, bool) {
            (sink.bytes(&[0; 9]), sink.gap(Gap::Full))
        }
        for (bytes, gap) in [(0, false), (5, true), (9, false)] {
            assert_eq!(ask(&mut Some(bytes, gap)), (bytes, gap));
        }
        assert_eq!(ask(KeepAll), (0, false));
    }
}
