//! Access to physical memory, which the boot code identity-mapped.

use core::arch::asm;
use core::cell::Cell;

use pugmark_monitor::guest::GuestMemory;
use pugmark_monitor::guest_map::{GuestRam, LOCAL_APIC, PAGE};
use pugmark_truth::probe::REGION_BYTES;

/// Physical memory from address 0 up to an end, or the guest's RAM. Address 0 is an ordinary address in it, but a Rust
/// pointer must not be null; therefore the accesses are in assembly.
#[derive(Clone, Debug)]
pub(crate) struct Physical {
    extent: Extent,
    /// The last address without memory that the guest accessed.
    missing: Cell<Option<u64>>,
}

#[derive(Clone, Copy, Debug)]
enum Extent {
    /// All memory below this address.
    Below(u64),
    /// The guest's memory, which excludes the monitor; a region that its processors' hardware may also write, as
    /// address and size; and the ranges that firmware has left for the guest to read.
    Guest(GuestRam, (u64, u64), &'static [(u64, u64)]),
}

impl Physical {
    /// Returns memory below `end`.
    ///
    /// # Safety
    /// The memory must be identity-mapped and readable. A caller that writes through the value is responsible for the
    /// data that it overwrites.
    pub(crate) const unsafe fn below(end: u64) -> Self {
        Self { extent: Extent::Below(end), missing: Cell::new(None) }
    }

    /// Returns the guest's memory, the region of a probe if there is one, and ranges of the firmware's.
    ///
    /// # Safety
    /// As for [`Physical::below`].
    pub(crate) const unsafe fn guest(
        ram: GuestRam,
        probe: Option<u64>,
        firmware: &'static [(u64, u64)],
    ) -> Self {
        let probe = match probe {
            Some(region) => (region, REGION_BYTES),
            None => (0, 0),
        };
        Self { extent: Extent::Guest(ram, probe, firmware), missing: Cell::new(None) }
    }

    /// Returns, once, the last address without memory or device that the guest accessed.
    pub(crate) fn take_missing(&self) -> Option<u64> {
        self.missing.take()
    }

    fn has(&self, address: u64, bytes: usize) -> bool {
        match self.extent {
            Extent::Below(below) => address.checked_add(bytes as u64).is_some_and(|end| end <= below),
            Extent::Guest(ram, (first, more), _) => {
                let at = address.wrapping_sub(first);
                ram.contains(address, bytes) || at < more && bytes as u64 <= more - at
            }
        }
    }

    /// Returns whether devices or firmware answer for all of the range, which is within one page.
    fn has_other(&self, address: u64, bytes: usize) -> bool {
        let Extent::Guest(_, _, firmware) = self.extent else { return false };
        let end = address.saturating_add(bytes as u64);
        let device = (GuestRam::MAX_END..1 << 32).contains(&address) && address & !(PAGE - 1) != LOCAL_APIC;
        device && end <= 1 << 32 || firmware.iter().any(|range| range.0 <= address && end <= range.1)
    }
}

impl GuestMemory for Physical {
    fn read(&self, address: u64, out: &mut [u8]) -> bool {
        if !self.has(address, out.len()) {
            return false;
        }
        match out.len() {
            8 => out.copy_from_slice(&load(address)),
            // The bytes of an instruction: two overlapping loads are faster than a string instruction, which takes one
            // iteration per byte.
            9..=15 => {
                let tail = out.len() - 8;
                out[..8].copy_from_slice(&load(address));
                out[tail..].copy_from_slice(&load(address + tail as u64));
            }
            1..=7 => out.iter_mut().zip(address..).for_each(|(byte, address)| *byte = load_byte(address)),
            _ => copy(address, out),
        }
        true
    }

    fn holds(&self, address: u64, bytes: &[u8]) -> bool {
        if !self.has(address, bytes.len()) {
            return false;
        }
        let (longs, rest) = bytes.as_chunks::<8>();
        let mut address = address;
        for long in longs {
            if load(address) != *long {
                return false;
            }
            address += 8;
        }
        match bytes.last_chunk::<8>() {
            // A load that overlaps the previous one is faster than a load for each byte.
            Some(last) => rest.is_empty() || load(address + rest.len() as u64 - 8) == *last,
            None => rest.iter().zip(address..).all(|(byte, address)| load_byte(address) == *byte),
        }
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> bool {
        if !self.has(address, bytes.len()) {
            return false;
        }
        fill(address, bytes);
        true
    }

    fn load(&self, address: u64, out: &mut [u8]) {
        if self.read(address, out) {
            return;
        }
        if self.has_other(address, out.len()) {
            return copy(address, out);
        }
        out.fill(0xff);
        self.note_missing(address);
    }

    fn store(&mut self, address: u64, bytes: &[u8]) {
        if self.write(address, bytes) {
            return;
        }
        if self.has_other(address, bytes.len()) {
            return fill(address, bytes);
        }
        self.note_missing(address);
    }

    fn note_missing(&self, address: u64) {
        self.missing.set(Some(address));
    }

    fn replace(&mut self, address: u64, old: u8, new: u8) -> Option<bool> {
        self.has(address, 1).then(|| replace(address, old, new))
    }
}

/// Replaces the byte at `address` with `new` if it is `old`. The caller has checked that `address` is memory.
fn replace(address: u64, old: u8, new: u8) -> bool {
    let found: u8;
    // SAFETY: `Physical` calls this for addresses of its memory; the maker of that value has promised that they may be
    // written.
    unsafe {
        asm!(
            "lock cmpxchg byte ptr [{}], {}",
            in(reg) address, in(reg_byte) new, inout("al") old => found,
            options(nostack)
        );
    }
    found == old
}

/// Returns the eight bytes at `address`. The caller has checked that they are memory.
fn load(address: u64) -> [u8; 8] {
    let value: u64;
    // SAFETY: `Physical` calls this for addresses of its memory, which can be read.
    unsafe { asm!("mov {}, [{}]", out(reg) value, in(reg) address, options(nostack, readonly)) };
    value.to_le_bytes()
}

/// Returns the byte at `address`. The caller has checked that it is memory.
fn load_byte(address: u64) -> u8 {
    let value: u8;
    // SAFETY: as in `load`.
    unsafe {
        asm!("mov {}, byte ptr [{}]", out(reg_byte) value, in(reg) address, options(nostack, readonly))
    };
    value
}

/// Writes `bytes` at `address`. The caller has checked that all of them are guest memory.
fn fill(address: u64, bytes: &[u8]) {
    // SAFETY: source and destination are as long as `bytes`. The destination is the guest's, and the maker of the
    // `Physical` has promised that it may be written.
    unsafe {
        asm!(
            "rep movsq",
            "mov rcx, {tail}",
            "rep movsb",
            tail = in(reg) bytes.len() % 8,
            inout("rsi") bytes.as_ptr() => _, inout("rdi") address => _, inout("rcx") bytes.len() / 8 => _,
            options(nostack)
        );
    }
}

/// Fills `out` with the bytes at `address`. The caller has checked that all of them are memory.
fn copy(address: u64, out: &mut [u8]) {
    // SAFETY: source and destination are as long as `out`; the source is memory of a `Physical`.
    unsafe {
        asm!(
            "rep movsq",
            "mov rcx, {tail}",
            "rep movsb",
            tail = in(reg) out.len() % 8,
            inout("rsi") address => _, inout("rdi") out.as_mut_ptr() => _, inout("rcx") out.len() / 8 => _,
            options(nostack)
        );
    }
}
