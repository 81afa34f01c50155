//! Processor Event Based Sampling: a record at the event behind the one with which a counter overflowed.
//!
//! Source: SDM vol. 3, Performance Monitoring, "Processor Event Based Sampling (PEBS)" of the Core, Nehalem and Skylake
//! microarchitectures.

use pugmark_decoder_core::pebs::{Format, Memory, Record, Registers, TxAbort};

use crate::ds::Which;
use crate::registers::OVF_DS_BUFFER;
use crate::unit::Bus;
use crate::{ExecMode, GeneralProtection, Profile, Retired};

/// Counters that can be sampled, at most.
const MOST: usize = 4;
/// Bytes of the largest record.
const LARGEST: usize = 200;

#[derive(Debug)]
pub(crate) struct Sampler {
    format: Option<Format>,
    /// A bit for each counter that can be sampled.
    counters: u64,
    other_bits: u64,
    /// IA32_PEBS_ENABLE.
    enable: u64,
    /// Counters that have overflowed and wait for their next event.
    armed: u64,
    registers: Registers,
}

/// What counters are to be reset to.
type Resets = [Option<u64>; MOST];

impl Sampler {
    pub(crate) fn new(profile: &Profile) -> Self {
        let pebs = profile.debug_store.as_ref().and_then(|store| store.pebs.as_ref());
        Self {
            format: pebs.map(|pebs| pebs.format),
            counters: pebs.map_or(0, |pebs| (1 << pebs.counters) - 1),
            other_bits: pebs.map_or(0, |pebs| pebs.other_bits),
            enable: 0,
            armed: 0,
            registers: Registers::default(),
        }
    }

    pub(crate) fn is_present(&self) -> bool {
        self.format.is_some()
    }

    pub(crate) fn enable(&self) -> u64 {
        self.enable
    }

    pub(crate) fn write_enable(&mut self, value: u64) -> Result<(), GeneralProtection> {
        if value & !(self.counters | self.other_bits) != 0 {
            return Err(GeneralProtection);
        }
        self.enable = value;
        self.armed &= value;
        Ok(())
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed != 0
    }

    pub(crate) fn set_registers(&mut self, registers: Registers) {
        self.registers = registers;
    }

    /// These counters have overflowed.
    pub(crate) fn arm(&mut self, counters: u64) {
        self.armed |= counters & self.enable & self.counters;
    }

    /// The events of `counters` happened at an instruction. Stores a record when one of them is armed, and says what
    /// counters are reset to: all that have overflowed.
    pub(crate) fn sample(&mut self, counters: u64, retired: &Retired, bus: &mut Bus) -> Resets {
        let mut resets = [None; MOST];
        let applicable = self.armed & counters;
        let Some(format) = self.format.filter(|_| applicable != 0) else { return resets };
        if self.store(format, applicable, retired, bus).is_none() {
            return resets;
        }
        let width = bus.shared.ds.width(retired.after.mode);
        for (counter, reset) in resets.iter_mut().enumerate() {
            if self.armed >> counter & 1 != 0 {
                *reset = bus.ds_counter_reset(counter as u8, width);
            }
        }
        bus.shared.perfmon.clear_status(self.armed);
        self.armed = 0;
        resets
    }

    /// `None` where it does not fit or faults.
    fn store(&self, format: Format, applicable: u64, retired: &Retired, bus: &mut Bus) -> Option<()> {
        let width = bus.shared.ds.width(retired.after.mode);
        let buffer = bus.ds_buffer(Which::Pebs, width)?;
        let mut bytes = [0; LARGEST];
        let size = self.record(applicable, retired, bus).emit(format, &mut bytes).ok()?;
        let next = buffer.index.checked_add(size as u64)?;
        // Out of bounds the record is left out, without a sign.
        if buffer.index < buffer.base || next > buffer.absolute_maximum {
            bus.shared.violations.samples_dropped += 1;
            return None;
        }
        bus.ds_store(Which::Pebs, width, (buffer.index, &bytes[..size]), next)?;
        if buffer.index < buffer.interrupt_threshold && next >= buffer.interrupt_threshold {
            bus.signal(OVF_DS_BUFFER);
        }
        Some(())
    }

    /// The state behind the instruction, and the instruction itself as the eventing one. What is not modelled is 0.
    fn record(&self, applicable: u64, retired: &Retired, bus: &Bus) -> Record<'static> {
        let registers = Registers { rip: retired.after.ip, ..self.registers };
        let registers = match retired.after.mode {
            ExecMode::Bits64 => registers,
            ExecMode::Bits16 | ExecMode::Bits32 => narrow(registers),
        };
        Record {
            registers: Some(registers),
            eventing_ip: Some(retired.before.ip),
            global_status: Some(bus.shared.perfmon.status()),
            applicable_counters: Some(applicable),
            memory: Some(Memory::default()),
            tx_abort: Some(TxAbort::default()),
            tsc: Some(retired.tsc),
            ..Record::default()
        }
    }
}

/// Outside 64-bit mode registers have 32 bits, and R8 to R15 are not there.
fn narrow(registers: Registers) -> Registers {
    let Registers { rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, .. } = registers;
    let [rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp] =
        [rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp].map(|value| value & 0xffff_ffff);
    Registers { rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8_r15: [0; 8] }
}
