//! ptdump's command line.

use crate::args::{Args, UsageError};
use crate::file::FileRange;
use crate::recording::{RecordingFiles, clocks_or};
use crate::sideband::{self, RecordLayout, Stream};
use pugmark_decoder_core::config::Clocks;
use pugmark_decoder_core::errata::Cpu;
use pugmark_tools::{cpu, sideband::StreamConfig};

/// The action that the command line requests.
#[derive(Debug)]
pub enum PtdumpCommand {
    /// Print the usage text.
    Help,
    /// Print the version.
    Version,
    /// Print the names of processors.
    Processors,
    /// Print the packets of a trace.
    Dump {
        /// The options for printing.
        options: Box<PtdumpOptions>,
        /// The argument for the trace, whose range is not parsed yet.
        trace: String,
    },
}

/// The options for showing a trace.
#[derive(Debug, Default)]
pub struct PtdumpOptions {
    /// Start at offset 0 instead of the first PSB.
    pub no_sync: bool,
    /// Show no packets, and no records unless a later option shows them.
    pub quiet: bool,
    /// Hide PAD packets.
    pub no_pad: bool,
    /// Hide timing packets.
    pub no_timing: bool,
    /// Hide CYC packets, and do not use them for time.
    pub no_cyc: bool,
    /// Hide the offset column.
    pub no_offset: bool,
    /// Show the packets' bytes.
    pub raw: bool,
    /// Show the last IP.
    pub last_ip: bool,
    /// Show the execution mode.
    pub exec_mode: bool,
    /// The time column to show.
    pub time: Option<TimeColumn>,
    /// Show times as differences.
    pub time_delta: bool,
    /// Do not calibrate.
    pub no_tcal: bool,
    /// Show relative time where no TSC is known.
    pub no_wall_clock: bool,
    /// Keep the calibration at an OVF.
    pub keep_tcal_on_ovf: bool,
    /// The processor.
    pub cpu: Option<Cpu>,
    /// Its clocks.
    pub clocks: Clocks,
    /// The options for showing sideband records.
    pub sideband: sideband::ShowOptions,
    /// The streams of sideband records.
    pub streams: Vec<Stream>,
}

/// The contents of the time column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeColumn {
    /// The estimated TSC.
    Tsc,
    /// The ratio that calibration found.
    Ratio,
}

impl PtdumpCommand {
    /// Reads the arguments that follow the program's name.
    ///
    /// # Errors
    /// The first argument that is wrong.
    pub fn parse(mut args: Args) -> Result<Self, UsageError> {
        let mut options = PtdumpOptions::default();
        let mut records = StreamConfig::default();
        let mut recording: Option<RecordingFiles> = None;
        let mut cpu_given = false;
        while let Some(argument) = args.next() {
            let option = argument.as_str();
            if !option.starts_with('-') {
                let more = !args.is_empty();
                options.describe(recording.as_ref(), cpu_given);
                let dump = Self::Dump { options: Box::new(options), trace: argument };
                return if more { Err(UsageError::AfterTrace) } else { Ok(dump) };
            }
            match option {
                "--help" | "-h" => return Ok(Self::Help),
                "--version" => return Ok(Self::Version),
                "--no-sync" => options.no_sync = true,
                "--quiet" => {
                    options.quiet = true;
                    // A later option can turn records on again.
                    options.sideband = sideband::ShowOptions::default();
                }
                "--no-pad" => options.no_pad = true,
                "--no-timing" => options.no_timing = true,
                "--no-cyc" => options.no_cyc = true,
                "--no-offset" => options.no_offset = true,
                "--raw" => options.raw = true,
                "--lastip" => options.last_ip = true,
                "--exec-mode" => options.exec_mode = true,
                "--time" => options.set_time(TimeColumn::Tsc)?,
                "--tcal" => options.set_time(TimeColumn::Ratio)?,
                "--time-delta" => options.time_delta = true,
                "--no-tcal" => options.no_tcal = true,
                "--no-wall-clock" => options.no_wall_clock = true,
                "--keep-tcal-on-ovf" => options.keep_tcal_on_ovf = true,
                "--cpu" => {
                    let argument = args.value(option)?;
                    if argument == "list" {
                        return Ok(Self::Processors);
                    }
                    (options.cpu, cpu_given) = (cpu::parse(&argument)?, true);
                }
                "--image" => recording = Some(RecordingFiles::load(&args.value(option)?)?),
                "--mtc-freq" => options.clocks.mtc_freq = args.number_as(option)?,
                "--nom-freq" => options.clocks.nom_freq = args.number_as(option)?,
                "--cpuid-0x15.eax" => options.clocks.cpuid_15h_eax = args.number_as(option)?,
                "--cpuid-0x15.ebx" => options.clocks.cpuid_15h_ebx = args.number_as(option)?,
                "--sb" | "--sb:compact" => options.sideband.layout = Some(RecordLayout::Compact),
                "--sb:verbose" => options.sideband.layout = Some(RecordLayout::Verbose),
                "--sb:filename" => options.sideband.filename = true,
                "--sb:offset" => options.sideband.offset = true,
                "--sb:time" => options.sideband.time = true,
                // Records are not applied here, so there are no losses to warn about.
                "--sb:warn" => {}
                "--pevent" | "--pevent:primary" | "--pevent:secondary" => {
                    let range: FileRange = args.value(option)?.parse()?;
                    let primary = option != "--pevent:secondary";
                    options.streams.push(Stream::load(&range, primary, records.clone())?);
                }
                "--pevent:sample-config" => {
                    sideband::options::add_sample_config(&mut records, option, args.next().as_deref())?
                }
                // The kernel's code is not needed to show packets.
                "--pevent:kcore" => drop(args.value(option)?),
                // Options that describe the records; `set` refuses an unknown option.
                _ => sideband::options::set(&mut records, option, &mut args)?,
            }
        }
        let trace = recording.as_ref().and_then(RecordingFiles::trace).ok_or(UsageError::NoTrace)?;
        options.describe(recording.as_ref(), cpu_given);
        Ok(Self::Dump { options: Box::new(options), trace })
    }
}

impl PtdumpOptions {
    /// Takes from the recording the values that the command line does not give.
    fn describe(&mut self, recording: Option<&RecordingFiles>, cpu_given: bool) {
        let Some(description) = recording.and_then(|recording| recording.description.as_ref()) else {
            return;
        };
        if !cpu_given {
            self.cpu = description.cpu;
        }
        self.clocks = clocks_or(self.clocks, description.clocks);
    }

    fn set_time(&mut self, column: TimeColumn) -> Result<(), UsageError> {
        match self.time {
            Some(other) if other != column => Err(UsageError::TimeAndTcal),
            _ => {
                self.time = Some(column);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::config::Clocks;
    use pugmark_tools::description::Description;

    #[test]
    fn time_and_ratio_are_one_column_but_either_may_be_asked_for_twice() {
        for (first, second, accepted) in [
            (TimeColumn::Tsc, TimeColumn::Tsc, true),
            (TimeColumn::Ratio, TimeColumn::Ratio, true),
            (TimeColumn::Tsc, TimeColumn::Ratio, false),
            (TimeColumn::Ratio, TimeColumn::Tsc, false),
        ] {
            let mut options = PtdumpOptions::default();
            assert!(options.set_time(first).is_ok());
            assert_eq!(options.set_time(second).is_ok(), accepted, "{first:?} {second:?}");
            assert_eq!(options.time, Some(first));
        }
    }

    #[test]
    fn a_recording_says_what_the_command_line_does_not() {
        let clocks = |nom_freq| Clocks { nom_freq, ..Clocks::default() };
        let cpu = Some(Cpu::intel(6, 94, 3));
        let description =
            Description { file: "truth.json".into(), cpu, clocks: clocks(7), ..Description::default() };
        let recording = RecordingFiles { image: "image.json".into(), description: Some(description) };
        let bare = RecordingFiles { description: None, ..recording.clone() };
        let other = Some(Cpu::intel(6, 78, 0));
        for (recording, given, expected) in [
            (Some(&recording), false, (cpu, 7)),
            (Some(&recording), true, (other, 7)),
            (Some(&bare), false, (other, 0)),
            (None, false, (other, 0)),
        ] {
            let mut options = PtdumpOptions { cpu: other, ..PtdumpOptions::default() };
            options.describe(recording, given);
            assert_eq!((options.cpu, options.clocks.nom_freq), expected, "{recording:?} {given}");
        }
    }
}
