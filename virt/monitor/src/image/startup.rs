//! How the processors other than the first enter the monitor, and how the guest starts them.
//!
//! The monitor starts each of them before the guest begins, and parks it. A parked processor halts until the guest
//! starts it with INIT and a start-up interrupt. It is parked again at each INIT.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::arch::{asm, global_asm};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pugmark_monitor::guest::GuestMemory;
use pugmark_monitor::local_apic::{SEND_INIT, send_start_up};

use crate::image::exit::fatal;
use crate::image::idt;
use crate::image::interrupts;
use crate::image::local_apic::send;
use crate::image::physical::Physical;
use crate::image::serial::report;
use crate::image::setup;
use crate::image::vcpu::Vcpu;

/// The page at which the processors start in real mode. Its content is restored before the guest begins.
const PAGE: u64 = 0x8000;
/// Stack size of each of these processors, in words of 16 bytes.
const STACK_WORDS: usize = (64 << 10) / size_of::<u128>();
/// Number of start-up interrupts sent to a processor until it responds, and number of checks between two of them.
const ATTEMPTS: usize = 100;
const LOOKS: usize = 100_000;

/// The virtual processor for the processor that is being started; null once that processor has taken it.
static HANDOVER: AtomicPtr<Vcpu> = AtomicPtr::new(ptr::null_mut());
/// The end of that processor's stack.
static STACK: AtomicU64 = AtomicU64::new(0);

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
    stack = sym STACK,
    further = sym further,
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
    assert!(placed, "the page is in the guest's memory");
    let result = vcpus.into_iter().try_for_each(start_one);
    let given_back = memory.write(PAGE, kept);
    assert!(given_back, "it was written before");
    result
}

fn start_one(vcpu: Vcpu) -> Result<(), u8> {
    let id = vcpu.peers.id();
    let stack: &'static mut [u128] = alloc::vec![0; STACK_WORDS].leak();
    STACK.store(stack.as_ptr_range().end as u64, Ordering::Relaxed);
    HANDOVER.store(Box::into_raw(Box::new(vcpu)), Ordering::Release);
    send(id, SEND_INIT);
    for _ in 0..ATTEMPTS {
        send(id, send_start_up((PAGE >> 12) as u8));
        for _ in 0..LOOKS {
            if HANDOVER.load(Ordering::Acquire).is_null() {
                return Ok(());
            }
            core::hint::spin_loop();
        }
    }
    Err(id)
}

/// The entry point of these processors in 64-bit mode.
extern "C" fn further() -> ! {
    idt::load();
    if let Err(error) = setup::enable_svm() {
        fatal!("a further processor: {error}");
    }
    let vcpu = HANDOVER.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: `start_one` has stored a box's pointer there for this processor alone, which takes it once.
    let mut vcpu = unsafe { Box::from_raw(vcpu) };
    vcpu.reset();
    vcpu.wait_for_start_up();
    vcpu.run()
}

impl Vcpu {
    /// Does what another processor has requested of this one.
    pub(crate) fn answer(&mut self) {
        if self.peers.is_ending() {
            self.end_here();
        }
        if self.peers.startup().is_init() {
            if self.processor.steps() {
                report!(
                    "INIT of processor {} while it traces, of which the trace tells nothing",
                    self.peers.index()
                );
            }
            self.local_apic.init();
            self.reset();
            self.peers.startup().reset();
            self.wait_for_start_up();
        }
    }

    /// Returns whether another processor has requested anything of this one.
    pub(crate) fn is_wanted(&self) -> bool {
        self.peers.startup().is_init() || self.peers.is_ending()
    }

    /// Records an NMI if one `came`: it is the guest's, unless it was another processor's call.
    pub(crate) fn took_nmi(&mut self, came: bool) {
        self.nmi_pending |= came && !self.peers.was_called();
    }

    /// Resets the guest's processor as INIT does. Its tracing hardware stays unchanged, except that its LVT entry is
    /// reset and the storing of branch records ends.
    fn reset(&mut self) {
        self.fetch_extra();
        let signature = self.cpuid_answer(1, 0).eax;
        self.cpu.init(signature);
        self.load_extra();
        // SAFETY: these registers only hold addresses of breakpoints, and none is enabled while the monitor runs.
        unsafe {
            asm!(
                "mov dr0, {0}", "mov dr1, {0}", "mov dr2, {0}", "mov dr3, {0}",
                in(reg) 0u64, options(nomem, nostack)
            );
        }
        self.local_apic.abandon_window();
        self.lookahead.flush();
        self.processor.init();
        self.nmi_pending = false;
        self.repeating = None;
        self.ahead = false;
    }

    /// Halts until a start-up interrupt comes. NMIs that others send in the meantime are lost.
    fn wait_for_start_up(&mut self) {
        loop {
            if self.is_wanted() {
                return;
            }
            if let Some(vector) = self.peers.startup().take_start_up() {
                return self.cpu.start_up(vector);
            }
            if interrupts::wait_for_nmi() {
                let _ = self.peers.was_called();
            }
        }
    }
}
