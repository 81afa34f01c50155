//! PCI configuration by ports, for a guest's processor whose model has its own northbridge. Accesses to other devices
//! are passed on to the machine below.

use crate::image::io::{read_below, write_below};
use crate::image::vcpu::Vcpu;

/// The first port: the address register.
pub(crate) const FIRST_PORT: u16 = 0xcf8;
/// The last port: the last byte of the data register.
pub(crate) const LAST_PORT: u16 = 0xcff;

impl Vcpu {
    /// Executes an IN of `bytes` bytes.
    pub(crate) fn read_configuration(&self, port: u16, bytes: u32) -> u32 {
        self.northbridge.port_read(port, bytes).unwrap_or_else(|| read_below(port, bytes))
    }

    /// Executes an OUT of `bytes` bytes.
    pub(crate) fn write_configuration(&self, port: u16, bytes: u32, value: u32) {
        if !self.northbridge.port_write(port, bytes, value) {
            write_below(port, bytes, value);
        }
    }
}
