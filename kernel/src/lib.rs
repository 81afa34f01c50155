//! A tracing driver that a kernel embeds. It records what a processor executes with Intel Processor Trace (PT), the
//! Branch Trace Store (BTS), PEBS samples and last branch records (LBR), and with AMD's performance counters, IBS and
//! branch records. It covers everything from CPUID detection to the recorded bytes.
//!
//! The driver uses no heap, no lock that waits, no clock and no thread. The kernel around it implements three traits:
//! [`msr::Msr`] (real implementations are in [`arch`]), [`memory::Frames`] and [`lapic::LocalApic`].
//!
//! # Layers
//!
//! **What the processor can do, and what to trace.** [`PtCapabilities`] are read from CPUID leaf 14H. The
//! [configuration] is checked against them before any register is written; if the check fails, the error names the
//! missing CPUID bit.
//!
//! ```
//! use pugmark_kernel::cpuid::CpuIdResult;
//! use pugmark_kernel::intel::pt::{PtCapabilities, PtConfig};
//!
//! // A processor with ToPA and no cycle-accurate mode; a kernel takes `PtCapabilities::of_this_processor()`.
//! let cpuid = |leaf, subleaf| match (leaf, subleaf) {
//!     (0, _) => CpuIdResult { eax: 0x14, ebx: 0, ecx: 0, edx: 0 },
//!     (7, 0) => CpuIdResult { eax: 0, ebx: 1 << 25, ecx: 0, edx: 0 },
//!     (0x14, 0) => CpuIdResult { eax: 0, ebx: 1, ecx: 3, edx: 0 },
//!     _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
//! };
//! let capabilities = PtCapabilities::read(cpuid)?;
//! let config = PtConfig::new().os(true).cr3(0x1000);
//! assert!(config.check(&capabilities).is_ok());
//! let refusal = config.cycles(0).check(&capabilities).unwrap_err();
//! assert_eq!(refusal.to_string(), "CPUID.14H.0:EBX[1] (cycle-accurate mode) is not there");
//! # Ok::<(), pugmark_kernel::lifecycle::Missing>(())
//! ```
//!
//! **Where the trace goes.** A [`buffer`] allocates memory with the kernel's [`memory::Frames`] and lists it in the
//! processor's table of output regions (ToPA: Table of Physical Addresses), following the manual's rules. Dropping
//! the buffer frees the memory.
//!
//! ```
#![doc = include_str!("../doc/machine.md")]
//! # let (frames, capabilities) = (Memory::new(), capabilities());
//! use pugmark_kernel::intel::pt::{Buffer, Layout, Mode, RegionSize};
//!
//! // Eight regions of 4 KiB; a PMI comes while two are still free.
//! let layout = Layout::topa(RegionSize::K4, 8);
//! let buffer = Buffer::allocate(&frames, &capabilities, layout, Mode::StopWhenFull { spare: 2 })?;
//! assert_eq!(buffer.capacity(), 0x8000);
//! # Ok::<(), pugmark_kernel::intel::pt::BufferError>(())
//! ```
//!
//! **A trace.** Three types for three states: [`pt::PtUnit`] is off; [`pt::PtRunning`] traces and owns the memory;
//! [`pt::PtStopped`] holds what was traced. An operation that fails returns the values it was given, or keeps them as
//! long as the processor may still write to their memory.
//!
//! ```
#![doc = include_str!("../doc/machine.md")]
//! # let (frames, capabilities) = (Memory::new(), capabilities());
//! # let buffer = Buffer::allocate(&frames, &capabilities, Layout::topa(RegionSize::K4, 8), Mode::Overwrite).unwrap();
//! # use pugmark_kernel::intel::pt::{Buffer, Layout, Mode, RegionSize};
//! use pugmark_kernel::lifecycle::StartError;
//! use pugmark_kernel::drain::Chunk;
//! use pugmark_kernel::intel::pt::{PtConfig, PtRefusal, PtUnit};
//!
//! let unit = PtUnit::with_capabilities(capabilities, Registers::new()).unwrap();
//! let running = unit.start(&PtConfig::new().os(true), buffer).map_err(|failed| failed.error())?;
//! // … the code to be traced …
//! let stopped = running.stop().unwrap_or_else(|_| panic!("the processor does not stop"));
//! assert!(stopped.loss.is_none());
//! for chunk in stopped.trace.chunks() {
//!     match chunk {
//!         Chunk::Bytes(bytes) => println!("{} bytes", bytes.len()),
//!         Chunk::Gap(gap) => println!("{gap}"),
//!     }
//! }
//! # Ok::<(), StartError<PtRefusal>>(())
//! ```
//!
//! **The PMI.** A unit requests a performance-monitoring interrupt (PMI) when its buffer fills or its sampling period
//! is over. [`pmi::Handler`] serves all sources of PMIs in the order that the manual requires. A [`drain::Sink`]
//! receives the recorded bytes in place. Each processor has a [`slot::Slot`], in which the handler and the interrupted
//! code share a trace. The slot enforces the one order of steps that loses no PMI: unmask the LVT entry, start the
//! trace, and put it into the slot before the next PMI is served.
//!
//! ```
#![doc = include_str!("../doc/machine.md")]
//! # let (frames, capabilities) = (Memory::new(), capabilities());
//! # let (full, layout) = (Mode::StopWhenFull { spare: 2 }, Layout::topa(RegionSize::K4, 8));
//! # let buffer = Buffer::allocate(frames, &capabilities, layout, full).unwrap();
//! # use pugmark_kernel::intel::pt::{Buffer, Layout, Mode, PtConfig, PtRunning, PtUnit, RegionSize};
//! # let unit = PtUnit::with_capabilities(capabilities, Registers::new()).unwrap();
//! use pugmark_kernel::drain::Sink;
//! use pugmark_kernel::lapic::Delivery;
//! use pugmark_kernel::lifecycle::StartError;
//! use pugmark_kernel::loss::Gap;
//! use pugmark_kernel::msr::GeneralProtection;
//! use pugmark_kernel::pmi::{Handler, Pmi};
//! use pugmark_kernel::intel::pt::PtRefusal;
//! use pugmark_kernel::slot::{Interrupt, Slot, Traced};
//!
//! struct Count(usize);
//!
//! impl Sink for Count {
//!     fn bytes(&mut self, bytes: &[u8]) -> usize {
//!         self.0 += bytes.len();
//!         bytes.len()
//!     }
//!     fn gap(&mut self, _: Gap) -> bool {
//!         true
//!     }
//! }
//!
//! /// What is traced, and the sink that receives the bytes.
//! struct Tracer {
//!     running: PtRunning<Registers, Memory>,
//!     count: Count,
//! }
//!
//! impl Traced for Tracer {
//!     fn serve<M: Msr, A: LocalApic>(&mut self, pmi: Interrupt<'_, M, A>) -> Result<Pmi, GeneralProtection> {
//!         pmi.serve(&mut [&mut self.running.source(&mut self.count)])
//!     }
//! }
//!
//! // SAFETY: one processor uses it, and the registers are that processor's.
//! let slot = unsafe { Slot::new(Handler::new(Delivery::Nmi), || (Registers::new(), Apic::new())) };
//!
//! // The start, with preemption disabled.
//! let config = PtConfig::new().os(true);
//! let started = slot.start(|| {
//!     let running = unit.start(&config, buffer).map_err(|failed| failed.error())?;
//!     Ok::<_, StartError<PtRefusal>>(Tracer { running, count: Count(0) })
//! });
//! assert!(started.is_ok());
//!
//! // The kernel's NMI handler, with the RIP that the processor pushed. The registers of this example hold no request,
//! // so this is an NMI of another cause, and the kernel asks its other handlers.
//! assert_eq!(slot.interrupt(Some(0x1000)), Ok(Pmi::NotOurs));
//!
//! // Access the trace while it runs. A PMI that arrives meanwhile is served when the closure returns.
//! let undrained = slot.with(|tracer| tracer.running.undrained());
//! assert_eq!(undrained, Ok(0));
//!
//! // End the trace. The handler stays: a PMI that was on its way still arrives, and has masked the LVT entry.
//! let stopped = slot.stop(|tracer, _| tracer.running.stop()).expect("there is a trace");
//! assert!(stopped.is_ok_and(|stopped| stopped.loss.is_none()));
//! assert_eq!(slot.interrupt(Some(0x1000)), Ok(Pmi::NotOurs));
//! ```
//!
//! **Branch records and samples.** [`ds`] allocates the debug store (DS) save area, the memory that BTS and PEBS write
//! their records to. [`ds::DsUnit`], [`ds::DsRunning`] and [`ds::DsStopped`] are the three states as above, and [its
//! source] works with the same PMI handler. [`bts`] configures which branches are recorded, [`pebs`] which counters
//! sample. [`lbr`] keeps the last branches in registers instead of memory.
//!
//! **AMD's units.** [`amd`] counts and samples with AMD's performance counters, samples instructions by Instruction
//! Based Sampling (IBS), and reads the last branches. Each has the same three states and uses the same PMI handler.
//!
//! # Not supported yet
//!
//! PEBS output through PT and PEBS load latency; Intel's counters without sampling; XSAVES and tracing by task; suspend
//! and hot-plug; output to the trace transport subsystem; the registers of trigger tracing. A kernel that uses VMX must
//! stop its traces before VMXON where [`VmxTracing`] says so.
//!
//! [`PtCapabilities`]: intel::pt::PtCapabilities
//! [`VmxTracing`]: intel::pt::VmxTracing
//! [`bts`]: intel::bts
//! [`buffer`]: intel::pt::Buffer
//! [`ds::DsRunning`]: intel::ds::DsRunning
//! [`ds::DsStopped`]: intel::ds::DsStopped
//! [`ds::DsUnit`]: intel::ds::DsUnit
//! [`ds`]: intel::ds
//! [`lbr`]: intel::lbr
//! [`pebs`]: intel::pebs
//! [`pt::PtRunning`]: intel::pt::PtRunning
//! [`pt::PtStopped`]: intel::pt::PtStopped
//! [`pt::PtUnit`]: intel::pt::PtUnit
//! [configuration]: intel::pt::PtConfig
//! [its source]: intel::ds::DsRunning::source
#![cfg_attr(not(test), no_std)]

pub mod amd;
pub mod arch;
pub mod cpuid;
pub mod drain;
pub mod intel;
pub mod lapic;
pub mod lifecycle;
pub mod loss;
pub mod memory;
pub mod msr;
pub mod pmi;
pub mod slot;

#[cfg(test)]
mod fake;
