//! The same checks on the processor that runs the tests, within the limits of privilege level 3 of 64-bit mode.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use core::arch::asm;

use super::*;
use crate::guest::testing::sel;
use crate::guest::{Cpu, Gpr};

/// Flags that the test never sets: TF would trap.
const LEFT_OUT: u64 = rflags::TF;

#[test]
fn popfq_leaves_the_flags_the_processor_leaves() {
    for image in images() {
        let start = flags_of_processor();
        let mut machine = Machine::long_user();
        machine.cpu.rflags = start;
        machine.put_quads(at::STACK, &[image]);
        assert_eq!(run(&mut machine, &[0x9d]), RETIRED);
        assert_eq!(machine.cpu.rflags, popfq(image), "{image:#x}");
    }
}

#[test]
fn iretq_leaves_the_flags_the_processor_leaves() {
    for image in images() {
        let start = flags_of_processor();
        let mut machine = Machine::long_user();
        machine.cpu.rflags = start;
        let (cs, ss) = (u64::from(sel::USER_CODE64), u64::from(sel::USER_DATA));
        machine.put_quads(at::STACK, &[at::CODE, cs, image, at::STACK, ss]);
        assert_eq!(run(&mut machine, &[0x48, 0xcf]), RETIRED);
        let Cpu { rflags, .. } = machine.cpu;
        // RF has taken effect and is cleared by the instruction after IRETQ, before PUSHFQ.
        assert_eq!(rflags & !rflags::RF, iretq(image), "{image:#x}");
        assert_eq!(machine.cpu.get(Gpr::Rsp), at::STACK);
    }
}

/// Returns every flag alone, all flags, none, and every other one.
fn images() -> impl Iterator<Item = u64> {
    let single = (0..22).map(|bit| 1_u64 << bit);
    single.chain([0, 0x3f_ffff, 0x15_5555, 0x2a_aaaa]).map(|image| image & !LEFT_OUT)
}

fn flags_of_processor() -> u64 {
    let flags: u64;
    // SAFETY: pushes and pops one quadword, within the stack the compiler provides for.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags) };
    flags
}

/// Returns RFLAGS after POPFQ of `image`.
fn popfq(image: u64) -> u64 {
    let flags: u64;
    // SAFETY: balanced pushes and pops; the flags that the compiler relies on (DF, AC) are restored before the end.
    unsafe {
        asm!(
            "pushfq",
            "push {image}",
            "popfq",
            "pushfq",
            "pop {flags}",
            "popfq",
            image = in(reg) image,
            flags = lateout(reg) flags,
        );
    }
    flags
}

/// Returns RFLAGS after IRETQ with `image` to the next instruction.
fn iretq(image: u64) -> u64 {
    let flags: u64;
    // SAFETY: the frame holds the current code and stack segments, the previous stack pointer, and the label after the
    // IRETQ, so execution continues there; the flags that the compiler relies on are restored before the end.
    unsafe {
        asm!(
            "pushfq",
            "mov {rsp}, rsp",
            "mov {scratch:e}, ss",
            "push {scratch}",
            "push {rsp}",
            "push {image}",
            "mov {scratch:e}, cs",
            "push {scratch}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "iretq",
            "2:",
            "pushfq",
            "pop {flags}",
            "popfq",
            image = in(reg) image,
            rsp = out(reg) _,
            scratch = out(reg) _,
            flags = lateout(reg) flags,
        );
    }
    flags
}
