//! What the model knows of an instruction that retired.

use super::access::{AccessKind, DataAddress};
use super::caches::{CacheOutcome, CacheSide, Caches};
use crate::branch::{DecodedInstruction, InstructionKind};
use crate::{Mapping, PhysMemory, Retired};

/// An instruction that retired, as the counters and IBS see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Execution {
    pub(super) ip: u64,
    /// Where execution continued.
    pub(super) next: u64,
    pub(super) cpl: u8,
    pub(super) decoded: DecodedInstruction,
    /// Whether execution continued elsewhere than at the next instruction.
    pub(super) taken: bool,
    /// Whether it is a branch that did not go where it was predicted to go.
    pub(super) mispredicted: bool,
    /// How many ops the instruction has, at least one.
    pub(super) ops: u32,
    /// Whether its ops come from the microcode.
    pub(super) microcoded: bool,
    /// The fetches that it needed.
    pub(super) fetches: [Option<Fetch>; 2],
    /// Its data access, if it has one and the registers were given.
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
    /// The fetches that the instruction needed.
    pub(super) fn fetches(&self) -> impl Iterator<Item = &Fetch> {
        self.fetches.iter().flatten()
    }

    /// Cycles that the instruction takes in addition to the first one.
    pub(super) fn stall(&self) -> u32 {
        let fetch: u32 = self.fetches().map(|fetch| fetch.found.stall()).sum();
        // A store does not stall.
        let data = self.data.filter(|data| data.access.read).map_or(0, |data| data.found.stall());
        fetch + data + if self.mispredicted { MISPREDICTION_CYCLES } else { 0 }
    }
}

/// Cycles that a mispredicted branch costs.
const MISPREDICTION_CYCLES: u32 = 15;

/// The number of ops of a microcoded instruction.
const MICROCODED_OPS: u32 = 8;

/// Returns how many ops an instruction of this kind has, and whether it is microcoded.
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
    /// The bytes of a block, as a power of two.
    size_log2: u32,
    /// The block fetched last; `None` if the next instruction needs a new fetch in any case.
    last: Option<u64>,
}

impl Fetcher {
    /// Fetches blocks of `bytes` bytes, a power of two.
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

    /// An interrupt or exception replaces the next instruction: returns the fetch that is aborted.
    pub(super) fn abort(&mut self, address: u64) -> Fetch {
        self.last = None;
        Fetch { address, found: CacheOutcome::default(), mapping: None, completed: false }
    }
}
