//! The DS save area: allocates its memory and checks the manual's rules.

use super::block::Block;
use super::buffer::RecordBuffer;
use super::layout::Half;
use super::memory::{LinearMemory, LinearRequest};
use super::plan::{AreaPlan, BufferPlan, Division, PlanError};
use super::rules::{self, Rule, Strictness, Warning, Warnings};
use super::{BufferMode, DsCapabilities, DsLayout};
use crate::intel::pebs::Groups;
use core::fmt;

/// Memory for a processor's branch records and samples, with the buffer management area. Dropping it frees the memory.
///
/// Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel Resource Director Technology Features, "BTS and DS Save
/// Area", "Setting Up the DS Save Area".
#[derive(Debug)]
pub struct DsArea<L: LinearMemory> {
    bts: Option<RecordBuffer<L>>,
    pebs: Option<RecordBuffer<L>>,
    groups: Groups,
    layout: DsLayout,
    management: Block<L>,
    warnings: Warnings,
    strictness: Strictness,
}

impl<L: LinearMemory + Clone> DsArea<L> {
    /// Allocates the memory, writes to all of it, and checks each page in each address space.
    ///
    /// # Errors
    ///
    /// There is no memory, or the memory breaks a rule; with [`Strictness::Strict`], also if it breaks a recommendation
    /// of the manual. Memory that was already allocated is freed.
    pub fn allocate(
        memory: L,
        capabilities: &DsCapabilities,
        plan: &AreaPlan,
        strictness: Strictness,
    ) -> Result<Self, AreaError> {
        let layout = capabilities.layout;
        let (bts, pebs) = plan.divide(capabilities)?;
        let management =
            Block::allocate(memory.clone(), layout.management_bytes(COUNTERS), 0, layout.limit())?;
        let mut warnings = Warnings::default();
        let mut half = |half, parts: Option<(BufferPlan, Division)>| {
            let Some((plan, division)) = parts else { return Ok(None) };
            let block = Block::allocate(memory.clone(), plan.bytes, plan.page_offset, layout.limit())?;
            warnings.of_plan(half, &plan, &division);
            // SAFETY: the fields are within the management area.
            let fields = unsafe { management.pointer().add(layout.fields(half) as usize) };
            // SAFETY: the fields of this half. Their block goes into the same area as the buffer and outlives it there.
            Ok::<_, AreaError>(Some(unsafe { RecordBuffer::new(block, division, plan.mode, layout, fields) }))
        };
        let bts = half(Half::Bts, bts)?;
        let pebs = half(Half::Pebs, pebs)?;
        let mut area = Self { bts, pebs, groups: plan.groups(), layout, management, warnings, strictness };
        area.check(capabilities)?;
        area.reset(core::iter::empty());
        Ok(area)
    }
}

impl<L: LinearMemory> DsArea<L> {
    /// Returns the recommendations of the manual that this area does not follow.
    #[must_use]
    pub const fn warnings(&self) -> &Warnings {
        &self.warnings
    }

    /// Returns the capacity of this half in records; 0 if the area has no buffer for it.
    #[must_use]
    pub fn capacity(&self, half: Half) -> u64 {
        self.half(half).map_or(0, RecordBuffer::capacity)
    }

    /// Returns the behaviour of this half when it is full; `None` if the area has no buffer for it.
    #[must_use]
    pub fn mode(&self, half: Half) -> Option<BufferMode> {
        self.half(half).map(RecordBuffer::mode)
    }

    /// Returns the layout of the area's fields and records.
    #[must_use]
    pub const fn layout(&self) -> DsLayout {
        self.layout
    }

    /// Returns the groups of fields that the samples have.
    #[must_use]
    pub const fn groups(&self) -> Groups {
        self.groups
    }

    /// Checks the pages again, as strictly as at the allocation: address spaces may have been created since.
    pub(super) fn check(&mut self, capabilities: &DsCapabilities) -> Result<(), AreaError> {
        let buffers = [&self.bts, &self.pebs].into_iter().flatten();
        for block in core::iter::once(&self.management).chain(buffers.map(RecordBuffer::block)) {
            rules::check(block.memory(), block.start(), block.bytes(), capabilities, &mut self.warnings)?;
        }
        match self.warnings.iter().next() {
            Some(warning) if self.strictness == Strictness::Strict => Err(AreaError::Warning(warning)),
            _ => Ok(()),
        }
    }

    /// Returns the value for IA32_DS_AREA.
    pub(super) fn address(&self) -> u64 {
        self.management.start()
    }

    /// Writes the management area: empty buffers, and the counter reset values at their places. The processor must not
    /// record.
    pub(super) fn reset(&mut self, resets: impl Iterator<Item = (u64, u64)>) {
        for half in [&mut self.bts, &mut self.pebs].into_iter().flatten() {
            half.reset();
        }
        for (place, value) in resets.filter(|(place, _)| *place < u64::from(COUNTERS)) {
            let offset = self.layout.counter_resets() + 8 * place;
            // SAFETY: this is within the management area, because the place is that of a counter.
            let at = unsafe { self.management.pointer().add(offset as usize) };
            // SAFETY: 8 aligned bytes of the management area, which nothing else uses now.
            unsafe { at.cast::<u64>().write_volatile(value) };
        }
    }

    /// Returns the buffer of a half, if there is one.
    pub(super) const fn half(&self, half: Half) -> Option<&RecordBuffer<L>> {
        match half {
            Half::Bts => self.bts.as_ref(),
            Half::Pebs => self.pebs.as_ref(),
        }
    }

    /// Returns the buffer of a half, if there is one.
    pub(super) const fn half_mut(&mut self, half: Half) -> Option<&mut RecordBuffer<L>> {
        match half {
            Half::Bts => self.bts.as_mut(),
            Half::Pebs => self.pebs.as_mut(),
        }
    }
}

/// The maximum number of counter reset values: 32 for general-purpose counters, then 16 for fixed-function counters.
const COUNTERS: u32 = (crate::intel::pebs::GENERAL_RESETS + crate::intel::pebs::FIXED) as u32;

/// The reason why an area cannot be created or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaError {
    /// The requested sizes are refused.
    Plan(PlanError),
    /// The kernel has no memory.
    NoMemory {
        /// The requested size in bytes.
        bytes: u64,
    },
    /// The kernel returned memory that does not satisfy the request.
    BadBlock {
        /// The address of that memory.
        address: u64,
        /// The request.
        request: LinearRequest,
    },
    /// The memory breaks a rule of the manual.
    Rule(Rule),
    /// The memory breaks a recommendation of the manual, and [`Strictness::Strict`] was requested.
    Warning(Warning),
}

impl From<PlanError> for AreaError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}

impl From<Rule> for AreaError {
    fn from(rule: Rule) -> Self {
        Self::Rule(rule)
    }
}

impl fmt::Display for AreaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(error) => error.fmt(f),
            Self::NoMemory { bytes } => write!(f, "no linear memory for {bytes} bytes"),
            Self::BadBlock { address, request } => write!(
                f,
                "the kernel's memory at {address:#x} is not what was asked for: {:#x} bytes on a page boundary",
                request.size
            ),
            Self::Rule(rule) => rule.fmt(f),
            Self::Warning(warning) => warning.fmt(f),
        }
    }
}

impl core::error::Error for AreaError {}
