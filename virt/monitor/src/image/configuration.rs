//! PCI configuration by ports, for a guest's processor whose model has its own northbridge. Accesses to other devices
//! are passed on to the machine below.

use x86_64::instructions::port::Port;
use x86_64::structures::port::{PortRead, PortWrite};

use crate::image::vcpu::Vcpu;

/// The first port: the address register.
pub(crate) const FIRST_PORT: u16 = 0xcf8;
/// The last port: the last byte of the data register.
pub(crate) const LAST_PORT: u16 = 0xcff;

impl Vcpu {
    /// Executes an IN of `bytes` bytes.
    pub(crate) fn read_configuration(&self, port: u16, bytes: u32) -> u32 {
        self.northbridge.port_read(port, bytes).unwrap_or_else(|| match bytes {
            1 => read::<u8>(port).into(),
            2 => read::<u16>(port).into(),
            _ => read(port),
        })
    }

    /// Executes an OUT of `bytes` bytes.
    pub(crate) fn write_configuration(&self, port: u16, bytes: u32, value: u32) {
        if self.northbridge.port_write(port, bytes, value) {
            return;
        }
        match bytes {
            1 => write(port, value as u8),
            2 => write(port, value as u16),
            _ => write(port, value),
        }
    }
}

fn read<T: PortRead>(port: u16) -> T {
    // SAFETY: the guest's own access to a device that belongs to the guest: the monitor uses no PCI configuration.
    unsafe { Port::new(port).read() }
}

fn write<T: PortWrite>(port: u16, value: T) {
    // SAFETY: as in `read`.
    unsafe { Port::new(port).write(value) }
}
