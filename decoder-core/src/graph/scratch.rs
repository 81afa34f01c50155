//! The memory that a visit works in.

use super::{
    branches::{BranchCursor, BranchOffsets, BranchesAhead},
    calls::GraphCalls,
};
use crate::flow::Start;

/// The branches that were read ahead, and the rest that a visit needs while it walks. It is beside the decoder's state,
/// and not on the stack, which a handler may have little of; nothing in it outlives a visit.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(super) ahead: BranchesAhead,
    pub(super) offsets: BranchOffsets,
    pub(super) calls: GraphCalls,
    /// Where the branches that were read ahead begin.
    pub(super) start: Start,
    pub(super) last: LastPart,
    /// Where the last repeats began.
    pub(super) repeats: Start,
}

/// The branches that the last block is among: where they begin, and their ends without and with the last branch.
#[derive(Debug)]
pub(super) struct LastPart {
    pub(super) start: Start,
    pub(super) before_last: BranchCursor,
    pub(super) cursor: BranchCursor,
}

impl Scratch {
    pub(crate) const fn new() -> Self {
        const FIRST: BranchCursor = BranchCursor { outcomes: 0, targets: 0 };
        Self {
            ahead: BranchesAhead::new(),
            offsets: BranchOffsets::new(),
            calls: GraphCalls::new(),
            start: Start::UNKNOWN,
            last: LastPart { start: Start::UNKNOWN, before_last: FIRST, cursor: FIRST },
            repeats: Start::UNKNOWN,
        }
    }
}
