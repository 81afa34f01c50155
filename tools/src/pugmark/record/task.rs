//! Turns the stops of a task into what the tracing hardware sees.

use super::{
    Cause, Ending, Part, RecordError, RecordOptions,
    code::{Changed, CodeSnapshots, FetchedBytes},
    filter::Symbols,
    flags,
    hardware::{Clock, Next, PAGE_FAULT, TIMER_VECTOR},
    instruction::Special,
    maps::{TaskMapping, VSYSCALL},
    part::{OpenPart, PartNumber},
    thread_info::{self, ThreadInfo},
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
    /// The process that it is a thread of.
    pub(super) process: libc::pid_t,
    clock: Clock,
    code: CodeSnapshots,
    /// Another task has changed what is mapped.
    pub(super) mappings_outdated: bool,
    part: Option<OpenPart<AddressHash>>,
    pub(super) parts: Vec<Part>,
    /// Nothing more is to be traced.
    finished: bool,
    /// The address of the next instruction, unless a signal handler or the restart of a system call comes first.
    ip: u64,
    mode: ExecMode,
    /// The signal to deliver with the next step; 0 if there is none.
    pub(super) signal: c_int,
    /// The current system call was interrupted, and its instruction is executed again unless a handler comes first.
    restart: bool,
    /// The step in progress.
    step: Step,
    /// The SIGSTOP with which a task begins is still to come.
    pub(super) begins_with_stop: bool,
}

/// What must be known of a step when it ends.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    special: Option<Special>,
    bytes: FetchedBytes,
    /// The return address of a call into the vsyscall page.
    vsyscall_return: Option<u64>,
    /// The signal that was delivered with the step; 0 if there was none.
    delivered: c_int,
}

/// What a step did that other tasks must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing that matters to others.
    Stepped,
    /// The mappings of code may have changed.
    Mapped,
    /// The task is over.
    Over(Ending),
}

/// The segment of 32-bit user code.
const USER32_CS: u64 = 0x23;

impl<'a> Task<'a> {
    /// Makes a task that has just begun and is stopped before its first instruction.
    pub(super) fn new(
        options: &'a RecordOptions,
        number: u32,
        space: u32,
        clock: Clock,
        tracee: Tracee,
    ) -> Result<Self, RecordError> {
        let mut task = Self {
            options,
            number,
            space,
            process: tracee.pid,
            tracee,
            clock,
            code: CodeSnapshots::default(),
            mappings_outdated: false,
            part: None,
            parts: vec![],
            finished: false,
            ip: 0,
            mode: ExecMode::Bits64,
            signal: 0,
            restart: false,
            step: Step::default(),
            begins_with_stop: false,
        };
        let registers = task.registers()?;
        task.set_position(&registers);
        task.process = task.or_step_error(thread_info::process_of(task.tracee.pid))?;
        task.refresh()?;
        Ok(task)
    }

    /// Returns the number of instructions that were traced.
    pub(super) fn count(&self) -> u64 {
        let ended: u64 = self.parts.iter().map(|part| part.truth.count()).sum();
        ended + self.part.as_ref().map_or(0, |part| part.hardware.count())
    }

    /// Returns the number of bytes of trace in the part that is being recorded.
    pub(super) fn bytes(&self) -> u64 {
        self.part.as_ref().map_or(0, |part| part.hardware.bytes())
    }

    /// Starts a step. Returns false if the step is already done, without running the program.
    pub(super) fn step(&mut self) -> Result<bool, RecordError> {
        if std::mem::take(&mut self.mappings_outdated) {
            self.refresh()?;
        }
        let at = self.ip;
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
        self.or_step_error(self.tracee.step(delivered)).map(|()| true)
    }

    /// Continues the step in progress, which the start of another task interrupted.
    pub(super) fn continue_step(&self) -> Result<(), RecordError> {
        self.or_step_error(self.tracee.step(0))
    }

    /// Handles the stop at which the step in progress has ended.
    pub(super) fn handle_stop(&mut self, stop: Stop) -> Result<Outcome, RecordError> {
        let Step { special, bytes, vsyscall_return, delivered } = std::mem::take(&mut self.step);
        match stop {
            Stop::Ended(ending) => {
                if delivered == 0 {
                    self.enter_kernel(special, bytes)?;
                }
                self.finish(Cause::Over)?;
                return Ok(Outcome::Over(ending));
            }
            Stop::Exec => {
                self.enter_kernel(special, bytes)?;
                return self.exec();
            }
            // The start of another task does not end this task's step.
            Stop::Started { .. } => {}
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

    /// Ends the tracing of this task, wherever it is.
    pub(super) fn finish(&mut self, cause: Cause) -> Result<(), RecordError> {
        // In a step that has not ended the task is in the kernel, if its instruction leads there.
        let Step { special, bytes, .. } = self.step;
        self.enter_kernel(special, bytes)?;
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
                self.enter_kernel(special, bytes)?;
                self.ip = next;
                self.signal = libc::SIGTRAP;
            }
            Some(Special::SystemCall | Special::Interrupt { .. }) => {
                self.enter_kernel(special, bytes)?;
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
                    let bytes = self.fetch(self.ip)?;
                    self.retire(next, bytes)?;
                }
            }
            Some(Special::Far) => {
                let (before, registers) = (self.mode, self.registers()?);
                self.set_position(&registers);
                let after = Next::User(self.ip, self.mode);
                if let Some(part) = &mut self.part {
                    part.hardware.retire((at, before), after, bytes.as_slice())?;
                }
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
        if let Some(part) = &mut self.part {
            part.hardware.retire((self.ip, self.mode), Next::User(next, self.mode), bytes.as_slice())?;
        }
        self.ip = next;
        Ok(())
    }

    /// Reports that the instruction took the program to the kernel, if it is of a kind that does.
    fn enter_kernel(&mut self, special: Option<Special>, bytes: FetchedBytes) -> Result<(), RecordError> {
        let (Some(part), at) = (&mut self.part, (self.ip, self.mode)) else { return Ok(()) };
        match special {
            Some(Special::SystemCall) => part.hardware.retire(at, Next::Kernel, bytes.as_slice()),
            Some(Special::Interrupt { vector }) => {
                part.hardware.deliver(DeliveryKind::SoftwareInterrupt, vector, at)
            }
            _ => Ok(()),
        }
    }

    /// Handles that a signal is about to be delivered. The instruction at `self.ip` was not executed.
    fn handle_signal(&mut self, signal: c_int) -> Result<(), RecordError> {
        // A stop without signal information is a group stop, caused by a signal like SIGSTOP. It is not a signal.
        let Some(code) = self.signal_code()? else { return Ok(()) };
        self.signal = signal;
        let Some(part) = &mut self.part else { return Ok(()) };
        let at = (self.ip, self.mode);
        if let Some(vector) = fault(signal, code) {
            self.restart = false;
            part.hardware.deliver(DeliveryKind::Fault, vector, at)?;
        } else if !part.hardware.in_kernel() {
            part.hardware.deliver(DeliveryKind::Interrupt, TIMER_VECTOR, at)?;
        }
        Ok(())
    }

    /// Handles a call into the vsyscall page: the fetch faults, the kernel does what the call requests and returns to
    /// the caller, and the step ends there.
    fn finish_vsyscall(&mut self, back: u64) -> Result<Outcome, RecordError> {
        if let Some(part) = &mut self.part {
            part.hardware.deliver(DeliveryKind::Fault, PAGE_FAULT, (self.ip, self.mode))?;
        }
        self.ip = back;
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
            Stop::Exec | Stop::Started { .. } => {
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
            match code.fetch(ip, self.mode, &|address, out| tracee.read(address, out)) {
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
        let (code, tracee) = (&mut self.code, &self.tracee);
        match code.refresh(&mappings, &|address, out| tracee.read(address, out)) {
            Ok(()) if self.part.is_none() && !self.finished => self.begin_part(&mappings),
            Ok(()) => Ok(()),
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
            self.part = Some(OpenPart::begin(
                self.options,
                place,
                (program, thread),
                ranges,
                self.clock.clone(),
                AddressHash::new(),
            )?);
        }
        Ok(())
    }

    fn end_part(&mut self, cause: Cause) -> Result<(), RecordError> {
        if let Some(mut part) = self.part.take() {
            if cause != Cause::Exec {
                part.thread.read_comm();
            }
            self.parts.push(part.end(self.options, cause, (self.ip, self.mode), &self.code.sections())?);
        }
        Ok(())
    }

    fn set_position(&mut self, registers: &Registers) {
        self.ip = registers.rip;
        self.mode = if registers.cs == USER32_CS { ExecMode::Bits32 } else { ExecMode::Bits64 };
        self.restart = false;
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

/// The length of SYSCALL, SYSENTER and INT 80H.
const SYSTEM_CALL_LEN: u64 = 2;
/// `si_code` of a signal that the kernel sends for an exception.
const SI_KERNEL: c_int = 0x80;

/// Returns the vector of the exception that caused the signal with this `si_code`; `None` if the signal was sent.
fn fault(signal: c_int, code: c_int) -> Option<u8> {
    let vector = match signal {
        libc::SIGSEGV | libc::SIGBUS => PAGE_FAULT,
        libc::SIGILL => 6,
        libc::SIGFPE => 0,
        _ => return None,
    };
    // Signals sent by processes have a code of 0 or less.
    (code > 0).then_some(vector)
}

/// Returns whether the system call was interrupted before it did its work. The program never sees these results:
/// ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
fn must_restart(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0 && matches!(-(registers.rax as i64), 512 | 513 | 514 | 516)
}

/// Returns whether the system call can have renamed the thread: prctl.
fn can_rename(registers: &Registers) -> bool {
    const PR_SET_NAME: u64 = 15;
    match registers.cs {
        USER32_CS => registers.orig_rax == 172 && registers.rbx == PR_SET_NAME,
        _ => registers.orig_rax == 157 && registers.rdi == PR_SET_NAME,
    }
}

/// Returns whether the system call can have changed which memory is executable.
fn can_map_code(registers: &Registers) -> bool {
    if registers.cs == USER32_CS {
        // mmap, mprotect, mremap, mmap2, ipc (shmat), pkey_mprotect, shmat.
        return matches!(registers.orig_rax, 90 | 125 | 163 | 192 | 117 | 380 | 397);
    }
    const PROT_EXEC: u64 = 4;
    const MAP_FIXED: u64 = 0x10;
    match registers.orig_rax {
        // mmap.
        9 => registers.rdx & PROT_EXEC != 0 || registers.r10 & MAP_FIXED != 0,
        // mprotect, mremap, shmat, pkey_mprotect.
        10 | 25 | 30 | 329 => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_system_calls_can_map_code() {
        // The system call's number, and its third and fourth argument.
        for (call, rdx, r10, expected) in [
            (9, 4, 0, true),
            (9, 7, 2, true),
            (9, 3, 0x22, false),
            (9, 3, 0x10, true),
            (9, 0, 0x32, true),
            (10, 1, 0, true),
            (25, 0, 0, true),
            (30, 0, 0, true),
            (329, 0, 0, true),
            (11, 4, 0x10, false),
            (0, 4, 0x10, false),
            (90, 4, 0x10, false),
        ] {
            // SAFETY: zeros are valid, because all fields are numbers.
            let mut registers: Registers = unsafe { std::mem::zeroed() };
            (registers.orig_rax, registers.rdx, registers.r10, registers.cs) = (call, rdx, r10, 0x33);
            assert_eq!(can_map_code(&registers), expected, "{call} {rdx:x} {r10:x}");
            registers.cs = USER32_CS;
            assert_eq!(can_map_code(&registers), call == 90, "{call} of a 32-bit program");
        }
    }

    #[test]
    fn a_signal_for_an_exception_differs_from_one_that_was_sent() {
        // The codes are SEGV_MAPERR and BUS_ADRERR, ILL_ILLOPN, FPE_INTDIV; SI_USER, SI_TKILL, SI_KERNEL.
        for (signal, code, expected) in [
            (libc::SIGSEGV, 1, Some(14)),
            (libc::SIGSEGV, SI_KERNEL, Some(14)),
            (libc::SIGBUS, 2, Some(14)),
            (libc::SIGILL, 2, Some(6)),
            (libc::SIGFPE, 1, Some(0)),
            (libc::SIGSEGV, 0, None),
            (libc::SIGILL, -6, None),
            (libc::SIGALRM, SI_KERNEL, None),
            (libc::SIGCHLD, 1, None),
        ] {
            assert_eq!(fault(signal, code), expected, "signal {signal}, code {code}");
        }
    }

    fn registers(call: u64, result: i64, cs: u64) -> Registers {
        // SAFETY: zeros are valid, because all fields are numbers.
        let registers: Registers = unsafe { std::mem::zeroed() };
        Registers { orig_rax: call, rax: result as u64, cs, ..registers }
    }

    #[test]
    fn a_system_call_is_restarted_that_has_not_done_its_work() {
        for (result, expected) in [
            (512, true),
            (513, true),
            (514, true),
            (515, false),
            (516, true),
            (511, false),
            (4, false),
            (0, false),
        ] {
            for call in [0, 35, u64::from(u32::MAX)] {
                assert_eq!(must_restart(&registers(call, -result, 0x33)), expected, "{call}: {result}");
            }
            // There was no system call, or its result is no error.
            assert!(!must_restart(&registers(u64::MAX, -result, 0x33)), "{result}");
            assert!(!must_restart(&registers(0, result, 0x33)), "{result}");
        }
    }

    #[test]
    fn a_thread_gets_another_name_by_prctl_alone() {
        // The system call, the first argument of a 64-bit and of a 32-bit program, and what is expected of each.
        for (call, rdi, rbx, expected) in [
            (157, 15, 0, [true, false]),
            (157, 16, 15, [false, false]),
            (172, 0, 15, [false, true]),
            (172, 15, 16, [false, false]),
            (1, 15, 15, [false, false]),
        ] {
            let of = |cs| can_rename(&Registers { rdi, rbx, ..registers(call, 0, cs) });
            assert_eq!([0x33, USER32_CS].map(of), expected, "{call} {rdi} {rbx}");
        }
    }
}
