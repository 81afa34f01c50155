//! The command line of `pugmark record`.

use super::pmc::names::SimilarNames;
use crate::{output::tell, text::printable};
use anyhow::{Result, anyhow, bail};
use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use indicatif::{ProgressBar, ProgressStyle};
use pugmark_model::intel::IntelProfile;
use pugmark_recorder::{
    Cause, Deviation, DeviationKind, Ending, Engine, Missing, NotFollowed, Part, Range, RecordError,
    RecordOptions, Recording, Trigger, Unreached, record, why_stepping,
};
use std::{
    error::Error as _,
    ffi::OsString,
    io::{self, IsTerminal},
    path::PathBuf,
};

/// The options of `pugmark record`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  pugmark record -o ls.rec --tsc -- ls -l         then: pugmark decode --check ls.rec")]
pub struct RecordCommand {
    /// Folder for the trace, its code and its truth
    #[arg(short, long, value_name = "DIR", default_value = "pugmark-record")]
    out: PathBuf,
    /// broadwell, skylake (default), icelake, tremont, sapphire-rapids, cougar-cove, darkmont
    #[arg(long, value_parser = profiles(), default_value = "skylake", hide_possible_values = true,
        hide_default_value = true)]
    profile: String,
    /// Write all packets of time that the processor has, as --tsc --mtc --cyc
    #[arg(long)]
    time: bool,
    /// Write TSC packets: the time-stamp counter
    #[arg(long)]
    tsc: bool,
    /// Write an MTC packet every 2^FREQ ticks of the crystal clock; 3 if FREQ is left out
    #[arg(long, value_name = "FREQ", num_args = 0..=1, default_missing_value = "3", require_equals = true,
        value_parser = clap::value_parser!(u8).range(..16))]
    mtc: Option<u8>,
    /// Write CYC packets, at least 2^(THRESHOLD-1) cycles apart; 0, the default, for each packet
    #[arg(long, value_name = "THRESHOLD", num_args = 0..=1, default_missing_value = "0", require_equals = true,
        value_parser = clap::value_parser!(u8).range(..16))]
    cyc: Option<u8>,
    /// Write a PSB every 2^(11+FREQ) bytes
    #[arg(long, value_name = "FREQ", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..16))]
    psb: u8,
    /// Write the target of each return
    #[arg(long)]
    no_ret_compression: bool,
    /// Put up to 47 conditional branches into a packet instead of up to 6
    #[arg(long)]
    long_tnt: bool,
    /// Trace only this: FUNCTION, FUNCTION-FUNCTION or 0xFIRST-0xLAST; repeatable
    #[arg(long, value_name = "RANGE")]
    filter: Vec<Range>,
    /// Trace from here on: [OBJECT:]FUNCTION[+0xOFFSET], 0xADDRESS, count:N or SIGNAL
    #[arg(long, value_name = "WHERE")]
    start: Option<Trigger>,
    /// Trace up to here: until the next start or, without --start, for good
    #[arg(long, value_name = "WHERE")]
    stop: Option<Trigger>,
    /// Trace only the main thread, not the threads and processes that it starts
    #[arg(long)]
    main_only: bool,
    /// Stop tracing after N instructions; the program continues
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Let the system randomise the program's addresses, when stepping: the emulator does not
    #[arg(long)]
    aslr: bool,
    /// Who executes it: emulator (QEMU, fast), stepping (ptrace, slow) or auto
    #[arg(long, value_parser = engines(), default_value = Engine::Auto.name(), hide_possible_values = true)]
    engine: Engine,
    /// Record the machine that PROGRAM (qemu-system-x86_64) emulates: all processors and levels
    #[arg(long, conflicts_with_all = ["filter", "main_only", "aslr", "engine", "pid"])]
    machine: bool,
    /// The machine's functions, for --start and --stop: an ELF file, System.map or /proc/kallsyms
    #[arg(long, value_name = "FILE", requires = "machine")]
    symbols: Option<PathBuf>,
    /// The distance by which the machine's Linux has moved itself from there (KASLR)
    #[arg(long, value_name = "0xOFFSET", requires = "machine", value_parser = offset)]
    kaslr: Option<u64>,
    /// Record a process that runs, by stepping; it goes on afterwards
    #[arg(short, long, value_name = "PID", conflicts_with = "program",
        value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "pid", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The exit statuses that `env` and `timeout` use for failures of their own.
pub(super) const FAILED: u8 = 125;
const NOT_EXECUTED: u8 = 126;
const NOT_FOUND: u8 = 127;
/// The number that a shell adds to that of the signal that ended a program.
const BY_SIGNAL: i32 = 128;

/// Runs `pugmark record`. The exit status is the program's, or 128 and the signal's number if a signal ended it.
///
/// # Errors
/// If the program cannot be recorded, or nothing of it was traced. [`failure`] gives the exit status.
pub fn run(command: &RecordCommand) -> Result<u8> {
    let options = command.options();
    if let Some(why) = why_stepping(&options) {
        tell(format_args!("{}", stepping(&why)));
    }
    let bar = if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("recording {spinner} {human_pos} steps, {per_sec}, {msg}");
    // The template is a constant, so it cannot be wrong.
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    let recording = record(&options, &mut |progress| {
        let tasks = if progress.tasks > 1 { format!(", {} threads", progress.tasks) } else { String::new() };
        bar.set_message(format!("{} of trace{tasks}", indicatif::DecimalBytes(progress.bytes)));
        bar.set_position(progress.steps);
    });
    bar.finish_and_clear();
    let recording = recording.map_err(|error| match &error {
        RecordError::NoPlace { option, trigger, file: Some(file), missing } => {
            anyhow!("{option} {trigger}: {}: {}", file.display(), why_missing(trigger, missing))
        }
        _ => error.into(),
    })?;
    messages(&recording, &options).iter().for_each(|message| tell(format_args!("{message}")));
    for unreached in &recording.unreached {
        if let Some(missing) = &unreached.missing {
            bail!("{}", not_found(unreached, missing));
        }
    }
    let is_reached = recording.unreached.iter().all(|unreached| unreached.option != "--start");
    if !is_reached {
        return Ok(status(recording.ending));
    }
    if recording.parts.is_empty() && options.ranges.is_empty() {
        bail!("nothing was traced: the recording ended before the program's first instruction");
    }
    if recording.parts.is_empty() {
        bail!(
            "nothing was traced: the files that the program mapped do not have all functions of --filter; check their \
             names, for example with nm"
        );
    }
    Ok(status(recording.ending))
}

/// Returns the message about a program that is stepped: why that is slow, and what to do about it.
fn stepping(why: &RecordError) -> String {
    let slow = "stepping, which is some 400 times slower than QEMU's emulator";
    match why {
        RecordError::Emulator(why) => format!("{slow}: {why}"),
        RecordError::Start { error, .. } => format!("{slow}: it cannot execute the program: {error}"),
        other => match other.source() {
            Some(source) => format!("{slow}: {other}: {source}"),
            None => format!("{slow}: {other}"),
        },
    }
}

/// Returns the message about a function to start or stop at that no file has.
fn not_found(Unreached { option, trigger, .. }: &Unreached, missing: &Missing) -> String {
    let what = match missing {
        Missing::Object(files) => {
            format!("the program mapped no file of that name, but these: {}", files.join(", "))
        }
        Missing::Function(names) => {
            format!("the files that the program mapped have no such function{}", similar(trigger, names))
        }
        missing => why_missing(trigger, missing),
    };
    format!("{option} {trigger}: {what}")
}

/// Returns the message about a function that a file with a machine's functions does not have.
fn why_missing(trigger: &Trigger, missing: &Missing) -> String {
    match missing {
        Missing::Object(objects) if objects.is_empty() => "it has no functions".into(),
        Missing::Object(objects) => format!("it has functions of {}", objects.join(", ")),
        Missing::Function(names) => format!("it has no such function{}", similar(trigger, names)),
        Missing::Offset => "the function ends before that".into(),
        Missing::Several(places) => {
            let places: Vec<_> = places.iter().map(|place| format!("{place:#x}")).collect();
            format!("several functions have that name, at {}: write one of the addresses", places.join(", "))
        }
    }
}

/// Returns the end of the message about a function that is none of `names`: which of them are similar.
fn similar(trigger: &Trigger, names: &[String]) -> SimilarNames {
    match trigger {
        Trigger::Function { name, .. } => SimilarNames::to(name, names.iter().map(String::as_str)),
        _ => SimilarNames::default(),
    }
}

/// Returns the messages about a recording: its parts, what is not in it, and how it ended.
fn messages(recording: &Recording, options: &RecordOptions) -> Vec<String> {
    let mut messages = vec![];
    for part in &recording.parts {
        messages.push(line(part));
        if part.unexplained > 0 {
            messages.push(format!(
                "warning: {} taken_branches of control that no instruction explains; the trace is wrong there",
                part.unexplained
            ));
        }
    }
    let not_followed = |NotFollowed { pid, program }: &NotFollowed| {
        format!(
            "process {pid} executed {program}: it and what it starts are not in the recording; use --engine stepping"
        )
    };
    messages.extend(recording.not_followed.iter().map(not_followed));
    if recording.unreported > 0 {
        messages.push(format!(
            "{} threads or processes were started and are not in the recording: they did not report themselves",
            recording.unreported
        ));
    }
    messages.extend(recording.deviations.iter().map(deviation));
    messages.extend(match recording.cause {
        Cause::Limit => Some(format!(
            "the limit of {} instructions was reached: what the program did from there on is not in the trace",
            options.limit.unwrap_or_default()
        )),
        Cause::Stop => options.stop.as_ref().map(|stop| {
            format!("--stop {stop} was reached: what the program did from there on is not in the trace")
        }),
        Cause::Signal(signal) => Some(format!(
            "stopped by signal {signal}: what the program did from there on is not in the trace"
        )),
        Cause::Over | Cause::Exec | Cause::Changed => None,
    });
    // A user who ends the recording by a limit or a signal does not expect the stop to be reached.
    let whole = matches!(recording.cause, Cause::Over | Cause::Exec | Cause::Changed);
    let unreached = recording.unreached.iter().filter(|unreached| unreached.missing.is_none());
    messages.extend(unreached.filter_map(|Unreached { option, trigger, .. }| match *option {
        "--start" => Some(format!(
            "warning: --start {trigger} was never reached: nothing was traced{}",
            may_have_moved(trigger, options)
        )),
        _ if whole => {
            Some(format!("warning: {option} {trigger} was never reached: the trace goes on to the end"))
        }
        _ => None,
    }));
    messages.extend(match recording.ending {
        Ending::Exit(0) | Ending::GoesOn => None,
        Ending::Exit(status) => Some(format!("the program ended with status {status}")),
        Ending::Signal(signal) => Some(ended_by(signal, Part::ended_in(&recording.parts))),
    });
    // Names of files can have more than one line.
    messages.iter().map(|message| printable(message).into_owned()).collect()
}

/// Returns the message about a difference between the emulator and the system.
fn deviation(Deviation { pid, kind }: &Deviation) -> String {
    match kind {
        DeviationKind::NoFilter => {
            format!("process {pid} asked for a seccomp filter: QEMU refuses it, and none is in force")
        }
        DeviationKind::NoCall(number) => {
            let known = usize::try_from(*number).ok().and_then(syscalls::x86_64::Sysno::new);
            let name = known.map(|call| format!(" ({})", call.name())).unwrap_or_default();
            format!("process {pid} made system call {number}{name}, which QEMU does not have: it got ENOSYS")
        }
        DeviationKind::NoSharedMemory => {
            format!("process {pid} started a process that shares its memory: QEMU refuses that with EINVAL")
        }
        DeviationKind::StaleCode => format!(
            "warning: process {pid} maps code that it can write to elsewhere: QEMU does not notice when it does, and \
             executes what was there before; use --engine stepping"
        ),
    }
}

/// Returns the end of the message about a function that was never reached: Linux may have moved itself.
fn may_have_moved(trigger: &Trigger, options: &RecordOptions) -> &'static str {
    let says = |word: &str| options.program.iter().any(|words| words.to_string_lossy().contains(word));
    let is_named = matches!(trigger, Trigger::Function { .. }) && options.kernel_offset == 0;
    if options.machine && is_named && says("-append") && !says("nokaslr") {
        "; Linux moves itself unless its command line has nokaslr; --kaslr says by how much"
    } else {
        ""
    }
}

/// Reads a hexadecimal number.
fn offset(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").filter(|digits| !digits.starts_with('+'));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.ok_or_else(|| "write it as 0x and hexadecimal digits".into())
}

/// Returns the message about a program that a signal has ended, in this part if that is known.
fn ended_by(signal: i32, part: Option<&Part>) -> String {
    let place = part.map(|part| {
        let at = part.at.map(|at| format!("at {at:#x} ")).unwrap_or_default();
        format!(", {at}in thread {}", part.thread.tid)
    });
    let address = part.and_then(|part| part.fault?.address);
    let accessing = address.map(|address| format!(", accessing {address:#x}"));
    let [place, accessing] = [place, accessing].map(Option::unwrap_or_default);
    format!("the program was ended by signal {signal}{place}{accessing}")
}

/// Returns the exit status for a run that has failed.
#[must_use]
pub fn failure(error: &anyhow::Error) -> u8 {
    match error.downcast_ref() {
        Some(RecordError::Start { error, .. }) if error.kind() == io::ErrorKind::NotFound => NOT_FOUND,
        Some(RecordError::Start { .. }) => NOT_EXECUTED,
        _ => FAILED,
    }
}

/// Returns the exit status after a program has ended.
pub(super) fn status(ending: Ending) -> u8 {
    let status = match ending {
        Ending::Exit(status) => status,
        Ending::Signal(signal) => BY_SIGNAL + signal,
        Ending::GoesOn => 0,
    };
    // Both numbers fit into eight bits.
    status as u8
}

impl RecordCommand {
    fn options(&self) -> RecordOptions {
        let plain = RecordOptions::new(self.program.iter().cloned());
        RecordOptions {
            pid: self.pid,
            out: self.out.clone(),
            profile: IntelProfile::by_name(&self.profile).unwrap_or(plain.profile),
            tsc: self.tsc,
            mtc: self.mtc,
            cyc: self.cyc,
            psb: self.psb,
            ret_compression: !self.no_ret_compression,
            long_tnt: self.long_tnt,
            ranges: self.filter.clone(),
            start: self.start.clone(),
            stop: self.stop.clone(),
            follow: !self.main_only,
            limit: self.limit,
            aslr: self.aslr,
            engine: self.engine,
            machine: self.machine,
            kernel_symbols: self.symbols.clone(),
            kernel_offset: self.kaslr.unwrap_or_default(),
            signals: true,
            ..plain
        }
        .with_time(self.time)
    }
}

fn profiles() -> PossibleValuesParser {
    let with_pt = IntelProfile::all().iter().filter(|profile| profile.pt_outputs != 0);
    PossibleValuesParser::new(with_pt.map(|profile| profile.name))
}

fn engines() -> impl TypedValueParser<Value = Engine> {
    let engine = |name: String| Engine::ALL.into_iter().find(|engine| engine.name() == name);
    // The parser lets no other name pass.
    PossibleValuesParser::new(Engine::ALL.map(Engine::name))
        .map(move |name| engine(name).unwrap_or(Engine::Auto))
}

fn line(part: &Part) -> String {
    let (count, hash) = (part.truth.count(), part.truth.value());
    format!(
        "{}: {}: {count} instructions, hash {hash:#018x}, {} bytes",
        part.dir.display(),
        part.program,
        part.bytes
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use pugmark_recorder::{
        DeviationKind::{NoCall, NoFilter, NoSharedMemory},
        NoEmulator,
    };

    #[derive(Parser)]
    struct RecordCli {
        #[command(flatten)]
        command: RecordCommand,
    }

    #[test]
    fn the_help_names_each_processor_that_can_trace() {
        use clap::CommandFactory;
        let help = RecordCli::command().render_help().to_string();
        for profile in IntelProfile::all() {
            assert_eq!(help.contains(profile.name), profile.pt_outputs != 0, "{}", profile.name);
        }
    }

    #[test]
    fn a_program_that_is_stepped_is_said_to_be_slow_and_why() {
        let error = || io::Error::other("it is old");
        for (why, expected) in [
            (RecordError::Emulator("it is busy"), ": it is busy"),
            (
                RecordError::NoEmulator(NoEmulator::TakesNoPlugin { said: "no such option".into() }),
                "qemu-x86_64 takes no plugin: no such option; Debian 13's qemu-user is built without plugins",
            ),
            (RecordError::NoEmulator(NoEmulator::Missing(error())), "it is old; install qemu-user"),
            (
                RecordError::Start { program: "x".into(), error: error() },
                ": it cannot execute the program: it is old",
            ),
            (RecordError::Prepare(error()), ": this process cannot prepare to record: it is old"),
        ] {
            let said = stepping(&why);
            assert!(said.starts_with("stepping, which is some 400 times slower than"), "{said}");
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn what_is_not_in_a_recording_is_said() {
        let stop = Some(Trigger::Count(5));
        let options = RecordOptions { limit: Some(9), stop, ..RecordOptions::new(["x"]) };
        let plain = || Recording {
            parts: vec![],
            ending: Ending::Exit(0),
            cause: Cause::Over,
            not_followed: vec![],
            unreported: 0,
            unreached: vec![],
            deviations: vec![],
        };
        let unreached = |option, missing| Unreached { option, trigger: Trigger::Address(0x10), missing };
        let after = "what the program did from there on is not in the trace";
        for (recording, expected) in [
            (plain(), vec![]),
            (Recording { cause: Cause::Exec, ..plain() }, vec![]),
            (Recording { cause: Cause::Changed, ..plain() }, vec![]),
            (
                Recording { cause: Cause::Limit, ..plain() },
                vec![format!("the limit of 9 instructions was reached: {after}")],
            ),
            (
                Recording { cause: Cause::Stop, ending: Ending::GoesOn, ..plain() },
                vec![format!("--stop count:5 was reached: {after}")],
            ),
            (
                Recording {
                    unreached: vec![unreached("--start", None), unreached("--stop", None)],
                    ..plain()
                },
                vec![
                    "warning: --start 0x10 was never reached: nothing was traced".into(),
                    "warning: --stop 0x10 was never reached: the trace goes on to the end".into(),
                ],
            ),
            // A user who ends a recording does not expect the stop to be reached.
            (
                Recording { cause: Cause::Limit, unreached: vec![unreached("--stop", None)], ..plain() },
                vec![format!("the limit of 9 instructions was reached: {after}")],
            ),
            // That is an error, which is reported elsewhere.
            (Recording { unreached: vec![unreached("--stop", Some(Missing::Offset))], ..plain() }, vec![]),
            (
                Recording { cause: Cause::Signal(15), ending: Ending::Signal(15), ..plain() },
                vec![format!("stopped by signal 15: {after}"), "the program was ended by signal 15".into()],
            ),
            (
                Recording {
                    deviations: [NoFilter, NoCall(101), NoCall(9999), NoSharedMemory]
                        .map(|kind| Deviation { pid: 7, kind })
                        .into(),
                    ..plain()
                },
                vec![
                    "process 7 asked for a seccomp filter: QEMU refuses it, and none is in force".into(),
                    "process 7 made system call 101 (ptrace), which QEMU does not have: it got ENOSYS".into(),
                    "process 7 made system call 9999, which QEMU does not have: it got ENOSYS".into(),
                    "process 7 started a process that shares its memory: QEMU refuses that with EINVAL".into(),
                ],
            ),
            (
                Recording { ending: Ending::Exit(3), unreported: 2, ..plain() },
                vec![
                    "2 threads or processes were started and are not in the recording: they did not report themselves"
                        .into(),
                    "the program ended with status 3".into(),
                ],
            ),
            (
                Recording {
                    not_followed: vec![NotFollowed { pid: 7, program: "\n".into() }],
                    ..plain()
                },
                vec![
                    "process 7 executed \\u{a}: it and what it starts are not in the recording; use --engine stepping"
                        .into(),
                ],
            ),
        ] {
            assert_eq!(messages(&recording, &options), expected);
        }
        for (ending, expected) in [(Ending::Exit(0), 0), (Ending::Exit(255), 255), (Ending::Signal(9), 137)] {
            assert_eq!(status(ending), expected);
        }
    }

    #[test]
    fn a_machine_takes_no_options_of_programs() {
        let parse = |words: &str| RecordCli::try_parse_from(words.split(' '));
        let plain = parse(
            "record --machine --limit 5 --start 0x10 --tsc --profile icelake -- qemu-system-x86_64 -m 64",
        )
        .unwrap();
        let options = plain.command.options();
        assert_eq!((options.machine, options.limit, options.program.len()), (true, Some(5), 3));
        for other in ["--filter main", "--main-only", "--aslr", "--engine stepping"] {
            let error =
                parse(&format!("record --machine {other} -- qemu-system-x86_64")).err().unwrap().to_string();
            let name = other.split(' ').next().unwrap();
            assert!(error.contains("--machine") && error.contains(name), "{error}");
        }
        assert!(parse("record --machine -p 1").is_err());
        let named =
            parse("record --machine --start f --symbols map --kaslr 0x1f000000 -- qemu-system-x86_64");
        let options = named.unwrap().command.options();
        assert_eq!((options.kernel_symbols, options.kernel_offset), (Some("map".into()), 0x1f00_0000));
        for other in ["--machine --kaslr 5", "--machine --kaslr 0x+5", "--kaslr 0x5", "--symbols map"] {
            assert!(parse(&format!("record {other} -- qemu-system-x86_64")).is_err(), "{other}");
        }
    }

    #[test]
    fn options_come_before_the_program_and_those_of_the_program_after_it() {
        let words = "record --profile icelake --tsc --mtc --cyc=4 --filter main --limit 5 -- ls --aslr";
        let options = RecordCli::parse_from(words.split(' ')).command.options();
        assert_eq!(
            (options.profile.name, options.tsc, options.mtc, options.cyc),
            ("icelake", true, Some(3), Some(4))
        );
        assert_eq!((options.limit, options.aslr, options.ret_compression), (Some(5), false, true));
        assert_eq!(options.ranges, ["main".parse().expect("a range")]);
        assert_eq!(options.program, ["ls", "--aslr"]);
        let options = RecordCli::parse_from("record --tsc ls --aslr".split(' ')).command.options();
        assert_eq!(
            (options.tsc, options.aslr, options.program),
            (true, false, vec!["ls".into(), "--aslr".into()])
        );
        let words = "record --start work --stop count:5 -p 7";
        let options = RecordCli::parse_from(words.split(' ')).command.options();
        assert_eq!((options.start, options.stop), ("work".parse().ok(), Some(Trigger::Count(5))));
        assert_eq!((options.pid, options.program), (Some(7), vec![]));
        for refused in [
            "record -p 7 -- ls",
            "record -p 0",
            "record --start count:0 -- ls",
            "record",
            "record --",
            "record --profile 8086 -- ls",
            "record --mtc=16 -- ls",
            "record --aslt ls",
        ] {
            assert!(RecordCli::try_parse_from(refused.split(' ')).is_err(), "{refused}");
        }
    }
}
