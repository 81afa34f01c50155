//! The threads as a target of GDB's remote protocol.

use super::{
    files::ProcessFiles,
    registers::{KnownRegisters, X86_64},
    threads::{Motion, Stop, Threads},
};
use crate::number;
use gdbstub::{
    common::{Signal, Tid},
    stub::MultiThreadStopReason,
    target::{
        Target, TargetError, TargetResult,
        ext::{
            auxv, base, breakpoints, exec_file, libraries,
            monitor_cmd::{self, ConsoleOutput, outputln},
            thread_extra_info,
        },
    },
};
use rustc_hash::FxHashSet;
use std::{convert::Infallible, ops::Range};

/// The error number of memory that is not there.
const EFAULT: u8 = 14;

/// The target.
pub(super) struct Replay<'a, 'm> {
    pub(super) threads: Threads<'a, 'm>,
    pub(super) files: ProcessFiles,
    /// Addresses whose contents while the program ran are not known, though files have something there.
    pub(super) unknown: Vec<Range<u64>>,
    /// The addresses that had a breakpoint at any time.
    pub(super) stopped_at: FxHashSet<u64>,
    /// The way to go that GDB has requested.
    pub(super) motion: Option<Motion>,
}

impl Replay<'_, '_> {
    /// Moves the thread as GDB has requested. Returns the cause of the stop, or `None` if it was interrupted.
    pub(super) fn go(&mut self, is_interrupted: &dyn Fn() -> bool) -> Option<MultiThreadStopReason<u64>> {
        let stop = self.threads.go(self.motion.unwrap_or(Motion::Continue), is_interrupted)?;
        let tid = tid(self.threads.current);
        Some(match stop {
            Stop::Stepped => MultiThreadStopReason::SignalWithThread { tid, signal: Signal::SIGTRAP },
            Stop::Breakpoint => MultiThreadStopReason::SwBreak(tid),
            Stop::Begin => MultiThreadStopReason::ReplayLog {
                tid: Some(tid),
                pos: base::reverse_exec::ReplayLogPosition::Begin,
            },
            Stop::End => MultiThreadStopReason::ReplayLog {
                tid: Some(tid),
                pos: base::reverse_exec::ReplayLogPosition::End,
            },
        })
    }

    /// Returns the stop after an interruption.
    pub(super) fn interrupted(&self) -> MultiThreadStopReason<u64> {
        MultiThreadStopReason::SignalWithThread { tid: tid(self.threads.current), signal: Signal::SIGINT }
    }

    /// Makes a thread the selected one, if it is there.
    fn select(&mut self, tid: Tid) -> bool {
        let is_there = tid.get() <= self.threads.threads.len();
        if is_there {
            (self.threads.selected, self.threads.current) = (tid.get() - 1, tid.get() - 1);
        }
        is_there
    }

    /// Lets a thread go by a step. That selects it, except at a breakpoint: before GDB resumes any thread, it steps all
    /// threads away from breakpoints.
    fn step(&mut self, tid: Tid, motion: Motion) {
        let thread = tid.get() - 1;
        let ip = self.threads.ip(thread);
        if ip.is_some_and(|ip| self.stopped_at.contains(&ip)) {
            self.threads.current = thread;
        } else {
            self.select(tid);
        }
        self.motion = Some(motion);
    }
}

/// Returns the protocol's number of a thread.
fn tid(thread: usize) -> Tid {
    Tid::MIN.saturating_add(thread)
}

/// Copies a part of what GDB reads in parts. Returns the number of bytes.
fn part(all: &[u8], offset: u64, length: usize, to: &mut [u8]) -> usize {
    let rest = usize::try_from(offset).ok().and_then(|offset| all.get(offset..)).unwrap_or_default();
    let count = rest.len().min(length).min(to.len());
    to[..count].copy_from_slice(&rest[..count]);
    count
}

impl Target for Replay<'_, '_> {
    type Arch = X86_64;
    type Error = Infallible;

    fn base_ops(&mut self) -> base::BaseOps<'_, X86_64, Infallible> {
        base::BaseOps::MultiThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<breakpoints::BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_monitor_cmd(&mut self) -> Option<monitor_cmd::MonitorCmdOps<'_, Self>> {
        Some(self)
    }

    fn support_exec_file(&mut self) -> Option<exec_file::ExecFileOps<'_, Self>> {
        if self.files.program.is_empty() { None } else { Some(self) }
    }

    fn support_auxv(&mut self) -> Option<auxv::AuxvOps<'_, Self>> {
        if self.files.auxv.is_empty() { None } else { Some(self) }
    }

    fn support_libraries_svr4(&mut self) -> Option<libraries::LibrariesSvr4Ops<'_, Self>> {
        if self.files.libraries.is_empty() { None } else { Some(self) }
    }
}

impl base::multithread::MultiThreadBase for Replay<'_, '_> {
    fn read_registers(&mut self, registers: &mut KnownRegisters, tid: Tid) -> TargetResult<(), Self> {
        registers.rip = self.threads.ip(tid.get() - 1);
        Ok(())
    }

    fn write_registers(&mut self, _: &KnownRegisters, _: Tid) -> TargetResult<(), Self> {
        Err(TargetError::NonFatal)
    }

    fn read_addrs(&mut self, address: u64, bytes: &mut [u8], tid: Tid) -> TargetResult<usize, Self> {
        let known = self.unknown.iter().filter(|range| range.end > address).map(|range| range.start);
        let known = known.min().map_or(u64::MAX, |start| start.saturating_sub(address));
        let wanted = bytes.len().min(usize::try_from(known).unwrap_or(usize::MAX));
        match self.threads.read(tid.get() - 1, address, &mut bytes[..wanted]) {
            0 => Err(TargetError::Errno(EFAULT)),
            count => Ok(count),
        }
    }

    fn write_addrs(&mut self, _: u64, _: &[u8], _: Tid) -> TargetResult<(), Self> {
        Err(TargetError::Errno(EFAULT))
    }

    /// Lists the selected thread first: GDB's requests for any thread are for that.
    fn list_active_threads(&mut self, is_active: &mut dyn FnMut(Tid)) -> Result<(), Infallible> {
        let selected = self.threads.selected;
        let others = (0..self.threads.threads.len()).filter(|thread| *thread != selected);
        std::iter::once(selected).chain(others).for_each(|thread| is_active(tid(thread)));
        Ok(())
    }

    /// Selects the thread: GDB asks this when its user turns to a thread, and resumes all then.
    fn is_thread_alive(&mut self, tid: Tid) -> Result<bool, Infallible> {
        Ok(self.select(tid))
    }

    fn support_resume(&mut self) -> Option<base::multithread::MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<thread_extra_info::ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl base::multithread::MultiThreadResume for Replay<'_, '_> {
    fn resume(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn clear_resume_actions(&mut self) -> Result<(), Infallible> {
        (self.motion, self.threads.current) = (None, self.threads.selected);
        Ok(())
    }

    fn set_resume_action_continue(&mut self, tid: Tid, _: Option<Signal>) -> Result<(), Infallible> {
        if self.motion.is_none() && self.select(tid) {
            self.motion = Some(Motion::Continue);
        }
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<base::multithread::MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_reverse_step(&mut self) -> Option<base::reverse_exec::ReverseStepOps<'_, Tid, Self>> {
        Some(self)
    }

    fn support_reverse_cont(&mut self) -> Option<base::reverse_exec::ReverseContOps<'_, Tid, Self>> {
        Some(self)
    }

    fn support_scheduler_locking(
        &mut self,
    ) -> Option<base::multithread::MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl base::multithread::MultiThreadSingleStep for Replay<'_, '_> {
    fn set_resume_action_step(&mut self, tid: Tid, _: Option<Signal>) -> Result<(), Infallible> {
        self.step(tid, Motion::Step);
        Ok(())
    }
}

impl base::multithread::MultiThreadSchedulerLocking for Replay<'_, '_> {
    /// Does nothing: one thread goes in any case.
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl base::reverse_exec::ReverseStep<Tid> for Replay<'_, '_> {
    fn reverse_step(&mut self, tid: Tid) -> Result<(), Infallible> {
        self.step(tid, Motion::StepBack);
        Ok(())
    }
}

impl base::reverse_exec::ReverseCont<Tid> for Replay<'_, '_> {
    fn reverse_cont(&mut self) -> Result<(), Infallible> {
        (self.motion, self.threads.current) = (Some(Motion::ContinueBack), self.threads.selected);
        Ok(())
    }
}

impl thread_extra_info::ThreadExtraInfo for Replay<'_, '_> {
    fn thread_extra_info(&self, tid: Tid, to: &mut [u8]) -> Result<usize, Infallible> {
        let title = self.threads.threads.get(tid.get() - 1).map_or("", |thread| &thread.title);
        Ok(part(title.as_bytes(), 0, title.len(), to))
    }
}

impl breakpoints::Breakpoints for Replay<'_, '_> {
    fn support_sw_breakpoint(&mut self) -> Option<breakpoints::SwBreakpointOps<'_, Self>> {
        Some(self)
    }
}

impl breakpoints::SwBreakpoint for Replay<'_, '_> {
    fn add_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.threads.breakpoints.insert(address);
        self.stopped_at.insert(address);
        Ok(true)
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.threads.breakpoints.remove(&address);
        Ok(true)
    }
}

impl exec_file::ExecFile for Replay<'_, '_> {
    fn get_exec_file(
        &self,
        _: Option<gdbstub::common::Pid>,
        offset: u64,
        length: usize,
        to: &mut [u8],
    ) -> TargetResult<usize, Self> {
        Ok(part(self.files.program.as_bytes(), offset, length, to))
    }
}

impl auxv::Auxv for Replay<'_, '_> {
    fn get_auxv(&self, offset: u64, length: usize, to: &mut [u8]) -> TargetResult<usize, Self> {
        Ok(part(&self.files.auxv, offset, length, to))
    }
}

impl libraries::LibrariesSvr4 for Replay<'_, '_> {
    fn get_libraries_svr4(&self, offset: u64, length: usize, to: &mut [u8]) -> TargetResult<usize, Self> {
        Ok(part(self.files.libraries.as_bytes(), offset, length, to))
    }
}

/// The help of `monitor`.
const HELP: &str = "\
monitor where            the position: thread, instruction, time, function, gaps
monitor goto N           go to the instruction with this number; the first one is 0
monitor goto begin, end  go to the first one, to the last one";

impl monitor_cmd::MonitorCmd for Replay<'_, '_> {
    fn handle_monitor_cmd(&mut self, command: &[u8], mut out: ConsoleOutput<'_>) -> Result<(), Infallible> {
        let command = String::from_utf8_lossy(command);
        let words: Vec<&str> = command.split_whitespace().collect();
        self.threads.current = self.threads.selected;
        match &words[..] {
            ["where"] => outputln!(out, "{}", self.threads.place().trim_end()),
            ["goto", place] => match self.position(place) {
                Some(to) => {
                    self.threads.go_to(to);
                    self.threads.notes.drain(..).for_each(|note| outputln!(out, "{}", note.trim_end()));
                    outputln!(out, "{}", self.threads.place().trim_end());
                    outputln!(out, "GDB does not know yet: maintenance flush register-cache");
                }
                None => outputln!(out, "{place}: no instruction of this thread: see monitor where"),
            },
            _ => outputln!(out, "{HELP}"),
        }
        Ok(())
    }
}

impl Replay<'_, '_> {
    /// Returns the position that a user means.
    fn position(&self, text: &str) -> Option<u64> {
        let thread = self.threads.threads.get(self.threads.current)?;
        let last = self.threads.histories.get(thread.history)?.lanes.get(thread.lane)?.last();
        match text {
            "begin" => Some(0),
            "end" => Some(last),
            _ => number::parse(text).filter(|to| *to <= last),
        }
    }
}
