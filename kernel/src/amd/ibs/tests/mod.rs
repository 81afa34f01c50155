//! Tests of the IBS units with a register file that samples when a test requests it.

mod configuration;
mod errata;
mod faults;
mod routing;
mod samples;

use super::{IbsConfig, IbsRunning, IbsStopped, IbsUnit, SampleSink};
use crate::amd::fake::{Cpu, Machine};
use crate::lapic::Delivery;
use crate::msr::GeneralProtection;
use crate::pmi::{Handler, Pmi};
use pugmark_decoder_core::ibs::Sample;

/// A sink with room for a limited number of samples.
#[derive(Debug)]
struct Room {
    samples: Vec<Sample>,
    room: usize,
}

impl Room {
    const fn new() -> Self {
        Self { samples: Vec::new(), room: usize::MAX }
    }

    fn addresses(&self) -> Vec<Option<u64>> {
        addresses(self.samples.iter())
    }
}

/// Returns the addresses of samples.
fn addresses<'a>(samples: impl Iterator<Item = &'a Sample>) -> Vec<Option<u64>> {
    let address = |sample: &Sample| match sample {
        Sample::Fetch(fetch) => fetch.linear_address(),
        Sample::Op(op) => op.rip(),
    };
    samples.map(address).collect()
}

impl SampleSink for Room {
    fn sample(&mut self, sample: &Sample) -> bool {
        let room = self.samples.len() < self.room;
        if room {
            self.samples.push(*sample);
        }
        room
    }
}

/// Returns the routed units of such a processor, and forgets the accesses for that.
fn unit(machine: &Machine) -> IbsUnit<Machine> {
    let mut unit = IbsUnit::detect(machine.cpuid(), machine.clone()).unwrap();
    unit.route(&mut machine.clone(), None).unwrap();
    machine.writes();
    machine.reads();
    unit
}

fn start(cpu: Cpu, config: IbsConfig) -> (Machine, IbsRunning<Machine>) {
    let machine = Machine::new(cpu);
    let running = unit(&machine).start(&config).map_err(|failed| failed.error()).unwrap();
    (machine, running)
}

fn stop(running: IbsRunning<Machine>, handler: &mut Handler) -> IbsStopped<Machine> {
    running.stop().map_err(|failed| failed.fault).unwrap().expect(handler)
}

fn handler() -> Handler {
    Handler::amd(Delivery::Nmi)
}

/// Runs the NMI handler.
fn nmi(
    machine: &Machine,
    handler: &mut Handler,
    running: &mut IbsRunning<Machine>,
    sink: &mut Room,
) -> Result<Pmi, GeneralProtection> {
    let mut source = running.source(sink);
    handler.handle(&mut machine.clone(), &mut machine.clone(), &mut [&mut source])
}

/// Runs the NMI handler while nothing samples.
fn nmi_without(machine: &Machine, handler: &mut Handler) -> Pmi {
    handler.handle(&mut machine.clone(), &mut machine.clone(), &mut []).unwrap()
}
