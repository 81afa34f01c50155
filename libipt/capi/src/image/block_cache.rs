//! The block cache of a section: the distance from each instruction to the next decision of the trace. libipt's
//! `pt_block_cache` has the same entries.

use std::{
    ffi::c_int,
    sync::atomic::{AtomicU32, Ordering},
};

/// The action at a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing: the decision is too far away for one entry, and the next entry leads on from here.
    Again,
    Conditional,
    IndirectCall,
    Return,
    Indirect,
    /// The instruction has to be decoded.
    Decode,
}

/// The code between an instruction and the next decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockCacheEntry {
    /// The distance from the instruction to the decision.
    pub(crate) displacement: i16,
    /// The number of instructions, including the one that decides.
    pub(crate) insns: u8,
    /// The execution mode, at least 1 and at most 3.
    pub(crate) mode: u8,
    pub(crate) decision: Decision,
    /// The size of the instruction that decides; zero if it is above seven.
    pub(crate) size: u8,
}

impl BlockCacheEntry {
    const fn pack(self) -> u32 {
        self.displacement.cast_unsigned() as u32
            | (self.insns as u32) << 16
            | (self.mode as u32) << 24
            | (self.decision as u32) << 26
            | (self.size as u32) << 29
    }

    fn unpack(word: u32) -> Option<Self> {
        let entry = PackedEntry(word);
        // No cast loses anything: each field of the word is as narrow as the type that it becomes.
        entry.is_known().then_some(Self {
            displacement: entry.displacement() as i16,
            insns: entry.insns() as u8,
            mode: entry.mode() as u8,
            decision: entry.decision()?,
            size: entry.size() as u8,
        })
    }
}

/// An entry as a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedEntry(pub(crate) u32);

impl PackedEntry {
    /// Returns the execution mode, which is zero only if there is no entry.
    #[inline(always)]
    pub(crate) const fn mode(self) -> c_int {
        (self.0 >> 24 & 3) as c_int
    }

    #[inline(always)]
    pub(crate) const fn is_known(self) -> bool {
        self.mode() != 0
    }

    #[inline(always)]
    pub(crate) const fn displacement(self) -> i64 {
        (self.0 as u16).cast_signed() as i64
    }

    #[inline(always)]
    pub(crate) const fn insns(self) -> u16 {
        (self.0 >> 16) as u8 as u16
    }

    #[inline(always)]
    pub(crate) fn decision(self) -> Option<Decision> {
        const AGAIN: u32 = Decision::Again as u32;
        const CONDITIONAL: u32 = Decision::Conditional as u32;
        const INDIRECT_CALL: u32 = Decision::IndirectCall as u32;
        const RETURN: u32 = Decision::Return as u32;
        const INDIRECT: u32 = Decision::Indirect as u32;
        const DECODE: u32 = Decision::Decode as u32;
        match self.0 >> 26 & 7 {
            AGAIN => Some(Decision::Again),
            CONDITIONAL => Some(Decision::Conditional),
            INDIRECT_CALL => Some(Decision::IndirectCall),
            RETURN => Some(Decision::Return),
            INDIRECT => Some(Decision::Indirect),
            DECODE => Some(Decision::Decode),
            _ => None,
        }
    }

    /// Returns the size of the instruction that decides; zero if it is above seven.
    #[inline(always)]
    pub(crate) const fn size(self) -> u64 {
        (self.0 >> 29) as u64
    }
}

/// The entries of a section, by offset. Decoders in several threads may share them.
#[derive(Debug)]
pub(crate) struct BlockCache(Box<[AtomicU32]>);

impl BlockCache {
    pub(crate) fn new(bytes: usize) -> Self {
        // Zeroed memory is mapped on first use, and most of it is never used.
        let words = Box::into_raw(vec![0_u32; bytes].into_boxed_slice());
        // SAFETY: both types have the same size and alignment, and nobody else has the memory.
        Self(unsafe { Box::from_raw(words as *mut [AtomicU32]) })
    }

    /// Returns the entry of an offset. `Some(None)`: no entry yet. `None`: no such offset.
    pub(crate) fn get(&self, offset: u64) -> Option<Option<BlockCacheEntry>> {
        let word = self.0.get(usize::try_from(offset).ok()?)?;
        Some(BlockCacheEntry::unpack(word.load(Ordering::Relaxed)))
    }

    /// Returns the packed entries from an offset on.
    pub(crate) fn from(&self, offset: usize) -> &[AtomicU32] {
        self.0.get(offset..).unwrap_or_default()
    }

    /// Sets the entry of an offset; `None` if there is no such offset.
    pub(crate) fn set(&self, offset: u64, entry: BlockCacheEntry) -> Option<()> {
        self.0.get(usize::try_from(offset).ok()?)?.store(entry.pack(), Ordering::Relaxed);
        Some(())
    }
}
