//! PEBS output to Intel PT: a record as the items of blocks, passed to the packetizer.
//!
//! SDM vol. 3, Performance Monitoring, "PEBS Output to Intel Processor Trace", was not available. Types of blocks and
//! numbers of items are those that perf's decoder reads: Linux, `tools/perf/util/intel-pt-decoder/intel-pt-decoder.h`,
//! `intel_pt_blk_type` and `intel_pt_blk_items`, and `tools/perf/util/intel-pt.c`, `intel_pt_add_gp_regs`,
//! `intel_pt_add_xmm`, `intel_pt_add_lbrs`.
//!
//! Assumptions made here:
//! - perf reads ten branches from each of three blocks, from the first item on; two items of a block remain. So a
//!   record has at most 30 branches, of 32.
//! - perf says of items of four bytes only that they are registers of 32 bits. Here a record has them outside 64-bit
//!   mode, and then has no R8 to R15.
//! - The order of the blocks. perf reads any order.

use pugmark_decoder_core::packet::{Bbp, Bip, BipValue, BlockItemSize};
use pugmark_decoder_core::pebs::{PebsRecord, Registers, SampledBranch};

const REGISTERS: u8 = 1;
const BASIC: u8 = 4;
const MEMORY: u8 = 5;
const FIRST_BRANCHES: u8 = 8;
const XMM: u8 = 16;

/// Maximum number of branches in a block of them, and of such blocks.
const BRANCHES_A_BLOCK: usize = 10;
const BRANCH_BLOCKS: usize = 3;
/// Registers, the basic block, memory, XMM registers in halves, branches of three items.
const MOST_ITEMS: usize = 18 + 3 + 4 + 32 + 3 * BRANCHES_A_BLOCK * BRANCH_BLOCKS;

/// The record, if any, that waits for the packetizer.
#[derive(Debug)]
pub(crate) struct PebsBlockItems {
    /// The type of the item's block, and the item.
    items: [(u8, Bip); MOST_ITEMS],
    len: usize,
}

impl PebsBlockItems {
    pub(crate) const fn new() -> Self {
        Self { items: [(0, Bip { id: 0, value: BipValue::Eight(0) }); MOST_ITEMS], len: 0 }
    }

    /// Iterates over the items, each with the type of its block. The items of a block are adjacent.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u8, Bip)> + '_ {
        self.items[..self.len].iter().copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Replaces the record; `narrow`: registers have 32 bits.
    pub(super) fn set(&mut self, record: &PebsRecord<'_>, narrow: bool) {
        self.clear();
        let basic = [record.eventing_ip, record.applicable_counters, record.tsc];
        self.block(BASIC, basic.map(Option::unwrap_or_default));
        if let Some(memory) = record.memory {
            let tx_abort = record.tx_abort.unwrap_or_default().0;
            self.block(MEMORY, [memory.address, memory.source.0, memory.latency, tx_abort]);
        }
        if let Some(registers) = record.registers {
            self.registers(registers, narrow);
        }
        if let Some(xmm) = record.xmm {
            self.block(XMM, xmm.as_chunks().0.iter().map(|half| u64::from_le_bytes(*half)));
        }
        if let Some(branches) = record.branches {
            let blocks =
                branches.as_bytes().chunks(BRANCHES_A_BLOCK * SampledBranch::BYTES).take(BRANCH_BLOCKS);
            for (kind, block) in (FIRST_BRANCHES..).zip(blocks) {
                let words = block.as_chunks().0;
                self.block(kind, words.iter().map(|word| u64::from_le_bytes(*word)));
            }
        }
    }

    /// Adds the registers in the order of their numbers in instructions.
    fn registers(&mut self, registers: Registers, narrow: bool) {
        let Registers { rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8_r15 } = registers;
        let legacy = [rflags, rip, rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi];
        let begin = self.len;
        self.block(REGISTERS, legacy.into_iter().chain(r8_r15.into_iter().filter(|_| !narrow)));
        for (_, item) in self.items[begin..self.len].iter_mut().filter(|_| narrow) {
            if let BipValue::Eight(value) = item.value {
                item.value = BipValue::Four(value as u32);
            }
        }
    }

    fn block(&mut self, kind: u8, values: impl IntoIterator<Item = u64>) {
        for (id, value) in (0..).zip(values) {
            if let Some(place) = self.items.get_mut(self.len) {
                *place = (kind, Bip { id, value: BipValue::Eight(value) });
                self.len += 1;
            }
        }
    }
}

/// Returns the BBP before an item that begins a block.
pub(crate) fn begin_of_block(kind: u8, item: Bip) -> Bbp {
    let size = match item.value {
        BipValue::Four(_) => BlockItemSize::Four,
        BipValue::Eight(_) => BlockItemSize::Eight,
    };
    Bbp { size, kind }
}
