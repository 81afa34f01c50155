//! The fields of lines after the workload's name, with parsing and printing side by side.

mod measured;
mod trace;

use core::fmt;

use crate::error::ParseError;
use crate::words::Words;

pub use measured::{Branch, Count, EventKind, Last, Precise, Sample, Samples};
pub use trace::{After, CodeSection, Filter, Level, Lost, Piece, Records, Stat, SymbolRange};

/// A page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// CR2.
    pub address: u64,
    /// The error code.
    pub code: u64,
}

impl Fault {
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let pairs = words.pairs(&["address", "code"])?;
        Ok(Self { address: pairs.number("address")?, code: pairs.number("code")? })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, code } = self;
        write!(f, "address={address:#x} code={code:#x}")
    }
}

/// An access to an MSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The register.
    pub msr: u32,
    /// The value to write; `None`: the register is read.
    pub value: Option<u64>,
}

impl Access {
    pub(crate) fn parse(words: Words<'_>) -> Result<Self, ParseError<'_>> {
        let pairs = words.pairs(&["msr", "value"])?;
        Ok(Self { msr: pairs.number("msr")?, value: pairs.maybe_number("value")? })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "msr={:#x}", self.msr)?;
        match self.value {
            Some(value) => write!(f, " value={value:#x}"),
            None => Ok(()),
        }
    }
}
