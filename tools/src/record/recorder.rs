//! Steps the program with its threads and children: waits for a task to stop, then starts its next step.

use super::{
    Cause, Ending, Part, RecordError, RecordOptions, RecordProgress, Recording,
    hardware::{self, Clock},
    index, part,
    signals::Signals,
    task::{Outcome, Task},
    tracee::{OneCpu, Stop, Tracee, wait_any},
};
use libc::pid_t;
use std::{
    collections::{HashMap, HashSet},
    ffi::c_int,
    rc::Rc,
    time::SystemTime,
};

/// A program while it is recorded.
pub(super) struct Recorder<'a> {
    options: &'a RecordOptions,
    tasks: HashMap<pid_t, Task<'a>>,
    /// The first stops of tasks whose parent has not been reported to have started them yet.
    early: HashMap<pid_t, Stop>,
    /// The program's main thread.
    main: pid_t,
    ending: Option<Ending>,
    begun_at: SystemTime,
    /// The clock of all processors.
    clock: Clock,
    /// The number of tasks and of address spaces so far.
    begun: u32,
    spaces: u32,
    /// Why nothing more is traced, although the program continues. Each task is then detached at its next stop.
    released: Option<Cause>,
    parts: Vec<Part>,
    signals: Option<Signals>,
    _cpu: OneCpu,
}

/// How often progress is shown, in steps.
const PROGRESS_EVERY: u64 = 4096;

impl<'a> Recorder<'a> {
    pub(super) fn start(options: &'a RecordOptions) -> Result<Self, RecordError> {
        let most = options.profile.address_ranges;
        if options.ranges.len() > most as usize {
            return Err(RecordError::Ranges { most, wanted: options.ranges.len() });
        }
        let program =
            options.program.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let cpu = OneCpu::new().map_err(RecordError::Prepare)?;
        let tracee = Tracee::start(&options.program, options.aslr, options.follow)
            .map_err(|error| RecordError::Start { program, error })?;
        // Only now, so that the program has started with the signal actions from before.
        let signals = options.signals.then(Signals::new).transpose().map_err(RecordError::Prepare)?;
        part::remove_parts(&options.out);
        let main = tracee.pid;
        let mut recorder = Self {
            options,
            tasks: HashMap::new(),
            early: HashMap::new(),
            main,
            ending: None,
            begun_at: SystemTime::now(),
            clock: Rc::new(hardware::BEGIN.into()),
            begun: 0,
            spaces: 1,
            released: None,
            parts: vec![],
            signals,
            _cpu: cpu,
        };
        recorder.add(tracee, 1)?;
        Ok(recorder)
    }

    pub(super) fn run(mut self, progress: &mut dyn FnMut(RecordProgress)) -> Result<Recording, RecordError> {
        let mut steps = 0;
        self.go_on(self.main)?;
        let ending = loop {
            if let Some(ending) = self.ending
                && self.tasks.is_empty()
            {
                break ending;
            }
            let stopped = wait_any().map_err(|error| RecordError::Step { ip: 0, error })?;
            if let Some(signal) = self.signals.as_ref().and_then(Signals::take) {
                self.signalled(signal)?;
            }
            let Some((pid, stop)) = stopped else { continue };
            self.stopped(pid, stop)?;
            steps += 1;
            if steps % PROGRESS_EVERY == 0 {
                let bytes = self.tasks.values().map(Task::bytes).sum();
                progress(RecordProgress { steps, bytes, tasks: self.tasks.len() });
            }
        };
        self.parts.sort_by_key(|part| part.task);
        let cause = self.released.unwrap_or(Cause::Over);
        index::write(self.options, self.begun_at, (&self.parts, ending, cause))?;
        Ok(Recording { parts: std::mem::take(&mut self.parts), ending, cause })
    }

    /// Handles that a task has stopped or ended.
    fn stopped(&mut self, pid: pid_t, stop: Stop) -> Result<(), RecordError> {
        if !self.tasks.contains_key(&pid) {
            match stop {
                Stop::Over(ending) if pid == self.main => self.ending = Some(ending),
                // It ended before it was reported, or it was detached.
                Stop::Over(_) => drop(self.early.remove(&pid)),
                _ => drop(self.early.insert(pid, stop)),
            }
            return Ok(());
        }
        match stop {
            Stop::Begun { task, shares_memory } => {
                self.begin(pid, task, shares_memory)?;
                return self.on(pid, |task| task.step_on()).map(drop);
            }
            Stop::Exec => self.take_place(pid)?,
            _ => {}
        }
        match self.on(pid, |task| task.stopped(stop))? {
            Some(Outcome::Over(ending)) => {
                if pid == self.main {
                    self.ending = Some(ending);
                }
                self.remove(pid);
                return Ok(());
            }
            Some(Outcome::Mapped) => self.mapped(pid),
            Some(Outcome::Stepped) | None => {}
        }
        self.go_on(pid)
    }

    /// Starts the next step of a task that has stopped, or detaches it.
    fn go_on(&mut self, pid: pid_t) -> Result<(), RecordError> {
        loop {
            if self.released.is_none() && self.limit_reached() {
                self.release(Cause::Limit)?;
            }
            if self.released.is_some() {
                self.on(pid, |task| {
                    task.tracee.detach(task.signal).map_err(|error| RecordError::Step { ip: 0, error })
                })?;
                self.remove(pid);
                return Ok(());
            }
            if self.on(pid, Task::step)?.is_none_or(|begun| begun) {
                return Ok(());
            }
        }
    }

    /// Ends all tracing.
    fn release(&mut self, cause: Cause) -> Result<(), RecordError> {
        self.released = Some(cause);
        self.tasks.values_mut().try_for_each(|task| task.finish(cause))
    }

    /// Handles a signal that asks this process to end: ends the recording and passes the signal to the program.
    fn signalled(&mut self, signal: c_int) -> Result<(), RecordError> {
        let mut processes: HashSet<pid_t> = self.tasks.values().map(|task| task.process).collect();
        if self.ending.is_none() {
            processes.insert(self.main);
        }
        if self.released.is_none() {
            self.release(Cause::Signal(signal))?;
        }
        for process in processes {
            // SAFETY: it takes numbers. The process was not yet waited for to its end, so the number is still its own.
            unsafe { libc::kill(process, signal) };
        }
        Ok(())
    }

    fn limit_reached(&self) -> bool {
        let Some(limit) = self.options.limit else { return false };
        let ended: u64 = self.parts.iter().map(|part| part.truth.count()).sum();
        ended + self.tasks.values().map(Task::count).sum::<u64>() >= limit
    }

    /// Handles that `parent` has started a task, which stops before its first instruction.
    fn begin(&mut self, parent: pid_t, pid: pid_t, shares_memory: bool) -> Result<(), RecordError> {
        let begun = |error| RecordError::Step { ip: 0, error };
        let Ok(tracee) = Tracee::begun(pid) else {
            // It was killed in the meantime.
            return Ok(());
        };
        let stop = match self.early.remove(&pid) {
            Some(stop) => stop,
            None => tracee.wait().map_err(begun)?,
        };
        if let Stop::Over(_) = stop {
            return Ok(());
        }
        if self.released.is_some() {
            return tracee.detach(0).map_err(begun);
        }
        let space = match self.tasks.get(&parent) {
            Some(parent) if shares_memory => parent.space,
            _ => {
                self.spaces += 1;
                self.spaces
            }
        };
        match self.add(tracee, space) {
            Err(error) if error.is_of_the_killed() => return Ok(()),
            added => added?,
        }
        self.on(pid, |task| {
            // Another signal may come before the SIGSTOP with which tasks begin.
            if let Stop::Signal(signal) = stop
                && signal != libc::SIGSTOP
            {
                (task.signal, task.begins_with_stop) = (signal, true);
            }
            Ok(())
        })?;
        self.go_on(pid)
    }

    /// Handles that a task executes another program: all other tasks of its process have ended, and it now has the
    /// number of the process's first thread.
    fn take_place(&mut self, pid: pid_t) -> Result<(), RecordError> {
        let message = self.on(pid, |task| {
            task.tracee.event_message().map_err(|error| RecordError::Step { ip: 0, error })
        })?;
        let Some(former) = message.filter(|former| *former != pid) else { return Ok(()) };
        let Some(mut task) = self.tasks.remove(&former) else { return Ok(()) };
        self.on(pid, |task| task.finish(Cause::Over))?;
        self.remove(pid);
        task.becomes(pid);
        self.tasks.insert(pid, task);
        Ok(())
    }

    /// Marks what the other tasks of an address space know of its mappings as outdated.
    fn mapped(&mut self, pid: pid_t) {
        let Some(space) = self.tasks.get(&pid).map(|task| task.space) else { return };
        for (other, task) in &mut self.tasks {
            task.stale |= *other != pid && task.space == space;
        }
    }

    fn add(&mut self, tracee: Tracee, space: u32) -> Result<(), RecordError> {
        self.begun += 1;
        let pid = tracee.pid;
        let task = Task::new(self.options, self.begun, space, self.clock.clone(), tracee)?;
        self.tasks.insert(pid, task);
        Ok(())
    }

    fn remove(&mut self, pid: pid_t) {
        if let Some(task) = self.tasks.remove(&pid) {
            self.parts.extend(task.parts);
        }
    }

    /// Does something with a task, if the task exists and has not been killed: another thread can end the whole process
    /// at any time, including threads that have stopped.
    fn on<T>(
        &mut self,
        pid: pid_t,
        act: impl FnOnce(&mut Task<'a>) -> Result<T, RecordError>,
    ) -> Result<Option<T>, RecordError> {
        match self.tasks.get_mut(&pid).map(act) {
            Some(Err(error)) if error.is_of_the_killed() => Ok(None),
            result => result.transpose(),
        }
    }
}

impl Drop for Recorder<'_> {
    /// Kills the tasks that are left.
    fn drop(&mut self) {
        let mut left: HashSet<pid_t> = self.tasks.keys().chain(self.early.keys()).copied().collect();
        if self.ending.is_none() {
            left.insert(self.main);
        }
        for pid in &left {
            // SAFETY: it takes numbers. The task was not yet waited for to its end, so the number is still its own.
            unsafe { libc::kill(*pid, libc::SIGKILL) };
        }
        while !left.is_empty() {
            match wait_any() {
                Ok(Some((pid, Stop::Over(_)))) => drop(left.remove(&pid)),
                Ok(_) => {}
                // There are no children left.
                Err(_) => break,
            }
        }
    }
}
