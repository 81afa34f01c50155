//! Event Trace: CFE packets say what happened to the control flow, EVD packets before them say more about it.

use super::{
    decoder::{EventDecoder, Step},
    queue::binding,
};
use crate::{
    error::Code,
    event::{PtEvent, flag, kind},
    packet::field,
    query::decoder::Answer,
};

/// `enum pt_cfe_type`.
pub(crate) mod cfe {
    pub(crate) const INTR: u64 = 1;
    pub(crate) const IRET: u64 = 2;
    pub(crate) const SMI: u64 = 3;
    pub(crate) const RSM: u64 = 4;
    pub(crate) const SIPI: u64 = 5;
    pub(crate) const INIT: u64 = 6;
    pub(crate) const VM_ENTRY: u64 = 7;
    pub(crate) const VM_EXIT: u64 = 8;
    pub(crate) const VM_EXIT_INTR: u64 = 9;
    pub(crate) const SHUTDOWN: u64 = 10;
    pub(crate) const UINTR: u64 = 12;
    pub(crate) const UIRET: u64 = 13;
}

/// `enum pt_evd_type`.
mod evd {
    pub(super) const CR2: u64 = 0;
    pub(super) const VM_EXIT_QUALIFICATION: u64 = 1;
    pub(super) const VM_EXIT_REASON: u64 = 2;
}

/// What a CFE packet without an address binds to while tracing is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alone {
    /// The FUP that begins its asynchronous branch.
    Fup,
    /// Nothing: it is an event at once.
    Nothing,
}

/// The kind of event of a CFE, its union, and what it binds to without an address; `None` if the type is not known.
fn event_of(kind: u64, vector: u64) -> Option<(PtEvent, Alone)> {
    let (kind, word, alone) = match kind {
        // Bits 8 on: the first byte has flags.
        cfe::INTR => (kind::INTERRUPT, vector << 8, Alone::Fup),
        cfe::IRET => (kind::IRET, 0, Alone::Nothing),
        cfe::SMI => (kind::SMI, 0, Alone::Fup),
        cfe::RSM => (kind::RSM, 0, Alone::Fup),
        cfe::SIPI => (kind::SIPI, vector, Alone::Fup),
        cfe::INIT => (kind::INIT, 0, Alone::Fup),
        cfe::VM_ENTRY => (kind::VMENTRY, 0, Alone::Nothing),
        cfe::VM_EXIT => (kind::VMEXIT, 0, Alone::Fup),
        cfe::VM_EXIT_INTR => (kind::VMEXIT, vector << 8 | flag::VMEXIT_HAS_VECTOR, Alone::Fup),
        cfe::SHUTDOWN => (kind::SHUTDOWN, 0, Alone::Nothing),
        cfe::UINTR => (kind::UINTR, vector, Alone::Fup),
        cfe::UIRET => (kind::UIRET, 0, Alone::Nothing),
        _ => return None,
    };
    let mut event = PtEvent::new(kind, [word, 0, 0]);
    // They come where nothing executes.
    if matches!(kind, kind::RSM | kind::SIPI) {
        event.flags = flag::IP_SUPPRESSED;
    }
    Some((event, alone))
}

impl EventDecoder {
    pub(super) fn cfe(&mut self) -> Answer<Step> {
        let has_ip = self.packet.flag(field::CFE_IP);
        let known = self.waiting.take(binding::CFE);
        let Some((mut event, alone)) =
            event_of(self.packet.get(field::CFE_TYPE), self.packet.get(field::CFE_VECTOR))
        else {
            return match known {
                Some(_) => Err(Code::Internal.status()),
                None if has_ip => {
                    // Its FUP is nobody else's.
                    self.waiting.push(binding::OWN_FUP, PtEvent::new(kind::IGNORED, [0; 3]))?;
                    Ok(Step::More)
                }
                None => Ok(Step::More),
            };
        };
        if let Some(known) = known {
            if known.kind != event.kind {
                return Err(Code::BadContext.status());
            }
            // The EVD has set other bits.
            for (word, more) in event.variant.iter_mut().zip(known.variant) {
                *word |= more;
            }
        }
        if has_ip && matches!(event.kind, kind::RSM | kind::SIPI) {
            return Err(Code::BadPacket.status());
        }
        if !has_ip && alone == Alone::Fup && self.enabled {
            self.waiting.push(binding::FUP, event)?;
            return Ok(Step::More);
        }
        self.with_fup(event, has_ip)
    }

    pub(super) fn evd(&mut self) -> Answer<Step> {
        let payload = self.packet.get(field::EVD_PAYLOAD);
        let (bit, word) = match self.packet.get(field::EVD_TYPE) {
            evd::CR2 => {
                if self.waiting.has(binding::CFE) {
                    return Err(Code::BadContext.status());
                }
                let event = PtEvent::new(kind::INTERRUPT, [flag::INTERRUPT_HAS_CR2, payload, 0]);
                self.waiting.push(binding::CFE, event)?;
                return Ok(Step::More);
            }
            evd::VM_EXIT_QUALIFICATION => (flag::VMEXIT_HAS_QUALIFICATION, 2),
            evd::VM_EXIT_REASON => (flag::VMEXIT_HAS_REASON, 1),
            _ => return Ok(Step::More),
        };
        if !self.waiting.has(binding::CFE) {
            self.waiting.push(binding::CFE, PtEvent::new(kind::VMEXIT, [0; 3]))?;
        }
        match self.waiting.first_mut(binding::CFE) {
            Some(event) if event.kind == kind::VMEXIT && event.variant[0] & bit == 0 => {
                event.variant[0] |= bit;
                event.variant[word] = payload;
                Ok(Step::More)
            }
            _ => Err(Code::BadContext.status()),
        }
    }
}
