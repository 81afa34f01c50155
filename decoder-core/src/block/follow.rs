//! The fastest path through the decoder: the blocks of a cached path, one after the other.

use super::{
    Block, BlockDecoder, Item,
    path::{End, Leg, OUTCOMES, Path},
};
use crate::{error::Error, flow::Way, mode::ExecMode};

/// The walk's position on a path. The path's outcomes are taken from the trace when the walk leaves it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Following {
    index: usize,
    /// How many legs were reported.
    leg: u8,
    /// How many legs end with an outcome, and whether one more follows, which ends with a target.
    decided: u8,
    named: bool,
    mode: ExecMode,
}

impl BlockDecoder<'_> {
    /// The next block of the path that the walk is on, as long as outcomes decide.
    #[inline(always)]
    pub(super) fn follow(&mut self) -> Option<Block> {
        let Following { index, leg: at, decided, mode, .. } = self.following;
        if at >= decided {
            return None;
        }
        let path = self.cache.path(index)?;
        let leg = path.legs.get(usize::from(at))?;
        let block = path.block(leg, self.walker.ip, mode, self.walker.speculative);
        let next = path.place(leg.next);
        if leg.end != End::Plain {
            if leg.calls {
                self.walker.call(path.place(leg.returns_to));
            }
            if leg.end == End::Return && !self.walker.returns(next) {
                return None;
            }
        }
        self.walker.ip = next;
        self.following.leg = at + 1;
        Some(block)
    }

    /// Starts a path at the next instruction, or continues without one.
    #[inline(always)]
    pub(super) fn enter(&mut self, mode: ExecMode) -> Result<Option<Item>, Error> {
        let outcomes = self.walker.peek_outcomes(OUTCOMES as u8);
        let key = self.cache.key(self.walker.ip, outcomes, mode);
        let (index, found) = self.cache.find(key);
        if !found {
            let path = self.explore(key, mode);
            self.cache.keep(index, path);
        }
        let Some(path) = self.cache.path(index).filter(|path| !path.is_empty()) else {
            return self.run(mode);
        };
        self.following = Following { index, leg: 0, decided: path.decided, named: path.named, mode };
        self.walker.psb = None;
        if let Some(block) = self.follow() {
            return Ok(Some(Item::Block(block)));
        }
        let following = self.leave_path();
        match self.leave(following) {
            Some(next) => next,
            None => self.run(mode),
        }
    }

    /// The last block of the path: one that ends with a target, or with a return that leads elsewhere than the path
    /// says. `None` when there is none, or the trace has something else next.
    #[inline(always)]
    pub(super) fn leave(&mut self, following: Following) -> Option<Result<Option<Item>, Error>> {
        let Following { index, leg: at, named, decided, mode } = following;
        if at == decided && !(named && self.walker.sees_target()) {
            return None;
        }
        let path = self.cache.path(index)?;
        let leg = path.legs.get(usize::from(at))?;
        let block = path.block(leg, self.walker.ip, mode, self.walker.speculative);
        let (way, next) = (leg.end.way(), path.place(leg.next));
        // A return that leads elsewhere is not that of a call in the same leg.
        if leg.calls {
            self.walker.call(path.place(leg.returns_to));
        }
        self.begin();
        self.decided = true;
        self.walker.psb = None;
        self.walker.ip = block.end_ip;
        if let Err(error) = self.walker.go(way, 0, next) {
            self.block = block;
            return Some(Err(error));
        }
        Some(Ok(Some(Item::Block(block))))
    }

    /// Leaves the path, but keeps what is known about the last reported block.
    #[inline(always)]
    pub(super) fn leave_path(&mut self) -> Following {
        // Field by field, because reading memory as a whole right after writing it in parts stalls the processor.
        let Following { index, leg, decided, named, mode } = self.following;
        (self.following.leg, self.following.decided, self.following.named) = (0, 0, false);
        if leg != 0 {
            (self.behind, self.decided) = (self.walker.behind_with(leg - 1), true);
            self.walker.pass(leg);
        }
        Following { index, leg, decided, named, mode }
    }
}

impl Following {
    /// On none.
    pub(super) const NOTHING: Self =
        Self { index: 0, leg: 0, decided: 0, named: false, mode: ExecMode::Bits64 };

    /// Whether a leg is left.
    #[inline]
    pub(super) const fn is_some(&self) -> bool {
        self.named || self.leg < self.decided
    }

    /// How many blocks of the path were reported.
    pub(super) const fn given(&self) -> u8 {
        self.leg
    }
}

impl End {
    const fn way(self) -> Way {
        match self {
            Self::Plain | Self::Cond => Way::Cond,
            Self::Return | Self::NamedReturn => Way::Return,
            Self::NamedCall => Way::IndirectCall,
            Self::Named => Way::Indirect,
        }
    }
}

impl Path {
    #[inline(always)]
    const fn place(&self, relative: i32) -> u64 {
        self.key.ip.wrapping_add_signed(relative as i64)
    }

    #[inline(always)]
    const fn block(&self, leg: &Leg, ip: u64, mode: ExecMode, speculative: bool) -> Block {
        Block {
            ip,
            end_ip: self.place(leg.last),
            insns: leg.insns as u32,
            section: self.section,
            mode,
            speculative,
            truncated: false,
        }
    }
}
