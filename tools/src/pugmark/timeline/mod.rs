//! `pugmark timeline`: which function ran when, as a page for a browser, a trace for Perfetto, or a profile for the
//! Firefox profiler.

mod chunks;
mod drawer;
mod firefox;
mod levels;
mod page;
mod perfetto;

use super::{
    named_session::NamedSession,
    options::ViewInput,
    progress::Progress,
    recording::IndexedPart,
    verdict::Verdict,
    visitors::{CallEvent, MarkKind, Time, Unit},
};
use crate::output;
use crate::symbols::{SourceLine, TracedSymbols};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use drawer::{Drawer, DrawnCall, DrawnCallSink};
use std::{cell::RefCell, collections::HashMap, fs, hash::Hash, path::PathBuf, process::ExitCode, rc::Rc};

/// The error where there is nothing to draw.
const NOTHING: &str = "nothing was executed in the trace: `pugmark decode` says why";

/// The options of `pugmark timeline`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  pugmark timeline -o a.html a.rec                    then open a.html in a browser
  pugmark timeline -f perfetto -o a.perfetto a.rec    then open it at https://ui.perfetto.dev
  pugmark timeline -f firefox -o a.json a.rec         then load it at https://profiler.firefox.com")]
pub struct TimelineOptions {
    /// html: a page; perfetto: for ui.perfetto.dev; firefox: for profiler.firefox.com
    #[arg(short, long, value_enum, default_value_t = TimelineFormat::Html, hide_possible_values = true)]
    format: TimelineFormat,
    /// Write to this file
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Draw at most N calls, the first ones; a page always has the whole run
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    calls: usize,
    /// Make the page at most N MB large: the shortest calls are merged
    #[arg(long, value_name = "N", default_value_t = 20)]
    megabytes: u64,
    #[command(flatten)]
    input: ViewInput,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TimelineFormat {
    Html,
    Perfetto,
    Firefox,
}

/// A thread, a processor, or a trace alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Track {
    name: String,
    pid: i32,
    tid: i32,
    slices: Vec<Slice>,
    losses: Vec<TrackLoss>,
    marks: Vec<TrackMark>,
}

/// A gap: a part of the trace is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TrackLoss {
    from: u64,
    to: u64,
    why: String,
    /// The number of functions of the track entered before.
    order: usize,
}

/// A mark, such as a change of frequency.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TrackMark {
    at: u64,
    row: MarkRow,
    text: String,
}

/// The marks that share one row in a chart of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkRow {
    Of(MarkKind),
    /// Nothing is traced from here on.
    Off,
    /// Tracing goes on.
    On,
}

/// A function, from its call to its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slice {
    from: u64,
    to: u64,
    depth: usize,
    /// The number of functions of the track entered before.
    order: usize,
    /// The number of its name.
    name: usize,
    /// The number of the place of its call, if that is known.
    call: Option<usize>,
    /// The number of instructions executed in it and in what it called.
    insns: u64,
}

/// The content of the chart.
#[derive(Clone, Debug)]
struct Drawing {
    unit: Unit,
    names: Vec<String>,
    /// The lines of source where calls are.
    places: Vec<SourceLine>,
    tracks: Vec<Track>,
}

/// Runs `pugmark timeline`. The exit status is 1 if a trace has errors.
///
/// # Errors
/// If there is no trace or no code, nothing was executed, or the file cannot be written.
pub fn run(options: &TimelineOptions) -> Result<ExitCode> {
    let mut progress = Progress::stderr();
    let mut walk = TimelineWalk::new(options);
    let (calls, bytes) = match options.format {
        TimelineFormat::Html => page::page(&mut walk, &mut progress)?,
        format => {
            let calls = walk.first_calls(options.calls, &mut progress)?;
            let drawing = &walk.drawing;
            let bytes = match format {
                TimelineFormat::Firefox => firefox::profile(drawing)?,
                _ => perfetto::trace(drawing),
            };
            (calls, bytes)
        }
    };
    let drawing = &walk.drawing;
    if drawing.unit == Unit::Instructions && drawing.tracks.len() > 1 {
        output::tell(format_args!(
            "pugmark: warning: without TSC packets each thread begins at 0: pugmark record --time"
        ));
    }
    let file = options.out.display();
    fs::write(&options.out, bytes).with_context(|| format!("cannot write {file}"))?;
    let count = |number: u64, one: &str| match number {
        1 => format!("1 {one}"),
        several => format!("{several} {one}s"),
    };
    let (calls, threads) = (count(calls, "call"), count(drawing.tracks.len() as u64, "thread"));
    output::print(|out| writeln!(out, "{file}: {calls} of {threads}"))?;
    Ok(walk.verdict.status())
}

/// A change in a track: the begin or end of a function, or a loss.
enum Change<'a> {
    Begin(&'a Slice),
    End(&'a Slice),
    Lost(&'a TrackLoss),
}

impl Track {
    /// Returns the begin of the first function.
    fn begin(&self) -> Option<u64> {
        self.slices.iter().map(|slice| slice.from).min()
    }

    /// Lists all changes in order, each function inside the one that called it.
    fn changes(&self) -> Vec<Change<'_>> {
        let mut slices: Vec<&Slice> = self.slices.iter().collect();
        slices.sort_by_key(|slice| slice.order);
        let mut losses = self.losses.iter().peekable();
        let (mut changes, mut open) = (vec![], Vec::<&Slice>::new());
        for slice in slices {
            while let Some(loss) = losses.next_if(|loss| loss.order <= slice.order) {
                // All functions had been left.
                changes.extend(open.drain(..).rev().map(Change::End));
                changes.push(Change::Lost(loss));
            }
            while open.last().is_some_and(|outer| outer.depth >= slice.depth) {
                changes.extend(open.pop().map(Change::End));
            }
            changes.push(Change::Begin(slice));
            open.push(slice);
        }
        changes.extend(open.into_iter().rev().map(Change::End));
        changes.extend(losses.map(Change::Lost));
        changes
    }
}

/// Numbers of names or places.
struct Numbers<'a, T> {
    numbers: &'a mut HashMap<T, usize>,
    all: &'a mut Vec<T>,
}

impl<T: Clone + Eq + Hash> Numbers<'_, T> {
    fn of(&mut self, what: T) -> usize {
        *self.numbers.entry(what).or_insert_with_key(|what| {
            self.all.push(what.clone());
            self.all.len() - 1
        })
    }
}

/// A walk through all traces that makes a drawing.
struct TimelineWalk<'o> {
    options: &'o TimelineOptions,
    drawing: Drawing,
    verdict: Verdict,
    /// The time at which the last thread ends.
    end: u64,
}

impl<'o> TimelineWalk<'o> {
    fn new(options: &'o TimelineOptions) -> Self {
        let drawing = Drawing { unit: Unit::Instructions, names: vec![], places: vec![], tracks: vec![] };
        Self { options, drawing, verdict: Verdict::default(), end: 0 }
    }

    /// Draws the first `most` calls. Returns their number.
    fn first_calls(&mut self, most: usize, progress: &mut Progress) -> Result<u64> {
        let limit = RefCell::new(CallLimit { left: most, cut: None });
        self.walk(
            progress,
            |_| FirstCalls { limit: &limit, slices: vec![] },
            |sink, track| track.slices = sink.slices,
        )?;
        let tracks = &self.drawing.tracks;
        let drawn = tracks.iter().map(|track| track.slices.len() as u64).sum();
        ensure!(drawn > 0, NOTHING);
        if let Some(cut) = limit.into_inner().cut {
            let begin = tracks.iter().filter_map(Track::begin).min().unwrap_or_default();
            let [upto, all] = [cut, self.end].map(|at| at.saturating_sub(begin));
            let unit = self.drawing.unit.name();
            output::tell(format_args!(
                "pugmark: warning: drew the first {drawn} calls, up to {upto} of {all} {unit}; draw more with --calls, \
                 or record less with --start"
            ));
        }
        Ok(drawn)
    }

    /// Follows all traces. Each thread has a sink, by its number; `keep` takes what a sink has for a track that is
    /// drawn.
    fn walk<S: DrawnCallSink>(
        &mut self,
        progress: &mut Progress,
        mut sink: impl FnMut(usize) -> S,
        mut keep: impl FnMut(S, &mut Track),
    ) -> Result<()> {
        let (mut of_names, mut of_places, mut lanes) = (HashMap::new(), HashMap::new(), 0);
        for traced in self.options.input.traces(&mut self.verdict, progress)? {
            let named =
                NamedSession::load(&self.options.input, &traced, &self.options.input.symbols, progress)?;
            let names = Numbers { numbers: &mut of_names, all: &mut self.drawing.names };
            let places = Numbers { numbers: &mut of_places, all: &mut self.drawing.places };
            let shared = RefCell::new((names, places));
            let mut drawers: Vec<_> =
                (lanes..).zip(&named.names).map(|(lane, _)| Drawer::new(sink(lane))).collect();
            lanes += drawers.len();
            let visitor = |(drawer, names): (_, &Rc<TracedSymbols>)| {
                let (names, shared): (_, &RefCell<_>) = (names.clone(), &shared);
                let drawer: &mut Drawer<S> = drawer;
                move |time: Time, what: CallEvent| {
                    drawer.add(time, what, &mut |from, to| {
                        let (numbers, places): &mut (Numbers<'_, String>, Numbers<'_, SourceLine>) =
                            &mut shared.borrow_mut();
                        let call = from.and_then(|from| names.line(from)).map(|line| places.of(line));
                        (numbers.of(names.name(to)), call)
                    });
                }
            };
            let mut visitors: Vec<_> = drawers.iter_mut().zip(&named.names).map(visitor).collect();
            let (ends, errors) = named.walk(progress, &mut visitors);
            drop(visitors);
            self.verdict.errors += errors;
            self.drawing.unit = named.loaded.clock.unit;
            for (lane, (mut drawer, end)) in drawers.into_iter().zip(ends).enumerate() {
                drawer.lost_until(end);
                self.end = self.end.max(end.at);
                if named.names.len() > 1 && drawer.entered == 0 && drawer.losses.is_empty() {
                    continue;
                }
                let part = named.part(lane);
                let number = |of: fn(&IndexedPart) -> Option<i32>| part.and_then(of).unwrap_or(1);
                let mut track = Track {
                    name: part.map_or("trace".into(), IndexedPart::title),
                    pid: number(|part| part.pid),
                    tid: number(|part| part.tid),
                    slices: vec![],
                    losses: drawer.losses,
                    marks: drawer.marks,
                };
                keep(drawer.sink, &mut track);
                self.drawing.tracks.push(track);
            }
        }
        Ok(())
    }
}

/// The calls that may still be drawn, and the time of the first one that is not.
struct CallLimit {
    left: usize,
    cut: Option<u64>,
}

/// The slices of a track while all tracks together have few.
struct FirstCalls<'l> {
    limit: &'l RefCell<CallLimit>,
    slices: Vec<Slice>,
}

impl DrawnCallSink for FirstCalls<'_> {
    fn wants(&mut self, at: u64) -> bool {
        let mut limit = self.limit.borrow_mut();
        let wanted = limit.left > 0;
        limit.left = limit.left.saturating_sub(1);
        if !wanted {
            limit.cut = Some(limit.cut.map_or(at, |cut| cut.min(at)));
        }
        wanted
    }

    fn call(&mut self, call: DrawnCall) {
        self.slices.push(call.slice);
    }

    /// Does nothing: the marks say it.
    fn untraced(&mut self, _: u64, _: u64, _: usize, _: Option<&'static str>) {}
}
