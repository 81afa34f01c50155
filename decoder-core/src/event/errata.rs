//! Errata about overflows: what follows an OVF is not always what the manual says.
//!
//! Source: the specification updates of the 6th generation Intel Core processors (SKD010, "Intel PT FUP May be Dropped
//! After OVF") and of the Intel Atom processors of their time (APL12, "Intel PT OVF May Be Followed by an Unexpected
//! FUP Packet").

use super::{EventDecoder, is_aside, is_state};
use crate::{
    error::ErrorKind,
    last_ip::LastIp,
    packet::{Packet, Packets},
};

/// Where tracing goes on when the FUP behind an OVF is missing.
enum Resume {
    /// At this IP, and at this offset in the trace.
    At { ip: u64, offset: u64, last_ip: LastIp },
    /// Nowhere: a TIP.PGD at this offset ended it, and it is used up by that.
    Off { behind: u64, last_ip: LastIp },
}

impl EventDecoder<'_> {
    /// SKD010: an OVF whose FUP is missing. Whether something was found that takes its place; then the overflow is
    /// reported and packets go on behind it.
    pub(super) fn resume_by_skd010(&mut self, offset: u64) -> Result<bool, ErrorKind> {
        let Some(resume) = self.find_resume(offset) else { return Ok(false) };
        self.overflow = false;
        match resume {
            Resume::At { ip, offset, last_ip } => {
                self.last_ip = last_ip;
                self.packets.set_offset(offset);
                self.held = offset;
                self.tracing = true;
                self.publish_overflow(offset, Some(ip))?;
            }
            Resume::Off { behind, last_ip } => {
                self.last_ip = last_ip;
                self.packets.set_offset(behind);
                self.held = behind;
                self.tracing = false;
                self.publish_overflow(behind, None)?;
            }
        }
        Ok(true)
    }

    /// Looks ahead from the packet at `offset` for a place where tracing goes on.
    fn find_resume(&self, offset: u64) -> Option<Resume> {
        let mut packets = self.packets.clone();
        packets.set_offset(offset);
        let mut last_ip = self.last_ip;
        let mut tsx_seen = false;
        loop {
            let (at, packet) = packets.next()?.ok()?;
            match packet {
                Packet::Tip(ip) | Packet::Fup(ip) => {
                    let ip = last_ip.update(ip)?;
                    return Some(Resume::At { ip, offset: packets.offset(), last_ip });
                }
                Packet::TipPgd(ip) => {
                    last_ip.update(ip);
                    return Some(Resume::Off { behind: packets.offset(), last_ip });
                }
                Packet::Psb => {
                    let ip = psb_ip(&mut packets)?;
                    return Some(Resume::At { ip, offset: at, last_ip });
                }
                Packet::ModeTsx(_) if !tsx_seen => tsx_seen = true,
                Packet::TipPge(_)
                | Packet::Ovf
                | Packet::TraceStop
                | Packet::TntShort(_)
                | Packet::TntLong(_)
                | Packet::ModeTsx(_)
                | Packet::PsbEnd => return None,
                _ => {}
            }
        }
    }

    /// APL12: a FUP behind an OVF although tracing is off by then, as what follows it says.
    pub(super) fn went_off_by_apl12(&self) -> bool {
        let mut packets = self.packets.clone();
        loop {
            let Some(Ok((_, packet))) = packets.next() else { return false };
            match packet {
                Packet::TraceStop | Packet::TipPge(_) => return true,
                Packet::Psb => return has_no_fup(&mut packets),
                Packet::Exstop(_) | Packet::Mwait(_) | Packet::Pwre(_) | Packet::Pwrx(_) => {}
                _ if is_aside(&packet) || is_state(&packet) => {}
                _ => return false,
            }
        }
    }
}

/// The IP of the FUP in a PSB+ whose PSB was read already.
fn psb_ip(packets: &mut Packets<'_>) -> Option<u64> {
    loop {
        match packets.next()?.ok()?.1 {
            Packet::Fup(ip) => return LastIp::new().update(ip),
            Packet::PsbEnd | Packet::Ovf => return None,
            _ => {}
        }
    }
}

/// Whether a whole PSB+ says that tracing is off.
fn has_no_fup(packets: &mut Packets<'_>) -> bool {
    loop {
        match packets.next() {
            Some(Ok((_, Packet::PsbEnd))) => return true,
            Some(Ok((_, Packet::Fup(_) | Packet::Ovf))) | Some(Err(_)) | None => return false,
            _ => {}
        }
    }
}
