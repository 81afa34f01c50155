//! Emulates the delivery of events to the guest.

use pugmark_model::{Context, Delivery, DeliveryKind};
use pugmark_monitor::branches;
use pugmark_monitor::guest::{
    self, DeliveryOutcome, Event, Exception, ExceptionKind, GuestError, Unsupported, rflags,
};
use pugmark_monitor::tracing::TracingMemory;

use crate::image::exit::fatal;
use crate::image::vcpu::Vcpu;

impl Vcpu {
    /// Delivers an exception that the guest has raised at the current RIP.
    pub(crate) fn deliver_exception(&mut self, exception: Exception) {
        self.deliver(Event::Exception(exception));
    }

    /// Delivers an interrupt that was taken for the guest. `repeating`: it interrupts a repeated instruction between
    /// two iterations, which the pushed RF shows.
    pub(crate) fn deliver_interrupt(&mut self, vector: u8, repeating: bool) {
        if repeating {
            self.cpu.rflags |= rflags::RF;
        }
        self.deliver(Event::Interrupt { vector });
    }

    /// Delivers an NMI.
    pub(crate) fn deliver_nmi(&mut self) {
        self.deliver(Event::Nmi);
    }

    /// Delivers the guest's own fault, or ends the machine if the monitor lacks the emulation.
    pub(crate) fn deliver_error(&mut self, error: GuestError) {
        match error {
            GuestError::Exception(exception) => self.deliver_exception(exception),
            GuestError::Unsupported(unsupported) => self.unsupported(unsupported),
        }
    }

    /// Delivers `event`: the guest continues at the first instruction of a handler.
    pub(crate) fn deliver(&mut self, event: Event) {
        let before = self.context();
        let logged = self.is_logged();
        self.local_apic.abandon_window();
        self.close_holes();
        self.repeating_rip = None;
        self.vmsave();
        let outcome = match guest::deliver(&mut self.cpu, &mut self.memory, event) {
            Ok(outcome) => outcome,
            Err(unsupported) => self.unsupported(unsupported),
        };
        self.vmload_if_changed();
        let DeliveryOutcome::Handler(delivered) = outcome else {
            fatal!("the guest shuts down: no handler for {event:x?} at rip {:#x}", before.ip)
        };
        if logged {
            // If the gate refused a software interrupt, its instruction has not retired: a fault was delivered instead.
            if delivered.ends_instruction() {
                self.log(before, self.log_flags(before).software_interrupt());
            }
            self.log_branch(Some(branches::of_event(&delivered, self.last_ip, before, self.context())));
        }
        if self.processor.needs_each_instruction() {
            let delivery = self.delivery(&delivered, before);
            self.processor.set_registers_after(&self.cpu, || self.sse.bytes());
            let mut memory = TracingMemory { cpu: &self.cpu, memory: &mut self.memory };
            self.processor.deliver(&delivery, &mut memory);
        }
        if delivered.ends_instruction() {
            self.last_ip = before.ip;
        }
    }

    /// Ends the machine because of something that the monitor does not emulate.
    pub(crate) fn unsupported(&self, unsupported: Unsupported) -> ! {
        fatal!("{unsupported}; rip {:#x}", self.cpu.rip)
    }

    fn delivery(&self, event: &Event, before: Context) -> Delivery {
        let (kind, cr2) = match event {
            Event::Interrupt { .. } => (DeliveryKind::Interrupt, None),
            Event::Nmi => (DeliveryKind::Nmi, None),
            Event::Software { .. } => (DeliveryKind::SoftwareInterrupt, None),
            Event::Exception(exception) => match exception.kind() {
                ExceptionKind::Trap => (DeliveryKind::Trap, exception.cr2),
                ExceptionKind::Fault | ExceptionKind::Abort => (DeliveryKind::Fault, exception.cr2),
            },
        };
        Delivery { kind, vector: event.vector(), before, after: self.context(), cr2, tsc: self.now() }
    }
}
