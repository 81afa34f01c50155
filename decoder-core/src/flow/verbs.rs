//! Accessors that the instruction and the block decoder share.

/// Implements the accessors of a decoder with a [`Walker`](super::Walker) in its field `walker`: its place in the
/// trace and in the code, and the time.
macro_rules! walker_verbs {
    ($decoder:ident $(<$keeper:ident>)?) => {
        impl<'a $(, $keeper: $crate::keeper::Keeper)?> $decoder<'a $(, $keeper)?> {
            /// Returns the offset of the packet that completed the next event; if no event is known, of a packet after
            /// the next outcomes; or the end of the trace.
            #[must_use]
            pub fn offset(&self) -> u64 {
                self.walker.offset()
            }

            /// Returns the offset of the PSB that was synchronised onto last.
            #[must_use]
            pub fn sync_offset(&self) -> Option<u64> {
                self.walker.sync_offset()
            }

            /// Returns the time of the last event, outcome or target used: the estimated TSC, 56 bits; `None` before
            /// the first TSC packet.
            #[must_use]
            pub fn time(&self) -> Option<u64> {
                self.walker.at.when.tsc
            }

            /// Returns how many MTC packets [`time`](Self::time) excludes because their clock ran too far.
            #[must_use]
            pub fn lost_mtc(&self) -> u32 {
                self.walker.at.when.lost_mtc
            }

            /// Returns how many CYC packets [`time`](Self::time) excludes because no ratio was known.
            #[must_use]
            pub fn lost_cyc(&self) -> u32 {
                self.walker.at.when.lost_cyc
            }

            /// Returns the ratio of core clock to bus clock at that time; `None` before the first CBR packet.
            #[must_use]
            pub fn core_bus_ratio(&self) -> Option<u8> {
                self.walker.at.when.core_bus_ratio
            }

            /// Returns the trace.
            #[must_use]
            pub fn trace(&self) -> &'a [u8] {
                self.walker.trace()
            }

            /// Returns the configuration that the trace is read with.
            #[must_use]
            pub fn config(&self) -> &$crate::config::Config<'a> {
                self.walker.config()
            }

            /// Returns the image.
            #[must_use]
            pub fn image(&self) -> $crate::image::Image<'a> {
                self.walker.image
            }

            /// Returns the address space at the decoder's place, as far as the trace gave it.
            #[must_use]
            pub fn asid(&self) -> $crate::image::Asid {
                self.walker.at.space
            }

            /// Returns the address of the next instruction, or of the one executed last; `None` while tracing is off.
            #[must_use]
            pub fn ip(&self) -> Option<u64> {
                self.walker.place()
            }

            /// Returns counts of the packets read so far, over all synchronisations.
            #[must_use]
            pub fn counters(&self) -> $crate::event::Counters {
                self.walker.counters()
            }
        }
    };
}

pub(crate) use walker_verbs;
