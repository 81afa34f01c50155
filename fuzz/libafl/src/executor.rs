//! An executor that has the recorder run the program.

use crate::edges::EdgeDecoder;
use libafl::Error;
use libafl::executors::{Executor, ExitKind, HasObservers};
use libafl::inputs::ToTargetBytesConverter;
use libafl::state::HasExecutions;
use libafl_bolts::{ToSlice, tuples::RefIndexable};
use pugmark_decoder_core::block_cache::edges::EDGES;
use pugmark_recorder::{Cause, Ending, RecordOptions, Recording, record};
use std::{fs, path::PathBuf};

/// An executor that records the program and gives its edges to an observer.
///
/// A program that a signal ends has crashed. One that reaches [`RecordOptions::limit`] is killed and counts as a
/// time-out, which so is the same on each machine. The edges are those of all threads and child processes.
#[derive(Debug)]
pub struct RecordedExecutor<OT> {
    options: RecordOptions,
    input: PathBuf,
    observers: OT,
    map: fn(&mut OT) -> &mut [u8],
    decoder: EdgeDecoder,
    losses: u64,
}

impl<OT> RecordedExecutor<OT> {
    /// Creates an executor of the program of `options`, which reads the file `input`. `map` returns the map of
    /// [`EDGES`] bytes of an observer; LibAFL clears it before each execution.
    pub fn new(
        options: RecordOptions,
        input: impl Into<PathBuf>,
        observers: OT,
        map: fn(&mut OT) -> &mut [u8],
    ) -> Self {
        let options = RecordOptions { kill_at_limit: true, ..options };
        Self { options, input: input.into(), observers, map, decoder: EdgeDecoder::default(), losses: 0 }
    }

    /// Returns the number of threads, programs and branches that the recorder could not follow, in all executions. 0
    /// says that each map of edges was complete.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Runs the program on an input.
    fn execute(&mut self, input: &[u8]) -> Result<ExitKind, Error> {
        fs::write(&self.input, input)
            .map_err(|error| Error::os_error(error, format!("cannot write {}", self.input.display())))?;
        let recording =
            record(&self.options, &mut |_| {}).map_err(|error| Error::unknown(error.to_string()))?;
        let map: &mut [u8; EDGES] = (self.map)(&mut self.observers)
            .try_into()
            .map_err(|_| Error::illegal_argument(format!("the map of edges has not {EDGES} bytes")))?;
        for part in &recording.parts {
            self.decoder.add(&part.dir, map)?;
            self.losses += u64::from(part.unexplained);
        }
        self.losses += u64::from(recording.unreported) + recording.not_followed.len() as u64;
        Ok(exit_kind(&recording))
    }
}

/// Returns how a recorded execution ended.
fn exit_kind(recording: &Recording) -> ExitKind {
    match (recording.cause, recording.ending) {
        (Cause::Limit, _) => ExitKind::Timeout,
        (_, Ending::Signal(_)) => ExitKind::Crash,
        _ => ExitKind::Ok,
    }
}

impl<EM, I, OT, S, Z> Executor<EM, I, S, Z> for RecordedExecutor<OT>
where
    S: HasExecutions,
    Z: ToTargetBytesConverter<I, S>,
{
    fn run_target(
        &mut self,
        fuzzer: &mut Z,
        state: &mut S,
        _: &mut EM,
        input: &I,
    ) -> Result<ExitKind, Error> {
        *state.executions_mut() += 1;
        self.execute(fuzzer.convert_to_target_bytes(state, input).to_slice())
    }
}

impl<OT> HasObservers for RecordedExecutor<OT> {
    type Observers = OT;

    fn observers(&self) -> RefIndexable<&OT, OT> {
        RefIndexable::from(&self.observers)
    }

    fn observers_mut(&mut self) -> RefIndexable<&mut OT, OT> {
        RefIndexable::from(&mut self.observers)
    }
}
