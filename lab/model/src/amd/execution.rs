//! The model's view of an instruction that retired.

use super::access::{AccessKind, DataAddress};
use super::caches::{CacheOutcome, CacheSide, Caches};
use crate::branch::{DecodedInstruction, InstructionKind};
use crate::{Mapping, PhysMemory, Retired};

/// An instruction that retired, as the counters and IBS see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Execution {
    pub(super) ip: u64,
    /// The next address.
    pub(super) next: u64,
    pub(super) cpl: u8,
    pub(super) decoded: DecodedInstruction,
    /// Execution continued elsewhere than at the next instruction in memory.
    pub(super) taken: bool,
    /// The instruction is a mispredicted branch.
    pub(super) mispredicted: bool,
    /// Number of ops, at least one.
    pub(super) ops: u32,
    /// The ops come from the microcode.
    pub(super) microcoded: bool,
    /// The fetches that the instruction needed.
    pub(super) fetches: [Option<Fetch>; 2],
    /// The data access, if there is one and the registers were set.
    pub(super) data: Option<DataAccess>,
}

/// A fetch of a block of code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    pub(super) address: u64,
    pub(super) found: CacheOutcome,
    /// `None` if it was aborted, the address has no translation, or fetches are not sampled.
    pub(super) mapping: Option<Mapping>,
    pub(super) completed: bool,
}

/// An access to data.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataAccess {
    pub(super) access: AccessKind,
    pub(super) address: DataAddress,
    pub(super) found: CacheOutcome,
}

impl Execution {
    /// Iterates over the fetches that the instruction needed.
    pub(super) fn fetches(&self) -> impl Iterator<Item = &Fetch> {
        self.fetches.iter().flatten()
    }

    /// Returns the cycles that the instruction takes in addition to the first one.
    pub(super) fn stall(&self) -> u32 {
        let fetch: u32 = self.fetches().map(|fetch| fetch.found.stall()).sum();
        // A store does not stall.
        let data = self.data.filter(|data| data.access.read).map_or(0, |data| data.found.stall());
        fetch + data + if self.mispredicted { MISPREDICTION_CYCLES } else { 0 }
    }
}

/// The cost in cycles of a mispredicted branch.
const MISPREDICTION_CYCLES: u32 = 15;

/// The number of ops of a microcoded instruction.
const MICROCODED_OPS: u32 = 8;

/// Returns the number of ops of an instruction of this kind, and whether it is microcoded.
///
/// The manuals do not list this. Near calls and returns, and instructions that both load and store, have two ops here.
pub(super) fn ops(kind: InstructionKind, access: Option<AccessKind>) -> (u32, bool) {
    match kind {
        InstructionKind::Far
        | InstructionKind::InterruptReturn
        | InstructionKind::MovCr3
        | InstructionKind::Hlt
        | InstructionKind::Mwait => (MICROCODED_OPS, true),
        InstructionKind::DirectCall { .. } | InstructionKind::IndirectCall | InstructionKind::Return => {
            (2, false)
        }
        _ if access.is_some_and(|access| access.read && access.write) => (2, false),
        _ => (1, false),
    }
}

/// The fetching of code, in blocks.
#[derive(Debug)]
pub(super) struct Fetcher {
    /// The size of a block in bytes, as a power of two.
    size_log2: u32,
    /// The block fetched last; `None` if the next instruction needs a new fetch in any case.
    last: Option<u64>,
}

impl Fetcher {
    /// Returns a fetcher of blocks of `bytes` bytes, a power of two.
    pub(super) const fn new(bytes: u64) -> Self {
        Self { size_log2: bytes.trailing_zeros(), last: None }
    }

    /// Returns the fetches that `retired`, of `len` bytes, needs. If `sampled`, they have physical addresses.
    pub(super) fn fetches_of(
        &mut self,
        retired: &Retired,
        len: u8,
        caches: &mut Caches,
        mem: &mut dyn PhysMemory,
        sampled: bool,
    ) -> [Option<Fetch>; 2] {
        let size_log2 = self.size_log2;
        let first = retired.before.ip;
        let last = first.wrapping_add(u64::from(len.max(1)) - 1);
        let mut one = |address: u64| {
            let block = address >> size_log2;
            if self.last.replace(block) == Some(block) {
                return None;
            }
            let found = caches.access(CacheSide::Instruction, address);
            let mapping = if sampled { super::access::mapping(mem, address) } else { None };
            Some(Fetch { address, found, mapping, completed: true })
        };
        let fetches = [
            one(first),
            if last >> size_log2 == first >> size_log2 { None } else { one(last >> size_log2 << size_log2) },
        ];
        if retired.after.ip != last.wrapping_add(1) {
            self.last = None;
        }
        fetches
    }

    /// Returns the fetch that is aborted when an interrupt or exception replaces the next instruction.
    pub(super) fn abort(&mut self, address: u64) -> Fetch {
        self.last = None;
        Fetch { address, found: CacheOutcome::default(), mapping: None, completed: false }
    }
}
