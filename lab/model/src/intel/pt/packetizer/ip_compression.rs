//! IP compression: an IP in a packet omits the upper bytes that it has in common with the last IP. Source: SDM vol. 3,
//! Intel Processor Trace, "Target IP (TIP) Packet", "IP Compression".

use pugmark_decoder_core::packet::Ip;

/// The last IP that a packet in the trace carries; `None` if readers may disagree about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastIp(Option<u64>);

impl LastIp {
    /// Returns the state at a PSB: zero.
    pub(crate) const fn new() -> Self {
        Self(Some(0))
    }

    /// Returns the shortest form from which a reader with the same last IP can rebuild `ip`.
    pub(crate) fn compress(self, ip: u64) -> Ip {
        let same_above = |bits: u32| self.0.is_some_and(|last| last >> bits == ip >> bits);
        let low48 = ip & 0xffff_ffff_ffff;
        if same_above(16) {
            Ip::Update16(ip & 0xffff)
        } else if same_above(32) {
            Ip::Update32(ip & 0xffff_ffff)
        } else if ((ip << 16) as i64 >> 16) as u64 == ip {
            Ip::SignExtend48(low48)
        } else if same_above(48) {
            Ip::Update48(low48)
        } else {
            Ip::Full(ip)
        }
    }

    pub(crate) fn set(&mut self, ip: u64) {
        self.0 = Some(ip);
    }

    /// Resets the last IP, as a PSB does.
    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }

    /// Clears the last IP at an OVF. In the manual, IPs after an OVF are compressed against the last one before it, but
    /// libipt clears that one. An IP that is not compressed is correct for both.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_shortest_form() {
        let rows: [(u64, u64, Ip); 10] = [
            (0, 0x1234, Ip::Update16(0x1234)),
            (0, 0, Ip::Update16(0)),
            (0, 0x40_1234, Ip::Update32(0x40_1234)),
            (0, 0x1_0040_1234, Ip::SignExtend48(0x1_0040_1234)),
            (0, 0x7fff_0040_1234, Ip::SignExtend48(0x7fff_0040_1234)),
            (0x7fff_0040_1234, 0x7fff_0040_0000, Ip::Update16(0)),
            (0x7fff_0040_1234, 0x7fff_1140_0000, Ip::Update32(0x1140_0000)),
            (0x7fff_0040_1234, 0xffff_8000_0000_1000, Ip::SignExtend48(0x8000_0000_1000)),
            (0x00aa_0000_0000_0000, 0x00aa_1111_2222_3333, Ip::Update48(0x1111_2222_3333)),
            (0, 0x00aa_1111_2222_3333, Ip::Full(0x00aa_1111_2222_3333)),
        ];
        for (last, ip, form) in rows {
            assert_eq!(LastIp(Some(last)).compress(ip), form, "{last:x} {ip:x}");
        }
    }
    #[test]
    fn an_ip_after_an_overflow_is_whole() {
        let mut last = LastIp::new();
        last.set(0x40_1000);
        last.forget();
        assert_eq!(last.compress(0x40_1000), Ip::SignExtend48(0x40_1000));
        assert_eq!(last.compress(0x00aa_0000_0000_0000), Ip::Full(0x00aa_0000_0000_0000));
    }
}
