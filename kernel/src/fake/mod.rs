//! Fake registers and frames for the unit tests beside the code; the tests in `tests/` run on the model instead.

mod linear;

pub(crate) use linear::FakeLinear;

use crate::intel::errata::Errata;
use crate::intel::pt::PtCapabilities;
use crate::memory::{Frames, Request};
use crate::msr::{GeneralProtection, Msr};
use core::ptr::NonNull;
use pugmark_decoder_core::errata::Cpu;
use std::alloc::{Layout, alloc, dealloc};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use x86_64::PhysAddr;

/// Registers that keep the values written to them.
#[derive(Debug, Default)]
pub(crate) struct FakeMsr {
    values: BTreeMap<u32, u64>,
    pub(crate) writes: Vec<(u32, u64)>,
    pub(crate) reads: Vec<u32>,
    /// True if writes are ignored and reads return 0.
    pub(crate) dead: bool,
    /// The number of the access that faults.
    pub(crate) fault_at: Option<usize>,
    accesses: usize,
}

impl FakeMsr {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn get(&self, address: u32) -> u64 {
        self.values.get(&address).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, address: u32, value: u64) {
        self.values.insert(address, value);
    }

    /// Makes the access after this many more accesses fault.
    pub(crate) fn fault_in(&mut self, accesses: usize) {
        self.fault_at = Some(self.accesses + accesses);
    }

    fn access(&mut self, fault: GeneralProtection) -> Result<(), GeneralProtection> {
        self.accesses += 1;
        match self.fault_at == Some(self.accesses - 1) {
            true => Err(fault),
            false => Ok(()),
        }
    }
}

// SAFETY: the registers represent no hardware.
unsafe impl Msr for FakeMsr {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        self.access(GeneralProtection { address, written: None })?;
        self.reads.push(address);
        Ok(self.get(address))
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        self.access(GeneralProtection { address, written: Some(value) })?;
        self.writes.push((address, value));
        if !self.dead {
            self.set(address, value);
        }
        Ok(())
    }
}

/// Returns capabilities with every feature, four ranges and every encoding.
pub(crate) fn capabilities() -> PtCapabilities {
    PtCapabilities {
        ebx: 0x3ff,
        ecx: 0x8000_000f,
        address_ranges: 4,
        mtc_freqs: 0xffff,
        cyc_thresholds: 0xffff,
        psb_freqs: 0xffff,
        triggers: None,
        physical_address_bits: 39,
        linear_address_bits: 48,
        tsc_ratio: None,
        base_mhz: None,
        bus_mhz: None,
        invariant_tsc: true,
        cpu: Cpu::intel(0, 0, 0),
        vmx: false,
        errata: Errata::empty(),
    }
}

/// Memory from physical address [`FakeFrames::BASE`] on, allocated once. It panics if a block is freed that is not
/// allocated, and if a block was not freed at the end.
#[derive(Debug)]
pub(crate) struct FakeFrames {
    memory: FakePages,
    next: Cell<u64>,
    live: RefCell<Vec<(PhysAddr, Request)>>,
    /// The number of the allocation that fails.
    pub(crate) fail_at: Cell<Option<usize>>,
    /// Added to each address, to imitate an allocator that does not satisfy the request.
    pub(crate) skew: Cell<u64>,
    pub(crate) allocations: Cell<usize>,
}

impl FakeFrames {
    pub(crate) const BASE: u64 = 0x10_0000;

    pub(crate) fn new(size: usize) -> Self {
        Self {
            memory: FakePages::new(size, 0xa5),
            next: Cell::new(Self::BASE),
            live: RefCell::default(),
            fail_at: Cell::new(None),
            skew: Cell::new(0),
            allocations: Cell::new(0),
        }
    }

    pub(crate) fn live(&self) -> usize {
        self.live.borrow().len()
    }

    /// Writes to memory as the processor does.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        let at = (address - Self::BASE) as usize;
        assert!(at + bytes.len() <= self.memory.size);
        // SAFETY: within the memory.
        let to = unsafe { self.memory.start.add(at) };
        // SAFETY: within the memory, which no reference points into now.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }
}

// SAFETY: each block is allocated once, from memory that stays, as requested unless a test skews it.
unsafe impl Frames for FakeFrames {
    fn allocate(&self, request: Request) -> Option<PhysAddr> {
        let nth = self.allocations.replace(self.allocations.get() + 1);
        let start = self.next.get().next_multiple_of(request.align) + self.skew.get();
        let end = start + request.size;
        if self.fail_at.get() == Some(nth) || end > Self::BASE + self.memory.size as u64 {
            return None;
        }
        self.next.set(end);
        self.live.borrow_mut().push((PhysAddr::new(start), request));
        Some(PhysAddr::new(start))
    }

    unsafe fn free(&self, address: PhysAddr, request: Request) {
        let mut live = self.live.borrow_mut();
        let n =
            live.iter().position(|block| *block == (address, request)).expect("a block that was given out");
        live.remove(n);
    }

    fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
        // SAFETY: within the memory, as every allocated block.
        unsafe { self.memory.start.add((address.as_u64() - Self::BASE) as usize) }
    }
}

impl Drop for FakeFrames {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(*self.live.borrow(), []);
        }
    }
}

/// Memory whose addresses are as aligned as those that a fake gives out, up to a page.
#[derive(Debug)]
struct FakePages {
    start: NonNull<u8>,
    size: usize,
}

impl FakePages {
    fn new(size: usize, fill: u8) -> Self {
        // SAFETY: no test asks for 0 bytes.
        let start = NonNull::new(unsafe { alloc(Self::layout(size)) }).expect("memory");
        // SAFETY: just allocated with this size.
        unsafe { start.write_bytes(fill, size) };
        Self { start, size }
    }

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 0x1000).expect("a size that fits")
    }
}

impl Drop for FakePages {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` like this, and the fake's blocks are no longer used.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.size)) };
    }
}
