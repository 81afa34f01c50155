//! The memory that a visit works in.

use super::{
    branches::{BranchCursor, BranchOffsets, BranchesAhead},
    calls::CachedCalls,
};
use crate::flow::Start;

/// The branches that were read ahead, and other working memory of a visit. It is beside the decoder's state and not on
/// the stack, because a handler may have a small stack; nothing in it outlives a visit.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(super) ahead: BranchesAhead,
    pub(super) offsets: BranchOffsets,
    pub(super) calls: CachedCalls,
    /// The start of the branches that were read ahead.
    pub(super) start: Start,
    pub(super) last: LastPart,
    /// The start of the last sequences.
    pub(super) sequences: Start,
}

/// The branches that contain the last block: their start, and their ends without and with the last branch.
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
            calls: CachedCalls::new(),
            start: Start::UNKNOWN,
            last: LastPart { start: Start::UNKNOWN, before_last: FIRST, cursor: FIRST },
            sequences: Start::UNKNOWN,
        }
    }
}
