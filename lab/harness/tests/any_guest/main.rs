//! Guests that need not speak a protocol: the machine's own firmware, which boots a disk whose program traces itself,
//! and a kernel.

mod multiboot;
mod strangers;
mod uefi;

use std::arch::global_asm;
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use pugmark_decoder_core::flow::{FlowItem, InsnDecoder};
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_decoder_core::mode::ExecMode;
use pugmark_harness::images::{Images, build_monitor};
use pugmark_harness::report::Transcript;
use pugmark_harness::scratch::Scratch;
use pugmark_launch::boot::{Boot, BootSource, Booted, Console, Ending, ModuleFile, RAM};

global_asm!(include_str!("program.s"));

unsafe extern "C" {
    static bios_disk: u8;
    static bios_disk_end: u8;
}

/// The exit status of QEMU after the program has written 10H to port F4H.
const PASSED: Ending = Ending::Exit(33);

/// Returns the disk's image.
fn disk() -> &'static [u8] {
    let [start, end] = [&raw const bios_disk, &raw const bios_disk_end];
    // SAFETY: the assembly is between its two labels, and nothing writes there.
    unsafe { std::slice::from_raw_parts(start, end as usize - start as usize) }
}

/// Boots a source, with the guest's output in the file `text` and its trace in the file `dump`.
fn boot(scratch: &Scratch, source: BootSource, uefi: bool, memory: u64, processors: u16) -> Booted {
    let mut dump = std::ffi::OsString::from("file,id=dump,path=");
    dump.push(scratch.file("dump"));
    let boot = Boot {
        monitor: build_monitor().unwrap(),
        options: "profile=skylake".into(),
        source,
        uefi,
        recorder: vec![],
        processors,
        memory,
        logs_each: true,
        limit: Some(Duration::from_secs(120)),
        arguments: [
            "-chardev".into(),
            dump,
            "-device".into(),
            "isa-debugcon,iobase=0xe9,chardev=dump".into(),
        ]
        .into(),
    };
    boot.run(scratch, Console::File(&scratch.file("text")), || false, |line| println!("{line}")).unwrap()
}

/// The sizes of the memory as the firmware reports them, and start, end and kind of each range.
type FirmwareMap = (Vec<Vec<u64>>, Vec<(u64, u64, u64)>);

/// Returns the lines of numbers that the program has printed; those of E820H with start, end and kind.
fn map(text: &str) -> FirmwareMap {
    let numbers = |line: &str| -> Vec<u64> {
        line.split_whitespace().map(|word| u64::from_str_radix(word, 16).unwrap()).collect()
    };
    let (ranges, sizes): (Vec<_>, Vec<_>) = text.lines().map(numbers).partition(|line| line.len() == 10);
    let join = |words: &[u64]| words.iter().fold(0, |value, word| value << 16 | word);
    let range = |words: Vec<u64>| {
        let (kind, bytes, start) = (join(&words[..2]), join(&words[2..6]), join(&words[6..]));
        (start, start + bytes, kind)
    };
    (sizes, ranges.into_iter().map(range).collect())
}

/// Returns the same for a guest with so much memory in MiB.
fn expected_map(memory: u64) -> FirmwareMap {
    const MIB: u64 = 1 << 20;
    const RAM: u64 = 1;
    const RESERVED: u64 = 2;
    let sizes = [&[0x12, 637][..], &[0x88, 63 << 10], &[0x801, 15 << 10, 240 << 4, 15 << 10, 240 << 4]];
    let low = [(0, 637 << 10, RAM), (637 << 10, 640 << 10, RESERVED), (0xf_0000, MIB, RESERVED)];
    let high = match memory {
        256 => vec![(MIB, 256 * MIB, RAM), (256 * MIB, 544 * MIB, RESERVED)],
        // The log and the firmware's part are above the guest.
        _ => vec![
            (MIB, 256 * MIB, RAM),
            (256 * MIB, 320 * MIB, RESERVED),
            (320 * MIB, memory * MIB, RAM),
            (memory * MIB, 800 * MIB, RESERVED),
        ],
    };
    // The BIOS's ROM, and the hole of AMD's HyperTransport.
    let devices = [(0xfffc_0000, 1 << 32, RESERVED), (0xfd_0000_0000, 0x100_0000_0000, RESERVED)];
    (sizes.map(<[u64]>::to_vec).into(), low.into_iter().chain(high).chain(devices).collect())
}

/// The segments whose code is in the trace, by the offsets of that code in them: the address of the segment, and the
/// range of offsets. They do not overlap, which a decoder of real-address mode depends on: a processor that does not
/// enumerate `CPUID.14H.0:ECX[31]` writes addresses without the base of CS, and nothing else tells the base.
const SEGMENTS: [(usize, Range<usize>); 4] =
    [(RESIDENT, 0..0x100), (BIOS, 0x100..0x600), (0, 0x600..0xa00), (BIOS, 0xa00..0x1_0000)];
/// The monitor's resident part, and the BIOS's segment.
const RESIDENT: usize = 637 << 10;
const BIOS: usize = 0xf_0000;

/// Returns the address of an instruction as the trace has it.
fn without_base(address: u64) -> u64 {
    let has =
        |(base, offsets): &&(usize, Range<usize>)| offsets.contains(&(address as usize).wrapping_sub(*base));
    let (base, _) = SEGMENTS.iter().find(has).unwrap_or_else(|| panic!("{address:#x} is in no segment"));
    address - *base as u64
}

/// Returns the addresses that the trace has, and the modes of their instructions.
fn decoded(trace: &[u8], memory: &[u8]) -> (Vec<u64>, Vec<ExecMode>) {
    let section = |(base, offsets): &(usize, Range<usize>)| Section {
        base: offsets.start as u64,
        bytes: &memory[base + offsets.start..base + offsets.end],
        space: AddressSpace::Any,
    };
    let sections = SEGMENTS.each_ref().map(section);
    let mut decoder = InsnDecoder::new(trace, Image::new(&sections));
    decoder.sync_forward().expect("a PSB");
    let (mut addresses, mut modes) = (vec![], vec![]);
    loop {
        match decoder.next() {
            Ok(Some(FlowItem::Insn(insn))) => {
                addresses.push(insn.ip);
                modes.push(insn.mode);
            }
            Ok(Some(FlowItem::Event(_))) => {}
            Ok(None) => return (addresses, modes),
            Err(error) => panic!("{error}, after {} instructions, {:x?}", addresses.len(), addresses.last()),
        }
    }
}

/// Returns the addresses that a trace has, if all code is of one mode, in `memory`, at its physical addresses.
fn decoded_in_place(trace: &[u8], memory: &[u8], mode: ExecMode) -> Vec<u64> {
    let sections = [Section { base: 0, bytes: memory, space: AddressSpace::Any }];
    let mut decoder = InsnDecoder::new(trace, Image::new(&sections));
    decoder.sync_forward().expect("a PSB");
    let mut addresses = vec![];
    loop {
        match decoder.next() {
            Ok(Some(FlowItem::Insn(insn))) => {
                assert_eq!(insn.mode, mode);
                addresses.push(insn.ip);
            }
            Ok(Some(FlowItem::Event(_))) => {}
            Ok(None) => return addresses,
            Err(error) => panic!("{error}, after {} instructions, {:x?}", addresses.len(), addresses.last()),
        }
    }
}

/// Asserts that the trace of a processor is the log's, and returns its addresses.
fn assert_trace(booted: &Booted, cpu: u16, trace: &[u8], memory: &[u8], mode: ExecMode) -> Vec<u64> {
    let own = booted.truth.session(0).iter().filter(|record| record.cpu == cpu);
    let executed: Vec<u64> =
        own.filter(|record| !record.flags.is_software_interrupt()).map(|record| record.rip).collect();
    let addresses = decoded_in_place(trace, memory, mode);
    let differs = addresses.iter().zip(&executed).position(|(found, expected)| found != expected);
    assert_eq!((differs, addresses.len()), (None, executed.len()), "processor {cpu}");
    addresses
}

/// Returns the first `bytes` bytes of a machine's memory.
fn first_memory(ram: &Path, bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes];
    fs::File::open(ram).unwrap().read_exact(&mut memory).unwrap();
    memory
}

#[test]
fn a_disks_program_traces_itself_and_the_bios() {
    for (memory, processors) in [(256, 1), (400, 2)] {
        let scratch = Scratch::new().unwrap();
        let image = scratch.file("disk");
        fs::write(&image, disk()).unwrap();
        let booted = boot(&scratch, BootSource::Disk(image), false, memory, processors);
        let text = fs::read_to_string(scratch.file("text")).unwrap();
        assert_eq!(booted.ending, PASSED, "{text}");
        assert_eq!(map(&text), expected_map(memory), "{text}");

        let traced = booted.truth.session(0).iter().filter(|record| !record.flags.is_software_interrupt());
        let executed: Vec<u64> = traced.map(|record| record.rip).collect();
        let expected: Vec<u64> = executed.iter().map(|address| without_base(*address)).collect();
        let memory = first_memory(&scratch.file(RAM), 1 << 20);
        let trace = fs::read(scratch.file("dump")).unwrap();
        let (addresses, modes) = decoded(&trace, &memory);
        let differs = addresses.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!((differs, addresses.len()), (None, expected.len()));
        // The BIOS's own code, in its handler of the timer's interrupt and elsewhere, and 32-bit code.
        assert!(executed.iter().filter(|address| **address >= BIOS as u64).count() > 500);
        assert!(modes.iter().filter(|mode| **mode == ExecMode::Bits32).count() > 150);
    }
}

#[test]
fn a_kernel_with_a_module_and_a_command_line_ends_with_its_own_status() {
    let scratch = Scratch::new().unwrap();
    let guest = Images::build().unwrap().guest;
    let command_line = "only=sort".to_owned();
    let module = ModuleFile { file: guest.clone(), words: "itself".into() };
    let kernel = BootSource::Kernel { file: guest, modules: vec![module], command_line };
    let booted = boot(&scratch, kernel, false, 256, 1);
    let text = fs::read_to_string(scratch.file("text")).unwrap();
    assert_eq!(booted.ending, PASSED, "{text}");
    let mut transcript = Transcript::default();
    text.lines().try_for_each(|line| transcript.line(line.trim_end())).unwrap();
    let [run] = &transcript.runs[..] else { panic!("{text}") };
    let stat = run.stat.unwrap();
    let sums = booted.truth.summed();
    let [sum] = &sums[..] else { panic!("{sums:?}") };
    assert_eq!((Some(sum.session), sum.cpl), (run.session, 0));
    assert_eq!((sum.instructions, sum.hash), (stat.count, stat.hash));
}
