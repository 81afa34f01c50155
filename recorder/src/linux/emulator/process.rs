//! A process of the program: its code, and the signals that it handles.

use super::{
    super::block::Block,
    LONGEST_FORK, is_alive, loading,
    plugin::wire::{Kind, MESSAGE, Ring, bytes},
};
use std::{collections::HashMap, fs, rc::Rc, sync::atomic::Ordering::Relaxed, time::Instant};

pub(super) const PAGE: u64 = 4096;

/// One process, from its begin or from when it executed a program to its end or the next program.
pub(super) struct Process {
    pub(super) ring: Ring,
    blocks: Vec<Rc<Block>>,
    pages: HashMap<u64, Rc<[u8]>>,
    /// The signals that are handled, and their handlers: few, and looked at after each return.
    handlers: Vec<(u32, u64)>,
    /// True if it has ended or executes another program: nothing more will be written.
    pub(super) over: bool,
    /// The number of the processes that it has forked and that were found.
    pub(super) children: u32,
    /// Its number is not another process's.
    pub(super) has_number: bool,
    /// Since when nothing is read of any process.
    pub(super) silent_since: Option<Instant>,
}

impl Process {
    /// Makes a process; `parent` is the one that it was forked from.
    pub(super) fn new(ring: Ring, parent: Option<&Self>) -> Self {
        let inherited = ring.header().inherited.load(Relaxed) as usize;
        let (blocks, pages) = parent.map_or_else(Default::default, |parent| {
            let blocks = parent.blocks[..inherited.min(parent.blocks.len())].to_vec();
            (blocks, parent.pages.clone())
        });
        let has_number = has_number(ring.header().pid.load(Relaxed));
        let (handlers, over, children, silent_since) = (vec![], false, 0, None);
        Self { ring, blocks, pages, handlers, over, children, has_number, silent_since }
    }

    /// Looks if the process has ended, while there is nothing to read. `main` is the program's first process, and says
    /// if that one has.
    pub(super) fn look(&mut self, (main, main_has_ended): (u32, bool)) {
        self.over |= match self.pid() {
            pid if pid == main => main_has_ended,
            pid if self.has_number => !is_alive(pid),
            _ => {
                main_has_ended && self.silent_since.get_or_insert_with(Instant::now).elapsed() >= LONGEST_FORK
            }
        };
    }

    pub(super) fn pid(&self) -> u32 {
        self.ring.header().pid.load(Relaxed)
    }

    pub(super) fn generation(&self) -> u32 {
        self.ring.header().generation.load(Relaxed)
    }

    /// Returns the process that it was forked from, and its generation.
    pub(super) fn parent(ring: &Ring) -> Option<(u32, u32)> {
        let header = ring.header();
        let parent = header.parent.load(Relaxed);
        (parent != 0).then(|| (parent, header.parent_generation.load(Relaxed)))
    }

    /// Returns the number of processes that it has forked and that have made no rings yet.
    pub(super) fn unreported(&self) -> u32 {
        self.ring.header().forks.load(Relaxed).saturating_sub(self.children)
    }

    /// Reads all definitions. Returns whether there were any.
    pub(super) fn read(&mut self) -> bool {
        let mut any = false;
        while let Some(begin) = self.ring.peek() {
            any = true;
            let (kind, words) = if begin & MESSAGE == 0 { (None, vec![]) } else { self.ring.take(begin) };
            match (kind, &*words) {
                (Some(Kind::Block), [number, low, high, count, rest @ ..]) => {
                    let rest = bytes(rest);
                    let lengths = (*count as usize).next_multiple_of(4).min(rest.len());
                    let block = Block::read(
                        u64::from(*low) | u64::from(*high) << 32,
                        &rest[..(*count as usize).min(lengths)],
                        &rest[lengths..],
                    );
                    let Some(block) = block.filter(|_| *number as usize == self.blocks.len()) else { break };
                    self.blocks.push(Rc::new(block));
                }
                (Some(Kind::Page), [low, high, page @ ..]) => {
                    let address = u64::from(*low) | u64::from(*high) << 32;
                    self.pages.insert(address / PAGE, bytes(page).into());
                }
                (Some(Kind::Handler), [signal, low, high]) => {
                    self.set_handler(*signal, u64::from(*low) | u64::from(*high) << 32);
                }
                // The plugin writes nothing else here.
                _ => break,
            }
        }
        self.ring.release();
        any
    }

    pub(super) fn block(&mut self, number: u32) -> Option<Rc<Block>> {
        if number as usize >= self.blocks.len() {
            self.read();
        }
        self.known_block(number)
    }

    /// Returns a block that was asked for before.
    pub(super) fn known_block(&self, number: u32) -> Option<Rc<Block>> {
        self.blocks.get(number as usize).cloned()
    }

    /// Returns the content of a page as it was reported last.
    pub(super) fn page(&self, number: u64) -> Option<&[u8]> {
        self.pages.get(&number).map(|page| &**page)
    }

    /// Notes what a program does at a signal.
    pub(super) fn set_handler(&mut self, signal: u32, handler: u64) {
        const SIG_IGN: u64 = 1;
        self.handlers.retain(|(handled, _)| *handled != signal);
        if handler > SIG_IGN {
            self.handlers.push((signal, handler));
        }
    }

    /// Returns true if a signal's handler begins at this address.
    pub(super) fn is_handler(&self, ip: u64) -> bool {
        self.handlers.iter().any(|(_, handler)| *handler == ip)
    }

    /// Returns true if signals of exceptions are handled at this address, and no others.
    pub(super) fn is_fault_handler(&self, ip: u64) -> bool {
        let mut signals = self.handlers.iter().filter(|(_, handler)| *handler == ip).peekable();
        signals.peek().is_some() && signals.all(|(signal, _)| is_of_fault(*signal))
    }
}

/// Returns false if another process has this number: one in a namespace of its own that has mounted `/proc` for it does
/// not know which number it has here. What cannot be looked at is taken for the one that is meant.
fn has_number(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/maps")).map_or(true, |maps| {
        let name = loading::NAME.to_bytes();
        maps.windows(name.len()).any(|text| text == name)
    })
}

/// Returns true if an exception causes a signal.
fn is_of_fault(signal: u32) -> bool {
    matches!(signal.cast_signed(), libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP)
}
