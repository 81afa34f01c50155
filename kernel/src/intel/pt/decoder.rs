//! A sink that decodes its bytes in place.

use crate::drain::Sink;
use crate::loss::{Gap, Overwritten};
use core::mem::replace;
use pugmark_decoder_core::block_cache::{BlockCache, ExecutionSink};
use pugmark_decoder_core::resume::BlockStream;

/// A decoder of a trace as it is drained: in the PMI handler, and after the stop. No slice is copied; the stream's
/// memory ([`BlockStream::new`]) holds the bytes kept of a slice's end.
///
/// If a panic of the sink or of the code's reader unwinds, the driver offers the same bytes again, and decoding
/// restarts at the first PSB in them: everything from there on is reported a second time, after a [`Lost`].
///
/// [`Lost`]: pugmark_decoder_core::resume::Lost
///
/// The decoder takes every byte, so the processor traces into the memory again when the handler returns. The caller
/// provides all memory before the trace begins.
///
/// ```
/// use pugmark_decoder_core::block_cache::{ExecutionSink, BlockCache};
/// use pugmark_decoder_core::image::Image;
/// use pugmark_decoder_core::resume::{BlockStream, Kept};
/// use pugmark_kernel::intel::pt::{PtCapabilities, PtConfig, PtConfigRefusal, PtDecoder};
///
/// /// Decodes a trace by `config`, over the code in `image`.
/// fn decoder<'a, S: ExecutionSink>(
///     config: &PtConfig,
///     capabilities: &PtCapabilities,
///     image: Image<'a>,
///     kept: &'a mut Kept,
///     blocks: &'a mut [u32],
///     sink: S,
/// ) -> Result<PtDecoder<'a, 'a, 'a, S>, PtConfigRefusal> {
///     let stream = BlockStream::new(image, config.for_decoder(capabilities)?, kept);
///     Ok(PtDecoder::new(stream, BlockCache::new(blocks), sink))
/// }
/// ```
#[derive(Debug)]
pub struct PtDecoder<'c, 'm, 'g, S> {
    /// The decoder.
    pub stream: BlockStream<'c, 'm>,
    /// The code decoded so far.
    pub cache: BlockCache<'g>,
    /// The receiver of instructions, blocks, edges and events.
    pub sink: S,
    bytes: u64,
    gaps: u64,
    /// True while a call decodes, and after a panic of the sink or of the code's reader has unwound through it.
    decodes: bool,
}

impl<'c, 'm, 'g, S: ExecutionSink> PtDecoder<'c, 'm, 'g, S> {
    /// Creates the decoder of a trace that has not begun.
    pub const fn new(stream: BlockStream<'c, 'm>, cache: BlockCache<'g>, sink: S) -> Self {
        Self { stream, cache, sink, bytes: 0, gaps: 0, decodes: false }
    }

    /// Decodes the bytes that the stream has kept: after the stop, when the rest was handed over. The next bytes are of
    /// another trace.
    pub fn finish(&mut self) {
        self.decode(|stream, cache, sink| stream.finish(cache, sink));
    }

    /// Calls `decode`. If a panic has unwound through the last call, decoding restarts at the next PSB.
    fn decode(&mut self, decode: impl FnOnce(&mut BlockStream<'c, 'm>, &mut BlockCache<'g>, &mut S)) {
        let Self { stream, cache, sink, .. } = self;
        if replace(&mut self.decodes, true) {
            stream.gap(0, cache, sink);
        }
        decode(stream, cache, sink);
        self.decodes = false;
    }

    /// Returns the number of bytes decoded.
    #[must_use]
    pub const fn bytes_decoded(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of gaps that the driver has reported.
    #[must_use]
    pub const fn gaps(&self) -> u64 {
        self.gaps
    }
}

impl<S: ExecutionSink> Sink for PtDecoder<'_, '_, '_, S> {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        self.decode(|stream, cache, sink| stream.decode(bytes, cache, sink));
        self.bytes += bytes.len() as u64;
        bytes.len()
    }

    fn gap(&mut self, gap: Gap) -> bool {
        let missing = match gap {
            Gap::Wrap(Overwritten::Exactly(bytes)) => bytes,
            _ => 0,
        };
        self.decode(|stream, cache, sink| stream.gap(missing, cache, sink));
        self.gaps += 1;
        true
    }
}
