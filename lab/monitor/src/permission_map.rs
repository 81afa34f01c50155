//! The permission maps of the VMCB (virtual machine control block): they select the MSRs and ports that are
//! intercepted.
//!
//! Source: AMD64 Architecture Programmer's Manual vol. 2, Secure Virtual Machine, "MSR Intercepts", "IOIO Intercepts".

/// Size in bytes of the MSR permission map.
pub const MSR_MAP_BYTES: usize = 8 << 10;
/// Size in bytes of the I/O permission map.
pub const PORT_MAP_BYTES: usize = 12 << 10;

/// Sets whether reads and writes of `msr` are intercepted. MSRs outside the map are always intercepted.
pub fn intercept_msr(map: &mut [u8; MSR_MAP_BYTES], msr: u32, read: bool, write: bool) {
    if let Some(bit) = msr_bit(msr) {
        let (byte, shift) = (bit / 8, bit % 8);
        map[byte] = map[byte] & !(0b11 << shift) | u8::from(read) << shift | u8::from(write) << (shift + 1);
    }
}

/// Returns the position of the read bit of `msr`; the write bit follows it. `None` outside the three mapped ranges.
#[must_use]
pub const fn msr_bit(msr: u32) -> Option<usize> {
    let base = match msr & !0x1fff {
        0 => 0,
        0xc000_0000 => 0x800,
        0xc001_0000 => 0x1000,
        _ => return None,
    };
    Some(base * 8 + 2 * (msr & 0x1fff) as usize)
}

/// Returns all MSRs that the map covers.
pub fn mapped_msrs() -> impl Iterator<Item = u32> {
    [0, 0xc000_0000, 0xc001_0000].into_iter().flat_map(|base| base..base + 0x2000)
}

/// Intercepts `ports` consecutive ports starting at `first`.
pub fn intercept_ports(map: &mut [u8; PORT_MAP_BYTES], first: u16, ports: u16) {
    for port in usize::from(first)..usize::from(first) + usize::from(ports) {
        map[port / 8] |= 1 << (port % 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_msr_has_its_two_bits() {
        let rows = [
            (0, Some(0)),
            (0x570, Some(0x570 * 2)),
            (0x1fff, Some(0x3ffe)),
            (0x2000, None),
            (0xbfff_ffff, None),
            (0xc000_0000, Some(0x4000)),
            (0xc000_0080, Some(0x4100)),
            (0xc000_2000, None),
            (0xc001_0000, Some(0x8000)),
            (0xc001_1030, Some(0x8000 + 0x2060)),
            (0xc001_1fff, Some(0xbffe)),
            (0xffff_ffff, None),
        ];
        for (msr, bit) in rows {
            assert_eq!(msr_bit(msr), bit, "{msr:#x}");
        }
        assert!(mapped_msrs().all(|msr| msr_bit(msr).is_some_and(|bit| bit / 8 < MSR_MAP_BYTES)));
    }

    #[test]
    fn reads_and_writes_are_intercepted_apart() {
        let mut map = [0; MSR_MAP_BYTES];
        intercept_msr(&mut map, 0x571, true, false);
        intercept_msr(&mut map, 0xc000_0081, false, true);
        intercept_msr(&mut map, 0x4000_0000, true, true);
        assert_eq!((map[0x571 / 4], map[0x800 + 0x81 / 4]), (0b0100, 0b1000));
        assert_eq!(map.iter().map(|byte| byte.count_ones()).sum::<u32>(), 2);
        intercept_msr(&mut map, 0x571, false, true);
        assert_eq!(map[0x571 / 4], 0b1000);
    }

    #[test]
    fn each_port_has_its_bit() {
        let mut map = [0; PORT_MAP_BYTES];
        intercept_ports(&mut map, 0xf4, 4);
        intercept_ports(&mut map, 0xe700, 1);
        assert_eq!((map[0xf4 / 8], map[0xe700 / 8]), (0xf0, 1));
        assert_eq!(map.iter().map(|byte| byte.count_ones()).sum::<u32>(), 5);
    }
}
