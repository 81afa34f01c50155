//! A session with all that its traces need: bytes, code, and who ran.

use super::{
    code::{CodeFiles, TracedCode},
    code_names::{NameSources, names_of},
    decode::Layer,
    input::TraceBytes,
    notes::CommandNotes,
    options::{Input, LayerOptions},
    progress::Progress,
    recording::{IndexedPart, PerfRecording, Traced, no_thread},
    visitors::TraceClock,
};
use crate::output::tell;
use crate::session::{Session, TraceSlice, TurnPlace, places};
use crate::source::{SystemTask, perf_data::AuxTrace};
use crate::symbols::{SymbolFiles, TracedSymbols};
use crate::text::printable;
use crate::timeline::{SpaceId, ThreadTurn};
use anyhow::{Result, ensure};
use pugmark_decoder_core::{
    config::Config,
    image::{Image, Section},
};
use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeSet, HashMap},
    fs,
    ops::Range,
    path::{Path, PathBuf},
    rc::Rc,
};

/// A session that was read: one trace, or all traces of a file of `perf record`.
pub(super) struct LoadedSession {
    pub(super) traces: Vec<LoadedTrace>,
    pub(super) config: Config<'static>,
    pub(super) clock: TraceClock,
    pub(super) lanes: Vec<SessionLane>,
    codes: Vec<LaneCode>,
    slices: Vec<TraceSlice>,
    /// The instructions of each lane that are wanted, by their numbers; empty if all are.
    windows: Vec<Range<u64>>,
    /// Where the kernel's function begins that switches threads, if it is known.
    switch_ip: Option<u64>,
    files: RefCell<SymbolFiles>,
    notes: CommandNotes,
}

/// A trace.
pub(super) struct LoadedTrace {
    /// The part of a recording that it is, if there are several.
    pub(super) part: Option<IndexedPart>,
    pub(super) bytes: TraceBytes,
    /// A TSC near its own; 0 if none is known.
    pub(super) near: u64,
}

/// A thread, with the code that it has.
pub(super) struct SessionLane {
    /// The thread, if it is known; or the part of a recording.
    pub(super) part: Option<IndexedPart>,
    /// The number of its code.
    code: usize,
}

/// The code of some lanes.
struct LaneCode {
    traced: Traced,
    code: TracedCode,
    symbols: OnceCell<Rc<TracedSymbols>>,
}

impl Traced {
    /// Returns the instructions of each lane that are wanted, if not all are: those of one thread, or a part.
    fn windows_of(&self, lanes: &[SessionLane]) -> Result<Vec<Range<u64>>> {
        let Some(tid) = self.tid else { return Ok(self.windows.clone()) };
        let parts = || lanes.iter().map(|lane| lane.part.as_ref());
        let is_it = |part: Option<&IndexedPart>| part.is_some_and(|part| part.tid == Some(tid));
        ensure!(parts().any(is_it), no_thread(tid, parts().flatten()));
        let own = parts().enumerate().map(|(lane, part)| match is_it(part) {
            true => self.windows.get(lane).cloned().unwrap_or(0..u64::MAX),
            false => 0..0,
        });
        Ok(own.collect())
    }
}

impl LoadedSession {
    /// Loads what was traced.
    ///
    /// # Errors
    /// If a file cannot be read, or does not have the form that it should have.
    pub(super) fn load(input: &Input, traced: &Traced, progress: &mut Progress) -> Result<Self> {
        Self::for_layer(LayerOptions::BLOCKS, input, traced, progress)
    }

    /// Loads what a layer needs.
    ///
    /// # Errors
    /// Those of [`load`](Self::load).
    pub(super) fn for_layer(
        options: LayerOptions,
        input: &Input,
        traced: &Traced,
        progress: &mut Progress,
    ) -> Result<Self> {
        let (mut config, layer) = (input.config(traced)?, options.layer);
        options.add_events(&mut config);
        match &traced.recording {
            Some(recording) => Self::of_perf(layer, input, traced, recording, config),
            None => {
                let code = input.code(traced, layer, &mut CodeFiles::new())?;
                let bytes = input.load(traced, progress)?;
                let clock = TraceClock::of(&bytes, bytes.mapped(), config);
                let slices = vec![TraceSlice {
                    trace: 0,
                    range: 0..bytes.len(),
                    lane: 0,
                    image: 0,
                    is_switch: false,
                    tsc: 0,
                }];
                let part = traced.part.clone();
                let codes = vec![LaneCode { traced: traced.clone(), code, symbols: OnceCell::new() }];
                let lanes = vec![SessionLane { part: part.clone(), code: 0 }];
                let traces = vec![LoadedTrace { part, bytes, near: 0 }];
                Ok(Self {
                    traces,
                    config,
                    clock,
                    lanes,
                    codes,
                    slices,
                    windows: traced.windows.clone(),
                    switch_ip: None,
                    files: RefCell::default(),
                    notes: input.notes.clone(),
                })
            }
        }
    }

    fn of_perf(
        layer: Layer,
        input: &Input,
        traced: &Traced,
        recording: &PerfRecording,
        config: Config<'static>,
    ) -> Result<Self> {
        let several = recording.traces.len() > 1;
        let mut lanes = PerfLanes::new(layer, recording, input, traced);
        let (mut slices, mut traces) = (vec![], vec![]);
        for (number, trace) in recording.traces.iter().enumerate() {
            lanes.cut(number, trace, config, &mut slices)?;
            traces.push(LoadedTrace {
                part: several.then(|| IndexedPart { dir: trace.to_string(), ..IndexedPart::default() }),
                bytes: TraceBytes::Shared(trace.clone()),
                near: trace.reference,
            });
        }
        lanes.tell_missing();
        let PerfLanes { lanes, codes, .. } = lanes;
        let mut clocks = traces.iter().map(|trace| TraceClock::of(&trace.bytes, None, config));
        let clock = clocks.find(|clock| clock.is_timed()).unwrap_or(TraceClock::INSTRUCTIONS);
        let clock = clock.in_clock_of_perf(recording.clock);
        let switch_ip = recording.kernel.kallsyms.as_deref().and_then(switch_ip);
        let windows = traced.windows_of(&lanes)?;
        let (files, notes) = (RefCell::default(), input.notes.clone());
        Ok(Self { traces, config, clock, lanes, codes, slices, windows, switch_ip, files, notes })
    }

    /// Returns the sections of each code, from which [`session`](Self::session) makes images.
    pub(super) fn sections(&self) -> Vec<Vec<Section<'_>>> {
        self.codes.iter().map(|code| code.code.sections()).collect()
    }

    /// Returns the session over its sections.
    pub(super) fn session<'a>(&'a self, sections: &'a [Vec<Section<'a>>]) -> Session<'a> {
        self.shared(sections).session()
    }

    /// Tells if instructions are missing, where decoding has found `found` of them and `errors`. Returns the number of
    /// errors to add.
    pub(super) fn misses(&self, found: u64, errors: usize) -> usize {
        match (&self.codes[..], self.lacks_trace()) {
            (_, missing @ 1..) => missing,
            ([LaneCode { traced, .. }], 0) if errors == 0 => traced.misses(found),
            _ => 0,
        }
    }

    /// Tells if there is something else than a trace. Returns the number of errors to add.
    pub(super) fn lacks_trace(&self) -> usize {
        let ([LaneCode { traced, .. }], [trace]) = (&self.codes[..], &self.traces[..]) else { return 0 };
        let is_file = traced.perf.is_none() && !trace.bytes.is_empty();
        let Some(what) = is_file.then(|| traced.no_trace(&trace.bytes)).flatten() else { return 0 };
        tell(format_args!("pugmark: warning: {what}"));
        1
    }

    /// Returns the parts of which each of several threads can make a session.
    pub(super) fn shared<'a>(&'a self, sections: &'a [Vec<Section<'a>>]) -> SharedSession<'a> {
        let Self { traces, config, lanes, slices, switch_ip, .. } = self;
        let windows = &self.windows[..];
        SharedSession { traces, config: *config, lanes, slices, windows, switch_ip: *switch_ip, sections }
    }

    /// Returns the clock of times that are shown. Warns if it has little to go by.
    pub(super) fn shown_clock(&self) -> TraceClock {
        if self.clock.is_coarse {
            self.notes.coarse_times();
        }
        self.clock
    }

    /// Returns the trace, if there is only one and all of it is of one code.
    pub(super) fn alone(&self) -> Option<&[u8]> {
        match &self.slices[..] {
            [_] => self.traces.first().map(|trace| &*trace.bytes),
            _ => None,
        }
    }

    /// Returns the code of a lane.
    pub(super) fn code(&self, lane: usize) -> &TracedCode {
        self.code_of(lane).1
    }

    /// Returns the same, and where it is from.
    pub(super) fn code_of(&self, lane: usize) -> (&Traced, &TracedCode) {
        let LaneCode { traced, code, .. } = &self.codes[self.lanes[lane].code];
        (traced, code)
    }

    /// Returns the names in a lane's code; `more` are files that have names, too.
    ///
    /// # Errors
    /// Those of [`names_of`].
    pub(super) fn symbols(&self, lane: usize, input: &Input, more: &[PathBuf]) -> Result<Rc<TracedSymbols>> {
        let number = self.lanes[lane].code;
        let LaneCode { traced, code, symbols } = &self.codes[number];
        if let Some(known) = symbols.get() {
            return Ok(known.clone());
        }
        let processes =
            self.lanes.iter().filter(|lane| lane.code == number).filter_map(|lane| lane.part.as_ref()?.pid);
        let processes: BTreeSet<i32> = processes.collect();
        let processes: Vec<i32> = processes.into_iter().collect();
        let sources = NameSources { processes: &processes, ..NameSources::of(input, more) };
        let found = names_of(traced, &code.sections(), sources, &mut self.files.borrow_mut())?;
        Ok(symbols.get_or_init(|| Rc::new(found)).clone())
    }
}

/// Finds the kernel's function that switches threads in the text of its /proc/kallsyms.
///
/// Source: Linux, arch/x86/entry/entry_64.S, `__switch_to_asm`, which jumps to that function on the new thread's stack.
fn switch_ip(kallsyms: &Path) -> Option<u64> {
    let text = fs::read_to_string(kallsyms).ok()?;
    let line = text.lines().find(|line| line.ends_with(" T __switch_to"))?;
    u64::from_str_radix(line.split_ascii_whitespace().next()?, 16).ok().filter(|address| *address != 0)
}

/// The most changed bytes in all of the kernel's code together: the sections around them take a hundred bytes each.
const MOST_CHANGED: usize = 1 << 21;

/// The parts of a [`Session`], whose images are of one thread.
#[derive(Clone, Copy)]
pub(super) struct SharedSession<'a> {
    traces: &'a [LoadedTrace],
    config: Config<'static>,
    lanes: &'a [SessionLane],
    slices: &'a [TraceSlice],
    windows: &'a [Range<u64>],
    switch_ip: Option<u64>,
    sections: &'a [Vec<Section<'a>>],
}

impl<'a> SharedSession<'a> {
    /// Makes the session.
    pub(super) fn session(&self) -> Session<'a> {
        Session {
            traces: self.traces.iter().map(|trace| &*trace.bytes).collect(),
            mapped: self.traces.iter().map(|trace| trace.bytes.mapped()).collect(),
            near: self.traces.iter().map(|trace| trace.near).collect(),
            config: self.config,
            images: self.sections.iter().map(|sections| Image::new(sections)).collect(),
            sections: Some(self.sections),
            lanes: self.lanes.iter().map(|lane| lane.code).collect(),
            slices: self.slices.to_vec(),
            windows: self.windows.to_vec(),
            switch_ip: self.switch_ip,
        }
    }
}

/// The lanes of a recording, while its traces are cut.
struct PerfLanes<'a> {
    layer: Layer,
    recording: &'a PerfRecording,
    input: &'a Input,
    traced: &'a Traced,
    known: HashMap<(Option<SystemTask>, Option<SpaceId>), usize>,
    lanes: Vec<SessionLane>,
    /// The code of each space, by what tells the kernel's code from others.
    by_content: HashMap<(Option<SpaceId>, u64), usize>,
    /// The number of changed bytes in all of the kernel's code.
    changed: usize,
    codes: Vec<LaneCode>,
    files: CodeFiles,
    missing: BTreeSet<PathBuf>,
}

impl<'a> PerfLanes<'a> {
    fn new(layer: Layer, recording: &'a PerfRecording, input: &'a Input, traced: &'a Traced) -> Self {
        Self {
            layer,
            recording,
            input,
            traced,
            known: HashMap::new(),
            lanes: vec![],
            by_content: HashMap::new(),
            changed: 0,
            codes: vec![],
            files: CodeFiles::new(),
            missing: BTreeSet::new(),
        }
    }

    /// Cuts a trace into slices.
    fn cut(
        &mut self,
        number: usize,
        trace: &AuxTrace,
        config: Config<'static>,
        slices: &mut Vec<TraceSlice>,
    ) -> Result<()> {
        let timeline = &self.recording.timeline;
        let turns = match (trace.thread.filter(|_| trace.cpu.is_none()), trace.cpu) {
            (Some(thread), _) => timeline.turns_of_thread(thread as i32),
            (None, Some(cpu)) => timeline.turns_of_cpu(cpu),
            (None, None) => timeline.turns_of_cpu(u32::MAX),
        };
        let places = self.places(trace, config, &turns);
        let (mut from, mut before) = (0, None);
        for (at, place) in places.iter().enumerate() {
            let to = places.get(at + 1).map_or(trace.bytes.len(), |next| next.offset);
            let turn = turns[place.number];
            let image = self.code(turn)?;
            let lane = self.lane(turn, image);
            let is_switch = before.is_some_and(|before| before != turn.task);
            slices.push(TraceSlice {
                trace: number,
                range: from..to,
                lane,
                image,
                is_switch,
                tsc: place.tsc,
            });
            (from, before) = (to, Some(turn.task));
        }
        Ok(())
    }

    /// Returns where the turns take effect; the first place is where the trace begins.
    fn places(&self, trace: &AuxTrace, config: Config<'static>, turns: &[ThreadTurn]) -> Vec<TurnPlace> {
        let place = |number| TurnPlace { number, offset: 0, tsc: 0 };
        if turns.len() == 1 {
            return vec![place(0)];
        }
        let clock = self.recording.clock;
        let times = turns.iter().map(|turn| if turn.time == 0 { Some(0) } else { clock?.tsc(turn.time) });
        let times: Option<Vec<u64>> = times.collect();
        let found = times.and_then(|times| places(&trace.bytes, config, &times, trace.reference));
        match found {
            Some(mut found) => {
                // Nothing is decoded before there is a time.
                match found.first_mut() {
                    Some(first) => first.offset = 0,
                    None => found.push(place(0)),
                }
                found
            }
            None => {
                tell(format_args!(
                    "pugmark: warning: {}: {trace} has no time, so it is not known where threads or code changed: the \
                     last ones count",
                    self.traced.trace.display()
                ));
                let last = turns.iter().rposition(|turn| turn.space.is_some());
                vec![place(last.unwrap_or(turns.len() - 1))]
            }
        }
    }

    /// Returns the lane of a turn. A new lane begins with `code`.
    fn lane(&mut self, turn: ThreadTurn, code: usize) -> usize {
        let ThreadTurn { task, space, .. } = turn;
        if let Some(known) = self.known.get(&(task, space)) {
            return *known;
        }
        let part = task.map(|task| {
            let comm = self.recording.timeline.name(turn).map(|name| printable(name).into_owned());
            let (pid, tid) = (Some(task.pid), Some(task.tid));
            IndexedPart { dir: format!("thread-{}", task.tid), pid, tid, comm, ..IndexedPart::default() }
        });
        self.lanes.push(SessionLane { part, code });
        self.known.insert((task, space), self.lanes.len() - 1);
        self.lanes.len() - 1
    }

    /// Returns the code of a turn, loaded if it is new.
    fn code(&mut self, turn: ThreadTurn) -> Result<usize> {
        let ThreadTurn { space, kernel, .. } = turn;
        let key = (space, self.recording.timeline.kernel().content(kernel));
        if let Some(known) = self.by_content.get(&key) {
            return Ok(*known);
        }
        // Far too many changes: those that come last are not followed.
        let last =
            self.by_content.iter().filter(|((other, _), _)| *other == space).map(|(_, code)| *code).max();
        if let Some(last) = last.filter(|_| self.changed > MOST_CHANGED) {
            return Ok(last);
        }
        let changed = self.recording.timeline.kernel().bytes(kernel);
        self.changed += changed.len();
        let perf = self.recording.code(space, changed, self.input.symfs.as_deref(), &mut self.missing);
        let traced = Traced { perf: Some(perf), recording: None, ..self.traced.clone() };
        let code = self.input.code(&traced, self.layer, &mut self.files)?;
        self.codes.push(LaneCode { traced, code, symbols: OnceCell::new() });
        self.by_content.insert(key, self.codes.len() - 1);
        Ok(self.codes.len() - 1)
    }

    fn tell_missing(&self) {
        if self.changed > MOST_CHANGED {
            tell(format_args!(
                "pugmark: warning: {}: the kernel has changed its code too often: not all changes are followed",
                self.traced.trace.display()
            ));
        }
        for file in &self.missing {
            let file = file.display();
            tell(format_args!("pugmark: warning: there is no file {file}; --symfs says where to look"));
        }
    }
}

#[cfg(test)]
mod tests;
