//! Turns the stops of a task into what the tracing hardware sees.

use super::super::{
    Cause, Ending, Fault, Part, RecordError, RecordOptions,
    code::{Changed, CodeSnapshots, FetchedBytes},
    filter::Symbols,
    folder::PartNumber,
    instruction::Special,
    maps::{TaskMapping, VSYSCALL},
    part::OpenPart,
    pt_unit::{Clock, Next, PAGE_FAULT, PtUnit, TIMER_VECTOR},
    switch::{Switch, Turn, Untraced},
    thread_info::{self, ThreadInfo},
};
use super::{
    flags,
    system_call::{
        SI_KERNEL, SYSTEM_CALL_LEN, USER32_CS, can_map_code, can_rename, fault, is_sent, must_restart,
    },
    tracee::{Registers, Stop, Tracee},
};
use libc::c_int;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::insn;
use pugmark_model::{DeliveryKind, ExecMode};
use std::io;

/// A thread of the program or of a child that is being recorded, with its own processor.
pub(super) struct Task<'a> {
    options: &'a RecordOptions,
    /// 1 is the program's main thread; the others follow in the order in which they were started.
    number: u32,
    /// The number of its address space. Tasks with the same number see the same memory.
    pub(super) space: u32,
    pub(super) tracee: Tracee,
    /// The process that the thread belongs to.
    pub(super) process: libc::pid_t,
    clock: Clock,
    code: CodeSnapshots,
    /// True if another task has changed what is mapped.
    pub(super) mappings_outdated: bool,
    part: Option<OpenPart<AddressHash>>,
    /// True if the task is traced now. Without a part it is not, even if the switch is on.
    pub(super) switch: Switch,
    /// The switch was asked about the next instruction.
    is_switched: bool,
    untraced: Untraced,
    pub(super) parts: Vec<Part>,
    /// True if nothing more is to be traced.
    finished: bool,
    /// The address of the next instruction, unless a signal handler or the restart of a system call comes first.
    ip: u64,
    mode: ExecMode,
    /// The signal to deliver with the next step; 0 if there is none.
    pub(super) signal: c_int,
    /// The access for which the system has sent the last signal, if that is what it was for.
    fault: Option<Fault>,
    /// The current system call was interrupted, and its instruction is executed again unless a handler comes first.
    restart: bool,
    /// The step in progress.
    step: Step,
    /// When it began.
    step_begun: u64,
    /// The SIGSTOP with which a task begins is still to come.
    pub(super) begins_with_stop: bool,
    /// It runs at the processor's speed to where tracing starts, instead of being stepped.
    runs: bool,
    has_breakpoint: bool,
}

/// The data of a step that are needed when it ends.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    special: Option<Special>,
    bytes: FetchedBytes,
    /// The return address of a call into the vsyscall page.
    vsyscall_return: Option<u64>,
    /// The signal that was delivered with the step; 0 if there was none.
    delivered: c_int,
}

/// The effect of a step that other tasks must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing that matters to others.
    Stepped,
    /// The mappings of code may have changed.
    Mapped,
    /// The task is over.
    Over(Ending),
}

impl<'a> Task<'a> {
    /// Makes a task that is stopped before its first instruction, or wherever it is.
    pub(super) fn new(
        options: &'a RecordOptions,
        number: u32,
        space: u32,
        (clock, switch): (Clock, Switch),
        tracee: Tracee,
    ) -> Result<Self, RecordError> {
        let mut task = Self {
            options,
            number,
            space,
            process: tracee.pid,
            tracee,
            untraced: Untraced::new(clock.clone()),
            clock,
            code: CodeSnapshots::default(),
            mappings_outdated: false,
            part: None,
            switch,
            is_switched: false,
            parts: vec![],
            finished: false,
            ip: 0,
            mode: ExecMode::Bits64,
            signal: 0,
            fault: None,
            restart: false,
            step: Step::default(),
            step_begun: 0,
            begins_with_stop: false,
            runs: false,
            has_breakpoint: false,
        };
        let registers = task.registers()?;
        task.set_position(&registers);
        // A task that waits in the kernel makes the system call once more.
        task.restart = must_restart(&registers);
        task.process = task.or_step_error(thread_info::process_of(task.tracee.pid))?;
        task.refresh()?;
        Ok(task)
    }

    /// Returns the number of instructions that were traced.
    pub(super) fn count(&self) -> u64 {
        let ended: u64 = self.parts.iter().map(|part| part.truth.count()).sum();
        ended + self.part.as_ref().map_or(0, |part| part.pt_unit.count())
    }

    /// Writes what there is of its trace, and the code that it needs.
    pub(super) fn write(&mut self) -> Result<(), RecordError> {
        self.part.as_mut().map_or(Ok(()), |part| part.write(&mut self.code))
    }

    /// Returns the number of bytes of trace in the part that is being recorded.
    pub(super) fn bytes(&self) -> u64 {
        self.part.as_ref().map_or(0, |part| part.pt_unit.bytes())
    }

    /// Starts a step. Returns false if the step is already done, without running the program.
    pub(super) fn step(&mut self) -> Result<bool, RecordError> {
        if std::mem::take(&mut self.mappings_outdated) {
            self.refresh()?;
        }
        let at = self.ip;
        if self.signal == 0 && !self.restart && !std::mem::replace(&mut self.is_switched, true) {
            self.turn()?;
        }
        if self.run()? {
            return Ok(true);
        }
        let bytes = self.fetch(at)?;
        let special = Special::of(bytes.as_slice(), self.mode);
        if let Some(pop @ Special::PopFlags { .. }) = special
            && self.signal == 0
            && !self.restart
        {
            let next = at + self.len(bytes);
            if self.or_step_error(flags::pop(&self.tracee, pop, self.len(bytes), self.mode))? {
                return self.retire(next, bytes).map(|()| false);
            }
        }
        let vsyscall_return = if VSYSCALL.contains(&at) { Some(self.return_address()?) } else { None };
        let delivered = std::mem::take(&mut self.signal);
        self.step = Step { special, bytes, vsyscall_return, delivered };
        self.step_begun = self.clock.get();
        self.or_step_error(self.tracee.step(delivered)).map(|()| true)
    }

    /// Continues the step in progress, which the start of another task interrupted.
    pub(super) fn continue_step(&self) -> Result<(), RecordError> {
        self.or_step_error(if self.runs { self.tracee.run(0) } else { self.tracee.step(0) })
    }

    /// Lets the task run to where its tracing starts, if that is known and what is executed before does not matter.
    /// Returns false otherwise.
    fn run(&mut self) -> Result<bool, RecordError> {
        if !self.switch.can_run() || self.restart {
            return Ok(false);
        }
        let place = self.switch.place();
        // The processor would stop at once where it is, and a system that has no breakpoints must step.
        if place == Some(self.ip) || place.is_some() && self.tracee.set_breakpoint(place).is_err() {
            return Ok(false);
        }
        (self.runs, self.has_breakpoint) = (true, place.is_some());
        let delivered = std::mem::take(&mut self.signal);
        self.step = Step { delivered, ..Step::default() };
        self.or_step_error(self.tracee.run(delivered)).map(|()| true)
    }

    /// Handles a stop of a task that ran.
    fn handle_stop_of_run(&mut self, stop: Stop) -> Result<Outcome, RecordError> {
        self.runs = false;
        let Step { delivered, .. } = std::mem::take(&mut self.step);
        match stop {
            Stop::Started { .. } => self.runs = true,
            Stop::Ended(ending) => return self.end(delivered, ending),
            Stop::Exec => return self.exec(),
            Stop::Trap | Stop::Signal(_) | Stop::Paused => {
                if std::mem::take(&mut self.has_breakpoint) {
                    self.or_step_error(self.tracee.set_breakpoint(None))?;
                }
                let registers = self.registers()?;
                self.set_position(&registers);
                self.restart = must_restart(&registers);
                self.untraced.in_kernel = true;
                let at_breakpoint = stop == Stop::Trap && self.signal_code()? == Some(libc::TRAP_HWBKPT);
                match stop {
                    Stop::Trap if !at_breakpoint => self.handle_signal(libc::SIGTRAP)?,
                    Stop::Signal(signal) => self.handle_signal(signal)?,
                    _ => {}
                }
                self.refresh()?;
                return Ok(Outcome::Mapped);
            }
        }
        Ok(Outcome::Stepped)
    }

    /// Handles the stop at which the step in progress has ended.
    pub(super) fn handle_stop(&mut self, stop: Stop) -> Result<Outcome, RecordError> {
        if self.runs {
            return self.handle_stop_of_run(stop);
        }
        let Step { special, bytes, vsyscall_return, delivered } = std::mem::take(&mut self.step);
        match stop {
            Stop::Ended(ending) => {
                if delivered == 0 {
                    self.enter_kernel(special, bytes);
                }
                return self.end(delivered, ending);
            }
            Stop::Exec => {
                self.enter_kernel(special, bytes);
                return self.exec();
            }
            // The start of another task does not end this task's step.
            Stop::Started { .. } | Stop::Paused => {}
            Stop::Signal(libc::SIGSTOP) if std::mem::take(&mut self.begins_with_stop) => {}
            Stop::Signal(signal) => self.handle_signal(signal)?,
            Stop::Trap if delivered != 0 && self.signal_code()? == Some(libc::SIGTRAP) => {
                // The task is at the first instruction of the signal's handler.
                let registers = self.registers()?;
                self.set_position(&registers);
            }
            Stop::Trap => {
                return match vsyscall_return {
                    Some(back) => self.finish_vsyscall(back),
                    None if self.restart => {
                        self.restart = false;
                        self.ip = self.ip.wrapping_sub(SYSTEM_CALL_LEN);
                        let bytes = self.fetch(self.ip)?;
                        self.finish_step(Special::of(bytes.as_slice(), self.mode), bytes)
                    }
                    None => self.finish_step(special, bytes),
                };
            }
        }
        Ok(Outcome::Stepped)
    }

    /// Handles that the task is over, after a signal was delivered to it, if that is not 0. The other threads of a
    /// process that a signal ends got none.
    fn end(&mut self, delivered: c_int, ending: Ending) -> Result<Outcome, RecordError> {
        let is_end = delivered != 0 && ending == Ending::Signal(delivered) && self.part.is_some();
        self.finish(Cause::Over)?;
        if let Some(part) = self.parts.last_mut().filter(|_| is_end) {
            (part.at, part.signal) = (Some(self.ip), Some(delivered));
            part.fault = self.fault.filter(|fault| fault.signal == delivered);
        }
        Ok(Outcome::Over(ending))
    }

    /// Ends the tracing of this task, wherever it is.
    pub(super) fn finish(&mut self, cause: Cause) -> Result<(), RecordError> {
        // In a step that has not ended the task is in the kernel, if its instruction leads there. Behind the limit that
        // instruction is not counted.
        let Step { special, bytes, .. } = self.step;
        if cause != Cause::Limit {
            self.enter_kernel(special, bytes);
        }
        self.finished = true;
        self.end_part(cause)
    }

    /// Takes the number of another task that has ended, as exec does with threads.
    pub(super) fn set_pid(&mut self, pid: libc::pid_t) {
        self.tracee.pid = pid;
    }

    /// Handles that the instruction at `self.ip` was stepped.
    fn finish_step(&mut self, special: Option<Special>, bytes: FetchedBytes) -> Result<Outcome, RecordError> {
        let (at, next) = (self.ip, self.next_ip()?);
        match special {
            Some(Special::Repeat) if next == at => {}
            Some(Special::Interrupt { vector: 3 }) if self.signal_code()? == Some(SI_KERNEL) => {
                self.enter_kernel(special, bytes);
                self.ip = next;
                self.signal = libc::SIGTRAP;
            }
            Some(Special::SystemCall | Special::Interrupt { .. }) => {
                // The trap of the step is lost in a SIGTRAP that the program has sent itself.
                if self.signal_code()?.is_some_and(is_sent) {
                    self.signal = libc::SIGTRAP;
                }
                self.enter_kernel(special, bytes);
                let registers = self.registers()?;
                self.set_position(&registers);
                self.restart = must_restart(&registers);
                if can_rename(&registers)
                    && let Some(part) = &mut self.part
                {
                    part.thread.read_comm();
                }
                if can_map_code(&registers) {
                    self.refresh()?;
                    return Ok(Outcome::Mapped);
                }
            }
            Some(Special::LoadsSs) => {
                self.retire(at + self.len(bytes), bytes)?;
                if self.ip != next {
                    self.turn()?;
                    let bytes = self.fetch(self.ip)?;
                    self.retire(next, bytes)?;
                }
            }
            Some(Special::Far) => {
                let (before, registers) = (self.mode, self.registers()?);
                self.set_position(&registers);
                self.executed((at, before), Next::User(self.ip, self.mode), bytes);
            }
            Some(Special::PushFlags) => {
                self.or_step_error(flags::clear_pushed_trap_flag(&self.tracee))?;
                self.retire(next, bytes)?;
            }
            Some(Special::Repeat | Special::PopFlags { .. }) | None => self.retire(next, bytes)?,
        }
        Ok(Outcome::Stepped)
    }

    /// Reports that an instruction retired and that the program continued at `next`.
    fn retire(&mut self, next: u64, bytes: FetchedBytes) -> Result<(), RecordError> {
        if bytes.as_slice().is_empty() {
            return Err(RecordError::NoCode { ip: self.ip });
        }
        self.executed((self.ip, self.mode), Next::User(next, self.mode), bytes);
        self.ip = next;
        Ok(())
    }

    /// Reports an instruction that was executed to the hardware, if the task is traced.
    fn executed(&mut self, at: (u64, ExecMode), next: Next, bytes: FetchedBytes) {
        match &mut self.part {
            Some(part) if self.switch.is_on() => part.pt_unit.retire(at, next, bytes.as_slice()),
            _ => self.untraced.pass(1, next == Next::Kernel),
        }
        self.switch.pass(1);
        self.is_switched = false;
    }

    /// Reports an interrupt or exception to the hardware, if the task is traced.
    fn interrupted(&mut self, kind: DeliveryKind, vector: u8) {
        self.is_switched = false;
        match &mut self.part {
            Some(part) if self.switch.is_on() => part.pt_unit.deliver(kind, vector, (self.ip, self.mode)),
            _ => self.untraced.pass(1, true),
        }
    }

    fn in_kernel(&self) -> bool {
        match &self.part {
            Some(part) if self.switch.is_on() => part.pt_unit.in_kernel(),
            _ => self.untraced.in_kernel,
        }
    }

    /// Starts or stops tracing before the instruction at `self.ip`, if that is where.
    fn turn(&mut self) -> Result<(), RecordError> {
        match (self.switch.turn_before(self.ip), &mut self.part) {
            (Some(Turn::On), Some(part)) => part.pt_unit.turn_on(self.untraced.in_kernel),
            (Some(Turn::On), None) if !self.finished => {
                let mappings = self.mappings()?;
                self.begin_part(&mappings)
            }
            (Some(Turn::Off), Some(part)) => {
                self.untraced.in_kernel = part.pt_unit.turn_off((self.ip, self.mode))?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Reports that the instruction took the program to the kernel, if it is of a kind that does.
    fn enter_kernel(&mut self, special: Option<Special>, bytes: FetchedBytes) {
        // A step that leads to the kernel ends when the program returns. Other tasks have gone on meanwhile.
        let waited = self.clock.get() - self.step_begun;
        self.clock.set(self.step_begun);
        match special {
            Some(Special::SystemCall) => self.executed((self.ip, self.mode), Next::Kernel, bytes),
            Some(Special::Interrupt { vector }) => self.interrupted(DeliveryKind::SoftwareInterrupt, vector),
            _ => {}
        }
        self.clock.set(self.clock.get() + waited);
    }

    /// Handles that a signal is about to be delivered. The instruction at `self.ip` was not executed.
    fn handle_signal(&mut self, signal: c_int) -> Result<(), RecordError> {
        // A stop without signal information is a group stop, caused by a signal like SIGSTOP. It is not a signal.
        let Some(code) = self.signal_code()? else { return Ok(()) };
        self.signal = signal;
        self.fault = self.or_step_error(self.tracee.fault())?;
        self.switch.receive(signal);
        if let Some(vector) = fault(signal, code) {
            self.restart = false;
            self.interrupted(DeliveryKind::Fault, vector);
        } else if !self.in_kernel() {
            self.interrupted(DeliveryKind::Interrupt, TIMER_VECTOR);
        }
        Ok(())
    }

    /// Handles a call into the vsyscall page: the fetch faults, the kernel does what the call requests and returns to
    /// the caller, and the step ends there.
    fn finish_vsyscall(&mut self, back: u64) -> Result<Outcome, RecordError> {
        self.interrupted(DeliveryKind::Fault, PAGE_FAULT);
        self.ip = back;
        self.turn()?;
        let bytes = self.fetch(back)?;
        self.finish_step(Special::of(bytes.as_slice(), self.mode), bytes)
    }

    /// Handles that another program replaces this one, up to that program's first instruction.
    fn exec(&mut self) -> Result<Outcome, RecordError> {
        self.end_part(Cause::Exec)?;
        let error = |error| RecordError::Step { ip: None, error };
        self.tracee.reopen_memory().map_err(error)?;
        self.tracee.step(0).map_err(error)?;
        match self.tracee.wait().map_err(error)? {
            Stop::Trap => {}
            // The signal is handled before the first instruction.
            Stop::Signal(signal) => self.signal = self.signal_code()?.map_or(0, |_| signal),
            Stop::Ended(ending) => return self.finish(Cause::Over).map(|()| Outcome::Over(ending)),
            Stop::Exec | Stop::Started { .. } | Stop::Paused => {
                return Err(error(io::Error::other("it did not stop where it begins")));
            }
        }
        let registers = self.registers()?;
        self.set_position(&registers);
        self.code = CodeSnapshots::default();
        self.refresh()?;
        Ok(Outcome::Stepped)
    }

    /// Returns the bytes of the instruction that is about to be executed.
    fn fetch(&mut self, ip: u64) -> Result<FetchedBytes, RecordError> {
        for _ in 0..2 {
            let (code, tracee) = (&mut self.code, &self.tracee);
            let read = |address: u64, out: &mut [u8]| tracee.read(address, out);
            let fetched = match &self.part {
                Some(_) if self.switch.is_on() => code.fetch(ip, self.mode, &read),
                _ => Ok(code.look(ip, &read)),
            };
            match fetched {
                Ok(bytes) if !bytes.as_slice().is_empty() => return Ok(bytes),
                // Another thread has mapped it, or it is not mapped.
                Ok(_) => self.refresh()?,
                Err(Changed) => self.begin_next_part()?,
            }
        }
        Ok(FetchedBytes::default())
    }

    /// Reads what is mapped now.
    fn refresh(&mut self) -> Result<(), RecordError> {
        let mappings = self.mappings()?;
        if !self.switch.finds_by_address() {
            let program = self.or_step_error(self.tracee.executable())?;
            self.switch.find_places(&mappings, &program);
        }
        let (code, tracee) = (&mut self.code, &self.tracee);
        match code.refresh(&mappings, &|address, out| tracee.read(address, out)) {
            Ok(()) if self.part.is_none() && !self.finished && self.switch.is_on() => {
                self.begin_part(&mappings)
            }
            Ok(()) => {
                self.part.iter_mut().for_each(|part| part.note_mappings(&mappings));
                Ok(())
            }
            Err(Changed) => self.begin_next_part(),
        }
    }

    /// Ends the part, because executed code changes, and begins the next.
    fn begin_next_part(&mut self) -> Result<(), RecordError> {
        self.end_part(Cause::Changed)?;
        self.code = CodeSnapshots::default();
        self.refresh()
    }

    /// Begins a part, if all functions to trace are mapped.
    fn begin_part(&mut self, mappings: &[TaskMapping]) -> Result<(), RecordError> {
        let program = self.or_step_error(self.tracee.executable())?;
        let symbols = Symbols::new(mappings, &program);
        let ranges: Option<Vec<_>> =
            self.options.ranges.iter().map(|range| range.resolve(&symbols)).collect();
        if let Some(ranges) = ranges {
            let number = self.parts.len() + 1;
            let place = PartNumber { task: self.number, number };
            let thread = self.or_step_error(ThreadInfo::read(self.tracee.pid))?;
            let (who, time) = ((program, thread), (self.clock.clone(), self.untraced.in_kernel));
            let unit = PtUnit::start(self.options, &ranges, time, AddressHash::new())?;
            let mut part = OpenPart::begin(self.options, place, who, ranges, unit)?;
            part.note_mappings(mappings);
            self.part = Some(part);
        }
        Ok(())
    }

    fn end_part(&mut self, cause: Cause) -> Result<(), RecordError> {
        if let Some(mut part) = self.part.take() {
            if cause != Cause::Exec {
                part.thread.read_comm();
            }
            self.parts.push(part.end(self.options, cause, (self.ip, self.mode), &mut self.code)?);
        }
        Ok(())
    }

    fn set_position(&mut self, registers: &Registers) {
        self.ip = registers.rip;
        self.mode = if registers.cs == USER32_CS { ExecMode::Bits32 } else { ExecMode::Bits64 };
        self.restart = false;
        self.is_switched = false;
    }

    /// Returns the length of the instruction at `self.ip`.
    fn len(&self, bytes: FetchedBytes) -> u64 {
        insn::decode(bytes.as_slice(), self.mode, self.ip).map_or(0, |insn| u64::from(insn.len))
    }

    fn return_address(&self) -> Result<u64, RecordError> {
        let mut address = [0; 8];
        self.tracee.read(self.registers()?.rsp, &mut address);
        Ok(u64::from_le_bytes(address))
    }

    fn mappings(&self) -> Result<Vec<TaskMapping>, RecordError> {
        self.or_step_error(self.tracee.maps()).map(|maps| TaskMapping::parse(&maps))
    }

    fn next_ip(&self) -> Result<u64, RecordError> {
        self.or_step_error(self.tracee.ip())
    }

    fn registers(&self) -> Result<Registers, RecordError> {
        self.or_step_error(self.tracee.registers())
    }

    fn signal_code(&self) -> Result<Option<c_int>, RecordError> {
        self.or_step_error(self.tracee.signal_code())
    }

    fn or_step_error<T>(&self, result: io::Result<T>) -> Result<T, RecordError> {
        result.map_err(|error| RecordError::Step { ip: Some(self.ip), error })
    }
}
