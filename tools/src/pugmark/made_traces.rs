//! Traces of random programs, whole and damaged, for tests.

use super::code::TracedCode;
use pugmark_generator::{
    Program,
    trace::{Topic, TraceConfig, run},
};

const TOPICS: [Topic; 6] =
    [Topic::Everything, Topic::Level, Topic::Range, Topic::Stop, Topic::Overflow, Topic::Events];

/// A trace of a random program.
pub(super) struct MadeTrace {
    /// A description for messages.
    pub(super) what: String,
    pub(super) trace: Vec<u8>,
    pub(super) code: TracedCode,
    pub(super) program: Program,
}

/// Returns, for each seed and each topic, the trace of a random program, and the same trace with damage.
pub(super) fn made_traces(seeds: u64) -> impl Iterator<Item = MadeTrace> {
    let cases = (0..seeds).flat_map(|seed| TOPICS.map(|topic| (seed, topic)));
    cases.flat_map(|(seed, topic)| [false, true].map(|damaged| made_trace(seed, topic, damaged)))
}

fn made_trace(seed: u64, topic: Topic, damaged: bool) -> MadeTrace {
    let (program, config) = TraceConfig::random(topic, seed);
    let mut trace = run(&program, &config, seed).trace;
    if damaged {
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..trace.len() / 50 {
            let at = random.usize(..trace.len());
            trace[at] = random.u8(..);
        }
    }
    let mut code = TracedCode::default();
    for section in program.sections() {
        code.add(section.base, section.bytes.clone());
    }
    MadeTrace { what: format!("{topic:?} {seed}, damaged: {damaged}"), trace, code, program }
}
