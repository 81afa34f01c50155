//! The memory for a trace, and its behaviour when full.

mod range;
#[cfg(test)]
mod tests;

use crate::intel::errata::Errata;
use crate::intel::pt::shape::Shape;
use crate::intel::pt::topa::{Chain, Listed, Marks, RegionSize, Sizes, Topa, TopaError, TopaPlan};
use crate::intel::pt::{Feature, PtCapabilities};
use crate::lifecycle::Halted;
use crate::memory::{Frames, SharedBytes};
use crate::msr::{OutputBase, OutputMaskPtrs, RtitCtl};
use core::fmt;
use range::SingleRange;

/// Memory that a unit can trace into. Dropping it frees the memory.
#[derive(Debug)]
pub struct Buffer<F: Frames> {
    output: Output<F>,
    mode: Mode,
}

/// The behaviour when the memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is overwritten: the trace stops when everything is full and not drained. A PMI arrives while `spare`
    /// regions are still free, which receive the trace until the PMI is served.
    StopWhenFull {
        /// Regions kept free after the one with INT; at least 1, unless the driver chains the regions.
        spare: u32,
    },
    /// A ring with a PMI each time `interrupt_every` regions have filled. Bytes that are not drained in time are
    /// overwritten and counted. The count is exact if the processor made less than two laps since the last PMI or
    /// drain; otherwise it is a lower bound.
    ///
    /// If the driver chains the regions, it can be unknown whether the one region was overwritten. This is then
    /// reported as [`Overwritten::Perhaps`](crate::loss::Overwritten::Perhaps).
    Circular {
        /// At least 1 and less than the number of regions. If the driver chains the regions, there is only one region,
        /// and this is 1.
        interrupt_every: u32,
    },
    /// A ring without PMIs: it holds the most recent trace, to be read after the stop. Overwritten bytes are counted as
    /// in [`Mode::Circular`]; a single range behaves like one region that the driver chains.
    Overwrite,
}

/// The layout of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One contiguous range that is overwritten forever: [`Mode::Overwrite`] only. Needs [`Feature::SingleRange`].
    SingleRange {
        /// The size in bytes: a power of two from 4 KiB to 4 GiB.
        bytes: u64,
    },
    /// Regions listed in ToPA tables. Needs [`Feature::Topa`]. Without [`Feature::TopaMultipleEntries`], the driver
    /// chains the regions, and only [`Mode::StopWhenFull`] may have more than one.
    Topa {
        /// The size of each region.
        size: RegionSize,
        /// The number of regions.
        regions: u32,
        /// The number of regions in a table, 1 to 511.
        regions_per_table: u32,
        /// True if all regions are one block of memory, so that a trace can be read as one slice, or two if it wraps.
        contiguous: bool,
    },
    /// Regions of several sizes, listed in ToPA tables, as large as the kernel's [`Frames`](crate::memory::Frames) has
    /// them: a kernel with fragmented memory gives large blocks as long as there are some. Each region is as large as
    /// the one before, or smaller. `spare` of [`Mode::StopWhenFull`] then counts the smaller ones.
    ///
    /// Needs the same features as [`Layout::Topa`].
    MixedTopa {
        /// The size of all regions together, in bytes: a multiple of `smallest`.
        bytes: u64,
        /// The size of the first region if there is memory for it.
        largest: RegionSize,
        /// The size that is still requested when there is no memory for a larger one.
        smallest: RegionSize,
    },
}

impl Layout {
    /// Returns a layout of `bytes` bytes, a multiple of 4 KiB, in regions anywhere in memory, each as large as
    /// possible.
    #[must_use]
    pub const fn mixed_topa(bytes: u64) -> Self {
        Self::MixedTopa { bytes, largest: RegionSize::M128, smallest: RegionSize::K4 }
    }

    /// Returns a layout with regions anywhere in memory, in full tables.
    #[must_use]
    pub const fn topa(size: RegionSize, regions: u32) -> Self {
        Self::Topa { size, regions, regions_per_table: 511, contiguous: false }
    }

    /// Returns a layout with all regions in one block of memory, in full tables.
    #[must_use]
    pub const fn contiguous_topa(size: RegionSize, regions: u32) -> Self {
        Self::Topa { size, regions, regions_per_table: 511, contiguous: true }
    }
}

impl<F: Frames> Buffer<F> {
    /// Allocates the memory with the kernel's [`Frames`].
    ///
    /// # Errors
    ///
    /// This processor does not support the layout or mode, or there is no memory. Memory that was already allocated is
    /// freed.
    pub fn allocate(
        frames: F,
        capabilities: &PtCapabilities,
        layout: Layout,
        mode: Mode,
    ) -> Result<Self, BufferError> {
        let limit = capabilities.physical_limit();
        let output = match layout {
            Layout::SingleRange { bytes } => {
                require(capabilities, Feature::SingleRange)?;
                if mode != Mode::Overwrite {
                    return Err(BufferError::SingleRangeOverwrites { mode });
                }
                if bytes > 0x1000 && capabilities.errata.contains(Errata::SINGLE_RANGE_ABOVE_4K) {
                    return Err(BufferError::SingleRangeErratum { bytes });
                }
                Output::SingleRange(SingleRange::new(frames, bytes, limit)?)
            }
            Layout::Topa { size, regions, regions_per_table, contiguous } => {
                require(capabilities, Feature::Topa)?;
                let chain = chain(capabilities);
                check_mode(mode, regions, chain)?;
                let sizes = Sizes::Equal { size, regions };
                let plan = TopaPlan { sizes, regions_per_table, contiguous, chain, laps: laps(mode) };
                Output::Topa(Topa::new(frames, plan, limit)?)
            }
            Layout::MixedTopa { bytes, largest, smallest } => {
                require(capabilities, Feature::Topa)?;
                let chain = chain(capabilities);
                let sizes = Sizes::Mixed { bytes, largest, smallest };
                let plan =
                    TopaPlan { sizes, regions_per_table: 511, contiguous: false, chain, laps: laps(mode) };
                let topa = Topa::new(frames, plan, limit)?;
                check_mode(mode, topa.regions(), chain)?;
                Output::Topa(topa)
            }
        };
        Ok(Self { output, mode })
    }

    /// Returns the behaviour when the buffer is full.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the capacity in bytes of trace.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.shape().capacity()
    }

    /// Returns the sizes of the regions, in bytes, in their order; for a single range its size.
    pub fn region_sizes(&self) -> impl Iterator<Item = u64> {
        let shape = self.shape();
        (0..shape.regions()).map(move |region| shape.size(region))
    }

    /// Returns the ToPA tables, unless the buffer is a single range.
    pub(crate) const fn topa(&self) -> Option<&Topa<F>> {
        match &self.output {
            Output::SingleRange(_) => None,
            Output::Topa(topa) => Some(topa),
        }
    }

    /// Checks that this processor can trace into the buffer, which may have been allocated for another processor.
    pub(crate) fn check(&self, capabilities: &PtCapabilities) -> Result<(), BufferError> {
        match &self.output {
            Output::SingleRange(_) => require(capabilities, Feature::SingleRange),
            Output::Topa(topa) => {
                require(capabilities, Feature::Topa)?;
                match topa.chain() {
                    Chain::Table => require(capabilities, Feature::TopaMultipleEntries),
                    Chain::Driver => Ok(()),
                }
            }
        }
    }

    /// Returns the bits that the buffer adds to IA32_RTIT_CTL.
    pub(crate) const fn ctl(&self) -> RtitCtl {
        match &self.output {
            Output::SingleRange(_) => RtitCtl::empty(),
            Output::Topa(_) => RtitCtl::TOPA,
        }
    }

    /// Returns the sizes of the regions; a single range is one.
    pub(crate) const fn shape(&self) -> Shape {
        match &self.output {
            Output::SingleRange(range) => Shape::equal(range.bytes(), 1),
            Output::Topa(topa) => topa.shape(),
        }
    }

    /// Returns whether the driver, and not the processor, moves from region to region.
    pub(crate) fn is_chained_by_driver(&self) -> bool {
        self.topa().is_some_and(|topa| topa.chain() == Chain::Driver)
    }

    /// Returns the register values that make the processor continue at `offset` of region `n`.
    pub(crate) fn registers(&self, n: u32, offset: u32) -> (OutputBase, OutputMaskPtrs) {
        match &self.output {
            Output::SingleRange(range) => {
                (OutputBase(range.base()), OutputMaskPtrs::single_range((range.bytes() - 1) as u32, offset))
            }
            Output::Topa(topa) => {
                let (table, index) = topa.place(n);
                (OutputBase(table.as_u64()), OutputMaskPtrs::topa(index, offset))
            }
        }
    }

    /// Returns the position that the registers name, if it is in this buffer.
    pub(crate) fn position(&self, base: OutputBase, pointers: OutputMaskPtrs) -> Option<Position> {
        let offset = u64::from(pointers.offset());
        let Listed { lap, region } = match &self.output {
            // Another range may have begun at the same address, and been larger.
            Output::SingleRange(range) => (range.base() == base.0
                && u64::from(pointers.mask()) == range.bytes() - 1)
                .then_some(Listed { lap: 0, region: 0 }),
            Output::Topa(topa) => topa.listed_at(base.0, pointers.entry()),
        }?;
        (offset <= self.shape().size(region)).then_some(Position { lap, region, offset })
    }

    /// Returns whether this is the single range, or one of the tables.
    pub(crate) fn begins_at(&self, base: OutputBase) -> bool {
        match &self.output {
            Output::SingleRange(range) => range.base() == base.0,
            Output::Topa(topa) => topa.listed_at(base.0, 0).is_some(),
        }
    }

    /// Returns the ToPA entry that the registers name, as it is in memory, if it is an entry of this buffer.
    pub(crate) fn entry_at(&self, base: OutputBase, pointers: OutputMaskPtrs) -> Option<u64> {
        let topa = self.topa()?;
        topa.listed_at(base.0, pointers.entry())?;
        Some(topa.read(x86_64::PhysAddr::try_new(base.0).ok()?, pointers.entry()).bits())
    }

    /// Returns how often the tables list the ring: at least twice if they are to show the laps of the processor.
    pub(crate) const fn laps(&self) -> u32 {
        match &self.output {
            Output::SingleRange(_) => 1,
            Output::Topa(topa) => topa.laps(),
        }
    }

    /// Prepares the buffer for a trace from its beginning.
    pub(crate) fn reset(&mut self, halted: &Halted) {
        if let Output::Topa(topa) = &mut self.output {
            topa.mark(Marks::default(), halted);
        }
        if let (Mode::Circular { interrupt_every }, Output::Topa(topa)) = (self.mode, &mut self.output) {
            topa.mark_every(interrupt_every, halted);
        }
    }

    pub(crate) fn mark(&mut self, marks: Marks, halted: &Halted) {
        if let Output::Topa(topa) = &mut self.output {
            topa.mark(marks, halted);
        }
    }

    /// Returns the bytes from `offset` of region `n` to the region's end, or to the ring's end if it is one block of
    /// memory.
    pub(crate) fn memory(&self, n: u32, offset: u64) -> SharedBytes {
        let shape = self.shape();
        let (start, bytes) = match &self.output {
            Output::SingleRange(range) => (range.pointer(), range.bytes()),
            Output::Topa(topa) if topa.is_contiguous() => {
                (topa.pointer(n), shape.capacity() - shape.start(n))
            }
            Output::Topa(topa) => (topa.pointer(n), shape.size(n)),
        };
        debug_assert!(offset <= shape.size(n));
        // SAFETY: a region, or the rest of a block of regions, which is mapped as one and belongs to this buffer.
        unsafe { SharedBytes::new(start, bytes as usize) }.from(offset as usize)
    }

    /// Fills the rest of region `n` with PAD packets, and returns the number of bytes filled.
    pub(crate) fn pad(&mut self, n: u32, offset: u64, _: &Halted) -> u64 {
        let bytes = self.shape().size(n) - offset;
        // SAFETY: the rest of one of our own regions, and the trace is off.
        unsafe { self.memory(n, offset).fill(0, bytes as usize) };
        bytes
    }

    /// Writes [`GUARD`] to the bytes before `end`, a place in the only region. These bytes must be free.
    pub(crate) fn set_guard(&mut self, end: u64, _: &Halted) {
        for at in self.guard_places(end) {
            // SAFETY: a byte of our own region, and the trace is off.
            unsafe { self.memory(0, at).write(&[GUARD]) };
        }
    }

    /// Returns for each of the bytes before `end` whether it is unchanged since [`Buffer::set_guard`].
    pub(crate) fn look_at_guard(&self, end: u64, _: &Halted) -> [bool; GUARD_BYTES as usize] {
        self.guard_places(end).map(|at| {
            // SAFETY: a byte of our own region.
            unsafe { self.memory(0, at).read() == GUARD }
        })
    }

    fn guard_places(&self, end: u64) -> [u64; GUARD_BYTES as usize] {
        debug_assert_eq!(self.shape().regions(), 1);
        let capacity = self.capacity();
        let begin = end % capacity + capacity - GUARD_BYTES;
        core::array::from_fn(|n| (begin + n as u64) % capacity)
    }
}

/// The place of the processor's next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The number of the ring's listing in the tables.
    pub(crate) lap: u32,
    pub(crate) region: u32,
    /// The offset in the region. The end of a region is the beginning of the next one.
    pub(crate) offset: u64,
}

/// The number of times that the tables list a ring that is overwritten. A trace starts anywhere in the first lap. If
/// the processor is now in the first or second lap, the number of bytes is known exactly. In the last lap, which the
/// processor never leaves, it certainly has overwritten something.
const LAPS: u32 = 3;

/// The value of the guard bytes. No packet begins with this byte, and none has 16 bytes after its first, so no trace
/// contains 16 of them in a row. Source: SDM vol. 3, Intel Processor Trace, "Trace Packets and Data Types".
pub(crate) const GUARD: u8 = 0xc5;
/// Twice 16: if the processor is in the middle of them, the bytes before its place are from this lap, the others from
/// the lap before.
pub(crate) const GUARD_BYTES: u64 = 32;

/// The reason why a buffer cannot be created or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferError {
    /// The processor lacks a feature.
    Missing(Feature),
    /// A single range supports only [`Mode::Overwrite`].
    SingleRangeOverwrites {
        /// The requested mode.
        mode: Mode,
    },
    /// Errata TGL052, ADL037, RPL017: on this model a single range of more than 4 KiB may hold wrong data.
    SingleRangeErratum {
        /// The requested size.
        bytes: u64,
    },
    /// The size of a single range is not a power of two from 4 KiB to 4 GiB.
    SingleRangeSize {
        /// The requested size.
        bytes: u64,
    },
    /// No region would be left to trace into before the PMI, or none after it.
    Spare {
        /// The number of regions to keep free.
        spare: u32,
        /// The number of regions.
        regions: u32,
    },
    /// The PMI would come after no region, or only after a whole lap: the trace would overwrite undrained bytes until
    /// it is served.
    InterruptEvery {
        /// The number of regions between two PMIs.
        interrupt_every: u32,
        /// The number of regions.
        regions: u32,
    },
    /// An error in a table or its memory.
    Topa(TopaError),
}

impl From<TopaError> for BufferError {
    fn from(error: TopaError) -> Self {
        Self::Topa(error)
    }
}

impl fmt::Display for BufferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(feature) => write!(f, "{feature} is not there"),
            Self::SingleRangeOverwrites { mode } => {
                write!(f, "single-range output supports the mode Overwrite only, not {mode:?}")
            }
            Self::SingleRangeErratum { bytes } => {
                write!(
                    f,
                    "single-range output of {bytes:#x} bytes is not reliable on this model (erratum TGL052)"
                )
            }
            Self::SingleRangeSize { bytes } => {
                write!(f, "single-range output of {bytes:#x} bytes: 4 KiB to 4 GiB by powers of two")
            }
            Self::Spare { spare, regions } => {
                write!(f, "{spare} spare regions of {regions}: at least 1 must be spare and at least 1 not")
            }
            Self::InterruptEvery { interrupt_every, regions } => {
                write!(f, "a PMI every {interrupt_every} of {regions} regions: at least 1 and less than all")
            }
            Self::Topa(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for BufferError {}

#[derive(Debug)]
enum Output<F: Frames> {
    SingleRange(SingleRange<F>),
    Topa(Topa<F>),
}

fn chain(capabilities: &PtCapabilities) -> Chain {
    match capabilities.has(Feature::TopaMultipleEntries) {
        true => Chain::Table,
        false => Chain::Driver,
    }
}

/// Returns how often the tables list the ring.
const fn laps(mode: Mode) -> u32 {
    match mode {
        Mode::StopWhenFull { .. } => 1,
        Mode::Circular { .. } | Mode::Overwrite => LAPS,
    }
}

fn require(capabilities: &PtCapabilities, feature: Feature) -> Result<(), BufferError> {
    match capabilities.has(feature) {
        true => Ok(()),
        false => Err(BufferError::Missing(feature)),
    }
}

fn check_mode(mode: Mode, regions: u32, chain: Chain) -> Result<(), BufferError> {
    match (mode, chain) {
        // The PMI arrives before the region is full; the region itself has the room for the trace until it is served.
        (Mode::StopWhenFull { .. }, Chain::Driver) => Ok(()),
        (Mode::StopWhenFull { spare }, Chain::Table) if spare == 0 || spare >= regions => {
            Err(BufferError::Spare { spare, regions })
        }
        // Only the processor could move on in such a ring.
        (Mode::Circular { .. } | Mode::Overwrite, Chain::Driver) if regions != 1 => {
            Err(BufferError::Missing(Feature::TopaMultipleEntries))
        }
        (Mode::Circular { interrupt_every: 1 }, Chain::Driver) => Ok(()),
        (Mode::Circular { interrupt_every }, _) if !(1..regions).contains(&interrupt_every) => {
            Err(BufferError::InterruptEvery { interrupt_every, regions })
        }
        _ => Ok(()),
    }
}
