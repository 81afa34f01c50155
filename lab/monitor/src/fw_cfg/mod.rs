//! QEMU's firmware configuration device, as the guest accesses it: its memory map shows the guest's RAM, and its DMA
//! reaches nothing else.
//!
//! Source: QEMU, docs/specs/fw_cfg.rst; hw/nvram/fw_cfg.c for details that the document leaves open.

use alloc::vec::Vec;
use core::ops::RangeInclusive;

use crate::boot_info::{MemoryKind, MemoryRange};
use crate::firmware_map;
use crate::guest::GuestMemory;
use crate::guest_map::GuestRam;

/// Ports of the device.
pub const PORTS: RangeInclusive<u16> = 0x510..=0x51b;

/// The selector, written with 16 bits; a read of 8 bits reads data.
const SELECTOR: u16 = 0x510;
/// Data, 8 bits.
const DATA: u16 = 0x511;
/// The address of a DMA request, big-endian: its high half, and its low half, which starts the request.
const DMA_HIGH: u16 = 0x514;
const DMA_LOW: u16 = 0x518;

/// A bit of a key that a selection ignores.
const WRITE_CHANNEL: u16 = 1 << 14;

/// Keys of items that exist on every machine.
mod key {
    pub(super) const SIGNATURE: u16 = 0;
    pub(super) const INTERFACES: u16 = 1;
    pub(super) const RAM_SIZE: u16 = 3;
    pub(super) const DIRECTORY: u16 = 0x19;
}

/// A bit of the item that lists the interfaces.
const INTERFACE_DMA: u8 = 1 << 1;
/// Content of the DMA interface's ports.
const SIGNATURE: &[u8; 8] = b"QEMU CFG";

/// Size in bytes of an entry of the directory: its item's size and key, a reserved word, a name of 56 bytes.
const ENTRY: usize = 64;
/// Maximum number of files that are searched.
const MAX_FILES: usize = 4096;
/// Size in bytes of a range in the memory map.
const RANGE: usize = 20;

/// Bits of a DMA request's control word.
mod control {
    pub(super) const ERROR: u32 = 1 << 0;
    pub(super) const READ: u32 = 1 << 1;
    pub(super) const SKIP: u32 = 1 << 2;
    pub(super) const SELECT: u32 = 1 << 3;
    pub(super) const WRITE: u32 = 1 << 4;
}

/// The device itself.
pub trait FwCfgDevice {
    /// Selects an item; the next byte read is its first one.
    fn select(&mut self, key: u16);

    /// Reads the next byte of the selected item; 0 after its end.
    fn read(&mut self) -> u8;

    /// Executes a DMA request, and returns the control word that the device leaves.
    fn request(&mut self, control: u32, bytes: u32, address: u64) -> u32;
}

/// An item whose content the monitor provides.
#[derive(Debug)]
struct OwnItem {
    key: u16,
    bytes: Vec<u8>,
}

/// The device as the guest sees it at its ports.
#[derive(Debug)]
pub struct FwCfg {
    ram: GuestRam,
    own: Vec<OwnItem>,
    selected: u16,
    /// Offset of the next byte of the selected item, if it is one of `own`.
    offset: usize,
    has_dma: bool,
    dma_high: u32,
}

/// An address in a DMA request where the guest has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingMemory(pub u64);

impl FwCfg {
    /// Builds new items for the RAM size of a guest with this RAM. Returns `None` if there is no such device.
    pub fn new(device: &mut impl FwCfgDevice, ram: GuestRam) -> Option<Self> {
        if item(device, key::SIGNATURE, 4) != b"QEMU" {
            return None;
        }
        // These items cannot express a hole.
        let [below, _] = ram.ranges();
        let ram_size = OwnItem { key: key::RAM_SIZE, bytes: below.end.to_le_bytes().into() };
        let mut own = Vec::from([ram_size]);
        let count = u32::from_be_bytes(item(device, key::DIRECTORY, 4).try_into().ok()?) as usize;
        let mut directory = item(device, key::DIRECTORY, 4 + count.min(MAX_FILES) * ENTRY);
        for entry in directory[4..].chunks_exact_mut(ENTRY) {
            let (numbers, name) = entry.split_at_mut(8);
            if !name.starts_with(b"etc/e820\0") {
                continue;
            }
            let size = u32::from_be_bytes([numbers[0], numbers[1], numbers[2], numbers[3]]);
            let key = u16::from_be_bytes([numbers[4], numbers[5]]);
            let bytes = map_bytes(&firmware_map::of_guest(&map(&item(device, key, size as usize)), ram));
            numbers[..4].copy_from_slice(&(bytes.len() as u32).to_be_bytes());
            own.push(OwnItem { key, bytes });
        }
        own.push(OwnItem { key: key::DIRECTORY, bytes: directory });
        let has_dma = item(device, key::INTERFACES, 1)[0] & INTERFACE_DMA != 0;
        device.select(key::SIGNATURE);
        Some(Self { ram, own, selected: key::SIGNATURE, offset: 0, has_dma, dma_high: 0 })
    }

    /// Reads `bytes` bytes from one of [`PORTS`].
    pub fn read(&mut self, device: &mut impl FwCfgDevice, port: u16, bytes: u32) -> u32 {
        match (port, bytes) {
            (SELECTOR | DATA, 1) => self.next_byte(device).into(),
            (DMA_HIGH.., _) if self.has_dma => {
                let bytes = SIGNATURE.iter().skip(usize::from(port - DMA_HIGH)).take(bytes as usize);
                bytes.rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
            }
            _ => u32::MAX,
        }
    }

    /// Writes to one of [`PORTS`], for a guest with this memory.
    ///
    /// # Errors
    /// If a DMA request names memory that the guest does not have. The request ends with an error, and nothing there is
    /// read or written.
    pub fn write<M: GuestMemory>(
        &mut self,
        device: &mut impl FwCfgDevice,
        memory: &mut M,
        port: u16,
        bytes: u32,
        value: u32,
    ) -> Result<(), MissingMemory> {
        match (port, bytes) {
            (SELECTOR, 2) => self.select(device, value as u16),
            (DMA_HIGH, 4) => self.dma_high = value.swap_bytes(),
            (DMA_LOW, 4) if self.has_dma => {
                let high = core::mem::take(&mut self.dma_high);
                return self.dma(device, memory, u64::from(high) << 32 | u64::from(value.swap_bytes()));
            }
            _ => {}
        }
        Ok(())
    }

    fn select(&mut self, device: &mut impl FwCfgDevice, key: u16) {
        (self.selected, self.offset) = (key & !WRITE_CHANNEL, 0);
        device.select(key);
    }

    fn own_item(&self) -> Option<&OwnItem> {
        self.own.iter().find(|item| item.key == self.selected)
    }

    fn next_byte(&mut self, device: &mut impl FwCfgDevice) -> u8 {
        let Some(item) = self.own_item() else { return device.read() };
        let byte = item.bytes.get(self.offset).copied();
        self.offset += usize::from(byte.is_some());
        byte.unwrap_or(0)
    }

    /// Executes the DMA request at `address`.
    fn dma<M: GuestMemory>(
        &mut self,
        device: &mut impl FwCfgDevice,
        memory: &mut M,
        address: u64,
    ) -> Result<(), MissingMemory> {
        let mut request = [0; 16];
        if !memory.read(address, &mut request) {
            return Err(MissingMemory(address));
        }
        let word =
            |at: usize| u32::from_be_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]]);
        let (requested, bytes) = (word(0), word(4));
        let target = u64::from(word(8)) << 32 | u64::from(word(12));
        if requested & control::SELECT != 0 {
            self.select(device, (requested >> 16) as u16);
        }
        let (left, result) = self.transfer(device, memory, requested, bytes, target);
        memory.store(address, &left.to_be_bytes());
        result
    }

    /// Transfers the bytes of a request, and returns its final control word.
    fn transfer<M: GuestMemory>(
        &mut self,
        device: &mut impl FwCfgDevice,
        memory: &mut M,
        requested: u32,
        bytes: u32,
        target: u64,
    ) -> (u32, Result<(), MissingMemory>) {
        use control::{ERROR, READ, SKIP, WRITE};
        // Only one of them takes effect, in this order.
        let operation = [READ, WRITE, SKIP].into_iter().find(|bit| requested & bit != 0).unwrap_or(0);
        let reached = match operation {
            READ | WRITE => self.ram.reached(target, bytes),
            _ => bytes,
        };
        let left = match self.own_item() {
            None if operation == 0 || reached == 0 && bytes != 0 => 0,
            None => device.request(operation, reached, target),
            Some(_) if operation == READ => {
                self.copy_to(memory, target, reached);
                0
            }
            Some(item) if operation == SKIP => {
                self.offset = item.bytes.len().min(self.offset.saturating_add(bytes as usize));
                0
            }
            // None of these items may be written.
            Some(_) => operation & WRITE,
        };
        let left = if left == 0 { 0 } else { ERROR };
        if reached == bytes {
            return (left, Ok(()));
        }
        (ERROR, Err(MissingMemory(target.saturating_add(reached.into()))))
    }

    /// Copies the next bytes of an item of `own` into memory, and zeros after its end.
    fn copy_to<M: GuestMemory>(&mut self, memory: &mut M, mut target: u64, bytes: u32) {
        let mut left = bytes as usize;
        let rest = self.own_item().map_or(&[][..], |item| &item.bytes[self.offset..]);
        let there = &rest[..rest.len().min(left)];
        if !there.is_empty() {
            memory.store(target, there);
        }
        let copied = there.len();
        self.offset += copied;
        target += copied as u64;
        left -= copied;
        while left > 0 {
            let zeros = &[0; 256][..left.min(256)];
            memory.store(target, zeros);
            target += zeros.len() as u64;
            left -= zeros.len();
        }
    }
}

/// Reads the first bytes of an item.
fn item(device: &mut impl FwCfgDevice, key: u16, bytes: usize) -> Vec<u8> {
    device.select(key);
    (0..bytes).map(|_| device.read()).collect()
}

fn map(bytes: &[u8]) -> Vec<MemoryRange> {
    let long = |bytes: &[u8]| bytes.iter().rev().fold(0, |long, byte| long << 8 | u64::from(*byte));
    let range = |bytes: &[u8]| MemoryRange {
        start: long(&bytes[..8]),
        bytes: long(&bytes[8..16]),
        kind: MemoryKind::from_e820(long(&bytes[16..]) as u32),
    };
    bytes.chunks_exact(RANGE).map(range).collect()
}

fn map_bytes(map: &[MemoryRange]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for range in map {
        bytes.extend_from_slice(&range.start.to_le_bytes());
        bytes.extend_from_slice(&range.bytes.to_le_bytes());
        bytes.extend_from_slice(&range.kind.to_e820().to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests;
