//! The code of the program: pages as they were executed.

use super::maps::Mapping;
use pugmark_decoder_core::insn;
use pugmark_model::ExecMode;
use std::collections::{HashMap, HashSet};

const PAGE: u64 = 4096;
const PAGE_BYTES: usize = PAGE as usize;

/// Snapshots of the pages that could be executed.
///
/// A snapshot may be replaced by a later one as long as no instruction that was executed differs; when one does,
/// no single image could explain the trace.
#[derive(Debug, Default)]
pub(super) struct Code {
    /// By page number.
    pages: HashMap<u64, Box<Page>>,
    /// The mappings that the snapshots were taken of.
    mappings: HashSet<Mapping>,
}

#[derive(Debug)]
struct Page {
    bytes: [u8; PAGE_BYTES],
    volatile: bool,
    /// Bitmaps: where instructions that were executed begin, and all of their bytes.
    begins: [u64; PAGE_BYTES / 64],
    executed: [u64; PAGE_BYTES / 64],
}

/// Code that was executed is not the same any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed;

/// The bytes at an address: up to 15 of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes {
    bytes: [u8; insn::MAX_LEN],
    len: usize,
}

impl Bytes {
    /// Them.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Reads memory, and how many bytes of it there are.
pub(super) type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> usize;

impl Code {
    /// Takes snapshots of what can be executed now and was not mapped like this before. After [`Changed`] nothing is
    /// taken over.
    pub(super) fn refresh(&mut self, mappings: &[Mapping], read: Read<'_>) -> Result<(), Changed> {
        let executable: Vec<_> = mappings.iter().filter(|mapping| mapping.executable).collect();
        let fresh = executable.iter().filter(|mapping| !self.mappings.contains(**mapping));
        let mut pages = vec![];
        for mapping in fresh {
            for number in mapping.start / PAGE..mapping.end / PAGE {
                if let Some(page) = Page::read(number, mapping.volatile, read) {
                    pages.push((number, page));
                }
            }
        }
        let differs = |(number, page): &(u64, Box<Page>)| {
            self.pages.get(number).is_some_and(|old| !old.explains(&page.bytes))
        };
        if pages.iter().any(differs) {
            return Err(Changed);
        }
        for (number, page) in pages {
            self.replace(number, page);
        }
        self.mappings = executable.into_iter().cloned().collect();
        Ok(())
    }

    /// The bytes of the instruction at `ip`, which is about to be executed. Empty: there is no snapshot of it.
    pub(super) fn fetch(&mut self, ip: u64, mode: ExecMode, read: Read<'_>) -> Result<Bytes, Changed> {
        let bytes = self.peek(ip);
        if self.pages.get(&(ip / PAGE)).is_some_and(|page| page.volatile) {
            let mut now = Bytes::default();
            now.len = read(ip, &mut now.bytes);
            if now.as_slice() != bytes.as_slice() {
                self.read_again(ip / PAGE, read)?;
                self.read_again(ip.saturating_add(insn::MAX_LEN as u64 - 1) / PAGE, read)?;
                return Ok(self.executes(ip, mode));
            }
        }
        let known = self.pages.get(&(ip / PAGE)).is_some_and(|page| bit(&page.begins, (ip % PAGE) as usize));
        Ok(if known { bytes } else { self.executes(ip, mode) })
    }

    /// The snapshots, each run of adjacent pages in one piece: where it begins, and its bytes.
    pub(super) fn sections(&self) -> Vec<(u64, Vec<u8>)> {
        let mut sections: Vec<(u64, Vec<u8>)> = vec![];
        let mut pages: Vec<_> = self.pages.iter().collect();
        pages.sort_unstable_by_key(|(number, _)| **number);
        for (&number, page) in pages {
            match sections.last_mut() {
                Some((base, bytes)) if *base + bytes.len() as u64 == number * PAGE => {
                    bytes.extend(page.bytes)
                }
                _ => sections.push((number * PAGE, page.bytes.to_vec())),
            }
        }
        sections
    }

    /// Notes the instruction at `ip` as executed.
    fn executes(&mut self, ip: u64, mode: ExecMode) -> Bytes {
        let bytes = self.peek(ip);
        let len = insn::decode(bytes.as_slice(), mode, ip).map_or(0, |insn| insn.len);
        for at in ip..ip.saturating_add(u64::from(len)) {
            if let Some(page) = self.pages.get_mut(&(at / PAGE)) {
                set(&mut page.executed, (at % PAGE) as usize);
                if at == ip {
                    set(&mut page.begins, (at % PAGE) as usize);
                }
            }
        }
        bytes
    }

    fn peek(&self, ip: u64) -> Bytes {
        let mut found = Bytes::default();
        let within = (ip % PAGE) as usize;
        let Some(page) = self.pages.get(&(ip / PAGE)) else { return found };
        let here = &page.bytes[within..(within + insn::MAX_LEN).min(PAGE_BYTES)];
        found.bytes[..here.len()].copy_from_slice(here);
        found.len = here.len();
        if found.len < insn::MAX_LEN
            && let Some(next) = self.pages.get(&(ip / PAGE + 1))
        {
            found.bytes[found.len..].copy_from_slice(&next.bytes[..insn::MAX_LEN - found.len]);
            found.len = insn::MAX_LEN;
        }
        found
    }

    fn read_again(&mut self, number: u64, read: Read<'_>) -> Result<(), Changed> {
        let Some(old) = self.pages.get(&number) else { return Ok(()) };
        let Some(new) = Page::read(number, old.volatile, read) else { return Ok(()) };
        if !old.explains(&new.bytes) {
            return Err(Changed);
        }
        self.replace(number, new);
        Ok(())
    }

    /// Puts a newer snapshot in an older one's place; what was executed stays known.
    fn replace(&mut self, number: u64, mut page: Box<Page>) {
        if let Some(old) = self.pages.get(&number) {
            (page.begins, page.executed) = (old.begins, old.executed);
        }
        self.pages.insert(number, page);
    }
}

impl Page {
    fn read(number: u64, volatile: bool, read: Read<'_>) -> Option<Box<Self>> {
        let empty = [0; PAGE_BYTES / 64];
        let mut page = Box::new(Self { bytes: [0; PAGE_BYTES], volatile, begins: empty, executed: empty });
        (read(number * PAGE, &mut page.bytes) == PAGE_BYTES).then_some(page)
    }

    /// What was executed of it is in `bytes` as well.
    fn explains(&self, bytes: &[u8; PAGE_BYTES]) -> bool {
        self.bytes == *bytes
            || (0..PAGE_BYTES).all(|at| self.bytes[at] == bytes[at] || !bit(&self.executed, at))
    }
}

fn bit(map: &[u64; PAGE_BYTES / 64], at: usize) -> bool {
    map[at / 64] >> (at % 64) & 1 != 0
}

fn set(map: &mut [u64; PAGE_BYTES / 64], at: usize) {
    map[at / 64] |= 1 << (at % 64);
}
