//! Command-line options for the properties of a trace's recording that the trace itself does not hold.

use super::values;
use crate::{cpu, description::Description};
use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};
use pugmark_decoder_core::{
    config::{AddressRange, Clocks, Config, Flags, RangeKind},
    errata::{Cpu, Errata},
};
use std::ops::RangeInclusive;

/// The processor that a trace is of, how it was set up, and how the trace is to be read.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Processor, unless the recording describes it")]
pub struct Processor {
    /// For its errata: a name, family/model[/stepping], auto, none, or list (names)
    #[arg(long, value_name = "NAME|F/M[/S]", value_parser = parse_cpu)]
    cpu: Option<CpuArgument>,
    /// One more erratum to work around, such as bdm70; repeatable
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',', hide_possible_values = true)]
    errata: Vec<Erratum>,
    /// IA32_RTIT_CTL.MTCFreq: an MTC packet every 2^N ticks of the crystal clock
    #[arg(long, value_name = "N", value_parser = values::number::<u8>)]
    mtc_freq: Option<u8>,
    /// MSR_PLATFORM_INFO[15:8]: the ratio of the TSC to the bus clock
    #[arg(long, value_name = "N", value_parser = values::number::<u8>)]
    nom_freq: Option<u8>,
    /// CPUID.15H:EAX, the denominator of the ratio of the TSC to the crystal clock
    #[arg(long = "cpuid-0x15.eax", value_name = "N", value_parser = values::number::<u32>)]
    cpuid_15h_eax: Option<u32>,
    /// CPUID.15H:EBX, the numerator of that ratio
    #[arg(long = "cpuid-0x15.ebx", value_name = "N", value_parser = values::number::<u32>)]
    cpuid_15h_ebx: Option<u32>,
    /// Only these addresses were traced; at most four ranges together with --stop
    #[arg(long, value_name = "FIRST-LAST", value_parser = values::range)]
    filter: Vec<RangeInclusive<u64>>,
    /// Tracing stopped where execution reached these addresses
    #[arg(long, value_name = "FIRST-LAST", value_parser = values::range)]
    stop: Vec<RangeInclusive<u64>>,
    /// Keep the measured length of core cycles across an overflow
    #[arg(long)]
    keep_calibration: bool,
}

/// `--cpu`.
#[derive(Clone, Copy, Debug)]
struct CpuArgument(Option<Cpu>);

/// `--errata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Erratum {
    Bdm64,
    Bdm70,
    Skd007,
    Skd022,
    Skd010,
    Skl014,
    Skl168,
    Skz84,
    Apl11,
    Apl12,
}

impl Processor {
    /// Returns the configuration for a trace of this processor. The recording's values fill in for missing options.
    ///
    /// # Errors
    /// If the processor is unknown, or there are more ranges than a processor has.
    pub fn config(&self, recording: Option<&Description>) -> Result<Config<'static>> {
        let mut config = Config::new();
        let cpu = match self.cpu {
            Some(CpuArgument(cpu)) => cpu,
            None => recording.and_then(|recording| recording.cpu),
        };
        if let Some(cpu) = cpu {
            config.set_cpu(cpu).map_err(|error| {
                anyhow!("{error}: use --cpu none, and name each erratum to work around with --errata")
            })?;
        }
        for erratum in &self.errata {
            *erratum.flag(&mut config.errata) = true;
        }
        let clocks = recording.map_or(Clocks::default(), |recording| recording.clocks);
        config.clocks = Clocks {
            mtc_freq: self.mtc_freq.unwrap_or(clocks.mtc_freq),
            nom_freq: self.nom_freq.unwrap_or(clocks.nom_freq),
            cpuid_15h_eax: self.cpuid_15h_eax.unwrap_or(clocks.cpuid_15h_eax),
            cpuid_15h_ebx: self.cpuid_15h_ebx.unwrap_or(clocks.cpuid_15h_ebx),
            ..clocks
        };
        let ranges = [(RangeKind::Filter, &self.filter), (RangeKind::Stop, &self.stop)];
        let ranges = ranges.iter().flat_map(|(kind, ranges)| ranges.iter().map(move |range| (*kind, range)));
        let mut places = config.filter.ranges.iter_mut();
        for (kind, range) in ranges {
            let Some(place) = places.next() else {
                let given = self.filter.len() + self.stop.len();
                bail!("{given} ranges by --filter and --stop, but a processor has at most 4: give fewer");
            };
            *place = AddressRange { kind, first: *range.start(), last: *range.end() };
        }
        config.flags = Flags { keep_calibration: self.keep_calibration, ..Flags::NONE };
        Ok(config)
    }
}

impl Erratum {
    fn flag(self, errata: &mut Errata) -> &mut bool {
        match self {
            Self::Bdm64 => &mut errata.bdm64,
            Self::Bdm70 => &mut errata.bdm70,
            Self::Skd007 => &mut errata.skd007,
            Self::Skd022 => &mut errata.skd022,
            Self::Skd010 => &mut errata.skd010,
            Self::Skl014 => &mut errata.skl014,
            Self::Skl168 => &mut errata.skl168,
            Self::Skz84 => &mut errata.skz84,
            Self::Apl11 => &mut errata.apl11,
            Self::Apl12 => &mut errata.apl12,
        }
    }
}

fn parse_cpu(text: &str) -> Result<CpuArgument, String> {
    cpu::parse(text).map(CpuArgument).map_err(|_| {
        "not a processor: write a name (--cpu list prints them), family/model[/stepping], auto or none".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct ProcessorCli {
        #[command(flatten)]
        processor: Processor,
    }

    fn config(words: &str) -> Result<Config<'static>, String> {
        let cli = ProcessorCli::try_parse_from(format!("pugmark {words}").split_whitespace());
        let config = cli.map_err(|error| error.to_string())?.processor.config(None);
        config.map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn each_option_sets_its_field() {
        type ConfigField = fn(&Config<'_>) -> u64;
        let rows: [(&str, ConfigField, u64); 14] = [
            ("--cpu 6/0x5e/3", |config| config.cpu.map_or(0, |cpu| cpu.model.into()), 0x5e),
            ("--cpu skylake", |config| config.cpu.map_or(0, |cpu| cpu.model.into()), 0x5e),
            ("--cpu 6/94", |config| config.errata.skl168.into(), 1),
            ("--cpu none", |config| config.cpu.is_some().into(), 0),
            ("--errata skd010,apl12", |config| (config.errata.skd010 && config.errata.apl12).into(), 1),
            (
                "--errata bdm64 --errata skz84",
                |config| (config.errata.bdm64 && config.errata.skz84).into(),
                1,
            ),
            ("--mtc-freq 9", |config| config.clocks.mtc_freq.into(), 9),
            ("--nom-freq 0x22", |config| config.clocks.nom_freq.into(), 34),
            ("--cpuid-0x15.eax 2", |config| config.clocks.cpuid_15h_eax.into(), 2),
            ("--cpuid-0x15.ebx 292", |config| config.clocks.cpuid_15h_ebx.into(), 292),
            ("--filter 0x1000-0x1fff", |config| config.filter.contains(0x1fff).into(), 1),
            ("--filter 0x1000-0x1fff", |config| config.filter.contains(0x2000).into(), 0),
            ("--stop 0x1000", |config| config.filter.contains(0x1000).into(), 0),
            ("--keep-calibration", |config| config.flags.keep_calibration.into(), 1),
        ];
        for (words, field, value) in rows {
            assert_eq!(config(words).map(|config| field(&config)), Ok(value), "{words}");
            // The field differs without the option.
            let plain = config("").map(|config| field(&config));
            assert!(words == "--cpu none" || words.starts_with("--filter") || plain != Ok(value), "{words}");
        }
    }

    #[test]
    fn the_options_override_what_the_recording_says() {
        let clocks =
            Clocks { mtc_freq: 3, nom_freq: 35, cpuid_15h_eax: 2, cpuid_15h_ebx: 292, ..Clocks::default() };
        let recording = Description { cpu: Some(Cpu::intel(6, 94, 3)), clocks, ..Description::default() };
        let config = |words: &str| {
            let cli = ProcessorCli::parse_from(format!("pugmark {words}").split_whitespace());
            let config = cli.processor.config(Some(&recording)).unwrap();
            (config.cpu.map(|cpu| cpu.model), config.errata.skl168, config.clocks)
        };
        assert_eq!(config(""), (Some(94), true, clocks));
        assert_eq!(config("--cpu none"), (None, false, clocks));
        let other = Clocks { nom_freq: 1, cpuid_15h_ebx: 5, ..Clocks::default() };
        let words = "--cpu 6/79 --mtc-freq 0 --nom-freq 1 --cpuid-0x15.eax 0 --cpuid-0x15.ebx 5";
        assert_eq!(config(words), (Some(79), false, other));
    }

    #[test]
    fn what_is_no_value_is_refused_with_what_would_be_one() {
        for (words, text) in [
            ("--cpu 6", "write a name (--cpu list prints them), family/model[/stepping], auto or none"),
            (
                "--cpu 6/1",
                "the errata of processor 6/1/0 are not known: use --cpu none, and name each erratum",
            ),
            ("--errata skd1", "invalid value 'skd1'"),
            ("--mtc-freq 256", "too large: the field has 8 bits, at most 0xff"),
            ("--cpuid-0x15.eax 0x100000000", "too large: the field has 32 bits, at most 0xffffffff"),
            ("--nom-freq x", "not a number: write 16, 0x10 or 020"),
            ("--filter 2-1", "not an address and not a range: write FIRST-LAST, with FIRST not above LAST"),
            (
                "--filter 1-2 --filter 3-4 --filter 5-6 --stop 7-8 --stop 9-10",
                "5 ranges by --filter and --stop, but a processor has at most 4",
            ),
        ] {
            let error = config(words).expect_err(words);
            assert!(error.contains(text), "{words}: {error}");
        }
    }
}
