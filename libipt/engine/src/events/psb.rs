//! The PSB+: its contents become events at its end.

use super::{
    decoder::{EventDecoder, Step},
    queue::binding,
};
use crate::{
    TraceBytes,
    code::{Answer, Code},
    event::{PtEvent, flag, kind as event_kind},
    packet::{LEAF_EXEC, exec_mode, field, kind},
};
use pugmark_decoder_core::{
    last_ip::LastIp,
    packet::{Ip, ModeExec, Tsc},
};

/// Returns an event for the state at a PSB.
const fn status(kind: std::ffi::c_int, variant: [u64; 3]) -> PtEvent {
    let mut event = PtEvent::new(kind, variant);
    event.flags = flag::STATUS_UPDATE;
    event
}

impl<T: TraceBytes> EventDecoder<T> {
    /// Reads a PSB+ to its end, where its events wait.
    pub(super) fn psb(&mut self) -> Answer<()> {
        if self.waiting.has(binding::ANY) || self.data.is_some() {
            return Err(Code::BadContext.status());
        }
        self.ip = LastIp::new();
        self.enabled = false;
        // This event comes first, but only the end shows if tracing is enabled; after an error libipt takes it as
        // enabled, too.
        self.waiting.push(binding::PSBEND, status(event_kind::ENABLED, [0; 3]))?;
        loop {
            self.fetch();
            match self.packet.kind {
                kind::FUP => self.header_fup()?,
                kind::TMA | kind::MTC | kind::CYC => self.clock.apply(&self.packet, &self.options.clocks)?,
                kind::TSC => self.clock.tsc(Tsc { tsc: self.packet.get(field::TSC_TSC) }, true),
                kind::MODE | kind::PIP | kind::VMCS | kind::MNT | kind::CBR => self.header_event()?,
                kind::PSBEND => {
                    self.end_psb();
                    return Ok(());
                }
                kind::OVF if self.enabled => {
                    self.end_psb();
                    return Ok(());
                }
                // The FUP may be lost.
                kind::OVF => {
                    self.waiting.take(binding::PSBEND);
                    return Ok(());
                }
                kind::INVALID if self.status < 0 => return Err(self.status),
                kind::INVALID => {}
                _ => return Err(Code::BadContext.status()),
            }
        }
    }

    fn end_psb(&mut self) {
        if !self.enabled
            && let Some(first) = self.waiting.first_mut(binding::PSBEND)
        {
            first.kind = event_kind::DISABLED;
            first.flags |= flag::IP_SUPPRESSED;
        }
    }

    fn header_fup(&mut self) -> Answer<()> {
        let ip = self.packet.address();
        self.enabled = ip != Ip::Suppressed;
        if self.options.errata.bdm70 && self.is_bdm70()? {
            self.enabled = false;
        }
        if self.enabled {
            self.ip.update(ip);
        }
        Ok(())
    }

    /// Returns true for erratum BDM70: a PSB+ has a FUP although tracing is disabled. Then a TIP.PGE follows at once.
    fn is_bdm70(&self) -> Answer<bool> {
        let mut packets = self.packets.clone();
        loop {
            let packet = match packets.next_repaired() {
                Ok(packet) => packet,
                Err(error) if error == Code::EndOfStream.status() => return Ok(false),
                Err(error) => return Err(error),
            };
            match packet.kind {
                kind::TIP_PGE => return Ok(true),
                kind::PAD | kind::PSBEND | kind::PIP | kind::MODE | kind::VMCS | kind::MNT => {}
                time if kind::is_time(time) => {}
                _ => return Ok(false),
            }
        }
    }

    /// Lets the event of a packet wait for the end of the PSB+.
    fn header_event(&mut self) -> Answer<()> {
        let packet = self.packet;
        let event = match packet.kind {
            kind::CBR => {
                let ratio = packet.get(field::CBR_RATIO);
                // The field has eight bits.
                self.clock.cbr(ratio as u8, true, &self.options.clocks)?;
                status(event_kind::CBR, [ratio, 0, 0])
            }
            kind::PIP => {
                let non_root = packet.get(field::PIP_NR);
                status(event_kind::ASYNC_PAGING, [packet.get(field::PIP_CR3), non_root, 0])
            }
            kind::VMCS => status(event_kind::ASYNC_VMCS, [packet.get(field::VMCS_BASE), 0, 0]),
            // An MNT can be anywhere, and says nothing about the state.
            kind::MNT => PtEvent::new(event_kind::MNT, [packet.get(field::MNT_PAYLOAD), 0, 0]),
            _ if packet.get(field::MODE_LEAF) == LEAF_EXEC => return self.header_mode_exec(),
            _ => status(event_kind::TSX, [0, packet.tsx(), 0]),
        };
        self.waiting.push(binding::PSBEND, event)
    }

    fn header_mode_exec(&mut self) -> Answer<()> {
        let now = self.packet.exec_mode();
        let with_flag = self.options.iflags;
        let is_other = |known: ModeExec| {
            known.cs_l != now.cs_l || known.cs_d != now.cs_d || with_flag && known.iflag != now.iflag
        };
        if self.mode.is_some_and(is_other) {
            return Err(Code::BadStatusUpdate.status());
        }
        self.mode.get_or_insert(now);
        self.waiting.push(binding::PSBEND, status(event_kind::EXEC_MODE, [exec_mode(now), 0, 0]))?;
        if with_flag {
            self.waiting.push(binding::PSBEND, status(event_kind::IFLAGS, [now.iflag.into(), 0, 0]))?;
        }
        Ok(())
    }

    /// Publishes the first event that waits for the end of a PSB+.
    pub(super) fn psbend(&mut self) -> Answer<Step> {
        let Some(event) = self.waiting.take(binding::PSBEND) else { return Ok(Step::More) };
        Ok(match event.kind {
            event_kind::DISABLED => self.publish(event),
            _ => self.publish_at_ip(event),
        })
    }
}
