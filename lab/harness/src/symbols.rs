//! Names and addresses of an image.

use anyhow::{Context, Result};
use object::{Object, ObjectSymbol};
use std::collections::HashMap;
use std::path::Path;

/// The symbols of an ELF image, by their linkage names.
#[derive(Clone, Debug, Default)]
pub struct Symbols(HashMap<String, u64>);

impl Symbols {
    /// Reads the symbol table of an ELF file.
    ///
    /// # Errors
    /// If the file cannot be read or is not an ELF file.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let file = object::File::parse(&*bytes).with_context(|| format!("{} is no ELF", path.display()))?;
        let named = |symbol: object::Symbol<'_, '_>| Some((symbol.name().ok()?.to_owned(), symbol.address()));
        Ok(Self(file.symbols().filter(|symbol| symbol.is_definition()).filter_map(named).collect()))
    }

    /// Makes a table of given symbols, for tests.
    pub fn from_pairs<'n>(pairs: impl IntoIterator<Item = (&'n str, u64)>) -> Self {
        Self(pairs.into_iter().map(|(name, address)| (name.to_owned(), address)).collect())
    }

    /// Returns the addresses of all symbols, in ascending order.
    #[must_use]
    pub fn addresses(&self) -> Vec<u64> {
        let mut addresses: Vec<u64> = self.0.values().copied().collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Returns the address of `name`.
    ///
    /// # Errors
    /// If the image has no symbol of this name.
    pub fn address(&self, name: &str) -> Result<u64> {
        self.0.get(name).copied().with_context(|| format!("the image has no symbol {name}"))
    }
}
