//! The last IP: packets hold only the low bits of an address (IP) and take the rest from the last IP sent.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "IP Compression".
//!
//! ```
//! use pugmark_decoder_core::{last_ip::LastIp, packet::Ip};
//!
//! let mut processor = LastIp::new();
//! let packets = [0xffff_8000_0000_1000, 0xffff_8000_0000_2000].map(|ip| processor.compress(ip));
//! assert_eq!(packets, [Ip::SignExtend48(0x8000_0000_1000), Ip::Update16(0x2000)]);
//!
//! let mut decoder = LastIp::new();
//! assert_eq!(packets.map(|ip| decoder.update(ip)), [Some(0xffff_8000_0000_1000), Some(0xffff_8000_0000_2000)]);
//! ```

use super::Ip;

/// The IP of the last packet that had one. The processor and the decoder each keep a copy.
///
/// Both set it to zero at a PSB. An overflow does not change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastIp {
    ip: u64,
    /// The reason why there is no current IP, if there is none.
    missing: Option<NoIp>,
}

/// The reason why there is no IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoIp {
    /// No packet had one since the start or the last reset.
    Never,
    /// The last packet suppressed it.
    Suppressed,
}

impl Default for LastIp {
    fn default() -> Self {
        Self::new()
    }
}

impl LastIp {
    /// Returns the last IP at the start: zero, with no packet seen.
    pub const fn new() -> Self {
        Self { ip: 0, missing: Some(NoIp::Never) }
    }

    /// Resets to zero and no packet seen, as at a PSB.
    pub const fn reset(&mut self) {
        *self = Self::new();
    }

    /// Applies a packet's IP and returns the address it stands for; `None` when the packet suppresses it.
    ///
    /// A suppressed IP leaves the last IP as it was.
    #[inline]
    pub const fn update(&mut self, ip: Ip) -> Option<u64> {
        match ip {
            Ip::Suppressed => {
                if self.missing.is_none() {
                    self.missing = Some(NoIp::Suppressed);
                }
                None
            }
            Ip::Update16(payload)
            | Ip::Update32(payload)
            | Ip::SignExtend48(payload)
            | Ip::Update48(payload)
            | Ip::Full(payload) => Some(self.update_by(ip.ip_bytes(), payload)),
        }
    }

    /// Applies the payload of a packet with this IPBytes field, which is neither 0 nor reserved, and returns the
    /// address it stands for: like [`update`](Self::update), for a caller that has both fields from the packet.
    #[inline(always)]
    pub const fn update_by(&mut self, form: u8, payload: u64) -> u64 {
        self.set(Self::updated(self.ip, form, payload));
        self.ip
    }

    /// Returns the address that the payload of a packet with this IPBytes field stands for after the address `base`. It
    /// has no branches, because the processor could not predict the next form.
    #[inline(always)]
    pub(crate) const fn updated(base: u64, form: u8, payload: u64) -> u64 {
        /// Indexed by IPBytes: the bits of the last IP to keep, and the number of bits above the payload that repeat
        /// its highest bit.
        const KEPT: [(u64, u8); 8] =
            [(!0, 0), (!0xffff, 0), (!0xffff_ffff, 0), (0, 16), (!LOW_48, 0), (!0, 0), (0, 0), (!0, 0)];
        let (kept, extended) = KEPT[(form & 7) as usize];
        let payload = ((payload << extended) as i64 >> extended) as u64;
        base & kept | payload & !kept
    }

    /// Sets `ip` as the last IP.
    #[inline(always)]
    pub(crate) const fn set(&mut self, ip: u64) {
        *self = Self { ip, missing: None };
    }

    /// Returns the address of the last packet.
    ///
    /// # Errors
    /// [`NoIp::Never`] before the first packet with an IP, [`NoIp::Suppressed`] when the last one had none.
    pub const fn get(&self) -> Result<u64, NoIp> {
        match self.missing {
            Some(missing) => Err(missing),
            None => Ok(self.ip),
        }
    }

    /// Returns the IP that others are compressed against: zero at the start, and not changed by suppressed IPs.
    pub(crate) const fn base(&self) -> u64 {
        self.ip
    }

    /// Returns the shortest form of `ip` after the packets so far and makes `ip` the last IP.
    ///
    /// If both six-byte forms are possible, the sign-extended one is used, as in processors: with 48-bit linear
    /// addresses they never need the other one. Update48 and Full are only for wider addresses.
    ///
    /// Compression is a processor's choice. In traces of model 6/85 TIP, TIP.PGE and TIP.PGD have this form unless they
    /// are the first IP after a PSB; that one, and every FUP, has the form of [`whole`](Self::whole). Model 6/79 sends
    /// every IP whole.
    pub const fn compress(&mut self, ip: u64) -> Ip {
        let differs = self.ip ^ ip;
        let form = if differs >> 16 == 0 {
            Ip::Update16(ip & 0xffff)
        } else if differs >> 32 == 0 {
            Ip::Update32(ip & 0xffff_ffff)
        } else if differs >> 48 == 0 && sign_extend_48(ip) != ip {
            Ip::Update48(ip & LOW_48)
        } else {
            uncompressed(ip)
        };
        self.update(form);
        form
    }

    /// Returns the shortest form of `ip` that does not depend on the last IP and makes `ip` the last IP.
    pub const fn whole(&mut self, ip: u64) -> Ip {
        let form = uncompressed(ip);
        self.update(form);
        form
    }
}

const LOW_48: u64 = (1 << 48) - 1;

const fn uncompressed(ip: u64) -> Ip {
    if sign_extend_48(ip) == ip { Ip::SignExtend48(ip & LOW_48) } else { Ip::Full(ip) }
}

const fn sign_extend_48(low: u64) -> u64 {
    ((low << 16) as i64 >> 16) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_replaces_its_bytes_and_keeps_the_rest() {
        let start = 0x1122_3344_5566_7788;
        for (ip, expected) in [
            (Ip::Suppressed, None),
            (Ip::Update16(0xabcd), Some(0x1122_3344_5566_abcd)),
            (Ip::Update32(0x89ab_cdef), Some(0x1122_3344_89ab_cdef)),
            (Ip::Update48(0x4567_89ab_cdef), Some(0x1122_4567_89ab_cdef)),
            (Ip::SignExtend48(0x4567_89ab_cdef), Some(0x0000_4567_89ab_cdef)),
            (Ip::SignExtend48(0x8567_89ab_cdef), Some(0xffff_8567_89ab_cdef)),
            (Ip::Full(0x0123_4567_89ab_cdef), Some(0x0123_4567_89ab_cdef)),
        ] {
            let mut last = LastIp::new();
            last.update(Ip::Full(start));
            let mut by_form = last;
            assert_eq!(last.update(ip), expected, "{ip:x?}");
            let form = match ip {
                Ip::Suppressed => None,
                Ip::Update16(payload) => Some((1, payload)),
                Ip::Update32(payload) => Some((2, payload)),
                Ip::SignExtend48(payload) => Some((3, payload)),
                Ip::Update48(payload) => Some((4, payload)),
                Ip::Full(payload) => Some((6, payload)),
            };
            if let Some((form, payload)) = form {
                by_form.update(Ip::Suppressed);
                assert_eq!(Some(by_form.update_by(form, payload)), expected, "{ip:x?}");
                assert_eq!(by_form, last, "{ip:x?}");
            }
            assert_eq!(last.base(), expected.unwrap_or(start), "{ip:x?}");
            assert_eq!(last.get(), expected.ok_or(NoIp::Suppressed), "{ip:x?}");
        }
    }

    #[test]
    fn has_no_ip_before_the_first_and_after_a_reset() {
        let mut last = LastIp::default();
        assert_eq!((last, last.get()), (LastIp::new(), Err(NoIp::Never)));
        last.update(Ip::Suppressed);
        assert_eq!(last.get(), Err(NoIp::Never));
        assert_eq!(last.update(Ip::Update16(0x1234)), Some(0x1234));
        last.reset();
        assert_eq!((last.get(), last.base()), (Err(NoIp::Never), 0));
    }

    #[test]
    fn compresses_to_the_shortest_form() {
        for (last, ip, form) in [
            (0, 0x1234, Ip::Update16(0x1234)),
            (0x1234, 0x1234, Ip::Update16(0x1234)),
            (0, 0x1_0000, Ip::Update32(0x1_0000)),
            (0, 0x1_0000_0000, Ip::SignExtend48(0x1_0000_0000)),
            (0, 0x40_1000, Ip::Update32(0x40_1000)),
            (0x7fff_0040_1000, 0x7fff_1040_1000, Ip::Update32(0x1040_1000)),
            (0, 0x7fff_0040_1000, Ip::SignExtend48(0x7fff_0040_1000)),
            (0, 0xffff_ffff_8100_0000, Ip::SignExtend48(0xffff_8100_0000)),
            (0x7fff_0040_1000, 0xffff_ffff_8100_0000, Ip::SignExtend48(0xffff_8100_0000)),
            (0xffff_ffff_8100_0000, 0xffff_ffff_8100_2000, Ip::Update16(0x2000)),
            (0, 0xff11_0000_0000_0000, Ip::Full(0xff11_0000_0000_0000)),
            (0xff11_0000_0000_0000, 0xff11_1000_0000_0000, Ip::Update48(0x1000_0000_0000)),
            (0xff11_0000_0000_0000, 0xff10_0000_0000_0000, Ip::Full(0xff10_0000_0000_0000)),
            // Bits 63:48 match, but the sign-extended form gives the same without the last IP.
            (0xffff_8000_0000_0000, 0xffff_9000_0000_0000, Ip::SignExtend48(0x9000_0000_0000)),
        ] {
            let mut processor = LastIp::new();
            processor.update(Ip::Full(last));
            let mut decoder = processor;
            assert_eq!(processor.compress(ip), form, "{last:x} {ip:x}");
            assert_eq!((decoder.update(form), processor), (Some(ip), decoder), "{last:x} {ip:x}");
        }
    }

    #[test]
    fn whole_ips_do_not_need_the_last_one() {
        for (ip, form) in [
            (0x1234, Ip::SignExtend48(0x1234)),
            (0xffff_ffff_8100_0000, Ip::SignExtend48(0xffff_8100_0000)),
            (0xff11_0000_0000_0000, Ip::Full(0xff11_0000_0000_0000)),
        ] {
            let mut processor = LastIp::new();
            processor.compress(ip);
            assert_eq!(processor.whole(ip), form, "{ip:x}");
            assert_eq!((LastIp::new().update(form), processor.get()), (Some(ip), Ok(ip)), "{ip:x}");
        }
    }
}
