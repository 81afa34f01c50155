//! The monitor's command line: the monitor's own options come before ` -- `, the guest's after it.

use core::fmt;
use core::num::ParseIntError;

use pugmark_model::amd;
use pugmark_model::intel::{BranchLevel, IntelSettings, Overflow, ReturnElsewhere};

use crate::clock::Every;
use crate::guest::Stretch;
use crate::hardware::Profile;

/// The parsed command line.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// `profile=NAME`: the processor that the guest sees. Default: skylake.
    pub profile: Profile,
    /// `pmi-skid=N`, `visibility=N`, `ovf=CAPACITY:DRAIN`, `long-tnt=on|off`, `deferred-tips=on|off`,
    /// `psb-before-pge=on|off`, `ret-elsewhere=empties|pops`, `compress-after-ovf=on|off`, `core-ratio=N`,
    /// `branch-level=from|to`, `bts-sets-status=on|off`.
    pub settings: IntelSettings,
    /// `pmi-skid=N`, `seed=N`, `rip-invalid=N`: settings of AMD's processors.
    pub amd: amd::AmdSettings,
    /// `truth=on|off`: whether to keep a log of what retires. Default: on.
    pub truth: bool,
    /// `times=N`: the log gets the time of one instruction in N; 0: of none. Default: [`Every::USUAL`].
    pub times: u32,
    /// `step=traced|always`: when to step the guest.
    pub step: StepPolicy,
    /// `stretch=N`: up to N instructions are executed in one go if stepping would do nothing more; with 0 and 1 each
    /// instruction is stepped. Default: [`Stretch::MAX`].
    pub stretch: usize,
    /// The guest's command line: everything after ` -- `.
    pub guest: &'a str,
}

/// When the guest is stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPolicy {
    /// While a tracing unit must see every instruction.
    Traced,
    /// From a marker that names a session to the next marker that names none, whether tracing is on or not.
    Always,
}

/// Why a command line is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error<'a> {
    /// A word that is not an option of the monitor.
    UnknownOption(&'a str),
    /// A profile that does not exist.
    UnknownProfile(&'a str),
    /// A value that the option does not accept.
    Value(&'a str),
    /// A value that is not a number.
    Number(&'a str, ParseIntError),
}

impl fmt::Display for Error<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOption(word) => write!(f, "unknown option {word}"),
            Self::UnknownProfile(name) => write!(f, "unknown profile {name}"),
            Self::Value(word) => write!(f, "{word}: no such value"),
            Self::Number(word, error) => write!(f, "{word}: {error}"),
        }
    }
}

impl core::error::Error for Error<'_> {}

impl<'a> Options<'a> {
    /// Parses a command line. Without ` -- ` all of it is the monitor's.
    ///
    /// # Errors
    /// If a word of the monitor's part is not understood.
    pub fn parse(line: &'a str) -> Result<Self, Error<'a>> {
        let (own, guest) = split(line);
        let mut options = Self {
            profile: Profile::by_name("skylake").ok_or(Error::UnknownProfile("skylake"))?,
            settings: IntelSettings::default(),
            amd: amd::AmdSettings::default(),
            truth: true,
            times: Every::USUAL,
            step: StepPolicy::Traced,
            stretch: Stretch::MAX,
            guest,
        };
        own.split_ascii_whitespace().try_for_each(|word| options.set(word))?;
        Ok(options)
    }

    /// Returns how many instructions at least execute after the one that raises an interrupt of the tracing hardware.
    #[must_use]
    pub const fn skid(&self) -> u32 {
        match self.profile {
            Profile::Intel(_) => self.settings.pmi_skid,
            Profile::Amd(_) => self.amd.skid,
        }
    }

    fn set(&mut self, word: &'a str) -> Result<(), Error<'a>> {
        let (name, value) = word.split_once('=').ok_or(Error::UnknownOption(word))?;
        let settings = &mut self.settings;
        match name {
            "profile" => self.profile = Profile::by_name(value).ok_or(Error::UnknownProfile(value))?,
            "pmi-skid" => {
                settings.pmi_skid = number(word, value)?;
                self.amd.skid = settings.pmi_skid;
            }
            "seed" => self.amd.seed = number(word, value)?,
            "rip-invalid" => self.amd.rip_invalid = number(word, value)?,
            "visibility" => settings.visibility = number(word, value)?,
            "ovf" => settings.overflow = overflow(word, value)?,
            "long-tnt" => settings.long_tnt = switch(word, value)?,
            "deferred-tips" => settings.deferred_tips = switch(word, value)?,
            "psb-before-pge" => settings.psb_before_pge = switch(word, value)?,
            "ret-elsewhere" => {
                settings.return_elsewhere = match value {
                    "empties" => ReturnElsewhere::Empties,
                    "pops" => ReturnElsewhere::Pops,
                    _ => return Err(Error::Value(word)),
                }
            }
            "compress-after-ovf" => settings.compress_after_overflow = switch(word, value)?,
            "branch-level" => {
                settings.branch_level = match value {
                    "from" => BranchLevel::From,
                    "to" => BranchLevel::To,
                    _ => return Err(Error::Value(word)),
                }
            }
            "bts-sets-status" => settings.bts_sets_status = switch(word, value)?,
            "core-ratio" => settings.core_ratio = Some(number(word, value)?),
            "stretch" => self.stretch = number(word, value)?,
            "times" => self.times = number(word, value)?,
            "truth" => self.truth = switch(word, value)?,
            "step" => {
                self.step = match value {
                    "traced" => StepPolicy::Traced,
                    "always" => StepPolicy::Always,
                    _ => return Err(Error::Value(word)),
                }
            }
            _ => return Err(Error::UnknownOption(word)),
        }
        Ok(())
    }
}

fn split(line: &str) -> (&str, &str) {
    if let Some(guest) = line.strip_prefix("-- ") {
        return ("", guest);
    }
    line.split_once(" -- ").or_else(|| line.strip_suffix(" --").map(|own| (own, ""))).unwrap_or((line, ""))
}

fn number<'a, T: core::str::FromStr<Err = ParseIntError>>(
    word: &'a str,
    value: &str,
) -> Result<T, Error<'a>> {
    value.parse().map_err(|error| Error::Number(word, error))
}

fn switch<'a>(word: &'a str, value: &str) -> Result<bool, Error<'a>> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Error::Value(word)),
    }
}

/// Parses `off`, or the size of the internal buffer in bytes and the number of bytes that leave it per instruction.
fn overflow<'a>(word: &'a str, value: &str) -> Result<Option<Overflow>, Error<'a>> {
    if value == "off" {
        return Ok(None);
    }
    let (capacity, drain) = value.split_once(':').ok_or(Error::Value(word))?;
    Ok(Some(Overflow { capacity: number(word, capacity)?, drain: number(word, drain)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_gets_what_lies_behind_the_dashes() {
        let rows = [
            ("", ""),
            ("-- only=sort dump", "only=sort dump"),
            ("profile=icelake -- only=sort -- x", "only=sort -- x"),
            ("pmi-skid=3 --", ""),
            ("pmi-skid=3", ""),
        ];
        for (line, guest) in rows {
            assert_eq!(Options::parse(line).map(|options| options.guest), Ok(guest), "{line}");
        }
    }

    #[test]
    fn of_what_the_line_does_not_say_there_are_defaults() {
        for line in ["", "-- profile=zen4 truth=off", " -- only=sort", "visibility=64"] {
            let Options { profile, settings, amd, truth, times, step, stretch, guest: _ } =
                Options::parse(line).unwrap();
            assert!(matches!(profile, Profile::Intel(profile) if profile.name == "skylake"), "{line}");
            assert_eq!((settings, amd), (IntelSettings::default(), amd::AmdSettings::default()), "{line}");
            assert_eq!(
                (truth, times, step, stretch),
                (true, 100, StepPolicy::Traced, Stretch::MAX),
                "{line}"
            );
        }
        // One option sets the skid for both makers; the profile decides which of the two settings counts.
        for (line, skid) in
            [("", 40), ("profile=zen4", 20), ("pmi-skid=7", 7), ("profile=zen4 pmi-skid=7", 7)]
        {
            assert_eq!(Options::parse(line).unwrap().skid(), skid, "{line}");
        }
    }

    #[test]
    fn of_two_values_the_last_one_counts() {
        let line = "ovf=128:3 long-tnt=off psb-before-pge=off ret-elsewhere=pops compress-after-ovf=on branch-level=from \
                    bts-sets-status=off truth=off step=always \
                    ovf=off long-tnt=on psb-before-pge=on ret-elsewhere=empties compress-after-ovf=off branch-level=to \
                    bts-sets-status=on truth=on step=traced";
        let Options { settings, truth, step, .. } = Options::parse(line).unwrap();
        assert_eq!((settings, truth, step), (IntelSettings::default(), true, StepPolicy::Traced));
    }

    #[test]
    fn what_is_refused_is_said() {
        extern crate std;
        use std::string::ToString;
        for (line, text) in [
            ("quiet", "unknown option quiet"),
            ("profile=486", "unknown profile 486"),
            ("truth=maybe", "truth=maybe: no such value"),
            ("times=-1", "times=-1: invalid digit found in string"),
        ] {
            assert_eq!(Options::parse(line).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn options_reach_the_model() {
        let line = "profile=broadwell pmi-skid=7 visibility=0 ovf=128:3 long-tnt=off deferred-tips=on psb-before-pge=off \
                    ret-elsewhere=pops compress-after-ovf=on core-ratio=9 branch-level=from bts-sets-status=off \
                    seed=9 rip-invalid=4 truth=off times=5 step=always stretch=3";
        let options = Options::parse(line).unwrap();
        assert!(matches!(options.profile, Profile::Intel(profile) if profile.name == "broadwell"));
        let expected = IntelSettings {
            pmi_skid: 7,
            visibility: 0,
            overflow: Some(Overflow { capacity: 128, drain: 3 }),
            long_tnt: false,
            deferred_tips: true,
            core_ratio: Some(9),
            psb_before_pge: false,
            return_elsewhere: ReturnElsewhere::Pops,
            compress_after_overflow: true,
            branch_level: BranchLevel::From,
            bts_sets_status: false,
        };
        assert_eq!((options.settings, options.truth, options.step), (expected, false, StepPolicy::Always));
        let expected = amd::AmdSettings { skid: 7, seed: 9, rip_invalid: 4, errata: None };
        assert_eq!((options.amd, options.stretch, options.times), (expected, 3, 5));
        let zen4 = Options::parse("profile=zen4").unwrap();
        assert!(matches!(zen4.profile, Profile::Amd(profile) if profile.name == "zen4"));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        let rows = [
            ("quiet", Error::UnknownOption("quiet")),
            ("pmi-skit=3", Error::UnknownOption("pmi-skit=3")),
            ("profile=486", Error::UnknownProfile("486")),
            // This processor has no 64-bit code.
            ("profile=pentium-m", Error::UnknownProfile("pentium-m")),
            ("branch-level=both", Error::Value("branch-level=both")),
            ("ret-elsewhere=stays", Error::Value("ret-elsewhere=stays")),
            ("truth=maybe", Error::Value("truth=maybe")),
            ("step=never", Error::Value("step=never")),
            ("ovf=7", Error::Value("ovf=7")),
        ];
        for (line, error) in rows {
            assert_eq!(Options::parse(line).unwrap_err(), error, "{line}");
        }
        assert!(matches!(Options::parse("pmi-skid=-1"), Err(Error::Number("pmi-skid=-1", _))));
        assert!(matches!(Options::parse("stretch=x"), Err(Error::Number("stretch=x", _))));
    }
}
