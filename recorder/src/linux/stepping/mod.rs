//! Steps the program with its threads and children: waits for a task to stop, then starts its next step.

mod flags;
mod system_call;
mod task;
mod tracee;

use super::{
    Cause, Ending, Part, RecordError, RecordOptions, RecordProgress, Recording, folder, index,
    part::WRITE_EVERY,
    pt_unit::{self, Clock},
    runtime,
    signals::Signals,
    switch::{Switch, Triggers},
    thread_info,
};
use libc::pid_t;
use std::{
    collections::{HashMap, HashSet},
    ffi::c_int,
    io,
    rc::Rc,
    time::{Instant, SystemTime},
};
use task::{Outcome, Task};
use tracee::{OneCpu, Stop, Tracee, wait_any};

/// A program while it is recorded.
pub(super) struct Recorder<'a> {
    options: &'a RecordOptions,
    tasks: HashMap<pid_t, Task<'a>>,
    /// The first stops of tasks whose parent has not been reported to have started them yet.
    early_stops: HashMap<pid_t, Stop>,
    /// The program's main thread.
    main: pid_t,
    ending: Option<Ending>,
    started_at: SystemTime,
    /// The clock of all processors.
    clock: Clock,
    /// The number of tasks and of address spaces so far.
    tasks_started: u32,
    address_spaces: u32,
    /// Why nothing more is traced, although the program continues. Each task is then detached at its next stop.
    tracing_ended: Option<Cause>,
    triggers: Rc<Triggers>,
    parts: Vec<Part>,
    /// The time of the last writing.
    written_at: Instant,
    signals: Option<Signals>,
    _cpu: OneCpu,
}

/// The number of steps between two reports of progress.
const PROGRESS_EVERY: u64 = 4096;

impl<'a> Recorder<'a> {
    pub(super) fn start(options: &'a RecordOptions) -> Result<Self, RecordError> {
        if let Some(pid) = options.pid {
            return Self::attach(options, pid);
        }
        let program =
            options.program.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let cpu = OneCpu::new().map_err(RecordError::Prepare)?;
        let tracee = Tracee::start(&options.program, options.aslr, options.follow)
            .map_err(|error| RecordError::Start { program, error })?;
        // Only now, so that the program has started with the signal actions from before.
        let mut recorder = Self::new(options, tracee.pid, cpu)?;
        let switch = Switch::new(recorder.triggers.clone());
        recorder.add_task(tracee, 1, switch)?;
        recorder.resume_task(recorder.main)?;
        Ok(recorder)
    }

    /// Attaches to a process, with all of its threads if the options say so.
    fn attach(options: &'a RecordOptions, pid: pid_t) -> Result<Self, RecordError> {
        let failed = |error| RecordError::Attach { pid, error };
        if thread_info::process_of(pid).map_err(failed)? != pid {
            return Err(failed(io::Error::other("it is a thread of another process")));
        }
        let cpu = OneCpu::new().map_err(RecordError::Prepare)?;
        let mut recorder = Self::new(options, pid, cpu)?;
        let mut attached = vec![Tracee::attach(pid, options.follow).map_err(failed)?];
        // Threads may begin meanwhile. Those that begin in a thread that is attached are attached by the system.
        let mut is_new = options.follow;
        while std::mem::take(&mut is_new) {
            for thread in thread_info::threads_of(pid).map_err(failed)? {
                if attached.iter().any(|tracee| tracee.pid == thread) || thread_info::is_traced_here(thread) {
                    continue;
                }
                match Tracee::attach(thread, true) {
                    Ok(tracee) => (is_new, _) = (true, attached.push(tracee)),
                    // It has ended, or it was attached since.
                    Err(error) if thread_info::process_of(thread).is_err() => drop(error),
                    Err(_) if thread_info::is_traced_here(thread) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
        }
        for tracee in attached {
            let thread = tracee.pid;
            let stop = tracee.wait().map_err(failed)?;
            if let Stop::Ended(ending) = stop {
                recorder.handle_stop(thread, Stop::Ended(ending))?;
                continue;
            }
            let switch = Switch::new(recorder.triggers.clone());
            match recorder.add_task(tracee, 1, switch) {
                Err(error) if error.is_of_a_killed_task() => {}
                added => added.and_then(|()| recorder.handle_stop(thread, stop))?,
            }
        }
        Ok(recorder)
    }

    fn new(options: &'a RecordOptions, main: pid_t, cpu: OneCpu) -> Result<Self, RecordError> {
        let started_here = options.pid.is_none();
        let signals = options.signals.then(|| Signals::new(started_here)).transpose();
        let recorder = Self {
            options,
            tasks: HashMap::new(),
            early_stops: HashMap::new(),
            main,
            ending: None,
            started_at: SystemTime::now(),
            clock: Rc::new(pt_unit::FIRST_TSC.into()),
            tasks_started: 0,
            address_spaces: 1,
            tracing_ended: None,
            triggers: Triggers::new(options),
            parts: vec![],
            written_at: Instant::now(),
            signals: signals.map_err(RecordError::Prepare)?,
            _cpu: cpu,
        };
        // An error ends what was started, as it drops the recorder.
        folder::prepare(&options.out)?;
        index::begin(options, recorder.started_at)?;
        Ok(recorder)
    }

    pub(super) fn run(mut self, progress: &mut dyn FnMut(RecordProgress)) -> Result<Recording, RecordError> {
        let mut steps = 0;
        let ending = loop {
            match self.ending {
                Some(ending) if self.tasks.is_empty() => break ending,
                None if self.tasks.is_empty() && self.options.pid.is_some() => break Ending::GoesOn,
                _ => {}
            }
            let stopped = wait_any().map_err(|error| RecordError::Step { ip: None, error })?;
            if let Some(signal) = self.signals.as_ref().and_then(Signals::take) {
                self.handle_signal(signal)?;
            }
            let Some((pid, stop)) = stopped else { continue };
            self.handle_stop(pid, stop)?;
            if self.written_at.elapsed() > WRITE_EVERY {
                self.tasks.values_mut().try_for_each(Task::write)?;
                self.written_at = Instant::now();
            }
            steps += 1;
            if steps % PROGRESS_EVERY == 0 {
                let bytes = self.tasks.values().map(Task::bytes).sum();
                progress(RecordProgress { steps, bytes, tasks: self.tasks.len() });
            }
        };
        self.parts.sort_by_key(|part| part.task);
        let cause = self.tracing_ended.unwrap_or(Cause::Over);
        runtime::copy(self.options, self.started_at, &self.parts)?;
        index::write(self.options, self.started_at, (&self.parts, ending, cause), (&[], &[]))?;
        Ok(Recording {
            deviations: vec![],
            parts: std::mem::take(&mut self.parts),
            ending,
            cause,
            not_followed: vec![],
            unreported: 0,
            unreached: self.triggers.unreached(),
        })
    }

    /// Handles that a task has stopped or ended.
    fn handle_stop(&mut self, pid: pid_t, stop: Stop) -> Result<(), RecordError> {
        if !self.tasks.contains_key(&pid) {
            match stop {
                Stop::Ended(ending) if pid == self.main => self.ending = Some(ending),
                // It ended before it was reported, or it was detached.
                Stop::Ended(_) => drop(self.early_stops.remove(&pid)),
                _ => drop(self.early_stops.insert(pid, stop)),
            }
            return Ok(());
        }
        if stop == Stop::Paused && thread_info::has_pending_trap(pid) {
            // Its step is over, which it will report next. A task that is let go before that report dies by the
            // signal.
            return self
                .with_task(pid, |task| {
                    task.tracee.run(0).map_err(|error| RecordError::Step { ip: None, error })
                })
                .map(drop);
        }
        match stop {
            Stop::Started { task, shares_memory } => {
                self.handle_start(pid, task, shares_memory)?;
                return self.with_task(pid, |task| task.continue_step()).map(drop);
            }
            Stop::Exec => {
                self.handle_exec(pid)?;
                self.end_at_limit()?;
            }
            _ => {}
        }
        match self.with_task(pid, |task| task.handle_stop(stop))? {
            Some(Outcome::Over(ending)) => {
                if pid == self.main {
                    self.ending = Some(ending);
                }
                self.remove_task(pid);
                return self.end_at_limit();
            }
            Some(Outcome::Mapped) => self.mark_mappings_outdated(pid),
            Some(Outcome::Stepped) | None => {}
        }
        self.resume_task(pid)
    }

    /// Starts the next step of a task that has stopped, or detaches it.
    fn resume_task(&mut self, pid: pid_t) -> Result<(), RecordError> {
        loop {
            self.end_at_limit()?;
            if self.options.kill_at_limit && self.tracing_ended == Some(Cause::Limit) {
                // It stops once more, at its end.
                self.send(libc::SIGKILL);
                return Ok(());
            }
            if self.tracing_ended.is_none() && self.triggers.ended() {
                self.end_tracing(Cause::Stop)?;
            }
            if self.tracing_ended.is_some() {
                self.with_task(pid, |task| {
                    task.tracee.detach(task.signal).map_err(|error| RecordError::Step { ip: None, error })
                })?;
                self.remove_task(pid);
                return Ok(());
            }
            if self.with_task(pid, Task::step)?.is_none_or(|begun| begun) {
                return Ok(());
            }
        }
    }

    /// Ends all tracing if the limit is reached. Each instruction that is counted needs this before the next one.
    fn end_at_limit(&mut self) -> Result<(), RecordError> {
        if self.tracing_ended.is_none() && self.limit_reached() {
            self.end_tracing(Cause::Limit)
        } else {
            Ok(())
        }
    }

    /// Ends all tracing.
    fn end_tracing(&mut self, cause: Cause) -> Result<(), RecordError> {
        self.tracing_ended = Some(cause);
        let tasks: Vec<pid_t> = self.tasks.keys().copied().collect();
        for pid in tasks {
            // A task that waits in the kernel has one more instruction, and can reach the limit by it.
            let cause = if self.limit_reached() { Cause::Limit } else { cause };
            self.tasks.get_mut(&pid).map_or(Ok(()), |task| task.finish(cause))?;
        }
        if self.options.pid.is_some() {
            // They are let go when they stop; those that wait in the kernel would not stop by themselves.
            self.tasks.values().try_for_each(|task| task.tracee.interrupt()).map_err(RecordError::Prepare)?;
        }
        Ok(())
    }

    /// Handles a signal that asks this process to end: ends the recording and passes the signal to the program.
    fn handle_signal(&mut self, signal: c_int) -> Result<(), RecordError> {
        if self.tracing_ended.is_none() {
            self.end_tracing(Cause::Signal(signal))?;
        }
        if self.options.pid.is_none() {
            self.send(signal);
        }
        Ok(())
    }

    /// Sends a signal to the program and its children.
    fn send(&self, signal: c_int) {
        let mut processes: HashSet<pid_t> = self.tasks.values().map(|task| task.process).collect();
        if self.ending.is_none() {
            processes.insert(self.main);
        }
        for process in processes {
            // SAFETY: it takes numbers. The process was not yet waited for to its end, so the number is still its own.
            unsafe { libc::kill(process, signal) };
        }
    }

    fn limit_reached(&self) -> bool {
        let Some(limit) = self.options.limit else { return false };
        let ended: u64 = self.parts.iter().map(|part| part.truth.count()).sum();
        ended + self.tasks.values().map(Task::count).sum::<u64>() >= limit
    }

    /// Handles that `parent` has started a task, which stops before its first instruction.
    fn handle_start(&mut self, parent: pid_t, pid: pid_t, shares_memory: bool) -> Result<(), RecordError> {
        let begun = |error| RecordError::Step { ip: None, error };
        let Ok(tracee) = Tracee::of_traced_thread(pid) else {
            // It was killed in the meantime.
            return Ok(());
        };
        let stop = match self.early_stops.remove(&pid) {
            Some(stop) => stop,
            None => tracee.wait().map_err(begun)?,
        };
        if let Stop::Ended(_) = stop {
            return Ok(());
        }
        if self.tracing_ended.is_some() {
            return tracee.detach(0).map_err(begun);
        }
        let space = match self.tasks.get(&parent) {
            Some(parent) if shares_memory => parent.space,
            _ => {
                self.address_spaces += 1;
                self.address_spaces
            }
        };
        let switch = self.tasks.get(&parent).map(|parent| parent.switch.clone());
        let switch = switch.unwrap_or_else(|| Switch::new(self.triggers.clone()));
        match self.add_task(tracee, space, switch) {
            Err(error) if error.is_of_a_killed_task() => return Ok(()),
            added => added?,
        }
        self.with_task(pid, |task| {
            // Another signal may come before the SIGSTOP with which tasks begin.
            if let Stop::Signal(signal) = stop
                && signal != libc::SIGSTOP
            {
                (task.signal, task.begins_with_stop) = (signal, true);
            }
            Ok(())
        })?;
        self.resume_task(pid)
    }

    /// Handles that a task executes another program: all other tasks of its process have ended, and it now has the
    /// number of the process's first thread.
    fn handle_exec(&mut self, pid: pid_t) -> Result<(), RecordError> {
        let message = self.with_task(pid, |task| {
            task.tracee.event_message().map_err(|error| RecordError::Step { ip: None, error })
        })?;
        let Some(former) = message.filter(|former| *former != pid) else { return Ok(()) };
        let Some(mut task) = self.tasks.remove(&former) else { return Ok(()) };
        self.with_task(pid, |task| task.finish(Cause::Over))?;
        self.remove_task(pid);
        task.set_pid(pid);
        self.tasks.insert(pid, task);
        Ok(())
    }

    /// Marks what the other tasks of an address space know of its mappings as outdated.
    fn mark_mappings_outdated(&mut self, pid: pid_t) {
        let Some(space) = self.tasks.get(&pid).map(|task| task.space) else { return };
        for (other, task) in &mut self.tasks {
            task.mappings_outdated |= *other != pid && task.space == space;
        }
    }

    fn add_task(&mut self, tracee: Tracee, space: u32, switch: Switch) -> Result<(), RecordError> {
        self.tasks_started += 1;
        let pid = tracee.pid;
        let begin = (self.clock.clone(), switch);
        let task = Task::new(self.options, self.tasks_started, space, begin, tracee)?;
        self.tasks.insert(pid, task);
        Ok(())
    }

    fn remove_task(&mut self, pid: pid_t) {
        if let Some(task) = self.tasks.remove(&pid) {
            self.parts.extend(task.parts);
        }
    }

    /// Does something with a task, if the task exists and has not been killed: another thread can end the whole process
    /// at any time, including threads that have stopped.
    fn with_task<T>(
        &mut self,
        pid: pid_t,
        act: impl FnOnce(&mut Task<'a>) -> Result<T, RecordError>,
    ) -> Result<Option<T>, RecordError> {
        match self.tasks.get_mut(&pid).map(act) {
            Some(Err(error)) if error.is_of_a_killed_task() => Ok(None),
            result => result.transpose(),
        }
    }
}

impl Recorder<'_> {
    /// Lets the tasks that are left go on without being traced, after an error.
    fn let_go(&mut self) {
        let mut left: HashSet<pid_t> = self.tasks.keys().chain(self.early_stops.keys()).copied().collect();
        self.tasks.values().for_each(|task| drop(task.tracee.interrupt()));
        // A task that has stopped and was waited for is not reported again.
        left.retain(|task| !let_go(*task, 0));
        while !left.is_empty() {
            match wait_any() {
                Ok(Some((task, Stop::Signal(signal)))) if let_go(task, signal) => drop(left.remove(&task)),
                Ok(Some((task, Stop::Ended(_)))) => drop(left.remove(&task)),
                Ok(Some((task, _))) if let_go(task, 0) => drop(left.remove(&task)),
                Ok(_) => {}
                // No tasks are left.
                Err(_) => break,
            }
        }
    }
}

/// Lets a task go if it has stopped, and says whether it has. A task whose step is over but not reported goes on to
/// report it.
fn let_go(task: pid_t, signal: c_int) -> bool {
    let Ok(tracee) = Tracee::of_traced_thread(task) else { return true };
    let _ = tracee.set_breakpoint(None);
    if thread_info::has_pending_trap(task) {
        let _ = tracee.run(0);
        return false;
    }
    tracee.try_detach(signal)
}

impl Drop for Recorder<'_> {
    /// Kills the tasks that are left, or lets them go if they were there before.
    fn drop(&mut self) {
        if self.options.pid.is_some() {
            return self.let_go();
        }
        let mut left: HashSet<pid_t> = self.tasks.keys().chain(self.early_stops.keys()).copied().collect();
        if self.ending.is_none() {
            left.insert(self.main);
        }
        for pid in &left {
            // SAFETY: it takes numbers. The task was not yet waited for to its end, so the number is still its own.
            unsafe { libc::kill(*pid, libc::SIGKILL) };
        }
        while !left.is_empty() {
            match wait_any() {
                Ok(Some((pid, Stop::Ended(_)))) => drop(left.remove(&pid)),
                Ok(_) => {}
                // There are no children left.
                Err(_) => break,
            }
        }
    }
}
