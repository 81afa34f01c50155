//! The PT unit that traces a task: the model of the hardware, which is programmed through MSRs as a driver would do it,
//! and memory for its output.

use super::{RecordError, RecordOptions, truth::Truth};
use pugmark_decoder_core::hash::AddressHash;
use pugmark_model::intel::{IntelProcessor, IntelSettings, NearBranches};
use pugmark_model::{Context, Delivery, DeliveryKind, ExecMode, FlatMemory, Processor as _, Retired};
use std::{cell::Cell, rc::Rc};

/// Source: SDM vol. 4, Model-Specific Registers, "IA-32 Architectural MSRs".
mod msr {
    pub(super) const OUTPUT_BASE: u32 = 0x560;
    pub(super) const OUTPUT_MASK_PTRS: u32 = 0x561;
    pub(super) const CTL: u32 = 0x570;
    pub(super) const STATUS: u32 = 0x571;
    pub(super) const ADDR0_A: u32 = 0x580;
}

/// IA32_RTIT_STATUS.FilterEn, which is reserved without CPUID.14H.0:EBX[2].
const FILTER_EN: u64 = 1 << 0;
const IP_FILTERING: u32 = 1 << 2;
/// IA32_RTIT_STATUS.ContextEn and TriggerEn.
const OTHER_ENABLES: u64 = 0b11 << 1;
/// IA32_RTIT_STATUS.Error and Stopped.
const FAILED: u64 = 0b11 << 4;

/// The vector of page faults.
pub(super) const PAGE_FAULT: u8 = 14;
/// A vector of interrupts: the one that Linux uses for the local APIC timer.
pub(super) const TIMER_VECTOR: u8 = 0xec;

/// Physical memory: one page for the ToPA, which is Intel PT's table of output regions. At [`BUFFER`] is the only
/// region, which is written in a circle.
const RAM: u64 = 0x1000_0000;
const BUFFER: u64 = RAM + BUFFER_SIZE;
const BUFFER_SIZE: u64 = 4096 << BUFFER_ORDER;
const BUFFER_ORDER: u64 = 8;
/// In a ToPA entry: the END bit, and the position of the size.
const END: u64 = 1;
const SIZE_SHIFT: u64 = 6;

/// The output is fetched after this number of instructions and events. Each makes some hundred bytes at most, so the
/// buffer cannot overflow between two fetches.
pub(super) const FETCH_EVERY: u32 = 1024;

/// The duration of a system call or a signal in ticks of the TSC. An instruction takes one tick.
pub(super) const KERNEL_TICKS: u64 = 1000;

/// The TSC of all processors. A step of any of them advances it.
pub(super) type Clock = Rc<Cell<u64>>;

/// The value at which the clock begins.
pub(super) const FIRST_TSC: u64 = KERNEL_TICKS;

/// An address in the kernel. CR3 does not matter, because only CPL 3 is traced.
const KERNEL: Context =
    Context { ip: 0xffff_ffff_8100_0000, cs_base: 0, cr3: 0, cpl: 0, mode: ExecMode::Bits64, iflag: false };
const SYSRET: &[u8] = &[0x48, 0x0f, 0x07];
const WRMSR: &[u8] = &[0x0f, 0x30];

/// The PT unit of the processor that a task runs on, with the memory for its output.
pub(super) struct PtUnit<T> {
    processor: Box<IntelProcessor>,
    ram: Vec<u8>,
    /// The offset in the buffer of the first byte that is not fetched yet.
    fetched: u64,
    until_fetch: u32,
    /// The output that was fetched and not taken.
    trace: Vec<u8>,
    bytes: u64,
    clock: Clock,
    in_kernel: bool,
    /// The duration of the present visit to the kernel.
    visit: u64,
    /// The value of IA32_RTIT_CTL while tracing is on.
    ctl: u64,
    is_on: bool,
    /// The state in which its MSRs are written, and the one after that.
    at_writes: (Context, Context),
    /// The bits that IA32_RTIT_STATUS has while instructions are traced.
    enables: u64,
    /// True if all code is traced.
    traces_everywhere: bool,
    /// True if time alone leaves nothing in the trace: then in code that is traced everywhere only branches do.
    time_is_unseen: bool,
    truth: T,
}

impl<T: Truth> PtUnit<T> {
    /// Turns tracing on, in the kernel. `ranges` are the inclusive ranges of addresses to trace; none means all. With
    /// `in_kernel`, the program was there before; otherwise it comes there only for this, which takes no time.
    pub(super) fn start(
        options: &RecordOptions,
        ranges: &[(u64, u64)],
        (clock, in_kernel): (Clock, bool),
        truth: T,
    ) -> Result<Self, RecordError> {
        let after = Context { ip: KERNEL.ip + WRMSR.len() as u64, ..KERNEL };
        let mut unit = Self::new(options, ranges, clock, (KERNEL, after), truth)?;
        unit.turn_on(in_kernel)?;
        Ok(unit)
    }

    /// Turns tracing on for a machine at all levels, before the instruction at `at`. Its kernel is part of what is
    /// traced, so [`retire_at`](Self::retire_at) and [`deliver_at`](Self::deliver_at) report what it does.
    pub(super) fn start_machine(
        options: &RecordOptions,
        clock: Clock,
        at: Context,
        truth: T,
    ) -> Result<Self, RecordError> {
        let mut unit = Self::new(options, &[], clock, (at, at), truth)?;
        unit.turn_on(false)?;
        unit.in_kernel = false;
        Ok(unit)
    }

    fn new(
        options: &RecordOptions,
        ranges: &[(u64, u64)],
        clock: Clock,
        at_writes: (Context, Context),
        truth: T,
    ) -> Result<Self, RecordError> {
        let settings = IntelSettings { long_tnt: options.long_tnt, ..IntelSettings::default() };
        let mut unit = Self {
            processor: Box::new(IntelProcessor::new(options.profile, settings)),
            ram: vec![0; 2 * BUFFER_SIZE as usize],
            fetched: 0,
            until_fetch: FETCH_EVERY,
            trace: vec![],
            bytes: 0,
            clock,
            in_kernel: true,
            visit: 0,
            ctl: options.ctl(),
            is_on: false,
            at_writes,
            enables: OTHER_ENABLES
                | if options.profile.pt_features & IP_FILTERING != 0 { FILTER_EN } else { 0 },
            traces_everywhere: ranges.is_empty(),
            time_is_unseen: options.mtc.is_none() && options.cyc.is_none(),
            truth,
        };
        for (index, entry) in [BUFFER | BUFFER_ORDER << SIZE_SHIFT, RAM | END].iter().enumerate() {
            unit.ram[8 * index..8 * index + 8].copy_from_slice(&entry.to_le_bytes());
        }
        unit.write_msr(msr::OUTPUT_BASE, RAM)?;
        for (index, &(first, last)) in (0..).step_by(2).zip(ranges) {
            unit.write_msr(msr::ADDR0_A + index, first)?;
            unit.write_msr(msr::ADDR0_A + index + 1, last)?;
        }
        Ok(unit)
    }

    /// Turns tracing on again, in the kernel. With `in_kernel`, the program was there before.
    pub(super) fn turn_on(&mut self, in_kernel: bool) -> Result<(), RecordError> {
        self.write_msr(msr::CTL, self.ctl)?;
        (self.is_on, self.in_kernel) = (true, true);
        self.visit = if in_kernel { KERNEL_TICKS } else { 0 };
        Ok(())
    }

    /// Turns tracing off. Unless the program is in the kernel, an interrupt before the instruction at `at` takes it
    /// there first, in no time. Returns whether the program was in the kernel.
    pub(super) fn turn_off(&mut self, at: (u64, ExecMode)) -> Result<bool, RecordError> {
        let in_kernel = self.in_kernel;
        if !in_kernel {
            self.interrupt(DeliveryKind::Interrupt, PERFMON_VECTOR, at);
        }
        self.write_msr(msr::CTL, 0)?;
        self.is_on = false;
        Ok(in_kernel)
    }

    /// Returns the number of instructions traced so far.
    pub(super) fn count(&self) -> u64 {
        self.truth.count()
    }

    /// Returns the number and hash of all traced instructions. Nothing may be traced after that.
    pub(super) fn take_truth(&mut self) -> AddressHash {
        self.truth.take()
    }

    /// Returns the number of bytes of trace that were fetched so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the TSC.
    pub(super) fn tsc(&self) -> u64 {
        self.clock.get()
    }

    /// Advances the time.
    fn advance_clock(&self, ticks: u64) {
        self.clock.set(self.clock.get() + ticks);
    }

    /// Returns the number of transfers of control that nothing explains.
    pub(super) fn unexplained(&self) -> u32 {
        self.processor.violations().unexplained_transfers
    }

    /// Returns whether the program is in the kernel.
    pub(super) fn in_kernel(&self) -> bool {
        self.in_kernel
    }

    /// Reports that an instruction of the program retired. If the program was in the kernel, it returns to this
    /// instruction first.
    pub(super) fn retire(&mut self, before: (u64, ExecMode), after: Next, bytes: &[u8]) {
        self.return_to_user(before);
        if self.processor.read_msr(msr::STATUS).is_ok_and(|status| status & self.enables == self.enables) {
            self.truth.add(before.0);
        }
        self.advance_clock(1);
        let after = match after {
            Next::User(ip, mode) => user(ip, mode),
            Next::Kernel => KERNEL,
        };
        self.set_in_kernel(after.cpl == 0);
        self.instruction(user(before.0, before.1), after, bytes);
    }

    /// Reports that instructions retired, none of them a branch, and that the program continued at `next`.
    pub(super) fn retire_straight<'i>(
        &mut self,
        mode: ExecMode,
        instructions: impl Iterator<Item = (u64, &'i [u8])>,
        next: u64,
    ) {
        let mut instructions = instructions.peekable();
        while let Some((ip, bytes)) = instructions.next() {
            if self.traces_everywhere && self.time_is_unseen && !self.in_kernel {
                self.truth.add(ip);
                self.advance_clock(1);
                continue;
            }
            let next = instructions.peek().map_or(next, |(ip, _)| *ip);
            self.retire((ip, mode), Next::User(next, mode), bytes);
        }
    }

    /// Lets `report` report near branches of 64-bit code in the quick way, in the state `context`, whose address does
    /// not matter, if that makes no difference to the trace now: to the processor, the truth, and the time, which it
    /// advances itself. It must not report more than [`FETCH_EVERY`] of them, nor what ends when it is no longer quiet
    /// (see [`NearBranches::quiet_until`]). If it would make a difference, `report` is not called.
    pub(super) fn with_near_branches(
        &mut self,
        context: Context,
        report: impl FnOnce(&mut NearBranches<'_>, &mut T, &mut u64),
    ) {
        if !self.traces_everywhere || self.in_kernel {
            return;
        }
        let mut memory = memory(&mut self.ram);
        let Some(mut branches) = self.processor.near_branches(context, &mut memory) else { return };
        let mut tsc = self.clock.get();
        report(&mut branches, &mut self.truth, &mut tsc);
        self.clock.set(tsc);
        self.fetch();
    }

    /// Reports that an interrupt or exception takes the program to the kernel, before the instruction at `at` or caused
    /// by it.
    pub(super) fn deliver(&mut self, kind: DeliveryKind, vector: u8, at: (u64, ExecMode)) {
        self.return_to_user(at);
        self.advance_clock(1);
        self.interrupt(kind, vector, at);
    }

    /// Reports that an instruction of a machine retired.
    pub(super) fn retire_at(&mut self, before: Context, after: Context, bytes: &[u8]) {
        if self.is_on {
            self.truth.add(before.ip);
        }
        self.advance_clock(1);
        self.instruction(before, after, bytes);
    }

    /// Reports that instructions of a machine retired, none of them a branch, and that it continued at `next`.
    pub(super) fn retire_straight_at<'i>(
        &mut self,
        context: Context,
        instructions: impl Iterator<Item = (u64, &'i [u8])>,
        next: u64,
    ) {
        let mut instructions = instructions.peekable();
        while let Some((ip, bytes)) = instructions.next() {
            if self.traces_everywhere && self.time_is_unseen && self.is_on {
                self.truth.add(ip);
                self.advance_clock(1);
                continue;
            }
            let next = instructions.peek().map_or(next, |(ip, _)| *ip);
            self.retire_at(Context { ip, ..context }, Context { ip: next, ..context }, bytes);
        }
    }

    /// Reports the delivery of an interrupt or exception in a machine.
    pub(super) fn deliver_at(&mut self, kind: DeliveryKind, vector: u8, before: Context, after: Context) {
        self.advance_clock(1);
        let delivery = Delivery { kind, vector, before, after, cr2: None, tsc: self.tsc() };
        self.processor.deliver(&delivery, &mut memory(&mut self.ram));
        self.fetch_if_due();
    }

    /// Turns tracing of a machine on again, before the instruction at `at`.
    pub(super) fn go_on_at(&mut self, at: Context) -> Result<(), RecordError> {
        self.at_writes = (at, at);
        self.is_on = true;
        self.write_msr(msr::CTL, self.ctl)
    }

    /// Turns tracing of a machine off, if it is on, before the instruction at `at`.
    pub(super) fn finish_at(&mut self, at: Context) -> Result<(), RecordError> {
        self.at_writes = (at, at);
        if std::mem::take(&mut self.is_on) { self.write_msr(msr::CTL, 0) } else { Ok(()) }
    }

    fn interrupt(&mut self, kind: DeliveryKind, vector: u8, at: (u64, ExecMode)) {
        self.set_in_kernel(true);
        let before = user(at.0, at.1);
        let delivery = Delivery { kind, vector, before, after: KERNEL, cr2: None, tsc: self.tsc() };
        self.processor.deliver(&delivery, &mut memory(&mut self.ram));
        self.fetch_if_due();
    }

    /// Ends the trace: turns tracing off, if it is on, before the instruction at `at`.
    pub(super) fn finish(&mut self, at: (u64, ExecMode)) -> Result<(), RecordError> {
        if self.is_on {
            self.advance_clock(u64::from(!self.in_kernel));
            self.turn_off(at)?;
        }
        let status = self.processor.read_msr(msr::STATUS).unwrap_or_default();
        let violations = self.processor.violations();
        assert!(status & FAILED == 0 && violations.writes_outside_memory == 0, "the output is set up right");
        self.fetch();
        Ok(())
    }

    /// Lets `take` take the trace that was made since the last call. It ends with a whole packet.
    pub(super) fn take_trace<R>(&mut self, take: impl FnOnce(&[u8]) -> R) -> R {
        self.fetch();
        let taken = take(&self.trace);
        self.trace.clear();
        taken
    }

    /// Returns how much of the trace was made and not taken, in bytes; some may be missing.
    pub(super) fn waiting(&self) -> usize {
        self.trace.len()
    }

    fn set_in_kernel(&mut self, in_kernel: bool) {
        (self.in_kernel, self.visit) = (in_kernel, KERNEL_TICKS);
    }

    /// Returns from the kernel, if the program is there.
    fn return_to_user(&mut self, (ip, mode): (u64, ExecMode)) {
        if !std::mem::take(&mut self.in_kernel) {
            return;
        }
        self.advance_clock(self.visit);
        self.instruction(KERNEL, user(ip, mode), SYSRET);
    }

    fn instruction(&mut self, before: Context, after: Context, bytes: &[u8]) {
        let retired = Retired { before, after, bytes, tsc: self.tsc(), operand: 0 };
        self.processor.retire(&retired, &mut memory(&mut self.ram));
        self.fetch_if_due();
    }

    fn write_msr(&mut self, number: u32, value: u64) -> Result<(), RecordError> {
        let (before, after) = self.at_writes;
        let at = Retired { before, after, bytes: WRMSR, tsc: self.tsc(), operand: 0 };
        let written = self.processor.write_msr(number, value, &at, &mut memory(&mut self.ram));
        written.map_err(|_| RecordError::Refused { msr: number, value })
    }

    fn fetch_if_due(&mut self) {
        self.until_fetch -= 1;
        if self.until_fetch == 0 {
            self.fetch();
        }
    }

    /// Moves the new output from the buffer to the trace.
    fn fetch(&mut self) {
        self.until_fetch = FETCH_EVERY;
        let end = self.processor.read_msr(msr::OUTPUT_MASK_PTRS).unwrap_or_default() >> 32;
        let buffer = &self.ram[(BUFFER - RAM) as usize..];
        let (fetched, end) = (self.fetched as usize, end as usize);
        let pieces =
            if end < fetched { [&buffer[fetched..], &buffer[..end]] } else { [&buffer[fetched..end], &[]] };
        for piece in pieces {
            self.trace.extend_from_slice(piece);
            self.bytes += piece.len() as u64;
        }
        self.fetched = end as u64;
    }
}

/// The place after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// An instruction of the program.
    User(u64, ExecMode),
    /// The kernel.
    Kernel,
}

/// The vector of the interrupt that ends a trace while the program is in user mode.
const PERFMON_VECTOR: u8 = 0xf0;

/// Returns the state of a program at an address.
pub(super) fn user(ip: u64, mode: ExecMode) -> Context {
    Context { ip, cs_base: 0, cr3: 0, cpl: 3, mode, iflag: true }
}

fn memory(ram: &mut [u8]) -> FlatMemory<'_> {
    FlatMemory { base: RAM, bytes: ram }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::packet::{Packet, Packets};
    use pugmark_model::intel::IntelProfile;

    const AT: u64 = 0x40_1000;
    const MODE: ExecMode = ExecMode::Bits64;
    const NOP: &[u8] = &[0x90];
    const SYSCALL: &[u8] = &[0x0f, 0x05];
    /// A jump to the next instruction.
    const JMP: &[u8] = &[0xeb, 0];

    fn options(profile: &str) -> RecordOptions {
        RecordOptions {
            profile: IntelProfile::by_name(profile).expect(profile),
            ..RecordOptions::new(["true"])
        }
    }

    /// Returns the trace that `make` produces, and its truth: the number and hash of the traced instructions.
    fn traced(
        options: &RecordOptions,
        ranges: &[(u64, u64)],
        make: impl FnOnce(&mut PtUnit<AddressHash>),
    ) -> (Vec<u8>, AddressHash) {
        let clock = (Rc::new(FIRST_TSC.into()), true);
        let mut unit = PtUnit::start(options, ranges, clock, AddressHash::new()).unwrap();
        make(&mut unit);
        unit.finish((AT, MODE)).unwrap();
        let (trace, bytes, truth) = (unit.take_trace(<[u8]>::to_vec), unit.bytes(), unit.take_truth());
        assert_eq!((trace.len() as u64, is_well_formed(&trace)), (bytes, true));
        (trace, truth)
    }

    fn is_well_formed(trace: &[u8]) -> bool {
        let mut packets = Packets::new(trace);
        packets.sync_forward().is_some() && packets.all(|packet| packet.is_ok())
    }

    /// Returns the number of packets that turn tracing on (TIP.PGE) and off (TIP.PGD).
    fn switches(trace: &[u8]) -> (u64, u64) {
        let mut packets = Packets::new(trace);
        packets.sync_forward().unwrap();
        let (mut on, mut off) = (0, 0);
        for (_, packet) in packets.map(Result::unwrap) {
            on += u64::from(matches!(packet, Packet::TipPge(_)));
            off += u64::from(matches!(packet, Packet::TipPgd(_)));
        }
        (on, off)
    }

    #[test]
    fn a_trace_is_whole_however_often_the_output_comes_round() {
        let calls = 2 * BUFFER_SIZE / 8;
        let (trace, truth) = traced(&options("skylake"), &[], |unit| {
            for call in 0..calls {
                // Alternate between two distant addresses, so that each takes the largest number of bytes in its
                // packet.
                let at = AT + ((call % 2) << 40);
                unit.retire((at, MODE), Next::Kernel, SYSCALL);
            }
        });
        assert!(trace.len() as u64 > 2 * BUFFER_SIZE, "{:#x}", trace.len());
        assert_eq!((truth.count(), switches(&trace)), (calls, (calls, calls)));
    }

    #[test]
    fn a_step_takes_one_tick_and_a_visit_to_the_kernel_a_thousand() {
        traced(&options("skylake"), &[], |unit| {
            assert_eq!((unit.tsc(), unit.in_kernel(), unit.bytes()), (1000, true, 0));
            let next = |ip| Next::User(ip, MODE);
            unit.retire((AT, MODE), next(AT + 1), NOP);
            assert_eq!((unit.tsc(), unit.in_kernel()), (2001, false));
            unit.retire((AT + 1, MODE), Next::Kernel, SYSCALL);
            assert_eq!((unit.tsc(), unit.in_kernel()), (2002, true));
            unit.retire((AT + 3, MODE), next(AT + 4), NOP);
            unit.deliver(DeliveryKind::Interrupt, 0x20, (AT + 4, MODE));
            assert_eq!((unit.tsc(), unit.in_kernel()), (3004, true));
            // A fault while the program is in the kernel: it returns to the program first, and then enters the kernel
            // again.
            unit.deliver(DeliveryKind::Fault, 14, (AT + 4, MODE));
            assert_eq!((unit.tsc(), unit.in_kernel(), unit.unexplained()), (4005, true, 0));
            assert_eq!(unit.count(), 3);
        });
    }

    #[test]
    fn a_transfer_that_no_instruction_makes_is_counted() {
        traced(&options("skylake"), &[], |unit| {
            for (bytes, next, count) in [(NOP, AT + 1, 0), (NOP, AT + 2, 1), (JMP, AT + 9, 1), (NOP, AT, 2)] {
                unit.retire((AT, MODE), Next::User(next, MODE), bytes);
                assert_eq!(unit.unexplained(), count, "{bytes:x?} {next:x}");
            }
        });
    }

    #[test]
    fn a_trace_ends_in_the_kernel_where_the_program_is_there_and_by_an_interrupt_elsewhere() {
        for (after, expected) in [(Next::Kernel, (1, 1)), (Next::User(AT, MODE), (1, 1))] {
            let (trace, truth) = traced(&options("skylake"), &[], |unit| {
                unit.retire((AT - 2, MODE), after, SYSCALL);
                assert_eq!(unit.in_kernel(), after == Next::Kernel);
            });
            assert_eq!((switches(&trace), truth.count()), (expected, 1), "{after:?}");
        }
    }

    /// Straight code is not reported to the model where that makes no difference: this test checks that it makes
    /// none.
    #[test]
    fn straight_code_makes_the_same_trace_in_one_go_and_one_by_one() {
        let plain = options("skylake");
        for (name, options, ranges) in [
            ("plain", plain.clone(), &[][..]),
            ("PSB often", RecordOptions { psb: 0, ret_compression: false, ..plain.clone() }, &[]),
            ("TSC", RecordOptions { tsc: true, ..plain.clone() }, &[]),
            ("MTC", RecordOptions { tsc: true, mtc: Some(0), ..plain.clone() }, &[]),
            ("CYC", RecordOptions { cyc: Some(0), ..plain.clone() }, &[]),
            ("ranges", RecordOptions { ranges: vec!["0x1-0x2".parse().unwrap()], ..plain }, &[(AT, AT + 20)]),
        ] {
            let make = |in_one_go: bool| {
                traced(&options, ranges, |unit| {
                    for round in 0..3000u64 {
                        let at = AT + round % 7 * 0x1_0000;
                        let nops = 1 + round % 40;
                        let last = at + nops;
                        if in_one_go {
                            unit.retire_straight(MODE, (at..last).map(|ip| (ip, NOP)), last);
                        } else {
                            for ip in at..last {
                                unit.retire((ip, MODE), Next::User(ip + 1, MODE), NOP);
                            }
                        }
                        let next = AT + (round + 1) % 7 * 0x1_0000;
                        unit.retire((last, MODE), Next::User(next, MODE), &[0xff, 0xe0]);
                        if round % 100 == 0 {
                            unit.deliver(DeliveryKind::Interrupt, 0x20, (next, MODE));
                        }
                    }
                    assert_eq!(unit.unexplained(), 0, "{name}");
                })
            };
            let (one_by_one, in_one_go) = (make(false), make(true));
            assert!(one_by_one.0.len() > 4000, "{name}");
            assert!(one_by_one == in_one_go, "{name}");
        }
    }

    #[test]
    fn what_is_outside_of_the_ranges_is_not_counted() {
        for (profile, ranges, count) in [
            ("skylake", &[][..], 4),
            ("skylake", &[(AT + 2, AT + 2)], 1),
            ("skylake", &[(AT + 2, AT + 4)], 2),
            ("skylake", &[(AT, AT), (AT + 6, AT + 6)], 2),
            // This processor has no address ranges, and so no FilterEn bit.
            ("broadwell", &[], 4),
        ] {
            let plain = options(profile);
            let range = || "0x1-0x2".parse().unwrap();
            let options = RecordOptions { ranges: ranges.iter().map(|_| range()).collect(), ..plain };
            let (_, truth) = traced(&options, ranges, |unit| {
                // Jumps, because tracing starts only at a branch into a range.
                for at in (AT..AT + 8).step_by(2) {
                    unit.retire((at, MODE), Next::User(at + 2, MODE), JMP);
                }
            });
            assert_eq!(truth.count(), count, "{profile} {ranges:x?}");
        }
    }
}
