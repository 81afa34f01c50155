//! Records a whole machine that QEMU's system emulator emulates: each virtual processor, at all levels, whatever system
//! it executes.
//!
//! ```text
//!   pugmark record --machine                qemu-system-x86_64
//!     mod      starts it, finds rings   ◀──   machine_plugin   writes what each processor executes into rings
//!     blocks   code and how it is executed
//!     vcpu     blocks → instructions, and by frame interrupts and exceptions → the model of the hardware
//! ```
//!
//! Nothing is put into the guest, and nothing on the emulator's command line changes but the plugin in front.

mod blocks;
mod executed;
mod frame;
mod functions;
mod vcpu;

use super::{
    ending_of,
    hash_thread::HashThread,
    loading::{LoadedPlugin, NoEmulator},
    new_rings::NewRings,
    shared::Shared,
};
use crate::linux::{
    Cause, Ending, Part, RecordError, RecordOptions, RecordProgress, Recording, Trigger, folder, index,
    part::WRITE_EVERY,
    signals::Signals,
    switch::{Switch, Triggers},
};
use blocks::MachineBlocks;
use std::{
    cell::Cell,
    ffi::{OsStr, c_int},
    process::{Child, Command},
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant, SystemTime},
};
use vcpu::Vcpu;

/// The arguments with which an emulator is asked if it takes the plugin: those of a machine that needs no files.
const PROBE: [&str; 5] = ["-machine", "none", "-nodefaults", "-display", "none"];
const PAUSE: Duration = Duration::from_micros(100);
/// The number of instructions between two reports of progress.
const PROGRESS_EVERY: u64 = 1 << 16;

/// A machine while it is emulated.
struct Emulated<'a> {
    options: &'a RecordOptions,
    shared: Shared,
    child: Child,
    ending: Option<Ending>,
    new_rings: NewRings,
    blocks: Option<MachineBlocks>,
    vcpus: Vec<Vcpu<'a>>,
    hash_thread: HashThread,
    /// The number of instructions that are still to be traced, of all processors together.
    budget: Rc<Cell<u64>>,
    tracing_ended: Option<Cause>,
    triggers: Rc<Triggers>,
    signals: Option<Signals>,
    started_at: SystemTime,
    written_at: Instant,
}

/// Runs the emulator and records its machine.
pub(in crate::linux) fn record(
    options: &RecordOptions,
    progress: &mut dyn FnMut(RecordProgress),
) -> Result<Recording, RecordError> {
    let (emulator, arguments) =
        options.program.split_first().ok_or_else(|| start_error("", "no emulator"))?;
    if arguments.iter().any(|argument| argument == "-daemonize" || argument == "--daemonize") {
        return Err(start_error(
            &emulator.to_string_lossy(),
            "leave out -daemonize: its end ends the recording",
        ));
    }
    let is_signal = |trigger: &Trigger| matches!(trigger, Trigger::Signal(_));
    if [&options.start, &options.stop].into_iter().flatten().any(is_signal) {
        let why = "a machine's tracing starts and stops at functions, addresses and counts, not at signals";
        return Err(RecordError::Prepare(std::io::Error::other(why)));
    }
    let places = functions::places(options)?;
    let plugin = LoadedPlugin::find_for(emulator, &PROBE).map_err(|error| refusal(emulator, error))?;
    let shared = Shared::new(plugin).map_err(RecordError::Prepare)?;
    folder::prepare(&options.out)?;
    let started_at = SystemTime::now();
    index::begin(options, started_at)?;
    let origin = shared.origin(true, false);
    let plugin = format!("{},plugin={},rings={}", origin.plugin, origin.plugin, origin.rings);
    let mut command = Command::new(emulator);
    command.arg("-plugin").arg(plugin).args(arguments);
    let name = || emulator.to_string_lossy().into_owned();
    let child = command.spawn().map_err(|error| RecordError::Start { program: name(), error })?;
    let signals = options.signals.then(|| Signals::new(true)).transpose().map_err(RecordError::Prepare)?;
    let emulated = Emulated {
        options,
        shared,
        child,
        ending: None,
        new_rings: NewRings::default(),
        blocks: None,
        vcpus: vec![],
        hash_thread: HashThread::new(),
        budget: Rc::new(options.limit.unwrap_or(u64::MAX).into()),
        tracing_ended: None,
        triggers: Triggers::at(options, places),
        signals,
        started_at,
        written_at: Instant::now(),
    };
    emulated.run(progress)
}

fn start_error(program: &str, why: &str) -> RecordError {
    RecordError::Start { program: program.into(), error: std::io::Error::other(why) }
}

/// Returns the error for an emulator that does not take the plugin.
fn refusal(emulator: &OsStr, why: NoEmulator) -> RecordError {
    let program = emulator.to_string_lossy();
    match why {
        NoEmulator::Missing(error) => RecordError::Start { program: program.into_owned(), error },
        NoEmulator::TakesNoPlugin { said } => {
            let why = format!(
                "it takes no plugin: {said}; --machine needs QEMU's system emulator for x86-64, with plugins, as \
                 Debian 12 and 13 have it (qemu-system-x86)"
            );
            start_error(&program, &why)
        }
    }
}

impl Emulated<'_> {
    fn run(mut self, progress: &mut dyn FnMut(RecordProgress)) -> Result<Recording, RecordError> {
        let mut shown = 0;
        loop {
            if let Some(signal) = self.signals.as_ref().and_then(Signals::take) {
                self.handle_signal(signal)?;
            }
            // Looked for before the rings are read: what an emulator that has ended has written is there then.
            if self.ending.is_none() {
                self.ending = ending_of(&mut self.child)?;
            }
            let ended = self.ending.is_some();
            let any = self.read()?;
            if self.written_at.elapsed() > WRITE_EVERY {
                self.vcpus.iter_mut().try_for_each(|vcpu| vcpu.write(true))?;
                self.written_at = Instant::now();
            }
            if self.tracing_ended.is_none() && self.budget.get() == 0 {
                self.end_tracing(if self.triggers.ended() { Cause::Stop } else { Cause::Limit })?;
            }
            let steps: u64 = self.vcpus.iter().map(Vcpu::count).sum();
            if steps >= shown + PROGRESS_EVERY {
                shown = steps;
                let bytes = self.vcpus.iter().map(Vcpu::bytes).sum();
                progress(RecordProgress { steps, bytes, tasks: self.vcpus.len() });
            }
            if !any {
                if ended {
                    return self.finish();
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Reads what is new. Returns whether there was anything.
    fn read(&mut self) -> Result<bool, RecordError> {
        let mut any = false;
        for (ring, _) in self.new_rings.take(&self.shared.rings) {
            any = true;
            if self.tracing_ended.is_some() {
                ring.close();
            }
            if ring.header().tid.load(Relaxed) == 0 {
                self.blocks = Some(MachineBlocks::new(ring));
            } else {
                let truth = self.hash_thread.stream(self.vcpus.len());
                let switch = Switch::new(self.triggers.clone());
                let mut vcpu = Vcpu::new(self.options, ring, (self.budget.clone(), switch), truth);
                vcpu.over = self.tracing_ended.is_some();
                self.vcpus.push(vcpu);
            }
        }
        if let Some(blocks) = &mut self.blocks {
            any |= blocks.read();
            for vcpu in &mut self.vcpus {
                any |= vcpu.read(blocks)?;
            }
        }
        Ok(any)
    }

    /// Ends all tracing; the machine goes on.
    fn end_tracing(&mut self, cause: Cause) -> Result<(), RecordError> {
        self.tracing_ended = Some(cause);
        for vcpu in &mut self.vcpus {
            vcpu.ring.close();
            vcpu.finish(None, cause)?;
        }
        self.blocks.iter().for_each(|blocks| blocks.ring.close());
        Ok(())
    }

    /// Handles a signal that asks this process to end: ends the recording and passes the signal to the emulator.
    fn handle_signal(&mut self, signal: c_int) -> Result<(), RecordError> {
        if self.tracing_ended.is_none() {
            self.read()?;
            self.end_tracing(Cause::Signal(signal))?;
        }
        if self.ending.is_none() {
            // SAFETY: it takes numbers.
            unsafe { libc::kill(self.child.id().cast_signed(), signal) };
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Recording, RecordError> {
        let program = self.options.program.first().map(|program| program.to_string_lossy().into_owned());
        let program = program.unwrap_or_default();
        let Some(blocks) = &self.blocks else {
            return Err(start_error(&program, "it ended before it loaded the plugin"));
        };
        if self.vcpus.is_empty() {
            let why = "it has not executed anything itself: with -accel kvm a machine cannot be recorded";
            return Err(start_error(&program, why));
        }
        let shared_count = blocks.ring.header().counted.load(Relaxed);
        for vcpu in &mut self.vcpus {
            let own = vcpu.ring.header().counted_self.load(Relaxed);
            vcpu.finish(Some(shared_count + own), Cause::Over)?;
        }
        let mut parts: Vec<Part> =
            self.vcpus.iter_mut().flat_map(|vcpu| std::mem::take(&mut vcpu.parts)).collect();
        parts.sort_by_key(|part| part.task);
        let (cause, ending) =
            (self.tracing_ended.unwrap_or(Cause::Over), self.ending.unwrap_or(Ending::Exit(0)));
        index::write(self.options, self.started_at, (&parts, ending, cause), (&[], &[]))?;
        Ok(Recording {
            parts,
            ending,
            cause,
            not_followed: vec![],
            unreported: 0,
            unreached: self.triggers.unreached(),
            deviations: vec![],
        })
    }
}

impl Drop for Emulated<'_> {
    /// Ends the emulator, if it runs.
    fn drop(&mut self) {
        self.blocks.iter().for_each(|blocks| blocks.ring.close());
        self.vcpus.iter().for_each(|vcpu| vcpu.ring.close());
        if self.ending.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
