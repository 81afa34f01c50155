//! The monitor's logic, apart from the hardware it drives.
//!
//! Pure, and tested on the host: what to load where ([`loader`]), what the guest may reach ([`guest_map`],
//! [`permission_map`]), the layout of the control block ([`vmcb`]), and the guest's processor where the monitor stands
//! in for it ([`guest`]). The image (`src/main.rs`) adds what only runs on bare metal.
#![no_std]

extern crate alloc;

pub mod acpi;
pub mod boot_info;
pub mod branches;
pub mod clock;
pub mod cmdline;
pub mod cpuid;
pub mod elf;
pub mod entry;
pub mod guest;
pub mod guest_map;
pub mod hardware;
pub mod loader;
pub mod local_apic;
pub mod memory;
pub mod msr;
pub mod multiboot2;
pub mod permission_map;
pub mod pvh;
pub mod single_step;
pub mod startup;
pub mod tracing;
pub mod translation;
pub mod vmcb;
