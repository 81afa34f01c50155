//! A thread of the program: turns the blocks that it began into what the tracing hardware sees.

use super::{
    super::{
        Cause, Fault, NotFollowed, Part, RecordError, RecordOptions, ThreadInfo,
        block::{Block, Exit},
        code::{Changed, CodeSnapshots},
        filter::Symbols,
        folder::PartNumber,
        maps::TaskMapping,
        part::OpenPart,
        pt_unit::{Clock, FIRST_TSC, PAGE_FAULT, PtUnit, TIMER_VECTOR},
        switch::{Switch, Untraced},
    },
    DeviationKind,
    hash_thread::BlockTruth,
    near_branches::NotedBlocks,
    plugin::wire::{End, Kind, MESSAGE, Ring, bytes},
    process::Process,
};
use pugmark_model::{DeliveryKind, ExecMode};
use std::{
    cell::Cell,
    collections::{BTreeSet, VecDeque},
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
};

mod executed;

const MODE: ExecMode = ExecMode::Bits64;
/// The number of words that are read before it is another thread's turn.
const TURN: usize = 1 << 12;
/// The most bytes that an instruction has.
const LONGEST_INSTRUCTION: u64 = 15;
/// The number of items that are kept while it is unknown where a signal has interrupted the program.
const MOST_HELD: usize = 1 << 20;

/// A thread that is being recorded, with its own processor.
pub(super) struct Thread<'a> {
    options: &'a RecordOptions,
    pub(super) ring: Ring,
    /// 1 is the program's main thread; the others follow in the order in which they were started.
    number: u32,
    info: ThreadInfo,
    program: String,
    clock: Clock,
    code: CodeSnapshots,
    /// The blocks that are in `code`, by their numbers.
    noted: NotedBlocks,
    /// The blocks that were executed while nothing was traced.
    passed: NotedBlocks,
    /// True if the thread is traced now. Without a part it is not, even if the switch is on.
    switch: Switch,
    /// Its switch as it was each time when it started a thread or a process.
    switch_at_starts: Vec<Switch>,
    untraced: Untraced,
    mappings: Vec<TaskMapping>,
    /// True if `mappings` lacks functions that are to be traced, so that a part can begin only with other mappings.
    lacks_functions: bool,
    part: Option<OpenPart<BlockTruth>>,
    truth: BlockTruth,
    pub(super) parts: Vec<Part>,
    /// The block that is being executed, and its number.
    current: Option<(u32, Rc<Block>)>,
    /// The number of its instructions that began, if not all.
    partial: Option<usize>,
    held: Option<Held>,
    /// It will execute another program, unless something more comes.
    pub(super) executes: bool,
    /// True if what it did before it executed its program has been added.
    pub(super) followed: bool,
    /// The number of instructions that are still to be traced, of all threads together.
    budget: Rc<Cell<u64>>,
    /// Where it was when nothing more was to be traced.
    stopped_at: u64,
    pub(super) over: bool,
    /// The program that it executes outside of the emulator, unless something more comes.
    outside: Option<String>,
    /// The programs that it has executed there.
    pub(super) not_followed: Vec<NotFollowed>,
    /// Where the emulator is no Linux for it.
    pub(super) deviations: BTreeSet<DeviationKind>,
}

/// The items of a thread since a signal, while it is unknown where the signal has interrupted the program: it was after
/// the last block, but that block can lead to several places. The return from the handler tells.
struct Held {
    items: VecDeque<Item>,
    /// The number of handlers that have not returned.
    depth: u32,
    /// True if all handlers have returned.
    returned: bool,
}

enum Item {
    Block(u32, Rc<Block>),
    Message(Kind, Vec<u32>),
}

impl<'a> Thread<'a> {
    pub(super) fn new(
        options: &'a RecordOptions,
        number: u32,
        ring: Ring,
        (budget, switch): (Rc<Cell<u64>>, Switch),
        truth: BlockTruth,
    ) -> Self {
        let clock: Clock = Rc::new(FIRST_TSC.into());
        let (pid, tid) = (ring.header().pid.load(Relaxed), ring.header().tid.load(Relaxed));
        Self {
            options,
            ring,
            number,
            info: ThreadInfo { pid: pid.cast_signed(), tid: tid.cast_signed(), ..ThreadInfo::default() },
            program: String::new(),
            untraced: Untraced::new(clock.clone()),
            clock,
            code: CodeSnapshots::default(),
            noted: NotedBlocks::default(),
            passed: NotedBlocks::default(),
            switch,
            switch_at_starts: vec![],
            mappings: vec![],
            lacks_functions: false,
            part: None,
            truth,
            parts: vec![],
            current: None,
            partial: None,
            held: None,
            executes: false,
            followed: false,
            budget,
            stopped_at: 0,
            over: false,
            outside: None,
            not_followed: vec![],
            deviations: BTreeSet::new(),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.ring.header().pid.load(Relaxed)
    }

    pub(super) fn generation(&self) -> u32 {
        self.ring.header().generation.load(Relaxed)
    }

    /// Returns the number that the thread that takes this one's place goes on with, after it has executed another
    /// program.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the number of instructions that were traced.
    pub(super) fn count(&self) -> u64 {
        let ended: u64 = self.parts.iter().map(|part| part.truth.count()).sum();
        ended + self.part.as_ref().map_or(0, |part| part.pt_unit.count())
    }

    /// Returns the number of bytes of trace in the part that is being recorded.
    pub(super) fn bytes(&self) -> u64 {
        self.part.as_ref().map_or(0, |part| part.pt_unit.bytes())
    }

    /// Takes over from the thread that executed the program that this one begins with.
    pub(super) fn follow(&mut self, before: &mut Self) {
        self.parts = std::mem::take(&mut before.parts);
        self.clock.set(before.clock.get());
        self.switch = before.switch.clone();
        self.followed = true;
    }

    /// Returns the switch as it was when the thread started its thread or process with this number, from 1; `None` if
    /// that was not read yet.
    pub(super) fn switch_at_start(&self, number: u32) -> Option<&Switch> {
        self.switch_at_starts.get((number as usize).checked_sub(1)?)
    }

    pub(super) fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Writes what there is of its trace, and the code that it needs, if that is much or `always`.
    ///
    /// The written part may be the end: a decoder goes on from the last packet as far as the code leaves no choice, and
    /// must not come to code that is not known yet.
    pub(super) fn write(&mut self, always: bool) -> Result<(), RecordError> {
        let ends_anywhere =
            |(_, block): &(u32, Rc<Block>)| !matches!(block.exit, Exit::Next | Exit::At(_) | Exit::Repeated);
        match &mut self.part {
            Some(part) if self.current.as_ref().is_none_or(ends_anywhere) && (always || part.has_much()) => {
                part.write(&mut self.code)
            }
            _ => Ok(()),
        }
    }

    /// Reads what the thread did, as far as it is its turn. Returns whether there was anything.
    pub(super) fn read(&mut self, process: &mut Process) -> Result<bool, RecordError> {
        let mut read = 0;
        self.write(false)?;
        while read < TURN {
            read += self.follow_near_branches(process);
            let Some(word) = self.ring.peek() else {
                self.ring.release();
                return Ok(read > 0);
            };
            read += 1;
            let item = if word & MESSAGE == 0 {
                self.ring.take_word();
                if self.over {
                    continue;
                }
                match process.block(word) {
                    Some(block) => Item::Block(word, block),
                    None => return Err(damaged(&format!("block {word} is not defined"))),
                }
            } else {
                let (kind, words) = self.ring.take(word);
                if kind == Some(Kind::Begin) {
                    continue;
                }
                Item::Message(
                    kind.ok_or_else(|| damaged(&format!("message {word:#x} is of no known kind")))?,
                    words,
                )
            };
            if !self.over && self.budget.get() > 0 {
                self.handle(process, item)?;
            }
        }
        self.ring.release();
        Ok(true)
    }

    fn handle(&mut self, process: &mut Process, item: Item) -> Result<(), RecordError> {
        let Some(held) = &mut self.held else { return self.handle_now(process, item) };
        match &item {
            Item::Block(_, block) if held.returned => {
                let place = block.start;
                return self.stop_holding(process, Some(place), Some(item));
            }
            // Another signal within the handler.
            Item::Block(_, block)
                if process.is_handler(block.start) && !leads_directly(held.items.back(), block.start) =>
            {
                held.depth += 1;
            }
            Item::Message(Kind::SignalReturn, _) => {
                held.depth -= 1;
                held.returned = held.depth == 0;
            }
            _ => {}
        }
        held.items.push_back(item);
        if held.items.len() > MOST_HELD {
            return self.stop_holding(process, None, None);
        }
        Ok(())
    }

    /// Reports the signal that things were held for: it came when the program was at `place`, if that is known.
    fn stop_holding(
        &mut self,
        process: &mut Process,
        place: Option<u64>,
        last: Option<Item>,
    ) -> Result<(), RecordError> {
        let Some(held) = self.held.take() else { return Ok(()) };
        if let Some((_, block)) = self.current.take() {
            let place = place.filter(|place| block.can_lead_to(*place)).unwrap_or_else(|| block.end());
            self.retire(&block, block.len(), place)?;
            self.deliver(DeliveryKind::Interrupt, TIMER_VECTOR, place)?;
        }
        held.items.into_iter().chain(last).try_for_each(|item| self.handle(process, item))
    }

    fn handle_now(&mut self, process: &mut Process, item: Item) -> Result<(), RecordError> {
        match item {
            Item::Block(number, block) => {
                (self.executes, self.outside) = (false, None);
                if self.budget.get() == 0 {
                    return Ok(());
                }
                if !self.settle(process, &block)? {
                    // It is held.
                    let items = [Item::Block(number, block)].into();
                    self.held = Some(Held { items, depth: 1, returned: false });
                    return Ok(());
                }
                if self.budget.get() == 0 {
                    return Ok(());
                }
                if !self.switch.is_on() && self.is_quiet(&block, block.len()) {
                    if self.passed.get(number).is_none() {
                        self.passed.insert(number, &block);
                    }
                } else if self.noted.get(number).is_none() {
                    self.note(process, number, &block)?;
                }
                self.current = Some((number, block));
            }
            Item::Message(kind, words) => self.handle_message(process, kind, &words)?,
        }
        Ok(())
    }

    fn handle_message(
        &mut self,
        process: &mut Process,
        kind: Kind,
        words: &[u32],
    ) -> Result<(), RecordError> {
        match (kind, words) {
            (Kind::Partial, [begun]) => self.partial = Some(*begun as usize),
            (Kind::Handler, [signal, low, high]) => {
                process.set_handler(*signal, u64::from(*low) | u64::from(*high) << 32);
            }
            (Kind::Time, [low, high]) => {
                let time = FIRST_TSC + (u64::from(*low) | u64::from(*high) << 32);
                self.clock.set(self.clock.get().max(time));
            }
            (Kind::Program, words) => {
                let text = bytes(words);
                let mut words =
                    text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
                self.program = words.next().unwrap_or_default();
                let called = words.next().unwrap_or_default();
                self.info.arguments = words.collect();
                // The text ends with a zero and is padded with zeros.
                while self.info.arguments.last().is_some_and(String::is_empty) {
                    self.info.arguments.pop();
                }
                self.info.comm = comm(&called);
            }
            (Kind::Name, words) => {
                self.info.comm = text(words);
                if let Some(part) = &mut self.part {
                    part.thread.comm.clone_from(&self.info.comm);
                }
            }
            (Kind::Maps, words) => {
                self.mappings = TaskMapping::parse(&text(words));
                // The emulator only reads the program's code, so it maps nothing to be executed.
                self.mappings.iter_mut().for_each(|mapping| mapping.executable = true);
                self.lacks_functions = false;
                if !self.switch.finds_by_address() {
                    self.switch.find_places(&self.mappings, &self.program);
                }
                match &mut self.part {
                    Some(part) => part.note_mappings(&self.mappings),
                    None if self.switch.is_on() => self.begin_part()?,
                    None => {}
                }
            }
            (Kind::Starts, [_]) => self.switch_at_starts.push(self.switch.clone()),
            (Kind::Exec, _) => self.executes = true,
            (Kind::Exit, _) => self.finish(process, Cause::Over)?,
            (Kind::Call, _) => {
                if let Some((_, block)) = self.current.take_if(|(_, block)| block.exit != Exit::OldCall) {
                    let begun = self.partial.take().unwrap_or(block.len());
                    self.retire(&block, begun, block.end())?;
                }
            }
            (Kind::Deviates, words) => self.deviations.extend(DeviationKind::read(words)),
            (Kind::NotFollowed, path) => self.outside = Some(text(path)),
            (Kind::SignalReturn, _) => {}
            (kind, words) => {
                return Err(damaged(&format!("a message {kind:?} of {} words", words.len())));
            }
        }
        Ok(())
    }

    /// Reports the block that has ended, because `next` begins. Returns false if it is not known how it has ended.
    fn settle(&mut self, process: &Process, next: &Block) -> Result<bool, RecordError> {
        let Some((number, block)) = self.current.take() else { return Ok(true) };
        let begun = self.partial.take().unwrap_or(block.len());
        let place = next.start;
        if begun < block.len() {
            let Some(last) = begun.checked_sub(1) else { return Ok(true) };
            // An instruction that reaches into the next page is taken back, and begins a block of its own.
            if place == block.ip(begun) && !process.is_handler(place) {
                self.retire(&block, begun, place)?;
                return Ok(true);
            }
            let at = block.ip(last);
            self.retire(&block, last, at)?;
            // The emulator begins an instruction again that it has to execute in another way.
            if place != at {
                self.deliver(DeliveryKind::Fault, PAGE_FAULT, at)?;
            }
            return Ok(true);
        }
        let last = block.len() - 1;
        if block.can_lead_to(place) {
            match block.exit {
                Exit::OldCall => self.deliver(DeliveryKind::Fault, PAGE_FAULT, block.start)?,
                Exit::Interrupt(vector) => {
                    self.retire(&block, last, block.ip(last))?;
                    self.deliver(DeliveryKind::SoftwareInterrupt, vector, block.ip(last))?;
                }
                Exit::Repeated if place == block.ip(last) => self.retire(&block, last, place)?,
                Exit::Anywhere if process.is_handler(place) => {
                    self.current = Some((number, block));
                    return Ok(false);
                }
                _ => self.retire(&block, block.len(), place)?,
            }
            return Ok(true);
        }
        match block.exit {
            _ if process.is_fault_handler(place) => {
                self.retire(&block, last, block.ip(last))?;
                // Which exception it was is not in the trace.
                self.deliver(DeliveryKind::Fault, PAGE_FAULT, block.ip(last))?;
            }
            Exit::Repeated => {
                self.retire(&block, last, block.ip(last))?;
                self.deliver(DeliveryKind::Interrupt, TIMER_VECTOR, block.ip(last))?;
            }
            Exit::NextOr(_) => {
                self.current = Some((number, block));
                return Ok(false);
            }
            Exit::At(target) => {
                self.retire(&block, block.len(), target)?;
                self.deliver(DeliveryKind::Interrupt, TIMER_VECTOR, target)?;
            }
            _ => {
                self.retire(&block, block.len(), block.end())?;
                self.deliver(DeliveryKind::Interrupt, TIMER_VECTOR, block.end())?;
            }
        }
        Ok(true)
    }

    /// Notes that a block is executed.
    fn note(&mut self, process: &Process, number: u32, block: &Block) -> Result<(), RecordError> {
        let page = |page| process.page(page);
        if block.exit == Exit::OldCall {
            return Ok(());
        }
        if self.code.note(block, &page) == Err(Changed) {
            self.end_part(block.start, Cause::Changed)?;
            self.code = CodeSnapshots::default();
            self.noted = NotedBlocks::default();
            // Into an empty image everything fits.
            let _ = self.code.note(block, &page);
        }
        self.noted.insert(number, block);
        self.truth.define(number, block);
        if self.part.is_none() && !self.lacks_functions && self.switch.is_on() {
            self.begin_part()?;
        }
        Ok(())
    }

    /// Begins a part, if all functions to trace are mapped.
    fn begin_part(&mut self) -> Result<(), RecordError> {
        if self.over {
            return Ok(());
        }
        let symbols = if self.options.ranges.is_empty() {
            Symbols::default()
        } else {
            Symbols::new(&self.mappings, &self.program)
        };
        let ranges: Option<Vec<_>> =
            self.options.ranges.iter().map(|range| range.resolve(&symbols)).collect();
        self.lacks_functions = ranges.is_none();
        if let Some(ranges) = ranges {
            let place = PartNumber { task: self.number, number: self.parts.len() + 1 };
            let who = (self.program.clone(), self.info.clone());
            let time = (self.clock.clone(), self.untraced.in_kernel);
            let unit = PtUnit::start(self.options, &ranges, time, self.truth.clone())?;
            let mut part = OpenPart::begin(self.options, place, who, ranges, unit)?;
            part.note_mappings(&self.mappings);
            self.part = Some(part);
        }
        Ok(())
    }

    fn end_part(&mut self, at: u64, cause: Cause) -> Result<(), RecordError> {
        if let Some(part) = self.part.take() {
            self.parts.push(part.end(self.options, cause, (at, MODE), &mut self.code)?);
        }
        Ok(())
    }

    /// Reports the block that the thread was in when nothing more is known of it. Returns where it was then.
    fn leave(&mut self, process: &mut Process) -> Result<u64, RecordError> {
        self.stop_holding(process, None, None)?;
        let Some((_, block)) = self.current.take() else { return Ok(self.stopped_at) };
        let begun = self.partial.take().unwrap_or_else(|| self.begun(process, &block));
        // The last instruction that began did not end.
        let ended = begun.saturating_sub(1);
        // Unless it has led to where a signal ended the thread.
        let end = self.end(process).and_then(|end| end.ip);
        if let Some(ip) = end.filter(|ip| begun == block.len() && *ip != block.ip(ended))
            && block.can_lead_to(ip)
        {
            self.retire(&block, begun, ip)?;
            return Ok(ip);
        }
        self.retire(&block, ended, block.ip(ended))?;
        Ok(block.ip(ended))
    }

    /// Returns the number of instructions of a block that began, if nothing was written after the block.
    fn begun(&self, process: &Process, block: &Block) -> usize {
        let before = self.ring.header().counted_before.load(Relaxed);
        match self.counted(process).wrapping_sub(before) {
            begun if process.over => block.len().min(begun as usize),
            // It goes on.
            _ => 0,
        }
    }

    /// Returns the number of instructions that it has begun, as the plugin counts them.
    fn counted(&self, process: &Process) -> u64 {
        let own = self.ring.header();
        let first = own.counts_alone.load(Relaxed) == 0;
        own.counted_self.load(Relaxed) + if first { process.ring.header().counted.load(Relaxed) } else { 0 }
    }

    /// Returns the signal that has ended the thread, if it is this one that has ended its process.
    fn end(&self, process: &Process) -> Option<End> {
        self.ring.header().end.get().filter(|_| process.over)
    }

    /// Returns the access that has ended the thread's process: it was noted at the thread's last instruction, or the
    /// instruction could not be read.
    fn fault(&self, process: &Process) -> Option<Fault> {
        if !process.over {
            return None;
        }
        let end = self.end(process);
        let noted = self.ring.header().fault.get().filter(|noted| noted.counted == self.counted(process));
        if let Some(noted) = noted.filter(|noted| end.is_none_or(|end| end.signal == noted.signal)) {
            return Some(Fault { signal: noted.signal.cast_signed(), address: noted.address });
        }
        // An access has been noted; code is read without one.
        let End { signal, ip: Some(ip), cr2: Some(cr2) } = end? else { return None };
        let is_fetch = signal.cast_signed() == libc::SIGSEGV && cr2.wrapping_sub(ip) < LONGEST_INSTRUCTION;
        is_fetch.then_some(Fault { signal: libc::SIGSEGV, address: Some(cr2) })
    }

    /// Ends the tracing of this thread, wherever it is.
    pub(super) fn finish(&mut self, process: &mut Process, cause: Cause) -> Result<(), RecordError> {
        if self.over {
            return Ok(());
        }
        let at = self.leave(process)?;
        let cause = if self.executes && cause == Cause::Over { Cause::Exec } else { cause };
        let is_end = cause == Cause::Over && self.part.is_some();
        self.end_part(at, cause)?;
        let (fault, end) = (self.fault(process), self.end(process));
        if let Some(part) = self.parts.last_mut().filter(|_| is_end) {
            part.fault = fault;
            part.signal = end.map(|end| end.signal.cast_signed()).or(fault.map(|fault| fault.signal));
            part.at = end.and_then(|end| end.ip).or(part.at);
        }
        let pid = self.info.pid;
        self.not_followed.extend(self.outside.take().map(|program| NotFollowed { pid, program }));
        self.over = true;
        Ok(())
    }
}

/// Returns true if a block leads to an address without choice.
fn leads_directly(item: Option<&Item>, next: u64) -> bool {
    matches!(item, Some(Item::Block(_, block)) if match block.exit {
        Exit::At(target) => target == next,
        Exit::Called => true,
        Exit::NextOr(_) | Exit::Next => block.can_lead_to(next),
        _ => false,
    })
}

pub(super) fn text(words: &[u32]) -> String {
    let bytes = bytes(words);
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Returns the name of a thread that has not changed it: the first 15 bytes of the program's file name.
pub(super) fn comm(program: &str) -> String {
    let name = program.rsplit('/').next().unwrap_or_default();
    String::from_utf8_lossy(&name.as_bytes()[..name.len().min(15)]).into_owned()
}

pub(super) fn damaged(what: &str) -> RecordError {
    let error = std::io::Error::other(format!("what the emulator reports cannot be read: {what}"));
    RecordError::Step { ip: None, error }
}
