//! The monitor's logic, without the parts that touch hardware.
//!
//! The monitor is a small hypervisor (AMD SVM) that puts the model of the tracing hardware below an unmodified kernel.
//! It steps the guest instruction by instruction while the model traces. The code here is pure and tested on the host:
//! what to load where ([`loader`]), which memory, MSRs and ports the guest may reach ([`guest_map`],
//! [`permission_map`]), the layout of the control block ([`vmcb`]), and the guest's processor as far as the monitor
//! must emulate it ([`guest`]). The image (`src/main.rs`) adds what only runs on bare metal.
//!
//! Two terms in the comments: "the processor below" is the one that the monitor runs on, usually QEMU's. An instruction
//! executed "by hand" is emulated by the monitor instead of being executed by the processor below.
#![no_std]

extern crate alloc;

pub mod acpi;
pub mod apic_timer;
pub mod boot_info;
pub mod branches;
pub mod clock;
pub mod cmdline;
pub mod cpuid;
pub mod elf;
pub mod entry;
pub mod guest;
pub mod guest_clock;
pub mod guest_map;
pub mod hardware;
pub mod loader;
pub mod local_apic;
pub mod memory;
pub mod msr;
pub mod multiboot2;
pub mod permission_map;
pub mod probe;
pub mod pvh;
pub mod single_step;
pub mod startup;
pub mod timer_limit;
pub mod tracing;
pub mod translation;
pub mod vmcb;
pub mod x2apic;
