//! RDMSR and WRMSR that survive a #GP with the help of the kernel's handler.

use crate::msr::{GeneralProtection, Msr};
use core::arch::global_asm;
use core::marker::PhantomData;

/// RDMSR and WRMSR of the processor that executes them; a #GP becomes an error.
///
/// The kernel's #GP handler has to call [`fixup`] with the faulting RIP. Neither `Send` nor `Sync`: it stands for
/// the processor it was made on.
#[derive(Debug)]
pub struct GuardedMsr(PhantomData<*const ()>);

impl GuardedMsr {
    /// The registers of this processor.
    ///
    /// # Safety
    ///
    /// The caller runs at CPL 0, the #GP handler calls [`fixup`] and obeys it, and the value stays on this logical
    /// processor: whoever holds it is not moved to another one.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(PhantomData)
    }
}

/// For the #GP handler: where to go on when the fault was in one of this module's accesses.
///
/// `Some(address)`: put it into the interrupted frame's RIP and return from the handler; no other register needs a
/// change. `None`: the fault is not ours.
#[must_use]
pub fn fixup(rip: u64) -> Option<u64> {
    let rdmsr = &raw const pugmark_rdmsr_access as u64;
    let wrmsr = &raw const pugmark_wrmsr_access as u64;
    (rip == rdmsr || rip == wrmsr).then_some(&raw const pugmark_msr_faulted as u64)
}

// SAFETY: RDMSR and WRMSR reach the registers of the processor they run on, the same one for all calls by
// the promise of `new`.
unsafe impl Msr for GuardedMsr {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        let mut value = 0;
        // SAFETY: the function below keeps the calling convention, with and without the fault, and writes one u64.
        match unsafe { pugmark_rdmsr(address, &mut value) } {
            0 => Ok(value),
            _ => Err(GeneralProtection { address, written: None }),
        }
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        // SAFETY: the function below keeps the calling convention, with and without the fault; the caller vouches for
        // the value.
        match unsafe { pugmark_wrmsr(address, value) } {
            0 => Ok(()),
            _ => Err(GeneralProtection { address, written: Some(value) }),
        }
    }
}

unsafe extern "sysv64" {
    /// 0, or 1 after a #GP.
    fn pugmark_rdmsr(address: u32, value: *mut u64) -> u32;
    /// 0, or 1 after a #GP.
    fn pugmark_wrmsr(address: u32, value: u64) -> u32;
    static pugmark_rdmsr_access: u8;
    static pugmark_wrmsr_access: u8;
    static pugmark_msr_faulted: u8;
}

// A fault leaves the stack as it was at the instruction, so `pugmark_msr_faulted` returns for either function.
global_asm!(
    r#"
    .pushsection .text.pugmark_msr, "ax", @progbits
    .global pugmark_rdmsr, pugmark_wrmsr, pugmark_rdmsr_access, pugmark_wrmsr_access, pugmark_msr_faulted
    .hidden pugmark_rdmsr, pugmark_wrmsr, pugmark_rdmsr_access, pugmark_wrmsr_access, pugmark_msr_faulted
    .type pugmark_rdmsr, @function
    .type pugmark_wrmsr, @function
    pugmark_rdmsr:
        mov ecx, edi
    pugmark_rdmsr_access:
        rdmsr
        mov dword ptr [rsi], eax
        mov dword ptr [rsi + 4], edx
        xor eax, eax
        ret
    .size pugmark_rdmsr, . - pugmark_rdmsr
    pugmark_wrmsr:
        mov ecx, edi
        mov rax, rsi
        mov rdx, rsi
        shr rdx, 32
    pugmark_wrmsr_access:
        wrmsr
        xor eax, eax
        ret
    .size pugmark_wrmsr, . - pugmark_wrmsr
    pugmark_msr_faulted:
        mov eax, 1
        ret
    .popsection
    "#
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixup_knows_its_two_instructions_and_no_other() {
        let rdmsr = &raw const pugmark_rdmsr_access as u64;
        let wrmsr = &raw const pugmark_wrmsr_access as u64;
        for (rip, opcode) in [(rdmsr, [0x0f, 0x32]), (wrmsr, [0x0f, 0x30])] {
            // SAFETY: both labels are in front of a two-byte instruction of this program's text.
            let code = unsafe { *(rip as *const [u8; 2]) };
            assert_eq!(code, opcode);
            let after = fixup(rip).unwrap();
            // SAFETY: as above, in front of a five-byte instruction.
            let code = unsafe { *(after as *const [u8; 5]) };
            assert_eq!(code, [0xb8, 1, 0, 0, 0], "mov eax, 1");
            assert_eq!(fixup(rip - 1), None);
            assert_eq!(fixup(rip + 2), None);
        }
    }
}
