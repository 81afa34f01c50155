//! A guest that begins in the BIOS, which boots from the machine's next device, such as a disk or a CD.
//!
//! The BIOS has initialised the machine before it started the monitor, and its functions report the RAM of the whole
//! machine. A resident part, at the end of the conventional memory as that of many an option ROM, answers those that
//! report RAM in its place, and passes all others on. The guest begins in it with INT 18H, the BIOS's function to boot
//! from the next device.
//!
//! Source: Ralf Brown's Interrupt List, INT 12, INT 15/AH=88h, INT 15/AX=E801h, INT 15/AX=E820h, INT 18, and MEMORY.LST
//! for the BIOS's data area; ACPI specification, "System Address Map Interfaces".

use alloc::vec::Vec;
use core::fmt;

use crate::boot_info::MemoryRange;
use crate::firmware_map;
use crate::guest::{Cpu, DescriptorTableRegister, Gpr, GuestMemory};
use crate::guest_map::GuestRam;

/// Size of the resident part in bytes. The BIOS counts conventional memory in KiB.
const BYTES: u64 = RESIDENT_KIB << 10;
const RESIDENT_KIB: u64 = 2;
/// Offset in the resident part of the vector of INT 15H that was found: offset and segment.
pub const OLD_VECTOR: usize = 0x100;
/// Offset of the memory from 1 MiB on, as AH=88H reports it in AX: KiB, of which old software accepts less than 64 MiB.
pub const EXTENDED: usize = 0x104;
/// Offset of the memory from 1 MiB to 16 MiB, as AX=E801H reports it in AX and CX: KiB.
pub const BELOW_16_MIB: usize = 0x106;
/// Offset of the memory from 16 MiB on, as AX=E801H reports it in BX and DX: units of 64 KiB.
pub const ABOVE_16_MIB: usize = 0x108;
/// Offset of the number of ranges that AX=E820H reports, 16 bits.
pub const RANGES: usize = 0x10a;
/// Offset of these ranges.
pub const MAP: usize = 0x110;
/// Size of a range: address and length in 8 bytes each, the kind in 4.
pub const RANGE_BYTES: usize = 20;
const MOST_RANGES: usize = (BYTES as usize - MAP) / RANGE_BYTES;

/// The BIOS's word with the size of conventional memory in KiB, which INT 12H reports.
const CONVENTIONAL_KIB: u64 = 0x413;
/// The interrupt vector of the BIOS's system functions.
const INT15: u64 = 0x15 * 4;
/// The address at which boot sectors start; the stack is below it.
const BOOT_SECTOR: u64 = 0x7c00;

/// The code of the resident part. It begins with the guest's first instruction.
#[derive(Clone, Copy, Debug)]
pub struct ResidentCode<'a> {
    /// The code, for offset 0 of the resident part.
    pub bytes: &'a [u8],
    /// Offset of the handler of INT 15H.
    pub int15: u16,
}

/// The reason why a guest cannot begin in the BIOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BiosError {
    /// The machine has not been started by a BIOS: it has no conventional memory of this size in KiB.
    NoBios(u16),
    /// The BIOS reports this number of ranges of memory, for which the resident part has no room.
    Ranges(usize),
    /// The code is larger than its room.
    Code(usize),
}

impl fmt::Display for BiosError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBios(kib) => {
                write!(f, "there is no BIOS to return to: its data area has {kib} KiB of conventional memory")
            }
            Self::Ranges(count) => {
                write!(f, "the BIOS reports {count} ranges of memory, {MOST_RANGES} are the most")
            }
            Self::Code(bytes) => write!(f, "the code of {bytes} bytes is larger than {OLD_VECTOR}"),
        }
    }
}

impl core::error::Error for BiosError {}

/// Puts the resident part into the guest's `memory`, which is `ram`, and lets the BIOS report the guest's part of
/// `firmware`, the map that it has reported itself. Returns the guest's first state: real-address mode, with the stack
/// below the address of boot sectors.
///
/// # Errors
/// If there is no BIOS, or its map is too long.
pub fn install(
    code: ResidentCode<'_>,
    firmware: &[MemoryRange],
    ram: GuestRam,
    memory: &mut impl GuestMemory,
) -> Result<Cpu, BiosError> {
    let kib = u16::from_le_bytes(bytes_at(memory, CONVENTIONAL_KIB).ok_or(BiosError::NoBios(0))?);
    if !(64..=640).contains(&kib) {
        return Err(BiosError::NoBios(kib));
    }
    let left = u64::from(kib) - RESIDENT_KIB;
    let start = left << 10;
    let segment = (start >> 4) as u16;
    let map = firmware_map::reserve(&firmware_map::of_guest(firmware, ram), start..start + BYTES);
    let old = bytes_at(memory, INT15).ok_or(BiosError::NoBios(kib))?;
    let resident = resident(code, old, &map, ram)?;

    let [offset, segment_bytes] = [code.int15, segment].map(u16::to_le_bytes);
    let vector = [offset[0], offset[1], segment_bytes[0], segment_bytes[1]];
    let placed = memory.write(start, &resident)
        && memory.write(CONVENTIONAL_KIB, &(left as u16).to_le_bytes())
        && memory.write(INT15, &vector);
    if !placed {
        return Err(BiosError::NoBios(kib));
    }
    let mut cpu = Cpu::default();
    cpu.init(0);
    cpu.cs.selector = segment;
    cpu.cs.base = start;
    cpu.rip = 0;
    cpu.set(Gpr::Rdx, 0);
    cpu.set(Gpr::Rsp, BOOT_SECTOR);
    cpu.idtr = DescriptorTableRegister { base: 0, limit: 0x3ff };
    Ok(cpu)
}

/// Returns the bytes of the resident part.
fn resident(
    code: ResidentCode<'_>,
    old_vector: [u8; 4],
    map: &[MemoryRange],
    ram: GuestRam,
) -> Result<Vec<u8>, BiosError> {
    if code.bytes.len() > OLD_VECTOR {
        return Err(BiosError::Code(code.bytes.len()));
    }
    if map.len() > MOST_RANGES {
        return Err(BiosError::Ranges(map.len()));
    }
    let mut out = alloc::vec![0; BYTES as usize];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, code.bytes);
    put(OLD_VECTOR, &old_vector);
    let [extended, above] = firmware_map::extended(ram);
    for (at, value) in [
        (EXTENDED, extended.min(63 << 10)),
        (BELOW_16_MIB, extended.min(15 << 10)),
        (ABOVE_16_MIB, above),
        (RANGES, map.len() as u16),
    ] {
        put(at, &value.to_le_bytes());
    }
    for (range, at) in map.iter().zip((MAP..).step_by(RANGE_BYTES)) {
        put(at, &range.start.to_le_bytes());
        put(at + 8, &range.bytes.to_le_bytes());
        put(at + 16, &range.kind.to_e820().to_le_bytes());
    }
    Ok(out)
}

fn bytes_at<const N: usize>(memory: &impl GuestMemory, address: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    memory.read(address, &mut bytes).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_info::MemoryKind;
    use crate::guest::Mode;
    use crate::memory::SliceMemory;

    const CODE: ResidentCode<'static> = ResidentCode { bytes: &[0xfb, 0xcd, 0x18], int15: 2 };
    const MIB: u64 = 1 << 20;

    fn firmware() -> [MemoryRange; 4] {
        [
            (0, 0x9_fc00, MemoryKind::Ram),
            (0x9_fc00, 0xa_0000, MemoryKind::Reserved),
            (MIB, 0x1ffe_0000, MemoryKind::Ram),
            (0x1ffe_0000, 0x2000_0000, MemoryKind::Reserved),
        ]
        .map(|(start, end, kind)| MemoryRange { start, bytes: end - start, kind })
    }

    /// Returns the first MiB of a machine whose BIOS has `kib` KiB of conventional memory.
    fn machine(kib: u16) -> Vec<u8> {
        let mut bytes = alloc::vec![0; MIB as usize];
        bytes[0x413..0x415].copy_from_slice(&kib.to_le_bytes());
        bytes[0x54..0x58].copy_from_slice(&[1, 2, 3, 4]);
        bytes
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        u16::from_le_bytes([bytes[at], bytes[at + 1]]).into()
    }

    fn long(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn the_resident_part_is_at_the_end_of_conventional_memory_and_reports_the_guests_ram() {
        let mut bytes = machine(639);
        let mut memory = SliceMemory { base: 0, bytes: &mut bytes };
        let cpu = install(CODE, &firmware(), GuestRam::BELOW_MONITOR, &mut memory).unwrap();
        const START: usize = 637 << 10;
        assert_eq!((cpu.mode(), cpu.cs.base, cpu.rip, cpu.cpl), (Mode::Real, START as u64, 0, 0));
        assert_eq!((cpu.cs.selector, cpu.get(Gpr::Rsp), cpu.ss.base), ((START >> 4) as u16, 0x7c00, 0));
        assert_eq!(
            (word(&bytes, 0x413), word(&bytes, 0x54), word(&bytes, 0x56)),
            (637, 2, START as u64 >> 4)
        );
        let resident = &bytes[START..START + BYTES as usize];
        assert_eq!((&resident[..3], &resident[OLD_VECTOR..OLD_VECTOR + 4]), (CODE.bytes, &[1, 2, 3, 4][..]));
        let sizes = [EXTENDED, BELOW_16_MIB, ABOVE_16_MIB].map(|at| word(resident, at));
        assert_eq!(sizes, [63 << 10, 15 << 10, 240 << 4]);
        let expected =
            [(0, 637 << 10, 1), (637 << 10, 640 << 10, 2), (MIB, 256 * MIB, 1), (256 * MIB, 512 * MIB, 2)];
        assert_eq!(word(resident, RANGES), expected.len() as u64);
        for (index, (start, end, kind)) in expected.into_iter().enumerate() {
            let at = MAP + RANGE_BYTES * index;
            let range = (long(resident, at), long(resident, at) + long(resident, at + 8));
            assert_eq!((range, word(resident, at + 16)), ((start, end), kind), "{index}");
        }
    }

    #[test]
    fn a_small_guest_has_nothing_from_16_mib_on() {
        let mut bytes = machine(640);
        let mut memory = SliceMemory { base: 0, bytes: &mut bytes };
        install(CODE, &firmware(), GuestRam::up_to(8 * MIB).unwrap(), &mut memory).unwrap();
        let resident = &bytes[638 << 10..];
        let sizes = [EXTENDED, BELOW_16_MIB, ABOVE_16_MIB].map(|at| word(resident, at));
        assert_eq!(sizes, [7 << 10, 7 << 10, 0]);
    }

    #[test]
    fn without_a_bios_nothing_changes() {
        for kib in [0, 63, 641, u16::MAX] {
            let mut bytes = machine(kib);
            let mut memory = SliceMemory { base: 0, bytes: &mut bytes };
            let error = install(CODE, &firmware(), GuestRam::BELOW_MONITOR, &mut memory).unwrap_err();
            assert_eq!(error, BiosError::NoBios(kib));
            assert_eq!(bytes, machine(kib));
        }
        let mut bytes = machine(639);
        let mut memory = SliceMemory { base: 0, bytes: &mut bytes };
        let range = |index| MemoryRange { start: index * MIB, bytes: 1, kind: MemoryKind::Reserved };
        let map: Vec<_> = (1..=89).map(range).collect();
        let error = install(CODE, &map, GuestRam::BELOW_MONITOR, &mut memory).unwrap_err();
        assert_eq!(error, BiosError::Ranges(89));
        let long = ResidentCode { bytes: &[0; OLD_VECTOR + 1], int15: 0 };
        let error = install(long, &firmware(), GuestRam::BELOW_MONITOR, &mut memory).unwrap_err();
        assert_eq!(error, BiosError::Code(OLD_VECTOR + 1));
    }
}
