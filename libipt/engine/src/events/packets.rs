//! Packets that are events by themselves, or that wait for an address.

use super::{
    decoder::{EventDecoder, Step},
    queue::binding,
};
use crate::{
    Release, TraceBytes,
    code::{Answer, Code},
    event::{PtEvent, flag, kind as event_kind},
    packet::{LEAF_EXEC, exec_mode, field, kind},
};

impl<T: TraceBytes> EventDecoder<T> {
    /// Applies a packet outside a PSB+ that is neither a branch nor a timing packet.
    pub(super) fn other(&mut self) -> Answer<Step> {
        let packet = self.packet;
        let event = match packet.kind {
            kind::CBR => {
                self.clock.apply(&packet, &self.options.clocks)?;
                PtEvent::new(event_kind::CBR, [packet.get(field::CBR_RATIO), 0, 0])
            }
            kind::MODE if packet.get(field::MODE_LEAF) == LEAF_EXEC => return self.mode_exec(),
            kind::MODE => return self.mode_tsx(),
            kind::PIP => return self.pip(),
            kind::VMCS => return self.vmcs(),
            kind::MNT => PtEvent::new(event_kind::MNT, [packet.get(field::MNT_PAYLOAD), 0, 0]),
            kind::STOP => PtEvent::new(event_kind::STOP, [0; 3]),
            kind::EXSTOP => return self.exstop(),
            kind::MWAIT => {
                let event = PtEvent::new(event_kind::MWAIT, [0, packet.payload[0], 0]);
                self.waiting.push(binding::EXSTOP, event)?;
                return Ok(Step::More);
            }
            kind::PWRE | kind::PWRX => return self.sleep(),
            kind::PTW => return self.ptw(),
            kind::TRIG => return self.trig(),
            _ => return Err(Code::BadOpcode.status()),
        };
        Ok(self.publish_alone(event))
    }

    /// Applies a MODE.Exec. A change of the mode is an event; otherwise the packet still takes part in its TIP or FUP.
    fn mode_exec(&mut self) -> Answer<Step> {
        const BINDING: u8 = binding::TIP | binding::OWN_FUP;
        let (now, before) = (self.packet.exec_mode(), self.mode);
        let mut known = before.unwrap_or(now);
        let mut is_event = false;
        if before.is_none_or(|before| (before.cs_l, before.cs_d) != (now.cs_l, now.cs_d)) {
            self.waiting.push(BINDING, PtEvent::new(event_kind::EXEC_MODE, [exec_mode(now), 0, 0]))?;
            (known.cs_l, known.cs_d) = (now.cs_l, now.cs_d);
            is_event = true;
        }
        if self.options.iflags && before.is_none_or(|before| before.iflag != now.iflag) {
            self.waiting.push(BINDING, PtEvent::new(event_kind::IFLAGS, [now.iflag.into(), 0, 0]))?;
            known.iflag = now.iflag;
            is_event = true;
        }
        if !is_event {
            self.waiting.push(BINDING, PtEvent::new(event_kind::IGNORED, [0; 3]))?;
        }
        self.mode = Some(known);
        Ok(Step::More)
    }

    fn mode_tsx(&mut self) -> Answer<Step> {
        let tsx = self.packet.tsx();
        let event = PtEvent::new(event_kind::TSX, [0, tsx, 0]);
        if !self.enabled {
            return Ok(self.publish_without_ip(event));
        }
        let binding = if tsx & flag::ABORTED != 0 { binding::FUP } else { binding::OWN_FUP };
        self.waiting.push(binding, event)?;
        Ok(Step::More)
    }

    fn pip(&mut self) -> Answer<Step> {
        let mut event = PtEvent::new(
            event_kind::PAGING,
            [self.packet.get(field::PIP_CR3), self.packet.get(field::PIP_NR), 0],
        );
        if self.waiting.find_mut(binding::TIP, event_kind::ASYNC_BRANCH).is_none() {
            return Ok(self.publish_alone(event));
        }
        event.kind = event_kind::ASYNC_PAGING;
        self.waiting.push(binding::TIP, event)?;
        Ok(Step::More)
    }

    fn vmcs(&mut self) -> Answer<Step> {
        let base = self.packet.get(field::VMCS_BASE);
        let event = PtEvent::new(event_kind::ASYNC_VMCS, [base, 0, 0]);
        if let Some(paging) = self.waiting.find_mut(binding::TIP, event_kind::ASYNC_PAGING).copied() {
            // The VMCS event comes before the paging event of the same TIP.
            self.waiting.push(binding::TIP, paging)?;
            if let Some(first) = self.waiting.find_mut(binding::TIP, event_kind::ASYNC_PAGING) {
                *first = event;
            }
        } else if self.waiting.find_mut(binding::TIP, event_kind::ASYNC_BRANCH).is_some() {
            self.waiting.push(binding::TIP, event)?;
        } else {
            return Ok(self.publish_alone(PtEvent { kind: event_kind::VMCS, ..event }));
        }
        Ok(Step::More)
    }

    /// Applies an EXSTOP, and the MWAIT before it: both have its address, or none.
    fn exstop(&mut self) -> Answer<Step> {
        let has_ip = self.packet.flag(field::EXSTOP_IP);
        let event = PtEvent::new(event_kind::EXSTOP, [0; 3]);
        match self.waiting.take(binding::EXSTOP) {
            Some(mut mwait) if !has_ip => {
                mwait.flags |= flag::IP_SUPPRESSED;
                // The EXSTOP comes next.
                return Ok(self.publish(mwait));
            }
            Some(mwait) => self.waiting.push(binding::OWN_FUP, mwait)?,
            None => {}
        }
        self.with_fup(event, has_ip)
    }

    /// Applies a PWRE or PWRX. In 2.3 a PWRE is reported, with its own time, when its PWRX is read.
    fn sleep(&mut self) -> Answer<Step> {
        // The packet and the event have the same bits.
        let variant = [self.packet.payload[0], 0, 0];
        if self.packet.kind == kind::PWRX {
            if let Some(entry) = self.waiting.take(binding::PWRX) {
                self.event = Some(entry);
                return Ok(Step::Event);
            }
            return Ok(self.publish_alone(PtEvent::new(event_kind::PWRX, variant)));
        }
        let mut entry = PtEvent::new(event_kind::PWRE, variant);
        if self.options.release < Release::V2_3 {
            return Ok(self.publish_alone(entry));
        }
        self.clock.stamp(&mut entry);
        self.waiting.push(binding::PWRX, entry)?;
        Ok(Step::More)
    }

    /// Applies a TRIG. Its place is a FUP, or a number of instructions after the last address; it can have none.
    fn trig(&mut self) -> Answer<Step> {
        let bits = |field| self.packet.get(field);
        let (icnt, has_count) = (bits(field::TRIG_ICNT), self.packet.flag(field::TRIG_ICNTV));
        let mut event =
            PtEvent::new(event_kind::TRIG, [bits(field::TRIG_TRBV) | icnt << 16, 0, bits(field::TRIG_MULT)]);
        let has_ip = self.packet.flag(field::TRIG_IP);
        // With a FUP the count is zero, and without tracing there is nothing to count.
        if has_ip && (!has_count || icnt != 0) || has_count && icnt != 0 && !self.enabled {
            return Err(Code::BadPacket.status());
        }
        if has_ip {
            self.waiting.push(binding::OWN_FUP, event)?;
            return Ok(Step::More);
        }
        if !has_count {
            event.flags |= flag::IP_SUPPRESSED;
        }
        Ok(self.publish_alone(event))
    }

    fn ptw(&mut self) -> Answer<Step> {
        let bytes = if self.packet.get(field::PTW_PLC) == 0 { 4 } else { 8 };
        let event = PtEvent::new(event_kind::PTWRITE, [0, bytes, self.packet.get(field::PTW_PAYLOAD)]);
        self.with_fup(event, self.packet.flag(field::PTW_IP))
    }

    /// Lets an event wait for its own FUP, or publishes it without an address.
    pub(super) fn with_fup(&mut self, event: PtEvent, has_ip: bool) -> Answer<Step> {
        if !has_ip {
            return Ok(self.publish_without_ip(event));
        }
        self.waiting.push(binding::OWN_FUP, event)?;
        Ok(Step::More)
    }
}
