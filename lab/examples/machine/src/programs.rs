//! Programs at user level: each in an address space of its own, in which the kernel is, too.

use crate::frames::SingleFrames;
use crate::threads::{self, Context};
use crate::{PHYSICAL_MEMORY_OFFSET, symbols};
use core::slice;
use elf::ElfBytes;
use elf::abi::{PF_W, PF_X, PT_LOAD};
use elf::endian::LittleEndian;
use x86_64::structures::paging::{
    FrameAllocator, Mapper, OffsetPageTable, Page, PageTable, PageTableFlags, PhysFrame, Size4KiB,
};
use x86_64::{VirtAddr, registers::control::Cr3};

const PAGE: u64 = 4096;
const PRESENT: PageTableFlags = PageTableFlags::PRESENT.union(PageTableFlags::USER_ACCESSIBLE);

/// The first stack's place; each thread's stack is this far from the next one, with nothing between them.
const STACKS: u64 = 0xa0_0000_0000;
const STACK: u64 = 16 << 10;
const STACK_DISTANCE: u64 = 1 << 20;

/// Embeds a program's ELF file; the name is known to the file's reader on the host.
#[macro_export]
macro_rules! program {
    ($path:expr) => {{
        // SAFETY: there is no other symbol of this name.
        #[unsafe(export_name = "program_file")]
        static FILE: [u8; include_bytes!($path).len()] = *include_bytes!($path);
        &FILE
    }};
}

/// A program in memory.
pub struct Program {
    /// The physical address of its page table.
    pub cr3: u64,
    /// The address of its code.
    pub start: u64,
    /// Its code.
    pub code: &'static [u8],
    entry: u64,
    threads: u64,
}

impl Program {
    /// Loads an ELF file into a new address space.
    pub fn load(file: &'static [u8]) -> Self {
        symbols::add(file);
        let elf = ElfBytes::<LittleEndian>::minimal_parse(file).expect("an ELF file");
        let table = new_frame();
        let mut program = Self {
            cr3: table.start_address().as_u64(),
            start: 0,
            code: &[],
            entry: elf.ehdr.e_entry,
            threads: 0,
        };
        // SAFETY: just allocated, and filled with zeros, which is an empty table.
        let own = unsafe { &mut *mapped(table).cast::<PageTable>() };
        // SAFETY: the table in use is mapped there; nobody changes its first level.
        let kernel = unsafe { &*mapped(Cr3::read().0).cast::<PageTable>() };
        for index in [0, 256] {
            own[index] = kernel[index].clone();
        }
        let segments = elf.segments().expect("segments").iter();
        for segment in segments.filter(|segment| segment.p_type == PT_LOAD) {
            let data = elf.segment_data(&segment).expect("the segment's bytes");
            if segment.p_flags & PF_X != 0 {
                (program.start, program.code) = (segment.p_vaddr, data);
            }
            program.map(segment.p_vaddr, segment.p_memsz, data, segment.p_flags & PF_W != 0);
        }
        program
    }

    /// Adds a thread, which starts at the program's entry with this argument. Returns its number.
    pub fn spawn(&mut self, argument: u64) -> usize {
        let bottom = STACKS + self.threads * STACK_DISTANCE;
        self.map(bottom, STACK, &[], true);
        self.threads += 1;
        // As after a call.
        let stack = bottom + STACK - 8;
        threads::add(Context { entry: self.entry, stack, argument, cr3: self.cr3 })
    }

    /// Maps memory that begins with these bytes and goes on with zeros.
    fn map(&mut self, address: u64, size: u64, data: &[u8], writable: bool) {
        let frame = PhysFrame::containing_address(x86_64::PhysAddr::new(self.cr3));
        // SAFETY: the program's own table, which nobody else refers to now.
        let table = unsafe { &mut *mapped(frame).cast::<PageTable>() };
        // SAFETY: all physical memory is mapped there.
        let mut mapper = unsafe { OffsetPageTable::new(table, VirtAddr::new(PHYSICAL_MEMORY_OFFSET)) };
        let flags = if writable { PRESENT | PageTableFlags::WRITABLE } else { PRESENT };
        let (first, last) = (address & !(PAGE - 1), (address + size - 1) & !(PAGE - 1));
        for page in (first..=last).step_by(PAGE as usize) {
            let frame = new_frame();
            let from = page.saturating_sub(address) as usize;
            let to = ((page + PAGE - address) as usize).min(data.len());
            let at = address.saturating_sub(page) as usize;
            // SAFETY: just allocated.
            let bytes = unsafe { slice::from_raw_parts_mut(mapped(frame), PAGE as usize) };
            if let Some(data) = data.get(from..to) {
                bytes[at..at + data.len()].copy_from_slice(data);
            }
            let page = Page::<Size4KiB>::containing_address(VirtAddr::new(page));
            // SAFETY: the memory is the program's alone.
            let mapping = unsafe { mapper.map_to(page, frame, flags, &mut SingleFrames) };
            // The table is not in use, so nothing is to be flushed.
            mapping.expect("segments in pages of their own").ignore();
        }
    }
}

/// Allocates a frame of zeros.
fn new_frame() -> PhysFrame {
    let frame = SingleFrames.allocate_frame().expect("memory");
    // SAFETY: just allocated.
    unsafe { mapped(frame).write_bytes(0, PAGE as usize) };
    frame
}

fn mapped(frame: PhysFrame) -> *mut u8 {
    (PHYSICAL_MEMORY_OFFSET + frame.start_address().as_u64()) as *mut u8
}
