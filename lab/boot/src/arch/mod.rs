//! The machine: everything that needs assembly, ports or registers.

pub(crate) mod apic;
pub(crate) mod clock;
pub(crate) mod console;
pub(crate) mod image;
pub(crate) mod memory;
pub(crate) mod nmi;
pub(crate) mod paging;
mod pic;
pub(crate) mod processors;
pub(crate) mod registers;
pub(crate) mod segments;
pub(crate) mod serial;
pub(crate) mod stack;
pub(crate) mod traps;
pub(crate) mod user;
pub(crate) mod vectors;

/// Sets the processor up: segments, traps, paging, the local APIC (in x2APIC mode if `x2apic`), the clock, system
/// calls. Interrupts stay off.
///
/// # Panics
/// If there is no memory for the page tables, or the machine lacks something that is required.
pub(crate) fn init(x2apic: bool) {
    segments::init();
    processors::init();
    traps::init();
    paging::init();
    pic::mask_all();
    apic::use_mode(x2apic);
    apic::init();
    clock::init();
    user::init();
}

/// Overflows the NMI stack, for a test.
pub(crate) fn overflow_nmi() {
    traps::on_pmi(|_, _| {
        stack::overflow();
        pugmark_kernel::pmi::Pmi::Served
    });
    nmi::send();
}
