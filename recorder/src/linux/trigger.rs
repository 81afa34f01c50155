//! Where tracing starts and stops, as the options name it.

use super::filter::Symbols;
use libc::c_int;
use std::{fmt, str::FromStr};

/// A trigger that starts or stops tracing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The instruction at a distance from the begin of a function is reached.
    Function {
        /// The file that has the function: its name, its path, or its name up to `.so`. Any file, if `None`.
        object: Option<String>,
        /// The function's symbol, also as Rust writes it.
        name: String,
        /// The distance in bytes.
        offset: u64,
    },
    /// The instruction at this address is reached.
    Address(u64),
    /// This number of instructions was executed since tracing stopped or started last.
    Count(u64),
    /// The program receives this signal.
    Signal(i32),
}

const COUNT: &str = "count:";

impl FromStr for Trigger {
    type Err = BadTrigger;

    /// Reads `FUNCTION`, `OBJECT:FUNCTION`, either with `+0xOFFSET`; `0xADDRESS`; `count:N`; or a signal's name.
    fn from_str(text: &str) -> Result<Self, BadTrigger> {
        let bad = || BadTrigger { text: text.into() };
        if let Some(digits) = text.strip_prefix("0x") {
            return hexadecimal(digits).map(Self::Address).ok_or_else(bad);
        }
        if let Some(number) = text.strip_prefix(COUNT) {
            return number.parse().ok().filter(|number| *number > 0).map(Self::Count).ok_or_else(bad);
        }
        if let Some(signal) = signal(text) {
            return Ok(Self::Signal(signal));
        }
        let is_code =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
        if text.strip_prefix("SIG").is_some_and(|rest| !rest.is_empty() && is_code(rest)) {
            return Err(bad());
        }
        let (place, offset) = match text.rsplit_once("+0x") {
            Some((place, digits)) => (place, hexadecimal(digits).ok_or_else(bad)?),
            None => (text, 0),
        };
        let (object, name) = match single_colon(place) {
            Some(at) => (Some(&place[..at]), &place[at + 1..]),
            None => (None, place),
        };
        if name.is_empty() || object == Some("") {
            return Err(bad());
        }
        Ok(Self::Function { object: object.map(Into::into), name: name.into(), offset })
    }
}

fn hexadecimal(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
}

/// Returns where the first single colon is: two colons are part of a name.
fn single_colon(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let is_colon = |at: Option<usize>| at.and_then(|at| bytes.get(at)) == Some(&b':');
    (0..bytes.len()).find(|&at| is_colon(Some(at)) && !is_colon(at.checked_sub(1)) && !is_colon(Some(at + 1)))
}

impl fmt::Display for Trigger {
    /// Writes the form that [`from_str`](Self::from_str) reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function { object, name, offset } => {
                if let Some(object) = object {
                    write!(f, "{object}:")?;
                }
                f.write_str(name)?;
                if *offset == 0 { Ok(()) } else { write!(f, "+{offset:#x}") }
            }
            Self::Address(address) => write!(f, "{address:#x}"),
            Self::Count(count) => write!(f, "{COUNT}{count}"),
            Self::Signal(number) => {
                let name = SIGNALS.iter().find(|(_, signal)| signal == number).map_or("?", |(name, _)| name);
                write!(f, "SIG{name}")
            }
        }
    }
}

/// A trigger that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTrigger {
    /// The text.
    pub text: String,
}

impl fmt::Display for BadTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let forms =
            "FUNCTION, OBJECT:FUNCTION, FUNCTION+0xOFFSET, 0xADDRESS, count:N or a signal such as SIGUSR1";
        write!(f, "{:?} is no place to start or stop at: write {forms}", self.text)
    }
}

impl std::error::Error for BadTrigger {}

/// The signals that a program can handle and that have names of their own.
const SIGNALS: [(&str, c_int); 27] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("SYS", libc::SIGSYS),
];

fn signal(text: &str) -> Option<c_int> {
    let name = text.strip_prefix("SIG")?;
    SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

impl Trigger {
    /// Returns the address, if it is a place that is mapped.
    pub(super) fn resolve(&self, symbols: &Symbols) -> Option<u64> {
        match self {
            Self::Function { object, name, offset } => {
                let (first, last) = symbols.find_code(object.as_deref(), name)?;
                // The end of a symbol without a size is not known.
                (last == first || *offset <= last - first).then(|| first.wrapping_add(*offset))
            }
            Self::Address(address) => Some(*address),
            Self::Count(_) | Self::Signal(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(object: Option<&str>, name: &str, offset: u64) -> Trigger {
        Trigger::Function { object: object.map(Into::into), name: name.into(), offset }
    }

    #[test]
    fn a_trigger_is_a_place_a_count_or_a_signal_and_prints_as_it_was_written() {
        for (text, expected) in [
            ("main", function(None, "main", 0)),
            ("libc.so.6:malloc", function(Some("libc.so.6"), "malloc", 0)),
            ("/lib/x y:f", function(Some("/lib/x y"), "f", 0)),
            ("work+0x1f", function(None, "work", 0x1f)),
            ("prog:work+0x1f", function(Some("prog"), "work", 0x1f)),
            ("core::fmt::write", function(None, "core::fmt::write", 0)),
            ("prog:core::fmt::write", function(Some("prog"), "core::fmt::write", 0)),
            ("operator+", function(None, "operator+", 0)),
            // A name that only looks like something else.
            ("count", function(None, "count", 0)),
            ("SIG", function(None, "SIG", 0)),
            ("SIGnal", function(None, "SIGnal", 0)),
            ("prog:SIGUSR1", function(Some("prog"), "SIGUSR1", 0)),
            ("0x401000", Trigger::Address(0x40_1000)),
            ("count:1000000", Trigger::Count(1_000_000)),
            ("SIGUSR1", Trigger::Signal(libc::SIGUSR1)),
            ("SIGSYS", Trigger::Signal(libc::SIGSYS)),
        ] {
            assert_eq!(text.parse(), Ok(expected.clone()), "{text}");
            assert_eq!(expected.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_trigger_is_said() {
        let refused = ["", ":", "a:", ":f", "0x", "0xg", "0x+1", "count:", "count:0", "count:-1", "count:1k"];
        for text in refused.into_iter().chain(["f+0x", "f+0xg", "SIGUSR", "SIGNONE", "+0x4", "SIGKILL"]) {
            assert_eq!(text.parse::<Trigger>(), Err(BadTrigger { text: text.into() }), "{text}");
        }
        let error = "SIGUSR".parse::<Trigger>().unwrap_err().to_string();
        assert_eq!(
            error,
            "\"SIGUSR\" is no place to start or stop at: write FUNCTION, OBJECT:FUNCTION, FUNCTION+0xOFFSET, \
             0xADDRESS, count:N or a signal such as SIGUSR1"
        );
    }
}
