//! Event Trace: a CFE packet gives a control-flow event, EVD packets before it its details.

use crate::{
    Release,
    code::Code,
    event::{PtEvent, flag, kind},
};
use pugmark_decoder_core::packet::{Cfe, Evd};

/// `enum pt_cfe_type`.
mod cfe {
    pub(super) const INTR: u8 = 1;
    pub(super) const IRET: u8 = 2;
    pub(super) const SMI: u8 = 3;
    pub(super) const RSM: u8 = 4;
    pub(super) const SIPI: u8 = 5;
    pub(super) const INIT: u8 = 6;
    pub(super) const VM_ENTRY: u8 = 7;
    pub(super) const VM_EXIT: u8 = 8;
    pub(super) const VM_EXIT_INTR: u8 = 9;
    pub(super) const SHUTDOWN: u8 = 10;
    pub(super) const UINTR: u8 = 12;
    pub(super) const UIRET: u8 = 13;
    // Since 2.2.
    pub(super) const SWINTR: u8 = 14;
    pub(super) const SYSCALL: u8 = 15;
}

/// `enum pt_evd_type`.
mod evd {
    pub(super) const CR2: u8 = 0;
    pub(super) const VM_EXIT_QUALIFICATION: u8 = 1;
    pub(super) const VM_EXIT_REASON: u8 = 2;
}

/// The packet that an event of a CFE packet waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// A FUP of its own.
    OwnFup,
    /// The FUP that begins its asynchronous branch, too.
    BranchFup,
    /// Nothing.
    Nothing,
}

/// Returns the kind of event of a CFE type, and the packet that a CFE without an address waits for while tracing is
/// enabled.
fn kind_of(cfe: u8, release: Release) -> Option<(std::ffi::c_int, Binding)> {
    Some(match cfe {
        cfe::INTR => (kind::INTERRUPT, Binding::BranchFup),
        cfe::IRET => (kind::IRET, Binding::Nothing),
        cfe::SMI => (kind::SMI, Binding::BranchFup),
        cfe::RSM => (kind::RSM, Binding::BranchFup),
        cfe::SIPI => (kind::SIPI, Binding::BranchFup),
        cfe::INIT => (kind::INIT, Binding::BranchFup),
        cfe::VM_ENTRY => (kind::VMENTRY, Binding::Nothing),
        cfe::VM_EXIT | cfe::VM_EXIT_INTR => (kind::VMEXIT, Binding::BranchFup),
        cfe::SHUTDOWN => (kind::SHUTDOWN, Binding::Nothing),
        cfe::UINTR => (kind::UINTR, Binding::BranchFup),
        cfe::UIRET => (kind::UIRET, Binding::Nothing),
        cfe::SWINTR if release >= Release::V2_3 => (kind::SWINTR, Binding::BranchFup),
        cfe::SYSCALL if release >= Release::V2_3 => (kind::SYSCALL, Binding::Nothing),
        _ => return None,
    })
}

/// Returns whether a release of libipt has an event for this type of CFE.
#[must_use]
pub fn is_known(cfe: u8, release: Release) -> bool {
    kind_of(cfe, release).is_some()
}

/// The contents of the EVD packets before a CFE packet.
#[derive(Clone, Copy, Debug)]
pub struct EventData(Option<PtEvent>);

impl EventData {
    /// Nothing.
    pub const NONE: Self = Self(None);

    /// Returns true if there are contents that no CFE packet has taken.
    #[must_use]
    pub const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Adds the contents of a packet.
    ///
    /// # Errors
    /// The packet contradicts those before it.
    pub fn add(&mut self, Evd { kind, payload }: Evd) -> Result<(), Code> {
        let (bit, word) = match kind {
            evd::CR2 if self.is_some() => return Err(Code::BadContext),
            evd::CR2 => {
                self.0 = Some(PtEvent::new(kind::INTERRUPT, [flag::INTERRUPT_HAS_CR2, payload, 0]));
                return Ok(());
            }
            evd::VM_EXIT_QUALIFICATION => (flag::VMEXIT_HAS_QUALIFICATION, 2),
            evd::VM_EXIT_REASON => (flag::VMEXIT_HAS_REASON, 1),
            _ => return Ok(()),
        };
        let event = self.0.get_or_insert(PtEvent::new(kind::VMEXIT, [0; 3]));
        if event.kind != kind::VMEXIT || event.variant[0] & bit != 0 {
            return Err(Code::BadContext);
        }
        event.variant[0] |= bit;
        event.variant[word] = payload;
        Ok(())
    }

    /// Takes the contents, and returns the event of a CFE packet with them and the packet that it waits for. `None`:
    /// there is no event for that type.
    ///
    /// # Errors
    /// The packet contradicts those before it.
    pub fn event(
        &mut self,
        packet: Cfe,
        enabled: bool,
        release: Release,
    ) -> Result<Option<(PtEvent, Binding)>, Code> {
        let data = self.0.take();
        let Some((kind, alone)) = kind_of(packet.kind, release) else {
            return if data.is_some() { Err(Code::Internal) } else { Ok(None) };
        };
        let mut event = data.unwrap_or(PtEvent::new(kind, [0; 3]));
        if event.kind != kind {
            return Err(Code::BadContext);
        }
        let vector = u64::from(packet.vector);
        event.variant[0] |= match packet.kind {
            // The first byte has flags.
            cfe::INTR => vector << 8,
            cfe::VM_EXIT_INTR => vector << 8 | flag::VMEXIT_HAS_VECTOR,
            cfe::SIPI | cfe::UINTR | cfe::SWINTR => vector,
            _ => 0,
        };
        // These occur while nothing executes.
        if matches!(kind, kind::RSM | kind::SIPI) {
            if packet.ip {
                return Err(Code::BadPacket);
            }
            event.flags |= flag::IP_SUPPRESSED;
        }
        let binding = match alone {
            _ if packet.ip => Binding::OwnFup,
            Binding::BranchFup if enabled => Binding::BranchFup,
            _ => Binding::Nothing,
        };
        Ok(Some((event, binding)))
    }
}
