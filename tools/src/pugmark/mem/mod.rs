//! `pugmark mem`: sampled memory accesses of AMD's IBS and Intel's PEBS: where data came from and how long that took,
//! which lines and pages were accessed most, and which lines threads disturb each other with.

mod access;
mod names;
mod report;
mod tables;

use super::verdict::Verdict;
use crate::file::read_finite;
use crate::output::{self, tell};
use crate::source::perf_data::{
    PerfData,
    sample::PerfSample,
    samples::{PerfSamples, SampledEvent},
};
use access::MemoryAccess;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use names::MemoryNames;
use pugmark_decoder_core::ibs::{OpSample, Part, RawSample, RawSamples, Sample};
use report::Reporter;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};
use tables::{MemoryTables, Origin};

/// The options of `pugmark mem`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  perf mem record -o perf.data ./program      on Intel's and AMD's processors
  pugmark mem perf.data
  perf record -a -d -W -e ibs_op// -o perf.data ./program
  pugmark mem --top 3 perf.data               the first three rows of each table")]
pub struct MemOptions {
    /// A file of `perf record`, or its folder, or raw samples of IBS as `pugmark ibs` reads them
    file: PathBuf,
    /// The largest number of rows to print of each table; 0 prints all rows
    #[arg(long, alias = "limit", value_name = "N", default_value_t = 10)]
    top: usize,
    /// Look below this folder for the programs and libraries that the file names
    #[arg(long, value_name = "FOLDER")]
    symfs: Option<PathBuf>,
    /// The sampled processor, for IBS; by default as the file says, or as its capabilities do
    #[arg(long, value_name = "FAMILY/MODEL", value_parser = super::ibs::processor)]
    cpu: Option<(u8, u8)>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `pugmark mem`. The status is 1 if there is no memory access, or the kernel lost records.
///
/// # Errors
/// If the file cannot be read, no sample in it says what it accesses, or the output cannot be written.
pub fn run(options: &MemOptions) -> Result<ExitCode> {
    let perf = Some(&options.file).filter(|file| PerfData::is_one(file));
    let samples = match perf {
        Some(file) => PerfSamples::read(file)?,
        None => PerfSamples::default(),
    };
    let file = perf.unwrap_or(&options.file);
    let tables = match perf {
        Some(_) => of_perf(&samples, options.cpu),
        None => of_raw(file, options.cpu),
    };
    let tables = tables.with_context(|| file.display().to_string())?;
    if samples.lost > 0 {
        tell(format_args!("pugmark: warning: the kernel lost {} records", samples.lost));
    }
    let names = MemoryNames::of(file, &samples, options.symfs.as_deref())?;
    let limit = if options.top == 0 { usize::MAX } else { options.top };
    let report = Reporter { tables: &tables, names: &names, limit }.report();
    names.tell_missing();
    if options.json {
        output::print(|out| writeln!(out, "{}", serde_json::to_string(&report)?))?;
    } else {
        output::page(|out| report.text(out))?;
    }
    if report.is_empty() {
        tell(format_args!("pugmark: warning: none of the samples is of a memory access"));
        return Ok(ExitCode::FAILURE);
    }
    Ok(Verdict { recorded: usize::from(samples.lost > 0), ..Verdict::default() }.status())
}

/// Counts the samples of a file of perf.
fn of_perf(samples: &PerfSamples, cpu: Option<(u8, u8)>) -> Result<MemoryTables> {
    let mut tables = MemoryTables::default();
    ensure!(!samples.samples.is_empty(), "there is no sample in it");
    let mut any_has_access = false;
    for (number, (sample, event, program)) in samples.samples.iter().enumerate() {
        tables.samples += 1;
        let event = &samples.events[*event];
        let has_access = sample.data_src.is_some() || event.is_ibs_op && sample.raw.is_some();
        any_has_access |= has_access;
        let access =
            access(sample, event, cpu.or(samples.amd)).with_context(|| format!("sample {number}"))?;
        let Some(access) = access else { continue };
        let thread = sample.ids.map(|(_, tid)| tid);
        tables.add(&access, Origin { program: *program, thread, cpu: sample.cpu, ip: sample.ip });
    }
    if !any_has_access {
        let events: Vec<&str> = samples.events.iter().map(|event| &*event.name).collect();
        bail!(
            "no sample of {} says what it accesses: `perf mem record`, or -d -W for `perf record`",
            events.join(", ")
        );
    }
    Ok(tables)
}

/// Returns the access of a sample, if it is one. The registers of IBS say more than what Linux makes of them.
fn access(sample: &PerfSample, event: &SampledEvent, cpu: Option<(u8, u8)>) -> Result<Option<MemoryAccess>> {
    match (&sample.raw, sample.data_src) {
        (Some(raw), _) if event.is_ibs_op => {
            let op = sampled_op(&RawSample::parse_raw(raw)?, cpu);
            Ok(op.as_ref().and_then(OpSample::access).map(MemoryAccess::of_ibs))
        }
        (_, Some(data_src)) => Ok(MemoryAccess::of_linux(data_src, sample.address, sample.weight)),
        _ => Ok(None),
    }
}

/// Returns the op in a raw sample of IBS; `None` if it is a fetch, or none.
fn sampled_op(record: &RawSample, cpu: Option<(u8, u8)>) -> Option<OpSample> {
    let guess = Part::by_caps(record.caps);
    let part = cpu.map_or(guess, |(family, model)| Part { family, model, caps: record.caps });
    match record.sample(part)? {
        Sample::Op(op) => Some(op),
        Sample::Fetch(_) => None,
    }
}

/// Counts the raw samples of IBS in a file.
fn of_raw(file: &Path, cpu: Option<(u8, u8)>) -> Result<MemoryTables> {
    let mut tables = MemoryTables::default();
    let bytes = read_finite(file)?;
    ensure!(!bytes.is_empty(), "it is empty");
    for record in RawSamples::new(&bytes) {
        let record = record.context("neither a file of perf nor raw samples of IBS")?;
        tables.samples += 1;
        let Some(op) = sampled_op(&record, cpu) else { continue };
        if let Some(access) = op.access() {
            tables.add(&MemoryAccess::of_ibs(access), Origin { ip: op.rip(), ..Origin::default() });
        }
    }
    Ok(tables)
}
