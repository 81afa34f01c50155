//! The call stack for return compression: a RET that returns to its CALL is a single TNT bit. Source: SDM vol. 3, Intel
//! Processor Trace, "Indirect Transfer Compression for Returns (RET)".

use crate::intel::ReturnElsewhere;

const DEPTH: usize = 64;

/// The return addresses of the latest 64 CALLs in the trace.
#[derive(Debug)]
pub(crate) struct RetStack {
    addresses: [u64; DEPTH],
    /// The index for the next CALL's return address.
    top: usize,
    len: usize,
}

impl RetStack {
    pub(crate) const fn new() -> Self {
        Self {
            // No entry is read before it is written, so the first CALL may use any slot.
            addresses: [0; DEPTH],
            top: 0,
            len: 0,
        }
    }

    /// Pushes a CALL's return address. If the stack is full, the oldest address is lost.
    #[inline]
    pub(crate) fn push(&mut self, next_ip: u64) {
        self.addresses[self.top] = next_ip;
        self.top = (self.top + 1) % DEPTH;
        self.len = (self.len + 1).min(DEPTH);
    }

    /// Pops for a RET to `target`. Returns whether the RET goes to the address after its CALL.
    #[inline]
    pub(crate) fn pop(&mut self, target: u64, elsewhere: ReturnElsewhere) -> bool {
        if self.len == 0 {
            return false;
        }
        self.top = (self.top + DEPTH - 1) % DEPTH;
        self.len -= 1;
        let matches = self.addresses[self.top] == target;
        if !matches && elsewhere == ReturnElsewhere::Empties {
            self.clear();
        }
        matches
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_youngest_64() {
        let mut stack = RetStack::new();
        for address in 0..70 {
            stack.push(address);
        }
        for address in (6..70).rev() {
            assert!(stack.pop(address, ReturnElsewhere::Empties), "{address}");
        }
        // The slot of the 70th address held the latest one.
        assert!(!stack.pop(69, ReturnElsewhere::Empties));
        assert!(!stack.pop(5, ReturnElsewhere::Empties));
    }

    #[test]
    fn is_empty_at_first_and_when_it_was_cleared() {
        for elsewhere in [ReturnElsewhere::Empties, ReturnElsewhere::Pops] {
            let mut stack = RetStack::new();
            assert!(!stack.pop(0, elsewhere));
            stack.push(7);
            stack.clear();
            assert!(!stack.pop(7, elsewhere));
        }
    }

    #[test]
    fn a_ret_elsewhere_empties_it_or_takes_its_call_away() {
        for (elsewhere, left) in [(ReturnElsewhere::Empties, false), (ReturnElsewhere::Pops, true)] {
            let mut stack = RetStack::new();
            stack.push(1);
            stack.push(2);
            assert!(!stack.pop(3, elsewhere));
            assert_eq!(stack.pop(1, elsewhere), left, "{elsewhere:?}");
            stack.push(4);
            assert!(stack.pop(4, elsewhere));
            assert!(!stack.pop(1, elsewhere));
        }
    }
}
