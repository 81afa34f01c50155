//! The debug store and the last branch records of the machine.

use super::{CODE, Collector, Machine, Ram, Registers};
use pugmark_decoder_core::bts::{BranchRecords, Entry, Layout};
use pugmark_decoder_core::pebs;
use pugmark_kernel::intel::bts::BtsConfig;
use pugmark_kernel::intel::ds::{
    AreaPlan, BufferMode, BufferPlan, DsArea, DsConfig, DsRunning, DsUnit, Gate, LinearMemory, LinearPage,
    LinearRequest, MemoryType, Strictness,
};
use pugmark_kernel::intel::pebs::{Groups, PebsConfig, PreciseEvent};
use pugmark_kernel::memory::{Frames, Request};
use std::ptr::NonNull;
use x86_64::structures::paging::PageTableFlags;
use x86_64::{PhysAddr, VirtAddr};

/// A recording on this machine.
pub(crate) type Recording<'a> = DsRunning<Registers, &'a Ram>;

/// The recording of the debug store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Branches of user code, in this mode.
    Branches(BufferMode),
    /// Samples of user code.
    Samples,
    /// Both, the branches with PMIs.
    Both,
}

/// Branch records with room for some hundred branches before a PMI.
pub(crate) const INTERRUPT: What = What::Branches(BufferMode::Interrupt { spare: SPARE });
pub(crate) const CIRCULAR: What = What::Branches(BufferMode::Circular);

const SPARE: u32 = 170;
/// The number of branch records in a buffer.
pub(crate) const CAPACITY: usize = 400;
/// The number of events between samples.
pub(crate) const PERIOD: u64 = 100;

impl What {
    /// Returns the mode of the branch buffer, if branches are recorded.
    pub(crate) fn branches(self) -> Option<BufferMode> {
        match self {
            Self::Branches(mode) => Some(mode),
            Self::Both => Some(BufferMode::Interrupt { spare: SPARE }),
            Self::Samples => None,
        }
    }

    pub(crate) fn has_samples(self) -> bool {
        matches!(self, Self::Samples | Self::Both)
    }

    pub(crate) fn config(self, profile: &str) -> DsConfig {
        let mut config = DsConfig::new().gate(Gate(0x0000_8e00_0008_0000));
        if self.branches().is_some() {
            config = config.bts(BtsConfig::new().os(false));
        }
        if self.has_samples() {
            config = config.pebs(PebsConfig::new().general(0, precise_event(profile), PERIOD).os(false));
        }
        config
    }

    pub(crate) fn plan(self, format: Option<pebs::Format>) -> AreaPlan {
        let mut plan = AreaPlan::new();
        if let Some(mode) = self.branches() {
            plan = plan.bts(BufferPlan { bytes: 24 * CAPACITY as u64, page_offset: 0xf40, mode });
        }
        if self.has_samples() {
            let format = format.unwrap();
            let (groups, size) = match format {
                // The basic group, and the 18 registers.
                pebs::Format::Adaptive => (Groups::BASIC.registers(true), 32 + 18 * 8),
                _ => (Groups::BASIC, format.least_bytes() as u64),
            };
            let mode = BufferMode::Interrupt { spare: 55 };
            plan = plan.pebs(BufferPlan { bytes: 60 * size, page_offset: 0, mode }, groups);
        }
        plan
    }
}

/// Returns a precise event that happens at each jump.
fn precise_event(profile: &str) -> PreciseEvent {
    match profile {
        "core2" => PreciseEvent::INST_RETIRED,
        "nehalem" => PreciseEvent::BR_INST_RETIRED,
        _ => PreciseEvent { select: 0xc4, umask: 0x20 },
    }
}

impl Machine {
    pub(crate) fn area(&self, unit: &DsUnit<Registers>, what: What) -> DsArea<&Ram> {
        let plan = what.plan(unit.capabilities().pebs.ok().map(|pebs| pebs.format));
        DsArea::allocate(&*self.ram, unit.capabilities(), &plan, Strictness::Strict).unwrap()
    }
}

/// Returns the targets of the recorded branches of user code, stretch by stretch.
pub(crate) fn targets(collector: &Collector) -> Vec<u64> {
    collector.stretches.iter().flat_map(|stretch| targets_of(stretch)).collect()
}

/// Returns the targets of the recorded branches of user code in a stretch.
pub(crate) fn targets_of(stretch: &[u8]) -> Vec<u64> {
    let mut targets = Vec::new();
    for entry in BranchRecords::new(stretch, Layout::Bits64) {
        let (_, Entry::Branch(branch)) = entry.unwrap() else { panic!("a branch") };
        // The others are returns from the handler.
        targets.extend(is_user(branch.from).then_some(branch.to));
    }
    targets
}

/// Returns the jumps that were sampled.
pub(crate) fn sampled(collector: &Collector, format: pebs::Format) -> Vec<u64> {
    let mut places = Vec::new();
    for stretch in &collector.stretches {
        for record in pebs::PebsRecords::new(stretch, format) {
            let record = record.unwrap();
            places.extend(record.registers.map(|registers| registers.rip));
        }
    }
    places
}

pub(crate) fn is_user(address: u64) -> bool {
    (CODE..CODE + 0x4000).contains(&address)
}

// SAFETY: all memory is mapped one to one in the only address space, supervisor and write-back.
unsafe impl LinearMemory for Ram {
    fn allocate(&self, request: LinearRequest) -> Option<VirtAddr> {
        Frames::allocate(self, frames(request)).map(|start| VirtAddr::new(start.as_u64()))
    }

    unsafe fn free(&self, address: VirtAddr, request: LinearRequest) {
        // SAFETY: the caller promises the same.
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
