//! The command-line options that commands share.

use super::{
    between::Between,
    code::{CodeFiles, TracedCode},
    decode::Layer,
    input::{self, TraceBytes},
    notes::CommandNotes,
    processor::Processor,
    progress::Progress,
    recording::{Traced, UNFINISHED, no_thread},
    verdict::Verdict,
};
use crate::number;
use crate::output::tell;
use crate::source::perf_data::PerfData;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use pugmark_decoder_core::config::Config;
use std::{
    num::NonZeroUsize,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
};

/// A trace, the code that was traced, and how to decode them.
#[derive(Args, Clone, Debug)]
pub struct Input {
    /// A trace file, `-` for standard input, a folder that `pugmark record` has made, or files of `perf record`
    pub trace: PathBuf,
    /// More files of the same recording, as `perf record --switch-output` makes them
    #[arg(hide = true)]
    pub more: Vec<PathBuf>,
    /// A list of files and addresses, as `pugmark record` writes it; repeatable
    #[arg(long, value_name = "IMAGE.json", help_heading = CODE)]
    pub image: Vec<PathBuf>,
    /// An ELF file, moved so that its lowest segment is at BASE; repeatable
    #[arg(long, value_name = "FILE[:BASE]", help_heading = CODE)]
    pub elf: Vec<String>,
    /// A file without headers, at address BASE; repeatable
    #[arg(long, value_name = "FILE:BASE", help_heading = CODE)]
    pub raw: Vec<String>,
    /// Look in this folder for the files that `perf record` names
    #[arg(long, value_name = "FOLDER", help_heading = CODE)]
    pub symfs: Option<PathBuf>,
    #[command(flatten)]
    processor: Processor,
    /// The notes that the traces share.
    #[arg(skip)]
    pub(super) notes: CommandNotes,
}

/// The same for a command that can show a part of what was executed.
#[derive(Args, Clone, Debug)]
pub struct ViewInput {
    #[command(flatten)]
    input: Input,
    /// Only from A to B: times (1.5, 20us), functions, ptw:VALUE; or one function: its first call
    #[arg(long, value_name = "A,B")]
    between: Option<Between>,
    /// Only this thread
    #[arg(long, value_name = "NUMBER")]
    tid: Option<i32>,
    /// Take the names of functions from this file, too; repeatable
    #[arg(long, value_name = "FILE")]
    pub(super) symbols: Vec<PathBuf>,
}

impl Deref for ViewInput {
    type Target = Input;

    fn deref(&self) -> &Input {
        &self.input
    }
}

impl DerefMut for ViewInput {
    fn deref_mut(&mut self) -> &mut Input {
        &mut self.input
    }
}

impl ViewInput {
    /// Returns the traces, each with the part of it that is wanted.
    ///
    /// # Errors
    /// Those of [`Input::traces`], and of looking for that part.
    pub(super) fn traces(&self, verdict: &mut Verdict, progress: &mut Progress) -> Result<Vec<Traced>> {
        let mut traces = self.input.traces(verdict)?;
        if let Some(tid) = self.tid {
            let all = traces.clone();
            let is_it = |traced: &Traced| traced.part.as_ref().and_then(|part| part.tid) == Some(tid);
            traces.retain(|traced| traced.recording.is_some() || is_it(traced));
            traces.iter_mut().for_each(|traced| traced.tid = Some(tid));
            if traces.is_empty() {
                return Err(no_thread(tid, all.iter().filter_map(|traced| traced.part.as_ref())));
            }
        }
        if let Some(between) = &self.between {
            between.restrict(&self.input, &self.symbols, &mut traces, progress)?;
        }
        Ok(traces)
    }

    /// Returns the option by which only a part is wanted.
    pub(super) const fn part_option(&self) -> Option<&'static str> {
        match (&self.between, self.tid) {
            (Some(_), _) => Some("--between"),
            (None, Some(_)) => Some("--tid"),
            (None, None) => None,
        }
    }
}

/// Options of the commands that decode and do nothing else: the layer, and the number of threads.
#[derive(Args, Clone, Copy, Debug)]
pub struct LayerOptions {
    /// Layer to decode: packets, events, query, insns, blocks; edges for `bench`
    #[arg(long, value_enum, default_value_t = Layer::Blocks, hide_possible_values = true)]
    pub layer: Layer,
    /// Decode on N threads; addresses are hashed on one
    #[arg(long, value_name = "N", default_value = "1")]
    pub threads: NonZeroUsize,
    /// Report changes of RFLAGS.IF as events
    #[arg(long)]
    iflags: bool,
    /// Report an event where time advances at a branch (layers insns and blocks)
    #[arg(long)]
    ticks: bool,
}

impl LayerOptions {
    /// The options of the commands that show something else than what was decoded.
    pub(super) const BLOCKS: Self =
        Self { layer: Layer::Blocks, threads: NonZeroUsize::MIN, iflags: false, ticks: false };

    /// Adds the events that are asked for to a configuration.
    pub(super) const fn add_events(self, config: &mut Config<'_>) {
        (config.flags.iflags, config.flags.ticks) = (self.iflags, self.ticks);
    }
}

/// The heading of the options that name code.
const CODE: &str = "Code that was traced";

impl Input {
    /// Returns the trace, or the traces of the folder or of the files of `perf record`.
    ///
    /// # Errors
    /// If the folder does not hold a recording, perf's files cannot be read, or there are several of something else.
    pub fn traces(&self, verdict: &mut Verdict) -> Result<Vec<Traced>> {
        verdict.notes = self.notes.clone();
        let files: Vec<_> = std::iter::once(&self.trace).chain(&self.more).cloned().collect();
        let other = files.iter().find(|file| !PerfData::is_one(file));
        match other {
            None => {
                let (traced, losses) = Traced::in_perf_data(&files)?;
                verdict.recorded += losses;
                return Ok(vec![traced]);
            }
            Some(other) if files.len() > 1 => {
                bail!("{} is no file of `perf record`: only those can be several", other.display())
            }
            Some(_) => {}
        }
        match self.trace.is_dir() {
            true => Traced::in_folder(&self.trace),
            false => {
                let traced = Traced::file(&self.trace);
                if traced.description.as_ref().is_some_and(|description| description.unfinished) {
                    tell(format_args!("pugmark: warning: {}: {UNFINISHED}", self.trace.display()));
                }
                Ok(vec![traced])
            }
        }
    }

    /// Reads the code: image files first, then ELF files, then raw files. Later code hides earlier code. If no code was
    /// given, the recording's is used, for a layer that needs code. `read` has files of recordings that were read
    /// before.
    ///
    /// # Errors
    /// If a file cannot be read, or does not have the form it should have.
    pub fn code(&self, traced: &Traced, layer: Layer, read: &mut CodeFiles) -> Result<TracedCode> {
        let mut code = TracedCode::default();
        if !self.is_code_given()
            && layer.needs_code()
            && let Some(image) = &traced.image
        {
            code.add_image(image)?;
        }
        if let Some(perf) = traced.perf.as_ref().filter(|_| layer.needs_code()) {
            for sections in [&perf.code, &perf.kernel] {
                code.add_sections(Path::new(""), sections, read, &traced.trace.display().to_string())?;
            }
            code.patch(&perf.changed);
        }
        for image in &self.image {
            code.add_image(image)?;
        }
        for argument in &self.elf {
            let (file, base) = split_base(argument);
            code.add_elf(file.as_ref(), base)?;
        }
        for argument in &self.raw {
            let (file, base) = split_base(argument);
            let base = base.ok_or_else(|| {
                anyhow!(
                    "--raw {argument}: the code's address is missing: write FILE:BASE, as in {file}:0x1000"
                )
            })?;
            code.add_raw(file.as_ref(), base)?;
        }
        Ok(code)
    }

    /// Returns whether there is any code.
    pub(super) fn has_code(&self, traced: &Traced) -> bool {
        let of_perf = traced.recording.as_ref().is_some_and(|recording| {
            recording.timeline.processes().next().is_some() || !recording.kernel.kernel.is_empty()
        });
        self.is_code_given() || traced.image.is_some() || of_perf
    }

    fn is_code_given(&self) -> bool {
        !(self.image.is_empty() && self.elf.is_empty() && self.raw.is_empty())
    }

    /// Reads the trace's bytes.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn load(&self, traced: &Traced, progress: &mut Progress) -> Result<TraceBytes> {
        input::load(&traced.trace, progress)
            .with_context(|| format!("cannot read the trace {}", traced.trace.display()))
    }

    /// Returns the configuration for reading the trace.
    ///
    /// # Errors
    /// Those of [`Processor::config`].
    pub fn config(&self, traced: &Traced) -> Result<Config<'static>> {
        self.processor.config(traced.description.as_ref())
    }
}

/// Splits `FILE` or `FILE:BASE`.
pub(super) fn split_base(argument: &str) -> (&str, Option<u64>) {
    match argument.rsplit_once(':').map(|(file, base)| (file, number::parse(base))) {
        Some((file, Some(base))) => (file, Some(base)),
        _ => (argument, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_a_number_after_the_last_colon() {
        for (argument, file, base) in [
            ("a.out", "a.out", None),
            ("a.out:0x1000", "a.out", Some(0x1000)),
            ("a:b:4096", "a:b", Some(4096)),
            ("a:b", "a:b", None),
            ("a:", "a:", None),
        ] {
            assert_eq!(split_base(argument), (file, base), "{argument}");
        }
    }
}
