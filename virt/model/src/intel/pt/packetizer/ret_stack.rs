//! The call stack that RETs are compressed against. Source: SDM vol. 3, Intel Processor Trace, "Indirect Transfer
//! Compression for Returns (RET)".

use crate::intel::ReturnElsewhere;

const DEPTH: usize = 64;

/// The return addresses of the youngest 64 CALLs that the trace has shown.
#[derive(Debug)]
pub(crate) struct RetStack {
    addresses: [u64; DEPTH],
    /// Where the next CALL's goes.
    top: usize,
    len: usize,
}

impl RetStack {
    pub(crate) const fn new() -> Self {
        Self {
            // None of them is looked at yet, and any place is good for the first.
            addresses: [0; DEPTH],
            top: 0,
            len: 0,
        }
    }

    /// A CALL; when the stack is full the oldest falls out.
    pub(crate) fn push(&mut self, next_ip: u64) {
        self.addresses[self.top] = next_ip;
        self.top = (self.top + 1) % DEPTH;
        self.len = (self.len + 1).min(DEPTH);
    }

    /// A RET to `target`: whether it goes where its CALL came from.
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
        // Its slot held the youngest.
        assert!(!stack.pop(69, ReturnElsewhere::Empties));
        assert!(!stack.pop(5, ReturnElsewhere::Empties));
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
