//! Boots the example kernels and judges them: compares their output with the truth, the symbols of their images, and
//! the known structure of their code.

mod path;
mod tasks;
mod threads;

use anyhow::{Context, Result, bail, ensure};
use pugmark_launch::boot::{Boot, BootSource, Console, Ending};
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use crate::images::{BY_FIRMWARE, Images};
use crate::machine::{EXIT_PASSED, Machine, Outcome};
use crate::report::{End, Transcript};
use crate::scratch::Scratch;
use crate::truth::{Record, hash};
use crate::{cd, esp};
use path::{Call, ExampleProgram, Summary};

/// The profile on which the examples are booted.
const PROFILE: &str = "skylake";

/// Number of processors that the examples `lossless` and `panic` trace.
const PROCESSORS: u16 = 4;

/// The time in which an example that firmware boots has ended.
const LIMIT: Duration = Duration::from_secs(300);

/// Returns the machine on which the example `name` is booted; `image` is its file.
#[must_use]
pub fn machine(images: &Images, name: &str, image: &Path, monitor_options: &str) -> Machine {
    let machine =
        Machine::kernel_on_monitor(images, image, &format!("profile={PROFILE} {monitor_options}"), "");
    machine.processors(processors(name))
}

/// Boots the example `name` as it is meant to be: as a kernel that the monitor starts, or by UEFI firmware from a disk.
/// Calls `watch` for each line that it has written.
///
/// # Errors
/// If the machine does not start, or the example ends without its closing line.
pub fn run(
    images: &Images,
    name: &str,
    image: &Path,
    monitor_options: &str,
    watch: impl FnMut(&str),
) -> Result<Outcome> {
    if !BY_FIRMWARE.contains(&name) {
        return machine(images, name, image, monitor_options).run(watch);
    }
    let scratch = Scratch::new()?;
    let disk = scratch.file("disk.img");
    let kernel = std::fs::read(image)?;
    let content = if name == "limine" { esp::limine_disk(&kernel)? } else { esp::disk(&kernel)? };
    std::fs::write(&disk, content)?;
    boot_medium(images, name, BootSource::Disk(disk), true, &scratch, watch)
}

/// Returns the number of processors of the machine on which an example is booted.
fn processors(name: &str) -> u16 {
    if ["lossless", "panic"].contains(&name) { PROCESSORS } else { 1 }
}

/// Boots an example by GRUB, from a CD in the machine's drive, with the BIOS below it, or UEFI firmware. Calls `watch`
/// for each line that it has written.
///
/// # Errors
/// If the CD cannot be made, the machine does not start, or the example ends without its closing line.
pub fn boot_by_grub(
    images: &Images,
    name: &str,
    image: &Path,
    uefi: bool,
    watch: impl FnMut(&str),
) -> Result<Outcome> {
    let scratch = Scratch::new()?;
    let cd = scratch.file("cd.iso");
    cd::make(image, &scratch.file("tree"), &cd)?;
    boot_medium(images, name, BootSource::Cdrom(cd), uefi, &scratch, watch)
}

/// Boots an example from a medium.
fn boot_medium(
    images: &Images,
    name: &str,
    source: BootSource,
    uefi: bool,
    scratch: &Scratch,
    watch: impl FnMut(&str),
) -> Result<Outcome> {
    let text = scratch.file("text");
    let boot = Boot {
        monitor: images.monitor.clone(),
        options: format!("profile={PROFILE}"),
        source,
        uefi,
        recorder: vec![],
        processors: processors(name),
        // UEFI firmware needs more than the BIOS.
        memory: 512,
        logs_each: true,
        limit: Some(LIMIT),
        arguments: vec![],
    };
    let booted = boot.run(scratch, Console::File(&text), || false, |_| {})?;
    let text = String::from_utf8_lossy(&std::fs::read(&text)?).into_owned();
    ensure!(booted.ending == Ending::Exit(EXIT_PASSED), "it ended with {:?}:\n{text}", booted.ending);
    // UEFI firmware ends its own text without a newline.
    let own = text.find(&format!("run {name}")).map_or("", |start| &text[start..]);
    let mut transcript = Transcript::default();
    own.lines().try_for_each(|line| transcript.line(line))?;
    own.lines().for_each(watch);
    Ok(Outcome { transcript, truth: booted.truth, dump: vec![] })
}

/// Checks the output of the example `name`. Returns a sentence that tells what was found to be right.
///
/// # Errors
/// If it did not end well, or some output does not match the execution.
pub fn check(name: &str, image: &Path, outcome: &Outcome) -> Result<String> {
    let [run] = &outcome.transcript.runs[..] else { bail!("the example is one run, not several or none") };
    ensure!(run.name == name, "another example has run: {}", run.name);
    ensure!(run.end == Some(End::Ok), "it ended with {:?}", run.end);
    if name == "uefi" {
        let base = outcome.transcript.other.iter().find_map(|line| line.strip_prefix("base 0x"));
        let base = u64::from_str_radix(base.context("no base")?, 16)?;
        return Shown { program: ExampleProgram::read_at(image, base)?, outcome }.snapshot("pc");
    }
    let evidence = Shown { program: ExampleProgram::read(image)?, outcome };
    match name {
        "snapshot" => evidence.snapshot("snapshot"),
        "limine" => evidence.snapshot("pc"),
        "panic" => evidence.panic(),
        "fuzz-target" => evidence.fuzz_target(),
        "lossless" => evidence.lossless(),
        "live" => evidence.live(1, "pmis="),
        "threads" => evidence.threads(),
        "async" => evidence.tasks(),
        "c" => evidence.in_c(),
        _ => bail!("there is no example {name}"),
    }
}

/// Checks what the example `threads` has printed of the traced thread against a log of all threads, whether they were
/// traced or not (the monitor's option `step=always`). Returns a sentence that tells what was found to be right.
///
/// # Errors
/// If the printed part of the program is not all of that thread's, or no other thread has run.
pub fn check_thread(image: &Path, outcome: &Outcome) -> Result<String> {
    Shown { program: ExampleProgram::read(image)?, outcome }.whole_thread()
}

/// The output of an example, and its execution.
struct Shown<'a> {
    program: ExampleProgram,
    outcome: &'a Outcome,
}

impl Shown<'_> {
    fn lines(&self) -> impl Iterator<Item = &str> {
        self.outcome.transcript.other.iter().map(String::as_str)
    }

    /// Checks count and hash in the line with this beginning. Returns the count. A trace has the interrupt of a system
    /// call, as one before that instruction.
    fn counts<'r>(&self, prefix: &str, path: impl Iterator<Item = &'r Record>) -> Result<usize> {
        let path = path.filter(|record| !record.flags.is_software_interrupt());
        let addresses: Vec<u64> = path.map(|record| record.rip).collect();
        let executed = format!("{prefix}{} hash={:#x}", addresses.len(), hash(&addresses));
        let printed = self.lines().find(|line| line.starts_with(prefix)).unwrap_or_default();
        ensure!(printed == executed, "printed {printed}, executed {executed}");
        Ok(addresses.len())
    }

    /// Returns the number of PMIs that was printed: none where turns are so short that no half of the memory was full.
    fn pmis(&self) -> Result<u64> {
        let served = self.lines().find_map(|line| line.strip_prefix("pmis=")).context("no number of PMIs")?;
        served.parse().context("no number of PMIs")
    }

    /// Returns the calls of a session.
    fn calls(&self, session: u16) -> Result<Vec<Call>> {
        self.program.calls(self.outcome.truth.session(session))
    }

    /// Checks that the printed call tree is that of the truth, and that of the function as it is written in this crate.
    fn snapshot(&self, name: &str) -> Result<String> {
        let calls = self.calls(1)?;
        let [traced, leaf] = ["traced", "leaf"].map(|function| format!("{name}::{function}"));
        let root = calls.iter().position(|call| call.name == traced);
        let root = root.context("the traced function was not called")?;
        let depth = calls[root].depth;
        let executed = calls[root..].iter().take_while(|call| call.depth > depth || **call == calls[root]);
        let executed: Vec<_> = executed.map(|call| (call.depth - depth, call.name.clone())).collect();
        let printed: Vec<_> = self.lines().filter_map(|line| self.tree_line(name, line)).collect();
        ensure!(printed == executed, "printed {printed:?}, executed {executed:?}");

        let mut written = vec![(0, traced)];
        tower(&format!("{name}::tower"), 4, 1, &mut written);
        written.extend([(1, leaf.clone()), (1, leaf)]);
        ensure!(printed == written, "printed {printed:?}, written {written:?}");
        Ok(format!("the call tree of {} calls is the truth's", printed.len()))
    }

    /// Returns depth and name of a printed line of a call tree: a function of this crate, or its address.
    fn tree_line(&self, of: &str, line: &str) -> Option<(i64, String)> {
        let entry = line.trim_start();
        let depth = (line.len() - entry.len()) / 2;
        let address = entry.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let name = address.map_or_else(|| entry.to_owned(), |address| self.program.name(address));
        name.starts_with(&format!("{of}::")).then_some((depth as i64, name))
    }

    /// Checks that on each processor the printed functions and branches are the last ones of the truth: one has
    /// panicked, as is printed, and an NMI has stopped the others.
    fn panic(&self) -> Result<String> {
        let (mut total, mut panicked, mut cpus) = (0, 0, Vec::new());
        for number in 0..PROCESSORS {
            let path = self.outcome.truth.session(1 + number);
            let first = path.first().with_context(|| format!("processor {number} was not traced"))?;
            ensure!(path.iter().all(|record| record.cpu == first.cpu), "two processors are in one session");
            cpus.push(first.cpu);
            let calls = self.program.calls_and_interrupts(path)?;
            let prefix = format!("entered {number} ");
            let printed: Vec<_> = self.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
            ensure!(printed.len() == 100, "processor {number}: {} functions were printed", printed.len());
            let executed = &calls[calls.len().saturating_sub(100)..];
            let same = executed.iter().zip(&printed).all(|(call, line)| call.is_printed_as(line));
            ensure!(same, "processor {number}: printed {printed:#?}, executed {executed:#?}");
            let went = self.program.summary(path)?.transfers;
            let went = went[went.len().saturating_sub(32)..].iter().map(|(from, to)| {
                let [caller, called] = [*from, *to].map(|address| self.program.name(address));
                format!("went {number} {from:#x} {to:#x} {caller} {called}")
            });
            let prefix = format!("went {number} ");
            let printed: Vec<_> = self.lines().filter(|line| line.starts_with(&prefix)).collect();
            ensure!(went.eq(printed.iter().copied()), "processor {number} printed {printed:#?}");
            let panics = executed.iter().any(|call| call.name == PANIC);
            let says_so = format!("processor {number} panicked at ");
            ensure!(panics == self.lines().any(|line| line.starts_with(&says_so)), "who has panicked?");
            panicked += usize::from(panics);
            let wrapped = format!("processor {number}: ");
            let mut lines = self.lines().filter(|line| line.starts_with(&wrapped));
            let wrapped = lines.any(|line| line.contains("overwritten"));
            ensure!(wrapped, "the ring of {number} was not full, so that this has shown little");
            total += calls.len();
        }
        cpus.sort_unstable();
        ensure!(cpus == [0, 1, 2, 3], "these processors have traced: {cpus:?}");
        ensure!(panicked == 1, "{panicked} processors have panicked by themselves");
        Ok(format!(
            "the last 100 functions on each of {PROCESSORS} processors are the truth's last of {total}, and so \
             are the last 32 branches"
        ))
    }

    /// Checks that each processor has decoded its whole execution, interrupted by NMIs.
    fn lossless(&self) -> Result<String> {
        let (mut total, mut pmis) = (0, 0);
        for number in 0..PROCESSORS {
            let path = self.outcome.truth.session(1 + number);
            let addresses: Vec<u64> = path.iter().map(|record| record.rip).collect();
            ensure!(path.iter().all(|record| record.cpu == path[0].cpu), "two processors are in one session");
            let Summary { edges, transfers } = self.program.summary(path)?;
            let printed = self.lines().find_map(|line| line.strip_prefix(&format!("cpu {number} ")));
            let printed = printed.with_context(|| format!("processor {number} has printed nothing"))?;
            let (bytes_and_pmis, rest) = printed.split_once(" instructions=").context("no instructions")?;
            let (count, hash, branches) = (addresses.len(), hash(&addresses), transfers.len());
            let executed = format!("{count} hash={hash:#x} edges={edges} branches={branches}");
            ensure!(rest == executed, "processor {number} printed {rest}, executed {executed}");

            let last = transfers[branches.saturating_sub(16)..].iter();
            let last: Vec<_> = last.map(|(from, to)| format!("went {number} {from:#x} {to:#x}")).collect();
            let went: Vec<_> =
                self.lines().filter(|line| line.starts_with(&format!("went {number} "))).collect();
            ensure!(went == last, "processor {number} printed {went:#?}, executed {last:#?}");
            let (_, served) = bytes_and_pmis.split_once(" pmis=").context("no PMIs")?;
            let served: u64 = served.parse().context("no number of PMIs")?;
            ensure!(served > 0, "no NMI has interrupted processor {number}, so that this has shown little");
            (total, pmis) = (total + count, pmis + served);
        }
        let mut cpus: Vec<u16> = (0..PROCESSORS)
            .filter_map(|number| Some(self.outcome.truth.session(1 + number).first()?.cpu))
            .collect();
        cpus.sort_unstable();
        ensure!(cpus == [0, 1, 2, 3], "these processors have traced: {cpus:?}");
        Ok(format!("{total} instructions of {PROCESSORS} processors with {pmis} PMIs are the truth's"))
    }

    /// Checks that the whole execution of a session was decoded while it was recorded, in the line that begins with
    /// `prefix`.
    fn live(&self, session: u16, prefix: &str) -> Result<String> {
        let path = self.outcome.truth.session(session);
        let addresses: Vec<u64> = path.iter().map(|record| record.rip).collect();
        let calls = self.program.call_instructions(path)?.len();
        let printed =
            self.lines().find_map(|line| line.strip_prefix(prefix)).context("nothing was printed")?;
        let (served, rest) = printed.split_once(' ').context("no instructions")?;
        let (count, hash) = (addresses.len(), hash(&addresses));
        ensure!(
            rest == format!("instructions={count} hash={hash:#x} calls={calls}"),
            "printed {rest}, executed {count} hash={hash:#x} calls={calls}"
        );
        ensure!(served != "0", "no NMI has interrupted it, so that this has shown little");
        Ok(format!("{count} instructions and {calls} calls with {served} PMIs are the truth's"))
    }

    /// Checks the example in C: the calls of a function, all instructions of that session, and a live trace.
    fn in_c(&self) -> Result<String> {
        let calls = self.calls(1)?;
        let root =
            calls.iter().position(|call| call.name == "work").context("the function was not called")?;
        let depth = calls[root].depth;
        let executed = calls[root..].iter().take_while(|call| call.depth > depth || **call == calls[root]);
        let executed: Vec<_> =
            executed.map(|call| format!("call {} {:#x}", call.depth - depth + 1, call.to)).collect();
        let printed: Vec<_> = self.lines().filter(|line| line.starts_with("call ")).collect();
        ensure!(printed == executed, "printed {printed:?}, executed {executed:?}");
        ensure!(executed.len() > 50, "{} calls show little", executed.len());

        let path = self.outcome.truth.session(1);
        let addresses: Vec<u64> = path.iter().map(|record| record.rip).collect();
        let (count, hash, calls) = (addresses.len(), hash(&addresses), executed.len());
        let executed = format!("snapshot pmis=0 instructions={count} hash={hash:#x} calls={calls}");
        let printed = self.lines().find(|line| line.starts_with("snapshot ")).unwrap_or_default();
        ensure!(printed == executed, "printed {printed}, executed {executed}");
        let live = self.live(2, "live pmis=")?;
        Ok(format!("the {calls} calls and {count} instructions of a function are the truth's; {live}"))
    }

    /// Checks that each run has as many edges as the truth, and as many new ones.
    fn fuzz_target(&self) -> Result<String> {
        let mut seen: HashSet<u16> = HashSet::new();
        let mut runs = 0_u16;
        for line in self.lines().filter_map(|line| line.strip_prefix("edges ")) {
            runs += 1;
            let edges = self.program.edges(self.outcome.truth.session(runs))?;
            let before = seen.len();
            seen.extend(&edges);
            let executed = format!("{runs} {} {}", edges.len(), seen.len() - before);
            ensure!(line == executed, "printed {line:?}, executed {executed:?}");
        }
        ensure!(runs == 200, "{runs} runs instead of 200");
        Ok(format!("the {} edges of {runs} runs are the truth's, each new one where it was new", seen.len()))
    }
}

/// The function by which the example `panic` panics.
const PANIC: &str = "core::panicking::panic_bounds_check";

/// Adds the calls of the example's function `tower`, which calls itself for the height below and for half the height.
fn tower(name: &str, height: u32, depth: i64, calls: &mut Vec<(i64, String)>) {
    calls.push((depth, name.to_owned()));
    if height > 0 {
        tower(name, height - 1, depth + 1, calls);
        tower(name, height / 2, depth + 1, calls);
    }
}
