//! The effect of events and timing packets on a query decoder.

use super::{
    decoder::{Answer, QueryDecoder},
    packets::{internal, no_memory, tsx},
};
use crate::{
    config::PtErrata,
    error::Code,
    event::{PtEvent, Wait, flag, kind},
    packet::kind as packet_kind,
};
use pugmark_decoder_core::packet::{
    Cbr, Cfe, Exstop, Ip, Mnt, ModeExec, ModeTsx, Mwait, Packet, Pip, Ptw, PtwPayload, Pwre, Pwrx, Vmcs,
};
use pugmark_ipt::{Binding, Release, packet::exec_mode};

/// Returns a word with its bit set or not.
const fn bit(set: bool, bit: u64) -> u64 {
    if set { bit } else { 0 }
}

impl QueryDecoder {
    /// Applies an event or timing packet outside a PSB+.
    #[inline(never)]
    pub(super) fn other(&mut self) -> Answer<()> {
        let (packet, size) = self.packet()?;
        match packet {
            Packet::Tsc(packet) => self.clock_mut().0.tsc(packet, false),
            Packet::TntLong(tnt) => return self.tnt(tnt.bits, tnt.len, size),
            Packet::Cbr(Cbr { ratio, .. }) => {
                let (clock, clocks) = self.clock_mut();
                clock.cbr(ratio, false, clocks)?;
                self.publish_now(PtEvent::new(kind::CBR, [ratio.into(), 0, 0]));
            }
            Packet::ModeExec(mode) if self.has_interrupt_flag => self.mode_exec(mode, size)?,
            Packet::ModeExec(mode) => {
                let mut event = PtEvent::new(kind::EXEC_MODE, [exec_mode(mode), 0, 0]);
                self.clock.stamp(&mut event);
                no_memory(self.push(Wait::Tip, event))?;
            }
            Packet::ModeTsx(mode) => self.mode_tsx(mode)?,
            Packet::Pip(Pip { cr3, non_root }) => {
                let mut event = PtEvent::new(kind::PAGING, [cr3, non_root.into(), 0]);
                self.clock.stamp(&mut event);
                if self.queue(Wait::Tip).find(kind::ASYNC_BRANCH).is_some() {
                    event.kind = kind::ASYNC_PAGING;
                    no_memory(self.push(Wait::Tip, event))?;
                } else {
                    self.event = Some(event);
                }
            }
            Packet::Vmcs(packet) => self.vmcs(packet)?,
            Packet::Mnt(Mnt { payload }) => self.publish_now(PtEvent::new(kind::MNT, [payload, 0, 0])),
            // libipt 2.0.5 gives none of the following a time.
            Packet::Exstop(Exstop { ip }) => self.wait_for_fup(PtEvent::new(kind::EXSTOP, [0; 3]), ip)?,
            Packet::Mwait(Mwait { hints, ext }) => {
                let words = u64::from(hints) | u64::from(ext) << 32;
                self.wait_for_fup(PtEvent::new(kind::MWAIT, [0, words, 0]), true)?;
            }
            Packet::Ptw(Ptw { payload, ip }) => {
                let (bytes, payload) = match payload {
                    PtwPayload::Four(payload) => (4, payload.into()),
                    PtwPayload::Eight(payload) => (8, payload),
                };
                self.wait_for_fup(PtEvent::new(kind::PTWRITE, [0, bytes, payload]), ip)?;
            }
            Packet::Pwre(Pwre { state, sub_state, hw }) => {
                let word = u64::from(state) | u64::from(sub_state) << 8 | bit(hw, flag::PWRE_HW);
                self.event = Some(PtEvent::new(kind::PWRE, [word, 0, 0]));
            }
            Packet::Pwrx(Pwrx { last, deepest, interrupt, store, autonomous }) => {
                let states = u64::from(last) | u64::from(deepest) << 8;
                let reasons = bit(interrupt, flag::PWRX_INTERRUPT)
                    | bit(store, flag::PWRX_STORE)
                    | bit(autonomous, flag::PWRX_AUTONOMOUS);
                self.event = Some(PtEvent::new(kind::PWRX, [states | reasons, 0, 0]));
            }
            Packet::Cfe(packet) => self.cfe(packet)?,
            Packet::Evd(packet) => self.data.add(packet).map_err(Code::status)?,
            _ => return Err(Code::Internal.status()),
        }
        self.skip(size);
        Ok(())
    }

    /// Applies a MODE.Exec with Event Trace: each change is an event, at the packet's FUP or TIP.
    fn mode_exec(&mut self, mode: ModeExec, size: usize) -> Answer<()> {
        let before = self.mode.replace(mode);
        let wait = if self.is_fup_next(size)? { Wait::Fup } else { Wait::Tip };
        let mut is_event = false;
        if before.is_none_or(|before| (before.cs_l, before.cs_d) != (mode.cs_l, mode.cs_d)) {
            is_event = true;
            self.push_now(wait, PtEvent::new(kind::EXEC_MODE, [exec_mode(mode), 0, 0]))?;
        }
        if before.is_none_or(|before| before.iflag != mode.iflag) {
            is_event = true;
            self.push_now(wait, PtEvent::new(kind::IFLAGS, [mode.iflag.into(), 0, 0]))?;
        }
        self.ignores_fup |= !is_event && wait == Wait::Fup;
        Ok(())
    }

    /// Queues an event with the current time.
    fn push_now(&mut self, wait: Wait, mut event: PtEvent) -> Answer<()> {
        self.clock.stamp(&mut event);
        no_memory(self.push(wait, event))
    }

    /// Returns true if the next packet with an address is a FUP. The current packet has `size` bytes.
    fn is_fup_next(&self, size: usize) -> Answer<bool> {
        let mut packets = self.scanner(size)?;
        while let Ok((packet, _)) = packets.next() {
            match packet.kind {
                packet_kind::FUP => return Ok(true),
                packet_kind::TIP
                | packet_kind::TIP_PGE
                | packet_kind::TIP_PGD
                | packet_kind::PSB
                | packet_kind::OVF => break,
                _ => {}
            }
        }
        Ok(false)
    }

    /// Applies a control-flow event. Its time is that of the FUP that it waits for.
    fn cfe(&mut self, packet: Cfe) -> Answer<()> {
        let known = self.data.event(packet, self.enabled, Release::V2_1).map_err(Code::status)?;
        let Some((mut event, binding)) = known else {
            self.ignores_fup |= packet.ip;
            return Ok(());
        };
        match binding {
            Binding::Nothing => {
                event.flags |= flag::IP_SUPPRESSED;
                self.publish_now(event);
                return Ok(());
            }
            Binding::BranchFup => event.flags |= flag::SHARES_FUP,
            Binding::OwnFup => {}
        }
        no_memory(self.push(Wait::Fup, event))
    }

    /// Queues an event for its FUP, or publishes it without an address.
    fn wait_for_fup(&mut self, mut event: PtEvent, has_ip: bool) -> Answer<()> {
        if has_ip {
            return internal(self.push(Wait::Fup, event));
        }
        event.flags |= flag::IP_SUPPRESSED;
        self.event = Some(event);
        Ok(())
    }

    fn mode_tsx(&mut self, mode: ModeTsx) -> Answer<()> {
        let mut event = PtEvent::new(kind::TSX, [0, tsx(mode), 0]);
        self.clock.stamp(&mut event);
        if self.enabled {
            return no_memory(self.push(Wait::Fup, event));
        }
        event.flags |= flag::IP_SUPPRESSED;
        self.event = Some(event);
        Ok(())
    }

    fn vmcs(&mut self, Vmcs { base }: Vmcs) -> Answer<()> {
        if let Some(paging) = self.queue(Wait::Tip).find(kind::ASYNC_PAGING).copied() {
            // The VMCS event comes before the paging event of the same TIP, with that event's time.
            no_memory(self.push(Wait::Tip, paging))?;
            internal(self.change(Wait::Tip, |queue| {
                let first = queue.find_mut(kind::ASYNC_PAGING)?;
                first.kind = kind::ASYNC_VMCS;
                first.variant[0] = base;
                Some(())
            }))?;
        } else if self.queue(Wait::Tip).find(kind::ASYNC_BRANCH).is_some() {
            no_memory(self.push(Wait::Tip, PtEvent::new(kind::ASYNC_VMCS, [base, 0, 0])))?;
        } else {
            self.publish_now(PtEvent::new(kind::VMCS, [base, 0, 0]));
        }
        Ok(())
    }

    /// Applies a packet in a PSB+. Its events are published at the end of the PSB+.
    pub(super) fn header_packet(&mut self) -> Answer<()> {
        let (packet, size) = self.packet()?;
        let event = match packet {
            Packet::Fup(ip) => {
                self.header_fup(ip, size)?;
                None
            }
            Packet::Tsc(packet) => {
                self.clock_mut().0.tsc(packet, true);
                None
            }
            Packet::Cbr(Cbr { ratio, .. }) => {
                let (clock, clocks) = self.clock_mut();
                clock.cbr(ratio, true, clocks)?;
                Some(PtEvent::new(kind::CBR, [ratio.into(), 0, 0]))
            }
            Packet::Pip(Pip { cr3, non_root }) => {
                Some(PtEvent::new(kind::ASYNC_PAGING, [cr3, non_root.into(), 0]))
            }
            Packet::ModeExec(mode) => {
                let event = PtEvent::new(kind::EXEC_MODE, [exec_mode(mode), 0, 0]);
                if self.has_interrupt_flag {
                    if *self.mode.get_or_insert(mode) != mode {
                        return Err(Code::BadStatusUpdate.status());
                    }
                    no_memory(self.push(Wait::PsbEnd, event))?;
                    Some(PtEvent::new(kind::IFLAGS, [mode.iflag.into(), 0, 0]))
                } else {
                    Some(event)
                }
            }
            Packet::ModeTsx(mode) => Some(PtEvent::new(kind::TSX, [0, tsx(mode), 0])),
            Packet::Vmcs(Vmcs { base }) => Some(PtEvent::new(kind::ASYNC_VMCS, [base, 0, 0])),
            Packet::Mnt(Mnt { payload }) => Some(PtEvent::new(kind::MNT, [payload, 0, 0])),
            _ => return Err(Code::Internal.status()),
        };
        if let Some(event) = event {
            no_memory(self.push(Wait::PsbEnd, event))?;
        }
        self.skip(size);
        Ok(())
    }

    /// Applies the FUP of a PSB+: tracing is enabled, at this address.
    fn header_fup(&mut self, ip: Ip, size: usize) -> Answer<()> {
        if self.config.errata.has(PtErrata::BDM70) && !self.enabled && self.is_bdm70(size)? {
            return Ok(());
        }
        self.ip.update(ip);
        if ip != Ip::Suppressed {
            self.enabled = true;
        }
        Ok(())
    }

    /// Returns true for erratum BDM70: a PSB+ has a FUP although tracing is disabled. Then a TIP.PGE follows at once.
    fn is_bdm70(&self, size: usize) -> Answer<bool> {
        let mut packets = self.scanner(size)?;
        loop {
            let (packet, _) = match packets.next() {
                Ok(packet) => packet,
                Err(error) if error == Code::EndOfStream.status() => return Ok(false),
                Err(error) => return Err(error),
            };
            match packet.kind {
                packet_kind::TIP_PGE => return Ok(true),
                packet_kind::PAD
                | packet_kind::TSC
                | packet_kind::CBR
                | packet_kind::PSBEND
                | packet_kind::PIP
                | packet_kind::MODE
                | packet_kind::VMCS
                | packet_kind::TMA
                | packet_kind::MTC
                | packet_kind::CYC
                | packet_kind::MNT => {}
                _ => return Ok(false),
            }
        }
    }
}
