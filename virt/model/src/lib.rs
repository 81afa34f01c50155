//! The tracing and counting hardware as a library: what a processor's units answer to CPUID, RDMSR and WRMSR, and
//! what they write to memory while instructions retire.
//!
//! Intel's processors are in [`intel`], AMD's in [`amd`], each written from its vendor's manuals and not from the
//! driver. The trait [`Processor`] has what both do; both also share the description of the code that executes and of
//! memory. Instructions are decoded by `iced-x86`, not by the decoder that will read the trace. The rule that makes a
//! WRMSR fault is in the folder of the unit that owns the MSR: the module pages of [`intel`] and [`amd`] say which.
//!
//! A value of [`IntelProcessor`](intel::IntelProcessor) or [`AmdProcessor`](amd::AmdProcessor) is one logical
//! processor; its caller, a monitor or a test, executes the code and reports each step to it:
//!
//! ```
//! use pugmark_model::intel::{IntelProcessor, IntelProfile, IntelSettings};
//! use pugmark_model::{Context, ExecMode, FlatMemory, Processor, Retired};
//!
//! let mut ram = [0u8; 0x2000];
//! let mut memory = FlatMemory { base: 0x1000, bytes: &mut ram };
//! let mut processor = IntelProcessor::new(IntelProfile::by_name("skylake").unwrap(), IntelSettings::default());
//! let at = |ip| Context { ip, cs_base: 0, cr3: 0x5000, cpl: 0, mode: ExecMode::Bits64, iflag: true };
//! let step = |from, to, bytes| Retired { before: at(from), after: at(to), bytes, tsc: 0, operand: 0 };
//! let wrmsr = step(0x40_0000, 0x40_0002, &[0x0f, 0x30]);
//! // Single-range output of 4 KiB at 1000h, then TraceEn | OS | BranchEn.
//! processor.write_msr(0x560, 0x1000, &wrmsr, &mut memory).unwrap();
//! processor.write_msr(0x561, 0xfff, &wrmsr, &mut memory).unwrap();
//! processor.write_msr(0x570, 1 | 1 << 2 | 1 << 13, &wrmsr, &mut memory).unwrap();
//! assert!(processor.needs_each_instruction());
//! // JMP RAX: an indirect branch, a TIP packet.
//! processor.retire(&step(0x40_0002, 0x40_1000, &[0xff, 0xe0]), &mut memory);
//! processor.write_msr(0x570, 0, &step(0x40_1000, 0x40_1002, &[0x0f, 0x30]), &mut memory).unwrap();
//! let offset = processor.read_msr(0x561).unwrap() >> 32;
//! assert!(offset > 0 && memory.bytes[..offset as usize].starts_with(&[0x02, 0x82]));
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod amd;
mod answers;
mod branch;
mod context;
mod instruction_cache;
pub mod intel;
mod memory;
mod predictor;
mod processor;

pub use answers::{CpuidResult, GeneralProtection, Pmi};
pub use context::{Context, Delivery, DeliveryKind, Retired};
pub use memory::{FlatMemory, Mapping, Memory, PageFault, PageSize, PhysMemory};
pub use processor::{Processor, Violations};
pub use pugmark_decoder_core::mode::ExecMode;
