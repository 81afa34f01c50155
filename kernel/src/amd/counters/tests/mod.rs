//! Tests of the counters with a register file that counts when a test requests it.

mod configuration;
mod counting;
mod faults;
mod sampling;

use super::{CountedEvent, CounterRunning, CounterUnit, Overflow, OverflowSink};
use crate::amd::fake::{Cpu, Machine};
use crate::lapic::Delivery;
use crate::msr::GeneralProtection;
use crate::pmi::{Handler, Pmi};

const GLOBAL_STATUS: u32 = 0xc000_0300;
const GLOBAL_CTL: u32 = 0xc000_0301;
const SIGN: u64 = 1 << 47;

/// Returns PERFEVTSELn and PERFCTRn, copied from the manual a second time.
fn registers(cpu: Cpu, n: u32) -> (u32, u32) {
    match cpu.features >> 23 & 1 {
        0 => (0xc001_0000 + n, 0xc001_0004 + n),
        _ => (0xc001_0200 + 2 * n, 0xc001_0201 + 2 * n),
    }
}

fn unit(machine: &Machine) -> CounterUnit<Machine> {
    let unit = CounterUnit::detect(machine.cpuid(), machine.clone()).unwrap();
    machine.writes();
    unit
}

fn start(machine: &Machine, events: &[CountedEvent]) -> CounterRunning<Machine> {
    unit(machine).start(events).map_err(|failed| failed.error()).unwrap()
}

fn handler() -> Handler {
    Handler::amd(Delivery::Nmi)
}

/// Runs the NMI handler.
fn nmi(
    machine: &Machine,
    handler: &mut Handler,
    running: &mut CounterRunning<Machine>,
    sink: &mut dyn OverflowSink,
) -> Result<Pmi, GeneralProtection> {
    let mut source = running.source(sink);
    handler.handle(&mut machine.clone(), &mut machine.clone(), &mut [&mut source])
}

/// Runs the NMI handler while nothing counts.
fn nmi_without(machine: &Machine, handler: &mut Handler) -> Pmi {
    handler.handle(&mut machine.clone(), &mut machine.clone(), &mut []).unwrap()
}

/// Returns a sink that keeps the overflows that it takes.
fn keep(overflows: &mut Vec<Overflow>) -> impl FnMut(Overflow) -> bool {
    |overflow| {
        overflows.push(overflow);
        true
    }
}
