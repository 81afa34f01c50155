//! Functions of the code that is walked through.

use crate::symbols::TracedSymbols;

/// Functions that continue on another stack: they return, or jump, to where that stack was left, or to a function that
/// begins on it. Their code looks like that of a function that has pushed an address and returns to it.
///
/// Source: their sources in glibc (swapcontext), Go's runtime (gogo), Boost.Context (jump_fcontext) and Linux.
const SWITCHERS: [&str; 11] = [
    "swapcontext",
    "__swapcontext",
    "setcontext",
    "__setcontext",
    "gogo",
    "runtime.gogo",
    "runtime.gogo.abi0",
    "jump_fcontext",
    "ontop_fcontext",
    "__switch_to",
    "__switch_to_asm",
];

/// The functions that are walked through, if their names are known.
#[derive(Debug, Default)]
pub(super) struct WalkedFunctions<'n> {
    names: Option<&'n TracedSymbols>,
    /// The pairs of addresses that were asked for most recently, and the answers.
    late_pairs: Vec<(u64, u64, bool)>,
    /// The addresses that were asked for most recently.
    late: Vec<LateAddress>,
}

/// An address, and what is known of its function.
#[derive(Clone, Copy, Debug, Default)]
struct LateAddress {
    ip: u64,
    /// Where its function begins.
    begin: Option<u64>,
    /// Its function is known to continue on another stack.
    switches_stacks: bool,
}

impl LateAddress {
    fn find(ip: u64, names: &TracedSymbols) -> Self {
        let function = names.function(ip);
        Self {
            ip,
            begin: names.begin(ip),
            switches_stacks: function.is_some_and(|(name, _)| SWITCHERS.contains(&name)),
        }
    }
}

impl<'n> WalkedFunctions<'n> {
    /// Cached answers of each kind.
    const LATE: usize = 1 << 12;

    pub(super) fn named(names: &'n TracedSymbols) -> Self {
        // 0 is in the same function as 0.
        Self {
            names: Some(names),
            late_pairs: vec![(0, 0, false); Self::LATE],
            late: vec![LateAddress::find(0, names); Self::LATE],
        }
    }

    #[inline]
    fn find(&mut self, ip: u64) -> LateAddress {
        let Some(names) = self.names else { return LateAddress::default() };
        let late = &mut self.late[Self::place(ip)];
        if late.ip != ip {
            *late = LateAddress::find(ip, names);
        }
        *late
    }

    /// Returns where the function at `ip` begins.
    #[inline]
    pub(super) fn begin(&mut self, ip: u64) -> Option<u64> {
        self.find(ip).begin
    }

    /// Returns true if two addresses are in different functions. All code without a name is one.
    pub(super) fn are_apart(&mut self, from: u64, to: u64) -> bool {
        if self.names.is_none() {
            return false;
        }
        let place = Self::place(from ^ to.rotate_left(17));
        if (self.late_pairs[place].0, self.late_pairs[place].1) != (from, to) {
            let apart = self.begin(to) != self.begin(from);
            self.late_pairs[place] = (from, to, apart);
        }
        self.late_pairs[place].2
    }

    /// Returns true if the function at `ip` is known to continue on another stack.
    #[inline]
    pub(super) fn switches_stacks(&mut self, ip: u64) -> bool {
        self.find(ip).switches_stacks
    }

    fn place(key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Self::LATE.ilog2())) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_addresses_are_apart_if_their_functions_are_different() {
        let names = TracedSymbols::known(&[("a", 0x100, 0x200), ("b", 0x200, 0x300)], &[]);
        let mut functions = WalkedFunctions::named(&names);
        // Twice: the second answer is cached.
        for _ in 0..2 {
            for (from, to, expected) in [
                (0x110, 0x200, true),
                (0x110, 0x250, true),
                (0x110, 0x100, false),
                (0x110, 0x180, false),
                // Code without a name belongs to neither, and counts as one function.
                (0x110, 0x300, true),
                (0x900, 0x100, true),
                (0x900, 0x910, false),
            ] {
                assert_eq!(functions.are_apart(from, to), expected, "{from:#x} {to:#x}");
            }
        }
        assert!(!WalkedFunctions::default().are_apart(0x110, 0x200), "no names");
        // More pairs with one address than the cache holds; each still gets its own answer.
        let names = TracedSymbols::known(&[("a", 0x10_0000, 0x20_0000), ("b", 0x20_0000, 0x30_0000)], &[]);
        let mut functions = WalkedFunctions::named(&names);
        for to in (0x10_0000..0x30_0000).step_by(16) {
            assert_eq!(functions.are_apart(0x10_0010, to), to >= 0x20_0000, "{to:#x}");
        }
    }

    #[test]
    fn a_function_that_switches_stacks_is_known_by_its_name() {
        let names = TracedSymbols::known(&[("swapcontext", 0x100, 0x200), ("swap", 0x200, 0x300)], &[]);
        let mut functions = WalkedFunctions::named(&names);
        assert_eq!(
            [0x100, 0x1ff, 0x200, 0x900].map(|ip| functions.switches_stacks(ip)),
            [true, true, false, false]
        );
    }
}
