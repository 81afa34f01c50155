//! The hottest way through the decoder: block after block of a path.

use super::{
    Block, BlockDecoder, Item,
    path::{End, Leg, OUTCOMES, Path},
};
use crate::{error::Error, flow::Way, mode::ExecMode};

/// Where the walk is on a path: its outcomes are taken from the trace when it is left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Following {
    index: usize,
    /// How many legs were given out.
    leg: u8,
    /// How many legs end with an outcome, and whether there is one more.
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

    /// Begins a path at the instruction that comes next, or walks on without one.
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

    /// The block at whose end the path does not go on by an outcome, or not as expected; `None` when there is none, or
    /// the trace goes on in another way.
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

    /// From here on the walk is on no path. What is known of the block that was given out last is kept.
    #[inline(always)]
    pub(super) fn leave_path(&mut self) -> Following {
        // Field by field: what was written in parts and is read as a whole has to be waited for.
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

    /// How many blocks of the path were given out.
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
