//! Two address spaces with different code at the same address; both are traced or, with the CR3 filter, one.

use alloc::vec::Vec;
use core::arch::global_asm;
use pugmark_decoder_core::image::{AddressSpace, Section};

use crate::arch::paging::{PageTableRoot, USER_BASE};
use crate::plan::Plan;
use crate::session::leave_address_space;
use crate::workload::{Mismatch, Workload, expect};

const CODE: u64 = USER_BASE + (1 << 28);
const ROUNDS: u64 = 60;

/// Calls the function at the same address in both address spaces in turn.
pub(super) struct AddressSpaces {
    filter: bool,
    spaces: [PageTableRoot; 2],
    results: [u64; 2],
}

impl AddressSpaces {
    /// Traces both spaces, or only the second one with `filter`.
    ///
    /// # Panics
    /// If there is no memory for the address spaces.
    pub(super) fn new(filter: bool) -> Self {
        let spaces = codes().map(|code| {
            let mut space = PageTableRoot::new().expect("memory for an address space");
            space.map_user(CODE, code, true).expect("memory for a page of code");
            space
        });
        Self { filter, spaces, results: [0; 2] }
    }
}

impl Workload for AddressSpaces {
    fn plan(&self) -> Plan {
        if self.filter { Plan::everything().under_cr3(self.spaces[1].cr3()) } else { Plan::everything() }
    }

    fn sections(&self) -> Vec<Section<'_>> {
        let section = |(space, bytes): (&PageTableRoot, &'static [u8])| Section {
            base: CODE,
            bytes,
            space: AddressSpace::Cr3(space.cr3()),
        };
        self.spaces.iter().zip(codes()).map(section).collect()
    }

    fn run(&mut self) {
        let kernel = PageTableRoot::current();
        // SAFETY: both spaces have a function of this type at this address, and it is called only in these spaces.
        let function = unsafe { core::mem::transmute::<u64, extern "C" fn(u64) -> u64>(CODE) };
        for round in 0..ROUNDS {
            for (space, result) in self.spaces.iter().zip(&mut self.results) {
                leave_address_space();
                space.enter();
                *result += function(round);
            }
        }
        leave_address_space();
        kernel.enter();
    }

    fn check(&self) -> Result<(), Mismatch> {
        let sum = ROUNDS * (ROUNDS - 1) / 2;
        expect("first sum", self.results[0], sum)?;
        expect("second sum", self.results[1], (0..ROUNDS).map(|n| n * n).sum())
    }
}

/// Returns the code of the two spaces.
fn codes() -> [&'static [u8]; 2] {
    unsafe extern "C" {
        static first_space_code: [u8; 0];
        static second_space_code: [u8; 0];
        static second_space_code_end: [u8; 0];
    }
    let [start, middle, end] =
        [&raw const first_space_code, &raw const second_space_code, &raw const second_space_code_end]
            .map(|label| label.cast::<u8>());
    let code = |from: *const u8, to: *const u8| {
        // SAFETY: both labels are in the block of constants below, in this order.
        unsafe { core::slice::from_raw_parts(from, to as usize - from as usize) }
    };
    [code(start, middle), code(middle, end)]
}

global_asm!(
    r#"
    .section .rodata.space_code, "a"
first_space_code:
    // Counts down to get the argument back.
    xor eax, eax
    test rdi, rdi
    jz 3f
2:  inc rax
    dec rdi
    jnz 2b
3:  ret
second_space_code:
    // The argument's square, the long way round.
    push rdi
    call 4f
    pop rcx
    ret
4:  mov rax, rdi
    cmp rdi, 1
    jbe 5f
    imul rax, rdi
5:  ret
second_space_code_end:
    "#
);
