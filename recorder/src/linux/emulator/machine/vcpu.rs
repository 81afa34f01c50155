//! A virtual processor of a machine: turns the blocks that it began into what the tracing hardware sees.

use super::{
    super::{
        super::{
            Cause, Part, RecordError, RecordOptions, ThreadInfo,
            block::Exit,
            code::{Changed, CodeSnapshots},
            folder::PartNumber,
            part::OpenPart,
            pt_unit::{Clock, FIRST_TSC, PtUnit},
            switch::Switch,
        },
        hash_thread::BlockTruth,
        near_branches::{Follower, NotedBlocks},
        plugin::wire::{Kind, MESSAGE, Ring},
        thread::damaged,
    },
    blocks::{MachineBlock, MachineBlocks},
    frame::{Came, Frame},
};
use pugmark_model::Context;
use std::{cell::Cell, rc::Rc, sync::atomic::Ordering::Relaxed};

/// The number of words that are read before it is another processor's turn.
const TURN: usize = 1 << 14;

/// A virtual processor that is being recorded.
pub(super) struct Vcpu<'a> {
    options: &'a RecordOptions,
    pub(super) ring: Ring,
    info: ThreadInfo,
    pub(super) clock: Clock,
    code: CodeSnapshots,
    noted: NotedBlocks,
    pub(super) part: Option<OpenPart<BlockTruth>>,
    /// True if the processor is traced now.
    pub(super) switch: Switch,
    truth: BlockTruth,
    pub(super) parts: Vec<Part>,
    /// The block that is being executed, and its number.
    current: Option<(u32, Rc<MachineBlock>)>,
    /// The number of its instructions that began, if not all.
    partial: Option<usize>,
    /// The stack that the handler that begins with the next block has found.
    frame: Option<Frame>,
    /// CR3 in the last block, and in the next one.
    pub(super) cr3: (u64, u64),
    /// The number of instructions that are still to be traced, of all processors together.
    pub(super) budget: Rc<Cell<u64>>,
    /// The state when nothing more was to be traced.
    pub(super) stopped_at: Option<Context>,
    pub(super) over: bool,
}

impl<'a> Vcpu<'a> {
    pub(super) fn new(
        options: &'a RecordOptions,
        ring: Ring,
        (budget, switch): (Rc<Cell<u64>>, Switch),
        truth: BlockTruth,
    ) -> Self {
        let header = ring.header();
        let (pid, number) = (header.pid.load(Relaxed), header.tid.load(Relaxed));
        let info = ThreadInfo {
            pid: pid.cast_signed(),
            tid: number.cast_signed(),
            comm: format!("CPU {}", number.saturating_sub(1)),
            arguments: vec![],
        };
        Self {
            options,
            ring,
            info,
            clock: Rc::new(FIRST_TSC.into()),
            code: CodeSnapshots::default(),
            noted: NotedBlocks::default(),
            part: None,
            switch,
            truth,
            parts: vec![],
            current: None,
            partial: None,
            frame: None,
            cr3: (0, 0),
            budget,
            stopped_at: None,
            over: false,
        }
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

    /// Writes what there is of its trace, and the code that it needs, if that is much or `always`. A decoder goes on
    /// from the last packet as far as the code leaves no choice, and must not come to code that is not known yet.
    pub(super) fn write(&mut self, always: bool) -> Result<(), RecordError> {
        let can_end_here = self.current.as_ref().is_none_or(|(_, current)| {
            !matches!(current.block.exit, Exit::Next | Exit::At(_) | Exit::Repeated | Exit::Shown)
        });
        match &mut self.part {
            Some(part) if can_end_here && (always || part.has_much()) => part.write(&mut self.code),
            _ => Ok(()),
        }
    }

    /// Reads what the processor did, as far as it is its turn. Returns whether there was anything.
    pub(super) fn read(&mut self, blocks: &mut MachineBlocks) -> Result<bool, RecordError> {
        self.write(false)?;
        let mut read = 0;
        while read < TURN {
            read += self.follow_near_branches(blocks);
            let Some(word) = self.ring.peek() else {
                self.ring.release();
                return Ok(read > 0);
            };
            read += 1;
            if word & MESSAGE != 0 {
                let (kind, words) = self.ring.take(word);
                self.take_message(kind, &words)?;
                continue;
            }
            self.ring.take_word();
            if self.over || self.budget.get() == 0 {
                continue;
            }
            let block = blocks.block(word).ok_or_else(|| damaged(&format!("block {word} is not defined")))?;
            self.enter(blocks, word, block)?;
        }
        self.ring.release();
        Ok(true)
    }

    fn take_message(&mut self, kind: Option<Kind>, words: &[u32]) -> Result<(), RecordError> {
        let wide = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        match (kind, words) {
            (Some(Kind::Partial), [begun]) => self.partial = Some(*begun as usize),
            (Some(Kind::Space), [low, high]) => self.cr3.1 = wide(*low, *high),
            (Some(Kind::Time), [low, high]) => {
                self.clock.set(self.clock.get().max(FIRST_TSC + wide(*low, *high)));
            }
            (Some(Kind::Frame), [what, rest @ ..]) => self.frame = Some(Frame::new(*what, rest)),
            (kind, words) => return Err(damaged(&format!("a message {kind:?} of {} words", words.len()))),
        }
        Ok(())
    }

    /// Follows the processor while it goes from a known block to another one, as the first one's end says. Returns the
    /// number of words read.
    fn follow_near_branches(&mut self, blocks: &MachineBlocks) -> usize {
        if self.over
            || !self.switch.is_on()
            || self.partial.is_some()
            || self.frame.is_some()
            || self.cr3.0 != self.cr3.1
        {
            return 0;
        }
        let (Some(part), Some((number, block))) = (&mut self.part, &self.current) else { return 0 };
        let context = block.context(0, self.cr3.0);
        let follower = Follower {
            ring: &mut self.ring,
            pt_unit: &mut part.pt_unit,
            switch: &mut self.switch,
            budget: &self.budget,
        };
        let Some((number, executed)) = follower.follow(&self.noted, *number, context, |_| false) else {
            return 0;
        };
        self.current = blocks.known(number).map(|block| (number, block));
        executed
    }

    /// Begins a block, after what was before it.
    fn enter(
        &mut self,
        blocks: &MachineBlocks,
        number: u32,
        next: Rc<MachineBlock>,
    ) -> Result<(), RecordError> {
        self.settle(&next)?;
        self.cr3.0 = self.cr3.1;
        if self.budget.get() == 0 {
            return Ok(());
        }
        let is_seen = self.switch.is_on() || !self.is_quiet(&next.block, next.block.len());
        if is_seen && self.noted.get(number).is_none() {
            self.note(blocks, number, &next)?;
        }
        self.current = Some((number, next));
        Ok(())
    }

    /// Reports the block that has ended, because `next` begins.
    fn settle(&mut self, next: &MachineBlock) -> Result<(), RecordError> {
        let frame = self.frame.take();
        let begun = self.partial.take();
        let Some((_, before)) = self.current.take() else { return Ok(()) };
        let begun = begun.unwrap_or(before.block.len());
        let came = frame.map_or_else(
            || Came::without_frame(&before, begun, next),
            |frame| frame.place(&before, begun).unwrap_or_else(|| Came::without_frame(&before, begun, next)),
        );
        self.report(&before, came, next.context(next.block.start, self.cr3.1))
    }

    /// Notes that a block is executed, and begins a part, if there is none and the processor is traced.
    fn note(&mut self, blocks: &MachineBlocks, number: u32, next: &MachineBlock) -> Result<(), RecordError> {
        let page = |page| blocks.page(page);
        let at = next.context(next.block.start, self.cr3.0);
        if self.code.note(&next.block, &page) == Err(Changed) {
            self.end_part(at, Cause::Changed)?;
            self.code = CodeSnapshots::default();
            self.noted = NotedBlocks::default();
            // Into an empty image everything fits.
            let _ = self.code.note(&next.block, &page);
        }
        self.noted.insert(number, &next.block);
        self.truth.define(number, &next.block);
        if self.part.is_none() && self.switch.is_on() {
            self.begin_part(at)?;
        }
        Ok(())
    }

    /// Begins a part before an instruction.
    pub(super) fn begin_part(&mut self, at: Context) -> Result<(), RecordError> {
        let place = PartNumber { task: self.info.tid.cast_unsigned(), number: self.parts.len() + 1 };
        let who = (kernel(self.options), self.info.clone());
        let unit = PtUnit::start_machine(self.options, self.clock.clone(), at, self.truth.clone())?;
        self.part = Some(OpenPart::begin(self.options, place, who, vec![], unit)?);
        Ok(())
    }

    fn end_part(&mut self, at: Context, cause: Cause) -> Result<(), RecordError> {
        if let Some(mut part) = self.part.take() {
            part.pt_unit.finish_at(at)?;
            self.parts.push(part.end(self.options, cause, (at.ip, at.mode), &mut self.code)?);
        }
        Ok(())
    }

    /// Ends the tracing of this processor, wherever it is. `counted` is the number of instructions that it had begun
    /// before, or `None` if it goes on.
    pub(super) fn finish(&mut self, counted: Option<u64>, cause: Cause) -> Result<(), RecordError> {
        if std::mem::replace(&mut self.over, true) {
            return Ok(());
        }
        let at = match (self.stopped_at, self.current.take()) {
            (Some(at), _) => at,
            (None, Some((_, current))) => {
                let since =
                    counted.unwrap_or(0).saturating_sub(self.ring.header().counted_before.load(Relaxed));
                let begun = self.partial.take().unwrap_or(since as usize).min(current.block.len());
                // The last instruction that began did not end.
                let ended = begun.saturating_sub(1);
                let at = current.context(current.block.ip(ended), self.cr3.0);
                self.retire(&current, ended, at)?;
                at
            }
            (None, None) => return Ok(()),
        };
        let at = self.stopped_at.unwrap_or(at);
        self.end_part(at, cause)
    }
}

/// Returns the file of the kernel, if the emulator's arguments name one, which may have names; otherwise the emulator.
pub(super) fn kernel(options: &RecordOptions) -> String {
    let words = options.program.windows(2).find(|words| words[0] == "-kernel");
    let file = words.map(|words| &words[1]).or(options.program.first());
    file.map(|file| file.to_string_lossy().into_owned()).unwrap_or_default()
}
