use super::*;
use crate::fake::capabilities;
use crate::intel::pt::TscRatio;
use pugmark_decoder_core::config::{AddressRange, RangeKind};
use pugmark_decoder_core::errata::{Cpu, Vendor};

/// Returns a Skylake as CPUID describes it.
fn skylake() -> PtCapabilities {
    PtCapabilities {
        tsc_ratio: Some(TscRatio { numerator: 284, denominator: 2, crystal_hz: Some(24_000_000) }),
        base_mhz: Some(3400),
        bus_mhz: Some(100),
        cpu: Cpu::intel(6, 0x5e, 3),
        ..capabilities()
    }
}

#[test]
fn a_decoder_gets_errata_clocks_and_filters_of_what_is_traced() {
    let traced = PtConfig::new().user(true).mtc(9).trace_stop(0x8000, 0x8fff).filter(0x1000, 0x1fff);
    let config = traced.for_decoder(&skylake()).unwrap();
    assert_eq!((config.cpu, config.errata), (Some(skylake().cpu), Errata::of(skylake().cpu).unwrap()));
    let clocks = Clocks {
        mtc_freq: 9,
        nom_freq: 34,
        cpuid_15h_eax: 2,
        cpuid_15h_ebx: 284,
        cpuid_15h_ecx: 24_000_000,
        cpuid_16h_eax: 3400,
        ..Clocks::UNKNOWN
    };
    assert_eq!(config.clocks, clocks);
    let range = |kind, first, last| AddressRange { kind, first, last };
    let none = AddressRange::default();
    let ranges =
        [range(RangeKind::Stop, 0x8000, 0x8fff), range(RangeKind::Filter, 0x1000, 0x1fff), none, none];
    assert_eq!(config.filter.ranges, ranges);
}

#[test]
fn what_cpuid_does_not_say_is_unknown_to_the_decoder() {
    let all = PtConfig::new().os(true);
    let nothing = capabilities();
    let config = all.for_decoder(&nothing).unwrap();
    assert_eq!((config.errata, config.clocks), (Errata::NONE, Clocks::UNKNOWN));
    assert_eq!(config.filter, AddressFilter::NONE);
    let foreign = Cpu { vendor: Vendor::Other, ..skylake().cpu };
    let config =
        all.for_decoder(&PtCapabilities { cpu: foreign, invariant_tsc: false, ..skylake() }).unwrap();
    assert_eq!((config.errata, config.clocks.tsc_varies), (Errata::NONE, true));
}

#[test]
fn the_ratio_to_the_bus_clock_is_rounded_and_needs_both_frequencies() {
    for (base_mhz, bus_mhz, ratio) in [
        (Some(3400), Some(100), 34),
        (Some(2494), Some(100), 25),
        (Some(2449), Some(100), 24),
        (None, Some(100), 0),
        (Some(3400), None, 0),
        (Some(0xffff), Some(1), 0),
    ] {
        let capabilities = PtCapabilities { base_mhz, bus_mhz, ..skylake() };
        let config = PtConfig::new().os(true).for_decoder(&capabilities).unwrap();
        assert_eq!(config.clocks.nom_freq, ratio, "{base_mhz:?} {bus_mhz:?}");
    }
}

#[test]
fn a_decoder_knows_the_mtc_frequency_that_is_programmed_by_default() {
    // The lowest frequency that this processor has is 3.
    let capabilities = PtCapabilities { mtc_freqs: 0x0248, ..skylake() };
    let config = PtConfig::new().os(true).for_decoder(&capabilities).unwrap();
    assert_eq!(config.clocks.mtc_freq, 3);
    assert!(PtConfig::new().mtc(4).for_decoder(&capabilities).is_err());
}
