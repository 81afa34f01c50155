//! CFE and EVD: event trace, which names the events that transfer control and what came with them.
//!
//! An EVD belongs to the next CFE. A CFE has a FUP of its own, or shares the FUP of the asynchronous branch that it
//! is the cause of, or stands for the instruction that caused it.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Event Tracing Packets".

use super::{EventDecoder, EventKind, fup::Waiter};
use crate::{
    error::ErrorKind,
    packet::{Cfe, Evd},
};

/// Event data without its CFE, and a CFE without its branch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Control {
    cr2: Option<u64>,
    qualification: Option<u64>,
    reason: Option<u64>,
    shares_fup: Option<EventKind>,
}

impl Control {
    pub(super) const fn new() -> Self {
        Self { cr2: None, qualification: None, reason: None, shares_fup: None }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.cr2.is_none()
            && self.qualification.is_none()
            && self.reason.is_none()
            && self.shares_fup.is_none()
    }

    fn kind(&mut self, cfe: Cfe) -> Option<EventKind> {
        let vector = cfe.vector;
        Some(match cfe.kind {
            1 => EventKind::Interrupt { vector, cr2: self.cr2.take() },
            2 => EventKind::Iret,
            3 => EventKind::Smi,
            4 => EventKind::Rsm,
            5 => EventKind::Sipi { vector },
            6 => EventKind::Init,
            7 => EventKind::Vmentry,
            8 | 9 => EventKind::Vmexit {
                vector: (cfe.kind == 9).then_some(vector),
                reason: self.reason.take(),
                qualification: self.qualification.take(),
            },
            10 => EventKind::Shutdown,
            12 => EventKind::Uintr { vector },
            13 => EventKind::Uiret,
            14 => EventKind::Swintr { vector },
            15 => EventKind::Syscall,
            _ => return None,
        })
    }
}

impl EventDecoder<'_> {
    pub(super) fn evd(&mut self, evd: Evd) -> Result<(), ErrorKind> {
        let slot = match evd.kind {
            0 => &mut self.control.cr2,
            1 => &mut self.control.qualification,
            2 => &mut self.control.reason,
            _ => return Ok(()),
        };
        if slot.replace(evd.payload).is_some() {
            return Err(ErrorKind::UnexpectedPacket("EVD"));
        }
        Ok(())
    }

    pub(super) fn cfe(&mut self, offset: u64, cfe: Cfe) -> Result<(), ErrorKind> {
        let Some(kind) = self.control.kind(cfe) else {
            return if cfe.ip { self.waiting.push(Waiter::Ignored, "CFE") } else { Ok(()) };
        };
        if !self.control.is_empty() {
            return Err(ErrorKind::UnexpectedPacket("CFE"));
        }
        if cfe.ip && matches!(kind, EventKind::Rsm | EventKind::Sipi { .. }) {
            return Err(ErrorKind::MalformedPacket { packet: "CFE", value: u64::from(cfe.kind) });
        }
        if !cfe.ip && self.tracing && shares_fup(kind) {
            self.control.shares_fup = Some(kind);
            return Ok(());
        }
        self.at_fup(offset, cfe.ip, kind, "CFE")
    }

    /// Publishes the cause of an asynchronous branch at its source.
    pub(super) fn publish_shared(&mut self, offset: u64, ip: u64) -> Result<(), ErrorKind> {
        match self.control.shares_fup.take() {
            Some(kind) => self.publish(offset, Some(ip), kind),
            None => Ok(()),
        }
    }
}

/// Whether the event is the cause of an asynchronous branch.
const fn shares_fup(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::Interrupt { .. }
            | EventKind::Smi
            | EventKind::Rsm
            | EventKind::Sipi { .. }
            | EventKind::Init
            | EventKind::Vmexit { .. }
            | EventKind::Uintr { .. }
            | EventKind::Swintr { .. }
    )
}
