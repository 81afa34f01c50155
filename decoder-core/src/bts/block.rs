//! Decodes branch records to blocks of instructions.

use super::straight_line::{EarlyEnd, EndCause, FirstBlock, StraightLines};
use super::{BranchRecord, BranchRecords, Entry, Options};
use crate::{
    Error, ErrorKind,
    block::{Block, BlockItem, Insns},
    event::{Event, EventKind, Stamp},
    image::Image,
    insn::{Class, Insn, Op},
};

/// The decoder of the blocks that branch records describe and the events between them, in order.
///
/// An [`Enabled`](EventKind::Enabled) event reports the start of a run without gaps. A block ends with the branch of a
/// record, or before an interrupt or exception: then [`AsyncBranch`](EventKind::AsyncBranch) follows. INT n, INT3, INT1
/// and INTO count as interrupts, as in the flow of Intel PT. After an error, the next call continues after the reported
/// place.
#[derive(Clone, Debug)]
pub struct BtsBlockDecoder<'a> {
    records: BranchRecords<'a>,
    pub(super) code: StraightLines<'a>,
    options: Options<'a>,
    /// The address where execution continues, if known.
    pub(super) position: Option<RecordPosition>,
    /// A record that is read again after an error, as the first of a run.
    pub(super) retry: Option<(u64, BranchRecord)>,
    /// The unreported rest of the last record: this event, then the blocks of `rest`, then the events of `after`.
    before: Option<Event>,
    pub(super) rest: Option<StraightRun>,
    pub(super) after: [Option<Event>; 2],
    /// The instruction of the last record's branch.
    pub(super) branched: Option<u64>,
    /// The way in which the last record may have left the traced privilege level.
    pub(super) level_exit: LevelExit,
    ended: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RecordPosition {
    pub(super) at: u64,
    /// Set if a run without gaps begins here; true if it continues where another one ended.
    pub(super) begins: Option<Resumed>,
}

pub(super) type Resumed = bool;

/// Straight-line code that leads to its goal.
#[derive(Clone, Copy, Debug)]
pub(super) struct StraightRun {
    pub(super) at: u64,
    pub(super) goal: u64,
    /// True if the instruction at the goal was executed too.
    pub(super) with_goal: bool,
    /// The first block from `at`, if it was decoded already.
    pub(super) first: Option<FirstBlock>,
}

/// The place where execution continues after a record that led to a privilege level that is not traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LevelExit {
    /// The record led to no such level.
    NoExit,
    /// This address, when the handler returns.
    ReturnsTo(u64),
    /// An unknown place: the record's branch was a far return.
    ReturnUnknown,
}

/// The instruction at the origin of a record.
enum Origin {
    /// It branched.
    Branch(Insn),
    /// It was not executed.
    Interrupted(Insn),
}

impl<'a> BtsBlockDecoder<'a> {
    /// Creates a decoder at the start of `records`.
    #[must_use]
    pub fn new(records: BranchRecords<'a>, image: Image<'a>, options: Options<'a>) -> Self {
        Self {
            records,
            code: StraightLines::new(image, options.cr3, options.mode, options.modes),
            options,
            position: options.start.map(begin),
            retry: None,
            before: None,
            rest: None,
            after: [None; 2],
            branched: None,
            level_exit: LevelExit::NoExit,
            ended: false,
        }
    }

    /// Returns the offset of the next record, in bytes from the first one.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.records.offset()
    }

    /// Returns the instructions of a block that was reported.
    #[must_use]
    pub fn insns(&self, block: &Block) -> Insns<'a> {
        Insns::new(self.code.image(), self.code.cr3(), block)
    }

    /// Returns the next block or event, or `None` after the last record.
    ///
    /// # Errors
    /// The error has the offset of the wrong record. No block or event of that record was reported. The next call
    /// continues after the record, or with it if only the code that leads to it is wrong.
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot tell its end from an error by `?`")]
    pub fn next(&mut self) -> Result<Option<BlockItem>, Error> {
        loop {
            if let Some(event) = self.before.take() {
                return Ok(Some(BlockItem::Event(event)));
            }
            if let Some(block) = self.next_block().map_err(|kind| self.fail(kind))? {
                return Ok(Some(BlockItem::Block(block)));
            }
            if let Some(event) = self.after.iter_mut().find_map(Option::take) {
                return Ok(Some(BlockItem::Event(event)));
            }
            if let Some((offset, record)) = self.retry.take() {
                self.follow(offset, record)?;
                continue;
            }
            match self.records.next() {
                Some(Ok((offset, Entry::Branch(record)))) => {
                    self.follow(offset, record)?;
                }
                Some(Ok((offset, Entry::Lost { .. }))) => {
                    self.lose();
                    self.after = [Some(self.event(EventKind::Overflow, None, offset)), None];
                }
                Some(Err(error)) => {
                    self.lose();
                    return Err(error);
                }
                None if self.ended => return Ok(None),
                None => {
                    self.ended = true;
                    self.finish()?;
                }
            }
        }
    }

    /// Returns the next block of `rest`.
    fn next_block(&mut self) -> Result<Option<Block>, ErrorKind> {
        let Some(run) = self.rest.take() else { return Ok(None) };
        let first = match run.first {
            Some(first) => first,
            None => self.code.reach(run.at, run.goal).map_err(|end| unreachable_at(run.at, run.goal, end))?,
        };
        let mut block = first.block;
        if first.next != run.goal {
            self.rest = Some(StraightRun { at: first.next, first: None, ..run });
        } else if run.with_goal && !self.code.extend(&mut block, run.goal)? {
            self.rest = Some(StraightRun { at: run.goal, first: None, ..run });
        }
        Ok((block.insns > 0).then_some(block))
    }

    /// Follows a record from the current position to its target.
    fn follow(&mut self, offset: u64, record: BranchRecord) -> Result<(), Error> {
        let BranchRecord { from, to, .. } = record;
        let position = self.position.take().unwrap_or(begin(from));
        let (at, fail) = (position.at, |kind| Error { offset, kind });
        match self.code.reach(at, from) {
            Ok(first) => {
                let run = StraightRun { at, goal: from, with_goal: false, first: Some(first) };
                self.depart(offset, record, run).map_err(fail)?;
            }
            Err(_) if self.traps(from, to) => {
                self.after = [Some(self.event(EventKind::AsyncBranch { from: at }, Some(to), offset)), None];
                self.arrive(to, None, LevelExit::ReturnsTo(at));
            }
            Err(_) if self.options.one_level && self.bridge(offset, record, at) => {}
            Err(end) => {
                // If neither end of the code between the records is in the image, report one error, not two.
                if matches!(end.cause, EndCause::Code(_)) && self.code.insn_at(from).is_err() {
                    self.begin(to);
                } else {
                    self.retry = Some((offset, record));
                }
                return Err(fail(unreachable_at(at, from, end)));
            }
        }
        if let Some(resumed) = position.begins {
            self.before = Some(self.event(EventKind::Enabled { resumed }, Some(at), offset));
        }
        Ok(())
    }

    /// Goes to the origin of a record along `run`, which leads there, and from there to its target.
    fn depart(&mut self, offset: u64, record: BranchRecord, run: StraightRun) -> Result<(), ErrorKind> {
        let BranchRecord { from, to, .. } = record;
        match self.classify(from, to) {
            Ok(Origin::Branch(insn)) => {
                let level_exit = match insn.class {
                    Class::FarCall => LevelExit::ReturnsTo(insn.next(from)),
                    Class::FarReturn => LevelExit::ReturnUnknown,
                    _ => LevelExit::NoExit,
                };
                self.rest = Some(StraightRun { with_goal: true, ..run });
                self.arrive(to, Some(from), level_exit);
            }
            Ok(Origin::Interrupted(insn)) => {
                let back = if is_software_interrupt(insn.op) { insn.next(from) } else { from };
                self.rest = Some(run);
                self.after = [Some(self.event(EventKind::AsyncBranch { from }, Some(to), offset)), None];
                self.arrive(to, None, LevelExit::ReturnsTo(back));
            }
            // Decoding restarts at the origin of the next record.
            Err(kind @ ErrorKind::ImpossibleBranch { .. }) => return Err(kind),
            Err(kind) => {
                self.begin(to);
                return Err(kind);
            }
        }
        Ok(())
    }

    /// Determines if the instruction at the origin of a record branched or was interrupted.
    fn classify(&mut self, from: u64, to: u64) -> Result<Origin, ErrorKind> {
        let insn = self.code.insn_at(from)?.insn;
        let to_handler =
            self.options.handlers.map(|handlers| handlers.iter().any(|range| range.contains(&to)));
        let branches = match (insn.class, insn.target) {
            _ if is_software_interrupt(insn.op) => false,
            (Class::Other | Class::Ptwrite, _) => false,
            (Class::CondJump | Class::NearJump | Class::NearCall, target) => target == Some(to),
            // A far return may also lead to a handler that was interrupted at its first instruction.
            (Class::FarReturn, _) => true,
            _ => to_handler != Some(true),
        };
        match (branches, to_handler) {
            (true, _) => Ok(Origin::Branch(insn)),
            (false, Some(false)) => Err(ErrorKind::ImpossibleBranch { from, to }),
            (false, _) => Ok(Origin::Interrupted(insn)),
        }
    }

    /// Returns true if a record is a trap after a branch: its source is the branch, which has a record already.
    fn traps(&self, from: u64, to: u64) -> bool {
        let to_handler =
            self.options.handlers.is_none_or(|list| list.iter().any(|range| range.contains(&to)));
        self.branched == Some(from) && to_handler
    }

    /// Goes from the last record to [`Options::end`].
    fn finish(&mut self) -> Result<(), Error> {
        let (Some(RecordPosition { at, begins }), Some(goal)) = (self.position.take(), self.options.end)
        else {
            return Ok(());
        };
        let first = self.code.reach(at, goal).map_err(|end| self.fail(unreachable_at(at, goal, end)))?;
        self.rest = Some(StraightRun { at, goal, with_goal: true, first: Some(first) });
        self.before =
            begins.map(|resumed| self.event(EventKind::Enabled { resumed }, Some(at), self.offset()));
        Ok(())
    }

    /// Continues at the target of a record.
    pub(super) fn arrive(&mut self, at: u64, branched: Option<u64>, level_exit: LevelExit) {
        self.position = Some(RecordPosition { at, begins: None });
        (self.branched, self.level_exit) = (branched, level_exit);
    }

    /// Starts a new run at this address.
    fn begin(&mut self, at: u64) {
        self.lose();
        self.position = Some(begin(at));
    }

    /// Forgets the place in the code: the next record starts a new run.
    pub(super) fn lose(&mut self) {
        (self.position, self.branched, self.level_exit) = (None, None, LevelExit::NoExit);
    }

    pub(super) fn event(&self, kind: EventKind, ip: Option<u64>, offset: u64) -> Event {
        Event { kind, ip, when: Stamp::default(), offset, status: false }
    }

    fn fail(&self, kind: ErrorKind) -> Error {
        Error { offset: self.offset(), kind }
    }
}

fn begin(at: u64) -> RecordPosition {
    RecordPosition { at, begins: Some(false) }
}

fn unreachable_at(at: u64, from: u64, end: EarlyEnd) -> ErrorKind {
    match end.cause {
        EndCause::Code(kind) => kind,
        EndCause::Branch(_) | EndCause::Missed => ErrorKind::UnreachableBranch { at, from, end: end.ip },
    }
}

pub(super) fn is_software_interrupt(op: Op) -> bool {
    matches!(op, Op::IntN | Op::Int3 | Op::Int1 | Op::Into)
}
