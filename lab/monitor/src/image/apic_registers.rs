//! The registers of the real local APIC.

use pugmark_monitor::guest_map::LOCAL_APIC;
use pugmark_monitor::local_apic;

/// The registers of the processor that executes this code.
struct MappedRegisters;

impl local_apic::ApicRegisters for MappedRegisters {
    fn read(&mut self, register: usize) -> u32 {
        read_register(register)
    }

    fn write(&mut self, register: usize, value: u32) {
        write_register(register, value);
    }
}

/// Sends a command to the processor with local APIC ID `id`.
pub(crate) fn send(id: u8, command: u32) {
    local_apic::send_command(&mut MappedRegisters, id, command);
}

pub(crate) fn read_register(register: usize) -> u32 {
    let address = (LOCAL_APIC as usize + register) as *const u32;
    // SAFETY: the boot code mapped the page, and reading a register has no effect.
    unsafe { address.read_volatile() }
}

/// Returns whether the local APIC has delivered the interrupt with this vector. It does not know one that it passes on
/// from the PIC.
pub(crate) fn is_in_service(vector: u8) -> bool {
    let register = local_apic::ISR + usize::from(vector / 32) * 0x10;
    read_register(register) >> (vector % 32) & 1 == 1
}

pub(crate) fn write_register(register: usize, value: u32) {
    let address = (LOCAL_APIC as usize + register) as *mut u32;
    // SAFETY: the boot code mapped the page; interrupts that this write may raise wait for a window of `interrupts`.
    unsafe { address.write_volatile(value) }
}
