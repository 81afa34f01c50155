//! The start of the other processors: their entry into the monitor, and their start by the guest.
//!
//! The monitor starts each of them before the guest begins, and parks it. A parked processor halts until the guest
//! starts it with INIT and a start-up interrupt. It is parked again at each INIT.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::arch::{asm, global_asm};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pugmark_model::Init;
use pugmark_monitor::guest::GuestMemory;
use pugmark_monitor::local_apic::{INIT_COMMAND, start_up_command};
use pugmark_monitor::tracing::TracingMemory;

use crate::image::apic_registers::send;
use crate::image::exit::fatal;
use crate::image::idt;
use crate::image::interrupts;
use crate::image::physical::Physical;
use crate::image::svm::enable_svm;
use crate::image::vcpu::Vcpu;

/// The page at which the processors start in real mode. Its content is restored before the guest begins.
const PAGE: u64 = 0x8000;
/// Stack size of each of these processors, in words of 16 bytes.
const STACK_WORDS: usize = (64 << 10) / size_of::<u128>();
/// Number of start-up interrupts sent to a processor until it responds, and number of checks between two of them.
const ATTEMPTS: usize = 100;
const CHECKS_PER_ATTEMPT: usize = 100_000;

/// The virtual processor for the processor that is being started; null once that processor has taken it.
static STARTING_VCPU: AtomicPtr<Vcpu> = AtomicPtr::new(ptr::null_mut());
/// The end of that processor's stack.
static STARTING_STACK: AtomicU64 = AtomicU64::new(0);

global_asm!(
    r#"
    .section .text.startup, "ax", @progbits
    .code16
startup_page:
    cli
    mov ax, cs
    mov ds, ax
    // LGDT with an operand of 32 bits, at an offset in the page.
    .byte 0x66, 0x0f, 0x01, 0x16
    .word startup_gdt_pointer - startup_page
    mov eax, 0x620                // PAE | OSFXSR | OSXMMEXCPT
    mov cr4, eax
    mov eax, offset boot_pml4
    mov cr3, eax
    mov ecx, 0xc0000080           // EFER
    rdmsr
    or eax, 0x100                 // LME
    wrmsr
    mov eax, 0x80010033           // PG | WP | NE | ET | MP | PE
    mov cr0, eax
    // A far jump with an offset of 32 bits to the 64-bit code segment.
    .byte 0x66, 0xea
    .long startup_long_mode
    .word 0x08
    .balign 4
startup_gdt_pointer:
    .word 23
    .long boot_gdt
startup_page_end:

    .code64
startup_long_mode:
    mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    xor eax, eax
    mov fs, eax
    mov gs, eax
    mov rsp, [rip + {stack}]
    xor ebp, ebp
    call {further}
    ud2
    "#,
    stack = sym STARTING_STACK,
    further = sym further_processor_main,
);

unsafe extern "C" {
    static startup_page: u8;
    static startup_page_end: u8;
}

/// Starts and parks the processors for `vcpus`. Returns the local APIC ID of a processor that does not respond as the
/// error.
pub(crate) fn start(vcpus: Vec<Vcpu>, memory: &mut Physical) -> Result<(), u8> {
    let start = &raw const startup_page;
    let bytes = &raw const startup_page_end as usize - start as usize;
    // SAFETY: the assembly above is between its two labels, and nothing writes there.
    let code = unsafe { core::slice::from_raw_parts(start, bytes) };
    let mut kept = [0; 256];
    let kept = &mut kept[..bytes];
    let placed = memory.read(PAGE, kept) && memory.write(PAGE, code);
    assert!(placed, "the start-up page at {PAGE:#x} is not in the guest's memory");
    let result = vcpus.into_iter().try_for_each(start_one);
    let given_back = memory.write(PAGE, kept);
    assert!(given_back, "the start-up page at {PAGE:#x} cannot be restored");
    result
}

fn start_one(vcpu: Vcpu) -> Result<(), u8> {
    let id = vcpu.peers.id();
    let stack: &'static mut [u128] = alloc::vec![0; STACK_WORDS].leak();
    STARTING_STACK.store(stack.as_ptr_range().end as u64, Ordering::Relaxed);
    STARTING_VCPU.store(Box::into_raw(Box::new(vcpu)), Ordering::Release);
    send(id, INIT_COMMAND);
    for _ in 0..ATTEMPTS {
        send(id, start_up_command((PAGE >> 12) as u8));
        for _ in 0..CHECKS_PER_ATTEMPT {
            if STARTING_VCPU.load(Ordering::Acquire).is_null() {
                return Ok(());
            }
            core::hint::spin_loop();
        }
    }
    Err(id)
}

/// Runs one of these processors from its entry into 64-bit mode on.
extern "C" fn further_processor_main() -> ! {
    idt::load();
    if let Err(error) = enable_svm() {
        fatal!("a processor other than the first: {error}");
    }
    let vcpu = STARTING_VCPU.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: `start_one` has stored a box's pointer there for this processor alone, which takes it once.
    let mut vcpu = unsafe { Box::from_raw(vcpu) };
    vcpu.reset();
    vcpu.wait_for_start_up();
    vcpu.run()
}

impl Vcpu {
    /// Handles the requests of other processors.
    pub(crate) fn answer_requests(&mut self) {
        if self.peers.machine_ends() {
            self.end_this_processor();
        }
        if self.peers.startup().has_received_init() {
            self.local_apic.init();
            self.clock.init();
            self.reset();
            self.peers.startup().finish_init();
            self.wait_for_start_up();
        }
    }

    /// Returns whether another processor has made a request.
    pub(crate) fn has_requests(&self) -> bool {
        self.peers.startup().has_received_init() || self.peers.machine_ends()
    }

    /// Records an NMI if one `came`: it is the guest's, unless it was another processor's call.
    pub(crate) fn record_nmi(&mut self, came: bool) {
        self.nmi_pending |= came && !self.peers.take_call();
    }

    /// Resets the guest's processor, and its tracing hardware, as INIT does.
    fn reset(&mut self) {
        let init = Init { before: self.context(), after: None, tsc: self.now() };
        self.vmsave();
        let signature = self.cpuid_answer(1, 0).eax;
        self.cpu.init(signature);
        self.vmload();
        // SAFETY: these registers only hold addresses of breakpoints, and none is enabled while the monitor runs.
        unsafe {
            asm!(
                "mov dr0, {0}", "mov dr1, {0}", "mov dr2, {0}", "mov dr3, {0}",
                in(reg) 0u64, options(nomem, nostack)
            );
        }
        self.local_apic.abandon_window();
        self.close_holes();
        self.stepped_alone = None;
        self.lookahead.flush();
        let mut memory = TracingMemory { cpu: &self.cpu, memory: &mut self.memory };
        self.processor.init(&init, &mut memory);
        self.nmi_pending = false;
        self.repeating_rip = None;
        self.emulated_without_exit = false;
    }

    /// Halts until a start-up interrupt arrives. NMIs that others send in the meantime are lost.
    fn wait_for_start_up(&mut self) {
        loop {
            if self.has_requests() {
                return;
            }
            if let Some(vector) = self.peers.startup().take_start_up() {
                self.cpu.start_up(vector);
                let (at, tsc) = (self.context(), self.now());
                let mut memory = TracingMemory { cpu: &self.cpu, memory: &mut self.memory };
                self.processor.start_up(&at, tsc, &mut memory);
                return;
            }
            if interrupts::wait_for_nmi() {
                let _ = self.peers.take_call();
            }
        }
    }
}
