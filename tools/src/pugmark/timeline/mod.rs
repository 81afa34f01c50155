//! `pugmark timeline`: which function ran when, as a page for a browser, a trace for Perfetto, or a profile for the
//! Firefox profiler.

mod firefox;
mod page;
mod perfetto;

use super::{
    named_session::NamedSession,
    options::Input,
    progress::Progress,
    recording::{IndexedPart, Traced},
    verdict::Verdict,
    visitors::{CallEvent, MarkKind, Time, Unit},
};
use crate::output;
use crate::symbols::{SourceLine, TracedSymbols};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use std::{cell::RefCell, collections::HashMap, fs, hash::Hash, path::PathBuf, process::ExitCode, rc::Rc};

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
    /// Draw at most N calls, the first ones
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    calls: usize,
    /// Take the names of functions from this file, too; repeatable
    #[arg(long, value_name = "FILE")]
    symbols: Vec<PathBuf>,
    #[command(flatten)]
    input: Input,
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
    let mut drawing = Drawing { unit: Unit::Instructions, names: vec![], places: vec![], tracks: vec![] };
    let (mut of_names, mut of_places) = (HashMap::new(), HashMap::new());
    let (mut left, mut verdict) = (options.calls, Verdict::default());
    for traced in options.input.traces(&mut verdict)? {
        let mut names = Numbers { numbers: &mut of_names, all: &mut drawing.names };
        let mut places = Numbers { numbers: &mut of_places, all: &mut drawing.places };
        let (tracks, unit, wrong) =
            options.tracks(&traced, &mut names, &mut places, &mut left, &mut progress)?;
        drawing.tracks.extend(tracks);
        drawing.unit = unit;
        verdict.errors += wrong;
    }
    let drawn: usize = drawing.tracks.iter().map(|track| track.slices.len()).sum();
    ensure!(drawn > 0, "nothing was executed in the trace: `pugmark decode` says why");
    if left == 0 {
        output::tell(format_args!("pugmark: warning: only the first {drawn} calls are drawn: --calls N"));
    }
    if drawing.unit == Unit::Instructions && drawing.tracks.len() > 1 {
        output::tell(format_args!(
            "pugmark: warning: without TSC packets each thread begins at 0: pugmark record --tsc --mtc --cyc"
        ));
    }
    let bytes = match options.format {
        TimelineFormat::Html => page::page(&drawing).into_bytes(),
        TimelineFormat::Perfetto => perfetto::trace(&drawing),
        TimelineFormat::Firefox => firefox::profile(&drawing)?,
    };
    let file = options.out.display();
    fs::write(&options.out, bytes).with_context(|| format!("cannot write {file}"))?;
    let count = |number, one: &str| match number {
        1 => format!("1 {one}"),
        several => format!("{several} {one}s"),
    };
    let (calls, threads) = (count(drawn, "call"), count(drawing.tracks.len(), "thread"));
    output::print(|out| writeln!(out, "{file}: {calls} of {threads}"))?;
    Ok(verdict.status())
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

impl TimelineOptions {
    /// Returns the tracks of all threads in which anything was executed or lost, the unit of time, and the number of
    /// errors.
    fn tracks(
        &self,
        traced: &Traced,
        numbers: &mut Numbers<'_, String>,
        places: &mut Numbers<'_, SourceLine>,
        left: &mut usize,
        progress: &mut Progress,
    ) -> Result<(Vec<Track>, Unit, usize)> {
        let named = NamedSession::load(&self.input, traced, &self.symbols, progress)?;
        let shared = RefCell::new((numbers, places, left));
        let mut drawers: Vec<_> = named.names.iter().map(|_| Drawer::default()).collect();
        let visitor = |(drawer, names): (_, &Rc<TracedSymbols>)| {
            let (names, shared): (_, &RefCell<_>) = (names.clone(), &shared);
            let drawer: &mut Drawer = drawer;
            move |time: Time, what: CallEvent| {
                let (numbers, places, left) = &mut *shared.borrow_mut();
                let mut name = |from: Option<u64>, to| {
                    let call = from.and_then(|from| names.line(from)).map(|line| places.of(line));
                    (numbers.of(names.name(to)), call)
                };
                drawer.add(time, what, &mut name, left);
            }
        };
        let mut visitors: Vec<_> = drawers.iter_mut().zip(&named.names).map(visitor).collect();
        let (ends, errors) = named.walk(progress, &mut visitors);
        drop(visitors);
        let mut tracks = vec![];
        for (lane, (mut drawer, end)) in drawers.into_iter().zip(ends).enumerate() {
            drawer.lost_until(end);
            let mut track = drawer.track;
            let part = named.part(lane);
            track.name = part.map_or("trace".into(), IndexedPart::title);
            let number = |of: fn(&IndexedPart) -> Option<i32>| part.and_then(of).unwrap_or(1);
            (track.pid, track.tid) = (number(|part| part.pid), number(|part| part.tid));
            if named.names.len() == 1 || !track.slices.is_empty() || !track.losses.is_empty() {
                tracks.push(track);
            }
        }
        Ok((tracks, named.loaded.clock.unit, errors))
    }
}

/// A visitor that turns calls and returns into slices.
#[derive(Default)]
struct Drawer {
    track: Track,
    /// The functions that have not been left: their slices; `None` where no more are drawn.
    open: Vec<Option<(Slice, u64)>>,
    /// The time of a loss, its reason, and the number of functions entered before.
    loss: Option<(u64, String, usize)>,
    entered: usize,
}

impl Drawer {
    /// Adds an event. `name` gives the numbers of a function's name and of the place of its call.
    fn add(
        &mut self,
        time: Time,
        what: CallEvent,
        name: &mut dyn FnMut(Option<u64>, u64) -> (usize, Option<usize>),
        left: &mut usize,
    ) {
        match what {
            CallEvent::Enter { from, to } | CallEvent::Again { from, to } => {
                self.lost_until(time);
                let drawn = *left > 0;
                *left = left.saturating_sub(1);
                let (at, depth, order) = (time.at, self.open.len(), self.entered);
                self.entered += 1;
                let mut slice = || {
                    let (name, call) = name(from, to);
                    Slice { from: at, to: at, depth, order, name, call, insns: 0 }
                };
                self.open.push(drawn.then(|| (slice(), time.insns)));
            }
            CallEvent::Leave | CallEvent::Back => {
                if let Some(Some((slice, begun))) = self.open.pop() {
                    self.track.slices.push(Slice { to: time.at, insns: time.insns - begun, ..slice });
                }
            }
            CallEvent::Loss(why) => self.loss = Some((time.at, why, self.entered)),
            CallEvent::Mark(kind, text) => self.mark(time, MarkRow::Of(kind), text),
            CallEvent::Off => self.mark(time, MarkRow::Off, "not traced from here".into()),
            CallEvent::End(_) => {}
            CallEvent::On => self.mark(time, MarkRow::On, "traced again".into()),
        }
    }

    fn mark(&mut self, time: Time, row: MarkRow, text: String) {
        self.track.marks.push(TrackMark { at: time.at, row, text });
    }

    /// Ends a loss, where tracing goes on or the trace ends.
    fn lost_until(&mut self, time: Time) {
        if let Some((from, why, order)) = self.loss.take() {
            self.track.losses.push(TrackLoss { from, to: time.at, why, order });
        }
    }
}
