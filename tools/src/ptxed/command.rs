//! ptxed's command line. Options take effect in their order: `--pt` makes the decoder of what came before.

use super::image::Code;
use crate::args::{Args, Usage};
use crate::cpu;
use crate::file::FileRange;
use crate::sideband::{self, Layout, Stream};
use pugmark_decoder_core::config::{self, Dialect, Flags, RangeKind};
use pugmark_decoder_core::errata::{Cpu, Errata};
use std::fmt;
use std::io::{self, Write};

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    /// The usage text.
    Help,
    /// The version.
    Version,
    /// The instructions of a trace.
    Decode(Box<Options>),
}

/// How to decode a trace and what to show of it.
#[derive(Debug, Default)]
pub struct Options {
    /// The trace.
    pub trace: Vec<u8>,
    /// How to read it.
    pub decoder: Decoder,
    /// The processor, its clocks and what to report.
    pub config: config::Config<'static>,
    /// The code.
    pub code: Code,
    /// No text.
    pub no_inst: bool,
    /// The bytes' column.
    pub raw_insn: bool,
    /// AT&T syntax.
    pub att: bool,
    /// No lines but errors.
    pub quiet: bool,
    /// The offset's column.
    pub offset: bool,
    /// The time's column.
    pub time: bool,
    /// Time of events.
    pub event_time: bool,
    /// Addresses of events.
    pub event_ip: bool,
    /// Check each instruction against another decoder.
    pub check: bool,
    /// Go on at the next event behind an error.
    pub resync_on_error: bool,
    /// Count instructions.
    pub stat_insn: bool,
    /// Count blocks.
    pub stat_blocks: bool,
    /// A line a block.
    pub show_blocks: bool,
    /// Blocks end with near calls.
    pub end_on_call: bool,
    /// Blocks end with near jumps.
    pub end_on_jump: bool,
    /// How to show side-band records.
    pub sideband: sideband::Show,
    /// Images are told when they change.
    pub show_switches: bool,
    /// Where side-band records come from.
    pub streams: Vec<Stream>,
}

/// What a trace is decoded into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decoder {
    /// Instructions.
    Insn,
    /// Blocks of instructions.
    #[default]
    Block,
}

/// Why there is nothing to decode.
#[derive(Debug)]
pub enum Failure {
    /// With the program's name before it.
    Usage(Usage),
    /// The same, but no failure for the caller.
    Harmless(Usage),
    /// A line of its own, complete.
    Line(String),
}

impl From<Usage> for Failure {
    fn from(error: Usage) -> Self {
        Self::Usage(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(error) | Self::Harmless(error) => error.fmt(f),
            Self::Line(line) => f.write_str(line),
        }
    }
}

/// What was read so far.
#[derive(Default)]
struct Reader {
    options: Options,
    config: config::Config<'static>,
    cpu: Option<Cpu>,
    keep_insn: bool,
    keep_block: bool,
    end_on_call: bool,
    end_on_jump: bool,
    verbose: bool,
    loaded: bool,
    stat: bool,
    records: sideband::Config,
}

impl Command {
    /// Reads the arguments behind the program's name; what loading says goes to `out`.
    ///
    /// # Errors
    /// The first argument that is wrong.
    pub fn parse(program: &str, mut args: Args, out: &mut dyn Write) -> Result<Self, Failure> {
        let mut reader = Reader::default();
        while let Some(argument) = args.next() {
            match argument.as_str() {
                "--help" | "-h" => return Ok(Self::Help),
                "--version" => return Ok(Self::Version),
                option => reader.option(program, option, &mut args, out)?,
            }
        }
        let Reader { mut options, loaded, stat, .. } = reader;
        if !loaded {
            return Err(Failure::Line(format!("{program}: no pt file.")));
        }
        if stat && !options.stat_insn && !options.stat_blocks {
            (options.stat_insn, options.stat_blocks) = (true, true);
        }
        Ok(Self::Decode(Box::new(options)))
    }
}

impl Reader {
    fn option(
        &mut self,
        program: &str,
        option: &str,
        args: &mut Args,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let too_late = |what: &str| Err(Failure::Line(format!("{program}: please specify {what}")));
        let needed = |args: &mut Args| args.value(option).map_err(Failure::Harmless);
        match option {
            "--pt" => {
                let argument = needed(args)?;
                if self.loaded {
                    return Err(Failure::Line(format!("{program}: duplicate pt sources: {argument}.")));
                }
                self.load_trace(&argument, out)?;
            }
            "--raw" => {
                let argument = needed(args)?;
                self.options.code.add_raw(program, &argument).map_err(Failure::Line)?;
            }
            "--elf" => {
                let argument = needed(args)?;
                let verbose: Option<&mut dyn Write> = if self.verbose { Some(out) } else { None };
                self.options.code.add_elf(program, &argument, verbose).map_err(Failure::Line)?;
            }
            "--cpu" => {
                if self.loaded {
                    return too_late("cpu before the pt source file.");
                }
                self.cpu = cpu::parse(&needed(args)?).map_err(Usage::from)?;
            }
            "--insn-decoder" | "--block-decoder" => {
                if self.loaded {
                    let line = format!("{option}: please specify {program} before the pt source file.");
                    return Err(Failure::Line(line));
                }
                self.options.decoder =
                    if option == "--insn-decoder" { Decoder::Insn } else { Decoder::Block };
            }
            _ if option.starts_with("--filter:addr") => {
                if is_filter(option) && self.loaded {
                    return too_late(&format!("{option} before --pt."));
                }
                self.filter(option, args)?;
            }
            "--mtc-freq" => self.config.clocks.mtc_freq = args.number_as(option)?,
            "--nom-freq" => self.config.clocks.nom_freq = args.number_as(option)?,
            "--cpuid-0x15.eax" => self.config.clocks.cpuid_15h_eax = args.number_as(option)?,
            "--cpuid-0x15.ebx" => self.config.clocks.cpuid_15h_ebx = args.number_as(option)?,
            "--iscache-limit" => drop(args.number(option, u64::MAX)?),
            "--sb" | "--sb:compact" => self.options.sideband.layout = Some(Layout::Compact),
            "--sb:verbose" => self.options.sideband.layout = Some(Layout::Verbose),
            "--pevent:primary" | "--pevent:secondary" => {
                let range: FileRange = args.value(option)?.parse().map_err(Usage::File)?;
                let primary = option == "--pevent:primary";
                let stream = Stream::load(&range, primary, self.records.clone()).map_err(Usage::File)?;
                self.options.streams.push(stream);
            }
            "--pevent:sample-config" => {
                let argument = args.value(option)?;
                self.records.add_sample_config(&argument, &argument)?;
            }
            _ if option.starts_with("--pevent:") => self.records.set(option, args)?,
            _ => *self.flag(option).ok_or_else(|| Usage::UnknownOption(option.into()))? = true,
        }
        Ok(())
    }

    /// What an option without a value sets.
    fn flag(&mut self, option: &str) -> Option<&mut bool> {
        let options = &mut self.options;
        Some(match option {
            "--no-inst" => &mut options.no_inst,
            "--raw-insn" => &mut options.raw_insn,
            "--att" => &mut options.att,
            "--quiet" | "-q" => &mut options.quiet,
            "--offset" => &mut options.offset,
            "--time" => &mut options.time,
            "--event:time" => &mut options.event_time,
            "--event:ip" => &mut options.event_ip,
            "--event:tick" => &mut self.config.flags.ticks,
            "--event:iflags" => &mut self.config.flags.iflags,
            "--resync-on-error" => &mut options.resync_on_error,
            "--stat" => &mut self.stat,
            "--stat:insn" => &mut options.stat_insn,
            "--stat:blocks" => &mut options.stat_blocks,
            "--block:show-blocks" => &mut options.show_blocks,
            "--block:end-on-call" => &mut self.end_on_call,
            "--block:end-on-jump" => &mut self.end_on_jump,
            "--insn:keep-tcal-on-ovf" => &mut self.keep_insn,
            "--block:keep-tcal-on-ovf" => &mut self.keep_block,
            "--verbose" | "-v" => &mut self.verbose,
            "--sb:filename" => &mut options.sideband.filename,
            "--sb:offset" => &mut options.sideband.offset,
            "--sb:time" => &mut options.sideband.time,
            "--sb:warn" => &mut options.sideband.warn,
            "--sb:switch" => &mut options.show_switches,
            // What it would find is looked at anyway.
            "--check" => &mut options.check,
            _ => return None,
        })
    }

    fn filter(&mut self, option: &str, args: &mut Args) -> Result<(), Usage> {
        let unknown = || Usage::UnknownOption(option.into());
        let (number, field) =
            option.trim_start_matches("--filter:addr").split_once('_').ok_or_else(unknown)?;
        let range = match number {
            "0" | "1" | "2" | "3" => &mut self.config.filter.ranges[number.parse().unwrap_or(0_usize)],
            _ => return Err(unknown()),
        };
        match field {
            "cfg" => range.kind = RangeKind::from(args.number(option, 0xf)?.to_le_bytes()[0]),
            "a" => range.first = args.number_as(option)?,
            "b" => range.last = args.number_as(option)?,
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn load_trace(&mut self, argument: &str, out: &mut dyn Write) -> Result<(), Failure> {
        let range: FileRange = argument.parse().map_err(Usage::File)?;
        self.options.trace = range.load().map_err(Usage::File)?;
        self.loaded = true;
        let errata = match self.cpu.map(Errata::of) {
            None => Errata::NONE,
            Some(Ok(errata)) => errata,
            Some(Err(_)) => {
                // A reader that has seen enough is no error.
                let _: io::Result<()> = writeln!(out, "[0, 0: config error: unknown cpu]");
                Errata::NONE
            }
        };
        let keep_calibration = match self.options.decoder {
            Decoder::Insn => self.keep_insn,
            Decoder::Block => self.keep_block,
        };
        let flags = Flags { keep_calibration, statuses: true, ..self.config.flags };
        self.options.config = config::Config { dialect: Dialect::Libipt, errata, flags, ..self.config };
        (self.options.end_on_call, self.options.end_on_jump) = (self.end_on_call, self.end_on_jump);
        Ok(())
    }
}

fn is_filter(option: &str) -> bool {
    let rest = option.trim_start_matches("--filter:addr");
    matches!(rest.split_once('_'), Some(("0" | "1" | "2" | "3", "cfg" | "a" | "b")))
}
