//! A painted stack for the driver's code. The model of the hardware runs on the thread's own stack.

use pugmark_kernel::lapic::{LocalApic, LvtPc};
use pugmark_kernel::msr::{GeneralProtection, Msr};
use std::arch::asm;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The size of the stack: many times the need of any handler.
const SIZE: usize = 256 << 10;
const PAINT: u8 = 0xa5;
/// A distance larger than the red zone below a stack pointer.
const APART: usize = 256;

thread_local! {
    /// The thread's own stack pointer while it uses a painted stack; 0 while it does not.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// A stack that shows how much of it was used.
pub(crate) struct Painted(Box<Bytes>);

#[repr(align(16))]
struct Bytes([u8; SIZE]);

impl Painted {
    pub(crate) fn new() -> Self {
        Self(Box::new(Bytes([PAINT; SIZE])))
    }

    /// Calls `work` on this stack.
    pub(crate) fn call<R>(&mut self, work: impl FnOnce() -> R) -> R {
        assert_eq!(OWN.get(), 0, "already on a painted stack");
        let top = self.top();
        let result = call_at(top, OWN.with(Cell::as_ptr), work);
        OWN.set(0);
        result
    }

    fn top(&self) -> usize {
        (&raw const self.0.0 as usize) + SIZE
    }

    /// Returns the distance of an address on this stack from the top, in bytes.
    pub(crate) fn depth(&self, address: usize) -> usize {
        self.top() - address
    }

    /// Returns the maximum number of bytes that any call has used.
    pub(crate) fn used(&self) -> usize {
        SIZE - self.0.0.iter().take_while(|byte| **byte == PAINT).count()
    }
}

/// Calls `work` on the thread's own stack.
fn on_own_stack<R>(work: impl FnOnce() -> R) -> R {
    match OWN.replace(0) {
        0 => work(),
        own => {
            let mut unused = 0;
            let result = call_at((own - APART) & !15, &raw mut unused, work);
            OWN.set(own);
            result
        }
    }
}

/// Calls `work` with its stack below `top`, and stores the current stack pointer to `before`.
#[inline(never)]
fn call_at<R>(top: usize, before: *mut usize, work: impl FnOnce() -> R) -> R {
    struct Call<W, R>(Option<W>, Option<std::thread::Result<R>>);
    extern "C" fn run<W: FnOnce() -> R, R>(call: &mut Call<W, R>) {
        call.1 = call.0.take().map(|work| catch_unwind(AssertUnwindSafe(work)));
    }
    fn entry<W: FnOnce() -> R, R>(_: &Call<W, R>) -> extern "C" fn(&mut Call<W, R>) {
        run::<W, R>
    }
    let mut call = Call(Some(work), None);
    let run = entry(&call);
    // SAFETY: `top` is a multiple of 16 below which nothing is used, `before` a place to write to; R12 keeps the stack
    // pointer over the call, which does not unwind.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov [{before}], rsp",
            "mov rsp, {top}",
            "call {run}",
            "mov rsp, r12",
            before = in(reg) before,
            top = in(reg) top,
            run = in(reg) run,
            in("rdi") &raw mut call,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    call.1.expect("`run` has set it").unwrap_or_else(|panic| resume_unwind(panic))
}

/// Registers whose model runs on the thread's own stack.
#[derive(Clone, Debug)]
pub(crate) struct Apart<R>(pub(crate) R);

// SAFETY: the registers are those of the inner value.
unsafe impl<R: Msr> Msr for Apart<R> {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        on_own_stack(|| self.0.rdmsr(address))
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        // SAFETY: the caller promises the same.
        on_own_stack(|| unsafe { self.0.wrmsr(address, value) })
    }
}

// SAFETY: the entry is that of the inner value.
unsafe impl<R: LocalApic> LocalApic for Apart<R> {
    fn is_enabled(&mut self) -> Result<bool, GeneralProtection> {
        on_own_stack(|| self.0.is_enabled())
    }

    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
        on_own_stack(|| self.0.lvt_pc())
    }

    unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
        // SAFETY: the caller promises the same.
        on_own_stack(|| unsafe { self.0.set_lvt_pc(entry) })
    }
}
