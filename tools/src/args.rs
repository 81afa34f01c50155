//! Command lines: options in any order, each with the value in the next argument.

use crate::{cpu::BadCpu, file, number};
use std::fmt;

/// The arguments not yet read.
#[derive(Debug)]
pub struct Args {
    rest: std::vec::IntoIter<String>,
}

impl Args {
    /// The arguments behind the program's name.
    pub fn new(args: impl IntoIterator<Item = String>) -> Self {
        Self { rest: args.into_iter().collect::<Vec<_>>().into_iter() }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.as_slice().is_empty()
    }

    /// The value of `option`, whatever it looks like.
    ///
    /// # Errors
    /// [`Usage::MissingArgument`] when nothing is left.
    pub fn value(&mut self, option: &str) -> Result<String, Usage> {
        self.rest.next().ok_or_else(|| Usage::MissingArgument(option.into()))
    }

    /// The value of `option`, a number up to `most`.
    ///
    /// # Errors
    /// [`Usage::MissingArgument`] also when the next argument is empty or an option, [`Usage::BadArgument`],
    /// [`Usage::TooBig`].
    pub fn number(&mut self, option: &str, most: u64) -> Result<u64, Usage> {
        let argument = self.value(option)?;
        if argument.is_empty() || argument.starts_with("--") {
            return Err(Usage::MissingArgument(option.into()));
        }
        match number::parse(&argument) {
            None => Err(Usage::BadArgument { option: option.into(), argument }),
            Some(value) if value > most => Err(Usage::TooBig { option: option.into(), argument }),
            Some(value) => Ok(value),
        }
    }

    /// The value of `option`, a number of the width of `T`.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub fn number_as<T: TryFrom<u64>>(&mut self, option: &str) -> Result<T, Usage> {
        let too_big = |argument| Usage::TooBig { option: option.into(), argument };
        let argument = self.rest.as_slice().first().cloned().unwrap_or_default();
        T::try_from(self.number(option, u64::MAX)?).map_err(|_| too_big(argument))
    }
}

impl Iterator for Args {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.rest.next()
    }
}

/// What is wrong with a command line. Programs print it behind their name.
#[derive(Debug, PartialEq, Eq)]
pub enum Usage {
    /// No such option.
    UnknownOption(String),
    /// An option's value is not there.
    MissingArgument(String),
    /// An option's value is not a number.
    BadArgument {
        /// The option.
        option: String,
        /// The value.
        argument: String,
    },
    /// An option's value is above the field it goes into.
    TooBig {
        /// The option.
        option: String,
        /// The value.
        argument: String,
    },
    /// `--cpu` with something else than a processor.
    BadCpu,
    /// No trace.
    NoTrace,
    /// Something behind the trace.
    BehindTrace,
    /// Both columns at once.
    TimeAndTcal,
    /// `--pevent:sample-config` with something else than `ID:V`; the text is what libipt's program shows of it.
    BadSampleConfig(String),
    /// A file that cannot be had.
    File(file::Error),
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOption(option) => write!(f, "unknown option: {option}."),
            Self::MissingArgument(option) => write!(f, "{option}: missing argument."),
            Self::BadArgument { option, argument } => write!(f, "{option}: bad argument: {argument}."),
            Self::TooBig { option, argument } => write!(f, "{option}: value too big: {argument}."),
            Self::BadCpu => write!(f, "cpu must be specified as f/m[/s]"),
            Self::NoTrace => write!(f, "No processor trace file specified."),
            Self::BehindTrace => write!(f, "[<options>] <ptfile>.  Use --help or -h for help."),
            Self::TimeAndTcal => write!(f, "specify either --time or --tcal."),
            Self::BadSampleConfig(shown) => write!(f, "bad sample config {shown}: invalid argument."),
            Self::File(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Usage {}

impl From<file::Error> for Usage {
    fn from(error: file::Error) -> Self {
        Self::File(error)
    }
}

impl From<BadCpu> for Usage {
    fn from(_: BadCpu) -> Self {
        Self::BadCpu
    }
}
