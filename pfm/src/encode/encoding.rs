//! The result of encoding an event string.

use super::{bit, choice::UnitMaskChoice};
use crate::{
    event_select::EventSelect,
    family::Modifier,
    pmu::Pmu,
    table::{Event, UnitMask},
};
use core::fmt::{self, Write};

/// An encoded event. `Display` writes libpfm4's canonical string: all unit masks in the table's order, including
/// defaults, then every modifier with its value.
#[derive(Clone, Copy, Debug)]
pub struct Encoding {
    pmu: &'static Pmu,
    event: &'static Event,
    choice: UnitMaskChoice,
    select: EventSelect,
}

impl Encoding {
    pub(super) const fn new(
        pmu: &'static Pmu,
        event: &'static Event,
        choice: UnitMaskChoice,
        select: EventSelect,
    ) -> Self {
        Self { pmu, event, choice, select }
    }

    /// Returns the PMU.
    #[must_use]
    pub const fn pmu(&self) -> &'static Pmu {
        self.pmu
    }

    /// Returns the event.
    #[must_use]
    pub const fn event(&self) -> &'static Event {
        self.event
    }

    /// Returns the unit masks, in the table's order; none if the request gave their bits as a number.
    pub fn unit_masks(&self) -> impl Iterator<Item = &'static UnitMask> {
        self.choice.masks()
    }

    /// Returns the value for the counter's PERFEVTSEL, with the counter and its interrupt enabled.
    #[must_use]
    pub const fn select(&self) -> u64 {
        self.select.bits()
    }

    fn value(&self, modifier: Modifier) -> u8 {
        match modifier {
            Modifier::CounterMask => self.select.counter_mask(),
            _ => self.select.intersects(bit(modifier)).into(),
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::", self.pmu.name())?;
        let mut f = LimitedWriter { rest: MAX_LENGTH, to: f };
        f.write_str(self.event.name())?;
        for mask in self.unit_masks() {
            write!(f, ":{}", mask.name())?;
        }
        if let Some(raw) = self.choice.raw() {
            write!(f, ":{raw:#x}")?;
        }
        for &modifier in self.pmu.modifiers() {
            write!(f, ":{modifier}={}", self.value(modifier))?;
        }
        Ok(())
    }
}

/// The size of libpfm4's buffer for the text after `pmu::`, which truncates longer texts.
const MAX_LENGTH: usize = 255;

/// A writer that passes on `rest` bytes and drops further ones. All are ASCII.
struct LimitedWriter<'a, 'b> {
    rest: usize,
    to: &'a mut fmt::Formatter<'b>,
}

impl Write for LimitedWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let part = text.get(..self.rest).unwrap_or(text);
        self.rest = self.rest.saturating_sub(part.len());
        self.to.write_str(part)
    }
}
