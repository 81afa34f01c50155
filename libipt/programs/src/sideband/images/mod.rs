//! Computes the effect of each record on the processes' images, before anything is decoded.
//!
//! A record's effect depends only on the records before it; the trace decides only when the effect takes place. All
//! images are therefore known in advance: each is a list of sections that grows while the trace is decoded, and a
//! process's current image is a prefix of its list. The decoder borrows that prefix, and nothing is copied.

use super::{MergedStreams, Stream, Warning};
use crate::code::{self, CacheError, MappedSection, SectionCache};
use pugmark_decoder_core::image::{Image, Section};
use pugmark_tools::code::elf::{self, Abi};
use pugmark_tools::sideband::{AUX_TRUNCATED, Fork, Record, RecordProblem, TimedRecord};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};

/// The images of all processes and the effect of each record on them.
#[derive(Debug)]
pub struct ProcessImages<'c> {
    cache: &'c SectionCache,
    contexts: Vec<Context>,
    effects: Vec<Effect>,
    /// Each process's sections, filled in when they are first needed.
    sections: Vec<OnceCell<Vec<Section<'c>>>>,
}

/// The effect of each record, as far as known without reading code.
#[derive(Debug)]
pub struct ImagePlan {
    contexts: Vec<Context>,
    effects: Vec<Effect>,
}

/// A process. An exec makes a new context.
#[derive(Debug)]
struct Context {
    pid: u32,
    parts: Vec<MappedSection>,
    /// The number of parts at the start.
    initial: usize,
    abi: Option<Abi>,
}

/// The effect of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    None,
    /// A process's image grows.
    Grow {
        /// The process.
        context: usize,
        /// The number of parts that its image has now.
        parts: usize,
    },
    /// The trace switches to this process, at a later place.
    Switch(usize),
    /// The trace begins in this process.
    Start(usize),
    /// Something was lost.
    Warn(Warning),
    /// The record cannot have its effect.
    Fail(RecordProblem),
}

impl<'c> ProcessImages<'c> {
    /// Makes the images of a plan. The cache must be the one of [`ImagePlan::new`].
    #[must_use]
    pub fn new(plan: ImagePlan, cache: &'c SectionCache) -> Self {
        let ImagePlan { contexts, effects } = plan;
        let sections = contexts.iter().map(|_| OnceCell::new()).collect();
        Self { cache, contexts, effects, sections }
    }

    /// Returns the number of parts that each process's image starts with.
    pub(super) fn initial(&self) -> Vec<usize> {
        self.contexts.iter().map(|context| context.initial).collect()
    }

    /// Returns a process's name.
    #[must_use]
    pub(super) fn name(&self, context: usize) -> String {
        format!("pid-{:x}", self.contexts[context].pid)
    }

    /// Returns the first `parts` parts of a process's image. The first call reads the files of all its parts.
    pub(super) fn image(&self, context: usize, parts: usize) -> Image<'_> {
        let sections =
            self.sections[context].get_or_init(|| code::sections(&self.contexts[context].parts, self.cache));
        Image::new(&sections[..parts.min(sections.len())])
    }

    /// Returns the effect of the record with this number; records are numbered in the order in which they are due.
    pub(super) fn effect(&self, record: usize) -> Effect {
        self.effects.get(record).copied().unwrap_or(Effect::None)
    }
}

impl ImagePlan {
    /// Goes through all records of the streams and finds the files that they name. Every image begins with the parts of
    /// the kernel.
    #[must_use]
    pub fn new(streams: &[Stream], kernel: &[MappedSection], cache: &mut SectionCache) -> Self {
        let plan = Self { contexts: Vec::new(), effects: Vec::new() };
        let mut planner = ImagePlanner { cache, kernel, plan, by_pid: HashMap::new(), left: MOST_PARTS };
        // Writing to a sink cannot fail.
        if let Ok(mut merged) = MergedStreams::new(streams, &mut io::sink()) {
            while let Some((event, cursor)) = merged.next_until(u64::MAX) {
                let effect = planner.effect(&event, cursor.stream).unwrap_or_else(Effect::Fail);
                planner.plan.effects.push(effect);
                if merged.advance(cursor, &mut io::sink()).is_err() {
                    break;
                }
            }
        }
        planner.plan
    }
}

/// The maximum number of parts of all images together. A forked process copies the parts of its parent, so without a
/// limit a few records could create very many.
const MOST_PARTS: usize = 1 << 22;

struct ImagePlanner<'p> {
    cache: &'p mut SectionCache,
    /// The parts that every image begins with.
    kernel: &'p [MappedSection],
    plan: ImagePlan,
    by_pid: HashMap<u32, usize>,
    /// The number of parts that can still be added to any image.
    left: usize,
}

impl ImagePlanner<'_> {
    fn effect(&mut self, event: &TimedRecord<'_>, stream: &Stream) -> Result<Effect, RecordProblem> {
        let primary = stream.primary;
        Ok(match &event.record {
            // After boot, the kernel's code in memory differs from its file.
            Record::Mmap { .. } if event.kernel => Effect::None,
            Record::Mmap { pid, addr, len, pgoff, filename, .. } => {
                self.map(*pid, *addr, (*pgoff, *len), filename, stream)?
            }
            Record::Fork(fork) => {
                self.fork(fork)?;
                Effect::None
            }
            Record::Comm { pid, exec: true, .. } => {
                let context = self.replace(*pid, None)?;
                if primary { Effect::Switch(context) } else { Effect::None }
            }
            Record::ItraceStart { pid, .. } if primary => Effect::Start(self.context_of(*pid)?),
            Record::Switch { out: false } if primary => {
                let (pid, _) = event.sample.tid.ok_or(RecordProblem::Configuration)?;
                Effect::Switch(self.context_of(pid)?)
            }
            Record::SwitchCpuWide { out: true, pid, .. } if primary => Effect::Switch(self.context_of(*pid)?),
            Record::SwitchCpuWide { out: false, .. } if primary => match event.sample.tid {
                Some((pid, _)) => Effect::Switch(self.context_of(pid)?),
                None => Effect::None,
            },
            Record::Lost { .. } => Effect::Warn(Warning::Records),
            Record::Aux { flags, .. } if primary && flags & AUX_TRUNCATED != 0 => {
                Effect::Warn(Warning::Trace)
            }
            _ => Effect::None,
        })
    }

    fn map(
        &mut self,
        pid: u32,
        base: u64,
        (offset, len): (u64, u64),
        name: &str,
        stream: &Stream,
    ) -> Result<Effect, RecordProblem> {
        let context = self.context_of(pid)?;
        let vdso = |abi: Option<Abi>| abi.and_then(|abi| stream.config().vdso.get(&abi)).cloned();
        let path = match name {
            "[vdso]" => vdso(self.plan.contexts[context].abi).ok_or(RecordProblem::Configuration)?,
            _ if is_no_file(name) => return Ok(Effect::Warn(Warning::Section)),
            _ => format!("{}{name}", stream.config().sysroot),
        };
        let abi = &mut self.plan.contexts[context].abi;
        *abi = abi.or_else(|| abi_of(&path));
        let section = self.cache.add(path.as_ref(), offset, len).map_err(|error| match error {
            CacheError::Open(_) => RecordProblem::File,
            CacheError::Offset { .. } => RecordProblem::Offset,
            CacheError::Full => RecordProblem::Memory,
        })?;
        self.take(1)?;
        let parts = &mut self.plan.contexts[context].parts;
        parts.push(MappedSection { base, section });
        Ok(Effect::Grow { context, parts: parts.len() })
    }

    /// Gives a forked process its parent's image. A new thread of a process changes nothing.
    fn fork(&mut self, fork: &Fork) -> Result<(), RecordProblem> {
        if fork.pid == fork.ppid {
            return Ok(());
        }
        if fork.pid != fork.tid {
            return Err(RecordProblem::Internal);
        }
        let parent = self.by_pid.get(&fork.ppid).copied();
        self.replace(fork.pid, parent).map(drop)
    }

    /// Returns the process with this number; it is created if it does not exist.
    fn context_of(&mut self, pid: u32) -> Result<usize, RecordProblem> {
        match self.by_pid.get(&pid) {
            Some(&context) => Ok(context),
            None => self.replace(pid, None),
        }
    }

    /// Replaces the process with this number by a new one, which begins with its parent's image, or with the kernel's
    /// parts.
    fn replace(&mut self, pid: u32, parent: Option<usize>) -> Result<usize, RecordProblem> {
        let parts = parent.map_or(self.kernel, |parent| &self.plan.contexts[parent].parts).to_vec();
        self.take(parts.len() + 1)?;
        let context = self.plan.contexts.len();
        self.plan.contexts.push(Context { pid, initial: parts.len(), parts, abi: None });
        self.by_pid.insert(pid, context);
        Ok(context)
    }

    fn take(&mut self, parts: usize) -> Result<(), RecordProblem> {
        self.left = self.left.checked_sub(parts).ok_or(RecordProblem::Memory)?;
        Ok(())
    }
}

/// Returns true if the mapped code is in no file.
fn is_no_file(name: &str) -> bool {
    name.starts_with('[') || name == "//anon" || name.contains(" (deleted)")
}

fn abi_of(path: &str) -> Option<Abi> {
    let mut header = Vec::new();
    // Opening anything but a regular file may block or have side effects.
    fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    File::open(path).ok()?.take(elf::ABI_BYTES as u64).read_to_end(&mut header).ok()?;
    elf::abi(&header)
}

#[cfg(test)]
mod tests;
