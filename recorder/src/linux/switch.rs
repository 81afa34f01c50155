//! The switch of a task: tracing starts and stops where the options say so.
//!
//! Each task has a switch of its own, and a task that it starts begins as its switch is then. The switch is asked
//! before each instruction, so that both engines start and stop at the same one.

use super::{
    RecordOptions,
    filter::{self, Symbols},
    maps::TaskMapping,
    pt_unit::{Clock, KERNEL_TICKS},
    trigger::Trigger,
};
use libc::c_int;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
};

/// The triggers that start and stop tracing, and whether each was reached, over all tasks.
#[derive(Debug, Default)]
pub(super) struct Triggers {
    start: Watched,
    stop: Watched,
}

#[derive(Debug, Default)]
struct Watched {
    trigger: Option<Trigger>,
    /// Its address, if that is the same in all tasks.
    place: Option<u64>,
    /// True if its place was mapped at some time.
    found: Cell<bool>,
    reached: Cell<bool>,
    /// The mapped files that do not have its function.
    files: RefCell<BTreeSet<String>>,
}

/// A trigger that was not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// `--start` or `--stop`.
    pub option: &'static str,
    /// The trigger that was asked for.
    pub trigger: Trigger,
    /// Why a trigger's function was not found in any mapped file.
    pub missing: Option<Missing>,
}

/// Why a trigger's function was not found in any mapped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No mapped file has the name that was asked for; these are the names of the mapped files.
    Object(Vec<String>),
    /// No such file has the function; these are the functions that they have.
    Function(Vec<String>),
    /// The function is shorter than the offset.
    Offset,
    /// Several functions have the name, at these addresses.
    Several(Vec<u64>),
}

impl Triggers {
    pub(super) fn new(options: &RecordOptions) -> Rc<Self> {
        let place = |trigger: &Option<Trigger>| match trigger {
            Some(Trigger::Address(address)) => Some(*address),
            _ => None,
        };
        Self::at(options, [place(&options.start), place(&options.stop)])
    }

    /// Returns the triggers with the addresses of both, if they are known before anything is mapped.
    pub(super) fn at(options: &RecordOptions, [start, stop]: [Option<u64>; 2]) -> Rc<Self> {
        let watched = |trigger: &Option<Trigger>, place: Option<u64>| Watched {
            trigger: trigger.clone(),
            place,
            found: place.is_some().into(),
            ..Watched::default()
        };
        Rc::new(Self { start: watched(&options.start, start), stop: watched(&options.stop, stop) })
    }

    /// Returns true if there are no triggers: everything is traced.
    pub(super) fn is_empty(&self) -> bool {
        self.start.trigger.is_none() && self.stop.trigger.is_none()
    }

    /// Returns true if tracing has stopped and nothing starts it again.
    pub(super) fn ended(&self) -> bool {
        self.start.trigger.is_none() && self.stop.reached.get()
    }

    /// Returns what was not reached. That tracing was not stopped only matters if it was started.
    pub(super) fn unreached(&self) -> Vec<Unreached> {
        let started = self.start.trigger.is_none() || self.start.reached.get();
        let both = [("--start", &self.start, true), ("--stop", &self.stop, started)];
        let both = both.into_iter().filter(|(_, watched, matters)| *matters && !watched.reached.get());
        both.filter_map(|(option, watched, _)| {
            let trigger = watched.trigger.clone()?;
            let missing = match &trigger {
                Trigger::Function { object, name, .. } if !watched.found.get() => {
                    Some(watched.missing(object.as_deref(), name))
                }
                _ => None,
            };
            Some(Unreached { option, trigger, missing })
        })
        .collect()
    }
}

impl Watched {
    fn missing(&self, object: Option<&str>, name: &str) -> Missing {
        let files = self.files.borrow();
        let is_it = |path: &&String| object.is_none_or(|object| filter::is_named(path, object));
        let mut names: Vec<String> =
            files.iter().filter(is_it).flat_map(|path| filter::functions_of(path)).collect();
        if !files.iter().any(|path| is_it(&path)) {
            let last = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
            return Missing::Object(files.iter().map(last).collect());
        }
        if names.iter().any(|own| own == name) {
            return Missing::Offset;
        }
        names.sort_unstable();
        names.dedup();
        Missing::Function(names)
    }

    fn resolve(&self, symbols: &Symbols) -> Option<u64> {
        let place = self.trigger.as_ref()?.resolve(symbols);
        if place.is_some() {
            self.found.set(true);
        } else if !self.found.get() {
            self.files.borrow_mut().extend(symbols.paths().map(Into::into));
        }
        place
    }
}

/// True if a task is traced now.
#[derive(Clone, Debug)]
pub(super) struct Switch {
    triggers: Rc<Triggers>,
    on: bool,
    /// The number of instructions executed since it was turned on or off.
    count: u64,
    /// True if the signal was received that turns it on or off.
    signalled: bool,
    /// The addresses of both triggers, if they are known.
    start_at: Option<u64>,
    stop_at: Option<u64>,
    /// The mapped files when the addresses were last looked up, and where each begins.
    files: Vec<(String, u64)>,
}

/// The turn of a switch before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    On,
    Off,
}

impl Switch {
    /// Returns the switch of the first task.
    pub(super) fn new(triggers: Rc<Triggers>) -> Self {
        let on = triggers.start.trigger.is_none();
        let (start_at, stop_at) = (triggers.start.place, triggers.stop.place);
        Self { triggers, on, count: 0, signalled: false, start_at, stop_at, files: vec![] }
    }

    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// Returns true if tracing has stopped for good, for all tasks.
    pub(super) fn has_ended(&self) -> bool {
        self.triggers.ended()
    }

    /// Returns true if neither trigger is a function.
    pub(super) fn finds_by_address(&self) -> bool {
        let both = [&self.triggers.start, &self.triggers.stop];
        !both.iter().any(|watched| matches!(watched.trigger, Some(Trigger::Function { .. })))
    }

    /// Finds where the triggers' functions are mapped now.
    pub(super) fn find_places(&mut self, mappings: &[TaskMapping], program: &str) {
        let files = Symbols::mapped_files(mappings);
        if files == self.files {
            return;
        }
        let symbols = Symbols::new(mappings, program);
        self.start_at = self.triggers.start.resolve(&symbols);
        self.stop_at = self.triggers.stop.resolve(&symbols);
        self.files = files;
    }

    fn waits_for(&self) -> &Watched {
        if self.on { &self.triggers.stop } else { &self.triggers.start }
    }

    /// Returns the place at which it turns next.
    pub(super) fn place(&self) -> Option<u64> {
        if self.on { self.stop_at } else { self.start_at }
    }

    /// Returns the number of instructions that it lets pass without a turn, unless its place is among them.
    pub(super) fn quiet_for(&self) -> u64 {
        match self.waits_for().trigger {
            _ if self.signalled => 0,
            Some(Trigger::Count(count)) => count.saturating_sub(self.count),
            _ => u64::MAX,
        }
    }

    /// Returns true if it turns before the instruction at `ip`.
    pub(super) fn turns_at(&self, ip: u64) -> bool {
        self.quiet_for() == 0 || self.place() == Some(ip)
    }

    /// Turns, if the instruction at `ip` is where it has to, and says so.
    pub(super) fn turn_before(&mut self, ip: u64) -> Option<Turn> {
        if !self.turns_at(ip) {
            return None;
        }
        self.waits_for().reached.set(true);
        (self.on, self.count, self.signalled) = (!self.on, 0, false);
        Some(if self.on { Turn::On } else { Turn::Off })
    }

    /// Counts instructions that were executed.
    pub(super) fn pass(&mut self, instructions: u64) {
        self.count += instructions;
    }

    /// Returns true if tracing starts at a signal or at a place that is mapped, so that what is executed before does
    /// not matter.
    pub(super) fn can_run(&self) -> bool {
        let by_signal = matches!(self.triggers.start.trigger, Some(Trigger::Signal(_)));
        !self.on && !self.signalled && (by_signal || self.start_at.is_some())
    }

    /// Notes that the task receives a signal.
    pub(super) fn receive(&mut self, signal: c_int) {
        self.signalled |= self.waits_for().trigger == Some(Trigger::Signal(signal));
    }
}

/// A task while it is not traced: only time passes, as much as if it were traced.
#[derive(Debug)]
pub(super) struct Untraced {
    clock: Clock,
    pub(super) in_kernel: bool,
}

impl Untraced {
    /// Creates the clock of a task, which begins in the kernel.
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, in_kernel: true }
    }

    /// Notes that instructions were executed; the last one may lead into the kernel.
    pub(super) fn pass(&mut self, instructions: u64, into_kernel: bool) {
        let visit = if self.in_kernel { KERNEL_TICKS } else { 0 };
        self.clock.set(self.clock.get() + visit + instructions);
        self.in_kernel = into_kernel;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of the instructions that are traced, of a task that executes from 1 to 12 in order, twice.
    fn traced(start: Option<&str>, stop: Option<&str>) -> (Vec<u64>, bool, Vec<Unreached>) {
        let trigger = |text: Option<&str>| text.map(|text| text.parse().unwrap());
        let options =
            RecordOptions { start: trigger(start), stop: trigger(stop), ..RecordOptions::new(["true"]) };
        let triggers = Triggers::new(&options);
        let mut switch = Switch::new(triggers.clone());
        let mut traced = vec![];
        for number in 0..24 {
            let ip = number % 12 + 1;
            let (quiet, place) = (switch.quiet_for(), switch.place());
            let turn = switch.turn_before(ip);
            assert_eq!(turn.is_some(), quiet == 0 || place == Some(ip), "{number}");
            if switch.is_on() {
                traced.push(number + 1);
            }
            switch.pass(1);
        }
        (traced, triggers.ended(), triggers.unreached())
    }

    #[test]
    fn tracing_is_on_from_each_start_to_the_next_stop() {
        for (start, stop, expected, ended) in [
            (None, None, (1..=24).collect::<Vec<u64>>(), false),
            (Some("0xb"), None, (11..=24).collect(), false),
            (None, Some("0x3"), vec![1, 2], true),
            (Some("0x3"), Some("0x5"), vec![3, 4, 15, 16], false),
            // Backwards: it goes on from the end to the begin.
            (Some("0x5"), Some("0x3"), [5..=14, 17..=24].into_iter().flatten().collect(), false),
            // The same place, in turns.
            (Some("0x3"), Some("0x3"), (3..=14).collect(), false),
            (Some("count:20"), None, (21..=24).collect(), false),
            (None, Some("count:2"), vec![1, 2], true),
            // Instructions since the last turn.
            (Some("count:5"), Some("count:2"), vec![6, 7, 13, 14, 20, 21], false),
            (Some("0x2"), Some("count:3"), vec![2, 3, 4, 14, 15, 16], false),
            (Some("count:10"), Some("0x4"), [11..=15].into_iter().flatten().collect(), false),
        ] {
            let (found, is_over, unreached) = traced(start, stop);
            assert_eq!((found, is_over, unreached), (expected, ended, vec![]), "{start:?} {stop:?}");
        }
    }

    #[test]
    fn what_was_not_reached_is_told() {
        let names = |(_, _, unreached): (Vec<u64>, bool, Vec<Unreached>)| -> Vec<(&str, String, bool)> {
            let each = |one: &Unreached| (one.option, one.trigger.to_string(), one.missing.is_some());
            unreached.iter().map(each).collect()
        };
        assert_eq!(names(traced(Some("0x20"), Some("0x3"))), [("--start", "0x20".into(), false)]);
        assert_eq!(names(traced(Some("0x3"), Some("0x20"))), [("--stop", "0x20".into(), false)]);
        assert_eq!(names(traced(None, Some("count:99"))), [("--stop", "count:99".into(), false)]);
        assert_eq!(names(traced(Some("count:99"), None)), [("--start", "count:99".into(), false)]);
        assert_eq!(names(traced(Some("nothing"), None)), [("--start", "nothing".into(), true)]);
        assert_eq!(names(traced(Some("SIGUSR1"), None)), [("--start", "SIGUSR1".into(), false)]);
    }

    #[test]
    fn a_signal_turns_before_the_next_instruction_and_other_signals_do_not() {
        let start = Some(Trigger::Signal(libc::SIGUSR1));
        let stop = Some(Trigger::Signal(libc::SIGUSR2));
        let options = RecordOptions { start, stop, ..RecordOptions::new(["true"]) };
        let mut switch = Switch::new(Triggers::new(&options));
        for (signal, waits, expected) in [
            (libc::SIGUSR2, true, None),
            (libc::SIGUSR1, false, Some(Turn::On)),
            (libc::SIGUSR1, false, None),
            (libc::SIGUSR2, true, Some(Turn::Off)),
        ] {
            switch.receive(signal);
            assert_eq!(switch.quiet_for() == 0, expected.is_some(), "{signal}");
            assert_eq!(switch.turn_before(7), expected, "{signal}");
            assert_eq!((switch.turn_before(7), switch.can_run()), (None, waits), "{signal}");
        }
    }

    #[test]
    fn time_passes_untraced_as_it_does_traced() {
        let clock: Clock = Rc::new(Cell::new(0));
        let mut untraced = Untraced::new(clock.clone());
        for (instructions, into_kernel, time) in
            [(3, false, 1003), (1, true, 1004), (0, true, 2004), (2, false, 3006), (5, false, 3011)]
        {
            untraced.pass(instructions, into_kernel);
            assert_eq!((clock.get(), untraced.in_kernel), (time, into_kernel));
        }
    }
}
