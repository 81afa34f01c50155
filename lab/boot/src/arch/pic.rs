//! Masks the 8259 interrupt controllers.

use x86_64::instructions::port::Port;

/// Masks all lines of both controllers; otherwise IRQ0 would arrive as vector 8.
pub(super) fn mask_all() {
    for data_port in [0x21, 0xa1] {
        // SAFETY: the port is an 8259's interrupt mask register; masking interrupts touches no memory.
        unsafe { Port::<u8>::new(data_port).write(0xff) };
    }
}
