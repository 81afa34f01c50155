//! The debug store and the last branch records of the machine.

use super::{CODE, Collector, Machine, Ram, Registers};
use pugmark_decoder_core::bts::{Entry, Layout, Records};
use pugmark_decoder_core::pebs;
use pugmark_kernel::bts::BtsConfig;
use pugmark_kernel::drain::Sink;
use pugmark_kernel::ds::{
    AreaPlan, BufferMode, BufferPlan, DsArea, DsConfig, Gate, LinearMemory, LinearPage, LinearRequest,
    MemoryType, Running, Strictness, Unit,
};
use pugmark_kernel::memory::{Frames, Request};
use pugmark_kernel::pebs::{Event, Groups, PebsConfig};
use std::ptr::NonNull;
use x86_64::structures::paging::PageTableFlags;
use x86_64::{PhysAddr, VirtAddr};

/// A recording on this machine.
pub(crate) type Recording<'a> = Running<Registers, &'a Ram>;

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Branches of user code, in this mode.
    Branches(BufferMode),
    /// Samples of user code.
    Samples,
}

/// With room for some hundred branches before a PMI.
pub(crate) const INTERRUPT: What = What::Branches(BufferMode::Interrupt { spare: 170 });
pub(crate) const CIRCULAR: What = What::Branches(BufferMode::Circular);

/// Branch records in a buffer.
pub(crate) const CAPACITY: usize = 400;
/// Events between samples.
pub(crate) const PERIOD: u64 = 100;

impl What {
    pub(crate) fn config(self, profile: &str) -> DsConfig {
        let config = DsConfig::new().gate(Gate(0x0000_8e00_0008_0000));
        match self {
            Self::Branches(_) => config.bts(BtsConfig::new().os(false)),
            Self::Samples => {
                config.pebs(PebsConfig::new().general(0, precise_event(profile), PERIOD).os(false))
            }
        }
    }

    pub(crate) fn plan(self, format: Option<pebs::Format>) -> AreaPlan {
        match self {
            Self::Branches(mode) => {
                AreaPlan::new().bts(BufferPlan { bytes: 24 * CAPACITY as u64, page_offset: 0xf40, mode })
            }
            Self::Samples => {
                let size = format.unwrap().least_bytes() as u64;
                let mode = BufferMode::Interrupt { spare: 55 };
                AreaPlan::new().pebs(BufferPlan { bytes: 60 * size, page_offset: 0, mode }, Groups::BASIC)
            }
        }
    }
}

/// An event whose samples are precise, of which each jump is one.
fn precise_event(profile: &str) -> Event {
    match profile {
        "core2" => Event::INST_RETIRED,
        "nehalem" => Event::BR_INST_RETIRED,
        _ => Event { select: 0xc4, umask: 0x20 },
    }
}

impl Machine {
    pub(crate) fn area(&self, unit: &Unit<Registers>, what: What) -> DsArea<&Ram> {
        let plan = what.plan(unit.capabilities().pebs.ok().map(|pebs| pebs.format));
        DsArea::allocate(&*self.ram, unit.capabilities(), &plan, Strictness::Strict).unwrap()
    }
}

/// Where the recorded branches of user code led to, a stretch at a time.
pub(crate) fn targets(collector: &Collector) -> Vec<u64> {
    let mut targets = Vec::new();
    for stretch in &collector.stretches {
        for entry in Records::new(stretch, Layout::Bits64) {
            let (_, Entry::Branch(branch)) = entry.unwrap() else { panic!("a branch") };
            // The other ones are returns from the handler.
            targets.extend(is_user(branch.from).then_some(branch.to));
        }
    }
    targets
}

/// The jumps that samples are of.
pub(crate) fn sampled(collector: &Collector, format: pebs::Format) -> Vec<u64> {
    let mut places = Vec::new();
    for stretch in &collector.stretches {
        for record in pebs::Records::new(stretch, format) {
            let record = record.unwrap();
            places.extend(record.registers.map(|registers| registers.rip));
        }
    }
    places
}

pub(crate) fn is_user(address: u64) -> bool {
    (CODE..CODE + 0x4000).contains(&address)
}

/// Takes nothing.
#[derive(Debug)]
pub(crate) struct Nothing;

impl Sink for Nothing {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        panic!("{} bytes of what is not recorded", bytes.len())
    }

    fn gap(&mut self, gap: pugmark_kernel::loss::Gap) -> bool {
        panic!("{gap:?} in what is not recorded")
    }
}

// SAFETY: all memory is mapped one to one in the one address space there is, supervisor and write-back.
unsafe impl LinearMemory for Ram {
    fn allocate(&self, request: LinearRequest) -> Option<VirtAddr> {
        Frames::allocate(self, frames(request)).map(|start| VirtAddr::new(start.as_u64()))
    }

    unsafe fn free(&self, address: VirtAddr, request: LinearRequest) {
        // SAFETY: as the caller promises.
        unsafe { Frames::free(self, PhysAddr::new(address.as_u64()), frames(request)) }
    }

    fn pointer(&self, address: VirtAddr) -> NonNull<u8> {
        Frames::pointer(self, PhysAddr::new(address.as_u64()))
    }

    fn spaces(&self) -> usize {
        1
    }

    fn page(&self, _: usize, address: VirtAddr) -> Option<LinearPage> {
        let flags = PageTableFlags::PRESENT | PageTableFlags::WRITABLE | PageTableFlags::NO_EXECUTE;
        Some(LinearPage {
            frame: PhysAddr::new(address.as_u64() & !0xfff),
            flags: flags | PageTableFlags::ACCESSED | PageTableFlags::DIRTY,
            memory_type: MemoryType::WriteBack,
            holds_code: false,
            pageable: false,
        })
    }
}

fn frames(request: LinearRequest) -> Request {
    Request { size: request.size, align: 0x1000, limit: request.limit.unwrap_or(u64::MAX) }
}
