//! The kernel's code, as it changes in place.

use crate::source::TextPoke;
use std::collections::BTreeMap;
use std::hash::BuildHasher;

/// The number of the kernel's changes that were made at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelState(usize);

/// The changes of the kernel's code.
#[derive(Debug, Default)]
pub struct KernelText {
    /// Each with its time, in their order.
    pokes: Vec<(u64, TextPoke)>,
    /// A number that distinguishes the bytes after each change from others; the first is that before all changes.
    contents: Vec<u64>,
}

/// Bytes of the kernel's code that are others than those that a copy of it has, by address.
pub type KernelBytes = BTreeMap<u64, u8>;

impl KernelText {
    /// Adds a change, which comes after those before.
    pub(super) fn add(&mut self, time: u64, poke: &TextPoke) {
        self.pokes.push((time, poke.clone()));
    }

    /// Completes the states after the last change was added.
    pub(super) fn finish(&mut self) {
        let (mut bytes, mut content) = (self.first(), 0);
        self.contents = vec![content];
        for (_, poke) in &self.pokes {
            for (address, new) in at_addresses(poke.address, &poke.new) {
                let old = bytes.insert(address, new);
                // The sum of the hashes of all bytes that differ from the first state: 0 if none does.
                content ^= old.map_or(0, |old| number(address, old)) ^ number(address, new);
            }
            self.contents.push(content);
        }
    }

    /// Returns the times between `from` and `to`, both exclusive, at which the code changes, each once.
    pub(super) fn times(&self, from: u64, to: u64) -> impl Iterator<Item = u64> {
        let first = self.pokes.partition_point(|(time, _)| *time <= from);
        let mut last = None;
        let times = self.pokes[first..].iter().map(|(time, _)| *time).take_while(move |time| *time < to);
        times.filter(move |time| last.replace(*time) != Some(*time))
    }

    /// Returns the state at a time.
    pub(super) fn at(&self, time: u64) -> KernelState {
        KernelState(self.pokes.partition_point(|(from, _)| *from <= time))
    }

    /// Returns a number that is the same for two states with the same code.
    #[must_use]
    pub fn content(&self, KernelState(number): KernelState) -> u64 {
        self.contents.get(number).copied().unwrap_or(0)
    }

    /// Returns the bytes before all changes, as the changes tell them. Code that came where nothing was counts as if it
    /// had always been there.
    fn first(&self) -> KernelBytes {
        let mut bytes = KernelBytes::new();
        for (_, TextPoke { address, old, new }) in &self.pokes {
            for (address, byte) in at_addresses(*address, if old.is_empty() { new } else { old }) {
                bytes.entry(address).or_insert(byte);
            }
        }
        bytes
    }

    /// Returns the bytes in a state.
    #[must_use]
    pub fn bytes(&self, KernelState(number): KernelState) -> KernelBytes {
        let mut bytes = self.first();
        for (_, poke) in self.pokes.iter().take(number) {
            bytes.extend(at_addresses(poke.address, &poke.new));
        }
        bytes
    }
}

/// Pairs each byte with its address, from `address` on.
fn at_addresses(address: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, u8)> {
    let addresses = (0..).map_while(move |number| address.checked_add(number));
    addresses.zip(bytes.iter().copied())
}

/// Hashes a byte at an address.
fn number(address: u64, byte: u8) -> u64 {
    rustc_hash::FxBuildHasher.hash_one((address, byte))
}
