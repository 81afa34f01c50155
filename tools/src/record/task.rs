//! From stops of a task to what the tracing hardware sees.

use super::{
    Cause, Ending, Error, Options, Part,
    code::{Bytes, Changed, Code},
    filter::Symbols,
    flags,
    hardware::{Clock, Next},
    instruction::Special,
    maps::Mapping,
    part::{Open, Place},
    tracee::{Registers, Stop, Tracee},
    who::{self, Who},
};
use libc::c_int;
use pugmark_decoder_core::insn;
use pugmark_model::{DeliveryKind, ExecMode};
use std::io;

/// A thread of the program or of a child while it is recorded, with a processor of its own.
pub(super) struct Task<'a> {
    options: &'a Options,
    /// 1: the program's main thread; the others in the order in which they were started.
    number: u32,
    /// Only tasks with the same number here can see the same memory.
    pub(super) space: u32,
    pub(super) tracee: Tracee,
    /// The process that it is a thread of.
    pub(super) process: libc::pid_t,
    clock: Clock,
    code: Code,
    /// Another task has changed what is mapped.
    pub(super) stale: bool,
    part: Option<Open>,
    pub(super) parts: Vec<Part>,
    /// Nothing more is to be traced.
    finished: bool,
    /// What is executed next, if no signal handler and no system call to restart come first.
    ip: u64,
    mode: ExecMode,
    /// The signal to deliver with the next step; 0: none.
    pub(super) signal: c_int,
    /// The system call that the task is in was interrupted: unless a handler comes first, its instruction is
    /// executed again.
    restart: bool,
    /// The step that was begun.
    step: Step,
    /// The SIGSTOP with which a task begins is still to come.
    pub(super) begins_with_stop: bool,
}

/// What is to be known of a step when it ends.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    special: Option<Special>,
    bytes: Bytes,
    /// Where a call into the vsyscall page returns to.
    emulated: Option<u64>,
    /// The signal that was delivered with it; 0: none.
    delivered: c_int,
}

/// What has happened in a step that others must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing.
    Stepped,
    /// Code may be mapped now that was not, or no longer.
    Mapped,
    /// The task is over.
    Over(Ending),
}

/// The page in which system calls were before there was a vDSO. Instructions there are emulated by the kernel.
const VSYSCALL: std::ops::Range<u64> = 0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000;
/// The segment of 32-bit user code.
const USER32_CS: u64 = 0x23;
const PAGE_FAULT: u8 = 14;
/// A vector of interrupts: the local APIC timer's, as Linux has it.
const TIMER_VECTOR: u8 = 0xec;

impl<'a> Task<'a> {
    /// The task that has just begun and is stopped in front of its first instruction.
    pub(super) fn new(
        options: &'a Options,
        number: u32,
        space: u32,
        clock: Clock,
        tracee: Tracee,
    ) -> Result<Self, Error> {
        let mut task = Self {
            options,
            number,
            space,
            process: tracee.pid,
            tracee,
            clock,
            code: Code::default(),
            stale: false,
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
        task.arrive(&registers);
        task.process = task.stepping(who::process(task.tracee.pid))?;
        task.refresh()?;
        Ok(task)
    }

    /// How many instructions were traced.
    pub(super) fn count(&self) -> u64 {
        let ended: u64 = self.parts.iter().map(|part| part.truth.count()).sum();
        ended + self.part.as_ref().map_or(0, |part| part.hardware.truth().count())
    }

    /// Bytes of trace in the part that is being recorded.
    pub(super) fn bytes(&self) -> u64 {
        self.part.as_ref().map_or(0, |part| part.hardware.bytes())
    }

    /// Begins a step. False: it was made already, without the processor.
    pub(super) fn step(&mut self) -> Result<bool, Error> {
        if std::mem::take(&mut self.stale) {
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
            if self.stepping(flags::pop(&self.tracee, pop, self.len(bytes), self.mode))? {
                return self.retire(next, bytes).map(|()| false);
            }
        }
        let emulated = if VSYSCALL.contains(&at) { Some(self.return_address()?) } else { None };
        let delivered = std::mem::take(&mut self.signal);
        self.step = Step { special, bytes, emulated, delivered };
        self.stepping(self.tracee.step(delivered)).map(|()| true)
    }

    /// The step that was begun goes on: it was interrupted by the beginning of another task.
    pub(super) fn step_on(&self) -> Result<(), Error> {
        self.stepping(self.tracee.step(0))
    }

    /// The step that was begun has come to this stop.
    pub(super) fn stopped(&mut self, stop: Stop) -> Result<Outcome, Error> {
        let Step { special, bytes, emulated, delivered } = std::mem::take(&mut self.step);
        match stop {
            Stop::Over(ending) => {
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
            // The beginning of another is no stop of this one.
            Stop::Begun { .. } => {}
            Stop::Signal(libc::SIGSTOP) if std::mem::take(&mut self.begins_with_stop) => {}
            Stop::Signal(signal) => self.signalled(signal)?,
            Stop::Trap if delivered != 0 && self.signal_code()? == Some(libc::SIGTRAP) => {
                // At the first instruction of the signal's handler.
                let registers = self.registers()?;
                self.arrive(&registers);
            }
            Stop::Trap => {
                return match emulated {
                    Some(back) => self.emulated(back),
                    None if self.restart => {
                        self.restart = false;
                        self.ip = self.ip.wrapping_sub(SYSTEM_CALL_LEN);
                        let bytes = self.fetch(self.ip)?;
                        self.executed(Special::of(bytes.as_slice(), self.mode), bytes)
                    }
                    None => self.executed(special, bytes),
                };
            }
        }
        Ok(Outcome::Stepped)
    }

    /// Nothing more is traced of it, wherever it is.
    pub(super) fn finish(&mut self, cause: Cause) -> Result<(), Error> {
        // In a step that has not ended it is in the kernel, if that is where its instruction leads to.
        let Step { special, bytes, .. } = self.step;
        self.enter_kernel(special, bytes)?;
        self.finished = true;
        self.end_part(cause)
    }

    /// Another task that has ended has made place for it: it has that one's numbers now.
    pub(super) fn becomes(&mut self, pid: libc::pid_t) {
        self.tracee.pid = pid;
    }

    /// The instruction at `self.ip` was stepped.
    fn executed(&mut self, special: Option<Special>, bytes: Bytes) -> Result<Outcome, Error> {
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
                self.arrive(&registers);
                self.restart = must_restart(&registers);
                if can_rename(&registers)
                    && let Some(part) = &mut self.part
                {
                    part.who.read_comm();
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
                self.arrive(&registers);
                let after = Next::User(self.ip, self.mode);
                if let Some(part) = &mut self.part {
                    part.hardware.retire((at, before), after, bytes.as_slice())?;
                }
            }
            Some(Special::PushFlags) => {
                self.stepping(flags::clear_pushed_trap_flag(&self.tracee))?;
                self.retire(next, bytes)?;
            }
            Some(Special::Repeat | Special::PopFlags { .. }) | None => self.retire(next, bytes)?,
        }
        Ok(Outcome::Stepped)
    }

    /// An instruction retired, and the program went on at `next`.
    fn retire(&mut self, next: u64, bytes: Bytes) -> Result<(), Error> {
        if bytes.as_slice().is_empty() {
            return Err(Error::NoCode { ip: self.ip });
        }
        if let Some(part) = &mut self.part {
            part.hardware.retire((self.ip, self.mode), Next::User(next, self.mode), bytes.as_slice())?;
        }
        self.ip = next;
        Ok(())
    }

    /// The instruction, if it is one of those, took the program to the kernel.
    fn enter_kernel(&mut self, special: Option<Special>, bytes: Bytes) -> Result<(), Error> {
        let (Some(part), at) = (&mut self.part, (self.ip, self.mode)) else { return Ok(()) };
        match special {
            Some(Special::SystemCall) => part.hardware.retire(at, Next::Kernel, bytes.as_slice()),
            Some(Special::Interrupt { vector }) => {
                part.hardware.deliver(DeliveryKind::SoftwareInterrupt, vector, at)
            }
            _ => Ok(()),
        }
    }

    /// A signal is about to be delivered; the instruction at `self.ip` was not executed.
    fn signalled(&mut self, signal: c_int) -> Result<(), Error> {
        // Without information it is the stop that a signal like SIGSTOP has led to, and no signal.
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

    /// A call into the vsyscall page: the fetch faults, the kernel does what was wanted and returns to the caller,
    /// and there the step ends.
    fn emulated(&mut self, back: u64) -> Result<Outcome, Error> {
        if let Some(part) = &mut self.part {
            part.hardware.deliver(DeliveryKind::Fault, PAGE_FAULT, (self.ip, self.mode))?;
        }
        self.ip = back;
        let bytes = self.fetch(back)?;
        self.executed(Special::of(bytes.as_slice(), self.mode), bytes)
    }

    /// Another program takes the place of this one; up to its first instruction.
    fn exec(&mut self) -> Result<Outcome, Error> {
        self.end_part(Cause::Exec)?;
        let error = |error| Error::Step { ip: 0, error };
        self.tracee.reopen_memory().map_err(error)?;
        self.tracee.step(0).map_err(error)?;
        match self.tracee.wait().map_err(error)? {
            Stop::Trap => {}
            // Its first instruction waits for the signal's handling.
            Stop::Signal(signal) => self.signal = self.signal_code()?.map_or(0, |_| signal),
            Stop::Over(ending) => return self.finish(Cause::Over).map(|()| Outcome::Over(ending)),
            Stop::Exec | Stop::Begun { .. } => {
                return Err(error(io::Error::other("it did not stop where it begins")));
            }
        }
        let registers = self.registers()?;
        self.arrive(&registers);
        self.code = Code::default();
        self.refresh()?;
        Ok(Outcome::Stepped)
    }

    /// The bytes of the instruction that is about to be executed.
    fn fetch(&mut self, ip: u64) -> Result<Bytes, Error> {
        for _ in 0..2 {
            let (code, tracee) = (&mut self.code, &self.tracee);
            match code.fetch(ip, self.mode, &|address, out| tracee.read(address, out)) {
                Ok(bytes) if !bytes.as_slice().is_empty() => return Ok(bytes),
                // Mapped by another thread, or not at all.
                Ok(_) => self.refresh()?,
                Err(Changed) => self.begin_anew()?,
            }
        }
        Ok(Bytes::default())
    }

    /// Looks what is mapped.
    fn refresh(&mut self) -> Result<(), Error> {
        let mappings = self.mappings()?;
        let (code, tracee) = (&mut self.code, &self.tracee);
        match code.refresh(&mappings, &|address, out| tracee.read(address, out)) {
            Ok(()) if self.part.is_none() && !self.finished => self.begin_part(&mappings),
            Ok(()) => Ok(()),
            Err(Changed) => self.begin_anew(),
        }
    }

    /// Ends the part, since code that was executed changes, and begins the next.
    fn begin_anew(&mut self) -> Result<(), Error> {
        self.end_part(Cause::Changed)?;
        self.code = Code::default();
        self.refresh()
    }

    /// Begins to trace, if all functions to trace are mapped.
    fn begin_part(&mut self, mappings: &[Mapping]) -> Result<(), Error> {
        let program = self.stepping(self.tracee.executable())?;
        let symbols = Symbols::new(mappings, &program);
        let ranges: Option<Vec<_>> =
            self.options.ranges.iter().map(|range| range.resolve(&symbols)).collect();
        if let Some(ranges) = ranges {
            let number = self.parts.len() + 1;
            let place = Place { task: self.number, number };
            let who = self.stepping(Who::read(self.tracee.pid))?;
            self.part = Some(Open::begin(self.options, place, (program, who), ranges, self.clock.clone())?);
        }
        Ok(())
    }

    fn end_part(&mut self, cause: Cause) -> Result<(), Error> {
        if let Some(mut part) = self.part.take() {
            if cause != Cause::Exec {
                part.who.read_comm();
            }
            self.parts.push(part.end(self.options, cause, (self.ip, self.mode), &self.code.sections())?);
        }
        Ok(())
    }

    fn arrive(&mut self, registers: &Registers) {
        self.ip = registers.rip;
        self.mode = if registers.cs == USER32_CS { ExecMode::Bits32 } else { ExecMode::Bits64 };
        self.restart = false;
    }

    /// The length of the instruction at `self.ip`.
    fn len(&self, bytes: Bytes) -> u64 {
        insn::decode(bytes.as_slice(), self.mode, self.ip).map_or(0, |insn| u64::from(insn.len))
    }

    fn return_address(&self) -> Result<u64, Error> {
        let mut address = [0; 8];
        self.tracee.read(self.registers()?.rsp, &mut address);
        Ok(u64::from_le_bytes(address))
    }

    fn mappings(&self) -> Result<Vec<Mapping>, Error> {
        self.stepping(self.tracee.maps()).map(|maps| Mapping::parse(&maps))
    }

    fn next_ip(&self) -> Result<u64, Error> {
        self.stepping(self.tracee.ip())
    }

    fn registers(&self) -> Result<Registers, Error> {
        self.stepping(self.tracee.registers())
    }

    fn signal_code(&self) -> Result<Option<c_int>, Error> {
        self.stepping(self.tracee.signal_code())
    }

    fn stepping<T>(&self, result: io::Result<T>) -> Result<T, Error> {
        result.map_err(|error| Error::Step { ip: self.ip, error })
    }
}

/// The length of SYSCALL, SYSENTER and INT 80H.
const SYSTEM_CALL_LEN: u64 = 2;
/// `si_code` of a signal for an exception.
const SI_KERNEL: c_int = 0x80;

/// The vector of the exception that the signal, with its `si_code`, is about; `None` for one that was sent.
fn fault(signal: c_int, code: c_int) -> Option<u8> {
    let vector = match signal {
        libc::SIGSEGV | libc::SIGBUS => PAGE_FAULT,
        libc::SIGILL => 6,
        libc::SIGFPE => 0,
        _ => return None,
    };
    // What processes send has 0 or less.
    (code > 0).then_some(vector)
}

/// The system call was interrupted and has not done its work. The program never sees these results: ERESTARTSYS,
/// ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
fn must_restart(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0 && matches!(-(registers.rax as i64), 512 | 513 | 514 | 516)
}

/// The system call can have given the thread another name: prctl.
fn can_rename(registers: &Registers) -> bool {
    const PR_SET_NAME: u64 = 15;
    match registers.cs {
        USER32_CS => registers.orig_rax == 172 && registers.rbx == PR_SET_NAME,
        _ => registers.orig_rax == 157 && registers.rdi == PR_SET_NAME,
    }
}

/// The system call can have changed what can be executed.
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
    fn system_calls_that_can_map_code_are_told_from_others() {
        // Call, third and fourth argument.
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
            // SAFETY: numbers all of them.
            let mut registers: Registers = unsafe { std::mem::zeroed() };
            (registers.orig_rax, registers.rdx, registers.r10, registers.cs) = (call, rdx, r10, 0x33);
            assert_eq!(can_map_code(&registers), expected, "{call} {rdx:x} {r10:x}");
            registers.cs = USER32_CS;
            assert_eq!(can_map_code(&registers), call == 90, "{call} of a 32-bit program");
        }
    }

    #[test]
    fn signals_for_exceptions_are_told_from_those_that_are_sent() {
        // SEGV_MAPERR and BUS_ADRERR, ILL_ILLOPN, FPE_INTDIV; SI_USER, SI_TKILL, SI_KERNEL.
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
        // SAFETY: numbers all of them.
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
            // There was none, or the result is no error.
            assert!(!must_restart(&registers(u64::MAX, -result, 0x33)), "{result}");
            assert!(!must_restart(&registers(0, result, 0x33)), "{result}");
        }
    }

    #[test]
    fn a_thread_gets_another_name_by_prctl_alone() {
        // Call, the first argument of a 64-bit program and of a 32-bit program; whether it is for either.
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
