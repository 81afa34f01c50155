//! The device is a fake that behaves as QEMU's; memory is a slice.

extern crate std;

use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::memory::SliceMemory;

const MIB: u64 = 1 << 20;
const E820: u16 = 0x28;
const WRITABLE: u16 = 0x29;
const REQUEST: u64 = 0x1000;
const TARGET: u64 = 0x2000;

/// QEMU's device: its items, and the DMA requests that it received.
#[derive(Default)]
struct Fake {
    items: BTreeMap<u16, Vec<u8>>,
    selected: u16,
    offset: usize,
    requests: Vec<(u32, u32, u64)>,
}

impl FwCfgDevice for Fake {
    fn select(&mut self, key: u16) {
        (self.selected, self.offset) = (key & 0xbfff, 0);
    }

    fn read(&mut self) -> u8 {
        let byte = self.items.get(&self.selected).and_then(|item| item.get(self.offset)).copied();
        self.offset += usize::from(byte.is_some());
        byte.unwrap_or(0)
    }

    fn request(&mut self, control: u32, bytes: u32, address: u64) -> u32 {
        self.requests.push((control, bytes, address));
        u32::from(control & control::WRITE != 0 && self.selected != WRITABLE)
    }
}

/// Returns a machine with 512 MiB.
fn fake() -> Fake {
    let e820 = map_bytes(&[MemoryRange { start: 0, bytes: 512 * MIB, kind: MemoryKind::Ram }]);
    let mut directory = 2_u32.to_be_bytes().to_vec();
    for (name, size, key) in [("etc/other", 9_u32, WRITABLE), ("etc/e820", e820.len() as u32, E820)] {
        let mut entry = [0; ENTRY];
        entry[..4].copy_from_slice(&size.to_be_bytes());
        entry[4..6].copy_from_slice(&key.to_be_bytes());
        entry[8..8 + name.len()].copy_from_slice(name.as_bytes());
        directory.extend(entry);
    }
    let items = BTreeMap::from([
        (key::SIGNATURE, b"QEMU".to_vec()),
        (key::INTERFACES, vec![3, 0, 0, 0]),
        (key::RAM_SIZE, (512 * MIB).to_le_bytes().to_vec()),
        (key::DIRECTORY, directory),
        (E820, e820),
        (WRITABLE, b"something".to_vec()),
    ]);
    Fake { items, ..Fake::default() }
}

struct Guest {
    device: Fake,
    fw_cfg: FwCfg,
    ram: Vec<u8>,
}

impl Guest {
    fn with_ram(mib: u64) -> Self {
        let mut device = fake();
        let ram = GuestRam::up_to(mib * MIB).unwrap();
        let fw_cfg = FwCfg::new(&mut device, ram).unwrap();
        Self { device, fw_cfg, ram: vec![0xaa; 0x1_0000] }
    }

    fn out(&mut self, port: u16, bytes: u32, value: u32) -> Result<(), MissingMemory> {
        let mut memory = SliceMemory { base: 0, bytes: &mut self.ram };
        self.fw_cfg.write(&mut self.device, &mut memory, port, bytes, value)
    }

    fn item(&mut self, key: u16, bytes: usize) -> Vec<u8> {
        self.out(0x510, 2, key.into()).unwrap();
        (0..bytes).map(|_| self.fw_cfg.read(&mut self.device, 0x511, 1) as u8).collect()
    }

    /// Makes a DMA request; returns the control word that it leaves, and the missing memory.
    fn dma(&mut self, control: u32, bytes: u32, target: u64) -> (u32, Result<(), MissingMemory>) {
        let request = [control.to_be_bytes(), bytes.to_be_bytes()].concat();
        self.ram[REQUEST as usize..][..8].copy_from_slice(&request);
        self.ram[REQUEST as usize + 8..][..8].copy_from_slice(&target.to_be_bytes());
        self.out(0x514, 4, 0).unwrap();
        let result = self.out(0x518, 4, (REQUEST as u32).swap_bytes());
        let left = self.ram[REQUEST as usize..][..4].try_into().unwrap();
        (u32::from_be_bytes(left), result)
    }
}

fn ranges(bytes: &[u8]) -> Vec<(u64, u64, u32)> {
    map(bytes).iter().map(|range| (range.start, range.end(), range.kind.to_e820())).collect()
}

#[test]
fn the_memory_map_has_the_guests_ram_and_the_directory_its_size() {
    for (mib, expected) in [
        (64, &[(0, 64 * MIB, 1), (64 * MIB, 512 * MIB, 2)][..]),
        (256, &[(0, 256 * MIB, 1), (256 * MIB, 512 * MIB, 2)]),
        (
            400,
            &[
                (0, 256 * MIB, 1),
                (256 * MIB, 320 * MIB, 2),
                (320 * MIB, 400 * MIB, 1),
                (400 * MIB, 512 * MIB, 2),
            ],
        ),
    ] {
        let mut guest = Guest::with_ram(mib);
        let directory = guest.item(key::DIRECTORY, 4 + 2 * ENTRY);
        assert_eq!(
            directory[..4 + ENTRY],
            fake().items[&key::DIRECTORY][..4 + ENTRY],
            "others are as they were"
        );
        let size = u32::from_be_bytes(directory[4 + ENTRY..][..4].try_into().unwrap()) as usize;
        assert_eq!(size, expected.len() * RANGE, "{mib}");
        // The bit for writing selects the same item.
        for key in [E820, E820 | 0x4000] {
            assert_eq!(ranges(&guest.item(key, size)), expected, "{mib}");
            assert_eq!(guest.fw_cfg.read(&mut guest.device, 0x510, 1), 0, "after its end");
        }
        let ram_size = u64::from_le_bytes(guest.item(key::RAM_SIZE, 8).try_into().unwrap());
        assert_eq!(ram_size, mib.min(256) * MIB);
        assert_eq!(guest.item(WRITABLE, 9), b"something");
    }
}

#[test]
fn dma_of_an_item_of_the_monitors_own_needs_no_device() {
    let mut guest = Guest::with_ram(256);
    let (select, read, skip) = (control::SELECT, control::READ, control::SKIP);
    let e820 = u32::from(E820) << 16 | select;
    assert_eq!(guest.dma(e820 | read, 44, TARGET), (0, Ok(())));
    let found = &guest.ram[TARGET as usize..][..44];
    assert_eq!(ranges(&found[..40]), [(0, 256 * MIB, 1), (256 * MIB, 512 * MIB, 2)]);
    assert_eq!(found[40..], [0; 4]);
    assert_eq!(guest.ram[TARGET as usize + 44], 0xaa);
    // The rest of the first range, after its first eight bytes, then the second range.
    assert_eq!(guest.dma(e820 | skip, 20, 0), (0, Ok(())));
    assert_eq!(guest.dma(read, 8, TARGET), (0, Ok(())));
    assert_eq!(guest.ram[TARGET as usize..][..8], (256 * MIB).to_le_bytes());
    assert_eq!(guest.dma(e820 | control::WRITE, 8, TARGET), (control::ERROR, Ok(())));
    assert_eq!(guest.device.requests, []);
}

#[test]
fn dma_reaches_the_guests_memory_and_no_other() {
    let (select, read, write) = (control::SELECT, control::READ, control::WRITE);
    let item = u32::from(WRITABLE) << 16 | select;
    let monitor = 256 * MIB;
    // The request, its bytes and its target; the request to the device, the control word, and the missing memory.
    for (requested, bytes, target, passed, left, missing) in [
        (item | read, 9, TARGET, Some((read, 9, TARGET)), 0, None),
        (item | write, 9, TARGET, Some((write, 9, TARGET)), 0, None),
        (item | read, 9, monitor, None, 1, Some(monitor)),
        (item | write, 9, monitor, None, 1, Some(monitor)),
        (item | read, 9, monitor + 0x1234, None, 1, Some(monitor + 0x1234)),
        (item | read, 9, monitor - 4, Some((read, 4, monitor - 4)), 1, Some(monitor)),
        (item | read, u32::MAX, TARGET, Some((read, (monitor - TARGET) as u32, TARGET)), 1, Some(monitor)),
        (item | read, 9, u64::MAX - 3, None, 1, Some(u64::MAX - 3)),
        (item | control::SKIP, 9, monitor, Some((control::SKIP, 9, monitor)), 0, None),
        // An error does not begin a request, and neither does a selection alone.
        (item | control::ERROR, 9, monitor, None, 0, None),
        (u32::from(E820) << 16 | select | read, 9, monitor, None, 1, Some(monitor)),
    ] {
        let mut guest = Guest::with_ram(256);
        let expected = (left, missing.map_or(Ok(()), |address| Err(MissingMemory(address))));
        assert_eq!(guest.dma(requested, bytes, target), expected, "{requested:#x} {bytes} {target:#x}");
        assert_eq!(
            guest.device.requests,
            passed.into_iter().collect::<Vec<_>>(),
            "{requested:#x} {target:#x}"
        );
    }
    let mut guest = Guest::with_ram(256);
    guest.out(0x514, 4, 0x10_u32.swap_bytes()).unwrap();
    let request = guest.out(0x518, 4, 0);
    assert_eq!(request, Err(MissingMemory(0x10 << 32)), "the request itself is where no memory is");
    // The high half applies once: the next request is the one at address 0.
    assert_eq!(guest.out(0x518, 4, 0), Err(MissingMemory(0xaaaa_aaaa_aaaa_aaaa)));
}

#[test]
fn other_accesses_have_no_effect() {
    let mut guest = Guest::with_ram(256);
    guest.item(WRITABLE, 1);
    for (port, bytes) in [(0x510, 1), (0x511, 1), (0x510, 4), (0x511, 2), (0x512, 1), (0x514, 1), (0x518, 2)]
    {
        guest.out(port, bytes, u32::from(E820)).unwrap();
    }
    let mut read = |port, bytes| guest.fw_cfg.read(&mut guest.device, port, bytes);
    assert_eq!(read(0x511, 1), u32::from(b'o'), "the same item is selected");
    for (port, bytes) in [(0x510, 2), (0x510, 4), (0x511, 2), (0x512, 1)] {
        assert_eq!(read(port, bytes), u32::MAX, "{port:#x} {bytes}");
    }
    assert_eq!(read(0x510, 1), u32::from(b'm'));
    assert_eq!((read(0x514, 4), read(0x518, 4), read(0x519, 1)), (0x554d_4551, 0x4746_4320, 0x43));
}

#[test]
fn without_the_device_there_is_nothing_and_without_dma_no_dma() {
    assert!(FwCfg::new(&mut Fake::default(), GuestRam::BELOW_MONITOR).is_none());
    let mut device = fake();
    device.items.insert(key::INTERFACES, vec![1, 0, 0, 0]);
    let fw_cfg = FwCfg::new(&mut device, GuestRam::BELOW_MONITOR).unwrap();
    let mut guest = Guest { device, fw_cfg, ram: vec![0; 0x1_0000] };
    assert_eq!(guest.fw_cfg.read(&mut guest.device, 0x514, 4), u32::MAX);
    let request = control::READ;
    assert_eq!(guest.dma(request, 4, TARGET), (request, Ok(())));
}
