//! Names for addresses: the functions of the files whose code was traced.

use super::{code::TracedCode, recording::Traced};
use anyhow::{Context, Result};
use object::{Object, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind, elf::PF_X};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

/// Where libraries are looked for.
const LIBRARIES: [&str; 4] = ["/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"];

/// The functions of the traced code.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    /// The name and the end of each, by where it begins.
    functions: BTreeMap<u64, (String, u64)>,
}

impl Names {
    /// Finds the functions of the program that a trace names, of the libraries that it needs, and of more files. A file
    /// counts if its bytes are in the traced code, at the place where they are.
    ///
    /// # Errors
    /// If one of `more` cannot be read, or is not the code that was traced.
    pub(super) fn of(traced: &Traced, code: &TracedCode, more: &[PathBuf]) -> Result<Self> {
        let mut names = Self::default();
        let mut seen = BTreeSet::new();
        let mut files: Vec<PathBuf> = vec![];
        files.extend(traced.part.as_ref().and_then(|part| part.exe.clone()).map(PathBuf::from));
        files
            .extend(traced.perf.iter().flat_map(|perf| perf.code.iter().map(|section| section.file.clone())));
        files.extend(LIBRARIES.iter().map(|folder| Path::new(folder).join("ld-linux-x86-64.so.2")));
        while let Some(file) = files.pop() {
            if seen.insert(fs::canonicalize(&file).unwrap_or_default()) {
                files.extend(names.add(&file, code).unwrap_or_default());
            }
        }
        for file in more {
            let what = || format!("--symbols {}", file.display());
            names.add(file, code).with_context(what)?;
        }
        Ok(names)
    }

    /// Adds the functions of a file, if it was traced. Returns the libraries that it needs.
    fn add(&mut self, file: &Path, code: &TracedCode) -> Result<Vec<PathBuf>> {
        let bytes = fs::read(file)?;
        let parsed = object::File::parse(&*bytes)?;
        let moved = moved(&parsed, code).context("no page of its code is in the code that was traced")?;
        for (from, (name, to)) in functions(&parsed, &(0..u64::MAX)) {
            self.functions.insert(from.wrapping_add(moved), (name, to.wrapping_add(moved)));
        }
        let needed = parsed.imports().into_iter().flatten().flatten().filter_map(|import| {
            let name = std::str::from_utf8(import.library()).ok()?.to_owned();
            (!name.is_empty()).then_some(name)
        });
        let mut needed: BTreeSet<String> = needed.collect();
        // What a program needs nearly always.
        needed.insert("libc.so.6".into());
        let place = |name: String| {
            LIBRARIES.iter().map(|folder| Path::new(folder).join(&name)).find(|file| file.exists())
        };
        Ok(needed.into_iter().filter_map(place).collect())
    }

    /// The function that an address is in, and how far.
    pub(super) fn function(&self, ip: u64) -> Option<(&str, u64)> {
        let (from, (name, to)) = self.functions.range(..=ip).next_back()?;
        (ip < *to).then_some((name, ip - from))
    }

    /// The function's name, or the address.
    pub(super) fn name(&self, ip: u64) -> String {
        self.function(ip).map_or_else(|| format!("{ip:#x}"), |(name, _)| name.into())
    }

    /// The function's name and how far the address is in it, or the address.
    pub(super) fn place(&self, ip: u64) -> String {
        match self.function(ip) {
            Some((name, 0)) => name.into(),
            Some((name, offset)) => format!("{name}+{offset:#x}"),
            None => format!("{ip:#x}"),
        }
    }
}

/// The functions in a section: their names and ends, by where they begin.
pub(super) fn functions(file: &object::File<'_>, section: &Range<u64>) -> BTreeMap<u64, (String, u64)> {
    let mut found = BTreeMap::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let (from, size) = (symbol.address(), symbol.size());
        let to = from.saturating_add(size).min(section.end);
        if symbol.kind() == SymbolKind::Text && size > 0 && section.contains(&from) {
            let name = symbol.name().unwrap_or("?");
            found.entry(from).or_insert_with(|| (format!("{:#}", rustc_demangle::demangle(name)), to));
        }
    }
    // A function does not reach into the next one.
    let begins: Vec<u64> = found.keys().copied().collect();
    for (from, (_, to)) in &mut found {
        let next = begins[begins.partition_point(|begin| begin <= from)..].first();
        *to = next.map_or(*to, |next| *next.min(to));
    }
    found
}

/// The size of a page.
const PAGE: u64 = 0x1000;

/// Finds where the code of a file was loaded: by how much most of its pages were moved that are in the traced code with
/// the same bytes. `None` if no page is.
pub(super) fn moved(file: &object::File<'_>, code: &TracedCode) -> Option<u64> {
    let mut pages: HashMap<&[u8], u64> = HashMap::new();
    let executable = |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & PF_X.0 != 0);
    for segment in file.segments().filter(|segment| executable(segment.flags())) {
        let (begin, bytes) = (segment.address(), segment.data().ok()?);
        let first = begin.next_multiple_of(PAGE) - begin;
        for (number, page) in bytes.get(first as usize..)?.chunks(PAGE as usize).enumerate() {
            pages.insert(page, begin + first + number as u64 * PAGE);
        }
    }
    // The last page of a segment goes on with other bytes in memory.
    let tails: Vec<_> = pages.iter().filter(|(page, _)| page.len() < PAGE as usize).collect();
    let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
    for section in code.sections() {
        let first = section.base.next_multiple_of(PAGE) - section.base;
        for (number, page) in
            section.bytes.get(first as usize..).unwrap_or_default().chunks(PAGE as usize).enumerate()
        {
            let address = section.base + first + number as u64 * PAGE;
            let tail = tails.iter().find(|(tail, _)| !tail.is_empty() && page.starts_with(tail));
            for from in pages.get(page).copied().into_iter().chain(tail.map(|(_, from)| **from)) {
                *votes.entry(address.wrapping_sub(from)).or_default() += 1;
            }
        }
    }
    votes.into_iter().max_by_key(|(_, count)| *count).map(|(moved, _)| moved)
}
