//! Reads ptxed's command line. Options take effect in order: `--pt` makes the decoder from the options before it.

use super::load::{self, ElfLoader};
use crate::args::{Args, UsageError};
use crate::code::{MappedSection, SectionCache};
use crate::file::FileRange;
use crate::recording::{RecordingFiles, clocks_or};
use crate::sideband::{self, RecordLayout, Stream};
use pugmark_decoder_core::config::{self, Flags, RangeKind};
use pugmark_decoder_core::errata::{Cpu, Errata};
use pugmark_tools::{cpu, sideband::StreamConfig};
use std::io::{self, Write};

/// The action that the command line requests.
#[derive(Debug)]
pub enum PtxedCommand {
    /// Print the usage text.
    Help,
    /// Print the version.
    Version,
    /// Print the names of processors.
    Processors,
    /// Print the instructions of a trace.
    Decode(Box<PtxedOptions>),
}

/// The options for decoding and showing a trace.
#[derive(Debug, Default)]
pub struct PtxedOptions {
    /// The trace.
    pub trace: Vec<u8>,
    /// The kind of decoder.
    pub decoder: Decoder,
    /// The processor, its clocks, and which events to report.
    pub config: config::Config<'static>,
    /// The code given on the command line, and the kernel's code, which all processes of sideband records have.
    pub code: GivenCode,
    /// The bytes of the code.
    pub cache: SectionCache,
    /// Show no instruction text.
    pub no_inst: bool,
    /// Show the instructions' bytes.
    pub raw_insn: bool,
    /// Use AT&T syntax.
    pub att: bool,
    /// Show only errors.
    pub quiet: bool,
    /// Show offsets.
    pub offset: bool,
    /// Show times.
    pub time: bool,
    /// Show the times of events.
    pub event_time: bool,
    /// Show the addresses of events.
    pub event_ip: bool,
    /// Check each instruction with another decoder.
    pub check: bool,
    /// After an error, continue at the next event.
    pub resync_on_error: bool,
    /// Count instructions.
    pub stat_insn: bool,
    /// Count blocks.
    pub stat_blocks: bool,
    /// Print a line for each block.
    pub show_blocks: bool,
    /// End blocks at near calls.
    pub end_on_call: bool,
    /// End blocks at near jumps.
    pub end_on_jump: bool,
    /// The options for showing sideband records.
    pub sideband: sideband::ShowOptions,
    /// Print a line when the image changes.
    pub show_switches: bool,
    /// The streams of sideband records.
    pub streams: Vec<Stream>,
}

/// Code with its addresses.
#[derive(Debug, Default)]
pub struct GivenCode {
    /// The image to use until a sideband record names the traced process.
    pub first: Vec<MappedSection>,
    /// The parts that every process has.
    pub kernel: Vec<MappedSection>,
}

/// The kind of decoder, which decides how instructions are grouped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decoder {
    /// Instructions.
    Insn,
    /// Blocks of instructions.
    #[default]
    Block,
}

/// The failures of a command line, after which nothing is decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PtxedFailure {
    /// The command line is wrong.
    Usage(UsageError),
    /// The command line is wrong, but the exit status is that of success.
    Harmless(UsageError),
    /// A raw file cannot be read. The text is the part of the argument that names the file.
    Raw(UsageError, String),
    /// This option comes after the trace. The message swaps the names of the option and of the program, as libipt's
    /// program does.
    Swapped(String),
}

impl PtxedFailure {
    /// Returns the lines to print.
    #[must_use]
    pub fn lines(&self, program: &str) -> String {
        match self {
            Self::Usage(usage) | Self::Harmless(usage) => format!("{program}: {usage}\n"),
            Self::Raw(usage, argument) => {
                format!("{program}: {usage}\n{program}: --raw: failed to load '{argument}'.\n")
            }
            Self::Swapped(option) => {
                format!("{option}: please specify {program} before the pt source file.\n")
            }
        }
    }
}

impl From<UsageError> for PtxedFailure {
    fn from(error: UsageError) -> Self {
        Self::Usage(error)
    }
}

/// The options read so far.
#[derive(Default)]
struct Reader {
    options: PtxedOptions,
    config: config::Config<'static>,
    cpu: Option<Cpu>,
    cpu_given: bool,
    recording: Option<RecordingFiles>,
    keep_insn: bool,
    keep_block: bool,
    end_on_call: bool,
    end_on_jump: bool,
    verbose: bool,
    loaded: bool,
    stat: bool,
    records: StreamConfig,
}

/// The outputs for messages about loading.
pub struct Console<'a> {
    /// The program's name.
    pub program: &'a str,
    /// Receives messages about loaded code.
    pub out: &'a mut dyn Write,
    /// Receives messages about code that cannot be loaded.
    pub err: &'a mut dyn Write,
}

impl PtxedCommand {
    /// Reads the arguments that follow the program's name.
    ///
    /// # Errors
    /// The first argument that is wrong.
    pub fn parse(mut args: Args, console: &mut Console<'_>) -> Result<Self, PtxedFailure> {
        let mut reader = Reader::default();
        while let Some(argument) = args.next() {
            match argument.as_str() {
                "--help" | "-h" => return Ok(Self::Help),
                "--version" => return Ok(Self::Version),
                "--cpu" if args.peek() == Some("list") => return Ok(Self::Processors),
                option => reader.option(option, &mut args, console)?,
            }
        }
        if !reader.loaded
            && let Some(trace) = reader.recording.as_ref().and_then(RecordingFiles::trace)
        {
            reader.load_trace(&trace, console.out)?;
        }
        let Reader { mut options, loaded, stat, .. } = reader;
        if !loaded {
            return Err(UsageError::NoPtFile.into());
        }
        if stat && !options.stat_insn && !options.stat_blocks {
            options.stat_insn = true;
            options.stat_blocks = options.decoder == Decoder::Block;
        }
        Ok(Self::Decode(Box::new(options)))
    }
}

impl Reader {
    fn option(
        &mut self,
        option: &str,
        args: &mut Args,
        console: &mut Console<'_>,
    ) -> Result<(), PtxedFailure> {
        let needed = |args: &mut Args| args.value(option).map_err(PtxedFailure::Harmless);
        match option {
            "--pt" => {
                let argument = needed(args)?;
                if self.loaded {
                    return Err(UsageError::SecondTrace(argument).into());
                }
                self.load_trace(&argument, console.out)?;
            }
            "--raw" => {
                let PtxedOptions { code, cache, .. } = &mut self.options;
                load::raw(&needed(args)?, &mut code.first, cache)
                    .map_err(|(usage, left)| PtxedFailure::Raw(usage, left))?;
            }
            "--image" => {
                if self.loaded {
                    return Err(UsageError::OptionAfterTrace(option.into()).into());
                }
                let recording = RecordingFiles::load(&needed(args)?)?;
                let PtxedOptions { code, cache, .. } = &mut self.options;
                load::image(&recording.image, &mut code.first, cache)?;
                self.recording = Some(recording);
            }
            "--elf" => self.elf(&needed(args)?, console, |code| &mut code.first)?,
            "--pevent:kcore" => self.elf(&args.value(option)?, console, |code| &mut code.kernel)?,
            "--cpu" => {
                if self.loaded {
                    return Err(UsageError::CpuAfterTrace.into());
                }
                (self.cpu, self.cpu_given) = (cpu::parse(&needed(args)?).map_err(UsageError::from)?, true);
            }
            "--insn-decoder" | "--block-decoder" => {
                if self.loaded {
                    return Err(PtxedFailure::Swapped(option.into()));
                }
                self.options.decoder =
                    if option == "--insn-decoder" { Decoder::Insn } else { Decoder::Block };
            }
            _ if option.starts_with("--filter:addr") => {
                if is_filter(option) && self.loaded {
                    return Err(UsageError::OptionAfterTrace(option.into()).into());
                }
                self.filter(option, args)?;
            }
            "--mtc-freq" => self.config.clocks.mtc_freq = args.number_as(option)?,
            "--nom-freq" => self.config.clocks.nom_freq = args.number_as(option)?,
            "--cpuid-0x15.eax" => self.config.clocks.cpuid_15h_eax = args.number_as(option)?,
            "--cpuid-0x15.ebx" => self.config.clocks.cpuid_15h_ebx = args.number_as(option)?,
            "--iscache-limit" => drop(args.number(option, u64::MAX)?),
            "--sb" | "--sb:compact" => self.options.sideband.layout = Some(RecordLayout::Compact),
            "--sb:verbose" => self.options.sideband.layout = Some(RecordLayout::Verbose),
            "--pevent:primary" | "--pevent:secondary" => {
                let range: FileRange = args.value(option)?.parse().map_err(UsageError::File)?;
                let primary = option == "--pevent:primary";
                self.options.streams.push(Stream::load(&range, primary, self.records.clone())?);
            }
            "--pevent:sample-config" => {
                let argument = args.next();
                // C's text for a null pointer.
                let shown = argument.clone().unwrap_or_else(|| "(null)".into());
                sideband::options::add_sample_config(&mut self.records, &shown, argument.as_deref())?;
            }
            _ if option.starts_with("--pevent:") => sideband::options::set(&mut self.records, option, args)?,
            _ => *self.flag(option).ok_or_else(|| UsageError::UnknownOption(option.into()))? = true,
        }
        Ok(())
    }

    /// Loads an ELF file into the list of parts that `parts` selects.
    fn elf(
        &mut self,
        argument: &str,
        console: &mut Console<'_>,
        parts: impl Fn(&mut GivenCode) -> &mut Vec<MappedSection>,
    ) -> Result<(), UsageError> {
        let verbose: Option<&mut dyn Write> = if self.verbose { Some(console.out) } else { None };
        let PtxedOptions { code, cache, .. } = &mut self.options;
        let program = console.program;
        ElfLoader { program, parts: parts(code), cache, verbose, warnings: console.err }.load(argument)
    }

    /// Returns the field that an option without a value sets.
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
            "--check" => &mut options.check,
            _ => return None,
        })
    }

    fn filter(&mut self, option: &str, args: &mut Args) -> Result<(), UsageError> {
        let unknown = || UsageError::UnknownOption(option.into());
        let (number, field) =
            option.trim_start_matches("--filter:addr").split_once('_').ok_or_else(unknown)?;
        let index = ["0", "1", "2", "3"].iter().position(|known| *known == number).ok_or_else(unknown)?;
        let range = &mut self.config.filter.ranges[index];
        match field {
            "cfg" => range.kind = RangeKind::from(args.number(option, 0xf)?.to_le_bytes()[0]),
            "a" => range.first = args.number_as(option)?,
            "b" => range.last = args.number_as(option)?,
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn load_trace(&mut self, argument: &str, out: &mut dyn Write) -> Result<(), PtxedFailure> {
        // Take from the recording the values that the command line does not give.
        if let Some(description) =
            self.recording.as_ref().and_then(|recording| recording.description.as_ref())
        {
            if !self.cpu_given {
                self.cpu = description.cpu;
            }
            self.config.clocks = clocks_or(self.config.clocks, description.clocks);
        }
        let errata = match self.cpu.map(Errata::of) {
            None => Errata::NONE,
            Some(Ok(errata)) => errata,
            Some(Err(_)) => {
                // A closed pipe is no error.
                let _: io::Result<()> = writeln!(out, "[0, 0: config error: unknown cpu]");
                Errata::NONE
            }
        };
        let range: FileRange = argument.parse().map_err(UsageError::File)?;
        self.options.trace = range.load().map_err(UsageError::File)?;
        self.loaded = true;
        let keep_calibration = match self.options.decoder {
            Decoder::Insn => self.keep_insn,
            Decoder::Block => self.keep_block,
        };
        let flags = Flags { keep_calibration, ..self.config.flags };
        self.options.config = config::Config { errata, flags, ..self.config };
        (self.options.end_on_call, self.options.end_on_jump) = (self.end_on_call, self.end_on_jump);
        Ok(())
    }
}

fn is_filter(option: &str) -> bool {
    let rest = option.trim_start_matches("--filter:addr");
    matches!(rest.split_once('_'), Some(("0" | "1" | "2" | "3", "cfg" | "a" | "b")))
}
