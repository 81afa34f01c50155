//! Branch Trace Store (BTS): records of taken branches, and the flow of instructions that they describe.
//!
//! The processor stores a record for each taken branch, interrupt and exception, with the source and the target
//! address, in a buffer in memory that the DS area points to. From the target of one record to the source of the
//! next, execution took no branch. So each record ends a block of instructions. Blocks, instructions and events have
//! the same types as those of Intel PT.
//!
//! ```
//! use pugmark_decoder_core::bts::{BtsBlockDecoder, BranchRecord, BtsInsnDecoder, Layout, Options, BranchRecords};
//! use pugmark_decoder_core::{block, flow};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//!
//! // 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000
//! let code = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];
//! let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
//! let image = Image::new(&sections);
//!
//! // The record that the processor stores.
//! let mut buffer = [0; 2 * 24];
//! BranchRecord { from: 0x1002, to: 0x1005, predicted: true }.emit(Layout::Bits64, &mut buffer)?;
//! BranchRecord { from: 0x1006, to: 0x1000, predicted: true }.emit(Layout::Bits64, &mut buffer[24..])?;
//!
//! let options = Options { start: Some(0x1000), ..Options::default() };
//! let mut blocks = BtsBlockDecoder::new(BranchRecords::new(&buffer, Layout::Bits64), image, options);
//! let mut seen = vec![];
//! while let Some(item) = blocks.next()? {
//!     if let block::BlockItem::Block(block) = item {
//!         seen.push((block.ip, block.end_ip, block.insns));
//!     }
//! }
//! assert_eq!(seen, [(0x1000, 0x1002, 2), (0x1005, 0x1006, 2)]);
//!
//! let mut flow = BtsInsnDecoder::new(BranchRecords::new(&buffer, Layout::Bits64), image, options);
//! let mut seen = vec![];
//! while let Some(item) = flow.next()? {
//!     if let flow::FlowItem::Insn(insn) = item {
//!         seen.push(insn.ip);
//!     }
//! }
//! assert_eq!(seen, [0x1000, 0x1002, 0x1005, 0x1006]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A record does not give the mode and the address space of the code, nor does it distinguish a branch at its source
//! from an interrupted instruction. For a direct branch the target decides. For an indirect one [`Options::handlers`]
//! decides: a record that leads there is an interrupt or an exception. An exception after an instruction (a trap) names
//! that instruction, which is then treated as not executed.
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring Features, "BTS and DS Save Area".

mod block;
mod bridge;
mod flow;
mod options;
mod record;
mod records;
mod straight_line;
#[cfg(test)]
mod tests;

pub use block::BtsBlockDecoder;
pub use flow::BtsInsnDecoder;
pub use options::{ModeRange, Options};
pub use record::{BranchRecord, Layout};
pub use records::{BranchRecords, Entry};
