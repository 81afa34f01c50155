//! Memory for a trace, and how it is used when it is full.

mod range;
#[cfg(test)]
mod tests;

use crate::intel::errata::Errata;
use crate::intel::pt::topa::{Chain, Listed, Marks, RegionSize, Topa, TopaError, TopaPlan};
use crate::intel::pt::{Feature, PtCapabilities};
use crate::lifecycle::Halted;
use crate::memory::Frames;
use crate::msr::{OutputBase, OutputMaskPtrs, RtitCtl};
use core::fmt;
use core::ptr::NonNull;
use range::SingleRange;

/// Memory that a unit can trace into. It gives everything back when dropped.
#[derive(Debug)]
pub struct Buffer<F: Frames> {
    output: Output<F>,
    mode: Mode,
}

/// What to do when the memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is overwritten: the trace stops when all is full and not drained. A PMI comes while there are still
    /// `spare` regions free, for what is executed until it is served.
    StopWhenFull {
        /// Regions kept free behind the one with INT; at least 1, unless the regions are chained by the driver.
        spare: u32,
    },
    /// A ring with a PMI each time so many regions have filled. What is not drained in time is overwritten, and
    /// counted: to the byte if the processor went round less than twice since the last PMI or drain, else at the least.
    ///
    /// Where regions are chained by the driver, whether the one region was overwritten can be unknown: then it is told
    /// as [`Overwritten::Perhaps`](crate::loss::Overwritten::Perhaps).
    Circular {
        /// At least 1, and less than there are; 1 where regions are chained by the driver, which can be only one.
        interrupt_every: u32,
    },
    /// A ring without PMI: it holds what was traced last, to be read after the trace is stopped. What was overwritten is
    /// counted as with [`Mode::Circular`]; a single range is like one region that the driver chains.
    Overwrite,
}

/// How the memory is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One contiguous range, overwritten for ever: [`Mode::Overwrite`] only. Needs [`Feature::SingleRange`].
    SingleRange {
        /// A power of two from 4 KiB to 4 GiB.
        bytes: u64,
    },
    /// Regions listed in tables. Needs [`Feature::Topa`]; where [`Feature::TopaMultipleEntries`] is missing, the driver
    /// chains the regions, and only [`Mode::StopWhenFull`] may have more than one.
    Topa {
        /// The size of each region.
        size: RegionSize,
        /// How many regions.
        regions: u32,
        /// Regions in a table, 1 to 511.
        regions_per_table: u32,
        /// All regions in one piece of memory, so that a trace is read as one slice, or two where it wraps.
        contiguous: bool,
    },
}

impl Layout {
    /// Regions anywhere in memory, in full tables.
    #[must_use]
    pub const fn topa(size: RegionSize, regions: u32) -> Self {
        Self::Topa { size, regions, regions_per_table: 511, contiguous: false }
    }

    /// Regions in one piece of memory, in full tables.
    #[must_use]
    pub const fn contiguous_topa(size: RegionSize, regions: u32) -> Self {
        Self::Topa { size, regions, regions_per_table: 511, contiguous: true }
    }
}

impl<F: Frames> Buffer<F> {
    /// Takes the memory from the kernel's frames.
    ///
    /// # Errors
    ///
    /// This processor cannot do it so, or there is no memory; what was taken is given back.
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
                let chain = match capabilities.has(Feature::TopaMultipleEntries) {
                    true => Chain::Table,
                    false => Chain::Driver,
                };
                check_mode(mode, regions, chain)?;
                let laps = match mode {
                    Mode::StopWhenFull { .. } => 1,
                    Mode::Circular { .. } | Mode::Overwrite => LAPS,
                };
                let plan = TopaPlan { size, regions, regions_per_table, contiguous, chain, laps };
                Output::Topa(Topa::new(frames, plan, limit)?)
            }
        };
        Ok(Self { output, mode })
    }

    /// What happens when it is full.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// How many bytes of trace it holds.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.region_bytes() * self.regions() as u64
    }

    /// The tables, where it has any.
    #[must_use]
    pub const fn topa(&self) -> Option<&Topa<F>> {
        match &self.output {
            Output::SingleRange(_) => None,
            Output::Topa(topa) => Some(topa),
        }
    }

    /// Whether this processor can trace into it; it may have been made for another one.
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

    /// What it adds to IA32_RTIT_CTL.
    pub(crate) const fn ctl(&self) -> RtitCtl {
        match &self.output {
            Output::SingleRange(_) => RtitCtl::empty(),
            Output::Topa(_) => RtitCtl::TOPA,
        }
    }

    /// One for a single range.
    pub(crate) const fn regions(&self) -> u32 {
        match &self.output {
            Output::SingleRange(_) => 1,
            Output::Topa(topa) => topa.regions(),
        }
    }

    pub(crate) const fn region_bytes(&self) -> u64 {
        match &self.output {
            Output::SingleRange(range) => range.bytes(),
            Output::Topa(topa) => topa.region_size().bytes(),
        }
    }

    /// The driver goes from region to region, not the processor.
    pub(crate) fn is_chained_by_driver(&self) -> bool {
        self.topa().is_some_and(|topa| topa.chain() == Chain::Driver)
    }

    /// The registers that make the processor go on at `offset` of region `n`.
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

    /// What the registers name, if it is of this buffer.
    pub(crate) fn position(&self, base: OutputBase, pointers: OutputMaskPtrs) -> Option<Position> {
        let offset = u64::from(pointers.offset());
        let Listed { lap, region } = match &self.output {
            Output::SingleRange(range) => (range.base() == base.0).then_some(Listed { lap: 0, region: 0 }),
            Output::Topa(topa) => topa.listed_at(base.0, pointers.entry()),
        }?;
        (offset <= self.region_bytes()).then_some(Position { lap, region, offset })
    }

    /// How often its tables list the ring: at least twice, or nothing tells how often the processor went round.
    pub(crate) const fn laps(&self) -> u32 {
        match &self.output {
            Output::SingleRange(_) => 1,
            Output::Topa(topa) => topa.laps(),
        }
    }

    /// Prepares it for a trace from its beginning.
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

    /// Bytes from `offset` of region `n` on, to the region's end, or to the ring's where it is one piece of memory.
    pub(crate) fn memory(&self, n: u32, offset: u64) -> (NonNull<u8>, u64) {
        let (start, regions) = match &self.output {
            Output::SingleRange(range) => (range.pointer(), 1),
            Output::Topa(topa) if topa.is_contiguous() => (topa.pointer(n), topa.regions() - n),
            Output::Topa(topa) => (topa.pointer(n), 1),
        };
        debug_assert!(offset <= self.region_bytes());
        // SAFETY: offsets are at most a region's size, and the region is mapped as one piece.
        let start = unsafe { start.add(offset as usize) };
        (start, u64::from(regions) * self.region_bytes() - offset)
    }

    /// Fills the rest of region `n` with PAD packets, and says how many bytes that is.
    pub(crate) fn pad(&mut self, n: u32, offset: u64, _: &Halted) -> u64 {
        let (start, _) = self.memory(n, offset);
        let bytes = self.region_bytes() - offset;
        // SAFETY: the rest of a region of ours, and the trace is off.
        unsafe { start.write_bytes(0, bytes as usize) };
        bytes
    }

    /// Writes [`GUARD`] to the bytes before `end`, a place in the only region. They are free.
    pub(crate) fn set_guard(&mut self, end: u64, _: &Halted) {
        for at in self.guard_places(end) {
            let (to, _) = self.memory(0, at);
            // SAFETY: a byte of our own region, and the trace is off.
            unsafe { to.write(GUARD) };
        }
    }

    /// Which of the bytes before `end` are still as [`Buffer::set_guard`] left them.
    pub(crate) fn look_at_guard(&self, end: u64, _: &Halted) -> [bool; GUARD_BYTES as usize] {
        self.guard_places(end).map(|at| {
            let (from, _) = self.memory(0, at);
            // SAFETY: a byte of our own region, and the trace is off.
            let byte = unsafe { from.read_volatile() };
            byte == GUARD
        })
    }

    fn guard_places(&self, end: u64) -> [u64; GUARD_BYTES as usize] {
        debug_assert_eq!(self.regions(), 1);
        let capacity = self.capacity();
        let begin = end % capacity + capacity - GUARD_BYTES;
        core::array::from_fn(|n| (begin + n as u64) % capacity)
    }
}

/// Where the processor writes its next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// In which listing of the ring.
    pub(crate) lap: u32,
    pub(crate) region: u32,
    /// In the region. Its end is the next one's begin.
    pub(crate) offset: u64,
}

/// How often tables list a ring that is overwritten. A trace begins anywhere in the first lap. Where it comes to in the
/// first two is known to the byte; in the last one, which it does not leave, it has overwritten something for certain.
const LAPS: u32 = 3;

/// No packet begins with this byte, and none has 16 bytes after its first: so not as many of them in a row are in any
/// trace. Source: SDM vol. 3, Intel Processor Trace, "Trace Packets and Data Types".
pub(crate) const GUARD: u8 = 0xc5;
/// Twice as many: where the processor is in the midst of them, some are of one lap and the others of the one before.
pub(crate) const GUARD_BYTES: u64 = 32;

/// Why there can be no such buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferError {
    /// The processor lacks a feature.
    Missing(Feature),
    /// A single range can only be overwritten.
    SingleRangeOverwrites {
        /// The mode asked for.
        mode: Mode,
    },
    /// Errata TGL052, ADL037, RPL017: on this model a single range of more than 4 KiB may hold wrong data.
    SingleRangeErratum {
        /// The size asked for.
        bytes: u64,
    },
    /// A single range is a power of two from 4 KiB to 4 GiB.
    SingleRangeSize {
        /// The size asked for.
        bytes: u64,
    },
    /// No region would be left to trace into before the PMI, or none for what comes after it.
    Spare {
        /// Regions kept free.
        spare: u32,
        /// Regions there are.
        regions: u32,
    },
    /// A PMI after no region, or none before a lap is over: what comes before it is served would overwrite the rest.
    InterruptEvery {
        /// Regions between two PMIs.
        interrupt_every: u32,
        /// Regions there are.
        regions: u32,
    },
    /// A table or its memory.
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
                write!(f, "single-range output only overwrites: not {mode:?}")
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
            Self::Spare { spare, regions } => write!(f, "{spare} of {regions} regions are to stay free"),
            Self::InterruptEvery { interrupt_every, regions } => {
                write!(f, "a PMI each {interrupt_every} of {regions} regions")
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

fn require(capabilities: &PtCapabilities, feature: Feature) -> Result<(), BufferError> {
    match capabilities.has(feature) {
        true => Ok(()),
        false => Err(BufferError::Missing(feature)),
    }
}

fn check_mode(mode: Mode, regions: u32, chain: Chain) -> Result<(), BufferError> {
    match (mode, chain) {
        // The PMI comes before the region is full; the room for the skid is in the region.
        (Mode::StopWhenFull { .. }, Chain::Driver) => Ok(()),
        (Mode::StopWhenFull { spare }, Chain::Table) if spare == 0 || spare >= regions => {
            Err(BufferError::Spare { spare, regions })
        }
        // The ring would have to be the processor's.
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
