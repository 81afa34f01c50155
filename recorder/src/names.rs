//! The names of functions as people write them.

use cpp_demangle::{BorrowedSymbol, DemangleOptions};
use std::borrow::Cow;
use std::fmt::{self, Write};

/// The longest name that is demangled, and the longest result. Substitutions let a short name stand for an endless one.
const LONGEST: usize = 1 << 14;
const LONGEST_SHOWN: usize = 1 << 15;

/// Returns a name without the mangling of Rust and C++, and without Rust's hash: `core::fmt::write`,
/// `ns::Box<int>::add`. As `perf` shows it, a function of C++ has no parameters. Others are as they are.
#[must_use]
pub fn readable(name: &str) -> Cow<'_, str> {
    // Most names are not mangled, and it takes time to find that out.
    if !name.trim_start_matches('_').starts_with(['Z', 'R']) || name.len() > LONGEST {
        return name.into();
    }
    // The version of a library's function follows.
    let (mangled, version) = name.split_at(name.find('@').unwrap_or(name.len()));
    match rust(mangled).or_else(|| cpp(mangled)) {
        Some(shown) => Cow::Owned(shown + version),
        None => name.into(),
    }
}

fn rust(name: &str) -> Option<String> {
    // The older form is C++'s own, with a hash at its end.
    if name.starts_with("_ZN") && !name.contains("17h") {
        return None;
    }
    let mut shown = Bounded::default();
    write!(shown, "{:#}", rustc_demangle::try_demangle(name).ok()?).ok()?;
    Some(shown.0)
}

fn cpp(name: &str) -> Option<String> {
    // After a dot comes the compiler's name of a copy, such as `.isra.0`. perf leaves it out.
    let name = name.split('.').next().filter(|name| name.starts_with("_Z"))?;
    let (symbol, rest) = BorrowedSymbol::with_tail(name.as_bytes()).ok()?;
    if !rest.is_empty() {
        return None;
    }
    let mut shown = Bounded::default();
    symbol.structured_demangle(&mut shown, &DemangleOptions::new().no_params().no_return_type()).ok()?;
    Some(shown.0)
}

/// A text that takes no more than the longest name.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST_SHOWN {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rust_and_cpp_are_shown_as_perf_shows_them() {
        for (name, expected) in [
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar"),
            ("_ZN2ns3BoxIiE3addEi", "ns::Box<int>::add"),
            ("_ZN2ns3BoxIiED1Ev", "ns::Box<int>::~Box"),
            ("_ZN2ns3BoxIiEpLEi", "ns::Box<int>::operator+="),
            ("_ZN2ns4tmplIiLi4EEET_RAT0__S1_", "ns::tmpl<int, 4>"),
            ("_ZZ4mainENUliE_4_FUNEi", "main::{lambda(int)#1}::_FUN"),
            ("_ZN2ns12_GLOBAL__N_16hiddenEPFiiE", "ns::(anonymous namespace)::hidden"),
            ("_ZN2ns12_GLOBAL__N_18variableE", "ns::(anonymous namespace)::variable"),
            ("_ZN2ns1fEv.isra.0", "ns::f"),
            ("_ZNSolsEi@@GLIBCXX_3.4", "std::ostream::operator<<@@GLIBCXX_3.4"),
            ("_Z", "_Z"),
            ("_Znot_a_name", "_Znot_a_name"),
            ("ZSTD_decompress", "ZSTD_decompress"),
            ("main", "main"),
        ] {
            assert_eq!(readable(name), expected, "{name}");
        }
    }

    #[test]
    fn a_name_that_stands_for_an_endless_one_stays_mangled() {
        // Each argument has the one before it twice: 2^40 names in all.
        let arguments: String = (0..40).map(|n| format!("1pIS{0}_S{0}_E", base_36(n))).collect();
        let name = format!("_Z1fI1a{arguments}Evv");
        let begun = std::time::Instant::now();
        assert!(readable(&name).len() <= LONGEST_SHOWN.max(name.len()));
        for name in ["_Z".to_owned() + &"N".repeat(10_000), "_Z1f".to_owned() + &"P".repeat(10_000)] {
            assert_eq!(readable(&name), name);
        }
        assert!(begun.elapsed().as_secs() < 10);
    }

    fn base_36(number: usize) -> String {
        match number.checked_sub(1) {
            None => String::new(),
            Some(digit) => char::from_digit(digit as u32 % 36, 36).unwrap().to_ascii_uppercase().into(),
        }
    }
}
