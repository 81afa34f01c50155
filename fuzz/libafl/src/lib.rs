//! Lets [LibAFL](https://docs.rs/libafl) fuzz programs that are not instrumented, by their exact Intel PT traces, on
//! any x86-64 Linux machine.
//!
//! [`RecordedExecutor`] writes an input to a file, has `pugmark-recorder` run the program on it, and adds the edges
//! that all its threads and processes have taken to a map, which any of LibAFL's map observers reads. The counts are
//! those of AFL: a map of [`EDGES`] bytes, a hash of two blocks for each edge.
//!
//! ```no_run
//! use libafl::prelude::*;
//! use libafl_bolts::tuples::tuple_list;
//! use pugmark_libafl::{EDGES, RecordedExecutor};
//! use pugmark_recorder::{Engine, RecordOptions};
//!
//! let edges = HitcountsMapObserver::new(StdMapObserver::owned("edges", vec![0; EDGES]));
//! let feedback = MaxMapFeedback::new(&edges);
//! let options = RecordOptions {
//!     out: "/tmp/fuzz/rec".into(),
//!     engine: Engine::Emulator,
//!     limit: Some(100_000_000),
//!     ..RecordOptions::new(["target", "/tmp/fuzz/input"])
//! };
//! let observers = tuple_list!(edges);
//! let executor = RecordedExecutor::new(options, "/tmp/fuzz/input", observers, |observers| &mut observers.0);
//! # let _: (MaxMapFeedback<_, _>, RecordedExecutor<_>) = (feedback, executor);
//! ```

mod edges;
mod executor;

pub use edges::EdgeDecoder;
pub use executor::RecordedExecutor;
pub use pugmark_decoder_core::block_cache::edges::EDGES;
