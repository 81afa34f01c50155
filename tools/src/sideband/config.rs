//! The configuration of a stream of records: the values of `--pevent:*`.

use crate::args::{Args, UsageError};
use crate::code::elf::Abi;
use crate::number;
use crate::perf_clock::PerfClock;
use std::collections::HashMap;

/// The values that reading a stream's records requires and that the records do not hold.
#[derive(Clone, Debug)]
pub struct StreamConfig {
    /// `perf_event_attr.sample_type`.
    pub sample_type: u64,
    /// The `sample_type` of events by identifier, if the stream's events have different ones.
    pub sample_configs: Vec<(u64, u64)>,
    /// `perf_event_mmap_page.time_zero`.
    pub time_zero: u64,
    /// `perf_event_mmap_page.time_shift`.
    pub time_shift: u16,
    /// `perf_event_mmap_page.time_mult`.
    pub time_mult: u32,
    /// Subtracted from a record's TSC, so that records do not take effect too late.
    pub tsc_offset: u64,
    /// The lowest address of the kernel.
    pub kernel_start: u64,
    /// The folder that names of mapped files are relative to.
    pub sysroot: String,
    /// The files to map for `[vdso]`.
    pub vdso: HashMap<Abi, String>,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            sample_type: 0,
            sample_configs: Vec::new(),
            time_zero: 0,
            time_shift: 0,
            time_mult: 1,
            tsc_offset: 0,
            kernel_start: u64::MAX,
            sysroot: String::new(),
            vdso: HashMap::new(),
        }
    }
}

impl StreamConfig {
    /// Reads the value of a `--pevent:` option.
    ///
    /// # Errors
    /// [`UsageError::UnknownOption`], and the errors in the value.
    pub fn set(&mut self, option: &str, args: &mut Args) -> Result<(), UsageError> {
        match option {
            "--pevent:sample-type" => self.sample_type = args.number_as(option)?,
            "--pevent:time-zero" => self.time_zero = args.number_as(option)?,
            "--pevent:time-shift" => self.time_shift = args.number_as(option)?,
            "--pevent:time-mult" => self.time_mult = args.number_as(option)?,
            "--pevent:tsc-offset" => self.tsc_offset = args.number_as(option)?,
            "--pevent:kernel-start" => self.kernel_start = args.number_as(option)?,
            "--pevent:sysroot" => self.sysroot = args.value(option)?,
            "--pevent:vdso-x64" => drop(self.vdso.insert(Abi::X64, args.value(option)?)),
            "--pevent:vdso-x32" => drop(self.vdso.insert(Abi::X32, args.value(option)?)),
            "--pevent:vdso-ia32" => drop(self.vdso.insert(Abi::Ia32, args.value(option)?)),
            _ => return Err(UsageError::UnknownOption(option.into())),
        }
        Ok(())
    }

    /// Reads `ID:V`; the error shows `shown` if the argument has another form.
    ///
    /// # Errors
    /// [`UsageError::BadSampleConfig`].
    pub fn add_sample_config(&mut self, shown: &str, argument: Option<&str>) -> Result<(), UsageError> {
        let failed = |error| UsageError::BadSampleConfig { shown: shown.into(), error };
        let config = argument
            .ok_or_else(|| failed("internal error"))?
            .split_once(':')
            .and_then(|(id, sample_type)| Some((number::parse(id)?, number::parse_or_zero(sample_type)?)));
        self.sample_configs.push(config.ok_or_else(|| failed("invalid argument"))?);
        Ok(())
    }

    /// Returns a time of perf's clock as TSC; `None` if the configuration cannot convert it.
    pub fn tsc_of(&self, time: u64) -> Option<u64> {
        if time == 0 {
            return Some(self.earlier(0));
        }
        let clock = PerfClock { zero: self.time_zero, shift: self.time_shift, mult: self.time_mult };
        Some(self.earlier(clock.tsc(time)?))
    }

    /// Subtracts the offset, or adds its magnitude if it is negative. The subtraction stops at 0.
    fn earlier(&self, tsc: u64) -> u64 {
        let offset = self.tsc_offset;
        match tsc.checked_sub(offset) {
            Some(tsc) => tsc,
            None if offset.cast_signed() >= 0 => 0,
            None => tsc.wrapping_sub(offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_perf_time_to_tsc() {
        let config = StreamConfig { time_zero: 100, time_shift: 4, time_mult: 10, ..StreamConfig::default() };
        for (config, time, tsc) in [
            (StreamConfig::default(), 7, Some(7)),
            (config.clone(), 0, Some(0)),
            (StreamConfig { tsc_offset: 5_u64.wrapping_neg(), ..config.clone() }, 0, Some(5)),
            (config.clone(), 100, Some(0)),
            (config.clone(), 123, Some(2 * 16 + 3 * 16 / 10)),
            (StreamConfig { tsc_offset: 6, ..config.clone() }, 123, Some(30)),
            (StreamConfig { tsc_offset: 1000, ..config.clone() }, 123, Some(0)),
            (StreamConfig { tsc_offset: 5_u64.wrapping_neg(), ..config.clone() }, 123, Some(41)),
            (StreamConfig { time_mult: 0, ..config.clone() }, 123, None),
            (StreamConfig { time_shift: 0xffff, ..config }, 123, Some(0)),
        ] {
            assert_eq!(config.tsc_of(time), tsc, "{config:?}");
        }
    }

    #[test]
    fn each_option_sets_its_own_value() {
        type Number = (&'static str, fn(&StreamConfig) -> u64, u64);
        let numbers: [Number; 6] = [
            ("--pevent:sample-type", |config| config.sample_type, 0x10),
            ("--pevent:time-zero", |config| config.time_zero, 11),
            ("--pevent:time-shift", |config| config.time_shift.into(), 12),
            ("--pevent:time-mult", |config| config.time_mult.into(), 13),
            ("--pevent:tsc-offset", |config| config.tsc_offset, 14),
            ("--pevent:kernel-start", |config| config.kernel_start, 15),
        ];
        let mut config = StreamConfig::default();
        for (option, get, value) in numbers {
            config.set(option, &mut Args::new([value.to_string()])).expect(option);
            assert_eq!(get(&config), value, "{option}");
            assert_eq!(
                config.set(option, &mut Args::new([])),
                Err(UsageError::MissingArgument(option.into()))
            );
        }
        for (option, get, value) in numbers {
            assert_eq!(get(&config), value, "{option}, which another one has changed");
        }
        config.set("--pevent:sysroot", &mut Args::new(["/target".into()])).unwrap();
        assert_eq!(config.sysroot, "/target");
        for (option, abi) in [
            ("--pevent:vdso-x64", Abi::X64),
            ("--pevent:vdso-x32", Abi::X32),
            ("--pevent:vdso-ia32", Abi::Ia32),
        ] {
            config.set(option, &mut Args::new([option.into()])).unwrap();
            assert_eq!(config.vdso[&abi], option);
        }
        let unknown = Err(UsageError::UnknownOption("--pevent:x".into()));
        assert_eq!(config.set("--pevent:x", &mut Args::new(["1".into()])), unknown);
    }

    #[test]
    fn reads_sample_configs() {
        let mut config = StreamConfig::default();
        config.add_sample_config("o", Some("0x10:6")).unwrap();
        assert_eq!(config.sample_configs, [(16, 6)]);
        config.add_sample_config("o", Some("1:")).unwrap();
        assert_eq!(config.sample_configs, [(16, 6), (1, 0)]);
        for argument in ["", "zz", "1", ":1", "1:2:3", "1:x"] {
            let error = UsageError::BadSampleConfig { shown: "o".into(), error: "invalid argument" };
            assert_eq!(config.add_sample_config("o", Some(argument)), Err(error), "{argument:?}");
        }
        let error = UsageError::BadSampleConfig { shown: "o".into(), error: "internal error" };
        assert_eq!(config.add_sample_config("o", None), Err(error));
    }
}
