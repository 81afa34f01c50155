//! The plan for recording a workload.

use core::fmt;
use pugmark_boot::expectation::Expected;
use pugmark_kernel::intel::pt::{Layout, Mode, PtConfig, RegionSize};
use pugmark_kernel::lapic::{Delivery, Vector};
use pugmark_protocol::{Filter, Level, SymbolRange};

use crate::arch::image;
use crate::arch::vectors;

/// The driver's configuration, and the same filter for the harness, which checks the result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) config: PtConfig,
    pub(crate) filter: Filter<'static>,
    pub(crate) layout: Layout,
    pub(crate) mode: Mode,
    pub(crate) delivery: Delivery,
    /// Interrupts are on when the workload begins.
    pub(crate) interrupts: bool,
    pub(crate) expected: Expected,
    /// The workload checks packets other than those of control flow, which only Intel PT has.
    pub(crate) packets: bool,
    /// The workload sends NMIs of its own.
    pub(crate) nmis: bool,
    /// The workload tests memory of the debug store, which no other source has.
    pub(crate) area: bool,
    /// Branches after which a counter pauses the trace of Intel PT, and branches after which it resumes the trace.
    pub(crate) pauses: Option<[u32; 2]>,
}

impl Plan {
    /// Traces everything, into a buffer that is drained by interrupts.
    pub(crate) fn everything() -> Self {
        Self {
            config: PtConfig::new().os(true).user(true),
            filter: Filter::default(),
            layout: Layout::topa(RegionSize::K64, 4),
            mode: Mode::StopWhenFull { spare: 1 },
            delivery: Delivery::Fixed(
                const { Vector::new(vectors::PMI).expect("no vector of an exception") },
            ),
            interrupts: true,
            expected: Expected::Nothing,
            packets: false,
            nmis: false,
            area: false,
            pauses: None,
        }
    }

    /// Changes the configuration.
    pub(crate) fn configured(mut self, change: impl Fn(PtConfig) -> PtConfig) -> Self {
        self.config = change(self.config);
        self
    }

    /// Declares that the workload checks packets other than those of control flow.
    pub(crate) fn with_packets(mut self, packets: bool) -> Self {
        self.packets = packets;
        self
    }

    /// Declares that the workload sends NMIs of its own.
    pub(crate) fn with_nmis(mut self) -> Self {
        self.nmis = true;
        self
    }

    /// Declares that the workload tests memory of the debug store.
    pub(crate) fn with_area(mut self) -> Self {
        self.area = true;
        self
    }

    /// Pauses the trace of Intel PT by a counter after the first number of branches, resumes it after the second, and
    /// so on.
    pub(crate) fn paused_by_counter(mut self, branches: [u32; 2]) -> Self {
        self.pauses = Some(branches);
        self
    }

    /// Traces only at some privilege levels.
    pub(crate) fn at_level(mut self, level: Level) -> Self {
        self.config = self.config.os(level != Level::User).user(level != Level::Os);
        self.filter.level = level;
        self
    }

    /// Traces only in one address space.
    pub(crate) fn under_cr3(mut self, cr3: u64) -> Self {
        self.config = self.config.cr3(cr3);
        self.filter.cr3 = Some(cr3);
        self
    }

    /// Traces only the code of [`image::filtered`].
    pub(crate) fn in_filtered_code(mut self) -> Self {
        let code = image::filtered();
        self.config = self.config.filter(code.start, code.end - 1);
        self.filter.range = Some(SymbolRange { from: "__filtered_start", to: "__filtered_end" });
        self
    }

    /// Traces until the code of [`image::stopping`] is entered.
    pub(crate) fn until_stopping_code(mut self) -> Self {
        let code = image::stopping();
        self.config = self.config.trace_stop(code.start, code.end - 1);
        self.filter.stop = Some(SymbolRange { from: "__stopping_start", to: "__stopping_end" });
        self
    }

    /// Traces into another kind of buffer.
    pub(crate) fn into(mut self, layout: Layout, mode: Mode) -> Self {
        (self.layout, self.mode) = (layout, mode);
        self
    }

    /// Uses another kind of interrupt.
    pub(crate) fn delivered(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Starts the workload with interrupts off.
    pub(crate) fn without_interrupts(mut self) -> Self {
        self.interrupts = false;
        self
    }

    /// Declares an intended loss.
    pub(crate) fn losing(mut self, expected: Expected) -> Self {
        self.expected = expected;
        self
    }

    /// Returns true if the kernel's level is recorded.
    pub(crate) fn os(&self) -> bool {
        self.filter.level != Level::User
    }

    /// Returns true if user level is recorded.
    pub(crate) fn user(&self) -> bool {
        self.filter.level != Level::Os
    }

    /// Returns the vector of the tracing unit's interrupt.
    pub(crate) const fn vector(&self) -> u8 {
        match self.delivery {
            Delivery::Nmi => vectors::NMI,
            Delivery::Fixed(vector) => vector.get(),
        }
    }

    /// Returns an error if the source does not offer something that the plan needs; `recorded` names what the source
    /// records.
    pub(crate) fn require(&self, recorded: &'static str, offered: &[Need]) -> Result<(), UnmetNeed> {
        let filter = self.filter;
        let needs = [
            (filter.cr3.is_some(), Need::Cr3Filter),
            (filter.range.is_some() || filter.stop.is_some(), Need::AddressFilters),
            (self.packets, Need::Packets),
            (self.area, Need::DebugStore),
            (self.pauses.is_some(), Need::Pauses),
        ];
        match needs.into_iter().find(|(needed, need)| *needed && !offered.contains(need)) {
            Some((_, need)) => Err(UnmetNeed { recorded, need }),
            None => Ok(()),
        }
    }
}

/// Something that a plan may need and not every source offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A filter by address space.
    Cr3Filter,
    /// Filters by address.
    AddressFilters,
    /// Packets other than those of control flow.
    Packets,
    /// Memory of the debug store.
    DebugStore,
    /// Pauses by a counter.
    Pauses,
}

/// A source does not offer what a plan needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnmetNeed {
    /// Name of the data that the source records.
    recorded: &'static str,
    need: Need,
}

impl fmt::Display for UnmetNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recorded, need } = self;
        match need {
            Need::Cr3Filter => write!(f, "{recorded} cannot be filtered by CR3"),
            Need::AddressFilters => write!(f, "{recorded} cannot be filtered by address"),
            Need::Packets => f.write_str("only Intel PT has the packets that it asks for"),
            Need::DebugStore => f.write_str("only the debug store writes through page tables"),
            Need::Pauses => f.write_str("only the trace of Intel PT can be paused"),
        }
    }
}
