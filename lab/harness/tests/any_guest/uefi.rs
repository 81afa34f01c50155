//! UEFI firmware as the guest: an application on a disk traces itself, another processor, and the firmware.

use std::arch::global_asm;
use std::collections::HashSet;
use std::fs::{self, File};

use memmap2::Mmap;
use pugmark_decoder_core::mode::ExecMode;
use pugmark_harness::esp;
use pugmark_harness::scratch::Scratch;
use pugmark_launch::boot::{BootSource, RAM};

use crate::{PASSED, assert_trace, boot};

global_asm!(include_str!("uefi.s"));

unsafe extern "C" {
    static uefi_program: u8;
    static uefi_program_end: u8;
}

fn program() -> &'static [u8] {
    let [start, end] = [&raw const uefi_program, &raw const uefi_program_end];
    // SAFETY: the assembly is between its two labels, and nothing writes there.
    unsafe { std::slice::from_raw_parts(start, end as usize - start as usize) }
}

/// The parts that the program sends.
fn parts(mut sent: &[u8]) -> Vec<&[u8]> {
    let mut parts = vec![];
    while let Some((bytes, rest)) = sent.split_first_chunk() {
        let (part, rest) = rest.split_at(u32::from_le_bytes(*bytes) as usize);
        parts.push(part);
        sent = rest;
    }
    parts
}

/// Start, end and kind of each range in the firmware's map.
fn ranges(map: &[u8], descriptor: usize) -> Vec<(u64, u64, u64)> {
    let range = |descriptor: &[u8]| {
        let long = |at: usize| u64::from_le_bytes(*descriptor[at..].first_chunk().unwrap());
        (long(8), long(8) + (long(24) << 12), long(0) & 0xffff_ffff)
    };
    map.chunks_exact(descriptor).map(range).collect()
}

/// Asserts that the map offers all the guest's memory, and nothing of the monitor's and its log's.
fn assert_map(map: &[(u64, u64, u64)], guest: u64, hole: std::ops::Range<u64>) {
    const RESERVED: u64 = 0;
    const AT_RUN_TIME: [u64; 2] = [5, 6];
    const CONVENTIONAL: u64 = 7;
    let in_hole = |start: u64, end: u64| end.min(hole.end).saturating_sub(start.max(hole.start));
    let of_hole: u64 =
        map.iter().filter(|range| range.2 == RESERVED).map(|range| in_hole(range.0, range.1)).sum();
    assert_eq!(of_hole, hole.end - hole.start, "{map:x?}");
    assert!(map.iter().all(|&(start, end, kind)| kind == RESERVED || in_hole(start, end) == 0), "{map:x?}");
    let free: u64 = map.iter().filter(|range| range.2 == CONVENTIONAL).map(|range| range.1 - range.0).sum();
    assert!(free > guest * 3 / 4, "{free:#x} of {guest:#x}");
    assert!(map.iter().any(|range| AT_RUN_TIME.contains(&range.2)));
}

#[test]
fn an_application_traces_itself_the_firmware_and_another_processor() {
    const MIB: u64 = 1 << 20;
    if let Some(reason) = esp::missing_firmware() {
        return println!("skipped: {reason}");
    }
    for (memory, processors) in [(384, 1), (600, 2)] {
        let scratch = Scratch::new().unwrap();
        let image = scratch.file("disk");
        fs::write(&image, esp::disk(program()).unwrap()).unwrap();
        let booted = boot(&scratch, BootSource::Disk(image), true, memory, processors);
        let text = fs::read_to_string(scratch.file("text")).unwrap();
        assert_eq!(booted.ending, PASSED, "{text}");
        assert!(text.contains("traced"), "{text}");
        let sent = fs::read(scratch.file("dump")).unwrap();
        let [descriptor, map, trace, other] = parts(&sent)[..] else { panic!("{} bytes", sent.len()) };
        let map = ranges(map, usize::from(descriptor[0]));
        assert_map(&map, memory * MIB, 256 * MIB..(320 + 256) * MIB);

        // SAFETY: the machine has ended, so nothing writes to the file.
        let ram = unsafe { Mmap::map(&File::open(scratch.file(RAM)).unwrap()) }.unwrap();
        let own = assert_trace(&booted, 0, trace, &ram, ExecMode::Bits64);
        let pages: HashSet<u64> = own.iter().map(|address| address >> 12).collect();
        assert!(
            own.len() > 10_000 && pages.len() > 20,
            "{} instructions in {} pages",
            own.len(),
            pages.len()
        );
        if processors > 1 {
            // CALL, RET, DEC and JNZ 300 times.
            assert!((1200..1300).contains(&assert_trace(&booted, 1, other, &ram, ExecMode::Bits64).len()));
        } else {
            assert!(other.is_empty());
        }
    }
}
