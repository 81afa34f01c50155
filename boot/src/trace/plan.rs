//! How a workload wants to be traced.

use core::fmt;
use pugmark_boot::expectation::Expected;
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::intel::pt::RegionSize;
use pugmark_kernel::intel::pt::{Layout, Mode};
use pugmark_kernel::lapic::{Delivery, Vector};
use pugmark_protocol::{Filter, Level, SymbolRange};

use crate::arch::image;
use crate::arch::traps::PMI_VECTOR;

/// The driver's configuration, and the same filter for the harness, which checks the result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(super) config: PtConfig,
    pub(super) filter: Filter<'static>,
    pub(super) layout: Layout,
    pub(super) mode: Mode,
    pub(super) delivery: Delivery,
    /// Whether interrupts are on when the workload begins.
    pub(super) interrupts: bool,
    pub(super) expected: Expected,
    /// The workload checks packets that do not belong to the flow of control; no other source has these.
    pub(super) packets: bool,
    /// The workload sends NMIs of its own.
    pub(super) nmis: bool,
    /// The workload tests memory of the debug store; no other source has that.
    pub(super) area: bool,
}

impl Plan {
    /// Traces everything, into a buffer that is drained by interrupts.
    pub(crate) fn everything() -> Self {
        Self {
            config: PtConfig::new().os(true).user(true),
            filter: Filter::default(),
            layout: Layout::topa(RegionSize::K64, 4),
            mode: Mode::StopWhenFull { spare: 1 },
            delivery: Delivery::Fixed(const { Vector::new(PMI_VECTOR).expect("no vector of an exception") }),
            interrupts: true,
            expected: Expected::Nothing,
            packets: false,
            nmis: false,
            area: false,
        }
    }

    /// Changes the configuration.
    pub(crate) fn configured(mut self, change: impl Fn(PtConfig) -> PtConfig) -> Self {
        self.config = change(self.config);
        self
    }

    /// Sets whether the workload checks packets that do not belong to the flow of control.
    pub(crate) fn with_packets(mut self, packets: bool) -> Self {
        self.packets = packets;
        self
    }

    /// The workload sends NMIs of its own.
    pub(crate) fn with_nmis(mut self) -> Self {
        self.nmis = true;
        self
    }

    /// The workload tests memory of the debug store.
    pub(crate) fn with_area(mut self) -> Self {
        self.area = true;
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

    /// Interrupts are off at the beginning.
    pub(crate) fn without_interrupts(mut self) -> Self {
        self.interrupts = false;
        self
    }

    /// A loss is meant to happen.
    pub(crate) fn losing(mut self, expected: Expected) -> Self {
        self.expected = expected;
        self
    }
}

/// What a source cannot do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unfit {
    Cr3,
    Ranges,
    Packets,
    Area,
}

impl Unfit {
    /// Returns an error if the plan needs something that only Intel PT does.
    pub(super) fn of(plan: &Plan) -> Result<(), Self> {
        let filter = plan.filter;
        for (asked, unfit) in [
            (filter.cr3.is_some(), Self::Cr3),
            (filter.range.is_some() || filter.stop.is_some(), Self::Ranges),
            (plan.packets, Self::Packets),
        ] {
            if asked {
                return Err(unfit);
            }
        }
        Ok(())
    }

    /// Returns an error if the plan needs something that only Intel PT or the debug store does.
    pub(super) fn without_area(plan: &Plan) -> Result<(), Self> {
        Self::of(plan)?;
        Self::only_area(plan)
    }

    /// Returns an error if the plan needs something that only the debug store does.
    pub(super) fn only_area(plan: &Plan) -> Result<(), Self> {
        if plan.area { Err(Self::Area) } else { Ok(()) }
    }

    /// Prints the reason; `what` names what the source makes.
    pub(super) fn say(self, what: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cr3 => write!(f, "{what} cannot be filtered by CR3"),
            Self::Ranges => write!(f, "{what} cannot be filtered by address"),
            Self::Packets => f.write_str("only Intel PT has the packets that it asks for"),
            Self::Area => f.write_str("only the debug store writes through page tables"),
        }
    }
}
