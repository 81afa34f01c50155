//! A tracing driver that a kernel embeds. It records execution with Intel Processor Trace (PT), the Branch Trace Store
//! (BTS), PEBS samples and last branch records (LBR), and with AMD's performance counters, IBS and branch records. It
//! covers everything from CPUID detection to the recorded bytes; the crate `pugmark-decoder-core` decodes them.
//!
//! The driver uses no heap, no blocking lock, no clock and no thread. The kernel around it provides three things:
//! access to registers ([`msr::Msr`]; [`arch`] has implementations), its memory ([`memory::Frames`]) and the local APIC
//! of each processor ([`lapic::LocalApic`]; [`lapic::XApic`] and [`lapic::X2Apic`] are implementations).
//!
//! Begin with [`short`]: it traces one function ([`snapshot`](short::snapshot)), or a processor while it runs
//! ([`Live`](short::Live)), in a dozen lines. The [`guide`] goes through all that a kernel has to provide.
//!
//! # The parts
//!
//! ```text
//!  CPUID ─▶ what the unit can do ─▶ Unit, off            memory, from the kernel's Frames
//!                                     │  ▲                 │
//!              start(configuration) ──┤  └──────────┐      │
//!                                     ▼             │      │
//!  Slot, one for each processor ◀── Running ◀───────│──────┘
//!   ▲      ▲                          │ stop        │
//!   │      │ with, stop               ▼             │
//!   │      │                        Stopped: the Unit, what was recorded, what was lost
//!   │      the kernel's code
//!   │
//!  PMI ─▶ Handler: halts all sources ─▶ each hands its bytes and gaps to a Sink ─▶ all go on
//! ```
//!
//! Each unit has these three states as types. A unit that is off ([`PtUnit`]) is started with memory and becomes a
//! [`Running`](lifecycle::Running), which owns the memory while the processor may write to it; a stop returns both. A
//! failed start or stop returns the values too, or keeps them as long as the processor may still write.
//!
//! When a buffer fills or a sampling period is over, the unit requests a performance-monitoring interrupt (PMI).
//! [`pmi::Handler`] serves it, and a [`drain::Sink`] receives the recorded bytes in place. The handler and the code
//! that it interrupts share the trace through a [`slot::Slot`].
//!
//! # Example
//!
//! This is the full way, of which [`short::Live`] is made. It traces a kernel with Intel PT without loss: when three
//! quarters of the buffer are full, an NMI drains it. The code is complete; only its registers are fake, so that it
//! runs on any machine.
//!
//! ```
//! use pugmark_kernel::cpuid::CpuIdResult;
//! use pugmark_kernel::drain::Sink;
//! use pugmark_kernel::intel::pt::{Buffer, Layout, Mode, RegionSize};
//! use pugmark_kernel::intel::pt::{PtCapabilities, PtConfig, PtTracer, PtUnit};
//! use pugmark_kernel::lapic::{Delivery, X2Apic};
//! use pugmark_kernel::loss::Gap;
//! use pugmark_kernel::memory::{Frames, PhysAddr, Request};
//! use pugmark_kernel::msr::{GeneralProtection, Msr};
//! use pugmark_kernel::pmi::{Handler, Pmi};
//! use pugmark_kernel::slot::Slot;
//! use std::alloc::{self, alloc_zeroed, dealloc};
//! use std::{collections::BTreeMap, error::Error, ptr::NonNull, sync::Mutex};
//!
//! // The kernel provides registers and memory. The local APIC is this crate's `X2Apic`.
//!
//! /// Registers that hold what is written. A kernel uses `arch::GuardedMsr`, which executes RDMSR and WRMSR.
//! struct Registers;
//!
//! static VALUES: Mutex<BTreeMap<u32, u64>> = Mutex::new(BTreeMap::new());
//!
//! // SAFETY: there is one set of registers.
//! unsafe impl Msr for Registers {
//!     fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
//!         Ok(VALUES.lock().unwrap().get(&address).copied().unwrap_or(0))
//!     }
//!     unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
//!         let mut values = VALUES.lock().unwrap();
//!         match address {
//!             // IA32_PERF_GLOBAL_STATUS_RESET clears bits of IA32_PERF_GLOBAL_STATUS.
//!             0x390 => *values.entry(0x38e).or_default() &= !value,
//!             _ => _ = values.insert(address, value),
//!         }
//!         Ok(())
//!     }
//! }
//!
//! /// Physical memory that is mapped at its own addresses. A kernel with an offset adds and subtracts it.
//! struct Memory;
//!
//! fn layout(request: Request) -> alloc::Layout {
//!     alloc::Layout::from_size_align(request.size as usize, request.align as usize).unwrap()
//! }
//!
//! // SAFETY: the allocator gives each block out once, until it is freed.
//! unsafe impl Frames for Memory {
//!     fn allocate(&self, request: Request) -> Option<PhysAddr> {
//!         // SAFETY: a request's size is not 0.
//!         let block = unsafe { alloc_zeroed(layout(request)) };
//!         NonNull::new(block).map(|block| PhysAddr::new(block.as_ptr() as u64))
//!     }
//!     unsafe fn free(&self, address: PhysAddr, request: Request) {
//!         // SAFETY: the driver frees what it has allocated, with the same request.
//!         unsafe { dealloc(address.as_u64() as *mut u8, layout(request)) }
//!     }
//!     fn pointer(&self, address: PhysAddr) -> NonNull<u8> {
//!         NonNull::new(address.as_u64() as *mut u8).unwrap()
//!     }
//! }
//!
//! // The trace of this processor, and the sink of its bytes.
//!
//! /// Keeps the trace in memory of its own: the handler must not allocate.
//! struct Log {
//!     bytes: [u8; 0x8000],
//!     len: usize,
//!     gaps: usize,
//! }
//!
//! impl Sink for Log {
//!     fn bytes(&mut self, bytes: &[u8]) -> usize {
//!         let room = &mut self.bytes[self.len..];
//!         let taken = bytes.len().min(room.len());
//!         room[..taken].copy_from_slice(&bytes[..taken]);
//!         self.len += taken;
//!         taken // The rest stays in the buffer and is offered again.
//!     }
//!     fn gap(&mut self, _: Gap) -> bool {
//!         self.gaps += 1;
//!         true
//!     }
//! }
//!
//! /// The trace on this processor, with the sink that receives its bytes. A kernel that traces by several units
//! /// writes a type of its own, which implements `slot::Traced`.
//! type Tracer = PtTracer<Registers, Memory, Log>;
//!
//! /// A kernel has one for each processor.
//! static SLOT: Slot<Tracer, fn() -> (Registers, X2Apic<Registers>)> =
//!     // SAFETY: there is one processor, and these are its registers.
//!     unsafe { Slot::new(Handler::new(Delivery::Nmi), || (Registers, X2Apic::new(Registers))) };
//!
//! /// The kernel's NMI handler, with the RIP that the processor pushed. Returns whether to ask other handlers too.
//! fn nmi(rip: u64) -> bool {
//!     SLOT.interrupt(Some(rip)).map_or(true, Pmi::may_be_anothers)
//! }
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     // A processor with ToPA output. A kernel calls `PtUnit::of_this_processor(registers)`.
//!     let cpuid = |leaf, subleaf| match (leaf, subleaf) {
//!         (0, _) => CpuIdResult { eax: 0x14, ebx: 0, ecx: 0, edx: 0 },
//!         (7, 0) => CpuIdResult { eax: 0, ebx: 1 << 25, ecx: 0, edx: 0 },
//!         (0x14, 0) => CpuIdResult { eax: 0, ebx: 1, ecx: 3, edx: 0 },
//!         (0x8000_0000, _) => CpuIdResult { eax: 0x8000_0008, ebx: 0, ecx: 0, edx: 0 },
//!         (0x8000_0008, _) => CpuIdResult { eax: 48 << 8 | 52, ebx: 0, ecx: 0, edx: 0 },
//!         _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
//!     };
//!     let unit = PtUnit::with_capabilities(PtCapabilities::read(cpuid)?, Registers)?;
//!
//!     // Software enables the local APIC: bit 8 of its spurious-interrupt vector register.
//!     VALUES.lock().unwrap().insert(0x80f, 0x1ff);
//!
//!     // Eight regions of 4 KiB; the PMI comes while two are still free.
//!     let regions = Layout::topa(RegionSize::K4, 8);
//!     let buffer = Buffer::allocate(Memory, unit.capabilities(), regions, Mode::StopWhenFull { spare: 2 })?;
//!     let config = PtConfig::new().os(true);
//!
//!     // From here to the end with preemption disabled, on one processor. The slot unmasks the APIC's entry, calls the
//!     // closure, and keeps what it returns before a PMI is served.
//!     let sink = Log { bytes: [0; 0x8000], len: 0, gaps: 0 };
//!     SLOT.start(|| Tracer::start(unit, &config, buffer, sink))?;
//!
//!     // … The code to be traced. What the processor does meanwhile: it fills six regions, reports this in
//!     // IA32_PERF_GLOBAL_STATUS, masks the APIC's entry and raises an NMI.
//!     let values = [(0x561, 6 << 7 | 0x7f), (0x38e, 1 << 55), (0x834, 1 << 16 | 0x400)];
//!     VALUES.lock().unwrap().extend(values);
//!     assert!(!nmi(0x1000), "it was the PMI");
//!     assert_eq!(VALUES.lock().unwrap()[&0x834], 0x400, "the entry is unmasked again");
//!
//!     // The trace while it runs. A PMI that comes meanwhile is served when the closure returns.
//!     assert_eq!(SLOT.with(|tracer| tracer.sink.len)?, 6 * 4096);
//!
//!     // The end: the sink receives what is still in the buffer. The handler stays in the slot, for a PMI that is
//!     // still on its way.
//!     let (stopped, log) = SLOT.stop(|tracer, _| tracer.stop())??;
//!     assert!(stopped.loss.is_none() && log.gaps == 0, "{}", stopped.loss);
//!     // Bytes that the sink had not taken would still be in the buffer; here there are none. `stretches` returns
//!     // them in the order in which a decoder reads them.
//!     // A sink that decodes is `PtDecoder`; `config.for_decoder(capabilities)` configures its decoder.
//!     assert!(stopped.trace.is_empty() && stopped.trace.stretches().next().is_none());
//!     Ok(())
//! }
//! ```
//!
//! # The kernel's obligations
//!
//! - Software has enabled the local APIC: bit 8 of the spurious-interrupt vector register is 1. Otherwise no PMI
//!   arrives, and [`Slot::start`](slot::Slot::start) refuses.
//! - Preemption is disabled while a method of the slot runs: a thread that is preempted in it holds the slot.
//! - The stack of the handler has [`HANDLER_STACK`](pmi::HANDLER_STACK) bytes besides the stack of the kernel's own
//!   code, with an unmapped page below it. [`Slot::start`](slot::Slot::start) and [`Slot::stop`](slot::Slot::stop) move
//!   the trace and take more.
//! - The handler and this crate use no SSE registers, or the handler saves them.
//! - An NMI for which [`Pmi::may_be_anothers`](pmi::Pmi::may_be_anothers) is true also goes to the kernel's other
//!   handlers.
//! - The decoder has to restart after each [`Gap`](loss::Gap). The bytes before a gap may end within a packet, and the
//!   bytes after [`Gap::Wrap`](loss::Gap::Wrap) may begin within one.
//!
//! # Further reading
//!
//! | module | contents |
//! |---|---|
//! | [`guide`] | a guide from an introduction to Intel PT to reading its results, with the pitfalls |
//! | [`intel::pt`] | Intel PT: capabilities, configuration, output memory, the unit |
//! | [`intel::ds`] with [`intel::bts`] and [`intel::pebs`] | the debug store: branch records and samples in memory |
//! | [`intel::lbr`] | the last branches, in registers |
//! | [`amd`] | performance counters, Instruction Based Sampling (IBS), the last branches |
//! | [`lifecycle`] | start, stop and their errors: the same for all units |
//! | [`pmi`], [`slot`], [`lapic`] | the interrupt |
//! | [`drain`], [`loss`] | the receivers of recorded data; losses and their places |
//! | [`memory`], [`msr`], [`arch`], [`cpuid`] | the interfaces that the kernel provides |
//!
//! # Not supported yet
//!
//! Triggers of Intel PT are enumerated ([`Triggers`](intel::pt::Triggers)), and TRIG packets decoded; the driver does
//! not program them.
//!
//! A kernel suspends its traces ([`suspend`](intel::pt::PtRunning::suspend)) before VMXON if [`VmxTracing`] requires
//! it, and before a processor sleeps or goes offline. Guests are traced by
//! [`trace_guest`](intel::pt::PtRunning::trace_guest). Traces of threads are [`PtTask`](intel::pt::PtTask)s; with
//! [`XsavedMsr`](intel::pt::XsavedMsr) a switch is one XSAVES and one XRSTORS.
//!
//! [`PtUnit`]: intel::pt::PtUnit
//! [`VmxTracing`]: intel::pt::VmxTracing
#![cfg_attr(not(test), no_std)]

pub mod amd;
pub mod arch;
pub mod cpuid;
pub mod drain;
#[doc = include_str!("../doc/guide.md")]
pub mod guide {}
pub mod intel;
pub mod lapic;
pub mod lifecycle;
pub mod loss;
pub mod memory;
pub mod msr;
pub mod pmi;
pub mod short;
pub mod slot;

#[cfg(test)]
mod fake;
