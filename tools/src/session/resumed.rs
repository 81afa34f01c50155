//! A walk that can go on from places where it was before.
//!
//! A place has the state of each trace's decoder, a few kilobytes, so what comes after it is decoded as in the first
//! walk: also after errors, and whatever the traces hold before it.

use super::{
    Session, SliceSink,
    follow::{BlockCaches, switched_after},
    switch::{SwitchedSink, TraceOwner},
};
use pugmark_decoder_core::{
    image::Image,
    resume::{BlockStream, Kept, SavedStream},
};

/// A place in a walk, between two parts of a slice.
#[derive(Clone, Debug, Default)]
pub(crate) struct WalkPlace<'a> {
    /// The number of the slice, in the order of the walk.
    slice: usize,
    /// The decoders of the traces that have begun and not ended, with the traces' numbers.
    streams: Vec<(usize, Box<SavedStream<'a>>)>,
    owners: Vec<TraceOwner>,
}

impl WalkPlace<'_> {
    /// Returns about how much memory it takes, in bytes.
    pub(crate) const fn size(&self) -> usize {
        self.streams.len() * size_of::<SavedStream<'_>>() + self.owners.len() * size_of::<TraceOwner>()
    }
}

/// The decoders of a walk, by the numbers of their traces.
type Streams<'a, 'm> = Vec<Option<BlockStream<'a, 'm>>>;

impl<'a> Session<'a> {
    /// Follows all traces from a place on, the begin of the session by default, and passes what was executed to the
    /// sink, whichever lane's it is and wherever its window. Calls `pauses` between parts of slices, with a function
    /// that returns the place; it is `None` in the rare case that the place cannot be kept.
    pub(crate) fn follow_from<S: SliceSink>(
        &self,
        place: &WalkPlace<'a>,
        caches: &mut BlockCaches<'_>,
        sink: &mut S,
        mut pauses: impl FnMut(&mut S, &dyn Fn() -> Option<WalkPlace<'a>>),
    ) {
        const { assert!(S::ENDS_EARLY, "only then are there parts") };
        let slices = self.slices_in_order(0..self.traces.len());
        let mut kept: Vec<Kept> = self.traces.iter().map(|_| <Kept>::new()).collect();
        let mut streams: Streams<'a, '_> = kept
            .iter_mut()
            .enumerate()
            .map(|(trace, kept)| {
                let saved = place.streams.iter().find(|(number, _)| *number == trace);
                Some(match saved {
                    Some((_, saved)) => BlockStream::restored(saved, kept),
                    None => BlockStream::new(Image::new(&[]), self.config, kept),
                })
            })
            .collect();
        let mut owners = place.owners.clone();
        owners.resize(self.traces.len(), TraceOwner::default());
        for (number, slice) in slices.iter().enumerate().skip(place.slice) {
            let (cache_number, cache) = caches.of(slice.image);
            let Some(mut stream) = streams.get_mut(slice.trace).and_then(Option::take) else { continue };
            let is_cut = slice.range != (0..self.traces[slice.trace].len());
            if let Some(at) = self.switch_ip.filter(|_| is_cut) {
                let after = switched_after(&slices[number..]);
                let sinks = std::slice::from_mut(sink);
                let mut switched = SwitchedSink::new(sinks, &mut owners[slice.trace], slice, after, at);
                self.go_on(slice, &mut stream, cache, &mut switched, |_, _| {});
            } else {
                sink.turn_to_cache(cache_number);
                sink.begins(slice);
                self.go_on(slice, &mut stream, cache, sink, |stream, sink| {
                    pauses(sink, &|| save(number, &streams, (slice.trace, stream), &owners));
                });
            }
            if sink.is_done() {
                return;
            }
            pauses(sink, &|| save(number + 1, &streams, (slice.trace, &stream), &owners));
            streams[slice.trace] = Some(stream);
        }
    }
}

/// Returns a place: the slice, the decoders of all other traces, and that of this one.
fn save<'a>(
    slice: usize,
    others: &Streams<'a, '_>,
    (trace, stream): (usize, &BlockStream<'a, '_>),
    owners: &[TraceOwner],
) -> Option<WalkPlace<'a>> {
    let others = others.iter().enumerate().filter_map(|(trace, stream)| Some((trace, stream.as_ref()?)));
    // One that has not begun, or has ended, is like a new one.
    let active = others.chain([(trace, stream)]).filter(|(_, stream)| stream.offset() > 0);
    let streams = active.map(|(trace, stream)| Some((trace, Box::new(stream.save()?))));
    Some(WalkPlace { slice, streams: streams.collect::<Option<_>>()?, owners: owners.to_vec() })
}
