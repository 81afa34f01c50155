//! Reads the options `--pevent:*`, which describe a stream of records.

use crate::args::{Args, UsageError};
use pugmark_tools::{code::elf::Abi, number, sideband::StreamConfig};

/// Reads the value of a `--pevent:` option.
///
/// # Errors
/// [`UsageError::UnknownOption`], and the errors in the value.
pub fn set(config: &mut StreamConfig, option: &str, args: &mut Args) -> Result<(), UsageError> {
    match option {
        "--pevent:sample-type" => config.sample_type = args.number_as(option)?,
        "--pevent:time-zero" => config.time_zero = args.number_as(option)?,
        "--pevent:time-shift" => config.time_shift = args.number_as(option)?,
        "--pevent:time-mult" => config.time_mult = args.number_as(option)?,
        "--pevent:tsc-offset" => config.tsc_offset = args.number_as(option)?,
        "--pevent:kernel-start" => config.kernel_start = args.number_as(option)?,
        "--pevent:sysroot" => config.sysroot = args.value(option)?,
        "--pevent:vdso-x64" => drop(config.vdso.insert(Abi::X64, args.value(option)?)),
        "--pevent:vdso-x32" => drop(config.vdso.insert(Abi::X32, args.value(option)?)),
        "--pevent:vdso-ia32" => drop(config.vdso.insert(Abi::Ia32, args.value(option)?)),
        _ => return Err(UsageError::UnknownOption(option.into())),
    }
    Ok(())
}

/// Reads `ID:V`; the error shows `shown` if the argument has another form.
///
/// # Errors
/// [`UsageError::BadSampleConfig`].
pub fn add_sample_config(
    config: &mut StreamConfig,
    shown: &str,
    argument: Option<&str>,
) -> Result<(), UsageError> {
    let failed = |error| UsageError::BadSampleConfig { shown: shown.into(), error };
    let sample = argument
        .ok_or_else(|| failed("internal error"))?
        .split_once(':')
        .and_then(|(id, sample_type)| Some((number::parse(id)?, number::parse_or_zero(sample_type)?)));
    config.sample_configs.push(sample.ok_or_else(|| failed("invalid argument"))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            set(&mut config, option, &mut Args::new([value.to_string()])).expect(option);
            assert_eq!(get(&config), value, "{option}");
            assert_eq!(
                set(&mut config, option, &mut Args::new([])),
                Err(UsageError::MissingArgument(option.into()))
            );
        }
        for (option, get, value) in numbers {
            assert_eq!(get(&config), value, "{option}, which another one has changed");
        }
        set(&mut config, "--pevent:sysroot", &mut Args::new(["/target".into()])).unwrap();
        assert_eq!(config.sysroot, "/target");
        for (option, abi) in [
            ("--pevent:vdso-x64", Abi::X64),
            ("--pevent:vdso-x32", Abi::X32),
            ("--pevent:vdso-ia32", Abi::Ia32),
        ] {
            set(&mut config, option, &mut Args::new([option.into()])).unwrap();
            assert_eq!(config.vdso[&abi], option);
        }
        let unknown = Err(UsageError::UnknownOption("--pevent:x".into()));
        assert_eq!(set(&mut config, "--pevent:x", &mut Args::new(["1".into()])), unknown);
    }

    #[test]
    fn reads_sample_configs() {
        let mut config = StreamConfig::default();
        add_sample_config(&mut config, "o", Some("0x10:6")).unwrap();
        assert_eq!(config.sample_configs, [(16, 6)]);
        add_sample_config(&mut config, "o", Some("1:")).unwrap();
        assert_eq!(config.sample_configs, [(16, 6), (1, 0)]);
        for argument in ["", "zz", "1", ":1", "1:2:3", "1:x"] {
            let error = UsageError::BadSampleConfig { shown: "o".into(), error: "invalid argument" };
            assert_eq!(add_sample_config(&mut config, "o", Some(argument)), Err(error), "{argument:?}");
        }
        let error = UsageError::BadSampleConfig { shown: "o".into(), error: "internal error" };
        assert_eq!(add_sample_config(&mut config, "o", None), Err(error));
    }
}
