//! A probe: the monitor itself traces the guest from its first instruction on, by Intel PT.
//!
//! The guest can see that the unit is on, because it reads the unit's real registers. The probe ends when the guest
//! switches the unit off, or when the requested number of instructions has been traced; then the unit is the guest's.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Configuration and Programming Guideline" and "Table of Physical
//! Addresses (ToPA)".

use core::sync::atomic::AtomicU64;

use pugmark_model::{Context, GeneralProtection, Retired};
use pugmark_monitor::guest::GuestMemory;
use pugmark_monitor::probe::{CodeState, SeenCode};
use pugmark_monitor::tracing::TracingMemory;
use pugmark_truth::probe::{PACKETS, ProbeWriter, REGION_BYTES, TABLE};

use crate::image::vcpu::Vcpu;

const RTIT_OUTPUT_BASE: u32 = 0x560;
const RTIT_OUTPUT_MASK_PTRS: u32 = 0x561;
const RTIT_CTL: u32 = 0x570;
const RTIT_STATUS: u32 = 0x571;
/// TraceEn, OS, User, ToPA, BranchEn: all branches at all levels, without timing packets.
const CONTROL: u64 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 8 | 1 << 13;
/// Flags of a ToPA entry: the last entry, which links to a table; tracing stops when its region is full.
const END: u64 = 1 << 0;
const STOP: u64 = 1 << 4;
/// The number of slots in the table of addresses with recorded code.
const SLOTS: usize = 1 << 19;
/// WRMSR.
const WRMSR: &[u8] = &[0x0f, 0x30];

/// The state of a running probe.
pub(crate) struct Probe {
    seen: SeenCode<'static>,
    /// Number of instructions left to trace.
    left: u64,
}

impl Vcpu {
    /// Begins to trace this many instructions. Returns `false` if the processor has no Intel PT, or the region is too
    /// small.
    ///
    /// # Safety
    /// The region, of [`REGION_BYTES`] bytes at a multiple of that size, must be identity-mapped memory that nothing
    /// else uses. It must have been passed to the constructor of the guest's memory.
    pub(crate) unsafe fn begin_probe(&mut self, region: u64, instructions: u64) -> bool {
        // SAFETY: the caller promises that this is memory of this size. The unit writes to the other half.
        let words = unsafe { core::slice::from_raw_parts(region as *const AtomicU64, PACKETS as usize / 8) };
        let Ok(writer) = ProbeWriter::new(words) else { return false };
        let size = (REGION_BYTES - PACKETS).ilog2() - 12;
        let table = [(region + PACKETS) | u64::from(size) << 6 | STOP, (region + TABLE) | END];
        let written =
            self.memory.write(region + TABLE, &[table[0].to_le_bytes(), table[1].to_le_bytes()].concat());
        let context = self.context();
        let begun = self.write_unit(RTIT_OUTPUT_BASE, region + TABLE, context).is_ok()
            && self.write_unit(RTIT_OUTPUT_MASK_PTRS, 0x7f, context).is_ok()
            && self.write_unit(RTIT_CTL, CONTROL, context).is_ok();
        if written && begun {
            self.probe = Some(Probe { seen: SeenCode::new(writer, SLOTS), left: instructions });
            self.session = 1;
        }
        written && begun
    }

    /// Notes the instruction with these bytes, which executed in the state `before` and is about to be accounted for.
    #[inline]
    pub(crate) fn probe(&mut self, before: Context, bytes: &[u8]) {
        if self.probe.is_some() {
            self.probe_code(before, bytes);
        }
    }

    fn probe_code(&mut self, before: Context, bytes: &[u8]) {
        let Some(mut probe) = self.probe.take() else { return };
        if !self.processor.is_traced() || probe.left == 0 {
            return self.end_probe(probe, before);
        }
        probe.left -= 1;
        match probe.seen.find(before.ip, bytes) {
            CodeState::Known => {}
            CodeState::New if probe.seen.add(before.ip, bytes) => {}
            CodeState::Changed => {
                let part = self.end_part(&mut probe, before);
                let begins = part && probe.seen.add(before.ip, bytes) && self.session < u16::MAX;
                if !begins || self.begin_part(before).is_err() {
                    probe.seen.writer().finish();
                    self.session = 0;
                    return;
                }
            }
            CodeState::New | CodeState::Full => return self.end_probe(probe, before),
        }
        self.probe = Some(probe);
    }

    /// Ends the trace before the next instruction.
    fn end_probe(&mut self, mut probe: Probe, next: Context) {
        self.end_part(&mut probe, next);
        probe.seen.writer().finish();
        self.session = 0;
    }

    /// Ends a part of the trace before the next instruction. Returns whether there was room to record the part.
    fn end_part(&mut self, probe: &mut Probe, next: Context) -> bool {
        // The unit accepts any write that clears TraceEn.
        let _ = self.write_unit(RTIT_CTL, CONTROL & !1, next);
        let packets = self.processor.read_msr(RTIT_OUTPUT_MASK_PTRS).map_or(0, |pointers| pointers >> 32);
        probe.seen.writer().end_part(packets, self.session)
    }

    /// Begins the next part with the next instruction. It begins with a PSB, as each trace does: PacketByteCnt is 0.
    fn begin_part(&mut self, next: Context) -> Result<(), GeneralProtection> {
        self.session += 1;
        self.write_unit(RTIT_STATUS, 0, next)?;
        self.write_unit(RTIT_CTL, CONTROL, next)
    }

    /// Writes a register of the unit, as if immediately before the next instruction.
    fn write_unit(&mut self, msr: u32, value: u64, next: Context) -> Result<(), GeneralProtection> {
        let at = Retired { before: next, after: next, bytes: WRMSR, tsc: self.now(), operand: 0 };
        let mut memory = TracingMemory { cpu: &self.cpu, memory: &mut self.memory };
        self.processor.write_msr(msr, value, &at, &mut memory)
    }
}
