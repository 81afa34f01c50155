//! The reason why a source has recorded nothing.

use alloc::boxed::Box;
use core::fmt;
use pugmark_kernel::lifecycle::Absent;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::slot::{NotTraced, SlotError};

/// The reason why a source has recorded nothing. Each source has errors of its own, known only to itself; all other
/// code just prints them.
pub(crate) struct SourceError {
    is_refusal: bool,
    reason: Box<dyn fmt::Display>,
}

impl SourceError {
    /// Makes an error; `is_refusal` is true if this source or this processor merely lacks what the plan needs.
    pub(crate) fn new(is_refusal: bool, reason: impl fmt::Display + 'static) -> Self {
        Self { is_refusal, reason: Box::new(reason) }
    }

    /// Makes the error that this source or this processor lacks what the plan needs.
    pub(crate) fn refused(reason: impl fmt::Display + 'static) -> Self {
        Self::new(true, reason)
    }

    /// Makes the error that the driver does not work.
    pub(crate) fn failed(reason: impl fmt::Display + 'static) -> Self {
        Self::new(false, reason)
    }

    /// Makes the error that there is no unit.
    pub(crate) fn absent(absent: Absent) -> Self {
        Self::new(absent.is_missing(), absent)
    }

    /// Makes the error that the unit could not be stopped, or its recording could not be read.
    pub(crate) fn does_not_stop(fault: GeneralProtection) -> Self {
        Self::failed(DoesNotStop(fault))
    }

    /// Returns true if this source or this processor merely lacks what the plan needs.
    pub(crate) const fn is_refusal(&self) -> bool {
        self.is_refusal
    }
}

impl From<NotTraced<Self>> for SourceError {
    fn from(error: NotTraced<Self>) -> Self {
        match error {
            NotTraced::Start(error) => error,
            NotTraced::Slot(error) => error.into(),
        }
    }
}

impl From<SlotError> for SourceError {
    fn from(error: SlotError) -> Self {
        Self::failed(error)
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

struct DoesNotStop(GeneralProtection);

impl fmt::Display for DoesNotStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the recording does not stop: {}", self.0)
    }
}
