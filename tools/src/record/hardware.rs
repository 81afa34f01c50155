//! The tracing hardware that watches the program: the model, programmed by MSRs as a driver would, and memory for its
//! output.

use super::{Error, Options};
use pugmark_decoder_core::hash::AddressHash;
use pugmark_model::intel::{Processor, Settings};
use pugmark_model::{Context, Delivery, DeliveryKind, ExecMode, FlatMemory, Retired};
use std::{cell::Cell, io::Write, rc::Rc};

/// Source: SDM vol. 4, Model-Specific Registers, "IA-32 Architectural MSRs".
mod msr {
    pub(super) const OUTPUT_BASE: u32 = 0x560;
    pub(super) const OUTPUT_MASK_PTRS: u32 = 0x561;
    pub(super) const CTL: u32 = 0x570;
    pub(super) const STATUS: u32 = 0x571;
    pub(super) const ADDR0_A: u32 = 0x580;
}

/// IA32_RTIT_STATUS: FilterEn, which is reserved without CPUID.14H.0:EBX[2].
const FILTER_EN: u64 = 1 << 0;
const IP_FILTERING: u32 = 1 << 2;
/// IA32_RTIT_STATUS: ContextEn, TriggerEn.
const OTHER_ENABLES: u64 = 0b11 << 1;
/// IA32_RTIT_STATUS.Error and Stopped.
const FAILED: u64 = 0b11 << 4;

/// Physical memory: the ToPA's page, and from [`BUFFER`] on the one region of output, which is written over and over.
const RAM: u64 = 0x1000_0000;
const BUFFER: u64 = RAM + BUFFER_SIZE;
const BUFFER_SIZE: u64 = 4096 << BUFFER_ORDER;
const BUFFER_ORDER: u64 = 8;
/// ToPA entries: END; the shift of the size.
const END: u64 = 1;
const SIZE_SHIFT: u64 = 6;

/// After so many instructions and events the output is fetched. One makes some hundred bytes at most, so that the
/// buffer cannot come round meanwhile.
const FETCH_EVERY: u32 = 1024;

/// What a system call or a signal takes, in ticks of the TSC. An instruction takes one.
const KERNEL_TICKS: u64 = 1000;

/// The TSC of all processors, which a step of any of them moves.
pub(super) type Clock = Rc<Cell<u64>>;

/// Where it begins.
pub(super) const BEGIN: u64 = KERNEL_TICKS;

/// Somewhere in the kernel. CR3 is of no meaning where only CPL 3 is traced.
const KERNEL: Context =
    Context { ip: 0xffff_ffff_8100_0000, cs_base: 0, cr3: 0, cpl: 0, mode: ExecMode::Bits64, iflag: false };
const SYSRET: &[u8] = &[0x48, 0x0f, 0x07];
const WRMSR: &[u8] = &[0x0f, 0x30];

/// One trace while it is made.
pub(super) struct Hardware<W> {
    processor: Box<Processor>,
    ram: Vec<u8>,
    /// Where in the buffer the output is that comes next.
    fetched: u64,
    until_fetch: u32,
    trace: W,
    bytes: u64,
    clock: Clock,
    in_kernel: bool,
    /// What IA32_RTIT_STATUS has while instructions are traced.
    enables: u64,
    truth: AddressHash,
}

impl<W: Write> Hardware<W> {
    /// Turns tracing on, in the kernel. `ranges`: the inclusive ranges of addresses that are traced; all, if none.
    pub(super) fn start(
        options: &Options,
        ranges: &[(u64, u64)],
        clock: Clock,
        trace: W,
    ) -> Result<Self, Error> {
        let settings = Settings { long_tnt: options.long_tnt, ..Settings::default() };
        let mut hardware = Self {
            processor: Box::new(Processor::new(options.profile, settings)),
            ram: vec![0; 2 * BUFFER_SIZE as usize],
            fetched: 0,
            until_fetch: FETCH_EVERY,
            trace,
            bytes: 0,
            clock,
            in_kernel: true,
            enables: OTHER_ENABLES
                | if options.profile.pt_features & IP_FILTERING != 0 { FILTER_EN } else { 0 },
            truth: AddressHash::new(),
        };
        for (index, entry) in [BUFFER | BUFFER_ORDER << SIZE_SHIFT, RAM | END].iter().enumerate() {
            hardware.ram[8 * index..8 * index + 8].copy_from_slice(&entry.to_le_bytes());
        }
        hardware.write_msr(msr::OUTPUT_BASE, RAM)?;
        hardware.write_msr(msr::OUTPUT_MASK_PTRS, 0)?;
        for (index, &(first, last)) in (0..).step_by(2).zip(ranges) {
            hardware.write_msr(msr::ADDR0_A + index, first)?;
            hardware.write_msr(msr::ADDR0_A + index + 1, last)?;
        }
        hardware.write_msr(msr::CTL, options.ctl())?;
        Ok(hardware)
    }

    /// What was traced so far.
    pub(super) fn truth(&self) -> AddressHash {
        self.truth
    }

    /// How many bytes of trace there are so far, some of them still inside the processor.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The TSC.
    pub(super) fn tsc(&self) -> u64 {
        self.clock.get()
    }

    /// Time goes on by so many ticks.
    fn pass(&self, ticks: u64) {
        self.clock.set(self.clock.get() + ticks);
    }

    /// Transfers of control that nothing explains.
    pub(super) fn unexplained(&self) -> u32 {
        self.processor.violations().unexplained_transfers
    }

    /// The program is in the kernel.
    pub(super) fn in_kernel(&self) -> bool {
        self.in_kernel
    }

    /// An instruction of the program retired. When the program was in the kernel, this is where it came back to.
    pub(super) fn retire(&mut self, before: (u64, ExecMode), after: Next, bytes: &[u8]) -> Result<(), Error> {
        self.enter(before)?;
        if self.processor.read_msr(msr::STATUS).is_ok_and(|status| status & self.enables == self.enables) {
            self.truth.add(before.0);
        }
        self.pass(1);
        let after = match after {
            Next::User(ip, mode) => user(ip, mode),
            Next::Kernel => KERNEL,
        };
        self.in_kernel = after.cpl == 0;
        self.instruction(user(before.0, before.1), after, bytes)
    }

    /// An interrupt or exception takes the program to the kernel; in front of the instruction at `at`, or by it.
    pub(super) fn deliver(
        &mut self,
        kind: DeliveryKind,
        vector: u8,
        at: (u64, ExecMode),
    ) -> Result<(), Error> {
        self.enter(at)?;
        self.in_kernel = true;
        self.pass(1);
        let before = user(at.0, at.1);
        let delivery = Delivery { kind, vector, before, after: KERNEL, cr2: None, tsc: self.tsc() };
        self.processor.deliver(&delivery, &mut memory(&mut self.ram));
        self.settle()
    }

    /// Turns tracing off, in front of the instruction at `at` unless the program is in the kernel.
    pub(super) fn finish(&mut self, at: (u64, ExecMode)) -> Result<(), Error> {
        if !self.in_kernel {
            self.deliver(DeliveryKind::Interrupt, PERFMON_VECTOR, at)?;
        }
        self.write_msr(msr::CTL, 0)?;
        let status = self.processor.read_msr(msr::STATUS).unwrap_or_default();
        let violations = self.processor.violations();
        assert!(status & FAILED == 0 && violations.writes_outside_memory == 0, "the output is set up right");
        self.fetch()?;
        self.trace.flush().map_err(Error::Write)
    }

    /// Back from the kernel, if the program was there.
    fn enter(&mut self, (ip, mode): (u64, ExecMode)) -> Result<(), Error> {
        if !std::mem::take(&mut self.in_kernel) {
            return Ok(());
        }
        self.pass(KERNEL_TICKS);
        self.instruction(KERNEL, user(ip, mode), SYSRET)
    }

    fn instruction(&mut self, before: Context, after: Context, bytes: &[u8]) -> Result<(), Error> {
        let retired = Retired { before, after, bytes, tsc: self.tsc(), operand: 0 };
        self.processor.retire(&retired, &mut memory(&mut self.ram));
        self.settle()
    }

    fn write_msr(&mut self, number: u32, value: u64) -> Result<(), Error> {
        let after = Context { ip: KERNEL.ip + WRMSR.len() as u64, ..KERNEL };
        let at = Retired { before: KERNEL, after, bytes: WRMSR, tsc: self.tsc(), operand: 0 };
        let written = self.processor.write_msr(number, value, &at, &mut memory(&mut self.ram));
        written.map_err(|_| Error::Refused { msr: number, value })
    }

    fn settle(&mut self) -> Result<(), Error> {
        self.until_fetch -= 1;
        if self.until_fetch == 0 {
            self.fetch()?;
        }
        Ok(())
    }

    /// Moves what is new in the buffer to the trace.
    fn fetch(&mut self) -> Result<(), Error> {
        self.until_fetch = FETCH_EVERY;
        let end = self.processor.read_msr(msr::OUTPUT_MASK_PTRS).unwrap_or_default() >> 32;
        let buffer = &self.ram[(BUFFER - RAM) as usize..];
        let (fetched, end) = (self.fetched as usize, end as usize);
        let pieces =
            if end < fetched { [&buffer[fetched..], &buffer[..end]] } else { [&buffer[fetched..end], &[]] };
        for piece in pieces {
            self.trace.write_all(piece).map_err(Error::Write)?;
            self.bytes += piece.len() as u64;
        }
        self.fetched = end as u64;
        Ok(())
    }
}

/// What comes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// An instruction of the program.
    User(u64, ExecMode),
    /// The kernel.
    Kernel,
}

/// The interrupt by which a trace ends while the program goes on.
const PERFMON_VECTOR: u8 = 0xf0;

fn user(ip: u64, mode: ExecMode) -> Context {
    Context { ip, cs_base: 0, cr3: 0, cpl: 3, mode, iflag: true }
}

fn memory(ram: &mut [u8]) -> FlatMemory<'_> {
    FlatMemory { base: RAM, bytes: ram }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::{Packet, packet::Packets};
    use pugmark_model::intel::Profile;

    const AT: u64 = 0x40_1000;
    const MODE: ExecMode = ExecMode::Bits64;
    const NOP: &[u8] = &[0x90];
    const SYSCALL: &[u8] = &[0x0f, 0x05];
    /// To the instruction that follows it.
    const JMP: &[u8] = &[0xeb, 0];

    fn options(profile: &str) -> Options {
        Options { profile: Profile::by_name(profile).expect(profile), ..Options::new(["true"]) }
    }

    /// The trace of what is made, and the truth of it.
    fn traced(
        options: &Options,
        ranges: &[(u64, u64)],
        make: impl FnOnce(&mut Hardware<&mut Vec<u8>>),
    ) -> (Vec<u8>, AddressHash) {
        let mut trace = vec![];
        let mut hardware = Hardware::start(options, ranges, Rc::new(BEGIN.into()), &mut trace).unwrap();
        make(&mut hardware);
        hardware.finish((AT, MODE)).unwrap();
        let (bytes, truth) = (hardware.bytes(), hardware.truth());
        assert_eq!((trace.len() as u64, hardware_is_right(&trace)), (bytes, true));
        (trace, truth)
    }

    fn hardware_is_right(trace: &[u8]) -> bool {
        let mut packets = Packets::new(trace);
        packets.sync_forward().is_some() && packets.all(|packet| packet.is_ok())
    }

    /// How many packets there are with tracing turned on, and with it turned off.
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
        let (trace, truth) = traced(&options("skylake"), &[], |hardware| {
            for call in 0..calls {
                // Far from each other, so that their addresses take as many bytes as there are.
                let at = AT + ((call % 2) << 40);
                hardware.retire((at, MODE), Next::Kernel, SYSCALL).unwrap();
            }
        });
        assert!(trace.len() as u64 > 2 * BUFFER_SIZE, "{:#x}", trace.len());
        assert_eq!((truth.count(), switches(&trace)), (calls, (calls, calls)));
    }

    #[test]
    fn a_step_takes_one_tick_and_a_visit_to_the_kernel_a_thousand() {
        traced(&options("skylake"), &[], |hardware| {
            assert_eq!((hardware.tsc(), hardware.in_kernel(), hardware.bytes()), (1000, true, 0));
            let next = |ip| Next::User(ip, MODE);
            hardware.retire((AT, MODE), next(AT + 1), NOP).unwrap();
            assert_eq!((hardware.tsc(), hardware.in_kernel()), (2001, false));
            hardware.retire((AT + 1, MODE), Next::Kernel, SYSCALL).unwrap();
            assert_eq!((hardware.tsc(), hardware.in_kernel()), (2002, true));
            hardware.retire((AT + 3, MODE), next(AT + 4), NOP).unwrap();
            hardware.deliver(DeliveryKind::Interrupt, 0x20, (AT + 4, MODE)).unwrap();
            assert_eq!((hardware.tsc(), hardware.in_kernel()), (3004, true));
            // From the kernel to the program, and back.
            hardware.deliver(DeliveryKind::Fault, 14, (AT + 4, MODE)).unwrap();
            assert_eq!((hardware.tsc(), hardware.in_kernel(), hardware.unexplained()), (4005, true, 0));
            assert_eq!(hardware.truth().count(), 3);
        });
    }

    #[test]
    fn a_trace_ends_in_the_kernel_where_the_program_is_there_and_by_an_interrupt_elsewhere() {
        for (after, expected) in [(Next::Kernel, (1, 1)), (Next::User(AT, MODE), (1, 1))] {
            let (trace, truth) = traced(&options("skylake"), &[], |hardware| {
                hardware.retire((AT - 2, MODE), after, SYSCALL).unwrap();
                assert_eq!(hardware.in_kernel(), after == Next::Kernel);
            });
            assert_eq!((switches(&trace), truth.count()), (expected, 1), "{after:?}");
        }
    }

    #[test]
    fn what_is_outside_of_the_ranges_is_not_counted() {
        for (profile, ranges, count) in [
            ("skylake", &[][..], 4),
            ("skylake", &[(AT + 2, AT + 2)], 1),
            ("skylake", &[(AT + 2, AT + 4)], 2),
            ("skylake", &[(AT, AT), (AT + 6, AT + 6)], 2),
            // It has no ranges, and no bit that says that the address is in them.
            ("broadwell", &[], 4),
        ] {
            let plain = options(profile);
            let range = || "0x1-0x2".parse().unwrap();
            let options = Options { ranges: ranges.iter().map(|_| range()).collect(), ..plain };
            let (_, truth) = traced(&options, ranges, |hardware| {
                // Jumps: straight on, a range is not entered.
                for at in (AT..AT + 8).step_by(2) {
                    hardware.retire((at, MODE), Next::User(at + 2, MODE), JMP).unwrap();
                }
            });
            assert_eq!(truth.count(), count, "{profile} {ranges:x?}");
        }
    }
}
