//! A kernel that multiboot alone can start.

use std::arch::global_asm;
use std::fs;

use pugmark_decoder_core::mode::ExecMode;
use pugmark_harness::scratch::Scratch;
use pugmark_launch::boot::{BootSource, ModuleFile, RAM};

use crate::{PASSED, assert_trace, boot, first_memory};

global_asm!(include_str!("multiboot.s"));

unsafe extern "C" {
    static multiboot_kernel: u8;
    static multiboot_kernel_end: u8;
}

fn kernel() -> &'static [u8] {
    let [start, end] = [&raw const multiboot_kernel, &raw const multiboot_kernel_end];
    // SAFETY: the assembly is between its two labels, and nothing writes there.
    unsafe { std::slice::from_raw_parts(start, end as usize - start as usize) }
}

#[test]
fn a_multiboot_kernel_gets_its_modules_and_traces_itself() {
    let scratch = Scratch::new().unwrap();
    let file = scratch.file("image");
    fs::write(&file, kernel()).unwrap();
    let modules =
        ["first a=1  b", "second"].map(|words| ModuleFile { file: file.clone(), words: words.into() });
    let source = BootSource::Kernel { file, modules: modules.into(), command_line: "image x y".into() };
    let booted = boot(&scratch, source, false, 64, 1);
    let text = fs::read_to_string(scratch.file("text")).unwrap();
    assert_eq!(booted.ending, PASSED, "{text}");
    assert_eq!(text, "image x y\nfirst a=1 b\nsecond\n");
    let trace = fs::read(scratch.file("dump")).unwrap();
    let memory = first_memory(&scratch.file(RAM), 2 << 20);
    // MOV; CALL, RET and LOOP 200 times; MOV and XOR.
    assert_eq!(assert_trace(&booted, 0, &trace, &memory, ExecMode::Bits32).len(), 1 + 3 * 200 + 2);
}
