//! Packets of Event Trace.

use super::{
    decoder::{EventDecoder, Step},
    queue::binding,
};
use crate::{
    TraceBytes,
    code::{Answer, Code},
    event::{PtEvent, kind},
    event_trace::Binding,
};

impl<T: TraceBytes> EventDecoder<T> {
    pub(super) fn cfe(&mut self) -> Answer<Step> {
        let packet = self.packet.cfe();
        let (event, binding) =
            match self.data.event(packet, self.enabled, self.options.release).map_err(Code::status)? {
                Some((event, Binding::Nothing)) => return Ok(self.publish_without_ip(event)),
                Some((event, Binding::OwnFup)) => (event, binding::OWN_FUP),
                Some((event, Binding::BranchFup)) => (event, binding::FUP),
                // The FUP belongs to this packet alone.
                None if packet.ip => (PtEvent::new(kind::IGNORED, [0; 3]), binding::OWN_FUP),
                None => return Ok(Step::More),
            };
        self.waiting.push(binding, event)?;
        Ok(Step::More)
    }

    pub(super) fn evd(&mut self) -> Answer<Step> {
        self.data.add(self.packet.evd()).map_err(Code::status)?;
        Ok(Step::More)
    }
}
