//! The tracing and counting hardware of x86 processors as a library: the results of CPUID, RDMSR and WRMSR, and the
//! data that the units write to memory while instructions retire.
//!
//! The model executes nothing. Its caller does: a monitor below a kernel, a recorder of programs, a test. The caller
//! reports each step, and the model produces what the hardware would: packets, branch records, samples, counts,
//! interrupts. An access that the manual forbids raises #GP here, too; violations that hardware does not report are
//! counted ([`Violations`]).
//!
//! Intel's processors are in [`intel`], AMD's in [`amd`], each written from its vendor's manuals and not from the
//! driver, so that a misreading in one shows in the other. For the same reason `iced-x86` decodes instructions, not the
//! decoder that will read the trace. The trait [`Processor`] is common to all processors; a processor's units and its
//! enumeration are data: its profile.
//!
//! # The parts
//!
//! A value of [`IntelProcessor`](intel::IntelProcessor) is one logical processor. It handles a step in this order:
//!
//! ```text
//!            the caller, which executes the code and has the memory
//!              | write_msr(number, value, the WRMSR)                          ^ take_interrupt: a PMI
//!              | retire(instruction), deliver(interrupt or exception)         | take_page_fault: of the DS area
//!              v                                                              |
//!  Processor (processor.rs, implemented by intel/processor.rs)                |
//!              | a WRMSR: to the unit that owns the MSR, which checks the     |
//!              | value or returns #GP; if it does not fault, it retires       |
//!              | an instruction: decoded by branch, compared with predictor,  |
//!              | its branch described by intel/taken_branch                   |
//!              v                                                              |
//!  TracingUnit (intel/unit.rs), in this order, each if it is on               |
//!    pt                 Processor Trace; its rules for WRMSR: pt/msr_rules    |
//!    |  packetizer      the packets of the step, into the internal buffer     |
//!    |  output          topa or single_range ----------------> memory         |
//!    |                  a region is full ------------------> perfmon ---------+
//!    lbr                the last branches, in registers, read by read_msr     |
//!    perfmon/counters   counts; on an overflow ------------> perfmon ---------+
//!    |  pebs            a sample -> ds -> memory, or to pt; full -> perfmon --+
//!    perfmon/fixed      counts; on an overflow ------------> perfmon ---------+
//!    bts                a record of a branch -> ds -> memory; full -> perfmon +
//! ```
//!
//! `intel/ds` has the save area to which IA32_DS_AREA points, and accesses it by linear addresses
//! ([`PhysMemory::translate`]); `pt` writes to physical ones. `intel/perfmon` has the global status, the LVT entry and
//! the in-flight PMIs, which arrive some instructions later. The units access all of that through the `Bus`.
//!
//! An [`AmdProcessor`](amd::AmdProcessor) is called in the same way. It passes a step to `branches`, `counters`,
//! `ibs/fetch` and `ibs/op`, which keep all their records in registers; `local_apic` has their interrupts.
//!
//! | topic | place |
//! |---|---|
//! | the rule by which a WRMSR faults | the unit that owns the MSR: [`intel`] and [`amd`] name the file |
//! | a processor and its capabilities | `profile/table.rs` of its vendor |
//! | implementation-specific behaviour | [`IntelSettings`] and [`AmdSettings`] |
//! | the parts of a step | [`Retired`], [`Delivery`], [`Context`] |
//!
//! [`IntelSettings`]: intel::IntelSettings
//! [`AmdSettings`]: amd::AmdSettings
//!
//! # Example
//!
//! Traces an indirect jump by Processor Trace. The example is the caller, and the memory is an array.
//!
//! ```
//! use pugmark_model::intel::{IntelProcessor, IntelProfile, IntelSettings};
//! use pugmark_model::{Context, ExecMode, FlatMemory, GeneralProtection, Processor, Retired};
//!
//! const IA32_RTIT_OUTPUT_BASE: u32 = 0x560;
//! const IA32_RTIT_OUTPUT_MASK_PTRS: u32 = 0x561;
//! const IA32_RTIT_CTL: u32 = 0x570;
//! const TRACE_EN_OS_BRANCH_EN: u64 = 1 | 1 << 2 | 1 << 13;
//!
//! let mut ram = [0u8; 0x2000];
//! let mut memory = FlatMemory { base: 0x1000, bytes: &mut ram };
//! let profile = IntelProfile::by_name("skylake").expect("a profile");
//! let mut processor = IntelProcessor::new(profile, IntelSettings::default());
//!
//! // A step: the state before the instruction and after it, and its bytes.
//! let at = |ip| Context { ip, cs_base: 0, cr3: 0x5000, cpl: 0, mode: ExecMode::Bits64, iflag: true };
//! let step = |from, to, bytes| Retired { before: at(from), after: at(to), bytes, tsc: 0, operand: 0 };
//! let wrmsr = step(0x40_0000, 0x40_0002, &[0x0f, 0x30]);
//!
//! // An output of 4 KiB at 1000h, then the switch.
//! processor.write_msr(IA32_RTIT_OUTPUT_BASE, 0x1000, &wrmsr, &mut memory)?;
//! processor.write_msr(IA32_RTIT_OUTPUT_MASK_PTRS, 0xfff, &wrmsr, &mut memory)?;
//! processor.write_msr(IA32_RTIT_CTL, TRACE_EN_OS_BRANCH_EN, &wrmsr, &mut memory)?;
//! // While it traces nothing may be configured.
//! let refused = processor.write_msr(IA32_RTIT_OUTPUT_BASE, 0x2000, &wrmsr, &mut memory);
//! assert_eq!(refused, Err(GeneralProtection));
//!
//! // JMP RAX, and the WRMSR that ends the trace.
//! assert!(processor.needs_each_instruction());
//! processor.retire(&step(0x40_0002, 0x40_1000, &[0xff, 0xe0]), &mut memory);
//! processor.write_msr(IA32_RTIT_CTL, 0, &step(0x40_1000, 0x40_1002, &[0x0f, 0x30]), &mut memory)?;
//!
//! // The processor says how many bytes it has written. They begin with a PSB and its PSB+. At the end are the TIP of
//! // the jump, with the two bytes of 401000h that are not those of the address before it, and where the trace ended: a
//! // FUP and a TIP.PGD.
//! let written = processor.read_msr(IA32_RTIT_OUTPUT_MASK_PTRS)? >> 32;
//! let trace = &memory.bytes[..written as usize];
//! assert!(trace.starts_with(&[0x02, 0x82].repeat(8)));
//! assert!(trace.ends_with(&[0x2d, 0x00, 0x10, 0x3d, 0x00, 0x10, 0x01]));
//! # Ok::<(), GeneralProtection>(())
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
pub use context::{Context, Delivery, DeliveryKind, Init, Retired};
pub use memory::{FlatMemory, Mapping, Memory, PageFault, PageSize, PhysMemory};
pub use processor::{Processor, Violations};
pub use pugmark_decoder_core::mode::ExecMode;
