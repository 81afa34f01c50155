//! Several streams in the order of time.

use super::stream::Stop;
use super::{Event, Show, Stream};
use std::collections::VecDeque;
use std::io::{self, Write};

/// The streams, the one with the earliest record first.
#[derive(Debug)]
pub struct Session {
    waiting: VecDeque<(u64, Stream)>,
    /// Streams that could not give their first record, and why.
    failed: Vec<(Stream, &'static str)>,
}

impl Session {
    /// Goes to the first record of each stream. Those of the same time stay in the streams' order.
    pub fn new(streams: Vec<Stream>) -> Self {
        let mut session = Self { waiting: VecDeque::new(), failed: Vec::new() };
        for mut stream in streams {
            match stream.advance() {
                Ok(tsc) => session.waiting.push_back((tsc, stream)),
                Err(Stop::Error(error)) => session.failed.push((stream, error)),
                Err(Stop::End) => {}
            }
        }
        session.waiting.make_contiguous().sort_by_key(|(tsc, _)| *tsc);
        session
    }

    /// Writes the records up to and with `tsc`. Of streams with records of the same time that goes on that was read
    /// last.
    ///
    /// # Errors
    /// Those of `out`. Errors in the records are lines.
    pub fn show(&mut self, tsc: u64, show: &Show, out: &mut dyn Write) -> io::Result<()> {
        self.show_and_apply(tsc, show, "error", out, &mut |_, _| Ok(()))
    }

    /// As [`show`](Self::show), with warnings called `warnings`; `apply` gets each record and may say what is wrong with
    /// it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn show_and_apply(
        &mut self,
        tsc: u64,
        show: &Show,
        warnings: &str,
        out: &mut dyn Write,
        apply: &mut dyn FnMut(&Event<'_>, &Stream) -> Result<(), &'static str>,
    ) -> io::Result<()> {
        for (stream, error) in self.failed.drain(..) {
            report(out, &stream, "error", error)?;
        }
        while self.waiting.front().is_some_and(|(due, _)| *due <= tsc) {
            let Some((due, mut stream)) = self.waiting.pop_front() else { break };
            if let Some(event) = stream.event() {
                show.event(&event, &stream, due, out)?;
                let warning = event.record.warning(stream.primary).filter(|_| show.warn);
                warning.map_or(Ok(()), |warning| report(out, &stream, warnings, warning))?;
                if let Err(error) = apply(&event, &stream) {
                    report(out, &stream, "error", error)?;
                }
            }
            match stream.advance() {
                Ok(due) => {
                    let place = self.waiting.partition_point(|(other, _)| *other < due);
                    self.waiting.insert(place, (due, stream));
                }
                Err(Stop::Error(error)) => report(out, &stream, "error", error)?,
                Err(Stop::End) => {}
            }
        }
        Ok(())
    }
}

fn report(out: &mut dyn Write, stream: &Stream, kind: &str, error: &str) -> io::Result<()> {
    writeln!(out, "[{}:{:016x} sideband {kind}: {error}]", stream.name, stream.offset())
}
