//! The processor accepts every configuration that the driver allows, and refuses those that the driver refuses.

mod common;

use common::{Machine, user_code};
use pugmark_kernel::intel::pt::Feature;
use pugmark_kernel::intel::pt::PtRefusal;
use pugmark_kernel::intel::pt::RegionSize;
use pugmark_kernel::intel::pt::{Buffer, BufferError, Layout, Mode};
use pugmark_kernel::intel::pt::{PtConfig, PtConfigRefusal};
use pugmark_kernel::lifecycle::{NotStarted, StartError};
use pugmark_kernel::msr::Msr;
use pugmark_model::intel::IntelSettings;

const PROFILES: [&str; 4] = ["broadwell", "skylake", "icelake", "sapphire-rapids"];
const FULL: Mode = Mode::StopWhenFull { spare: 1 };

#[test]
fn a_configuration_that_passes_the_check_raises_no_fault() {
    type Change = fn(PtConfig) -> PtConfig;
    let changes: [Change; 18] = [
        |config| config,
        |config| config.os(true),
        |config| config.branches(false),
        |config| config.return_compression(false),
        |config| config.tnt(false),
        |config| config.tsc(true),
        |config| config.mtc(3),
        |config| config.cycles(0),
        |config| config.cycles(6),
        |config| config.psb_freq(2),
        |config| config.ptwrite(true).fup_on_ptw(true),
        |config| config.power_events(true),
        |config| config.events(true),
        |config| config.inject_psb_pmi_on_enable(true),
        |config| config.cr3(0x5000),
        |config| config.filter(0x40_0000, 0x40_0fff),
        |config| config.filter(0x40_0000, 0x40_0fff).trace_stop(0x50_0000, 0x50_0fff),
        |config| config.filter(0, 1).filter(2, 3).filter(4, 5).filter(0xffff_8000_0000_0000, u64::MAX),
    ];
    for profile in PROFILES {
        let (mut started, mut refused) = (0, 0);
        for first in changes {
            for second in changes {
                let config = second(first(user_code()));
                let machine = Machine::new(profile, IntelSettings::default());
                let buffer = machine.buffer(Layout::topa(RegionSize::K4, 2), FULL);
                match machine.unit().start(&config, buffer) {
                    Ok(tracing) => {
                        started += 1;
                        machine.run(20);
                        drop(tracing.stop().map_err(|_| "stop").unwrap());
                    }
                    Err(NotStarted::Off {
                        error: StartError::Refused(PtRefusal::Config(refusal)), ..
                    }) => {
                        // This processor has every feature, but not four ranges.
                        let ranges = matches!(refusal, PtConfigRefusal::Ranges { .. });
                        assert!(profile != "sapphire-rapids" || ranges, "{refusal}");
                        refused += 1;
                    }
                    Err(failed) => panic!("{profile} {config:?}: {}", failed.error()),
                }
            }
        }
        assert!(started >= 9, "{profile}: {started} started");
        assert!(refused > 0, "{profile}");
    }
}

type FeatureBit = (Feature, u64, fn(PtConfig) -> PtConfig);

/// The bits of IA32_RTIT_CTL that come with a feature, from the manual.
const BITS: [FeatureBit; 9] = [
    (Feature::CycleAccurate, 1 << 1, |config| config.cycles(0)),
    (Feature::PowerEventTrace, 1 << 4, |config| config.power_events(true)),
    (Feature::Ptwrite, 1 << 5, |config| config.fup_on_ptw(true)),
    (Feature::Ptwrite, 1 << 12, |config| config.ptwrite(true)),
    (Feature::Cr3Filtering, 1 << 7, |config| config.cr3(0x5000)),
    (Feature::EventTrace, 1 << 31, |config| config.events(true)),
    (Feature::IpFiltering, 1 << 32, |config| config.filter(0, 1)),
    (Feature::TntDisable, 1 << 55, |config| config.tnt(false)),
    (Feature::PsbPmiPreservation, 1 << 56, |config| config.inject_psb_pmi_on_enable(true)),
];

#[test]
fn what_the_check_refuses_for_a_missing_feature_faults_when_it_is_written() {
    let mut refused = 0;
    for profile in PROFILES {
        let machine = Machine::new(profile, IntelSettings::default());
        let capabilities = machine.capabilities();
        for (feature, bit, option) in BITS {
            let mut registers = machine.registers();
            // SAFETY: without TraceEn nothing is written to memory.
            let written = unsafe { registers.wrmsr(0x570, 1 << 13 | bit) };
            let checked = option(user_code()).check(&capabilities);
            assert_eq!(written.is_ok(), capabilities.has(feature), "{profile} {feature}");
            assert_eq!(checked.is_ok(), written.is_ok(), "{profile} {feature}");
            if let Err(refusal) = checked {
                assert_eq!(refusal, PtConfigRefusal::Missing(feature));
                refused += 1;
            }
        }
    }
    assert!(refused > 5, "{refused} refusals");
}

#[test]
fn the_encodings_the_check_lets_through_are_those_the_processor_takes() {
    type Row = (fn(u8) -> PtConfig, u32, u64);
    let table: [Row; 3] = [
        (|n| user_code().mtc(n), 14, 1 << 9),
        (|n| user_code().cycles(n), 19, 1 << 1),
        (|n| user_code().psb_freq(n), 24, 0),
    ];
    for profile in PROFILES {
        let machine = Machine::new(profile, IntelSettings::default());
        // The values of fields that were not requested.
        let base = ctl_of(&machine, &user_code());
        for (config, shift, enable) in table {
            for n in 0..16u8 {
                let value = base & !(0xf << shift) | u64::from(n) << shift | enable;
                let mut registers = machine.registers();
                // SAFETY: without TraceEn nothing is written to memory.
                let written = unsafe { registers.wrmsr(0x570, value) };
                let checked = config(n).check(&machine.capabilities());
                let ok = written.is_ok();
                // A zero in a reserved field is not an option that was requested.
                let reserved = n == 0 && enable == 0 && !machine.capabilities().has(Feature::CycleAccurate);
                assert!(checked.is_ok() == ok || reserved, "{profile}: {value:#x}");
            }
        }
    }
}

#[test]
fn a_buffer_that_the_processor_cannot_use_is_refused_by_the_bits_name() {
    // (profile, layout, mode, message)
    let topa = |regions| Layout::topa(RegionSize::K4, regions);
    let table = [
        (
            "broadwell",
            Layout::SingleRange { bytes: 0x1000 },
            Mode::Overwrite,
            "CPUID.14H.0:ECX[2] (single-range output) is not there",
        ),
        (
            "broadwell",
            topa(2),
            Mode::Overwrite,
            "CPUID.14H.0:ECX[1] (ToPA tables with multiple output entries) is not there",
        ),
    ];
    for (profile, layout, mode, message) in table {
        let machine = Machine::new(profile, IntelSettings::default());
        let error = Buffer::allocate(&*machine.ram, &machine.capabilities(), layout, mode).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    // Made for one processor, started on another.
    let skylake = Machine::new("skylake", IntelSettings::default());
    let broadwell = Machine::new("broadwell", IntelSettings::default());
    let failed = broadwell.unit().start(&user_code(), skylake.buffer(topa(2), FULL)).unwrap_err();
    assert_eq!(
        failed.error(),
        StartError::Refused(PtRefusal::Buffer(BufferError::Missing(Feature::TopaMultipleEntries)))
    );
}

/// Returns IA32_RTIT_CTL as a start leaves it, without TraceEn.
fn ctl_of(machine: &Machine, config: &PtConfig) -> u64 {
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 2), FULL);
    let tracing = machine.unit().start(config, buffer).map_err(|failed| failed.error()).unwrap();
    drop(tracing);
    machine.msr(0x570)
}
