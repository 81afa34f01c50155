//! Sets the RAM sizes that firmware stored in devices to the guest's RAM, before the guest runs.

use x86_64::instructions::port::Port;

use pugmark_monitor::firmware_map::cmos;
use pugmark_monitor::guest_map::GuestRam;

/// The real-time clock's index and data.
const CMOS_INDEX: u16 = 0x70;
const CMOS_DATA: u16 = 0x71;
/// PCI configuration: address and data.
const CONFIGURATION_ADDRESS: u16 = 0xcf8;
const CONFIGURATION_DATA: u16 = 0xcfc;
/// The host bridge of QEMU's machine `pc`: its device ID and vendor ID.
const I440FX: u32 = 0x1237_8086;
/// The host bridge's register that tells coreboot the RAM size, in units of 8 MiB.
///
/// Source: QEMU, hw/pci-host/i440fx.c, `I440FX_COREBOOT_RAM_SIZE`.
const COREBOOT_RAM_SIZE: u8 = 0x57;

/// Shows this RAM in the real-time clock's memory and in the host bridge.
pub(crate) fn show_ram(ram: GuestRam) {
    for (index, value) in cmos(ram) {
        write(CMOS_INDEX, index);
        write(CMOS_DATA, value);
    }
    select(0);
    // SAFETY: reading the host bridge's IDs changes nothing.
    if unsafe { Port::<u32>::new(CONFIGURATION_DATA).read() } == I440FX {
        let [below, _] = ram.ranges();
        select(COREBOOT_RAM_SIZE);
        write(CONFIGURATION_DATA + u16::from(COREBOOT_RAM_SIZE & 3), (below.end >> 23).min(0xff) as u8);
    }
    select(0);
}

/// Selects a register of the host bridge in configuration space.
fn select(register: u8) {
    // SAFETY: selecting a register touches no memory.
    unsafe { Port::new(CONFIGURATION_ADDRESS).write(1 << 31 | u32::from(register & !3)) };
}

fn write(port: u16, value: u8) {
    // SAFETY: the bytes written here only tell software the size of RAM; they have no other effect.
    unsafe { Port::new(port).write(value) };
}
