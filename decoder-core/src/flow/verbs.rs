//! What both decoders that walk say of themselves.

/// Where a decoder is that has a [`Walker`](super::Walker) in its field `walker`, in the trace and in the code, and when.
macro_rules! walker_verbs {
    ($decoder:ident) => {
        impl<'a> $decoder<'a> {
            /// The offset of the packet that completed the next event, or of a packet behind the outcomes that come next
            /// when no event is known, or where the trace ends.
            #[must_use]
            pub fn offset(&self) -> u64 {
                self.walker.offset()
            }

            /// The offset of the PSB synchronised onto last.
            #[must_use]
            pub fn sync_offset(&self) -> Option<u64> {
                self.walker.sync_offset()
            }

            /// The time of what was used last of the trace, an event, an outcome or a target: the estimated TSC, 56 bits;
            /// `None` before the first TSC packet.
            #[must_use]
            pub fn time(&self) -> Option<u64> {
                self.walker.when.tsc
            }

            /// How many MTC packets are not in the [`time`](Self::time), because their clock ran too far.
            #[must_use]
            pub fn lost_mtc(&self) -> u32 {
                self.walker.when.lost_mtc
            }

            /// How many CYC packets are not in the [`time`](Self::time), because no ratio was known.
            #[must_use]
            pub fn lost_cyc(&self) -> u32 {
                self.walker.when.lost_cyc
            }

            /// The ratio of core clock to bus clock then; `None` before the first CBR packet.
            #[must_use]
            pub fn core_bus_ratio(&self) -> Option<u8> {
                self.walker.when.core_bus_ratio
            }

            /// The trace.
            #[must_use]
            pub fn trace(&self) -> &'a [u8] {
                self.walker.trace()
            }

            /// How the trace is read.
            #[must_use]
            pub fn config(&self) -> &$crate::config::Config<'a> {
                self.walker.config()
            }

            /// The image.
            #[must_use]
            pub fn image(&self) -> $crate::image::Image<'a> {
                self.walker.image
            }

            /// CR3 where the decoder is, if the trace said.
            #[must_use]
            pub fn cr3(&self) -> Option<u64> {
                self.walker.space.cr3
            }

            /// The address space where the decoder is, as far as the trace said.
            #[must_use]
            pub fn asid(&self) -> $crate::image::Asid {
                self.walker.space
            }

            /// The address of the instruction that comes next, or was executed last; `None` while tracing is off.
            #[must_use]
            pub fn ip(&self) -> Option<u64> {
                self.walker.place()
            }

            /// What was seen of the trace so far, over all synchronisations.
            #[must_use]
            pub fn counters(&self) -> $crate::event::Counters {
                self.walker.counters()
            }
        }
    };
}

pub(crate) use walker_verbs;
