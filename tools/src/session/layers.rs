//! One loop for each layer of the decoder. It decodes a trace from its first PSB on and passes all that the layer
//! returns to a sink; after an error it goes on at the next PSB.

use super::{SliceEnd, SliceSink};
use pugmark_decoder_core::{
    Error,
    block::BlockDecoder,
    block_cache::BlockCache,
    config::Config,
    event::{Event, EventDecoder},
    image::Image,
    last_ip::LastIp,
    packet::{PacketSink, Packets},
    query::{BranchEventSink, QueryDecoder},
    resume::Lost,
};

/// Passes on all packets. Returns the errors.
pub fn packets<S: PacketSink>(trace: &[u8], config: Config<'_>, sink: &mut S) -> Vec<Error> {
    let (mut packets, mut last_ip) = (Packets::with_config(trace, config), LastIp::new());
    let mut errors = vec![];
    while packets.sync_forward().is_some() {
        errors.extend(packets.visit(&mut last_ip, sink).err());
    }
    errors
}

/// Passes on all events. Returns the errors.
///
/// Each event is used by reference. A copy would read with wide loads what was just written by narrow stores, and such
/// loads must wait until the stores are in the cache.
pub fn events(trace: &[u8], config: Config<'_>, mut sink: impl FnMut(&Event)) -> Vec<Error> {
    let mut decoder = EventDecoder::with_config(trace, config);
    let mut errors = vec![];
    while decoder.sync_forward().is_some() {
        loop {
            match &decoder.next() {
                Ok(Some(event)) => sink(event),
                Ok(None) => break,
                Err(error) => {
                    errors.push(*error);
                    break;
                }
            }
        }
    }
    errors
}

/// Passes on all outcomes, targets and events. Returns the errors.
pub fn answers<S: BranchEventSink>(trace: &[u8], config: Config<'_>, sink: &mut S) -> Vec<Error> {
    let mut decoder = QueryDecoder::with_config(trace, config);
    let mut errors = vec![];
    while decoder.sync_forward().is_some() {
        errors.extend(decoder.visit(sink).err());
    }
    errors
}

/// Passes on what was executed, and the errors.
pub fn blocks<S: SliceSink>(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    cache: &mut BlockCache<'_>,
    sink: &mut S,
) {
    let mut decoder = BlockDecoder::with_config(trace, image, config);
    while decoder.resync().is_some() {
        let end = decoder.visit(cache, sink);
        sink.stops(SliceEnd { span: decoder.span(), offset: decoder.offset(), ip: decoder.ip() });
        if let Err(error) = end {
            sink.lost(&Lost::Error(error));
        }
    }
}
