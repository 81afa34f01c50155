//! Fake linear memory whose mappings a test can corrupt.

use super::FakePages;
use crate::intel::ds::{LinearMemory, LinearPage, LinearRequest, MemoryType};
use core::ptr::NonNull;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use x86_64::structures::paging::PageTableFlags;
use x86_64::{PhysAddr, VirtAddr};

/// A test's change to the mapping of a page; the arguments are address space, address, and the mapping.
type Spoil = Box<dyn Fn(usize, u64, &mut Option<LinearPage>)>;

/// Memory from linear address [`FakeLinear::BASE`] on, allocated once, mapped in two address spaces. It panics if a
/// block is freed that is not allocated, and if a block was not freed at the end. Clones are the same memory.
#[derive(Clone, Debug)]
pub(crate) struct FakeLinear(Rc<LinearState>);

struct LinearState {
    memory: FakePages,
    base: u64,
    next: Cell<u64>,
    live: RefCell<Vec<(VirtAddr, LinearRequest)>>,
    spaces: Cell<usize>,
    a20m: Cell<bool>,
    fail_at: Cell<Option<usize>>,
    skew: Cell<u64>,
    allocations: Cell<usize>,
    spoil: RefCell<Option<Spoil>>,
}

impl core::fmt::Debug for LinearState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "memory at {:#x}", self.base)
    }
}

impl FakeLinear {
    pub(crate) const BASE: u64 = 0xffff_9000_0000_0000;

    pub(crate) fn new() -> Self {
        Self::at(Self::BASE)
    }

    pub(crate) fn at(base: u64) -> Self {
        Self(Rc::new(LinearState {
            memory: FakePages::new(SIZE, 0x11),
            base,
            next: Cell::new(base),
            live: RefCell::default(),
            spaces: Cell::new(2),
            a20m: Cell::new(false),
            fail_at: Cell::new(None),
            skew: Cell::new(0),
            allocations: Cell::new(0),
            spoil: RefCell::new(None),
        }))
    }

    pub(crate) fn live(&self) -> usize {
        self.0.live.borrow().len()
    }

    /// Allows blocks to stay allocated without a panic.
    pub(crate) fn forget(&self) {
        self.0.live.borrow_mut().clear();
    }

    pub(crate) fn set_spaces(&self, spaces: usize) {
        self.0.spaces.set(spaces);
    }

    pub(crate) fn set_a20m(&self) {
        self.0.a20m.set(true);
    }

    /// Makes the allocation with this number fail.
    pub(crate) fn fail_at(&self, nth: usize) {
        self.0.fail_at.set(Some(nth));
    }

    /// Adds this to each address, to imitate an allocator that does not satisfy the request.
    pub(crate) fn skew(&self, skew: u64) {
        self.0.skew.set(skew);
    }

    pub(crate) fn spoil(&self, spoil: impl Fn(usize, u64, &mut Option<LinearPage>) + 'static) {
        *self.0.spoil.borrow_mut() = Some(Box::new(spoil));
    }

    /// Reads a field of `N` bytes as the processor sees it.
    pub(crate) fn read<const N: usize>(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: within the memory, which no reference points into now.
        bytes[..N].copy_from_slice(&unsafe { self.at_address(address).cast::<[u8; N]>().read_unaligned() });
        u64::from_le_bytes(bytes)
    }

    /// Writes a field of `N` bytes as the processor does.
    pub(crate) fn write<const N: usize>(&self, address: u64, value: u64) {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&value.to_le_bytes()[..N]);
        // SAFETY: within the memory, which no reference points into now.
        unsafe { self.at_address(address).cast::<[u8; N]>().write_unaligned(bytes) };
    }

    fn at_address(&self, address: u64) -> NonNull<u8> {
        let at = (address - self.0.base) as usize;
        assert!(at + 8 <= SIZE);
        // SAFETY: within the memory.
        unsafe { self.0.memory.start.add(at) }
    }
}

// SAFETY: each block is allocated once, from memory that stays, as requested unless a test skews it, and mapped as
// reported unless a test corrupts the mapping.
unsafe impl LinearMemory for FakeLinear {
    fn allocate(&self, request: LinearRequest) -> Option<VirtAddr> {
        let state = &*self.0;
        let nth = state.allocations.replace(state.allocations.get() + 1);
        let start = state.next.get() + state.skew.get();
        let end = start.wrapping_add(request.size);
        if state.fail_at.get() == Some(nth) || end.wrapping_sub(state.base) > SIZE as u64 {
            return None;
        }
        state.next.set(end);
        state.live.borrow_mut().push((VirtAddr::new(start), request));
        Some(VirtAddr::new(start))
    }

    unsafe fn free(&self, address: VirtAddr, request: LinearRequest) {
        let mut live = self.0.live.borrow_mut();
        let n =
            live.iter().position(|block| *block == (address, request)).expect("a block that was given out");
        live.remove(n);
    }

    fn pointer(&self, address: VirtAddr) -> NonNull<u8> {
        self.at_address(address.as_u64())
    }

    fn spaces(&self) -> usize {
        self.0.spaces.get()
    }

    fn page(&self, space: usize, address: VirtAddr) -> Option<LinearPage> {
        let flags = PageTableFlags::PRESENT
            | PageTableFlags::WRITABLE
            | PageTableFlags::ACCESSED
            | PageTableFlags::DIRTY
            | PageTableFlags::NO_EXECUTE;
        let mut page = Some(LinearPage {
            frame: PhysAddr::new(address.as_u64() & 0xff_ffff_f000),
            flags,
            memory_type: MemoryType::WriteBack,
            holds_code: false,
            pageable: false,
        });
        if let Some(spoil) = &*self.0.spoil.borrow() {
            spoil(space, address.as_u64(), &mut page);
        }
        page
    }

    fn a20m(&self) -> bool {
        self.0.a20m.get()
    }
}

const SIZE: usize = 4 << 20;

impl Drop for LinearState {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(*self.live.borrow(), []);
        }
    }
}
