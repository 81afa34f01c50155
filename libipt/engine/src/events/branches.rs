//! Packets with an address, and TNT.

use super::{
    decoder::{EventDecoder, Step},
    queue::binding,
};
use crate::{
    TraceBytes,
    code::{Answer, Code},
    event::{PtEvent, flag, kind},
    packet::field,
};

impl<T: TraceBytes> EventDecoder<T> {
    /// Takes the next event that waits for one of these packets; drops those that the caller does not get.
    fn take(&mut self, bindings: u8) -> Option<PtEvent> {
        loop {
            let event = self.waiting.take(bindings)?;
            if event.kind != kind::IGNORED {
                return Some(event);
            }
        }
    }

    pub(super) fn tnt(&mut self) -> Answer<Step> {
        if !self.enabled {
            return Err(Code::BadContext.status());
        }
        let (bits, len) = (self.packet.get(field::TNT_PAYLOAD), self.packet.get(field::TNT_BIT_SIZE));
        Ok(self.publish_alone(PtEvent::new(kind::TNT, [bits, len, 0])))
    }

    pub(super) fn fup(&mut self) -> Answer<Step> {
        self.ip.update(self.packet.address());
        self.bound |= self.waiting.has(binding::OWN_FUP);
        let Some(mut event) = self.take(binding::FUP | binding::OWN_FUP) else {
            if !self.bound {
                let ip = self.ip.get().map_err(|error| Code::from(error).status())?;
                self.waiting.push(binding::TIP, PtEvent::new(kind::ASYNC_BRANCH, [ip, 0, 0]))?;
            }
            return Ok(Step::More);
        };
        if event.kind == kind::OVERFLOW {
            // The event keeps the time of the OVF.
            self.set_ip(&mut event, 0);
            self.enabled = true;
            self.event = Some(event);
            return Ok(Step::Event);
        }
        Ok(self.publish_at_ip(event))
    }

    pub(super) fn tip(&mut self) -> Answer<Step> {
        if !self.enabled {
            return Err(Code::BadContext.status());
        }
        self.ip.update(self.packet.address());
        // The branch comes first.
        if !self.bound {
            return Ok(self.branch());
        }
        match self.take(binding::TIP) {
            None => Ok(Step::More),
            Some(event) if event.kind == kind::ASYNC_BRANCH => self.refuse(event, Code::Internal),
            Some(event) => Ok(self.publish_at_ip(event)),
        }
    }

    /// Publishes the branch of a TIP: an asynchronous one if a FUP was before it.
    fn branch(&mut self) -> Step {
        self.bound = true;
        let mut branch = PtEvent::new(kind::TIP, [0; 3]);
        if self.waiting.find_mut(binding::TIP, kind::ASYNC_BRANCH).is_some()
            && let Some(first) = self.waiting.take(binding::TIP)
        {
            branch = first;
            // The branch changes places with an event that has waited since before it.
            if first.kind != kind::ASYNC_BRANCH
                && let Some(other) = self.waiting.find_mut(binding::TIP, kind::ASYNC_BRANCH)
            {
                branch = std::mem::replace(other, first);
            }
        }
        self.publish_at_ip(branch)
    }

    pub(super) fn tip_pge(&mut self) -> Answer<Step> {
        self.ip.update(self.packet.address());
        // The enabling comes first, then the events that waited for the packet.
        if !self.bound {
            self.enabled = true;
            self.bound = true;
            return Ok(self.publish_at_ip(PtEvent::new(kind::ENABLED, [0; 3])));
        }
        match self.take(binding::TIP) {
            None => Ok(Step::More),
            Some(event) if matches!(event.kind, kind::EXEC_MODE | kind::IFLAGS) => {
                Ok(self.publish_at_ip(event))
            }
            Some(event) => self.refuse(event, Code::BadContext),
        }
    }

    pub(super) fn tip_pgd(&mut self) -> Answer<Step> {
        self.ip.update(self.packet.address());
        let Some(mut event) = self.waiting.take(binding::TIP) else {
            if self.bound {
                return Ok(Step::More);
            }
            self.enabled = false;
            self.publish_at_ip(PtEvent::new(kind::DISABLED, [0; 3]));
            self.fetch();
            return Ok(Step::Event);
        };
        match event.kind {
            kind::ASYNC_BRANCH => {
                event.kind = kind::ASYNC_DISABLED;
                self.enabled = false;
                self.bound = true;
                Ok(self.publish_at_ip(event))
            }
            kind::ASYNC_PAGING | kind::ASYNC_VMCS if !self.bound => self.refuse(event, Code::Internal),
            // They come after tracing was disabled, where an address has no meaning.
            kind::ASYNC_PAGING | kind::ASYNC_VMCS | kind::EXEC_MODE => {
                event.flags |= flag::IP_SUPPRESSED;
                Ok(self.publish(event))
            }
            _ => self.refuse(event, Code::BadContext),
        }
    }
}
