//! A bare-metal monitor that runs an unmodified kernel on the model of the tracing hardware: the part that touches no
//! hardware.
//!
//! The monitor is a small hypervisor (AMD SVM). While the model traces, it steps the guest instruction by instruction,
//! tells the model what retired, and writes the same to a log, the truth by which traces are judged. The guest sees a
//! processor with the model's CPUID, MSRs and interrupts. Code that only runs on bare metal is in the image
//! (`src/main.rs`, `src/image/`), which calls the code here; the tests of the code here run on the host.
//!
//! Two terms in the comments: "the processor below" is the one on which the monitor runs, usually QEMU's. An
//! instruction executed "by hand" is emulated by the monitor instead of being executed by the processor below.
//!
//! # The parts
//!
//! ```text
//!  start     pvh (what QEMU left), boot_info, acpi     memory, modules, the processors of the machine
//!            cmdline                                   the options: which profile, what is stepped, the guest's words
//!            loader (elf, multiboot, multiboot2, pvh)  where the guest kernel goes, and how it starts
//!            guest_map, permission_map                 which memory, MSRs and ports the guest reaches by itself
//!            bios, uefi                                or firmware as the guest, which boots from a disk or a CD
//!            firmware_map, fw_cfg                      how firmware tells it which memory it has
//!
//!  a step    guest::Lookahead    the next instruction, or several that must follow one another
//!              │
//!              ├─▶ by hand: guest::execute, guest::deliver     what would show the monitor's own stepping
//!              └─▶ entry ─▶ vmcb ─▶ VMRUN, in the image: the processor below executes ─▶ an exit
//!                                                      │
//!                 a debug exit: single_step            what has executed?
//!                 RDMSR, WRMSR, CPUID: hardware,       the model's registers, and those around them
//!                   msr, cpuid, x2apic, local_apic
//!              │
//!              ▼
//!            hardware    pugmark-model: Intel's processor or AMD's; tracing gives it the guest's memory and registers
//!              │ interrupts and page faults ─▶ guest::deliver
//!              ▼
//!            branches, and pugmark-truth in the image     the log of what retired
//!
//!  time      clock, guest_clock, apic_timer     the guest's clock, and the timer of its local APIC
//!            pic_pace                           interrupts of the PIC, at the guest's pace
//!  others    startup: how one processor starts another;  translation: when cached translations may be wrong
//!            probe: the monitor itself traces the guest
//! ```
//!
//! # Example
//!
//! Executes one step of a guest by hand. The monitor steps it by RFLAGS.TF, so the processor below must not execute
//! PUSHF: the guest would see the flag. Meanwhile a counter of the model counts the guest's instructions.
//!
//! ```
//! use pugmark_model::amd::{AmdSettings, Northbridge};
//! use pugmark_model::intel::IntelSettings;
//! use pugmark_model::{Context, ExecMode, Processor, Retired};
//! use pugmark_monitor::guest::{
//!     Cpu, ExecutionOutcome, GuestMemory, Gpr, Lookahead, Segment, cr0, execute, rflags,
//! };
//! use pugmark_monitor::hardware::{Hardware, Profile};
//! use pugmark_monitor::memory::SliceMemory;
//! use pugmark_monitor::tracing::TracingMemory;
//!
//! const IA32_FIXED_CTR0: u32 = 0x309;
//! const IA32_FIXED_CTR_CTRL: u32 = 0x38d;
//! const IA32_PERF_GLOBAL_CTRL: u32 = 0x38f;
//!
//! // The guest: PUSHFD at 1000h, in protected mode without paging.
//! let mut ram = [0; 0x1000];
//! ram[0] = 0x9c;
//! let mut memory = SliceMemory { base: 0x1000, bytes: &mut ram };
//! let segment = |attributes| Segment { selector: 8, attributes, limit: u32::MAX, base: 0 };
//! let (cs, ss) = (segment(0xc9b), segment(0xc93));
//! let mut cpu = Cpu { rip: 0x1000, rflags: 2, cr0: cr0::PE, cs, ss, ..Cpu::default() };
//! cpu.set(Gpr::Rsp, 0x2000);
//!
//! // Its hardware, with the counter of retired instructions on: the guest has executed two WRMSRs.
//! static NORTHBRIDGE: Northbridge = Northbridge::absent();
//! let profile = Profile::by_name("skylake").expect("a profile");
//! let mut hardware =
//!     Hardware::new(profile, IntelSettings::default(), AmdSettings::default(), &NORTHBRIDGE);
//! let at = |ip| Context { ip, cs_base: 0, cr3: 0, cpl: 0, mode: ExecMode::Bits32, iflag: false };
//! let wrmsr = Retired { before: at(0xffe), after: at(0x1000), bytes: &[0x0f, 0x30], tsc: 0, operand: 0 };
//! for (msr, value) in [(IA32_FIXED_CTR_CTRL, 0b11), (IA32_PERF_GLOBAL_CTRL, 1 << 32)] {
//!     let mut seen = TracingMemory { cpu: &cpu, memory: &mut memory };
//!     hardware.write_msr(msr, value, &wrmsr, &mut seen).expect("no #GP");
//! }
//!
//! // The step. On the processor below the guest would run with TF set.
//! assert!(hardware.needs_each_instruction());
//! assert_eq!(cpu.rflags_for_stepping() & rflags::TF, rflags::TF);
//! let instruction = Lookahead::new().next(&cpu, &mut memory).expect("no fault");
//! assert!(instruction.emulation().is_some_and(|emulation| emulation.when_stepping()));
//! let done = execute(&mut cpu, &mut memory, &instruction).expect("no fault");
//! assert_eq!(done, ExecutionOutcome::Retired { single_step: false });
//!
//! // The model is told, and the guest sees what it would see without a monitor.
//! let bytes = instruction.bytes();
//! let retired = Retired { before: at(0x1000), after: at(cpu.rip), bytes, tsc: 0, operand: 0 };
//! hardware.retire(&retired, &mut TracingMemory { cpu: &cpu, memory: &mut memory });
//! assert_eq!(hardware.read_msr(IA32_FIXED_CTR0), Ok(1));
//! let mut pushed = [0; 4];
//! assert!(memory.read(0x1ffc, &mut pushed));
//! assert_eq!((u32::from_le_bytes(pushed), cpu.rip), (2, 0x1001));
//! ```
#![no_std]

extern crate alloc;

pub mod acpi;
pub mod apic_timer;
pub mod bios;
pub mod boot_info;
pub mod branches;
pub mod clock;
pub mod cmdline;
pub mod cpuid;
pub mod elf;
pub mod entry;
pub mod firmware_map;
pub mod fw_cfg;
pub mod guest;
pub mod guest_clock;
pub mod guest_map;
pub mod hardware;
pub mod loader;
pub mod local_apic;
pub mod memory;
pub mod msr;
pub mod multiboot;
pub mod multiboot2;
pub mod permission_map;
pub mod pic_pace;
pub mod places;
pub mod probe;
pub mod pvh;
pub mod single_step;
pub mod startup;
pub mod tracing;
pub mod translation;
pub mod uefi;
pub mod vmcb;
pub mod x2apic;
