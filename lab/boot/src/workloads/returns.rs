//! Returns without calls: the most trace bytes per instruction, one packet for each return.

use alloc::vec::Vec;
use core::arch::global_asm;

/// A stack of return addresses, prepared in advance.
pub(crate) struct Returns {
    stack: Vec<u64>,
    /// Number of completed runs through the stack.
    finished: u64,
}

unsafe extern "sysv64" {
    /// Switches to the stack at `stack` and returns repeatedly, up to the address of `returns_end`.
    fn returns_run(stack: *const u64);
    static returns_link: u8;
    static returns_end: u8;
}

impl Returns {
    /// Makes a stack of `count` returns, all through the same instruction.
    pub(crate) fn new(count: usize) -> Self {
        Self::through(count, 1)
    }

    /// Makes a stack of `count` returns through consecutive instructions: a monitor that looks ahead runs all of them
    /// at once.
    pub(crate) fn spread(count: usize) -> Self {
        Self::through(count, LINKS)
    }

    fn through(count: usize, links: usize) -> Self {
        let link = &raw const returns_link as u64;
        let mut stack: Vec<u64> = (0..count).map(|index| link + (index % links) as u64).collect();
        stack.push(&raw const returns_end as u64);
        Self { stack, finished: 0 }
    }

    /// Executes the returns of the stack.
    pub(crate) fn run(&mut self) {
        // SAFETY: the last return of the stack leads back here with the original stack; the others lead to a return.
        // No trap writes to the stack, because each trap has a stack of its own.
        unsafe { returns_run(self.stack.as_ptr()) };
        self.finished += 1;
    }

    /// Returns the number of completed runs through the stack.
    pub(crate) fn finished(&self) -> u64 {
        self.finished
    }
}

/// Number of RET instructions, a byte each.
const LINKS: usize = 60;

global_asm!(
    r#"
    .section .text.returns, "ax"
    .type returns_run, @function
returns_run:
    mov rax, rsp
    mov rsp, rdi
returns_link:
    .rept {links}
    ret
    .endr
returns_end:
    mov rsp, rax
    ret
    .size returns_run, . - returns_run
    "#,
    links = const LINKS,
);
