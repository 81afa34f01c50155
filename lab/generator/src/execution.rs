//! The execution of a program.

use fastrand::Rng;
use pugmark_model::{Context, Delivery, DeliveryKind, ExecMode, Retired};

use crate::program::{Flow, Program, TracingSwitch};

/// One step of an execution.
#[derive(Debug, Clone, Copy)]
pub enum ExecutionStep<'a> {
    /// An instruction retired.
    Retired(Retired<'a>),
    /// The WRMSR that turns tracing on or off retired.
    Switch(TracingSwitch, Retired<'a>),
    /// An interrupt or exception was delivered.
    Delivered(Delivery),
}

/// Frequencies of unforeseen events, in 65536ths of the cases where the event is possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRates {
    /// Interrupts, before any instruction while RFLAGS.IF is set.
    pub interrupt: u16,
    /// Traps, after any instruction.
    pub trap: u16,
    /// Page faults, at instructions with a memory operand.
    pub fault: u16,
    /// Maximum number of time-stamp counter ticks per instruction.
    pub ticks: u64,
    /// Maximum depth of a recursion.
    pub depth: u32,
}

impl Default for EventRates {
    fn default() -> Self {
        Self { interrupt: 300, trap: 100, fault: 10_000, ticks: 12, depth: 140 }
    }
}

/// Maximum nesting of interrupts within interrupts.
const MAX_NESTED: usize = 4;

/// The address spaces. Some differ only in their low 12 bits: PCID, or PWT and PCD.
const CR3: [u64; 4] = [0x0010_0000, 0x0020_0000, 0x0000_000f_ffff_f000, 0x0010_0018];

/// Vector of a page fault.
const PAGE_FAULT: u8 = 14;
const INVALID_OPCODE: u8 = 6;
const DEBUG: u8 = 1;
const NMI: u8 = 2;

/// A return point on the execution's stack.
#[derive(Debug, Clone, Copy)]
enum ReturnPoint {
    Near(u64),
    Far(u64, ExecMode),
    Syscall(Context),
    /// The context that IRET restores; `true` if that IRET ends an NMI.
    Interrupt(Context, bool),
}

/// The execution of a program: an iterator that never ends.
#[derive(Debug, Clone)]
pub struct Execution<'a> {
    program: &'a Program,
    rng: Rng,
    rates: EventRates,
    at: Context,
    tsc: u64,
    frames: Vec<ReturnPoint>,
    /// An instruction has just retired, so a trap may follow.
    retired: bool,
    /// No interrupt is delivered before the next instruction (STI shadow).
    shadow: bool,
    /// Levels that a recursion still descends; `None` outside one.
    recursion: Option<u32>,
    nmi_wanted: bool,
    in_nmi: bool,
}

impl<'a> Execution<'a> {
    /// Starts the execution for `seed` at the program's start: in the kernel, with interrupts disabled.
    #[must_use]
    pub fn new(program: &'a Program, seed: u64, rates: EventRates) -> Self {
        let at = Context {
            ip: program.start(),
            cs_base: 0,
            cr3: CR3[0],
            cpl: 0,
            mode: ExecMode::Bits64,
            iflag: false,
        };
        Self {
            program,
            rng: Rng::with_seed(seed ^ 0x5761_6c6b),
            rates,
            at,
            tsc: 1 << 20,
            frames: Vec::new(),
            retired: false,
            shadow: false,
            recursion: None,
            nmi_wanted: false,
            in_nmi: false,
        }
    }

    /// Returns the state before the next step.
    #[must_use]
    pub fn context(&self) -> Context {
        self.at
    }

    /// Requests an NMI: it is delivered before the next instruction, or after the NMI handler that is running. The
    /// handler turns tracing off and on again.
    pub fn request_nmi(&mut self) {
        self.nmi_wanted = true;
    }

    /// Draws whether an event with this rate happens now.
    fn chance(&mut self, rate: u16) -> bool {
        rate != 0 && self.rng.u16(..) < rate
    }

    fn one(&mut self, of: &[u64]) -> u64 {
        of[self.rng.usize(..of.len())]
    }

    fn interrupted(&self) -> usize {
        self.frames.iter().filter(|frame| matches!(frame, ReturnPoint::Interrupt(..))).count()
    }

    /// Returns the event that is delivered before the next instruction, if any.
    fn unforeseen(&mut self) -> Option<ExecutionStep<'a>> {
        if self.nmi_wanted && !self.in_nmi && !self.shadow {
            self.nmi_wanted = false;
            self.in_nmi = true;
            return Some(self.deliver(DeliveryKind::Nmi, NMI, self.at, None));
        }
        let retired = std::mem::take(&mut self.retired);
        if retired && !self.shadow && self.interrupted() < MAX_NESTED && self.chance(self.rates.trap) {
            return Some(self.deliver(DeliveryKind::Trap, DEBUG, self.at, None));
        }
        let open = self.at.iflag && !self.shadow && self.interrupted() < MAX_NESTED;
        if open && self.chance(self.rates.interrupt) {
            let vector = self.rng.u8(32..);
            return Some(self.deliver(DeliveryKind::Interrupt, vector, self.at, None));
        }
        None
    }

    /// Enters a handler whose IRET restores `back`.
    fn deliver(
        &mut self,
        kind: DeliveryKind,
        vector: u8,
        back: Context,
        cr2: Option<u64>,
    ) -> ExecutionStep<'a> {
        let before = self.at;
        let entries = &self.program.entries;
        let ip = match kind {
            DeliveryKind::Nmi => entries.nmi,
            _ => entries.handlers[usize::from(vector) % entries.handlers.len()],
        };
        self.frames.push(ReturnPoint::Interrupt(back, kind == DeliveryKind::Nmi));
        // Exceptions use trap gates, which do not change IF; interrupts use interrupt gates.
        let iflag = before.iflag && !matches!(kind, DeliveryKind::Interrupt | DeliveryKind::Nmi);
        self.at = Context { ip, cs_base: 0, cr3: before.cr3, cpl: 0, mode: ExecMode::Bits64, iflag };
        self.tick();
        ExecutionStep::Delivered(Delivery { kind, vector, before, after: self.at, cr2, tsc: self.tsc })
    }

    fn tick(&mut self) {
        self.tsc += self.rng.u64(..=self.rates.ticks);
    }

    /// Pops one or more `Near` frames and returns the address of the last.
    fn unwind(&mut self) -> u64 {
        let deep = self.frames.iter().rev().take_while(|frame| matches!(frame, ReturnPoint::Near(_))).count();
        let drop = 1 + self.rng.usize(..deep.clamp(1, 5));
        let mut to = self.at.ip;
        for _ in 0..drop.min(deep) {
            if let Some(ReturnPoint::Near(ip)) = self.frames.pop() {
                to = ip;
            }
        }
        to
    }

    /// Returns the context after the instruction, or `None` if an event is delivered instead.
    fn execute(&mut self, flow: &Flow, next: Context) -> Option<Context> {
        let mut after = next;
        match flow {
            Flow::Next | Flow::MayFault | Flow::Rep | Flow::Ptwrite | Flow::Wrmsr(_) | Flow::CallNext => {}
            Flow::Undefined | Flow::SoftwareInterrupt(_) => return None,
            Flow::Cond { target, taken } => {
                if self.rng.u8(..) < *taken {
                    after.ip = *target;
                }
            }
            Flow::EndRecursion { target } => {
                let depth = self.rates.depth;
                let left = self.recursion.unwrap_or_else(|| self.rng.u32(..=depth));
                self.recursion = left.checked_sub(1);
                if left == 0 {
                    after.ip = *target;
                }
            }
            Flow::Jump(target) | Flow::FarJump(target) => after.ip = *target,
            Flow::IndirectJump(targets) => after.ip = self.one(targets),
            Flow::Call(target) => {
                self.frames.push(ReturnPoint::Near(next.ip));
                after.ip = *target;
            }
            Flow::IndirectCall(targets) => {
                self.frames.push(ReturnPoint::Near(next.ip));
                after.ip = self.one(targets);
            }
            Flow::FarCall(targets, mode) => {
                self.frames.push(ReturnPoint::Far(next.ip, self.at.mode));
                after.ip = self.one(targets);
                after.mode = *mode;
            }
            Flow::Unwind => after.ip = self.unwind(),
            Flow::Return | Flow::FarReturn | Flow::Sysret | Flow::Iret => match self.frames.pop() {
                Some(ReturnPoint::Near(ip)) => after.ip = ip,
                Some(ReturnPoint::Far(ip, mode)) => (after.ip, after.mode) = (ip, mode),
                Some(ReturnPoint::Syscall(back)) => after = Context { cr3: self.at.cr3, ..back },
                Some(ReturnPoint::Interrupt(back, nmi)) => {
                    after = Context { cr3: self.at.cr3, ..back };
                    self.in_nmi &= !nmi;
                }
                // Never happens in a generated program: no frame is left.
                None => {}
            },
            Flow::EnterUser => {
                after = Context { ip: self.program.entries.user, cpl: 3, iflag: true, ..next };
            }
            Flow::Syscall => {
                self.frames.push(ReturnPoint::Syscall(next));
                after = Context { ip: self.program.entries.syscall, cpl: 0, iflag: false, ..next };
            }
            Flow::MovCr3 => after.cr3 = self.one(&CR3),
            Flow::Sti => {
                self.shadow = !self.at.iflag;
                after.iflag = true;
            }
            Flow::Cli => after.iflag = false,
        }
        Some(after)
    }
}

impl<'a> Iterator for Execution<'a> {
    type Item = ExecutionStep<'a>;

    /// Returns the next step; `None` only at an address without an instruction, which no generated program reaches.
    fn next(&mut self) -> Option<ExecutionStep<'a>> {
        let program = self.program;
        let instruction = program.instructions.get(&self.at.ip)?;
        let next = Context { ip: self.at.ip + instruction.len as u64, ..self.at };
        if let Some(step) = self.unforeseen() {
            return Some(step);
        }
        if self.interrupted() < MAX_NESTED {
            let rate = self.rates.fault;
            match instruction.flow {
                Flow::MayFault if self.chance(rate) => {
                    let cr2 = Some(self.rng.u64(..));
                    return Some(self.deliver(DeliveryKind::Fault, PAGE_FAULT, self.at, cr2));
                }
                Flow::Rep if self.at.iflag && self.chance(rate) => {
                    let vector = self.rng.u8(32..);
                    return Some(self.deliver(DeliveryKind::Interrupt, vector, self.at, None));
                }
                _ => {}
            }
        }
        self.shadow = false;
        let before = self.at;
        let Some(after) = self.execute(&instruction.flow, next) else {
            return Some(match instruction.flow {
                Flow::SoftwareInterrupt(vector) => {
                    self.deliver(DeliveryKind::SoftwareInterrupt, vector, next, None)
                }
                _ => self.deliver(DeliveryKind::Fault, INVALID_OPCODE, next, None),
            });
        };
        self.at = after;
        self.retired = true;
        self.tick();
        let bytes = program.bytes_at(before.ip).get(..instruction.len)?;
        let operand = if matches!(instruction.flow, Flow::Ptwrite) { self.rng.u64(..) } else { 0 };
        let retired = Retired { before, after, bytes, tsc: self.tsc, operand };
        Some(match instruction.flow {
            Flow::Wrmsr(switch) => ExecutionStep::Switch(switch, retired),
            _ => ExecutionStep::Retired(retired),
        })
    }
}
