//! The monitor's command line: the monitor's own options come before ` -- `, the guest's after it.

use core::fmt;
use core::num::ParseIntError;

use pugmark_model::amd;
use pugmark_model::intel::{BranchLevel, IntelSettings, Overflow, ReturnElsewhere};
use pugmark_truth::{LogMode, REGION_BASE, REGION_BYTES};

use crate::boot_info::Module;
use crate::clock::EveryNth;
use crate::guest::Stretch;
use crate::guest_map::GuestRam;
use crate::hardware::Profile;

/// The parsed command line.
#[derive(Clone, Copy, Debug)]
pub struct MonitorOptions<'a> {
    /// `profile=NAME`: the processor that the guest sees. Default: skylake.
    pub profile: Profile,
    /// `pmi-skid=N`, `visibility=N`, `ovf=CAPACITY:DRAIN`, `long-tnt=on|off`, `deferred-tips=on|off`,
    /// `psb-before-pge=on|off`, `ret-elsewhere=empties|pops`, `compress-after-ovf=on|off`, `core-ratio=N`,
    /// `branch-level=from|to`, `bts-sets-status=on|off`, `mnt=on|off`.
    pub settings: IntelSettings,
    /// `pmi-skid=N`, `seed=N`, `rip-invalid=N`: settings of AMD's processors.
    pub amd: amd::AmdSettings,
    /// `truth=on|off`: keep a log of what retires. Default: on.
    pub truth: bool,
    /// `x2apic=on|off`: the guest may use x2APIC mode. Default: off.
    pub x2apic: bool,
    /// `accesses=on|off`: report each access to an MSR of the tracing hardware on the serial port. Default: off.
    pub accesses: bool,
    /// `times=N`: record the time of one instruction in N; 0: of none. Default: [`EveryNth::DEFAULT_PERIOD`].
    pub times: u32,
    /// `step=traced|all-levels|always`: when to step the guest.
    pub step: StepPolicy,
    /// `stretch=N`: run up to N instructions at full speed where stepping would add nothing; with 0 and 1 each
    /// instruction is stepped. Default: [`Stretch::MAX`].
    pub stretch: usize,
    /// `clock=TICKS`: stop the guest's clock while a processor is stepped, and count TICKS ticks of the time-stamp
    /// counter for each instruction of a stepped processor. Default: 0, the clock runs on.
    pub clock: u32,
    /// `bios=on|off`: the guest is not a kernel but the machine's BIOS, which boots from the next device. Default: off.
    pub bios: bool,
    /// `kernel=ADDRESS+BYTES`: the location of the guest's kernel, a file that QEMU was told to put there. Without it,
    /// the module that came by `-initrd` is the kernel, and is passed to the kernel as its module.
    pub kernel: Option<Module>,
    /// `module=ADDRESS+BYTES[:WORDS]`, up to [`MAX_MODULES`] times: the location of a file that becomes a module of the
    /// guest, and its words, with [`WORDS_SPACE`] in place of a space; only with `kernel`.
    pub modules: [Option<(Module, &'a str)>; MAX_MODULES],
    /// `ram=MIB`: the end of the guest's RAM. Default: the start of the monitor. With more than 320 MiB the monitor
    /// occupies a hole in the RAM, to which the log belongs if it begins where the monitor ends and ends below the RAM.
    pub ram: GuestRam,
    /// `log=ADDRESS+BYTES`: the location of the log of what retires: in that hole, or above the guest's RAM. Default:
    /// [`REGION_BASE`], [`REGION_BYTES`].
    pub log: Module,
    /// `log-mode=full|ring|hash`: the contents of the log. Default: full.
    pub log_mode: LogMode,
    /// `probe=0xADDRESS`: let the monitor itself trace the guest from its first instruction on, and put the result into
    /// the memory region at this address (see [`pugmark_truth::probe`]).
    pub probe: Option<u64>,
    /// `probe-instructions=N`: the number of instructions that the probe traces. Default: ten million.
    pub probe_instructions: u64,
    /// The guest's command line: everything after ` -- `.
    pub guest: &'a str,
}

/// The number of modules that a guest can have.
pub const MAX_MODULES: usize = 4;
/// The character that stands for a space in the words of a module: the unit separator.
pub const WORDS_SPACE: char = '\u{1f}';

/// The condition under which the guest is stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPolicy {
    /// While a tracing unit must see every instruction. A kernel that the unit does not trace runs freely.
    Traced,
    /// While a tracing unit must see any instruction, at all levels.
    AllLevels,
    /// From a marker that names a session to the next marker that names none, whether tracing is on or not.
    Always,
}

/// The reason why a command line is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionError<'a> {
    /// A word that is not an option of the monitor.
    UnknownOption(&'a str),
    /// A profile that does not exist.
    UnknownProfile(&'a str),
    /// A value that the option does not accept.
    Value {
        /// The option with its value.
        word: &'a str,
        /// The values that it accepts.
        accepted: &'static str,
    },
    /// A value that is not a number.
    Number(&'a str, ParseIntError),
}

impl fmt::Display for OptionError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOption(word) => {
                write!(f, "{word} is none of the monitor's options; the guest's own come after ' -- '")
            }
            Self::UnknownProfile(name) => {
                write!(f, "there is no profile {name} with 64-bit code; there are")?;
                Profile::names().try_for_each(|name| write!(f, " {name}"))
            }
            Self::Value { word, accepted } => write!(f, "{word}: the value must be {accepted}"),
            Self::Number(word, error) => write!(f, "{word}: the value must be a number: {error}"),
        }
    }
}

impl core::error::Error for OptionError<'_> {}

impl<'a> MonitorOptions<'a> {
    /// Parses a command line. Without ` -- ` the whole line is the monitor's.
    ///
    /// # Errors
    /// If a word of the monitor's part is invalid.
    pub fn parse(line: &'a str) -> Result<Self, OptionError<'a>> {
        let (own, guest) = split(line);
        let mut options = Self {
            profile: Profile::by_name("skylake").ok_or(OptionError::UnknownProfile("skylake"))?,
            settings: IntelSettings::default(),
            amd: amd::AmdSettings::default(),
            truth: true,
            x2apic: false,
            accesses: false,
            times: EveryNth::DEFAULT_PERIOD,
            step: StepPolicy::Traced,
            stretch: Stretch::MAX,
            clock: 0,
            bios: false,
            kernel: None,
            modules: [None; MAX_MODULES],
            ram: GuestRam::BELOW_MONITOR,
            log: Module { start: REGION_BASE, bytes: REGION_BYTES },
            log_mode: LogMode::Full,
            probe: None,
            probe_instructions: 10_000_000,
            guest,
        };
        own.split_ascii_whitespace().try_for_each(|word| options.set(word))?;
        if options.log.start == options.ram.hole().end {
            options.ram = options.ram.with_hole_to(options.log.end()).unwrap_or(options.ram);
        }
        Ok(options)
    }

    /// Returns the minimum number of instructions after the one that raises an interrupt of the tracing hardware.
    #[must_use]
    pub const fn skid(&self) -> u32 {
        match self.profile {
            Profile::Intel(_) => self.settings.pmi_skid,
            Profile::Amd(_) => self.amd.skid,
        }
    }

    fn set(&mut self, word: &'a str) -> Result<(), OptionError<'a>> {
        let (name, value) = word.split_once('=').ok_or(OptionError::UnknownOption(word))?;
        let settings = &mut self.settings;
        match name {
            "profile" => self.profile = Profile::by_name(value).ok_or(OptionError::UnknownProfile(value))?,
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
            "mnt" => settings.maintenance = switch(word, value)?,
            "psb-before-pge" => settings.psb_before_pge = switch(word, value)?,
            "ret-elsewhere" => {
                settings.return_elsewhere = match value {
                    "empties" => ReturnElsewhere::Empties,
                    "pops" => ReturnElsewhere::Pops,
                    _ => return Err(OptionError::Value { word, accepted: "empties or pops" }),
                }
            }
            "compress-after-ovf" => settings.compress_after_overflow = switch(word, value)?,
            "branch-level" => {
                settings.branch_level = match value {
                    "from" => BranchLevel::From,
                    "to" => BranchLevel::To,
                    _ => return Err(OptionError::Value { word, accepted: "from or to" }),
                }
            }
            "bts-sets-status" => settings.bts_sets_status = switch(word, value)?,
            "core-ratio" => settings.core_ratio = Some(number(word, value)?),
            "clock" => self.clock = number(word, value)?,
            "stretch" => self.stretch = number(word, value)?,
            "bios" => self.bios = switch(word, value)?,
            "kernel" => self.kernel = Some(place(word, value)?),
            "module" => {
                let (at, words) = value.split_once(':').unwrap_or((value, ""));
                let accepted = "given four times at most";
                let free = self.modules.iter_mut().find(|module| module.is_none());
                *free.ok_or(OptionError::Value { word, accepted })? = Some((place(word, at)?, words));
            }
            "ram" => {
                let end = number::<u64>(word, value)?.checked_mul(1 << 20);
                let accepted = "a number of MiB up to 256 or from 321 to 3072";
                self.ram = end.and_then(GuestRam::up_to).ok_or(OptionError::Value { word, accepted })?;
            }
            "log" => self.log = place(word, value)?,
            "log-mode" => {
                self.log_mode = match value {
                    "full" => LogMode::Full,
                    "ring" => LogMode::Ring,
                    "hash" => LogMode::Hash,
                    _ => return Err(OptionError::Value { word, accepted: "full, ring or hash" }),
                }
            }
            "probe" => self.probe = Some(address(word, value)?),
            "probe-instructions" => self.probe_instructions = number(word, value)?,
            "times" => self.times = number(word, value)?,
            "accesses" => self.accesses = switch(word, value)?,
            "x2apic" => self.x2apic = switch(word, value)?,
            "truth" => self.truth = switch(word, value)?,
            "step" => {
                self.step = match value {
                    "traced" => StepPolicy::Traced,
                    "all-levels" => StepPolicy::AllLevels,
                    "always" => StepPolicy::Always,
                    _ => return Err(OptionError::Value { word, accepted: "traced, all-levels or always" }),
                }
            }
            _ => return Err(OptionError::UnknownOption(word)),
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
) -> Result<T, OptionError<'a>> {
    value.parse().map_err(|error| OptionError::Number(word, error))
}

fn switch<'a>(word: &'a str, value: &str) -> Result<bool, OptionError<'a>> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(OptionError::Value { word, accepted: "on or off" }),
    }
}

/// Parses an address in memory.
fn address<'a>(word: &'a str, value: &str) -> Result<u64, OptionError<'a>> {
    hexadecimal(value).ok_or(OptionError::Value { word, accepted: "0xADDRESS" })
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Parses the location of a file in memory: the address of its first byte and its size.
fn place<'a>(word: &'a str, value: &str) -> Result<Module, OptionError<'a>> {
    let parts = value.split_once('+');
    let parts = parts.and_then(|(start, bytes)| Some((hexadecimal(start)?, hexadecimal(bytes)?)));
    let (start, bytes) = parts.ok_or(OptionError::Value { word, accepted: "0xADDRESS+0xBYTES" })?;
    Ok(Module { start, bytes })
}

/// Parses `off`, or the size of the internal buffer in bytes and the number of bytes drained per instruction.
fn overflow<'a>(word: &'a str, value: &str) -> Result<Option<Overflow>, OptionError<'a>> {
    if value == "off" {
        return Ok(None);
    }
    let (capacity, drain) =
        value.split_once(':').ok_or(OptionError::Value { word, accepted: "off or CAPACITY:DRAIN" })?;
    Ok(Some(Overflow { capacity: number(word, capacity)?, drain: number(word, drain)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_gets_what_lies_after_the_dashes() {
        let rows = [
            ("", ""),
            ("-- only=sort dump", "only=sort dump"),
            ("profile=icelake -- only=sort -- x", "only=sort -- x"),
            ("pmi-skid=3 --", ""),
            ("pmi-skid=3", ""),
        ];
        for (line, guest) in rows {
            assert_eq!(MonitorOptions::parse(line).map(|options| options.guest), Ok(guest), "{line}");
        }
    }

    #[test]
    fn of_what_the_line_does_not_say_there_are_defaults() {
        for line in ["", "-- profile=zen4 truth=off", " -- only=sort", "visibility=64"] {
            let MonitorOptions {
                profile,
                settings,
                amd,
                truth,
                x2apic,
                accesses,
                times,
                step,
                stretch,
                clock,
                bios,
                kernel,
                modules,
                ram,
                log,
                log_mode,
                probe,
                probe_instructions,
                guest: _,
            } = MonitorOptions::parse(line).unwrap();
            assert_eq!((log_mode, clock), (LogMode::Full, 0), "{line}");
            assert_eq!((probe, probe_instructions), (None, 10_000_000), "{line}");
            assert_eq!((bios, kernel, modules), (false, None, [None; 4]), "{line}");
            assert_eq!(
                (ram.end(), log),
                (256 << 20, Module { start: 320 << 20, bytes: 160 << 20 }),
                "{line}"
            );
            assert!(matches!(profile, Profile::Intel(profile) if profile.name == "skylake"), "{line}");
            assert_eq!((settings, amd), (IntelSettings::default(), amd::AmdSettings::default()), "{line}");
            assert_eq!(
                (truth, x2apic, accesses, times, step, stretch),
                (true, false, false, 100, StepPolicy::Traced, Stretch::MAX),
                "{line}"
            );
        }
        // One option sets the skid for both makers; the profile decides which of the two settings applies.
        for (line, skid) in
            [("", 40), ("profile=zen4", 20), ("pmi-skid=7", 7), ("profile=zen4 pmi-skid=7", 7)]
        {
            assert_eq!(MonitorOptions::parse(line).unwrap().skid(), skid, "{line}");
        }
    }

    #[test]
    fn a_log_between_the_monitor_and_more_ram_is_in_the_hole() {
        for (line, hole_end) in [
            ("", 320),
            ("ram=400", 320),
            ("ram=480", 320),
            ("ram=481", 480),
            ("log=0x14000000+0x100000 ram=322", 321),
            ("log=0x14100000+0x100000 ram=400", 320),
            ("log=0x14000000+0xffffffffffffffff ram=400", 320),
        ] {
            let options = MonitorOptions::parse(line).unwrap();
            assert_eq!(options.ram.hole(), 256 << 20..hole_end << 20, "{line}");
        }
    }

    #[test]
    fn of_two_values_the_last_one_counts() {
        let line = "ovf=128:3 long-tnt=off psb-before-pge=off ret-elsewhere=pops compress-after-ovf=on \
                    branch-level=from bts-sets-status=off truth=off step=always \
                    ovf=off long-tnt=on psb-before-pge=on ret-elsewhere=empties compress-after-ovf=off branch-level=to \
                    bts-sets-status=on truth=on step=traced";
        let MonitorOptions { settings, truth, step, .. } = MonitorOptions::parse(line).unwrap();
        assert_eq!((settings, truth, step), (IntelSettings::default(), true, StepPolicy::Traced));
    }

    #[test]
    fn what_is_refused_is_said() {
        extern crate std;
        use std::string::ToString;
        for (line, text) in [
            ("quiet", "quiet is none of the monitor's options; the guest's own come after ' -- '"),
            ("truth=maybe", "truth=maybe: the value must be on or off"),
            ("step=never", "step=never: the value must be traced, all-levels or always"),
            ("ram=257", "ram=257: the value must be a number of MiB up to 256 or from 321 to 3072"),
            (
                "ram=18446744073709551615",
                "ram=18446744073709551615: the value must be a number of MiB up to 256 or from 321 to 3072",
            ),
            ("log-mode=half", "log-mode=half: the value must be full, ring or hash"),
            ("probe=5", "probe=5: the value must be 0xADDRESS"),
            ("log=5+5", "log=5+5: the value must be 0xADDRESS+0xBYTES"),
            ("ovf=7", "ovf=7: the value must be off or CAPACITY:DRAIN"),
            ("times=-1", "times=-1: the value must be a number: invalid digit found in string"),
        ] {
            assert_eq!(MonitorOptions::parse(line).unwrap_err().to_string(), text);
        }
        let text = MonitorOptions::parse("profile=486").unwrap_err().to_string();
        assert!(text.starts_with("there is no profile 486 with 64-bit code; there are "), "{text}");
        let named = |name| text.split_whitespace().any(|word| word == name);
        assert!(named("skylake") && named("zen4") && !named("pentium-m"), "{text}");
    }

    #[test]
    fn options_reach_the_model() {
        let line = "profile=broadwell pmi-skid=7 visibility=0 ovf=128:3 long-tnt=off deferred-tips=on \
                    psb-before-pge=off ret-elsewhere=pops compress-after-ovf=on core-ratio=9 branch-level=from \
                    bts-sets-status=off seed=9 rip-invalid=4 truth=off x2apic=on accesses=on times=5 \
                    step=always stretch=3 bios=on mnt=on";
        let options = MonitorOptions::parse(line).unwrap();
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
            maintenance: true,
        };
        assert_eq!((options.settings, options.truth, options.step), (expected, false, StepPolicy::Always));
        assert!(options.x2apic && options.accesses && options.bios);
        let expected = amd::AmdSettings { skid: 7, seed: 9, rip_invalid: 4, errata: None };
        assert_eq!((options.amd, options.stretch, options.times), (expected, 3, 5));
        let options = MonitorOptions::parse(
            "kernel=0x20000000+0x3e8 module=0x30000000+0x7 module=0x1000+0x2:a\u{1f}b=c:d",
        )
        .unwrap();
        assert_eq!(options.kernel, Some(Module { start: 0x2000_0000, bytes: 1000 }));
        let [first, second, None, None] = options.modules else { panic!("{:?}", options.modules) };
        assert_eq!(first, Some((Module { start: 0x3000_0000, bytes: 7 }, "")));
        assert_eq!(second, Some((Module { start: 0x1000, bytes: 2 }, "a\u{1f}b=c:d")));
        let options = MonitorOptions::parse("probe=0x30000000 probe-instructions=7").unwrap();
        assert_eq!((options.probe, options.probe_instructions), (Some(0x3000_0000), 7));
        let all_levels = MonitorOptions::parse("step=all-levels").unwrap();
        assert_eq!(all_levels.step, StepPolicy::AllLevels);
        let zen4 = MonitorOptions::parse("profile=zen4").unwrap();
        assert!(matches!(zen4.profile, Profile::Amd(profile) if profile.name == "zen4"));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        let rows = [
            ("quiet", OptionError::UnknownOption("quiet")),
            ("pmi-skit=3", OptionError::UnknownOption("pmi-skit=3")),
            ("profile=486", OptionError::UnknownProfile("486")),
            // This processor has no 64-bit code.
            ("profile=pentium-m", OptionError::UnknownProfile("pentium-m")),
            ("branch-level=both", OptionError::Value { word: "branch-level=both", accepted: "from or to" }),
            (
                "ret-elsewhere=stays",
                OptionError::Value { word: "ret-elsewhere=stays", accepted: "empties or pops" },
            ),
            ("truth=maybe", OptionError::Value { word: "truth=maybe", accepted: "on or off" }),
            (
                "step=never",
                OptionError::Value { word: "step=never", accepted: "traced, all-levels or always" },
            ),
            ("ovf=7", OptionError::Value { word: "ovf=7", accepted: "off or CAPACITY:DRAIN" }),
            ("kernel=0x10", OptionError::Value { word: "kernel=0x10", accepted: "0xADDRESS+0xBYTES" }),
            ("module=10+0x10", OptionError::Value { word: "module=10+0x10", accepted: "0xADDRESS+0xBYTES" }),
            (
                "module=0x0+0x1 module=0x0+0x1 module=0x0+0x1 module=0x0+0x1 module=0x0+0x1:a",
                OptionError::Value { word: "module=0x0+0x1:a", accepted: "given four times at most" },
            ),
        ];
        for (line, error) in rows {
            assert_eq!(MonitorOptions::parse(line).unwrap_err(), error, "{line}");
        }
        assert!(matches!(MonitorOptions::parse("pmi-skid=-1"), Err(OptionError::Number("pmi-skid=-1", _))));
        assert!(matches!(MonitorOptions::parse("stretch=x"), Err(OptionError::Number("stretch=x", _))));
    }
}
