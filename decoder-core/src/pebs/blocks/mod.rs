//! PEBS records in an Intel PT trace: with PEBS output to Intel PT the processor stores no record in the DS area, but
//! sends it in the trace as blocks: groups of items between a BBP and a BEP.
//!
//! ```
//! use pugmark_decoder_core::packet::{Bbp, Bep, Bip, BipValue, BlockItemSize, Packet};
//! use pugmark_decoder_core::pebs::PebsBlocks;
//!
//! let item = |id, value| Packet::Bip(Bip { id, value: BipValue::Eight(value) });
//! let packets = [
//!     Packet::Psb,
//!     Packet::PsbEnd,
//!     Packet::Bbp(Bbp { size: BlockItemSize::Eight, kind: 4 }),
//!     item(0, 0x40_1000), // the instruction that caused the record
//!     item(1, 0b1),       // for counter 0
//!     item(2, 77),        // at this time
//!     Packet::Bep(Bep { ip: false }),
//! ];
//! let mut trace = vec![];
//! for packet in packets {
//!     let mut bytes = [0; 16];
//!     let len = packet.emit(&mut bytes)?;
//!     trace.extend_from_slice(&bytes[..len]);
//! }
//!
//! let mut records = PebsBlocks::new(&trace);
//! let found = records.next().unwrap()?;
//! assert_eq!((found.offset, found.record.eventing_ip, found.record.tsc), (18, Some(0x40_1000), Some(77)));
//! assert!(records.next().is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source: the meaning of block types and item numbers is Linux's reading of SDM vol. 3, Performance Monitoring, "PEBS
//! Output to Intel Processor Trace": `tools/perf/util/intel-pt-decoder/intel-pt-decoder.h`, `intel_pt_blk_type` and
//! `intel_pt_blk_items`, and for XMM registers and last branches `tools/perf/util/intel-pt.c`, by Intel's authors.

#[cfg(test)]
mod tests;

use super::{DataSourceEncoding, Memory, PebsRecord, Registers, SampledBranch, SampledBranches, TxAbort};
use crate::config::Config;
use crate::last_ip::LastIp;
use crate::packet::{Bip, BipValue, Packet, Packets};
use crate::{Error, ErrorKind};

/// A PEBS record in an Intel PT trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedRecord<'a> {
    /// The offset of its first BBP in the trace, in bytes.
    pub offset: u64,
    /// The IP in the FUP after its BEP, if there is one: the place of the flow. The sampled instruction is
    /// [`PebsRecord::eventing_ip`].
    pub ip: Option<u64>,
    /// The record. Each group that the processor was configured to omit is `None`; `global_status`, `retire_latency`
    /// and `counters` always are.
    pub record: PebsRecord<'a>,
}

/// Assembles PEBS records from the packets of a trace, one by one, so a trace may come in slices. It has room for one
/// record, about 1.5 KiB, and allocates nothing.
#[derive(Clone, Debug)]
pub struct PebsAssembly {
    state: RecordState,
    /// A bit for each item of the record so far, by group.
    present: [u32; GROUPS],
    general: [u64; REGISTERS],
    basic: [u64; 3],
    memory: [u64; 4],
    /// Sixteen bytes a register.
    xmm: [u8; 256],
    /// The items of all branches, 32 a block.
    branches: [[u8; 8]; 32 * BRANCH_BLOCKS],
    /// `branches` in the layout of a record.
    stack: [[u8; SampledBranch::BYTES]; MOST_BRANCHES],
    depth: usize,
    last_ip: LastIp,
    ip: Option<u64>,
}

/// The progress of a record's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordState {
    Outside,
    /// After a BBP of this group, in the record that begins at this offset.
    Inside {
        begin: u64,
        group: BlockGroup,
    },
    /// After a BEP that is followed by a FUP.
    Ended {
        begin: u64,
    },
    /// After an error: packets are ignored until the block ends.
    Skipping,
}

/// The groups of items, in the order of `present`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockGroup {
    Registers,
    Basic,
    Memory,
    Branches(u8),
    Xmm,
}

const REGISTERS: usize = super::registers::WORDS;
const BRANCH_BLOCKS: usize = 3;
const GROUPS: usize = 4 + BRANCH_BLOCKS;
const MOST_BRANCHES: usize = 32;
/// The number of whole branches in the 32 items of a block.
const BRANCHES_A_BLOCK: usize = 10;

impl BlockGroup {
    const fn of(kind: u8) -> Option<Self> {
        match kind {
            1 => Some(Self::Registers),
            4 => Some(Self::Basic),
            5 => Some(Self::Memory),
            8..=10 => Some(Self::Branches(kind - 8)),
            16 => Some(Self::Xmm),
            _ => None,
        }
    }

    const fn kind(self) -> u8 {
        match self {
            Self::Registers => 1,
            Self::Basic => 4,
            Self::Memory => 5,
            Self::Branches(block) => 8 + block,
            Self::Xmm => 16,
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Registers => 0,
            Self::Basic => 1,
            Self::Memory => 2,
            Self::Xmm => 3,
            Self::Branches(block) => 4 + block as usize,
        }
    }
}

impl Default for PebsAssembly {
    fn default() -> Self {
        Self::new()
    }
}

impl PebsAssembly {
    /// Creates an assembly at the start of a trace.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: RecordState::Outside,
            present: [0; GROUPS],
            general: [0; REGISTERS],
            basic: [0; 3],
            memory: [0; 4],
            xmm: [0; 256],
            branches: [[0; 8]; 32 * BRANCH_BLOCKS],
            stack: [[0; SampledBranch::BYTES]; MOST_BRANCHES],
            depth: 0,
            last_ip: LastIp::new(),
            ip: None,
        }
    }

    /// Takes the trace's next packet, which is at `offset`. Returns the record that this packet completes, if any.
    ///
    /// # Errors
    /// A block has an unknown type or item, or has an item twice; or a packet comes that cannot be within a block, such
    /// as an OVF. That record is omitted, and the next one is read.
    pub fn take(&mut self, offset: u64, packet: &Packet) -> Result<Option<TracedRecord<'_>>, Error> {
        match self.advance(offset, packet) {
            Ok(begin) => Ok(begin.map(|begin| self.record(begin))),
            Err(kind) => Err(Error { offset, kind }),
        }
    }

    /// Forgets the incomplete record and the last IP: the next packet is elsewhere in the trace.
    pub const fn restart(&mut self) {
        self.state = RecordState::Outside;
        self.last_ip.reset();
    }

    /// Returns the offset of the record that this packet completes.
    fn advance(&mut self, offset: u64, packet: &Packet) -> Result<Option<u64>, ErrorKind> {
        let ip = match *packet {
            Packet::Tip(ip) | Packet::TipPge(ip) | Packet::TipPgd(ip) | Packet::Fup(ip) => {
                self.last_ip.update(ip)
            }
            Packet::Psb => {
                self.last_ip.reset();
                None
            }
            _ => None,
        };
        match (self.state, packet) {
            (RecordState::Ended { begin }, Packet::Fup(_)) => {
                self.state = RecordState::Outside;
                self.ip = ip;
                return Ok(Some(begin));
            }
            // Timing packets may come anywhere.
            (_, Packet::Pad | Packet::Tsc(_) | Packet::Cbr(_) | Packet::Tma(_) | Packet::DamagedTma(_))
            | (_, Packet::Mtc(_) | Packet::Cyc(_) | Packet::Mnt(_)) => {}
            (RecordState::Ended { .. }, _) => return self.unexpected(packet),
            (RecordState::Outside, Packet::Bbp(bbp)) => {
                self.present = [0; GROUPS];
                self.open(offset, bbp.kind)?;
            }
            (RecordState::Inside { begin, .. }, Packet::Bbp(bbp)) => self.open(begin, bbp.kind)?,
            (RecordState::Inside { group, .. }, Packet::Bip(item)) => self.item(group, *item)?,
            (RecordState::Inside { begin, .. }, Packet::Bep(bep)) => {
                self.stack_branches();
                self.ip = None;
                self.state = if bep.ip { RecordState::Ended { begin } } else { RecordState::Outside };
                return Ok((!bep.ip).then_some(begin));
            }
            (RecordState::Inside { .. }, _) if leaves_open(packet) => {}
            (RecordState::Inside { .. }, _) => return self.unexpected(packet),
            (RecordState::Skipping, Packet::Bbp(_) | Packet::Bip(_)) => {}
            (RecordState::Skipping, _) if leaves_open(packet) => {}
            (RecordState::Skipping, _) => self.state = RecordState::Outside,
            (RecordState::Outside, Packet::Bip(_) | Packet::Bep(_)) => return self.unexpected(packet),
            (RecordState::Outside, _) => {}
        }
        Ok(None)
    }

    const fn unexpected(&mut self, packet: &Packet) -> Result<Option<u64>, ErrorKind> {
        self.state =
            if matches!(packet, Packet::Bbp(_)) { RecordState::Skipping } else { RecordState::Outside };
        Err(ErrorKind::UnexpectedPacket(packet.name()))
    }

    fn open(&mut self, begin: u64, kind: u8) -> Result<(), ErrorKind> {
        let Some(group) = BlockGroup::of(kind) else {
            self.state = RecordState::Skipping;
            return Err(ErrorKind::UnknownBlock { kind });
        };
        self.state = RecordState::Inside { begin, group };
        Ok(())
    }

    fn item(&mut self, group: BlockGroup, Bip { id, value }: Bip) -> Result<(), ErrorKind> {
        let value = match value {
            BipValue::Four(value) => u64::from(value),
            BipValue::Eight(value) => value,
        };
        let at = usize::from(id);
        let present = &mut self.present[group.index()];
        let bit = 1_u32.checked_shl(u32::from(id)).unwrap_or(0);
        let place = match group {
            BlockGroup::Registers => self.general.get_mut(at).map(|word| *word = value),
            BlockGroup::Basic => self.basic.get_mut(at).map(|word| *word = value),
            BlockGroup::Memory => self.memory.get_mut(at).map(|word| *word = value),
            BlockGroup::Branches(block) => {
                let item = self.branches.get_mut(32 * usize::from(block) + at);
                item.map(|bytes| *bytes = value.to_le_bytes())
            }
            // The lower half of a register, then its upper half.
            BlockGroup::Xmm => {
                self.xmm.chunks_exact_mut(8).nth(at).map(|bytes| bytes.copy_from_slice(&value.to_le_bytes()))
            }
        };
        let kind = group.kind();
        if place.is_none() || *present & bit != 0 {
            self.state = RecordState::Skipping;
            return Err(match place {
                None => ErrorKind::UnknownBlockItem { kind, id },
                Some(()) => ErrorKind::RepeatedBlockItem { kind, id },
            });
        }
        *present |= bit;
        Ok(())
    }

    fn has(&self, group: BlockGroup, items: u32) -> bool {
        self.present[group.index()] & items != 0
    }

    /// Assembles the branches whose three items are all present.
    ///
    /// It is not certain which items a second and a third block have. perf begins each block with a new branch, so that
    /// two items of each block remain unused; 32 branches would then not fit into three blocks. The items of 32
    /// branches do fit into three blocks if they are numbered consecutively, so a processor may do that too. If the
    /// first block has one of the two items, it does.
    fn stack_branches(&mut self) {
        self.depth = 0;
        let numbered_on = self.has(BlockGroup::Branches(0), 0b11 << 30);
        for index in 0..MOST_BRANCHES {
            let first = match numbered_on {
                true => 3 * index,
                false => 32 * (index / BRANCHES_A_BLOCK) + 3 * (index % BRANCHES_A_BLOCK),
            };
            let item = |at: usize| {
                let there = self.present.get(4 + at / 32).is_some_and(|bits| bits >> (at % 32) & 1 != 0);
                self.branches.get(at).filter(|_| there)
            };
            let [Some(from), Some(to), Some(info)] = [item(first), item(first + 1), item(first + 2)] else {
                continue;
            };
            let mut branch = [0; SampledBranch::BYTES];
            for (bytes, part) in branch.chunks_exact_mut(8).zip([from, to, info]) {
                bytes.copy_from_slice(part);
            }
            if let Some(place) = self.stack.get_mut(self.depth) {
                *place = branch;
                self.depth += 1;
            }
        }
    }

    fn record(&self, offset: u64) -> TracedRecord<'_> {
        // An item that a block omits is 0: outside 64-bit mode there are no R8 to R15.
        let word = |group: BlockGroup, words: &[u64], at: usize| {
            words.get(at).copied().filter(|_| self.has(group, 1 << at)).unwrap_or(0)
        };
        let basic = |at: usize| {
            self.has(BlockGroup::Basic, 1 << at).then(|| word(BlockGroup::Basic, &self.basic, at))
        };
        let memory = |at: usize| word(BlockGroup::Memory, &self.memory, at);
        let registers = core::array::from_fn(|at| word(BlockGroup::Registers, &self.general, at));
        let any = |group: BlockGroup| self.has(group, u32::MAX);
        let branches =
            any(BlockGroup::Branches(0)) || any(BlockGroup::Branches(1)) || any(BlockGroup::Branches(2));
        let record = PebsRecord {
            registers: any(BlockGroup::Registers).then(|| Registers::from_adaptive(registers)),
            eventing_ip: basic(0),
            applicable_counters: basic(1),
            tsc: basic(2),
            memory: self.has(BlockGroup::Memory, 0b111).then(|| Memory {
                address: memory(0),
                source: DataSourceEncoding(memory(1)),
                latency: memory(2),
            }),
            tx_abort: self.has(BlockGroup::Memory, 0b1000).then(|| TxAbort(memory(3))),
            xmm: any(BlockGroup::Xmm).then_some(&self.xmm),
            branches: self.stack.get(..self.depth).filter(|_| branches).map(SampledBranches::new),
            ..PebsRecord::default()
        };
        TracedRecord { offset, ip: self.ip, record }
    }
}

/// Returns true if a packet that is neither BBP, BIP nor BEP may come within a block, as
/// [`Context`](crate::packet::Context) says.
const fn leaves_open(packet: &Packet) -> bool {
    matches!(
        packet,
        Packet::Exstop(_) | Packet::Pwre(_) | Packet::Pwrx(_) | Packet::Fup(_) | Packet::Unknown(_)
    )
}

/// The PEBS records of a trace, in order.
///
/// Reading begins at the first PSB. After an error of a packet it continues at the next PSB, after an error of a record
/// with the next record. An incomplete record at the end of the trace is omitted.
#[derive(Clone, Debug)]
pub struct PebsBlocks<'a> {
    packets: Packets<'a>,
    assembly: PebsAssembly,
    synchronised: bool,
}

impl<'a> PebsBlocks<'a> {
    /// Creates the iterator over the records of a trace.
    #[must_use]
    pub fn new(trace: &'a [u8]) -> Self {
        Self::with_config(trace, Config::new())
    }

    /// Creates the iterator over the records of a trace that is read with this configuration.
    #[must_use]
    pub fn with_config(trace: &'a [u8], config: Config<'a>) -> Self {
        Self {
            packets: Packets::with_config(trace, config),
            assembly: PebsAssembly::new(),
            synchronised: false,
        }
    }

    /// Returns the next record, which is valid until the next call; `None` at the end of the trace.
    ///
    /// # Errors
    /// A packet or a record is wrong, as in [`PebsAssembly::take`].
    #[expect(
        clippy::should_implement_trait,
        reason = "what it returns borrows from it, which no Iterator can"
    )]
    pub fn next(&mut self) -> Option<Result<TracedRecord<'_>, Error>> {
        let begin = loop {
            if !self.synchronised {
                self.packets.sync_forward()?;
                self.assembly.restart();
                self.synchronised = true;
            }
            match self.packets.next()? {
                Ok((offset, packet)) => match self.assembly.advance(offset, &packet) {
                    Ok(Some(begin)) => break begin,
                    Ok(None) => {}
                    Err(kind) => return Some(Err(Error { offset, kind })),
                },
                Err(error) => {
                    self.synchronised = false;
                    return Some(Err(error));
                }
            }
        };
        Some(Ok(self.assembly.record(begin)))
    }
}
