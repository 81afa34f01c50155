//! PCI configuration by ports, where the guest's processor has a northbridge of its own: what is not that one's is passed on
//! to the machine below.

use x86_64::instructions::port::Port;
use x86_64::structures::port::{PortRead, PortWrite};

use crate::image::vcpu::Vcpu;

/// The first port, that of the address.
pub(crate) const FIRST_PORT: u16 = 0xcf8;
/// The last port, that of the data's last byte.
pub(crate) const LAST_PORT: u16 = 0xcff;

impl Vcpu {
    /// IN of `bytes` bytes.
    pub(crate) fn read_configuration(&self, port: u16, bytes: u32) -> u32 {
        self.northbridge.port_read(port, bytes).unwrap_or_else(|| match bytes {
            1 => read::<u8>(port).into(),
            2 => read::<u16>(port).into(),
            _ => read(port),
        })
    }

    /// OUT of `bytes` bytes.
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
    // SAFETY: the guest's own access to a device that is the guest's: the monitor uses no PCI configuration.
    unsafe { Port::new(port).read() }
}

fn write<T: PortWrite>(port: u16, value: T) {
    // SAFETY: as in `read`.
    unsafe { Port::new(port).write(value) }
}
