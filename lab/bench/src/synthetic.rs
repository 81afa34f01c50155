//! Generates a trace: the model traces a random program.

use super::load::Load;
use anyhow::{Result, anyhow, ensure};
use pugmark_generator::{EventRates, Execution, ExecutionStep, Program, ProgramShape, TracingSwitch};
use pugmark_harness::libipt_speed::FileSection;
use pugmark_model::intel::{IntelProcessor, IntelProfile, IntelSettings};
use pugmark_model::{FlatMemory, Processor as _, Retired};
use std::{fs, path::Path};

/// Registers and bits, typed from the manual: SDM vol. 4; vol. 3, Intel Processor Trace, "IA32_RTIT_CTL MSR".
const OUTPUT_BASE: u32 = 0x560;
const OUTPUT_MASK_PTRS: u32 = 0x561;
const CTL: u32 = 0x570;
const TRACE_EN: u64 = 1 << 0;
const OS_USER: u64 = 3 << 2;
const CYC_EN: u64 = 1 << 1;
const MTC_EN: u64 = 1 << 9;
const TSC_EN: u64 = 1 << 10;
const BRANCH_EN: u64 = 1 << 13;

/// The address of the physical memory, which has only the output and is aligned to its size.
const RAM: u64 = 0x1_0000_0000;

/// Few interrupts and faults, as in a program that computes.
const RATES: EventRates = EventRates { interrupt: 2, trap: 1, fault: 4, ticks: 12, depth: 40 };

/// Makes a trace of about this many bytes, with return compression, and with timing packets if `timing` is set.
pub(super) fn synthetic_load(bytes: usize, timing: bool, scratch: &Path) -> Result<Load> {
    let shape = ProgramShape {
        kernel: 60,
        user: 60,
        lib: 40,
        blocks: 20,
        cr3_writes: false,
        ..ProgramShape::default()
    };
    let program = Program::generate(1, &shape);
    let profile =
        IntelProfile::by_name("skylake").ok_or_else(|| anyhow!("the model has no profile skylake"))?;
    let size = (2 * bytes).next_power_of_two();
    let mut ram = vec![0; size];
    let mut memory = FlatMemory { base: RAM, bytes: &mut ram };
    let mut processor = IntelProcessor::new(profile, IntelSettings::default());
    let mut ctl = TRACE_EN | OS_USER | BRANCH_EN;
    if timing {
        ctl |= CYC_EN | MTC_EN | TSC_EN;
    }
    let mut execution = Execution::new(&program, 1, RATES);
    let write =
        |processor: &mut IntelProcessor, memory: &mut FlatMemory<'_>, number, value, at: &Retired<'_>| {
            let written = processor.write_msr(number, value, at, memory);
            written.map_err(|_| anyhow!("WRMSR of {value:#x} to {number:#x} faults"))
        };
    let mut steps = 0_u64;
    let end = loop {
        let step = execution.next().ok_or_else(|| anyhow!("the execution ended, which it never does"))?;
        steps += 1;
        match step {
            ExecutionStep::Switch(TracingSwitch::On, retired) => {
                write(&mut processor, &mut memory, OUTPUT_BASE, RAM, &retired)?;
                write(&mut processor, &mut memory, OUTPUT_MASK_PTRS, size as u64 - 1, &retired)?;
                write(&mut processor, &mut memory, CTL, ctl, &retired)?;
            }
            ExecutionStep::Switch(TracingSwitch::Off, retired) => {
                write(&mut processor, &mut memory, CTL, 0, &retired)?;
                let pointers = processor
                    .read_msr(OUTPUT_MASK_PTRS)
                    .map_err(|_| anyhow!("RDMSR of IA32_RTIT_OUTPUT_MASK_PTRS faults"))?;
                break (pointers >> 32) as usize;
            }
            ExecutionStep::Retired(retired) => processor.retire(&retired, &mut memory),
            ExecutionStep::Delivered(delivery) => processor.deliver(&delivery, &mut memory),
        }
        // Each instruction adds little output, so the amount is read only now and then.
        if steps.is_multiple_of(4096) {
            let pointers = processor
                .read_msr(OUTPUT_MASK_PTRS)
                .map_err(|_| anyhow!("RDMSR of IA32_RTIT_OUTPUT_MASK_PTRS faults"))?;
            if (pointers >> 32) as usize >= bytes {
                execution.request_nmi();
            }
        }
    };
    ensure!(end < size, "the trace does not fit into its buffer of {size} bytes and overwrote itself");
    ram.truncate(end);
    let mut files = vec![];
    let mut code = vec![];
    for (number, section) in program.sections().iter().enumerate() {
        let file = scratch.join(format!("{timing}-{number}"));
        fs::write(&file, &section.bytes)?;
        let (base, len) = (section.base, section.bytes.len() as u64);
        files.push(FileSection { file, offset: 0, len, base });
        code.push((base, section.bytes.clone()));
    }
    let name = if timing { "random program, with TSC, MTC and CYC" } else { "random program, branches only" };
    Ok(Load { name: name.into(), trace: ram, code, files, timing })
}
