//! CFE and EVD, the packets of event trace: they name events that transfer control (interrupts, VM exits, IRET and
//! the like) and carry their data.
//!
//! An EVD belongs to the next CFE. A CFE has its own FUP, or shares the FUP of the asynchronous branch that it
//! causes, or belongs to the instruction that caused it.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Event Tracing Packets".

use super::{EventDecoder, EventKind, waiting::Partner};
use crate::{
    error::ErrorKind,
    keeper::Keeper,
    packet::{Cfe, Evd},
};

impl<K: Keeper> EventDecoder<'_, K> {
    pub(super) fn evd(&mut self, evd: Evd) -> Result<(), ErrorKind> {
        let begun = self.state.waiting.take_for(Partner::Cfe).and_then(|waiter| waiter.kind);
        let payload = Some(evd.payload);
        let kind = match (evd.kind, begun) {
            (0, None) => Some(EventKind::Interrupt { vector: 0, cr2: payload }),
            (1, None) => Some(EventKind::Vmexit { vector: None, reason: None, qualification: payload }),
            (2, None) => Some(EventKind::Vmexit { vector: None, reason: payload, qualification: None }),
            (1, Some(EventKind::Vmexit { vector, reason, qualification: None })) => {
                Some(EventKind::Vmexit { vector, reason, qualification: payload })
            }
            (2, Some(EventKind::Vmexit { vector, reason: None, qualification })) => {
                Some(EventKind::Vmexit { vector, reason: payload, qualification })
            }
            (0..=2, Some(_)) => return Err(ErrorKind::UnexpectedPacket("EVD")),
            // An EVD of an unknown type is ignored.
            (_, begun) => begun,
        };
        if kind.is_some() { self.state.waiting.push(Partner::Cfe, kind, "EVD") } else { Ok(()) }
    }

    pub(super) fn cfe(&mut self, offset: u64, cfe: Cfe) -> Result<(), ErrorKind> {
        let kind = match self.state.waiting.take_for(Partner::Cfe).and_then(|waiter| waiter.kind) {
            Some(begun) => Some(completed(begun, cfe).ok_or(ErrorKind::UnexpectedPacket("CFE"))?),
            None => kind(cfe),
        };
        match kind {
            None if cfe.ip => self.state.waiting.push(Partner::OwnFup, None, "CFE"),
            None => Ok(()),
            Some(EventKind::Rsm | EventKind::Sipi { .. }) if cfe.ip => {
                Err(ErrorKind::MalformedPacket { packet: "CFE", value: u64::from(cfe.kind) })
            }
            Some(kind) if !cfe.ip && self.state.tracing && shares_fup(kind) => {
                self.state.waiting.push(Partner::AnyFup, Some(kind), "CFE")
            }
            Some(kind) => self.at_fup(offset, cfe.ip, kind, "CFE"),
        }
    }

    /// Publishes the waiting events at an OVF while tracing is off. Their place in the code is unknown, and no packet
    /// with it was lost.
    pub(super) fn publish_unplaced(&mut self, offset: u64) -> Result<(), ErrorKind> {
        let mut next = 0;
        while let Some(&waiter) = self.state.waiting.as_slice().get(next) {
            next += 1;
            if waiter.partner == Partner::Cfe {
                continue;
            }
            let belongs_to_a_branch = matches!(
                waiter.kind,
                Some(EventKind::AsyncBranch { .. } | EventKind::AsyncPaging(_) | EventKind::AsyncVmcs(_))
            );
            if !belongs_to_a_branch {
                self.publish_waiter(offset, None, waiter)?;
            }
        }
        Ok(())
    }
}

/// Completes the event that EVDs began with their CFE. Returns `None` if that type of CFE cannot follow them.
const fn completed(begun: EventKind, cfe: Cfe) -> Option<EventKind> {
    match (begun, cfe.kind) {
        (EventKind::Interrupt { cr2, .. }, 1) => Some(EventKind::Interrupt { vector: cfe.vector, cr2 }),
        (EventKind::Vmexit { .. }, 8) => Some(begun),
        (EventKind::Vmexit { reason, qualification, .. }, 9) => {
            Some(EventKind::Vmexit { vector: Some(cfe.vector), reason, qualification })
        }
        _ => None,
    }
}

/// Returns the event of a CFE without EVDs; `None` for an unknown type.
const fn kind(cfe: Cfe) -> Option<EventKind> {
    let vector = cfe.vector;
    Some(match cfe.kind {
        1 => EventKind::Interrupt { vector, cr2: None },
        2 => EventKind::Iret,
        3 => EventKind::Smi,
        4 => EventKind::Rsm,
        5 => EventKind::Sipi { vector },
        6 => EventKind::Init,
        7 => EventKind::Vmentry,
        8 => EventKind::Vmexit { vector: None, reason: None, qualification: None },
        9 => EventKind::Vmexit { vector: Some(vector), reason: None, qualification: None },
        10 => EventKind::Shutdown,
        12 => EventKind::Uintr { vector },
        13 => EventKind::Uiret,
        14 => EventKind::Swintr { vector },
        15 => EventKind::Syscall,
        _ => return None,
    })
}

/// Returns true if the event is the cause of an asynchronous branch.
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
