//! Counts what a program executes, without a trace: how often each block began, from the tables that the plugin fills.

use super::{
    super::{
        Ending, NotFollowed, RecordError, RecordOptions, ThreadInfo, block::Block, maps::TaskMapping,
        signals::Signals,
    },
    LONGEST_FORK, PAUSE, Prepared, ending_of,
    new_rings::NewRings,
    pass_on,
    plugin::{
        rings::Rings,
        wire::{Kind, MESSAGE, Ring, bytes},
    },
    process::Process,
    start,
    thread::{comm, text},
};
use pugmark_decoder_core::insn::{self, Class};
use pugmark_model::ExecMode;
use std::{
    collections::BTreeMap,
    process::Child,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::sleep,
    time::{Duration, Instant},
};

/// The counts of a program and of all that it has started.
#[derive(Clone, Debug)]
pub struct Counted {
    /// The threads, in the order in which they began. One that executes another program is another one from there on.
    pub threads: Vec<CountedThread>,
    /// The end of the program.
    pub ending: Ending,
    /// The programs that were executed but not counted.
    pub not_followed: Vec<NotFollowed>,
    /// The number of threads and processes that could not be counted.
    pub uncounted: u32,
    /// The processes that were killed before their counts were known, and those that handle faults of their own
    /// instructions: each fault counts the rest of its block, too.
    pub killed: Vec<i32>,
    /// See `killed`.
    pub handling_faults: Vec<i32>,
}

/// The counts of a thread.
#[derive(Clone, Debug, Default)]
pub struct CountedThread {
    /// The thread.
    pub thread: ThreadInfo,
    /// The path of its program.
    pub program: String,
    /// The address of each instruction that was executed, and how often it was; in the order of the addresses.
    pub instructions: Vec<(u64, u64)>,
    /// The same of branches alone, taken or not, without system calls.
    pub branches: Vec<(u64, u64)>,
    /// The same of call instructions alone.
    pub calls: Vec<(u64, u64)>,
    /// The files that were mapped: the name, the offset there, the address, the length.
    pub mapped: Vec<(String, u64, u64, u64)>,
}

/// A program whose executions are counted.
struct Counting {
    rings: Arc<Rings>,
    child: Child,
    ending: Option<Ending>,
    new_rings: NewRings,
    processes: Vec<Process>,
    threads: Vec<(Ring, CountedThread)>,
    /// The programs that threads execute outside of the emulator, unless something more comes from them.
    outside: BTreeMap<u32, NotFollowed>,
    tables: Vec<Ring>,
    /// Since when all known processes have ended.
    over_since: Option<Instant>,
}

/// The longest time between two looks at a program.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// Runs the program in the emulator and counts what it executes.
pub(in super::super) fn count(
    options: &RecordOptions,
    Prepared { shared, command }: Prepared,
) -> Result<Counted, RecordError> {
    let (child, signals) = start(options, command)?;
    let mut counting = Counting {
        rings: shared.rings.clone(),
        child,
        ending: None,
        new_rings: NewRings::default(),
        processes: vec![],
        threads: vec![],
        outside: BTreeMap::new(),
        tables: vec![],
        over_since: None,
    };
    let mut pause = PAUSE;
    while counting.read() || !counting.has_ended()? {
        if let Some(signal) = signals.as_ref().and_then(Signals::take) {
            // The counts go on with all that the program does about it.
            pass_on(signal, &counting.processes, counting.ending.is_none().then(|| counting.child.id()));
        }
        // A look at little takes as long as one at much. The rings have room for what is translated meanwhile.
        sleep(pause);
        pause = LONGEST_PAUSE.min(2 * pause);
    }
    // Something may have been written between the last look and the end.
    while counting.read() {}
    Ok(counting.finish())
}

impl Counting {
    /// Reads what there is. Returns whether there was anything.
    fn read(&mut self) -> bool {
        let mut any = self.find_rings();
        for process in &mut self.processes {
            any |= process.read();
        }
        for (ring, thread) in &mut self.threads {
            any |= read_thread(ring, thread, &mut self.outside);
        }
        if any {
            self.processes.iter_mut().for_each(|process| process.silent_since = None);
        }
        any
    }

    fn find_rings(&mut self) -> bool {
        let mut any = false;
        for (ring, number) in self.new_rings.take(&self.rings) {
            let is_known = |(pid, generation)| {
                self.processes
                    .iter()
                    .any(|process| (process.pid(), process.generation()) == (pid, generation))
            };
            if Process::parent(&ring).is_some_and(|parent| !is_known(parent)) {
                // The ring of its process's parent was filled in after it was looked at.
                self.new_rings.put_back(number);
                continue;
            }
            any = true;
            let header = ring.header();
            if header.table.load(Relaxed) != 0 {
                self.tables.push(ring);
            } else if header.tid.load(Relaxed) == 0 {
                self.add_process(ring);
            } else {
                let [pid, tid] = [&header.pid, &header.tid].map(|number| number.load(Relaxed).cast_signed());
                let thread = ThreadInfo { pid, tid, ..ThreadInfo::default() };
                self.threads.push((ring, CountedThread { thread, ..CountedThread::default() }));
            }
        }
        any
    }

    fn add_process(&mut self, ring: Ring) {
        let pid = ring.header().pid.load(Relaxed);
        self.processes
            .iter_mut()
            .filter(|process| process.pid() == pid)
            .for_each(|process| process.over = true);
        let parent = Process::parent(&ring).and_then(|(pid, generation)| {
            let is_it = |process: &&mut Process| (process.pid(), process.generation()) == (pid, generation);
            self.processes.iter_mut().find(is_it)
        });
        let process = match parent {
            Some(parent) => {
                parent.children += 1;
                parent.read();
                Process::new(ring, Some(parent))
            }
            None => Process::new(ring, None),
        };
        self.processes.push(process);
    }

    /// Looks whether the program and all that it has started have ended.
    fn has_ended(&mut self) -> Result<bool, RecordError> {
        if self.ending.is_none() {
            self.ending = ending_of(&mut self.child)?;
        }
        let main = (self.child.id(), self.ending.is_some());
        self.processes.iter_mut().for_each(|process| process.look(main));
        if self.ending.is_none() || !self.processes.iter().all(|process| process.over) {
            self.over_since = None;
            return Ok(false);
        }
        let since = *self.over_since.get_or_insert_with(Instant::now);
        Ok(self.unreported() == 0 || since.elapsed() >= LONGEST_FORK)
    }

    /// Returns the number of forked processes that have made no rings.
    fn unreported(&self) -> u32 {
        self.processes.iter().map(Process::unreported).sum()
    }

    fn finish(self) -> Counted {
        let unreported = self.unreported();
        let Self { mut threads, outside, tables, processes, ending, rings, .. } = self;
        for process in &processes {
            let blocks = CodeOfBlocks::of(process);
            let (pid, generation) = (process.pid(), process.generation());
            let is_of = |ring: &Ring| {
                let header = ring.header();
                (header.pid.load(Relaxed), header.generation.load(Relaxed)) == (pid, generation)
            };
            for (ring, thread) in threads.iter_mut().filter(|(ring, _)| is_of(ring)) {
                let tid = ring.header().tid.load(Relaxed);
                let own = |table: &&Ring| is_of(table) && table.header().tid.load(Relaxed) == tid;
                blocks.count(tables.iter().filter(own), thread);
            }
        }
        let pids = |is_wanted: &dyn Fn(&Process) -> bool| -> Vec<i32> {
            let wanted = processes.iter().filter(|process| is_wanted(process));
            wanted.map(|process| process.pid().cast_signed()).collect()
        };
        let killed = pids(&|process| {
            let shown = process.ring.header().counts_shown.load(Relaxed) != 0;
            let counts = process.ring.header().counts_by_processor.load(Relaxed) != 0;
            counts && !shown
        });
        Counted {
            killed,
            handling_faults: pids(&|process| process.ring.header().fault_handled.load(Relaxed) != 0),
            uncounted: unreported + rings.header().refused.load(Relaxed),
            threads: threads.into_iter().map(|(_, thread)| thread).collect(),
            ending: ending.unwrap_or(Ending::Exit(0)),
            not_followed: outside.into_values().collect(),
        }
    }
}

/// Reads a thread's messages. Returns whether there were any.
fn read_thread(
    ring: &mut Ring,
    thread: &mut CountedThread,
    outside: &mut BTreeMap<u32, NotFollowed>,
) -> bool {
    let mut any = false;
    while let Some(begin) = ring.peek() {
        any = true;
        if begin & MESSAGE == 0 {
            ring.take_word();
            continue;
        }
        let (kind, words) = ring.take(begin);
        let tid = thread.thread.tid.cast_unsigned();
        outside.remove(&tid);
        match (kind, words) {
            (Some(Kind::Program), words) => {
                let text = bytes(&words);
                let mut words =
                    text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
                thread.program = words.next().unwrap_or_default();
                thread.thread.comm = comm(&words.next().unwrap_or_default());
                thread.thread.arguments = words.filter(|word| !word.is_empty()).collect();
            }
            (Some(Kind::Name), words) => thread.thread.comm = text(&words),
            (Some(Kind::NotFollowed), words) => {
                outside.insert(tid, NotFollowed { pid: thread.thread.pid, program: text(&words) });
            }
            (Some(Kind::Maps), words) => {
                for mapping in TaskMapping::parse(&text(&words)).into_iter().filter(TaskMapping::is_file) {
                    let TaskMapping { start, end, offset, name, .. } = mapping;
                    let mapping = (name, offset, start, end - start);
                    if !thread.mapped.contains(&mapping) {
                        thread.mapped.push(mapping);
                    }
                }
            }
            _ => {}
        }
    }
    ring.release();
    any
}

/// The instructions of a process's blocks, as far as they are executed when the block is.
struct CodeOfBlocks(Vec<Vec<(u64, Class)>>);

impl CodeOfBlocks {
    fn of(process: &Process) -> Self {
        Self((0..).map_while(|number| process.known_block(number)).map(|block| executed(&block)).collect())
    }

    /// Fills in the counts of a thread, which its tables have by block.
    fn count<'t>(&self, tables: impl Iterator<Item = &'t Ring>, thread: &mut CountedThread) {
        let mut executions: Vec<(u64, u64, Class)> = vec![];
        for table in tables {
            let first = (table.header().table.load(Relaxed) as usize - 1) * Ring::NUMBERS / 2;
            for (block, numbers) in self.0.iter().skip(first).zip(table.numbers().chunks_exact(2)) {
                let [count, repeated] = [&numbers[0], &numbers[1]].map(|number| number.load(Relaxed));
                if count == 0 && repeated == 0 {
                    continue;
                }
                executions.extend(block.iter().map(|(ip, class)| (*ip, count, *class)));
                if let (Some((_, last, _)), true) = (executions.last_mut(), !block.is_empty()) {
                    *last = count.wrapping_sub(repeated);
                }
            }
        }
        // An instruction can be in several blocks, and an address can have several instructions, one after the other.
        executions.sort_unstable_by_key(|(ip, ..)| *ip);
        let of = |is_wanted: &dyn Fn(Class) -> bool| {
            let mut counts: Vec<(u64, u64)> = vec![];
            for (ip, count, _) in executions.iter().filter(|(.., class)| is_wanted(*class)) {
                match counts.last_mut() {
                    Some((known, sum)) if known == ip => *sum = sum.wrapping_add(*count),
                    _ => counts.push((*ip, *count)),
                }
            }
            counts
        };
        thread.instructions = of(&|_| true);
        thread.branches = of(&is_branch);
        thread.calls = of(&|class| matches!(class, Class::NearCall | Class::IndirectCall));
    }
}

fn is_branch(class: Class) -> bool {
    use Class::{CondJump, FarJump, FarReturn, IndirectCall, IndirectJump, NearCall, NearJump, NearReturn};
    matches!(
        class,
        CondJump | NearJump | NearCall | IndirectJump | IndirectCall | NearReturn | FarJump | FarReturn
    )
}

/// Returns the instructions that are executed when a block is.
///
/// The emulator takes back an instruction that reaches into the next page, unless it is the first one: it begins a
/// block of its own. QEMU 7.2 reports it all the same, as far as it has read it: not all of what is in the first page.
fn executed(block: &Block) -> Vec<(u64, Class)> {
    const PAGE: u64 = 4096;
    let class = |n| {
        let ip = block.ip(n);
        insn::decode(block.instruction(n), ExecMode::Bits64, ip).map(|insn| insn.class)
    };
    let last = block.len() - 1;
    let is_cut = || PAGE - block.ip(last) % PAGE < insn::MAX_LEN as u64 && class(last).is_err();
    let reaches = (block.start ^ (block.end() - 1)) & !(PAGE - 1) != 0;
    let count = block.len() - usize::from(last > 0 && (reaches || is_cut()));
    (0..count).map(|n| (block.ip(n), class(n).unwrap_or(Class::Other))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_that_reaches_into_the_next_page_is_executed_in_a_block_of_its_own() {
        let addresses = |start, instructions: &[&[u8]]| -> Vec<u64> {
            let lengths: Vec<u8> = instructions.iter().map(|bytes| bytes.len() as u8).collect();
            let block = Block::read(start, &lengths, &instructions.concat()).expect("a block");
            executed(&block).into_iter().map(|(ip, _)| ip).collect()
        };
        let (nop, jump, cut): (&[u8], &[u8], &[u8]) = (&[0x90], &[0xeb, 0x10], &[0xeb]);
        for (start, instructions, expected) in [
            (0x1000, &[nop, jump][..], &[0x1000, 0x1001][..]),
            // It ends with the page.
            (0x1ffd, &[nop, jump], &[0x1ffd, 0x1ffe]),
            (0x1ffe, &[nop, jump], &[0x1ffe]),
            (0x1ffe, &[nop, cut], &[0x1ffe]),
            // An instruction of ten bytes.
            (0x1ffa, &[nop, &[0x48, 0xb8]], &[0x1ffa]),
            (0x1fff, &[jump], &[0x1fff]),
        ] {
            assert_eq!(addresses(start, instructions), expected, "{start:#x} {instructions:02x?}");
        }
    }
}
