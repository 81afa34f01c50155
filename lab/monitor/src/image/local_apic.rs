//! Emulates the local APIC's page, to which the guest has no direct access.
//!
//! An access to the page exits. The monitor then maps a page of its own in its place, with the register's value in it,
//! lets the guest execute that one instruction, and passes on the value that it wrote. Therefore the monitor need not
//! decode the instruction. All registers are the real local APIC's, except for the LVT entry of performance monitoring
//! and AMD's extended registers, which belong to the model. In x2APIC mode the guest accesses the same registers as
//! MSRs, which the monitor emulates.

use alloc::boxed::Box;

use pugmark_monitor::guest_map::PageTable;
use pugmark_monitor::hardware::Hardware;
use pugmark_monitor::local_apic::{self, Destination, IcrCommand};
use pugmark_monitor::msr::APIC_BASE;
use pugmark_monitor::x2apic::{self, X2Read, X2Write};
use x86_64::registers::model_specific::Msr;

use crate::image::apic_registers::{read_register, write_register};
use crate::image::clock::OwnClock;
use crate::image::interrupts;
use crate::image::peers::Peers;

/// A page that the guest accesses instead of the registers.
#[repr(C, align(4096))]
struct WindowPage([u32; 1024]);

/// The guest's local APIC.
pub(crate) struct LocalApic {
    page: Box<WindowPage>,
    /// The nested table whose first entry maps the registers' page.
    table: &'static mut PageTable,
    window: Option<Window>,
    /// The last value that the guest wrote to ICR (low).
    command: u32,
    /// Bits 63:32 of the last value that the guest wrote to ICR in x2APIC mode.
    destination: u32,
    /// The guest may use x2APIC mode.
    offered: bool,
    /// The guest is using x2APIC mode.
    extended: bool,
    peers: Peers,
}

#[derive(Clone, Copy)]
struct Window {
    /// Offset of the register in the page.
    register: usize,
    write: bool,
}

impl LocalApic {
    /// Makes the local APIC. `table` is the nested table of the 2 MiB that begin with the registers; `x2apic`: the
    /// guest may use x2APIC mode.
    pub(crate) fn new(table: &'static mut PageTable, peers: Peers, x2apic: bool) -> Self {
        Self {
            page: Box::new(WindowPage([0; 1024])),
            table,
            window: None,
            command: 0,
            destination: 0,
            offered: x2apic,
            extended: false,
            peers,
        }
    }

    /// Returns whether the guest may use x2APIC mode.
    pub(crate) fn offers_x2apic(&self) -> bool {
        self.offered
    }

    /// Returns the guest's IA32_APIC_BASE.
    pub(crate) fn base(&self) -> u64 {
        // SAFETY: every processor with SVM has the register.
        let below = unsafe { Msr::new(APIC_BASE).read() };
        below | if self.extended { x2apic::EXTD } else { 0 }
    }

    /// Writes the guest's IA32_APIC_BASE. Returns `false` if the write raises #GP.
    pub(crate) fn set_base(&mut self, value: u64) -> bool {
        if !x2apic::accepts_apic_base(self.base(), value, self.offered) {
            return false;
        }
        let extended = value & x2apic::EXTD != 0;
        if extended && !self.extended {
            // In its flat model, the local APIC below finds the processors by the same bits.
            self.set_destination(local_apic::LDR, x2apic::logical_id(self.peers.id().into()) << 24);
            self.set_destination(local_apic::DFR, local_apic::DFR_RESET);
        }
        self.extended = extended;
        // SAFETY: neither the address of the page nor the mode of the local APIC below changes.
        unsafe { Msr::new(APIC_BASE).write(value & !x2apic::EXTD) };
        true
    }

    /// Reads a register of x2APIC mode; `None` if the read raises #GP.
    pub(crate) fn read_msr(&self, msr: u32, clock: &OwnClock, processor: &Hardware) -> Option<u64> {
        Some(match x2apic::read(msr).filter(|_| self.extended)? {
            X2Read::Register(register) => {
                let timers = clock.read(register);
                timers.unwrap_or_else(|| self.read(register, processor)).into()
            }
            X2Read::Id => self.peers.id().into(),
            X2Read::LogicalId => x2apic::logical_id(self.peers.id().into()).into(),
            X2Read::Command => u64::from(self.destination) << 32 | u64::from(self.command),
        })
    }

    /// Writes a register of x2APIC mode. Returns `false` if the write raises #GP.
    pub(crate) fn write_msr(
        &mut self,
        msr: u32,
        value: u64,
        processor: &mut Hardware,
        clock: &mut OwnClock,
    ) -> bool {
        match x2apic::write(msr, value).filter(|_| self.extended) {
            None => return false,
            Some(X2Write::Register(register, value)) => {
                if !clock.write(register, value) {
                    self.write(register, value, processor);
                }
            }
            Some(X2Write::Command { destination, low }) => {
                (self.destination, self.command) = (destination, low);
                if let Some(high) = x2apic::destination_in_page(destination, low) {
                    write_register(local_apic::ICR_HIGH, high);
                    self.write(local_apic::ICR_LOW, low, processor);
                }
            }
            Some(X2Write::SelfInterrupt(vector)) => self.interrupt_self(vector),
        }
        true
    }

    /// Writes one of the registers by which this processor is addressed.
    fn set_destination(&self, register: usize, value: u32) {
        write_register(register, value);
        match register {
            local_apic::ID => self.peers.set_id((value >> 24) as u8),
            local_apic::LDR => self.peers.set_ldr(value),
            local_apic::DFR => self.peers.set_dfr(value),
            _ => {}
        }
    }

    /// Resets the registers as INIT does, and discards interrupts that are pending or in service.
    pub(crate) fn init(&mut self) {
        /// More iterations than there are vectors.
        const MAX_INTERRUPTS: usize = 512;
        for (register, value) in local_apic::VALUES_AFTER_INIT {
            // INIT does not leave x2APIC mode, in which the logical ID is constant.
            match register {
                local_apic::LDR | local_apic::DFR if self.extended => {}
                _ => self.set_destination(register, value),
            }
        }
        (self.command, self.destination) = (0, 0);
        // The local APIC delivers pending interrupts only while it is enabled.
        write_register(local_apic::SVR, local_apic::SVR_ENABLE | 0xff);
        let in_service = || (0..8).any(|index| read_register(local_apic::ISR + index * 0x10) != 0);
        for _ in 0..MAX_INTERRUPTS {
            let taken = interrupts::take();
            if taken.nmi {
                // An NMI that is another processor's call is answered soon anyway; an NMI of the guest is discarded,
                // too.
                let _ = self.peers.take_call();
            }
            if taken.vector.is_none() && !in_service() {
                break;
            }
            write_register(local_apic::EOI, 0);
        }
        write_register(local_apic::SVR, 0xff);
    }

    /// Returns whether the next instruction accesses the page instead of the registers.
    pub(crate) fn window_is_open(&self) -> bool {
        self.window.is_some()
    }

    /// Lets the next instruction read (or write) the register that contains `address`; `timers`: the value, if it is
    /// the timer's.
    pub(crate) fn open_window(
        &mut self,
        address: u64,
        write: bool,
        timers: Option<u32>,
        processor: &Hardware,
    ) {
        let register = (address & 0xff0) as usize;
        let value = timers.unwrap_or_else(|| self.read(register, processor));
        // SAFETY: the index is within the page. Volatile, because the guest reads it.
        unsafe { (&raw mut self.page.0[register / 4]).write_volatile(value) };
        self.window = Some(Window { register, write });
        self.table.0[0] = (&raw const *self.page as u64) | local_apic::window_entry_flags(write);
    }

    /// Closes the window after its instruction has completed, and passes on the value that the instruction wrote.
    pub(crate) fn close_window(&mut self, processor: &mut Hardware, clock: &mut OwnClock) {
        let Some(Window { register, write }) = self.window.take() else { return };
        self.table.0[0] = 0;
        if write {
            // SAFETY: the index is within the page. Volatile, because the guest wrote it.
            let value = unsafe { (&raw const self.page.0[register / 4]).read_volatile() };
            if !clock.write(register, value) {
                self.write(register, value, processor);
            }
        }
    }

    /// Closes the window of an access whose instruction did not complete.
    pub(crate) fn abandon_window(&mut self) {
        self.window = None;
        self.table.0[0] = 0;
    }

    /// Ends the last taken interrupt, which is not delivered.
    pub(crate) fn end_interrupt(&mut self) {
        write_register(local_apic::EOI, 0);
    }

    /// Raises a fixed interrupt on this processor, as an LVT entry does.
    pub(crate) fn interrupt_self(&mut self, vector: u8) {
        write_register(local_apic::ICR_LOW, local_apic::self_interrupt_command(vector));
    }

    fn read(&self, register: usize, processor: &Hardware) -> u32 {
        match register {
            local_apic::ICR_LOW => self.command,
            _ => processor.read_local_apic(register, || read_register(register)),
        }
    }

    fn write(&mut self, register: usize, value: u32, processor: &mut Hardware) {
        match register {
            _ if processor.write_local_apic(register, value) => {}
            local_apic::ICR_LOW => {
                self.command = value;
                let to = Destination::from_icr(read_register(local_apic::ICR_HIGH), value);
                match IcrCommand::from_icr(value) {
                    // INIT and start-up are sent to other processors only.
                    IcrCommand::Init | IcrCommand::StartUp(_) if to == Destination::Sender => {}
                    IcrCommand::Init => self.peers.send_init(to),
                    IcrCommand::StartUp(vector) => self.peers.send_start_up(to, vector),
                    IcrCommand::Deassert => {}
                    IcrCommand::Interrupt => write_register(register, value),
                }
            }
            _ => self.set_destination(register, value),
        }
    }
}
