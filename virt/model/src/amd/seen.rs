//! What is known of an instruction that retired.

use super::access::{Access, Address};
use super::caches::{Caches, Found, Side};
use crate::branch::{Decoded, Kind};
use crate::{Mapping, PhysMemory, Retired};

/// An instruction that retired, as the counters and IBS see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Execution {
    pub(super) ip: u64,
    /// Where it went on.
    pub(super) next: u64,
    pub(super) cpl: u8,
    pub(super) decoded: Decoded,
    /// Control went on elsewhere than behind it.
    pub(super) taken: bool,
    /// It is a branch and did not go where it was predicted to.
    pub(super) mispredicted: bool,
    /// How many ops it is, at least one.
    pub(super) ops: u32,
    /// It comes from the microcode.
    pub(super) microcoded: bool,
    /// The fetches that brought it.
    pub(super) fetches: [Option<Fetch>; 2],
    /// Its access to data, where the registers were told.
    pub(super) data: Option<Data>,
}

/// A fetch of a block of code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    pub(super) address: u64,
    pub(super) found: Found,
    /// `None`: it was aborted, has no translation, or nobody samples fetches.
    pub(super) mapping: Option<Mapping>,
    pub(super) completed: bool,
}

/// An access to data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    pub(super) access: Access,
    pub(super) address: Address,
    pub(super) found: Found,
}

impl Execution {
    /// The fetches that brought it.
    pub(super) fn fetches(&self) -> impl Iterator<Item = &Fetch> {
        self.fetches.iter().flatten()
    }

    /// Cycles that it takes beyond the first.
    pub(super) fn stall(&self) -> u32 {
        let fetch: u32 = self.fetches().map(|fetch| fetch.found.stall()).sum();
        // A store waits for nothing.
        let data = self.data.filter(|data| data.access.read).map_or(0, |data| data.found.stall());
        fetch + data + if self.mispredicted { MISPREDICTION_CYCLES } else { 0 }
    }
}

/// Cycles that a mispredicted branch costs.
const MISPREDICTION_CYCLES: u32 = 15;

/// Ops of an instruction of the microcode.
const MICROCODED_OPS: u32 = 8;

/// How many ops an instruction of this kind is, and whether the microcode has them.
///
/// The manuals do not list it. Near calls and returns, and what both loads and stores, are two here.
pub(super) fn ops(kind: Kind, access: Option<Access>) -> (u32, bool) {
    match kind {
        Kind::Far | Kind::InterruptReturn | Kind::MovCr3 | Kind::Hlt | Kind::Mwait => (MICROCODED_OPS, true),
        Kind::DirectCall { .. } | Kind::IndirectCall | Kind::Return => (2, false),
        _ if access.is_some_and(|access| access.read && access.write) => (2, false),
        _ => (1, false),
    }
}

/// Code is fetched in blocks.
#[derive(Debug)]
pub(super) struct Fetcher {
    bytes: u64,
    /// The block at hand; `None` where the next fetch is a new one in any case.
    last: Option<u64>,
}

impl Fetcher {
    pub(super) const fn new(bytes: u64) -> Self {
        Self { bytes, last: None }
    }

    /// The fetches that it takes to have `retired`, of `len` bytes; `sampled`: with physical addresses.
    pub(super) fn fetch(
        &mut self,
        retired: &Retired,
        len: u8,
        caches: &mut Caches,
        mem: &mut dyn PhysMemory,
        sampled: bool,
    ) -> [Option<Fetch>; 2] {
        let first = retired.before.ip;
        let last = first.wrapping_add(u64::from(len.max(1)) - 1);
        let mut one = |address: u64| {
            let block = address / self.bytes;
            if self.last.replace(block) == Some(block) {
                return None;
            }
            let found = caches.access(Side::Instruction, address);
            let mapping = if sampled { super::access::mapping(mem, address) } else { None };
            Some(Fetch { address, found, mapping, completed: true })
        };
        let fetches = [
            one(first),
            if last / self.bytes == first / self.bytes { None } else { one(last & !(self.bytes - 1)) },
        ];
        if retired.after.ip != last.wrapping_add(1) {
            self.last = None;
        }
        fetches
    }

    /// What would have been next is not, because of an interrupt or exception: the fetch that is aborted.
    pub(super) fn abort(&mut self, address: u64) -> Fetch {
        self.last = None;
        Fetch { address, found: Found::default(), mapping: None, completed: false }
    }
}
