//! The functions of a Linux kernel, from the text of its /proc/kallsyms.
//!
//! Source: Linux, kernel/kallsyms.c, for the lines; tools/perf/util/symbol.c, for which of several names of an address
//! is taken, and for where a symbol ends, because the text does not say that.

use std::ops::Range;

/// The size of a page.
const PAGE: u64 = 0x1000;

/// A symbol of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KernelSymbol<'t> {
    /// Its addresses.
    pub(super) place: Range<u64>,
    pub(super) name: &'t str,
    /// The module that it belongs to; `None` for the kernel itself.
    pub(super) module: Option<&'t str>,
}

/// The symbols in the text of a /proc/kallsyms, by their addresses. A symbol reaches to the next one, the last one of
/// the kernel and of a module to the end of the page after its own at most. Of several at an address the last one is
/// taken, as `perf` does: the kernel lists weak names and those with underscores at their beginning there.
pub(super) fn symbols(text: &str) -> Vec<KernelSymbol<'_>> {
    let mut found: Vec<_> = text.lines().filter_map(symbol).collect();
    // Symbols of one address stay in their order.
    found.sort_by_key(|symbol| symbol.place.start);
    let mut next: Option<(u64, Option<&str>)> = None;
    for symbol in found.iter_mut().rev() {
        let from = symbol.place.start;
        symbol.place.end = match next {
            Some((next, module)) if module.is_some() == symbol.module.is_some() => next,
            Some((next, _)) => next.min(page_after(from)),
            None => page_after(from),
        };
        next = Some((from, symbol.module));
    }
    found.retain(|symbol| !symbol.place.is_empty());
    found
}

/// The end of the page that is a page further than an address, as `perf` has it.
const fn page_after(address: u64) -> u64 {
    address.saturating_add(2 * PAGE - 1) & !(PAGE - 1)
}

/// The symbol in a line such as `ffffffff81000000 T _text` or `ffffffffc0001000 t init [module]`, if it is one of code
/// or of data. Those have an end of their own, and are no names of what follows them.
fn symbol(line: &str) -> Option<KernelSymbol<'_>> {
    let mut words = line.split_ascii_whitespace();
    let (from, kind, name) = (words.next()?, words.next()?, words.next()?);
    let from = u64::from_str_radix(from, 16).ok()?;
    let module = words.next().map(|word| word.trim_start_matches('[').trim_end_matches(']'));
    matches!(kind, "T" | "t" | "W" | "w" | "D" | "d" | "B" | "b").then_some(KernelSymbol {
        place: from..from,
        name,
        module,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_reaches_to_the_next_one_and_the_last_one_to_the_end_of_a_page() {
        let text = "0000000000000000 A of_each_processor\nffffffff81000000 T _text\nffffffff81000000 T startup\n\
                    ffffffff81000100 t inner\nffffffff81000180 r constants\nffffffff81000200 D data\n\
                    ffffffff81002010 W last\nffffffffc0000080 t second\t[module]\n\
                    ffffffffc0000000 t first\t[module]\nffffffffc0000100 t other\t[more]\nno line\n";
        let expected = [
            (0xffff_ffff_8100_0000, 0x100, "startup", None),
            (0xffff_ffff_8100_0100, 0x100, "inner", None),
            (0xffff_ffff_8100_0200, 0x1e10, "data", None),
            (0xffff_ffff_8100_2010, 0x1ff0, "last", None),
            (0xffff_ffff_c000_0000, 0x80, "first", Some("module")),
            (0xffff_ffff_c000_0080, 0x80, "second", Some("module")),
            (0xffff_ffff_c000_0100, 0x1f00, "other", Some("more")),
        ];
        let expected = expected.map(|(from, len, name, module): (u64, u64, _, _)| KernelSymbol {
            place: from..from + len,
            name,
            module,
        });
        assert_eq!(symbols(text), expected);
    }
}
