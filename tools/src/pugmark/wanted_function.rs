//! A function that an option names.

use super::{
    coverage::Executed, loaded::LoadedSession, pmc::names::SimilarNames, progress::Progress,
    report::UnnamedFunctions,
};
use crate::{number, symbols::TracedSymbols};
use anyhow::{Result, bail};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    rc::Rc,
};

/// A function that an option names: by its name, or by the address that views print for a function without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedFunction {
    text: String,
    address: Option<u64>,
}

impl From<&str> for WantedFunction {
    fn from(text: &str) -> Self {
        let address = text.starts_with("0x").then(|| number::parse(text)).flatten();
        Self { text: text.into(), address }
    }
}

impl fmt::Display for WantedFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl WantedFunction {
    /// Returns how far the address of a call's target is in this function; `None` if it is not in it.
    pub(super) fn called(&self, to: u64, symbols: &TracedSymbols) -> Option<u64> {
        match symbols.function(to) {
            Some((name, offset)) => (name == self.text).then_some(offset),
            None => {
                let begin = symbols.unnamed(to).map_or(to, |extent| extent.start);
                (self.address == Some(begin)).then(|| to - begin)
            }
        }
    }

    /// Returns how far an address is in this function; `None` if it is not in it.
    pub(super) fn offset(&self, ip: u64, symbols: &TracedSymbols, unnamed: &UnnamedFunctions) -> Option<u64> {
        match symbols.function(ip) {
            Some((name, offset)) => (name == self.text).then_some(offset),
            None => {
                self.address.filter(|_| unnamed.begin(ip, symbols) == self.address).map(|begin| ip - begin)
            }
        }
    }

    /// Finds it in what was executed: where it begins, each with its last instruction that was executed. Adds the
    /// names of the other functions.
    pub(super) fn find(
        &self,
        executed: &Executed,
        symbols: &TracedSymbols,
        unnamed: &UnnamedFunctions,
        names: &mut BTreeSet<String>,
    ) -> BTreeMap<u64, u64> {
        let mut found = BTreeMap::new();
        for ip in executed.insns.keys() {
            if let Some(offset) = self.offset(*ip, symbols, unnamed) {
                found.insert(ip.wrapping_sub(offset), *ip);
            } else if let Some((name, _)) = symbols.function(*ip)
                && !names.contains(name)
            {
                names.insert(name.to_owned());
            }
        }
        found
    }

    /// Finds the functions without a name of each thread, if this one is named by its address.
    pub(super) fn unnamed(
        &self,
        loaded: &LoadedSession,
        names: &[Rc<TracedSymbols>],
        progress: &mut Progress,
    ) -> Vec<UnnamedFunctions> {
        if !self.is_address() {
            return vec![UnnamedFunctions::default(); names.len()];
        }
        let sections = loaded.sections();
        let executed = Executed::in_lanes(&loaded.session(&sections), progress);
        let lanes = executed.iter().zip(names);
        lanes.map(|(executed, names)| UnnamedFunctions::of(executed, names)).collect()
    }

    /// Returns true if it is written as an address.
    pub(super) const fn is_address(&self) -> bool {
        self.address.is_some()
    }

    /// Returns the error about a function that is none of those of which something was asked.
    ///
    /// # Errors
    /// Always.
    pub(super) fn was_not<T>(&self, option: &str, asked: &str, names: &BTreeSet<String>) -> Result<T> {
        let similar = SimilarNames::to(&self.text, names.iter().map(String::as_str));
        bail!("{option} {self}: no function of that name {asked}{similar}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_by_its_name_or_by_the_address_of_one_that_has_none() {
        let symbols = TracedSymbols::known(&[("a", 0x1000, 0x1010), ("0x1020", 0x3000, 0x3010)], &[]);
        let mut unnamed = UnnamedFunctions::default();
        for to in [0x1000, 0x1020, 0x1040] {
            unnamed.call(to, &symbols);
        }
        let find = |text: &str, ip| {
            let wanted = WantedFunction::from(text);
            (wanted.called(ip, &symbols), wanted.offset(ip, &symbols, &unnamed))
        };
        for (text, ip, called, offset) in [
            ("a", 0x1008, Some(8), Some(8)),
            ("b", 0x1008, None, None),
            // A function that has a name is not found by its address.
            ("0x1000", 0x1000, None, None),
            ("0x1020", 0x1020, Some(0), Some(0)),
            ("0x1020", 0x103f, None, Some(0x1f)),
            ("0x1020", 0x1040, None, None),
            ("0x1020", 0x1018, None, None),
            ("0x1020", 0x3004, Some(4), Some(4)),
            ("0x1030", 0x1030, Some(0), None),
        ] {
            assert_eq!(find(text, ip), (called, offset), "{text} {ip:#x}");
        }
    }
}
