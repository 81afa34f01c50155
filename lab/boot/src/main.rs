//! The bootable kernel: sets the machine up, runs the workloads under the tracing driver and reports the results.
#![no_std]
#![no_main]

extern crate alloc;

mod arch;
mod plan;
mod report;
mod runner;
mod session;
mod smp;
mod sources;
mod workload;
mod workloads;

use alloc::string::String;
use arch::serial::{print, say};
use arch::{image, memory};
use core::fmt::Display;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use pugmark_boot::boot_info;
use pugmark_boot::command_line::CommandLine;
use pugmark_boot::symbols::Symbols;
use pugmark_protocol::{Done, Line};
use raw_cpuid::CpuId;
use runner::{RunError, Runner};
use smp::SmpWorkload;

/// Runs the kernel. The entry code passes EAX and EBX as the boot loader left them.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(eax: u32, ebx: u32) -> ! {
    arch::serial::init();
    let info = boot_info::read(&memory::Mapped, eax, ebx).expect("boot information");
    let module = info.module.clone().unwrap_or(0..0);
    let mut free = info.memory.clone();
    // The first MiB is excluded: it holds structures of the boot loader and the firmware.
    free.remove(0..image::all().end);
    free.remove(module.start & !0xfff..module.end.next_multiple_of(4096));
    free.remove(info.command_line.clone());
    let end = info.memory.iter().map(|region| region.end).max().unwrap_or(0).max(module.end);
    memory::init(free, end);
    // The boot loader may have put the command line into the page at 0, which will be unmapped.
    let text = String::from_utf8_lossy(memory::loaded(&info.command_line)).into_owned();
    let command_line = CommandLine::parse(&text);
    arch::init(command_line.x2apic);
    if command_line.overflow == Some("nmi") {
        arch::overflow_nmi();
    }
    session::init();
    arch::processors::start(command_line.processors);
    match command_line.overflow {
        Some("boot") => _ = arch::stack::overflow(),
        Some("further") => arch::processors::together(&|number| {
            if number > 0 {
                arch::stack::overflow();
            }
        }),
        _ => {}
    }
    let symbols = Symbols::parse(memory::loaded(&module)).unwrap_or_else(|error| {
        print(format_args!("symbols: {error}\n"));
        Symbols::from_functions([])
    });
    greet();
    let (passed, failed) = run_workloads(&command_line, &symbols);
    say(Line::Done(Done { passed, failed }));
    pugmark_machine::exit(failed == 0)
}

/// Prints the kernel's version and the processor.
fn greet() {
    let id = CpuId::new();
    let (vendor, brand) = (id.get_vendor_info(), id.get_processor_brand_string());
    print(format_args!(
        "pugmark {} on {} {}\n",
        env!("CARGO_PKG_VERSION"),
        vendor.as_ref().map_or("?", |vendor| vendor.as_str()),
        brand.as_ref().map_or("?", |brand| brand.as_str().trim())
    ));
}

/// Runs the workloads that the command line selects; returns the numbers of passed and failed ones.
fn run_workloads(command_line: &CommandLine<'_>, symbols: &Symbols<'_>) -> (u64, u64) {
    let (passed, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let pass = |name: &str| {
        say(Line::Ok(name));
        passed.fetch_add(1, Relaxed);
    };
    let fail = |name: &str, reason: &dyn Display| {
        say(Line::Fail(name, reason));
        failed.fetch_add(1, Relaxed);
    };
    let report = |name: &str, result: Result<(), RunError>| match result {
        Ok(()) => pass(name),
        Err(error) => fail(name, &error),
    };
    match command_line.choose_source(&sources::ALL) {
        Ok(source) => {
            let mut runner = Runner::new(symbols, source, command_line);
            for (name, make) in workloads::ALL.into_iter().filter(|(name, _)| command_line.selects(name)) {
                if runner.runs_on_all(name) {
                    runner.run_on_all(name, make, &report);
                } else {
                    say(Line::Run(name));
                    report(name, runner.run(name, make));
                }
            }
            for (name, run) in smp::ALL {
                if command_line.only().any(|only| only == name) {
                    run(&SmpWorkload { symbols, command_line, report: &report });
                }
            }
            let is_unknown = |only: &&str| {
                workloads::ALL.iter().all(|(name, _)| name != only)
                    && smp::ALL.iter().all(|(name, _)| name != only)
            };
            for name in command_line.only().filter(is_unknown) {
                say(Line::Run(name));
                fail(name, &"there is no such workload");
            }
        }
        Err(named) => {
            say(Line::Run(named));
            fail(named, &"there is no such source");
        }
    }
    (passed.into_inner(), failed.into_inner())
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    arch::serial::print_panic(format_args!("{info}\n"));
    pugmark_machine::exit(false)
}
