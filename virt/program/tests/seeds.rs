//! A seed must give what it gave before. Tests and fuzzers name runs by their seeds, and seeds that once found a bug
//! are run again forever. A change that draws differently would silently turn them into other runs.
//!
//! A change that is meant to draw differently updates the numbers here.

use pugmark_model::intel::IntelSettings;
use pugmark_model::{Delivery, Retired};
use pugmark_program::trace::{Config, Topic};
use pugmark_program::{Program, Rates, Shape, Step, Walk};
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
        Shape::default(),
        Shape { ptwrite: true, ..Shape::default() },
        Shape { user: 0, ..Shape::default() },
        Shape { compat: 0, ..Shape::default() },
        Shape { kernel: 3, user: 3, lib: 1, compat: 2, blocks: 5, ..Shape::default() },
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
fn a_seed_gives_the_walk_that_it_gave_before() {
    let found = [false, true].map(|ptwrite| {
        hash(|hash| {
            for seed in 0..30 {
                let program = Program::generate(seed, &Shape { ptwrite, ..Shape::default() });
                let mut walk = Walk::new(&program, seed, Rates::default());
                for at in 0..2000 {
                    if at % 400 == 399 {
                        walk.request_nmi();
                    }
                    match walk.next().unwrap() {
                        Step::Retired(Retired { after, tsc, operand, .. }) => {
                            write!(hash, "{:x} {} {tsc} {operand}", after.ip, after.cpl).unwrap();
                        }
                        Step::Switch(switch, retired) => write!(hash, "{switch:?} {}", retired.tsc).unwrap(),
                        Step::Delivered(Delivery { kind, vector, after, cr2, tsc, .. }) => {
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
                for (program, config) in [Config::draw(topic, seed), Config::draw_small(topic, seed)] {
                    let Config { profile, settings, filter, output, fresh, rates, steps, .. } = &config;
                    write!(hash, "{} {filter:x?} {output:?}", profile.name).unwrap();
                    // Only the settings that are drawn.
                    let IntelSettings {
                        pmi_skid, visibility, long_tnt, deferred_tips, psb_before_pge, ..
                    } = settings;
                    write!(hash, "{pmi_skid} {visibility} {long_tnt} {deferred_tips} {psb_before_pge}")
                        .unwrap();
                    let overflow = settings.overflow.map(|overflow| (overflow.capacity, overflow.drain));
                    let (elsewhere, compress) = (settings.return_elsewhere, settings.compress_after_overflow);
                    write!(hash, "{overflow:?} {elsewhere:?} {compress}").unwrap();
                    write!(hash, "{fresh} {rates:?} {steps} {:x} {:x}", config.ctl(), program.start())
                        .unwrap();
                    let last = program.functions().last().map(|function| *function.range.end());
                    write!(hash, "{last:x?}").unwrap();
                }
            }
        })
    });
    let before = [
        0xc529_cce3_6765_b082,
        0x8074_8f5c_4534_88fd,
        0x0180_466b_821b_8c00,
        0xfc2a_8743_5139_5905,
        0x951a_79c1_2dee_b980,
        0x145a_ab29_5694_4dcf,
        0x9858_64b6_85fd_9e81,
        0xdb39_78e0_7176_5d8f,
        0xfca7_78c1_6027_08af,
        0x229f_60ee_3fb5_057d,
    ];
    assert_eq!(found, before, "{found:#x?}");
}
