//! From stops of the program to what the tracing hardware sees.

use super::{
    Ending, Error, Options, Part, Progress, Recording,
    code::{Bytes, Changed, Code},
    filter::Symbols,
    flags,
    hardware::Next,
    instruction::Special,
    maps::Mapping,
    part::{self, Open},
    tracee::{IgnoredInterrupts, OneCpu, Registers, Stop, Tracee},
};
use libc::c_int;
use pugmark_decoder_core::insn;
use pugmark_model::{DeliveryKind, ExecMode};
use std::io;

/// A program while it is recorded.
pub(super) struct Recorder<'a> {
    options: &'a Options,
    tracee: Tracee,
    code: Code,
    part: Option<Open>,
    parts: Vec<Part>,
    /// What the program executes next, if no signal handler and no system call to restart come first.
    ip: u64,
    mode: ExecMode,
    /// The signal to deliver with the next step; 0: none.
    signal: c_int,
    /// The system call that the program is in was interrupted: unless a handler comes first, its instruction is
    /// executed again.
    restart: bool,
    _interrupts: IgnoredInterrupts,
    _cpu: OneCpu,
}

/// The page in which system calls were before there was a vDSO. Instructions there are emulated by the kernel.
const VSYSCALL: std::ops::Range<u64> = 0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000;
/// The segment of 32-bit user code.
const USER32_CS: u64 = 0x23;
const PAGE_FAULT: u8 = 14;
/// A vector of interrupts: the local APIC timer's, as Linux has it.
const TIMER_VECTOR: u8 = 0xec;
/// How often progress is shown, in steps.
const PROGRESS_EVERY: u64 = 4096;

impl<'a> Recorder<'a> {
    pub(super) fn start(options: &'a Options) -> Result<Self, Error> {
        let most = options.profile.address_ranges;
        if options.ranges.len() > most as usize {
            return Err(Error::Ranges { most, wanted: options.ranges.len() });
        }
        let program =
            options.program.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let started = || {
            let cpu = OneCpu::new()?;
            let tracee = Tracee::start(&options.program, options.aslr)?;
            Ok((cpu, tracee))
        };
        let (cpu, tracee) = started().map_err(|error| Error::Start { program, error })?;
        part::remove_parts(&options.out);
        let mut recorder = Self {
            options,
            tracee,
            code: Code::default(),
            part: None,
            parts: vec![],
            ip: 0,
            mode: ExecMode::Bits64,
            signal: 0,
            restart: false,
            _interrupts: IgnoredInterrupts::new(),
            _cpu: cpu,
        };
        let registers = recorder.registers()?;
        recorder.arrive(&registers);
        recorder.refresh()?;
        Ok(recorder)
    }

    pub(super) fn run(mut self, progress: &mut dyn FnMut(Progress)) -> Result<Recording, Error> {
        let mut steps = 0;
        let ending = loop {
            if self.limit_reached() {
                self.end_part()?;
                break self
                    .tracee
                    .release(self.signal)
                    .map_err(|error| Error::Step { ip: self.ip, error })?;
            }
            if let Some(ending) = self.step()? {
                self.end_part()?;
                break ending;
            }
            steps += 1;
            if steps % PROGRESS_EVERY == 0 {
                progress(Progress {
                    steps,
                    bytes: self.part.as_ref().map_or(0, |part| part.hardware.bytes()),
                });
            }
        };
        Ok(Recording { parts: self.parts, ending })
    }

    fn limit_reached(&self) -> bool {
        let Some(limit) = self.options.limit else { return false };
        let ended: u64 = self.parts.iter().map(|part| part.truth.count()).sum();
        ended + self.part.as_ref().map_or(0, |part| part.hardware.truth().count()) >= limit
    }

    /// Up to the next stop.
    fn step(&mut self) -> Result<Option<Ending>, Error> {
        let at = self.ip;
        let bytes = self.fetch(at)?;
        let special = Special::of(bytes.as_slice(), self.mode);
        if let Some(pop @ Special::PopFlags { .. }) = special
            && self.signal == 0
            && !self.restart
        {
            let next = at + self.len(bytes);
            if self.stepping(flags::pop(&self.tracee, pop, self.len(bytes), self.mode))? {
                return self.retire(next, bytes).map(|()| None);
            }
        }
        let emulated = if VSYSCALL.contains(&at) { Some(self.return_address()?) } else { None };
        let stop = self.tracee.step(self.signal).map_err(|error| Error::Step { ip: at, error })?;
        let delivered = std::mem::take(&mut self.signal);
        match stop {
            Stop::Over(ending) => {
                if delivered == 0 {
                    self.enter_kernel(special, bytes)?;
                }
                return Ok(Some(ending));
            }
            Stop::Exec => {
                self.enter_kernel(special, bytes)?;
                self.exec()?;
            }
            Stop::Signal(signal) => self.signalled(signal)?,
            Stop::Trap if delivered != 0 && self.signal_code()? == Some(libc::SIGTRAP) => {
                // At the first instruction of the signal's handler.
                let registers = self.registers()?;
                self.arrive(&registers);
            }
            Stop::Trap => match emulated {
                Some(back) => self.emulated(back)?,
                None if self.restart => {
                    self.restart = false;
                    self.ip = at.wrapping_sub(SYSTEM_CALL_LEN);
                    let bytes = self.fetch(self.ip)?;
                    self.executed(Special::of(bytes.as_slice(), self.mode), bytes)?;
                }
                None => self.executed(special, bytes)?,
            },
        }
        Ok(None)
    }

    /// The instruction at `self.ip` was stepped.
    fn executed(&mut self, special: Option<Special>, bytes: Bytes) -> Result<(), Error> {
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
                if can_map_code(&registers) {
                    self.refresh()?;
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
        Ok(())
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
        let vector = match signal {
            libc::SIGSEGV | libc::SIGBUS => PAGE_FAULT,
            libc::SIGILL => 6,
            libc::SIGFPE => 0,
            _ => TIMER_VECTOR,
        };
        let Some(part) = &mut self.part else { return Ok(()) };
        let at = (self.ip, self.mode);
        if vector != TIMER_VECTOR && code > 0 {
            self.restart = false;
            part.hardware.deliver(DeliveryKind::Fault, vector, at)?;
        } else if !part.hardware.in_kernel() {
            part.hardware.deliver(DeliveryKind::Interrupt, TIMER_VECTOR, at)?;
        }
        Ok(())
    }

    /// A call into the vsyscall page: the fetch faults, the kernel does what was wanted and returns to the caller,
    /// and there the step ends.
    fn emulated(&mut self, back: u64) -> Result<(), Error> {
        if let Some(part) = &mut self.part {
            part.hardware.deliver(DeliveryKind::Fault, PAGE_FAULT, (self.ip, self.mode))?;
        }
        self.ip = back;
        let bytes = self.fetch(back)?;
        self.executed(Special::of(bytes.as_slice(), self.mode), bytes)
    }

    /// Another program takes the place of this one; up to its first instruction.
    fn exec(&mut self) -> Result<(), Error> {
        self.end_part()?;
        let error = |error| Error::Step { ip: 0, error };
        self.tracee.reopen_memory().map_err(error)?;
        let stop = self.tracee.step(0).map_err(error)?;
        if stop != Stop::Trap {
            return Err(error(io::Error::other("it did not stop where it begins")));
        }
        let registers = self.registers()?;
        self.arrive(&registers);
        self.code = Code::default();
        self.refresh()
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
            Ok(()) if self.part.is_none() => self.begin_part(&mappings),
            Ok(()) => Ok(()),
            Err(Changed) => self.begin_anew(),
        }
    }

    /// Ends the part, since code that was executed changes, and begins the next.
    fn begin_anew(&mut self) -> Result<(), Error> {
        self.end_part()?;
        self.code = Code::default();
        self.refresh()
    }

    /// Begins to trace, if all functions to trace are mapped.
    fn begin_part(&mut self, mappings: &[Mapping]) -> Result<(), Error> {
        let program = self.tracee.executable().map_err(|error| Error::Step { ip: self.ip, error })?;
        let symbols = Symbols::new(mappings, &program);
        let ranges: Option<Vec<_>> =
            self.options.ranges.iter().map(|range| range.resolve(&symbols)).collect();
        if let Some(ranges) = ranges {
            self.part = Some(Open::begin(self.options, self.parts.len() + 1, program, ranges)?);
        }
        Ok(())
    }

    fn end_part(&mut self) -> Result<(), Error> {
        if let Some(part) = self.part.take() {
            self.parts.push(part.end(self.options, (self.ip, self.mode), &self.code.sections())?);
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

/// The system call was interrupted and has not done its work. The program never sees these results: ERESTARTSYS,
/// ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
fn must_restart(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0 && matches!(-(registers.rax as i64), 512 | 513 | 514 | 516)
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
