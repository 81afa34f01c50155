//! The one error of the short way.

use crate::intel::pt::{BufferError, PtConfigRefusal, PtRefusal};
use crate::lifecycle::{Absent, StartError};
use crate::msr::GeneralProtection;
use crate::slot::{NotTraced, SlotError};
use core::fmt;

/// The reason why nothing was traced, or why a trace was not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortError {
    /// The processor has no Intel PT, or another owner uses it.
    Absent(Absent),
    /// The processor cannot trace into this memory, or there is too little of it.
    Buffer(BufferError),
    /// The processor did not start the trace.
    Start(StartError<PtRefusal>),
    /// The slot of the processor's trace refused the call.
    Slot(SlotError),
    /// A register of the unit raised #GP when the trace was stopped.
    Stop(GeneralProtection),
    /// The memory for a copy of the trace has too few bytes.
    Scratch {
        /// The number of bytes that are needed.
        needed: u64,
    },
    /// The trace cannot be decoded from this offset on.
    Decode(pugmark_decoder_core::Error),
}

impl From<Absent> for ShortError {
    fn from(absent: Absent) -> Self {
        Self::Absent(absent)
    }
}

impl From<BufferError> for ShortError {
    fn from(error: BufferError) -> Self {
        Self::Buffer(error)
    }
}

impl From<StartError<PtRefusal>> for ShortError {
    fn from(error: StartError<PtRefusal>) -> Self {
        Self::Start(error)
    }
}

impl From<PtConfigRefusal> for ShortError {
    fn from(refusal: PtConfigRefusal) -> Self {
        Self::Start(StartError::Refused(PtRefusal::Config(refusal)))
    }
}

impl From<NotTraced<StartError<PtRefusal>>> for ShortError {
    fn from(error: NotTraced<StartError<PtRefusal>>) -> Self {
        match error {
            NotTraced::Slot(error) => Self::Slot(error),
            NotTraced::Start(error) => Self::Start(error),
        }
    }
}

impl From<SlotError> for ShortError {
    fn from(error: SlotError) -> Self {
        Self::Slot(error)
    }
}

impl From<GeneralProtection> for ShortError {
    fn from(fault: GeneralProtection) -> Self {
        Self::Stop(fault)
    }
}

impl From<pugmark_decoder_core::Error> for ShortError {
    fn from(error: pugmark_decoder_core::Error) -> Self {
        Self::Decode(error)
    }
}

impl fmt::Display for ShortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(absent) => write!(f, "no Intel PT here: {absent}"),
            Self::Buffer(error) => write!(f, "no memory for the trace: {error}"),
            Self::Start(error) => write!(f, "the trace did not start: {error}"),
            Self::Slot(error) => error.fmt(f),
            Self::Stop(fault) => write!(f, "the trace did not stop: {fault}"),
            Self::Scratch { needed } => write!(f, "the copy of the trace needs {needed} bytes"),
            Self::Decode(error) => write!(f, "the trace is not decoded from {error}"),
        }
    }
}

impl core::error::Error for ShortError {}
