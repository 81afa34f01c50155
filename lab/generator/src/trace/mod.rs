//! Traced walks: the configuration of a run is drawn from a seed, and the model produces the packets.
//!
//! ```
//! use pugmark_generator::trace::{TraceConfig, Topic, run};
//!
//! let (program, config) = TraceConfig::random_small(Topic::Everything, 7);
//! let run = run(&program, &config, 7);
//! assert!(!run.trace.is_empty());
//! assert!(run.truth.len() > 50);
//! ```

mod config;
mod machine;

pub use config::{Topic, TraceConfig, TraceOutput, ctl};
pub use machine::{TraceRun, run};
