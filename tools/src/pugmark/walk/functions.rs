//! Which jumps lead from one function to another.

use crate::pugmark::symbols::TracedSymbols;

/// The functions that are walked through, if their names are known.
#[derive(Debug, Default)]
pub(super) struct WalkedFunctions<'n> {
    names: Option<&'n TracedSymbols>,
    /// The jumps that were asked for most recently, and the answers.
    late_jumps: Vec<(u64, u64, bool)>,
    /// The addresses that were asked for most recently, and where their functions begin.
    late: Vec<(u64, Option<u64>)>,
}

impl<'n> WalkedFunctions<'n> {
    /// How many answers of each kind are remembered.
    const LATE: usize = 1 << 12;

    pub(super) fn named(names: &'n TracedSymbols) -> Self {
        let begin = names.function(0).map(|(_, offset)| 0_u64.wrapping_sub(offset));
        // No jump is from 0 to 0.
        Self {
            names: Some(names),
            late_jumps: vec![(0, 0, false); Self::LATE],
            late: vec![(0, begin); Self::LATE],
        }
    }

    /// Where the function at `ip` begins.
    pub(super) fn begin(&mut self, ip: u64) -> Option<u64> {
        let names = self.names?;
        let late = &mut self.late[Self::place(ip)];
        if late.0 != ip {
            *late = (ip, names.function(ip).map(|(_, offset)| ip.wrapping_sub(offset)));
        }
        late.1
    }

    /// Whether a jump leads to another function than its own.
    pub(super) fn leads_to_another(&mut self, from: u64, to: u64) -> bool {
        if self.names.is_none() {
            return false;
        }
        let place = Self::place(from ^ to.rotate_left(17));
        if (self.late_jumps[place].0, self.late_jumps[place].1) != (from, to) {
            let begin = self.begin(to);
            self.late_jumps[place] = (from, to, begin.is_some() && begin != self.begin(from));
        }
        self.late_jumps[place].2
    }

    fn place(key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Self::LATE.ilog2())) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_leads_to_another_function_if_that_has_a_name() {
        let names = TracedSymbols::known(&[("a", 0x100, 0x200), ("b", 0x200, 0x300)], &[]);
        let mut functions = WalkedFunctions::named(&names);
        // Twice: the second answer is remembered.
        for _ in 0..2 {
            for (from, to, expected) in [
                (0x110, 0x200, true),
                (0x110, 0x250, true),
                (0x110, 0x100, false),
                (0x110, 0x180, false),
                (0x110, 0x300, false),
                // Code without a name jumps to one that has one, and to itself.
                (0x900, 0x100, true),
                (0x900, 0x910, false),
            ] {
                assert_eq!(functions.leads_to_another(from, to), expected, "{from:#x} {to:#x}");
            }
        }
        assert!(!WalkedFunctions::default().leads_to_another(0x110, 0x200), "no names");
        // More jumps from one place than answers are remembered, and each has an answer of its own.
        let names = TracedSymbols::known(&[("a", 0x10_0000, 0x20_0000), ("b", 0x20_0000, 0x30_0000)], &[]);
        let mut functions = WalkedFunctions::named(&names);
        for to in (0x10_0000..0x30_0000).step_by(16) {
            assert_eq!(functions.leads_to_another(0x10_0010, to), to >= 0x20_0000, "{to:#x}");
        }
    }
}
