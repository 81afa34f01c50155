//! Physical memory that knows which blocks are allocated.

use pugmark_kernel::memory::{Frames, Request};
use pugmark_model::PhysMemory;
use std::alloc::{Layout, alloc, dealloc};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use x86_64::PhysAddr;

/// Memory from [`Ram::BASE`] on. The processor can access only allocated blocks.
#[derive(Debug)]
pub(crate) struct Ram {
    memory: NonNull<u8>,
    size: u64,
    next: Cell<u64>,
    live: RefCell<Vec<(PhysAddr, Request)>>,
    /// The number of the allocation that fails.
    pub(crate) fail_at: Cell<Option<u32>>,
    pub(crate) allocations: Cell<u32>,
    /// The remaining blocks of more than 4 KiB, by their sizes; `None` if there are as many as fit.
    pub(crate) pieces: RefCell<Option<Vec<u64>>>,
    /// Addresses that the processor wrote to although nothing is allocated there.
    pub(crate) strays: RefCell<Vec<u64>>,
    /// True if freed blocks are given out again.
    pub(crate) reuses: Cell<bool>,
    freed: RefCell<Vec<(PhysAddr, Request)>>,
    /// The number of bytes that the processor has written.
    written: Cell<u32>,
    /// For each byte, its number in the stream of written bytes, from 1, and its value; 0 if the processor has not
    /// written it.
    numbers: RefCell<Vec<u32>>,
    traced: RefCell<Vec<u8>>,
}

impl Ram {
    pub(crate) const BASE: u64 = 0x1000_0000;

    pub(crate) fn new(size: usize) -> Self {
        // SAFETY: no test asks for 0 bytes.
        let memory = NonNull::new(unsafe { alloc(in_pages(size)) }).expect("memory");
        // SAFETY: just allocated with this size.
        unsafe { memory.write_bytes(0x5a, size) };
        Self {
            memory,
            size: size as u64,
            next: Cell::new(Self::BASE),
            live: RefCell::default(),
            fail_at: Cell::new(None),
            allocations: Cell::new(0),
            pieces: RefCell::new(None),
            strays: RefCell::default(),
            reuses: Cell::new(false),
            freed: RefCell::default(),
            written: Cell::new(0),
            numbers: RefCell::new(vec![0; size]),
            traced: RefCell::new(vec![0; size]),
        }
    }

    /// Returns the number of bytes that the processor has written.
    pub(crate) fn written(&self) -> u64 {
        u64::from(self.written.get())
    }

    /// Writes zeros over all bytes that the processor has written, unknown to the processor and the driver.
    pub(crate) fn clear_traced(&self) {
        for (n, _) in self.numbers.borrow().iter().enumerate().filter(|(_, number)| **number > 0) {
            self.traced.borrow_mut()[n] = 0;
            // SAFETY: within the memory.
            let byte = unsafe { self.memory.add(n) };
            // SAFETY: within the memory, which no reference points into now.
            unsafe { byte.write(0) };
        }
    }

    /// Returns the number of each byte in the stream of written bytes, from 0; `None` if the processor wrote no such
    /// byte there.
    pub(crate) fn numbers(&self, bytes: &[u8]) -> Vec<Option<u64>> {
        let start = bytes.as_ptr() as usize - self.memory.as_ptr() as usize;
        let (numbers, traced) = (self.numbers.borrow(), self.traced.borrow());
        let of = |(n, byte): (usize, &u8)| {
            let number = u64::from(numbers[start + n]).checked_sub(1);
            number.filter(|_| traced[start + n] == *byte)
        };
        bytes.iter().enumerate().map(of).collect()
    }

    /// Returns whether these bytes lie in this memory.
    pub(crate) fn holds(&self, bytes: &[u8]) -> bool {
        let start = self.memory.as_ptr() as usize;
        (start..=start + self.size as usize - bytes.len()).contains(&(bytes.as_ptr() as usize))
    }

    /// Returns the number of allocated blocks.
    pub(crate) fn live(&self) -> usize {
        self.live.borrow().len()
    }

    /// Returns the addresses of the ToPA tables: the allocated blocks that begin with another block's address.
    pub(crate) fn tables(&self) -> Vec<u64> {
        let blocks: Vec<u64> = self.live.borrow().iter().map(|(start, _)| start.as_u64()).collect();
        let first = |block: u64| {
            let mut entry = [0; 8];
            assert!(PhysMemory::read(&self, block, &mut entry));
            u64::from_le_bytes(entry) & !0xfff
        };
        blocks.iter().copied().filter(|&block| blocks.contains(&first(block))).collect()
    }

    /// Returns the address of allocated block `n`, in the order of the allocations.
    pub(crate) fn block(&self, n: usize) -> u64 {
        self.live.borrow()[n].0.as_u64()
    }

    /// Returns whether an address lies in an allocated block.
    pub(crate) fn is_live(&self, address: u64) -> bool {
        self.reach(address, 1).is_some()
    }

    fn reach(&self, address: u64, len: usize) -> Option<NonNull<u8>> {
        let end = address.checked_add(len as u64)?;
        let live = self.live.borrow();
        let block = live.iter().any(|(start, request)| {
            let start = start.as_u64();
            start <= address && end <= start + request.size
        });
        // SAFETY: blocks are in the memory.
        block.then(|| unsafe { self.memory.add((address - Self::BASE) as usize) })
    }
}

// SAFETY: each block is allocated once, as requested, from memory that stays.
unsafe impl Frames for Ram {
    fn allocate(&self, request: Request) -> Option<PhysAddr> {
        let nth = self.allocations.replace(self.allocations.get() + 1);
        let same = self.freed.borrow().iter().position(|(_, freed)| *freed == request);
        if let Some(n) = same.filter(|_| self.reuses.get()) {
            let block = self.freed.borrow_mut().swap_remove(n);
            self.live.borrow_mut().push(block);
            return Some(block.0);
        }
        let start = self.next.get().next_multiple_of(request.align);
        let end = start + request.size;
        if self.fail_at.get() == Some(nth) || end > (Self::BASE + self.size).min(request.limit) {
            return None;
        }
        if let Some(pieces) = self.pieces.borrow_mut().as_mut().filter(|_| request.size > 0x1000) {
            let piece = pieces.iter().position(|&piece| piece == request.size)?;
            pieces.remove(piece);
        }
        // Leave a page between two blocks, so that writes beyond a block are noticed.
        self.next.set(end + 0x1000);
        self.live.borrow_mut().push((PhysAddr::new(start), request));
        Some(PhysAddr::new(start))
    }

    unsafe fn free(&self, address: PhysAddr, request: Request) {
        let mut live = self.live.borrow_mut();
        let n =
            live.iter().position(|block| *block == (address, request)).expect("a block that was given out");
        live.remove(n);
        self.freed.borrow_mut().push((address, request));
    }

    fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
        // SAFETY: blocks are in the memory.
        unsafe { self.memory.add((address.as_u64() - Self::BASE) as usize) }
    }
}

impl PhysMemory for &Ram {
    fn read(&self, addr: u64, out: &mut [u8]) -> bool {
        let Some(from) = self.reach(addr, out.len()) else { return false };
        // SAFETY: in one block, and there is no mutable reference to it.
        unsafe { from.as_ptr().copy_to(out.as_mut_ptr(), out.len()) };
        true
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.reach(addr, bytes.len()) else {
            self.strays.borrow_mut().push(addr);
            return false;
        };
        // SAFETY: in one block, and there is no reference to it while the processor writes.
        unsafe { to.as_ptr().copy_from(bytes.as_ptr(), bytes.len()) };
        let start = (addr - Ram::BASE) as usize;
        self.traced.borrow_mut()[start..start + bytes.len()].copy_from_slice(bytes);
        for number in &mut self.numbers.borrow_mut()[start..start + bytes.len()] {
            self.written.set(self.written.get() + 1);
            *number = self.written.get();
        }
        true
    }
}

/// Returns the layout of memory whose addresses are as aligned as the physical ones, up to a page.
fn in_pages(size: usize) -> Layout {
    Layout::from_size_align(size, 0x1000).expect("a size that fits")
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` like this, and no block is still in use.
        unsafe { dealloc(self.memory.as_ptr(), in_pages(self.size as usize)) };
    }
}
