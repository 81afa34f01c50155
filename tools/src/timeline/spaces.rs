//! The mappings of processes, shared between a process and its copies.

use crate::source::{Mapping, perf_data::VDSO};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The number of an address space: the mappings of a process until one replaces another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(usize);

/// Code at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodePart {
    /// The address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub len: u64,
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// The file, or [`VDSO`].
    pub path: Arc<Path>,
}

/// The spaces of all processes.
#[derive(Debug, Default)]
pub(super) struct Spaces(Vec<Space>);

#[derive(Debug, Default)]
struct Space {
    /// The space that this one is based on, and the number of that space's own mappings that this one shares.
    base: Option<(SpaceId, usize)>,
    own: Vec<Mapping>,
    /// The places of the mappings: the end and the number of each by its begin. Mappings do not overlap.
    places: BTreeMap<u64, (u64, usize)>,
}

/// The current mappings of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapped {
    space: SpaceId,
    /// The number of the space's mappings that the process has, if the space belongs to another process.
    shared: Option<usize>,
}

impl Mapped {
    pub(super) const fn space(self) -> SpaceId {
        self.space
    }
}

/// The relation of a new mapping to the existing ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    /// No mapping was there.
    Free,
    /// The same mapping was there, all of it or a part.
    Same { all: bool },
    /// Another mapping was there.
    Over,
}

impl Spaces {
    /// Makes an empty space.
    pub(super) fn begin(&mut self) -> Mapped {
        self.0.push(Space::default());
        Mapped { space: SpaceId(self.0.len() - 1), shared: None }
    }

    /// Returns the same mappings for a new process.
    pub(super) fn share(&self, mapped: &Mapped) -> Mapped {
        let count = mapped.shared.unwrap_or_else(|| self.0[mapped.space.0].own.len());
        Mapped { shared: Some(count), ..*mapped }
    }

    /// Maps a part of a file. If that makes a new space, returns the space, and true if the space holds only from now
    /// on.
    pub(super) fn map(&mut self, mapped: &mut Mapped, mapping: &Mapping) -> Option<(SpaceId, bool)> {
        let lies = self.lies(*mapped, mapping);
        match lies {
            Lies::Same { all: true } => return None,
            // Only code matters, and a mapping that replaces code.
            Lies::Free if !is_code(mapping) => return None,
            _ => {}
        }
        let is_new = lies == Lies::Over || mapped.shared.is_some();
        if is_new {
            let count = mapped.shared.unwrap_or_else(|| self.0[mapped.space.0].own.len());
            let base = Some((mapped.space, count));
            self.0.push(Space { base, ..Space::default() });
            *mapped = Mapped { space: SpaceId(self.0.len() - 1), shared: None };
        }
        let space = &mut self.0[mapped.space.0];
        paint(&mut space.places, mapping.address, end(mapping), space.own.len());
        space.own.push(mapping.clone());
        is_new.then_some((mapped.space, lies == Lies::Over))
    }

    fn lies(&self, mapped: Mapped, mapping: &Mapping) -> Lies {
        let (from, to) = (mapping.address, end(mapping));
        let mut next = Some((mapped.space, mapped.shared.unwrap_or(usize::MAX)));
        let mut lies = Lies::Free;
        while let Some((SpaceId(number), count)) = next {
            let Some(space) = self.0.get(number) else { break };
            let there = space.places.range(..to).rev().take_while(|(_, (end, _))| *end > from);
            for (begin, (until, number)) in there.filter(|(_, (_, number))| *number < count) {
                match space.own.get(*number) {
                    Some(other) if is_same(other, mapping) => {
                        // Older mappings at these addresses are hidden.
                        if *begin <= from && *until >= to {
                            return Lies::Same { all: true };
                        }
                        lies = Lies::Same { all: false };
                    }
                    _ => return Lies::Over,
                }
            }
            next = space.base;
        }
        lies
    }

    /// Returns the number of stored mappings.
    #[cfg(test)]
    pub(super) fn mappings(&self) -> usize {
        self.0.iter().map(|space| space.own.len()).sum()
    }

    /// Returns the code in a space.
    pub(super) fn code(&self, space: SpaceId) -> Vec<CodePart> {
        let mut chain = vec![];
        let mut next = Some((space, usize::MAX));
        while let Some((SpaceId(number), count)) = next {
            let Some(space) = self.0.get(number) else { break };
            chain.push(space.own.get(..count.min(space.own.len())).unwrap_or_default());
            next = space.base;
        }
        let mappings: Vec<&Mapping> = chain.into_iter().rev().flatten().collect();
        let mut places = BTreeMap::new();
        for (number, mapping) in mappings.iter().enumerate() {
            paint(&mut places, mapping.address, end(mapping), number);
        }
        let part = |(address, (end, number)): (u64, (u64, usize))| {
            let mapping = mappings.get(number).filter(|mapping| is_code(mapping))?;
            let offset = mapping.offset.wrapping_add(address.wrapping_sub(mapping.address));
            Some(CodePart { address, len: end - address, offset, path: mapping.path.clone() })
        };
        places.into_iter().filter_map(part).collect()
    }
}

/// Puts a mapping over the existing ones.
fn paint(places: &mut BTreeMap<u64, (u64, usize)>, from: u64, to: u64, number: usize) {
    if from >= to {
        return;
    }
    let hidden: Vec<_> = places
        .range(..to)
        .rev()
        .take_while(|(_, (end, _))| *end > from)
        .map(|(begin, (end, number))| (*begin, *end, *number))
        .collect();
    for (begin, end, number) in hidden {
        places.remove(&begin);
        if begin < from {
            places.insert(begin, (from, number));
        }
        if end > to {
            places.insert(to, (end, number));
        }
    }
    places.insert(from, (to, number));
}

fn end(mapping: &Mapping) -> u64 {
    mapping.address.saturating_add(mapping.len)
}

/// Returns true if two mappings have the same bytes wherever they overlap.
fn is_same(one: &Mapping, other: &Mapping) -> bool {
    let moved = |mapping: &Mapping| mapping.address.wrapping_sub(mapping.offset);
    (one.executable, &one.path, moved(one)) == (other.executable, &other.path, moved(other))
}

/// Returns true if a mapping is code of a file or of the vDSO. Memory without a file has the kernel's names for it.
fn is_code(mapping: &Mapping) -> bool {
    let Mapping { path, executable, .. } = mapping;
    let is_memory = ["//anon", "/dev/zero", "/anon_hugepage"].iter().any(|name| path.starts_with(name));
    *executable && (path.is_absolute() && !is_memory || **path == *Path::new(VDSO))
}
