//! The effect of each packet on a query decoder.

use super::{
    decoder::{Answer, QueryDecoder},
    opcode::{self, Opcode},
    outcomes::Outcomes,
};
use crate::{
    config::PtErrata,
    error::Code,
    event::{PtEvent, Queue, Wait, flag, kind},
    fast_packets::{self, outcomes_of},
    packets::ask,
};
use pugmark_decoder_core::{
    ErrorKind,
    config::Config,
    packet::{Ip, ModeTsx, Mtc, Packet},
};
use pugmark_ipt::packets;

/// No errata: the query decoder handles them itself, as libipt 2.0.5 does.
const CONFIG: Config<'static> = Config::new();

/// The size of an OVF, and of other packets without a payload.
const SHORT: usize = 2;

pub(super) fn internal<T>(value: Option<T>) -> Answer<T> {
    value.ok_or(Code::Internal.status())
}

pub(super) fn no_memory<T>(value: Option<T>) -> Answer<T> {
    value.ok_or(Code::NoMemory.status())
}

pub(super) fn tsx(ModeTsx { in_tx, abort }: ModeTsx) -> u64 {
    let bit = |set, bit| if set { bit } else { 0 };
    bit(in_tx, flag::SPECULATIVE) | bit(abort, flag::ABORTED)
}

impl QueryDecoder {
    /// Returns the packet at the position, and its size.
    #[inline]
    fn parse(&self) -> Result<(Packet, usize), ErrorKind> {
        packets::parse(self.rest(), &CONFIG)?.ok_or(ErrorKind::EndOfSlice)
    }

    /// Returns the packet at the position, and its size, or the function's error status.
    #[inline]
    pub(super) fn packet(&self) -> Answer<(Packet, usize)> {
        self.parse().map_err(|kind| Code::from(kind).status())
    }

    pub(super) fn skip(&mut self, size: usize) {
        // The position is never `None` where there is a packet.
        self.position = self.position.map(|position| position + size);
    }

    /// Applies the packet at the position, and goes to the next one unless events still wait for this one.
    pub(super) fn decode(&mut self, opcode: Opcode) -> Answer<()> {
        match opcode {
            Opcode::Tnt8 => self.tnt_8(),
            Opcode::Cyc => self.cyc(),
            Opcode::Mtc => self.mtc(),
            Opcode::Unknown | Opcode::Extended => self.unknown(),
            Opcode::Pad => {
                self.skip(1);
                Ok(())
            }
            Opcode::Psb => self.psb(),
            Opcode::PsbEnd => self.psbend(),
            Opcode::Ovf => self.ovf(),
            Opcode::Tma => self.tma(),
            Opcode::Stop => {
                self.publish_now(PtEvent::new(kind::STOP, [0; 3]));
                self.skip(SHORT);
                Ok(())
            }
            Opcode::Tip | Opcode::TipPge | Opcode::TipPgd | Opcode::Fup => self.ip_packet(opcode),
            _ => self.other(),
        }
    }

    /// Applies a packet in a PSB+.
    fn header(&mut self, opcode: Opcode) -> Answer<()> {
        match opcode {
            Opcode::Unknown | Opcode::Pad | Opcode::Tma | Opcode::Mtc | Opcode::Cyc => self.decode(opcode),
            Opcode::Fup
            | Opcode::Pip
            | Opcode::Mode
            | Opcode::Tsc
            | Opcode::Cbr
            | Opcode::Vmcs
            | Opcode::Mnt => self.header_packet(),
            _ => Err(Code::BadContext.status()),
        }
    }

    /// Asks the caller's reader of unknown packets.
    #[cold]
    fn unknown(&mut self) -> Answer<()> {
        let position = internal(self.position)?;
        let (size, _) = ask(&self.config, position as u64)?;
        // The size is at most 255.
        self.skip(size as usize);
        Ok(())
    }

    fn tnt_8(&mut self) -> Answer<()> {
        let (bits, len) = outcomes_of(self.rest().first().copied().unwrap_or(0));
        self.tnt(bits, len, 1)
    }

    pub(super) fn tnt(&mut self, bits: u64, len: u8, size: usize) -> Answer<()> {
        if len == 0 {
            return Err(Code::BadPacket.status());
        }
        if !self.outcomes.is_empty() {
            return Err(Code::BadContext.status());
        }
        self.outcomes = Outcomes::new(bits, len);
        self.skip(size);
        Ok(())
    }

    fn mtc(&mut self) -> Answer<()> {
        let Some(&[_, ctc, ..]) = self.rest().first_chunk::<2>() else {
            return Err(Code::EndOfStream.status());
        };
        let (clock, clocks) = self.clock_mut();
        clock.mtc(Mtc { ctc }, clocks)?;
        self.skip(2);
        Ok(())
    }

    #[inline]
    pub(super) fn cyc(&mut self) -> Answer<()> {
        let (packet, size) = match fast_packets::cyc(self.rest()) {
            Some(known) => known,
            None => match self.packet()? {
                (Packet::Cyc(packet), size) => (packet, size),
                _ => return Err(Code::Internal.status()),
            },
        };
        if self.config.errata.has(PtErrata::SKD007)
            && size == 2
            && packet.cycles as u16 & !0x1f == 0x20
            && self.rest().get(2) == Some(&0xf3)
        {
            // An OVF follows a CYC that was cut off after its first byte.
            self.skip(1);
            return Ok(());
        }
        let (clock, clocks) = self.clock_mut();
        clock.cyc(packet, clocks)?;
        self.skip(size);
        Ok(())
    }

    fn tma(&mut self) -> Answer<()> {
        let size = match self.parse() {
            Ok((Packet::Tma(packet), size)) => {
                let (clock, clocks) = self.clock_mut();
                clock.tma(packet, clocks)?;
                size
            }
            Err(ErrorKind::MalformedPacket { .. }) if self.config.errata.has(PtErrata::SKZ84) => 8,
            Err(error) => return Err(Code::from(error).status()),
            Ok(_) => return Err(Code::Internal.status()),
        };
        self.skip(size);
        Ok(())
    }

    fn psb(&mut self) -> Answer<()> {
        let (_, size) = self.packet()?;
        if self.config.errata.has(PtErrata::SKL168) {
            self.clock.calibration.psb_with_skl168();
        }
        let position = self.position;
        self.skip(size);
        self.read_header().inspect_err(|_| {
            // Decoding can be tried again from the PSB on.
            self.position = position;
            self.change(Wait::PsbEnd, Queue::clear);
            self.next = Some(Opcode::Psb);
        })
    }

    fn read_header(&mut self) -> Answer<()> {
        self.ip.reset();
        loop {
            let opcode = self.fetch_next()?;
            if opcode.flags() & opcode::PSBEND != 0 {
                return Ok(());
            }
            self.header(opcode)?;
        }
    }

    /// Publishes an event with the current time.
    pub(super) fn publish_now(&mut self, mut event: PtEvent) {
        self.clock.stamp(&mut event);
        self.event = Some(event);
    }

    /// Sets a word of an event to the last address; without one the address is suppressed.
    fn set_ip(&self, event: &mut PtEvent, word: usize) {
        let ip = self.ip.get();
        event.variant[word] = ip.unwrap_or(0);
        if ip.is_err() {
            event.flags |= flag::IP_SUPPRESSED;
        }
    }

    /// Publishes the first event that waits for the end of a PSB+. Returns true if there was one.
    pub(super) fn publish_status(&mut self) -> Answer<bool> {
        let Some(mut event) = self.pop(Wait::PsbEnd) else { return Ok(false) };
        event.flags |= flag::STATUS_UPDATE;
        self.clock.stamp(&mut event);
        match event.kind {
            kind::CBR => {}
            // An MNT can be anywhere, and says nothing about the state.
            kind::MNT => event.flags &= !flag::STATUS_UPDATE,
            _ => {
                let word = internal(event.ip_word())?;
                self.set_ip(&mut event, word);
            }
        }
        self.event = Some(event);
        Ok(true)
    }

    fn psbend(&mut self) -> Answer<()> {
        if !self.publish_status()? {
            self.skip(SHORT);
        }
        Ok(())
    }

    #[inline(never)]
    fn rare_ip(&self) -> Answer<(Ip, usize)> {
        match self.packet()? {
            (Packet::Tip(ip) | Packet::Fup(ip) | Packet::TipPge(ip) | Packet::TipPgd(ip), size) => {
                Ok((ip, size))
            }
            _ => Err(Code::Internal.status()),
        }
    }

    fn ip_packet(&mut self, opcode: Opcode) -> Answer<()> {
        let (ip, size) = match fast_packets::ip(self.rest()) {
            Some(known) => known,
            None => self.rare_ip()?,
        };
        self.ip.update(ip);
        let done = match opcode {
            Opcode::Tip if self.queue(Wait::Tip).is_empty() => true,
            Opcode::Tip => self.tip()?,
            Opcode::Fup => self.fup()?,
            Opcode::TipPge => self.tip_pge()?,
            _ => self.tip_pgd()?,
        };
        if done {
            self.skip(size);
        }
        Ok(())
    }

    /// Returns true if publishing an event of the queue has consumed the packet that the queue waits for.
    fn is_consumed(&mut self, wait: Wait) -> bool {
        self.queue(wait).is_empty() && std::mem::take(&mut self.consume)
    }

    fn tip(&mut self) -> Answer<bool> {
        let Some(mut event) = self.pop(Wait::Tip) else { return Ok(true) };
        let word = event.ip_word().ok_or(Code::BadContext.status())?;
        self.consume |= event.kind == kind::ASYNC_BRANCH;
        self.set_ip(&mut event, word);
        self.event = Some(event);
        Ok(self.is_consumed(Wait::Tip))
    }

    fn tip_pge(&mut self) -> Answer<bool> {
        // The enabling comes first, then the events that waited for the packet.
        let event = if self.consume {
            let mut event = internal(self.pop(Wait::Tip))?;
            if !matches!(event.kind, kind::EXEC_MODE | kind::IFLAGS) {
                return Err(Code::BadContext.status());
            }
            self.set_ip(&mut event, 1);
            event
        } else {
            let ip = self.ip.get().map_err(|_| Code::BadPacket.status())?;
            let mut event = PtEvent::new(kind::ENABLED, [ip, 0, 0]);
            self.clock.stamp(&mut event);
            self.outcomes = Outcomes::default();
            self.consume = true;
            self.enabled = true;
            event
        };
        self.event = Some(event);
        Ok(self.is_consumed(Wait::Tip))
    }

    fn tip_pgd(&mut self) -> Answer<bool> {
        let event = match self.pop(Wait::Tip) {
            Some(mut event) => {
                match event.kind {
                    kind::ASYNC_BRANCH => {
                        event.kind = kind::ASYNC_DISABLED;
                        self.set_ip(&mut event, 1);
                    }
                    // They come after tracing was disabled, where an address has no meaning.
                    kind::ASYNC_PAGING | kind::ASYNC_VMCS | kind::EXEC_MODE | kind::IFLAGS => {
                        event.flags |= flag::IP_SUPPRESSED
                    }
                    _ => return Err(Code::BadContext.status()),
                }
                event
            }
            None => {
                let mut event = PtEvent::new(kind::DISABLED, [0; 3]);
                self.set_ip(&mut event, 0);
                self.clock.stamp(&mut event);
                event
            }
        };
        self.event = Some(event);
        let done = self.queue(Wait::Tip).is_empty();
        if done {
            self.enabled = false;
        }
        Ok(done)
    }

    fn fup(&mut self) -> Answer<bool> {
        let ignored = std::mem::take(&mut self.ignores_fup);
        let Some(mut event) = self.pop(Wait::Fup) else {
            if ignored {
                return Ok(true);
            }
            let ip = self.ip.get().map_err(|error| Code::from(error).status())?;
            let mut event = PtEvent::new(kind::ASYNC_BRANCH, [ip, 0, 0]);
            self.clock.stamp(&mut event);
            no_memory(self.push(Wait::Tip, event))?;
            return Ok(true);
        };
        let begins_branch = event.kind == kind::TSX && event.variant[1] & flag::ABORTED != 0
            || event.flags & flag::SHARES_FUP != 0;
        event.flags &= !flag::SHARES_FUP;
        self.consume |= ignored || !begins_branch;
        if event.is_of_event_trace() {
            self.clock.stamp(&mut event);
        }
        if event.kind == kind::OVERFLOW {
            event.variant[0] = self.ip.get().map_err(|error| Code::from(error).status())?;
        } else if let Some(word) = event.ip_word() {
            self.set_ip(&mut event, word);
        }
        self.event = Some(event);
        Ok(self.is_consumed(Wait::Fup))
    }
}
