//! A processor with the effects that the driver sees, for the tests of the debug store.

mod area;
mod branches;
mod counters;
mod samples;
mod sharing;

use super::*;
use crate::cpuid::CpuIdResult;
use crate::drain::{KeepAll, Sink};
use crate::fake::{FakeLinear, FakeMsr};
use crate::intel::bts::BtsConfig;
use crate::lapic::{Delivery, LocalApic, LvtPc};
use crate::loss::{Gap, Loss};
use crate::pmi::{Abandoned, Handler, Pmi, PmiSource};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const INTERRUPT_GATE: Gate = Gate(0x0000_8e00_0008_0000);
const DEBUGCTL: u32 = 0x1d9;
const DS_AREA: u32 = 0x600;
const LVT_PC: u32 = 0x834;
const STATUS: u32 = 0x38e;
const GLOBAL_CTRL: u32 = 0x38f;
const PEBS_ENABLE: u32 = 0x3f1;
const RTIT_CTL: u32 = 0x570;
/// The signature of a processor with PT.
const WITH_PT: u32 = 0x506e3;

/// A processor with DTES64, CPL-qualified stores and PDCM, its registers shared with the unit.
#[derive(Clone, Debug)]
struct DsMachine {
    msr: Rc<RefCell<FakeMsr>>,
    memory: FakeLinear,
    /// The architectural performance monitoring version.
    version: u32,
    signature: u32,
    layout: DsLayout,
    /// The bits of the control register that keep the value written to them.
    held: u64,
    /// Counters that have overflowed and wait for the event that produces the record.
    armed: Rc<Cell<u64>>,
}

// SAFETY: the registers represent no hardware.
unsafe impl Msr for DsMachine {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        self.msr.borrow_mut().rdmsr(address)
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        let mut msr = self.msr.borrow_mut();
        // SAFETY: as above.
        unsafe { msr.wrmsr(address, value) }?;
        match address {
            DEBUGCTL => msr.set(DEBUGCTL, value & self.held),
            0x390 => {
                let status = msr.get(STATUS);
                msr.set(STATUS, status & !value);
            }
            // A counter has 48 bits: the plain register sign-extends the low half, its alias takes all bits.
            0xc1..=0xc4 => msr.set(address, i64::from(value as i32) as u64 & WIDTH),
            0x4c1..=0x4c4 => msr.set(address - 0x400, value & WIDTH),
            PEBS_ENABLE => self.armed.set(self.armed.get() & value),
            _ => {}
        }
        Ok(())
    }
}

const WIDTH: u64 = (1 << 48) - 1;

// SAFETY: the entry represents no hardware.
unsafe impl LocalApic for DsMachine {
    fn is_enabled(&mut self) -> Result<bool, GeneralProtection> {
        Ok(true)
    }

    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
        Ok(LvtPc(self.msr.borrow().get(LVT_PC) as u32))
    }

    unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
        self.msr.borrow_mut().set(LVT_PC, u64::from(entry.0));
        Ok(())
    }
}

impl DsMachine {
    /// Returns a Core 2.
    fn new() -> Self {
        Self::of(0x6f6, 2)
    }

    fn of(signature: u32, version: u32) -> Self {
        let msr = Rc::new(RefCell::new(FakeMsr::new()));
        msr.borrow_mut().set(0x1b, 0xfee0_0900);
        msr.borrow_mut().set(0x1a0, 1 << 7);
        let (memory, layout) = (FakeLinear::new(), DsLayout::Bits64);
        Self { msr, memory, version, signature, layout, held: !0, armed: Rc::default() }
    }

    /// Returns the same without DTES64 and PDCM, outside IA-32e mode.
    fn narrow() -> Self {
        Self { memory: FakeLinear::at(0x20_0000), layout: DsLayout::Bits32, ..Self::new() }
    }

    /// Returns a machine of each layout.
    fn both() -> [Self; 2] {
        [Self::new(), Self::narrow()]
    }

    fn unit(&self) -> DsUnit<Self> {
        let ecx = if self.layout == DsLayout::Bits32 { 0x10 } else { 0x8014 };
        let cpuid = |leaf, _: u32| match leaf {
            0 => CpuIdResult { eax: 0xd, ebx: 0x756e_6547, edx: 0x4965_6e69, ecx: 0x6c65_746e },
            1 => CpuIdResult { eax: self.signature, ebx: 0, ecx, edx: 1 << 21 },
            // Processors since Broadwell have PT.
            7 => CpuIdResult { eax: 0, ebx: u32::from(self.signature >= WITH_PT) << 25, ecx: 0, edx: 0 },
            0xa => CpuIdResult { eax: 0x0030_0400 | self.version, ebx: 0, ecx: 0, edx: 0x603 },
            _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
        };
        DsUnit::detect(cpuid, self.clone()).unwrap()
    }

    fn get(&self, address: u32) -> u64 {
        self.msr.borrow().get(address)
    }

    fn set(&self, address: u32, value: u64) {
        self.msr.borrow_mut().set(address, value);
    }

    /// Returns a field of the management area.
    fn field(&self, n: u64) -> u64 {
        let at = self.get(DS_AREA);
        match self.layout {
            DsLayout::Bits32 => self.memory.read::<4>(at + 4 * n),
            DsLayout::Bits64 => self.memory.read::<8>(at + 8 * n),
        }
    }

    /// Writes a field of a record or of the management area.
    fn write(&self, address: u64, value: u64) {
        match self.layout {
            DsLayout::Bits32 => self.memory.write::<4>(address, value),
            DsLayout::Bits64 => self.memory.write::<8>(address, value),
        }
    }

    /// Requests a PMI.
    fn request(&self) {
        let entry = LvtPc(self.get(LVT_PC) as u32);
        if !entry.is_masked() {
            self.set(LVT_PC, u64::from(entry.masked().0));
        }
    }
}

fn interrupt(
    machine: &DsMachine,
    handler: &mut Handler,
    running: &mut DsRunning<DsMachine, FakeLinear>,
    branches: &mut impl Sink,
    samples: &mut impl Sink,
) -> Pmi {
    let mut source = running.source(branches, samples);
    handler.handle(&mut machine.clone(), &mut machine.clone(), &mut [&mut source]).unwrap()
}

fn armed(machine: &DsMachine) -> Handler {
    let handler = Handler::new(Delivery::Nmi);
    handler.arm(&mut machine.clone()).unwrap();
    handler
}
