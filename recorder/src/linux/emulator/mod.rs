//! Records a program that QEMU's user-mode emulator executes, some thousand times as fast as by stepping.
//!
//! ```text
//!   pugmark record                          qemu-x86_64, one for each process of the program
//!     mod      starts it, finds rings   ◀──   plugin   writes what each thread executes into rings (wire)
//!     process  code, blocks, handlers
//!     thread   blocks → instructions, system calls, signals → the model of the hardware
//! ```
//!
//! Nearly all that a program does is in blocks that end by a near branch and have been executed before: `thread`
//! follows those without a look at their instructions (`near_branches`). The truth is hashed on a thread of its own
//! (`hash_thread`).
//!
//! The program is that of a processor as the emulator shows it (`-cpu max`), which may be another one than this
//! machine's: a library that chooses its functions by CPUID may choose others.

mod counting;
mod hash_thread;
mod loading;
pub(super) mod machine;
mod near_branches;
mod new_rings;
#[allow(clippy::missing_safety_doc, reason = "the emulator calls these functions")]
mod plugin;
mod probe;
mod process;
mod shared;
#[cfg(test)]
mod tests;
mod thread;

use super::{
    Cause, Deviation, Ending, Part, RecordError, RecordOptions, RecordProgress, Recording, Trigger, folder,
    index,
    part::WRITE_EVERY,
    runtime,
    signals::{Before, Signals},
    switch::{Switch, Triggers},
};
pub(super) use counting::count;
pub use counting::{Counted, CountedThread};
use hash_thread::HashThread;
use loading::LoadedPlugin;
pub use loading::NoEmulator;
use new_rings::NewRings;
pub use plugin::deviations::DeviationKind;
use plugin::{EmulatorCommand, Origin, wire::Ring};
use process::Process;
use shared::Shared;
use std::{
    cell::Cell,
    collections::{BTreeSet, HashSet},
    ffi::{CString, OsString, c_int},
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::PathBuf,
    process::{Child, Command},
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant, SystemTime},
};
use thread::Thread;

/// The emulator, found in PATH.
pub(super) const EMULATOR: &str = "qemu-x86_64";

/// A program while the emulator executes it.
struct Emulation<'a> {
    options: &'a RecordOptions,
    shared: Shared,
    child: Child,
    ending: Option<Ending>,
    new_rings: NewRings,
    processes: Vec<Process>,
    threads: Vec<Thread<'a>>,
    threads_started: u32,
    hash_thread: HashThread,
    /// The number of instructions that are still to be traced.
    budget: Rc<Cell<u64>>,
    tracing_ended: Option<Cause>,
    triggers: Rc<Triggers>,
    signals: Option<Signals>,
    started_at: SystemTime,
    /// The time of the last writing.
    written_at: Instant,
    /// Since when all known processes and threads have ended.
    over_since: Option<Instant>,
}

/// Returns the file that a program's name stands for, as the shell finds it.
fn find_program(name: &OsString) -> io::Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn waits_for_signal(options: &RecordOptions) -> bool {
    [&options.start, &options.stop].into_iter().any(|trigger| matches!(trigger, Some(Trigger::Signal(_))))
}

/// Returns true if the emulator is installed and takes the plugin.
pub(super) fn is_installed() -> bool {
    LoadedPlugin::find().is_ok()
}

/// A program that is about to be started in the emulator.
pub(super) struct Prepared {
    shared: Shared,
    command: EmulatorCommand,
}

/// Prepares to record the program; an error says why the emulator cannot execute it as the options ask for.
pub(super) fn prepare(options: &RecordOptions, count: bool) -> Result<Prepared, RecordError> {
    if options.pid.is_some() {
        return Err(RecordError::Emulator("it starts programs, and cannot take over one that runs"));
    }
    if waits_for_signal(options) {
        return Err(RecordError::Emulator("it does not report signals, which --start or --stop asks for"));
    }
    let plugin = LoadedPlugin::find().map_err(RecordError::NoEmulator)?;
    let shared = Shared::new(plugin).map_err(RecordError::Prepare)?;
    let command = emulator_command(&shared.origin(options.follow, count), options)?;
    Ok(Prepared { shared, command })
}

/// Returns the command by which the emulator executes the program.
fn emulator_command(origin: &Origin, options: &RecordOptions) -> Result<EmulatorCommand, RecordError> {
    let program = options.program.first().cloned().unwrap_or_default();
    let start = |error| RecordError::Start { program: program.to_string_lossy().into_owned(), error };
    let file = find_program(&program).map_err(start)?;
    if let Err(error) = fs::metadata(&file) {
        return Err(start(error));
    }
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|error| start(error.into()));
    let arguments =
        options.program.iter().map(|word| text(word.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let variables =
        std::env::vars_os().map(|(name, value)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat()));
    let environment = variables.collect::<Result<Vec<_>, _>>()?;
    plugin::command(origin, &text(file.as_os_str().as_bytes())?, &arguments, &environment).ok_or_else(|| {
        let error = "not an executable 64-bit program for Linux on x86-64";
        start(io::Error::new(io::ErrorKind::PermissionDenied, error))
    })
}

/// Runs the program in the emulator and records it.
pub(super) fn record(
    options: &RecordOptions,
    Prepared { shared, command }: Prepared,
    progress: &mut dyn FnMut(RecordProgress),
) -> Result<Recording, RecordError> {
    folder::prepare(&options.out)?;
    index::begin(options, SystemTime::now())?;
    let (child, signals) = start(options, command)?;
    Emulation::new(options, shared, child, signals).run(progress)
}

/// Starts the emulator, and notes the signals that come from then on if the options say so.
fn start(options: &RecordOptions, command: EmulatorCommand) -> Result<(Child, Option<Signals>), RecordError> {
    if !options.signals {
        return Ok((launch(options, command, None)?, None));
    }
    let started = Signals::from_start(|before| launch(options, command, Some(before)));
    let (child, signals) = started.map_err(RecordError::Prepare)?;
    Ok((child?, Some(signals)))
}

/// Starts the emulator, with this process's signal actions and mask, or those that are given.
fn launch(
    options: &RecordOptions,
    command: EmulatorCommand,
    signals: Option<Before>,
) -> Result<Child, RecordError> {
    let file = CString::new(EMULATOR).map_err(|error| RecordError::Prepare(error.into()))?;
    let lists = [&command.line, &command.environment].map(|texts| plugin::addresses(texts));
    let texts = command;
    let mut command = Command::new(EMULATOR);
    let aslr = options.aslr;
    let before_exec = move || {
        // SAFETY: it takes a number and only changes this process.
        if !aslr && unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as _) } == -1 {
            return Err(io::Error::last_os_error());
        }
        signals.as_ref().map_or(Ok(()), Before::restore)?;
        let _alive = &texts;
        let [line, environment] = [&lists[0], &lists[1]].map(|list| list.as_ptr().cast());
        // A `Command` cannot have a variable twice.
        // SAFETY: both lists end with a null, and they and their texts live until the call returns, if it does.
        unsafe { libc::execvpe(file.as_ptr(), line, environment) };
        Err(io::Error::last_os_error())
    };
    // SAFETY: between fork and exec it only makes system calls, which is allowed there.
    unsafe { command.pre_exec(before_exec) };
    command.spawn().map_err(|error| RecordError::Start { program: EMULATOR.into(), error })
}

/// Returns the end of a process that this one has started, if it has ended.
fn ending_of(child: &mut Child) -> Result<Option<Ending>, RecordError> {
    let status = child.try_wait().map_err(|error| RecordError::Step { ip: None, error })?;
    Ok(status.map(|status| match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Exit(code),
        (None, signal) => Ending::Signal(signal.unwrap_or_default()),
    }))
}

/// The number of instructions between two reports of progress.
const PROGRESS_EVERY: u64 = 4096;
const PAUSE: Duration = Duration::from_micros(100);
/// The time between two looks for new rings while there is something to read.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The longest time that a forked process may take until it has rings. One that is killed before never has any.
const LONGEST_FORK: Duration = Duration::from_secs(5);

impl<'a> Emulation<'a> {
    fn new(options: &'a RecordOptions, shared: Shared, child: Child, signals: Option<Signals>) -> Self {
        Self {
            options,
            shared,
            child,
            ending: None,
            new_rings: NewRings::default(),
            processes: vec![],
            threads: vec![],
            threads_started: 0,
            hash_thread: HashThread::new(),
            budget: Rc::new(options.limit.unwrap_or(u64::MAX).into()),
            tracing_ended: None,
            triggers: Triggers::new(options),
            signals,
            started_at: SystemTime::now(),
            written_at: Instant::now(),
            over_since: None,
        }
    }

    fn run(mut self, progress: &mut dyn FnMut(RecordProgress)) -> Result<Recording, RecordError> {
        let mut shown = 0;
        let (mut any, mut looked) = (false, Instant::now());
        loop {
            if let Some(signal) = self.signals.as_ref().and_then(Signals::take) {
                self.handle_signal(signal)?;
            }
            // New rings are seldom.
            let looks = !any || looked.elapsed() > LOOK_EVERY;
            any = looks && {
                looked = Instant::now();
                self.find_rings()?
            };
            for process in &mut self.processes {
                any |= process.read();
            }
            any |= self.read_threads()?;
            if any {
                self.processes.iter_mut().for_each(|process| process.silent_since = None);
            }
            if looks && self.written_at.elapsed() > WRITE_EVERY {
                self.threads.iter_mut().try_for_each(|thread| thread.write(true))?;
                self.written_at = Instant::now();
            }
            if self.limit_reached() {
                self.end_tracing(if self.triggers.ended() { Cause::Stop } else { Cause::Limit })?;
            }
            if looks && self.options.kill_at_limit && self.tracing_ended == Some(Cause::Limit) {
                self.send(libc::SIGKILL);
            }
            let steps = self.count();
            let tasks = self.threads.iter().filter(|thread| !thread.over).count();
            if tasks > 0 && steps >= shown + PROGRESS_EVERY {
                shown = steps;
                let bytes = self.threads.iter().map(Thread::bytes).sum();
                progress(RecordProgress { steps, bytes, tasks });
            }
            if looks && !any {
                if self.has_ended()? {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
        self.finish()
    }

    fn finish(mut self) -> Result<Recording, RecordError> {
        if self.processes.is_empty() {
            let error = io::Error::other("it did not load the plugin; try --engine stepping");
            return Err(RecordError::Start { program: EMULATOR.into(), error });
        }
        let mut parts: Vec<Part> =
            self.threads.iter_mut().flat_map(|thread| std::mem::take(&mut thread.parts)).collect();
        parts.sort_by_key(|part| part.task);
        let cause = self.tracing_ended.unwrap_or(Cause::Over);
        let ending = self.ending.unwrap_or(Ending::Exit(0));
        let not_followed: Vec<_> =
            self.threads.iter_mut().flat_map(|thread| std::mem::take(&mut thread.not_followed)).collect();
        let of_thread = |thread: &Thread<'_>| {
            let pid = thread.pid().cast_signed();
            thread.deviations.iter().map(move |&kind| Deviation { pid, kind }).collect::<Vec<_>>()
        };
        let deviations: BTreeSet<Deviation> = self.threads.iter().flat_map(of_thread).collect();
        let deviations: Vec<_> = deviations.into_iter().collect();
        let missing = (&*not_followed, &*deviations);
        runtime::copy(self.options, self.started_at, &parts)?;
        index::write(self.options, self.started_at, (&parts, ending, cause), missing)?;
        let unreported = self.unreported() + self.shared.rings.header().refused.load(Relaxed);
        let unreached = self.triggers.unreached();
        Ok(Recording { parts, ending, cause, not_followed, unreported, unreached, deviations })
    }

    fn count(&self) -> u64 {
        self.threads.iter().map(Thread::count).sum()
    }

    fn limit_reached(&self) -> bool {
        self.tracing_ended.is_none() && self.budget.get() == 0
    }

    /// Opens the rings that are new. Returns whether there were any.
    fn find_rings(&mut self) -> Result<bool, RecordError> {
        let mut any = false;
        for (ring, number) in self.new_rings.take(&self.shared.rings) {
            if self.tracing_ended.is_some() {
                ring.close();
            }
            let (pid, generation) = (ring.header().pid.load(Relaxed), ring.header().generation.load(Relaxed));
            let is_process = ring.header().tid.load(Relaxed) == 0;
            let needed = if is_process { Process::parent(&ring) } else { Some((pid, generation)) };
            match needed {
                // The ring of its process, or of its process's parent, was filled in after it was looked at.
                Some((pid, generation)) if self.process_of(pid, generation).is_none() => {
                    self.new_rings.put_back(number);
                    continue;
                }
                _ if is_process => self.add_process(ring),
                _ => self.add_thread(ring)?,
            }
            any = true;
        }
        Ok(any)
    }

    fn add_process(&mut self, ring: Ring) {
        let pid = ring.header().pid.load(Relaxed);
        for process in self.processes.iter_mut().filter(|process| process.pid() == pid) {
            // The number belongs to the process that executes another program, or to one that has taken the number of
            // one that has ended.
            process.over = true;
        }
        let parent = Process::parent(&ring).and_then(|(pid, generation)| {
            self.processes
                .iter_mut()
                .find(|process| (process.pid(), process.generation()) == (pid, generation))
        });
        let process = match parent {
            Some(parent) => {
                parent.children += 1;
                parent.read();
                Process::new(ring, Some(parent))
            }
            None => Process::new(ring, None),
        };
        self.processes.push(process);
    }

    fn add_thread(&mut self, ring: Ring) -> Result<(), RecordError> {
        let (pid, generation) = (ring.header().pid.load(Relaxed), ring.header().generation.load(Relaxed));
        let former = |thread: &Thread<'_>| thread.pid() == pid && thread.generation() != generation;
        // If a thread of the process has executed this program, it has reported that. What it was before that comes
        // first.
        for number in 0..self.threads.len() {
            while former(&self.threads[number]) && self.read_thread(number)? {}
        }
        // The first thread of a program is the one that has executed it; the others are new.
        let is_first =
            !self.threads.iter().any(|thread| (thread.pid(), thread.generation()) == (pid, generation));
        let before = self.threads.iter().rposition(|thread| former(thread) && thread.executes);
        let before = before.filter(|_| is_first);
        let number = match before {
            Some(before) => self.threads[before].number(),
            None => {
                self.threads_started += 1;
                self.threads_started
            }
        };
        let switch = self.switch_of_starter(&ring)?;
        let truth = self.hash_thread.stream(self.threads.len());
        let mut thread = Thread::new(self.options, number, ring, (self.budget.clone(), switch), truth);
        thread.over = self.tracing_ended.is_some();
        self.threads.push(thread);
        Ok(())
    }

    /// Returns the switch that a new thread begins with: as it was in the thread that has started it.
    fn switch_of_starter(&mut self, ring: &Ring) -> Result<Switch, RecordError> {
        let header = ring.header();
        let (tid, start) = (header.starter.load(Relaxed), header.start.load(Relaxed));
        // Another thread can have the number of a thread that has ended.
        let is_it = |thread: &Thread<'_>| {
            let own = thread.ring.header();
            own.tid.load(Relaxed) == tid && own.made.load(Relaxed) < header.made.load(Relaxed)
        };
        let Some(starter) = self.threads.iter().rposition(is_it).filter(|_| !self.triggers.is_empty()) else {
            return Ok(Switch::new(self.triggers.clone()));
        };
        // It has written what leads there before it started this one.
        while self.threads[starter].switch_at_start(start).is_none() && self.read_thread(starter)? {}
        let starter = &self.threads[starter];
        Ok(starter.switch_at_start(start).unwrap_or_else(|| starter.switch()).clone())
    }

    fn process_of(&self, pid: u32, generation: u32) -> Option<usize> {
        self.processes.iter().position(|process| (process.pid(), process.generation()) == (pid, generation))
    }

    fn read_threads(&mut self) -> Result<bool, RecordError> {
        let mut any = false;
        for number in 0..self.threads.len() {
            any |= self.read_thread(number)?;
        }
        Ok(any)
    }

    /// Reads what a thread did. Returns whether there was anything.
    fn read_thread(&mut self, number: usize) -> Result<bool, RecordError> {
        let (pid, generation) = (self.threads[number].pid(), self.threads[number].generation());
        let Some(process) = self.process_of(pid, generation) else { return Ok(false) };
        if self.threads[number].over {
            // Whatever comes now was written before the thread knew that nothing more is wanted.
            return self.threads[number].read(&mut self.processes[process]);
        }
        // A thread that goes on with another program: the one before was read to its end when this one was found.
        if let Some(before) = self.before(number).filter(|_| !self.threads[number].followed) {
            let (first, second) = self.threads.split_at_mut(number);
            second[0].follow(&mut first[before]);
        }
        let read = self.threads[number].read(&mut self.processes[process])?;
        let ends = !read && self.processes[process].over;
        if ends {
            self.threads[number].finish(&mut self.processes[process], Cause::Over)?;
        }
        Ok(read || ends)
    }

    /// Returns the thread that this one was before it executed its present program.
    fn before(&self, number: usize) -> Option<usize> {
        let thread = &self.threads[number];
        (0..number).rev().find(|before| self.threads[*before].number() == thread.number())
    }

    /// Looks whether the program and all that it has started have ended.
    fn has_ended(&mut self) -> Result<bool, RecordError> {
        if self.ending.is_none() {
            self.ending = ending_of(&mut self.child)?;
        }
        let main = (self.child.id(), self.ending.is_some());
        self.processes.iter_mut().for_each(|process| process.look(main));
        let over = self.processes.iter().all(|process| process.over)
            && self.threads.iter().all(|thread| thread.over);
        if self.ending.is_none() || !over {
            self.over_since = None;
            return Ok(false);
        }
        let since = *self.over_since.get_or_insert_with(Instant::now);
        Ok(self.unreported() == 0 || since.elapsed() >= LONGEST_FORK)
    }

    /// Returns the number of forked processes that have made no rings.
    fn unreported(&self) -> u32 {
        self.processes.iter().map(Process::unreported).sum()
    }

    /// Reads what was written until now, but not what is written meanwhile, which may never end.
    fn catch_up(&mut self) -> Result<(), RecordError> {
        self.find_rings()?;
        for process in &mut self.processes {
            process.read();
        }
        for number in 0..self.threads.len() {
            let written = self.threads[number].ring.written();
            while self.threads[number].ring.taken() < written && self.read_thread(number)? {}
        }
        Ok(())
    }

    /// Ends all tracing; the program continues.
    fn end_tracing(&mut self, cause: Cause) -> Result<(), RecordError> {
        self.tracing_ended = Some(cause);
        for number in 0..self.threads.len() {
            self.threads[number].ring.close();
            let (pid, generation) = (self.threads[number].pid(), self.threads[number].generation());
            if let Some(process) = self.process_of(pid, generation) {
                self.threads[number].finish(&mut self.processes[process], cause)?;
            }
        }
        self.processes.iter().for_each(|process| process.ring.close());
        Ok(())
    }

    /// Handles a signal that asks this process to end: ends the recording and passes the signal to the program.
    fn handle_signal(&mut self, signal: c_int) -> Result<(), RecordError> {
        if self.tracing_ended.is_none() {
            self.catch_up()?;
            self.end_tracing(Cause::Signal(signal))?;
        }
        self.send(signal);
        Ok(())
    }

    /// Sends a signal to the program and its children.
    fn send(&self, signal: c_int) {
        pass_on(signal, &self.processes, self.ending.is_none().then(|| self.child.id()));
    }
}

/// Passes a signal to the processes that have not ended, and to `main`, the first one if it has not.
fn pass_on(signal: c_int, processes: &[Process], main: Option<u32>) {
    let known = processes.iter().filter(|process| !process.over && process.has_number);
    let pids: HashSet<u32> = known.map(Process::pid).chain(main).collect();
    for pid in pids {
        // SAFETY: it takes numbers.
        unsafe { libc::kill(pid.cast_signed(), signal) };
    }
}

impl Drop for Emulation<'_> {
    /// Kills all processes that are left.
    fn drop(&mut self) {
        self.processes.iter().for_each(|process| process.ring.close());
        if self.ending.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns true if a process exists and is no zombie.
fn is_alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the name, which is in parentheses.
    !matches!(stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next(), Some('Z' | 'X') | None)
}
