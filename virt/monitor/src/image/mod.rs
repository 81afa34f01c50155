//! The parts of the monitor that only run on bare metal.

mod apic_registers;
mod boot;
mod configuration;
mod cpuid;
mod deliver;
pub(crate) mod exit;
mod exits;
pub(crate) mod heap;
pub(crate) mod idt;
mod interrupts;
mod io;
mod local_apic;
mod msr;
mod peers;
mod physical;
mod reported;
mod runtime;
pub(crate) mod serial;
pub(crate) mod setup;
mod startup;
mod step;
mod stretch;
mod svm;
mod tsc;
mod vcpu;
mod violations;
mod vmrun;
