//! Many items at a time, for callers that pull.

use super::{BlockCache, ExecutionSink};
use crate::{
    block::{Block, BlockDecoder, BlockItem},
    error::Error,
    event::Event,
    keeper::Keeper,
};

/// A sink that takes items until there is no room.
struct Items<'a> {
    items: &'a mut [BlockItem],
    len: usize,
}

impl Items<'_> {
    #[inline(always)]
    fn push(&mut self, item: BlockItem) {
        if let Some(place) = self.items.get_mut(self.len) {
            *place = item;
            self.len += 1;
        }
    }
}

impl ExecutionSink for Items<'_> {
    const BLOCKS: bool = true;
    const FILLS: bool = true;

    #[inline(always)]
    fn block(&mut self, block: &Block) {
        self.push(BlockItem::Block(*block));
    }

    fn event(&mut self, event: &Event) {
        self.push(BlockItem::Event(*event));
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        self.len == self.items.len()
    }
}

impl<K: Keeper> BlockDecoder<'_, K> {
    /// Writes the next items to `items`, and returns their number: fewer than there is room for at the end of the trace
    /// and before an error, which is returned with them.
    ///
    /// The items are those of [`next`](Self::next), and the decoder's state after the last one is the same. Most of the
    /// time is the fixed cost of a call, so give room for a hundred items or more.
    pub fn fill(
        &mut self,
        cache: &mut BlockCache<'_>,
        items: &mut [BlockItem],
    ) -> (usize, Result<(), Error>) {
        let mut sink = Items { items, len: 0 };
        let end = self.visit(cache, &mut sink);
        (sink.len, end)
    }
}
