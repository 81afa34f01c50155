//! How a stream of records was taken: `--pevent:*`.

use crate::args::{Args, Usage};
use crate::number;

/// What a stream does not say about itself.
#[derive(Clone, Debug)]
pub struct Config {
    /// `perf_event_attr.sample_type`.
    pub sample_type: u64,
    /// The same for events by identifier, where a stream has several kinds.
    pub sample_configs: Vec<(u64, u64)>,
    /// `perf_event_mmap_page.time_zero`.
    pub time_zero: u64,
    /// `perf_event_mmap_page.time_shift`.
    pub time_shift: u16,
    /// `perf_event_mmap_page.time_mult`.
    pub time_mult: u32,
    /// What is taken off the TSC, so that records are not late.
    pub tsc_offset: u64,
    /// The lowest address of the kernel.
    pub kernel_start: u64,
    /// What names of mapped files are under.
    pub sysroot: String,
    /// The file to map for `[vdso]`.
    pub vdso: Option<String>,
}

impl Default for Config {
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
            vdso: None,
        }
    }
}

impl Config {
    /// Reads the value of a `--pevent:` option.
    ///
    /// # Errors
    /// [`Usage::UnknownOption`], and what is wrong with the value.
    pub fn set(&mut self, option: &str, args: &mut Args) -> Result<(), Usage> {
        match option {
            "--pevent:sample-type" => self.sample_type = args.number_as(option)?,
            "--pevent:time-zero" => self.time_zero = args.number_as(option)?,
            "--pevent:time-shift" => self.time_shift = args.number_as(option)?,
            "--pevent:time-mult" => self.time_mult = args.number_as(option)?,
            "--pevent:tsc-offset" => self.tsc_offset = args.number_as(option)?,
            "--pevent:kernel-start" => self.kernel_start = args.number_as(option)?,
            "--pevent:sysroot" => self.sysroot = args.value(option)?,
            "--pevent:vdso-x64" => self.vdso = Some(args.value(option)?),
            // Processes of 32 bits, and a kernel that the command line maps as well.
            "--pevent:kcore" | "--pevent:vdso-x32" | "--pevent:vdso-ia32" => drop(args.value(option)?),
            _ => return Err(Usage::UnknownOption(option.into())),
        }
        Ok(())
    }

    /// Reads `ID:V`; `shown` is what to show of it if it is not that.
    ///
    /// # Errors
    /// [`Usage::BadSampleConfig`].
    pub fn add_sample_config(&mut self, shown: &str, argument: &str) -> Result<(), Usage> {
        let config = argument
            .split_once(':')
            .and_then(|(id, sample_type)| Some((number::parse(id)?, number::parse(sample_type)?)));
        self.sample_configs.push(config.ok_or_else(|| Usage::BadSampleConfig(shown.into()))?);
        Ok(())
    }

    /// A time of perf's clock as TSC; `None` where the configuration makes none of it.
    pub fn tsc_of(&self, time: u64) -> Option<u64> {
        if time == 0 {
            return Some(0);
        }
        let (time, mult) = (time.wrapping_sub(self.time_zero), u64::from(self.time_mult));
        let shift = |value: u64| value.checked_shl(self.time_shift.into()).unwrap_or(0);
        let whole = shift(time.checked_div(mult)?);
        let rest = shift(time % mult) / mult;
        Some(whole.wrapping_add(rest).saturating_sub(self.tsc_offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_perf_time_to_tsc() {
        let config = Config { time_zero: 100, time_shift: 4, time_mult: 10, ..Config::default() };
        for (config, time, tsc) in [
            (Config::default(), 7, Some(7)),
            (config.clone(), 0, Some(0)),
            (config.clone(), 100, Some(0)),
            (config.clone(), 123, Some(2 * 16 + 3 * 16 / 10)),
            (Config { tsc_offset: 6, ..config.clone() }, 123, Some(30)),
            (Config { tsc_offset: 1000, ..config.clone() }, 123, Some(0)),
            (Config { time_mult: 0, ..config.clone() }, 123, None),
            (Config { time_shift: 0xffff, ..config }, 123, Some(0)),
        ] {
            assert_eq!(config.tsc_of(time), tsc, "{config:?}");
        }
    }

    #[test]
    fn reads_sample_configs() {
        let mut config = Config::default();
        config.add_sample_config("o", "0x10:6").unwrap();
        assert_eq!(config.sample_configs, [(16, 6)]);
        for argument in ["", "zz", "1", "1:", ":1", "1:2:3"] {
            let error = config.add_sample_config("o", argument);
            assert_eq!(error, Err(Usage::BadSampleConfig("o".into())), "{argument:?}");
        }
    }
}
