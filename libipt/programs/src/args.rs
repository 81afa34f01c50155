//! Reads command lines: options come in any order, each with its value in the next argument.

use crate::file::FileError;
use pugmark_tools::{cpu::BadCpu, number};
use std::fmt;

/// The unread arguments.
#[derive(Debug)]
pub struct Args {
    rest: std::vec::IntoIter<String>,
}

impl Args {
    /// Takes the arguments that follow the program's name.
    pub fn new(args: impl IntoIterator<Item = String>) -> Self {
        Self { rest: args.into_iter().collect::<Vec<_>>().into_iter() }
    }

    /// Returns true if no argument is left.
    pub fn is_empty(&self) -> bool {
        self.rest.as_slice().is_empty()
    }

    /// Returns the next argument without taking it.
    pub fn peek(&self) -> Option<&str> {
        self.rest.as_slice().first().map(String::as_str)
    }

    /// Takes the value of `option`, even one that looks like an option.
    ///
    /// # Errors
    /// [`UsageError::MissingArgument`] if no argument is left.
    pub fn value(&mut self, option: &str) -> Result<String, UsageError> {
        self.rest.next().ok_or_else(|| UsageError::MissingArgument(option.into()))
    }

    /// Takes the value of `option`, a number up to `most`.
    ///
    /// # Errors
    /// [`UsageError::MissingArgument`] also if the next argument is empty or an option, [`UsageError::BadArgument`],
    /// [`UsageError::TooBig`].
    pub fn number(&mut self, option: &str, most: u64) -> Result<u64, UsageError> {
        let argument = self.value(option)?;
        if argument.is_empty() || argument.starts_with("--") {
            return Err(UsageError::MissingArgument(option.into()));
        }
        match number::parse(&argument) {
            None => Err(UsageError::BadArgument { option: option.into(), argument }),
            Some(value) if value > most => Err(UsageError::TooBig { option: option.into(), argument }),
            Some(value) => Ok(value),
        }
    }

    /// Takes the value of `option`, a number that fits into `T`.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub fn number_as<T: TryFrom<u64>>(&mut self, option: &str) -> Result<T, UsageError> {
        let too_big = |argument| UsageError::TooBig { option: option.into(), argument };
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

/// An error in a command line. The programs print it after their name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageError {
    /// There is no such option.
    UnknownOption(String),
    /// The value of an option is missing.
    MissingArgument(String),
    /// The value of an option is not a number.
    BadArgument {
        /// The option.
        option: String,
        /// The value.
        argument: String,
    },
    /// The value of an option does not fit into its field.
    TooBig {
        /// The option.
        option: String,
        /// The value.
        argument: String,
    },
    /// The value of `--cpu` is not a processor.
    BadCpu,
    /// ptdump was given no trace.
    NoTrace,
    /// ptxed was given no trace.
    NoPtFile,
    /// A second trace.
    SecondTrace(String),
    /// An argument after the trace.
    AfterTrace,
    /// Both `--time` and `--tcal`.
    TimeAndTcal,
    /// `--cpu` after the trace.
    CpuAfterTrace,
    /// This option follows the trace.
    OptionAfterTrace(String),
    /// The value of `--pevent:sample-config` is not `ID:V`.
    BadSampleConfig {
        /// The part of the argument that libipt's program shows.
        shown: String,
        /// The error text that libipt's program prints for it.
        error: &'static str,
    },
    /// A file that cannot be read.
    File(FileError),
    /// A file of sideband records that cannot be read.
    Records {
        /// The file.
        file: String,
        /// The reason.
        error: &'static str,
    },
    /// An image that cannot be read.
    Image {
        /// The file or folder.
        file: String,
        /// The reason.
        error: String,
    },
    /// A raw file without an address.
    NoBase(String),
    /// A raw file that cannot be added.
    Add {
        /// The file.
        file: String,
        /// Its address.
        base: u64,
        /// The reason.
        error: &'static str,
    },
    /// An ELF file that cannot be opened.
    NoElf {
        /// The file.
        file: String,
        /// The system's text for the reason.
        error: String,
    },
    /// Not an ELF file.
    NotElf(String),
    /// An ELF file of an unsupported class.
    ElfClass(u8),
    /// An ELF file whose program header offset is impossible.
    ElfTable(String),
    /// An ELF file that ends within a header.
    CutElf {
        /// The file.
        file: String,
        /// The header in which the file ends.
        header: ElfHeader,
        /// True if the path is a folder.
        is_folder: bool,
    },
}

/// A header of an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElfHeader {
    /// The identification.
    Identification,
    /// The file header.
    File,
    /// The program header with this number.
    Program(u16),
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOption(option) => write!(f, "unknown option: {option}."),
            Self::MissingArgument(option) => write!(f, "{option}: missing argument."),
            Self::BadArgument { option, argument } => write!(f, "{option}: bad argument: {argument}."),
            Self::TooBig { option, argument } => write!(f, "{option}: value too big: {argument}."),
            Self::BadCpu => write!(f, "cpu must be specified as f/m[/s]"),
            Self::NoTrace => write!(f, "No processor trace file specified."),
            Self::NoPtFile => write!(f, "no pt file."),
            Self::SecondTrace(argument) => write!(f, "duplicate pt sources: {argument}."),
            Self::AfterTrace => write!(f, "[<options>] <ptfile>.  Use --help or -h for help."),
            Self::TimeAndTcal => write!(f, "specify either --time or --tcal."),
            Self::CpuAfterTrace => write!(f, "please specify cpu before the pt source file."),
            Self::OptionAfterTrace(option) => write!(f, "please specify {option} before --pt."),
            Self::BadSampleConfig { shown, error } => write!(f, "bad sample config {shown}: {error}."),
            Self::File(error) => error.fmt(f),
            Self::Records { file, error } => write!(f, "error loading {file}: {error}."),
            Self::Image { file, error } => write!(f, "failed to load image {file}: {error}."),
            Self::NoBase(argument) => write!(f, "failed to parse base addressfrom '{argument}'."),
            Self::Add { file, base, error } => write!(f, "failed to add {file} at 0x{base:x}: {error}."),
            Self::NoElf { file, error } => write!(f, "warning: failed to open {file}: {error}."),
            Self::NotElf(file) => write!(f, "warning: ignoring {file}: not an ELF file."),
            Self::ElfClass(class) => write!(f, "unsupported ELF class: {class}"),
            Self::ElfTable(file) => write!(f, "warning: {file} ELF header too big."),
            Self::CutElf { file, header, is_folder } => {
                // C's text for the value that a read at the end of the file leaves in `errno`.
                let error = if *is_folder { "Is a directory" } else { "Success" };
                match header {
                    ElfHeader::Identification => {
                        write!(f, "warning: {file} failed to read file header: {error}.")
                    }
                    ElfHeader::File => write!(f, "warning: {file} error reading ELF header: {error}."),
                    ElfHeader::Program(number) => {
                        write!(f, "warning: {file} error reading phdr {number}: {error}.")
                    }
                }
            }
        }
    }
}

impl std::error::Error for UsageError {}

impl From<FileError> for UsageError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl From<BadCpu> for UsageError {
    fn from(_: BadCpu) -> Self {
        Self::BadCpu
    }
}
