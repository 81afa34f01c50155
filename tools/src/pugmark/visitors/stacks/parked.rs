//! Stacks that execution has left, and may come back to.

use super::{Frame, innermost_call};
use std::collections::VecDeque;

/// The most stacks that are kept, and functions on all of them together. Those that were left first are forgotten.
const MOST_STACKS: usize = 1 << 10;
const MOST_FRAMES: usize = 1 << 20;
/// Of how many stacks, those that were left last, and of how many functions of each all calls are searched.
const SEARCHED_STACKS: usize = 64;
const SEARCHED_FRAMES: usize = 64;

/// Stacks that were left, in this order.
///
/// Of several whose innermost calls return to the same address the one that was left first is continued, as schedulers
/// let threads take turns.
#[derive(Debug, Default)]
pub(super) struct ParkedStacks {
    stacks: VecDeque<ParkedStack>,
    /// The number of functions on all of them.
    frames: usize,
}

#[derive(Debug)]
struct ParkedStack {
    /// Where the innermost call returns to.
    returns_to: u64,
    frames: Vec<Frame>,
}

impl ParkedStacks {
    /// Keeps a stack, if it is known where it continues.
    pub(super) fn park(&mut self, frames: Vec<Frame>) {
        let Some(returns_to) = frames.get(innermost_call(&frames)).and_then(|call| call.returns_to) else {
            return;
        };
        self.frames += frames.len();
        self.stacks.push_back(ParkedStack { returns_to, frames });
        while self.stacks.len() > MOST_STACKS || self.frames > MOST_FRAMES {
            let Some(oldest) = self.stacks.pop_front() else { return };
            self.frames -= oldest.frames.len();
        }
    }

    /// Takes the stack that continues at `to`, where the innermost call returns to, or another one of one of the stacks
    /// that were left last. That call is not on it any more.
    pub(super) fn take(&mut self, to: u64) -> Option<Vec<Frame>> {
        let innermost = self.stacks.iter().position(|stack| stack.returns_to == to);
        let (number, depth) = match innermost {
            Some(number) => (number, innermost_call(&self.stacks[number].frames)),
            None => {
                let mut late = self.stacks.iter().enumerate().rev().take(SEARCHED_STACKS);
                late.find_map(|(number, stack)| Some((number, stack.call_that_returns_to(to)?)))?
            }
        };
        let ParkedStack { mut frames, .. } = self.stacks.remove(number)?;
        self.frames -= frames.len();
        frames.truncate(depth);
        Some(frames)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl ParkedStack {
    fn call_that_returns_to(&self, to: u64) -> Option<usize> {
        let mut calls = self.frames.iter().enumerate().rev().take(SEARCHED_FRAMES);
        calls.find(|(_, frame)| frame.returns_to == Some(to)).map(|(number, _)| number)
    }
}

#[cfg(test)]
impl ParkedStacks {
    pub(super) fn len(&self) -> usize {
        self.stacks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pugmark::visitors::stacks::FrameEntry;

    fn called(returns_to: u64) -> Frame {
        let returns_to = Some(returns_to);
        Frame { from: None, to: 0, begin: None, returns_to, entry: FrameEntry::Call, left_at: None }
    }

    #[test]
    fn a_stack_is_found_by_its_calls_and_those_that_were_left_first_are_forgotten() {
        let mut parked = ParkedStacks::default();
        parked.park(vec![called(1), called(2)]);
        parked.park(vec![
            called(3),
            called(2),
            Frame { returns_to: None, entry: FrameEntry::Jump, ..called(0) },
        ]);
        parked.park(vec![]);
        parked.park(vec![Frame { returns_to: None, ..called(0) }]);
        assert_eq!((parked.take(0), parked.take(9)), (None, None));
        assert_eq!(parked.take(2), Some(vec![called(1)]));
        // One that is not the innermost.
        assert_eq!(parked.take(3), Some(vec![]));
        assert_eq!(parked.take(2), None);
        for number in 0..MOST_STACKS as u64 + 5 {
            parked.park(vec![called(number)]);
        }
        assert_eq!((parked.take(4), parked.take(5), parked.len()), (None, Some(vec![]), MOST_STACKS - 1));
        // Parked stacks have at most MOST_FRAMES functions together.
        parked.park(vec![called(0); MOST_FRAMES]);
        assert_eq!((parked.len(), parked.frames), (1, MOST_FRAMES));
        parked.park(vec![called(0); MOST_FRAMES + 1]);
        assert_eq!((parked.len(), parked.frames), (0, 0));
    }
}
