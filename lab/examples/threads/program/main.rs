//! A program with two kinds of threads: one sorts, the others count. Both mix numbers.
#![no_std]
#![no_main]

use core::arch::asm;
use core::hint::black_box;
use core::panic::PanicInfo;

const YIELD: u64 = 0;
const EXIT: u64 = 1;

/// Starts a thread.
#[unsafe(no_mangle)]
extern "C" fn start(argument: u64) -> ! {
    let result = if argument == 0 { count() } else { sort(argument) };
    call(EXIT, result);
    unreachable!("a thread has ended")
}

/// Calls the kernel.
#[inline(never)]
fn call(number: u64, argument: u64) {
    // SAFETY: the kernel saves and loads all registers.
    unsafe { asm!("int 0x80", in("rax") number, in("rdi") argument) };
}

const NUMBERS: usize = 100;

/// Sorts numbers, and gives up its turn in between. Returns the smallest one.
#[inline(never)]
fn sort(seed: u64) -> u64 {
    let mut number = seed;
    let mut numbers: [u64; NUMBERS] = core::array::from_fn(|_| {
        number = mix(number);
        number
    });
    for end in (1..NUMBERS).rev() {
        for at in 0..end {
            if numbers[at] > numbers[at + 1] {
                numbers.swap(at, at + 1);
            }
        }
        if end % 13 == 0 {
            call(YIELD, 0);
        }
    }
    numbers[0]
}

/// Counts numbers that have a property, and gives up its turn in between.
#[inline(never)]
fn count() -> u64 {
    let (mut number, mut count) = (0, 0);
    for round in 0..2000_u32 {
        number = mix(number);
        count += u64::from(number.is_multiple_of(3));
        if round % 200 == 0 {
            call(YIELD, 0);
        }
    }
    count
}

#[inline(never)]
fn mix(number: u64) -> u64 {
    black_box(number).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    call(EXIT, u64::MAX);
    loop {}
}

/// The compiler expects it on a hosted target.
#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
