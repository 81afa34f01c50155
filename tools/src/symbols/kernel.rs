//! The functions of a Linux kernel, from the text of its /proc/kallsyms.
//!
//! Source: Linux, kernel/kallsyms.c, for the lines; tools/perf/util/symbol.c, for which of several names of an address
//! is taken, and for where a symbol ends, because the text does not say that.

use super::table::{FunctionTable, MOST_FUNCTIONS, TablePart};
use crate::text::printable;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// The name that perf has for the kernel's own code.
pub(super) const KERNEL: &str = "[kernel.kallsyms]";
/// The size of a page.
const PAGE: u64 = 0x1000;

/// The symbols of a kernel.
#[derive(Clone, Debug, Default)]
pub struct KernelSymbols {
    table: FunctionTable,
    /// The number of each part's module.
    modules: Vec<u32>,
    /// The modules as they are shown; the first one stands for the kernel itself.
    names: Vec<Box<str>>,
}

/// A line of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KernelLine {
    from: u64,
    /// Where the name is in the text.
    name: Range<usize>,
    /// The number of the module; 0 is the kernel.
    module: u32,
}

impl KernelSymbols {
    /// Reads the text of a /proc/kallsyms. A symbol reaches to the next one, the last one of the kernel and of a module
    /// to the end of the page after its own at most. Of several at an address the last one is taken, as `perf` does:
    /// the kernel lists weak names and those with underscores at their beginning there.
    #[must_use]
    pub fn parse(text: String) -> Self {
        let mut names: Vec<Box<str>> = vec![KERNEL.into()];
        let mut lines = lines(&text, &mut names);
        // Symbols of one address stay in their order.
        lines.sort_by_key(|line| line.from);
        let (mut table, mut modules) = (FunctionTable::of_text(text), vec![]);
        table.reserve(lines.len());
        modules.reserve_exact(lines.len());
        for (number, KernelLine { from, name, module }) in lines.iter().enumerate() {
            let next = lines.get(number + 1);
            let end = match next {
                Some(next) if (next.module == 0) == (*module == 0) => next.from,
                Some(next) => next.from.min(page_after(*from)),
                None => page_after(*from),
            };
            if let Some(name) = (*from < end).then(|| table.name_at(name.clone())).flatten() {
                table.push(TablePart { from: *from, end, begin: *from, name });
                modules.push(*module);
            }
        }
        Self { table, modules, names }
    }

    /// Finds the function at an address, and how far the address is in it.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(&str, u64)> {
        self.table.find(address)
    }

    /// Finds the module that an address is in, as in `[ext4]`, or `[kernel.kallsyms]`; `None` if no symbol is there.
    #[must_use]
    pub fn module(&self, address: u64) -> Option<&str> {
        let number = self.modules.get(self.table.number(address)?)?;
        self.names.get(*number as usize).map(|name| &**name)
    }
}

/// Returns the end of the page that is a page further than an address, as `perf` has it.
const fn page_after(address: u64) -> u64 {
    address.saturating_add(2 * PAGE - 1) & !(PAGE - 1)
}

/// Reads lines such as `ffffffff81000000 T _text` or `ffffffffc0001000 t init [module]`, of code or of data. Data have
/// an end of their own, and are no names of what follows them.
fn lines(text: &str, names: &mut Vec<Box<str>>) -> Vec<KernelLine> {
    let mut numbers: FxHashMap<&str, u32> = FxHashMap::default();
    let mut found = vec![];
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let begin = at;
        at += line.len();
        if found.len() >= MOST_FUNCTIONS {
            break;
        }
        let Some((from, kind_at)) = address(line.as_bytes()) else { continue };
        let Some((kind, words)) = line.get(kind_at..).and_then(|rest| rest.split_once(' ')) else { continue };
        let len = words.bytes().position(|byte| byte <= b' ').unwrap_or(words.len());
        if !matches!(kind, "T" | "t" | "W" | "w" | "D" | "d" | "B" | "b") || len == 0 {
            continue;
        }
        let module = match words[len..].trim_ascii() {
            "" => 0,
            module => *numbers.entry(module).or_insert_with(|| {
                names.push(printable(module).into());
                names.len() as u32 - 1
            }),
        };
        let name = begin + kind_at + kind.len() + 1;
        found.push(KernelLine { from, name: name..name + len, module });
    }
    found
}

/// Reads the address that a line begins with, and where what follows it begins.
fn address(line: &[u8]) -> Option<(u64, usize)> {
    let mut address = 0;
    for (at, byte) in line.iter().enumerate().take(17) {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b' ' if at > 0 => return Some((address, at + 1)),
            _ => return None,
        };
        address = address << 4 | u64::from(digit);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_reaches_to_the_next_one_and_the_last_one_to_the_end_of_a_page() {
        let text = "0000000000000000 A of_each_processor\nffffffff81000000 T _text\nffffffff81000000 T startup\n\
                    ffffffff81000100 t inner\nffffffff81000180 r constants\nffffffff81000200 D data\n\
                    ffffffff81002010 W last\nffffffffc0000080 t second\t[module]\n\
                    ffffffffc0000000 t first\t[module]\nffffffffc0000100 t other\t[more]\nno line\n12345 T\n\
                    ffffffffc0000200 t \nffffffffc00002000 t long\n";
        let expected = [
            (0xffff_ffff_8100_0000, 0x100, "startup", KERNEL),
            (0xffff_ffff_8100_0100, 0x100, "inner", KERNEL),
            (0xffff_ffff_8100_0200, 0x1e10, "data", KERNEL),
            (0xffff_ffff_8100_2010, 0x1ff0, "last", KERNEL),
            (0xffff_ffff_c000_0000, 0x80, "first", "[module]"),
            (0xffff_ffff_c000_0080, 0x80, "second", "[module]"),
            (0xffff_ffff_c000_0100, 0x1f00, "other", "[more]"),
        ];
        let symbols = KernelSymbols::parse(text.into());
        assert_eq!(symbols.table.len(), expected.len());
        for (from, len, name, module) in expected {
            for offset in [0, len - 1] {
                assert_eq!(symbols.find(from + offset), Some((name, offset)));
                assert_eq!(symbols.module(from + offset), Some(module));
            }
        }
        assert_eq!((symbols.find(0xffff_ffff_8100_4000), symbols.module(0)), (None, None));
    }

    #[test]
    fn each_function_of_a_whole_kernel_is_found() {
        let line = |number: u64| format!("{:016x} t function_{number}\t[m{}]\n", number << 4, number % 9);
        let symbols = KernelSymbols::parse((0..100_000).map(line).collect());
        assert_eq!(symbols.names.len(), 10);
        for number in 0..100_000 {
            assert_eq!(symbols.find(number << 4 | 5), Some((&*format!("function_{number}"), 5)));
            assert_eq!(symbols.module(number << 4), Some(&*format!("[m{}]", number % 9)));
        }
    }
}
