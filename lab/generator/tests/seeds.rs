//! The same seed must always draw the same run. Tests and fuzzers name runs by seeds, and a seed that found a bug once
//! is run forever. A change that draws differently would silently replace these runs.
//!
//! A change that draws differently on purpose updates the numbers here.

use pugmark_generator::trace::{Topic, TraceConfig};
use pugmark_generator::{EventRates, Execution, ExecutionStep, Program, ProgramShape};
use pugmark_model::intel::IntelSettings;
use pugmark_model::{Delivery, Retired};
use std::fmt::Write;

/// FNV-1a, 64 bits, of the text written to it.
struct Hash(u64);

impl Write for Hash {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

fn hash(write: impl FnOnce(&mut Hash)) -> u64 {
    let mut hash = Hash(0xcbf2_9ce4_8422_2325);
    write(&mut hash);
    hash.0
}

fn add_program(hash: &mut Hash, program: &Program) {
    write!(hash, "{:x?}{:x?}{:x}", program.sections(), program.functions(), program.start()).unwrap();
}

#[test]
fn a_seed_gives_the_program_that_it_gave_before() {
    let shapes = [
        ProgramShape::default(),
        ProgramShape { ptwrite: true, ..ProgramShape::default() },
        ProgramShape { user: 0, ..ProgramShape::default() },
        ProgramShape { compat: 0, ..ProgramShape::default() },
        ProgramShape { kernel: 3, user: 3, lib: 1, compat: 2, blocks: 5, ..ProgramShape::default() },
    ];
    let found = shapes.map(|shape| {
        hash(|hash| (0..40).for_each(|seed| add_program(hash, &Program::generate(seed, &shape))))
    });
    let before = [
        0x0b34_c415_27d9_fe85,
        0xe3d9_2ee3_195a_3ac5,
        0xce04_610c_f9a6_d3e2,
        0x11b7_aad1_f49b_f71a,
        0x57c0_cd58_967a_ed4d,
    ];
    assert_eq!(found, before, "{found:#x?}");
}

#[test]
fn a_seed_gives_the_execution_that_it_gave_before() {
    let found = [false, true].map(|ptwrite| {
        hash(|hash| {
            for seed in 0..30 {
                let program = Program::generate(seed, &ProgramShape { ptwrite, ..ProgramShape::default() });
                let mut execution = Execution::new(&program, seed, EventRates::default());
                for at in 0..2000 {
                    if at % 400 == 399 {
                        execution.request_nmi();
                    }
                    match execution.next().unwrap() {
                        ExecutionStep::Retired(Retired { after, tsc, operand, .. }) => {
                            write!(hash, "{:x} {} {tsc} {operand}", after.ip, after.cpl).unwrap();
                        }
                        ExecutionStep::Switch(switch, retired) => {
                            write!(hash, "{switch:?} {}", retired.tsc).unwrap()
                        }
                        ExecutionStep::Delivered(Delivery { kind, vector, after, cr2, tsc, .. }) => {
                            write!(hash, "{kind:?} {vector} {cr2:x?} {tsc} {:x} {}", after.ip, after.iflag)
                                .unwrap();
                        }
                    }
                }
            }
        })
    });
    let before = [0x578d_b616_3a33_7270, 0x33be_7c5a_ac2f_8e0b];
    assert_eq!(found, before, "{found:#x?}");
}

#[test]
fn a_seed_is_traced_as_it_was_before() {
    let topics = [
        Topic::Everything,
        Topic::Level,
        Topic::Cr3,
        Topic::Range,
        Topic::Stop,
        Topic::Pmi,
        Topic::Overflow,
        Topic::Full,
        Topic::Wrap,
        Topic::Events,
    ];
    let found = topics.map(|topic| {
        hash(|hash| {
            for seed in 0..60 {
                for (program, config) in
                    [TraceConfig::random(topic, seed), TraceConfig::random_small(topic, seed)]
                {
                    let TraceConfig {
                        profile, settings, filter, output, clears_status, rates, steps, ..
                    } = &config;
                    write!(hash, "{} {filter:x?} {output:?}", profile.name).unwrap();
                    // Only the settings that a seed chooses.
                    let IntelSettings {
                        pmi_skid, visibility, long_tnt, deferred_tips, psb_before_pge, ..
                    } = settings;
                    write!(hash, "{pmi_skid} {visibility} {long_tnt} {deferred_tips} {psb_before_pge}")
                        .unwrap();
                    let overflow = settings.overflow.map(|overflow| (overflow.capacity, overflow.drain));
                    let (elsewhere, compress) = (settings.return_elsewhere, settings.compress_after_overflow);
                    write!(hash, "{overflow:?} {elsewhere:?} {compress}").unwrap();
                    let EventRates { interrupt, trap, fault, ticks, depth } = rates;
                    write!(hash, "{interrupt} {trap} {fault} {ticks} {depth}").unwrap();
                    write!(hash, "{clears_status} {steps} {:x} {:x}", config.ctl(), program.start()).unwrap();
                    let last = program.functions().last().map(|function| *function.range.end());
                    write!(hash, "{last:x?}").unwrap();
                }
            }
        })
    });
    let before = [
        0x244e_22e8_072c_d88c,
        0x260b_d51a_928c_c393,
        0xf0d6_6782_68f5_6e70,
        0x7058_3634_9889_c6f9,
        0x2acd_b7c3_762b_406c,
        0x21cb_c86c_f171_83cd,
        0xfa52_b391_a17b_83df,
        0xe65c_b95d_151f_cb77,
        0xb9e8_204d_c251_8de7,
        0xcb9d_aeaa_2c75_0c1f,
    ];
    assert_eq!(found, before, "{found:#x?}");
}
