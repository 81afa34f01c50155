//! One walk over the traces of a session, which switches code and thread where the timeline says.
//!
//! A trace is cut into [slices](TraceSlice): parts in which one thread runs the same code. Slices of one thread with
//! the same program are a *lane*, also if they are of several processors. [`Session::follow`] goes through the slices
//! in the order of time and passes each to the sink of its lane, so that a sink sees one thread as if it had run alone.
//!
//! # Where a switch takes effect
//!
//! Linux switches threads in the kernel, and so does a thread that executes another program or maps other code. The
//! records of that have a time of their own, and those of the trace are estimates. So what is due takes effect at the
//! first event at or after its time before which the trace was in the kernel, or off: there both have the same code.
//!
//! The instructions there are the new thread's from that place on; if it is known where the kernel's function begins
//! that switches threads ([`Session::switch_ip`]), from its first instruction on.

mod beside;
mod follow;
pub mod layers;
mod numbers;
mod places;
mod resumed;
mod switch;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use follow::{BlockCaches, MAPPED_CHUNK};
pub use follow::{CACHE_WORDS, SliceEnd, SliceSink};
pub(crate) use numbers::BlockNumbers;
pub use places::{TurnPlace, places};
pub(crate) use resumed::WalkPlace;

use crate::mapped::MappedFile;
use pugmark_decoder_core::{
    config::Config,
    image::{Image, Section},
};
use std::ops::Range;
use std::rc::Rc;

/// A part of a trace in which one thread runs the same code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSlice {
    /// The number of the trace.
    pub trace: usize,
    /// Where it is in the trace.
    pub range: Range<usize>,
    /// The number of its lane.
    pub lane: usize,
    /// The number of its code.
    pub image: usize,
    /// Another thread runs than in the slice of the trace before.
    pub is_switch: bool,
    /// When it begins, as TSC; 0 if the trace has no time.
    pub tsc: u64,
}

/// Traces, how they are cut, and the code of each lane.
#[derive(Clone, Debug)]
pub struct Session<'a> {
    /// The traces.
    pub traces: Vec<&'a [u8]>,
    /// The mapped files that traces are; none, or `None`, where they are in memory.
    pub mapped: Vec<Option<&'a MappedFile>>,
    /// A TSC near those of each trace; 0 if none is known.
    pub near: Vec<u64>,
    /// The configuration to read them with.
    pub config: Config<'a>,
    /// The code that slices have.
    pub images: Rc<[Image<'a>]>,
    /// The sections of each of them. A thread that decodes beside the one with the sinks makes its own of these.
    pub sections: Option<&'a [Vec<Section<'a>>]>,
    /// The number of the code that each lane begins with. The kernel's part of it may change from slice to slice.
    pub lanes: Vec<usize>,
    /// Their slices. Those of one trace are in their order, one after the other, and there is at least one of each.
    pub slices: Vec<TraceSlice>,
    /// The instructions of each lane that are wanted, by their numbers; empty if all are.
    pub windows: Vec<Range<u64>>,
    /// Where the kernel's function begins that switches threads, if it is known.
    pub switch_ip: Option<u64>,
}

impl<'a> Session<'a> {
    /// Returns a session of one trace with one lane.
    #[must_use]
    pub fn alone(trace: &'a [u8], image: Image<'a>, config: Config<'a>) -> Self {
        let slices =
            vec![TraceSlice { trace: 0, range: 0..trace.len(), lane: 0, image: 0, is_switch: false, tsc: 0 }];
        let images = Rc::new([image]);
        Self {
            traces: vec![trace],
            mapped: vec![],
            near: vec![0],
            config,
            images,
            sections: None,
            lanes: vec![0],
            slices,
            windows: vec![],
            switch_ip: None,
        }
    }

    /// Returns the code with a number, which is empty if there is no such number.
    #[must_use]
    pub fn image(&self, number: usize) -> Image<'a> {
        self.images.get(number).copied().unwrap_or(Image::new(&[]))
    }

    /// Returns the file that a trace is, if it is mapped.
    pub(crate) fn mapped(&self, trace: usize) -> Option<&'a MappedFile> {
        self.mapped.get(trace).copied().flatten()
    }

    /// Returns the number of bytes in all traces.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.traces.iter().map(|trace| trace.len() as u64).sum()
    }
}
