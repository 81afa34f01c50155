//! The part of an execution that a tracing unit must trace.

use std::ops::RangeInclusive;

use pugmark_model::Context;

/// The conditions of ContextEn and FilterEn, restated for tests.
///
/// Source: SDM vol. 3, Intel Processor Trace, "Trace Filtering".
#[derive(Debug, Clone)]
pub struct Filter {
    /// Privilege level 0 is traced.
    pub os: bool,
    /// Privilege levels above 0 are traced.
    pub user: bool,
    /// If set, only this CR3 is traced; bits 63:5 are compared.
    pub cr3: Option<u64>,
    /// If not empty, only these address ranges are traced.
    pub ranges: Vec<RangeInclusive<u64>>,
    /// Reaching one of these addresses ends the trace (TraceStop).
    pub stop: Option<RangeInclusive<u64>>,
}

impl Filter {
    /// Returns a filter that traces everything.
    #[must_use]
    pub const fn all() -> Self {
        Self { os: true, user: true, cr3: None, ranges: Vec::new(), stop: None }
    }

    /// Returns whether the privilege level and the address space are traced (ContextEn).
    #[must_use]
    pub fn context_enabled(&self, at: &Context) -> bool {
        let level = if at.cpl == 0 { self.os } else { self.user };
        level && self.cr3.is_none_or(|cr3| cr3 >> 5 == at.cr3 >> 5)
    }

    /// Returns whether the instruction at `at.ip` is traced.
    #[must_use]
    pub fn traces(&self, at: &Context) -> bool {
        let inside = self.ranges.is_empty() || self.ranges.iter().any(|range| range.contains(&at.ip));
        self.context_enabled(at) && inside
    }

    /// Returns whether reaching `at` ends the trace.
    #[must_use]
    pub fn stops(&self, at: &Context) -> bool {
        self.context_enabled(at) && self.stop.as_ref().is_some_and(|range| range.contains(&at.ip))
    }
}
