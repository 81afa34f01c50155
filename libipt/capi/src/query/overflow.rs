//! Overflows: finds out if tracing is enabled afterwards, which errata obscure.

use super::decoder::{Answer, QueryDecoder};
use crate::{
    config::PtErrata,
    error::Code,
    event::{PtEvent, Wait, flag, kind as event_kind},
    packet::{LEAF_TSX, PtPacket, field, kind},
    packets::CallerPackets,
};
use pugmark_ipt::Clock;

/// The result of looking for a place to resume after the overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handled {
    Yes,
    No,
}

/// Returns the next packet, or `None` at the end of the trace.
fn next(packets: &mut CallerPackets) -> Answer<Option<(PtPacket, u64)>> {
    match packets.next() {
        Ok(packet) => Ok(Some(packet)),
        Err(error) if error == Code::EndOfStream.status() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Looks for the FUP of a PSB+. `None`: the trace ends before that; `Some(None)`: the PSB+ has no FUP.
fn header_fup(packets: &mut CallerPackets) -> Answer<Option<Option<PtPacket>>> {
    loop {
        let Some((packet, _)) = next(packets)? else { return Ok(None) };
        match packet.kind {
            kind::PSBEND => return Ok(Some(None)),
            kind::FUP => return Ok(Some(Some(packet))),
            _ => {}
        }
    }
}

/// The place to resume, and the time there.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    clock: Clock,
}

impl QueryDecoder {
    pub(super) fn ovf(&mut self) -> Answer<()> {
        // A PSB+ that the overflow has cut off ends here.
        if self.publish_status()? {
            return Ok(());
        }
        let time = self.clock.time;
        self.reset();
        self.clock.time = time;
        self.skip(2);
        let fup = self.find_fup();
        if let Ok(Some(size)) = fup {
            if self.config.errata.has(PtErrata::APL12) && self.handle_apl12(size)? == Handled::Yes {
                return Ok(());
            }
            let mut event = PtEvent::new(event_kind::OVERFLOW, [0; 3]);
            self.clock.stamp(&mut event);
            self.enabled = true;
            return self.push(Wait::Fup, event).ok_or(Code::Internal.status());
        }
        if self.config.errata.has(PtErrata::SKD010) && self.handle_skd010()? == Handled::Yes {
            return Ok(());
        }
        if self.config.errata.has(PtErrata::APL11)
            && fup == Err(Code::BadContext.status())
            && self.handle_apl11()? == Handled::Yes
        {
            return Ok(());
        }
        match fup {
            // At the end of the trace the overflow stands alone.
            Err(error) if error != Code::EndOfStream.status() => Err(error),
            _ => {
                self.overflow_disabled();
                Ok(())
            }
        }
    }

    /// Publishes an overflow after which tracing is disabled.
    fn overflow_disabled(&mut self) {
        self.enabled = false;
        let mut event = PtEvent::new(event_kind::OVERFLOW, [0; 3]);
        event.flags |= flag::IP_SUPPRESSED;
        self.publish_now(event);
    }

    /// Looks for the FUP at which tracing resumes. Returns the distance from the overflow to the FUP's end, or `None`
    /// if a packet says that tracing is disabled.
    fn find_fup(&self) -> Answer<Option<usize>> {
        let mut packets = self.scanner(0)?;
        let begin = packets.position();
        loop {
            let (packet, _) = packets.next()?;
            match packet.kind {
                kind::FUP => {
                    let size = packets.position().zip(begin).map(|(end, begin)| (end - begin) as usize);
                    return Ok(size);
                }
                kind::INVALID => return Err(Code::BadOpcode.status()),
                kind::UNKNOWN | kind::PAD | kind::MNT => {}
                time if kind::is_time(time) => {}
                kind::PSBEND | kind::TIP | kind::TIP_PGD | kind::TNT_8 | kind::TNT_64 => {
                    return Err(Code::BadContext.status());
                }
                _ => return Ok(None),
            }
        }
    }

    /// Resumes at a place where tracing is enabled, at a packet's address.
    fn recover(&mut self, packet: &PtPacket, place: Place) -> Answer<Handled> {
        let mut ip = self.ip;
        ip.update(packet.address());
        let address = ip.get().map_err(|_| Code::BadContext.status())?;
        self.position = Some(place.offset as usize);
        self.enabled = true;
        self.ip = ip;
        *self.clock_mut().0 = place.clock;
        self.publish_now(PtEvent::new(event_kind::OVERFLOW, [address, 0, 0]));
        Ok(Handled::Yes)
    }

    /// Resumes at a place where tracing is disabled.
    fn recover_disabled(&mut self, place: Place) -> Answer<Handled> {
        self.position = Some(place.offset as usize);
        *self.clock_mut().0 = place.clock;
        self.overflow_disabled();
        Ok(Handled::Yes)
    }

    /// Handles erratum SKD010: the FUP after the overflow is missing. If anything, a later packet says where tracing
    /// resumes.
    fn handle_skd010(&mut self) -> Answer<Handled> {
        let mut packets = self.scanner(0)?;
        let mut clock = self.clock;
        let mut tsx = None;
        loop {
            let offset = packets.position().ok_or(Code::NoSync.status())?;
            let Some((packet, size)) = next(&mut packets)? else { return Ok(Handled::No) };
            let here = Place { offset, clock };
            match packet.kind {
                kind::TIP_PGD => return self.recover_disabled(Place { offset: offset + size, clock }),
                kind::TIP => return self.recover(&packet, Place { offset: offset + size, clock }),
                // Decoding resumes at the MODE.TSX that the FUP belongs to.
                kind::FUP => return self.recover(&packet, tsx.unwrap_or(here)),
                kind::PSB => {
                    let Some(Some(fup)) = header_fup(&mut packets)? else { return Ok(Handled::No) };
                    return self.recover(&fup, here);
                }
                kind::PSBEND => return Err(Code::BadContext.status()),
                kind::MODE if packet.get(field::MODE_LEAF) == LEAF_TSX => {
                    if tsx.is_some() {
                        return Ok(Handled::No);
                    }
                    tsx = Some(here);
                }
                kind::EXSTOP if packet.flag(field::EXSTOP_IP) => return Ok(Handled::No),
                kind::PTW if packet.flag(field::PTW_IP) => return Ok(Handled::No),
                kind::PIP
                | kind::VMCS
                | kind::MODE
                | kind::PAD
                | kind::MNT
                | kind::PWRE
                | kind::PWRX
                | kind::EXSTOP
                | kind::PTW => {}
                time if kind::is_time(time) => clock.apply(&packet, &self.clocks)?,
                // TIP.PGE, OVF and STOP: no erratum. TNT, MWAIT and unknown packets: nothing can be done.
                _ => return Ok(Handled::No),
            }
        }
    }

    /// Handles erratum APL12: there is a FUP although tracing is disabled after the overflow. A later packet shows
    /// that.
    fn handle_apl12(&mut self, size: usize) -> Answer<Handled> {
        let mut packets = self.scanner(size)?;
        loop {
            let Some((packet, _)) = next(&mut packets)? else { return Ok(Handled::No) };
            match packet.kind {
                kind::STOP | kind::TIP_PGE => break,
                kind::PSB => match header_fup(&mut packets)? {
                    Some(None) => break,
                    _ => return Ok(Handled::No),
                },
                kind::PSBEND => return Err(Code::BadContext.status()),
                kind::TNT_8
                | kind::TNT_64
                | kind::TIP
                | kind::TIP_PGD
                | kind::OVF
                | kind::UNKNOWN
                | kind::INVALID => {
                    return Ok(Handled::No);
                }
                _ => {}
            }
        }
        self.resume_disabled(size)
    }

    /// Resumes after the FUP, with tracing disabled. Packets before the FUP update the time.
    fn resume_disabled(&mut self, size: usize) -> Answer<Handled> {
        let mut packets = self.scanner(0)?;
        let end = packets.position().ok_or(Code::NoSync.status())? + size as u64;
        loop {
            let Some((packet, _)) = next(&mut packets)? else { return Ok(Handled::Yes) };
            match packets.position() {
                Some(next) if next == end => break,
                Some(next) if next > end => return Err(Code::Internal.status()),
                _ => {}
            }
            match packet.kind {
                kind::MODE | kind::PIP | kind::VMCS => return Err(Code::Internal.status()),
                _ => {
                    let (clock, clocks) = self.clock_mut();
                    clock.apply(&packet, clocks)?;
                }
            }
        }
        self.skip(size);
        self.overflow_disabled();
        Ok(Handled::Yes)
    }

    /// Handles erratum APL11: there is a TIP.PGD too many after the overflow. Decoding resumes after it.
    fn handle_apl11(&mut self) -> Answer<Handled> {
        let mut packets = self.scanner(0)?;
        let mut clock = self.clock;
        loop {
            let (packet, _) = packets.next()?;
            match packet.kind {
                kind::TIP_PGD => {
                    let offset = packets.position().ok_or(Code::NoSync.status())?;
                    return self.recover_disabled(Place { offset, clock });
                }
                kind::INVALID => return Err(Code::BadOpcode.status()),
                kind::UNKNOWN | kind::PAD | kind::MNT => {}
                kind::PSBEND | kind::TIP | kind::TNT_8 | kind::TNT_64 => {
                    return Err(Code::BadContext.status());
                }
                time if kind::is_time(time) => clock.apply(&packet, &self.clocks)?,
                _ => return Ok(Handled::No),
            }
        }
    }
}
