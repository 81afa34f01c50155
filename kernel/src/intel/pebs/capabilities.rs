//! Detects PEBS and its capabilities.

use super::{GENERAL, LoadLatency, PeriodRules, PreciseEvent, PreciseEvents};
use crate::intel::counters::registers::microcode_counters;
use crate::intel::errata::{Errata, least_pebs_microcode};
use crate::lifecycle::Missing;
use crate::msr::{BiosSignId, FixedCtrCtrl, GeneralProtection, MiscEnable, Msr, PerfCapabilities, TypedMsr};
use pugmark_decoder_core::pebs::Format;
use raw_cpuid::{CpuId, CpuIdReader, FeatureInfo};

/// The capabilities of this processor's PEBS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PebsCapabilities {
    /// The format of the records: `IA32_PERF_CAPABILITIES[11:8]`.
    pub format: Format,
    /// The number of counter reset values of general-purpose counters in the DS area, which precede those of the
    /// fixed-function counters: 8, and 32 since format 5.
    pub(crate) general_resets: u8,
    /// The number of general-purpose counters that sample, from number 0.
    pub general_counters: u8,
    /// The number of fixed-function counters that sample, from number 0.
    pub fixed_counters: u8,
    /// The width of a general-purpose counter: `CPUID.0AH:EAX[23:16]`.
    pub(crate) general_bits: u8,
    /// The width of a fixed-function counter: `CPUID.0AH:EDX[12:5]`.
    pub(crate) fixed_bits: u8,
    /// True if records can go into a trace of Intel PT: `IA32_PERF_CAPABILITIES[16]`.
    pub trace_output: bool,
    /// True if records can have the values of counters: format 6 with PEBS_BASELINE.
    pub counter_values: bool,
    /// The load-latency facility.
    pub(crate) load_latency: Option<LoadLatency>,
    /// True if all bits of a counter can be written: `IA32_PERF_CAPABILITIES[13]`.
    pub(crate) full_width: bool,
    /// The events that sample.
    pub(crate) precise: PreciseEvents,
    /// The periods that counters take.
    pub(crate) period_rules: PeriodRules,
    /// The general-purpose counters that microcode uses now, as bits.
    pub(crate) microcode_counters: u8,
    /// True if the model has the errata of [`PebsCapabilities::disturbs_other_thread`].
    pub(crate) memory_events_disturb: bool,
    /// True if the model has the errata of [`Errata::COUNTERS_NEED_CLEARING`].
    pub(crate) counters_need_clearing: bool,
    /// True if IA32_PERF_GLOBAL_INUSE exists: `CPUID.0AH:EAX[7:0]` is 4 or more.
    pub(crate) global_in_use: bool,
}

impl PebsCapabilities {
    /// Returns the general-purpose counters that sample `event`, as bits; 0 if it is not precise on this processor.
    #[must_use]
    pub const fn counters_for(&self, event: PreciseEvent) -> u8 {
        let there = match self.general_counters {
            8.. => 0xff,
            n => (1 << n) - 1,
        };
        self.precise.counters(event) & there & !self.microcode_counters
    }

    /// Returns the event whose records have the latency of a load, for
    /// [`PebsConfig::load_latency`](super::PebsConfig::load_latency); `None` if this driver knows none for the model.
    #[must_use]
    pub const fn load_latency_event(&self) -> Option<PreciseEvent> {
        match self.load_latency {
            Some(facility) => Some(facility.event),
            None => None,
        }
    }

    /// Returns whether a counter that samples `event` changes the counter with the same number of the core's other
    /// thread, if two threads are on (errata BJ122, BV98, HSD29: memory accesses on Sandy Bridge, Ivy Bridge and
    /// Haswell). The driver sees one thread only; the kernel must leave the counter of the other thread unused.
    #[must_use]
    pub const fn disturbs_other_thread(&self, event: PreciseEvent) -> bool {
        matches!(event.select, 0xd0..=0xd3) && self.memory_events_disturb
    }

    /// Detects PEBS; returns `Ok(Err(_))` if there is none, or none that works. Reads only registers that CPUID
    /// announces. `wide_fields`: the DS save area has fields of 8 bytes.
    pub(crate) fn detect(
        cpuid: &impl CpuIdReader,
        misc_enable: MiscEnable,
        wide_fields: bool,
        msr: &mut impl Msr,
    ) -> Result<Result<Self, Missing>, GeneralProtection> {
        if misc_enable.contains(MiscEnable::PEBS_UNAVAILABLE) {
            return Ok(Err(Missing::Pebs));
        }
        let id = CpuId::with_cpuid_reader(cpuid.clone());
        let Some(features) = id.get_feature_info() else { return Ok(Err(Missing::PerfCapabilities)) };
        if features.family_id() == 0xf {
            return Ok(Err(Missing::NetBurstPebs));
        }
        if !features.has_pdcm() {
            return Ok(Err(Missing::PerfCapabilities));
        }
        if !wide_fields {
            return Ok(Err(Missing::WideRecords));
        }
        let info = id.get_performance_monitoring_info();
        let version = info.as_ref().map_or(0, |info| info.version_id());
        let Some(info) = info.filter(|_| version >= 2) else {
            return Ok(Err(Missing::GlobalCtrl { version }));
        };
        if !misc_enable.contains(MiscEnable::PERFORMANCE_MONITORING) {
            return Ok(Err(Missing::PerformanceMonitoring));
        }
        let capabilities: PerfCapabilities = msr.read()?;
        let number = capabilities.pebs_format();
        // The records of architectural PEBS do not go into the DS area.
        let in_area = |format: &Format| *format != Format::Architectural;
        let Some(format) = Format::from_capabilities(number).filter(in_area) else {
            return Ok(Err(Missing::PebsFormat { number }));
        };
        let baseline = capabilities.contains(PerfCapabilities::PEBS_BASELINE);
        if let Some(broken) = broken(&features, msr)? {
            return Ok(Err(broken));
        }
        let (family, model) = (features.family_id(), features.model_id());
        let errata = Errata::of(family, model);
        let (general, fixed, precise) = match baseline {
            true => (GENERAL, FixedCtrCtrl::COUNTERS, PreciseEvents::Extended),
            false => (sampling_counters(model), 0, PreciseEvents::of(model)),
        };
        let found = Self {
            format,
            general_resets: Format::general_resets(number),
            general_counters: info.number_of_counters().min(general),
            fixed_counters: info.fixed_function_counters().min(fixed),
            general_bits: info.counter_bit_width(),
            fixed_bits: info.fixed_function_counters_bit_width(),
            trace_output: capabilities.contains(PerfCapabilities::PEBS_OUTPUT_PT_AVAIL),
            counter_values: baseline && number >= 6,
            load_latency: LoadLatency::of(model, version),
            full_width: capabilities.contains(PerfCapabilities::FW_WRITE),
            precise,
            period_rules: PeriodRules::of(family, model),
            microcode_counters: microcode_counters(cpuid, msr),
            memory_events_disturb: errata.contains(Errata::MEMORY_EVENTS_DISTURB_OTHER_THREAD),
            counters_need_clearing: errata.contains(Errata::COUNTERS_NEED_CLEARING),
            global_in_use: version >= 4,
        };
        match found.general_counters {
            0 => Ok(Err(Missing::SamplingCounter)),
            _ => Ok(Ok(found)),
        }
    }
}

/// Returns the errata that make this processor's PEBS useless, if there are any.
fn broken(features: &FeatureInfo, msr: &mut impl Msr) -> Result<Option<Missing>, GeneralProtection> {
    let (family, model) = (features.family_id(), features.model_id());
    if Errata::of(family, model).contains(Errata::PEBS_IS_UNRELIABLE) {
        return Ok(Some(Missing::PebsErrata { family, model }));
    }
    let Some(needed) = least_pebs_microcode(family, model, features.stepping_id()) else { return Ok(None) };
    // CPUID.1, which has just been executed, puts the revision there.
    let revision = msr.read::<BiosSignId>()?.revision();
    Ok((revision < needed).then_some(Missing::PebsMicrocode { revision, needed }))
}

/// Returns the number of general-purpose counters of family 06H that sample without PEBS_BASELINE.
const fn sampling_counters(model: u8) -> u8 {
    match model {
        // Core 2; Atoms up to Goldmont; Knights Landing and Knights Mill: counter 0.
        0x0f | 0x16 | 0x17 | 0x1d => 1,
        0x1c | 0x26 | 0x27 | 0x35 | 0x36 => 1,
        0x37 | 0x4a | 0x4d | 0x5a | 0x5d | 0x4c | 0x75 => 1,
        0x5c | 0x5f => 1,
        0x57 | 0x85 => 1,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuid::CpuIdResult;
    use crate::fake::FakeMsr;

    const DS: u32 = 1 << 21;
    const DTES64_PDCM: u32 = 1 << 2 | 1 << 15;
    const PERFORMANCE_MONITORING: u64 = 1 << 7;

    struct Enumerated {
        signature: u32,
        ecx: u32,
        /// CPUID.0AH:EAX and EDX.
        counters: (u32, u32),
        misc_enable: u64,
        capabilities: u64,
    }

    /// A Nehalem.
    const NEHALEM: Enumerated = Enumerated {
        signature: 0x106a5,
        ecx: DTES64_PDCM,
        counters: (0x0730_0403, 0x603),
        misc_enable: PERFORMANCE_MONITORING,
        capabilities: 0x1c4,
    };

    fn detect(row: &Enumerated) -> Result<PebsCapabilities, Missing> {
        detect_with(row, (0, 0), &[])
    }

    /// Detects PEBS. `extended`: CPUID.07H.0:EBX and EDX. `registers`: values of further registers.
    fn detect_with(
        row: &Enumerated,
        extended: (u32, u32),
        registers: &[(u32, u64)],
    ) -> Result<PebsCapabilities, Missing> {
        let cpuid = |leaf, _| match leaf {
            0 => CpuIdResult { eax: 0xb, ebx: 0x756e_6547, edx: 0x4965_6e69, ecx: 0x6c65_746e },
            1 => CpuIdResult { eax: row.signature, ebx: 0, ecx: row.ecx, edx: DS },
            7 => CpuIdResult { eax: 0, ebx: extended.0, ecx: 0, edx: extended.1 },
            0xa => CpuIdResult { eax: row.counters.0, ebx: 0, ecx: 0, edx: row.counters.1 },
            _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
        };
        let mut msr = FakeMsr::new();
        msr.set(0x345, row.capabilities);
        registers.iter().for_each(|&(address, value)| msr.set(address, value));
        let misc_enable = MiscEnable::from_bits_retain(row.misc_enable);
        let wide_fields = row.ecx & 1 << 2 != 0;
        let found = PebsCapabilities::detect(&cpuid, misc_enable, wide_fields, &mut msr);
        // IA32_PERF_CAPABILITIES; the microcode's revision of a Sandy Bridge; IA32_TSX_FORCE_ABORT.
        let reads: &[u32] = match (row.ecx >> 15 & 1, row.signature >> 4, extended.1 >> 13 & 1) {
            (0, _, _) => &[],
            (_, 0x206a | 0x206d, _) => &[0x345, 0x8b],
            (_, _, 0) => &[0x345],
            (_, _, _) => &[0x345, 0x10f],
        };
        assert!(reads.starts_with(&msr.reads), "only registers that are there are read");
        assert_eq!(msr.writes, []);
        found.unwrap()
    }

    #[test]
    fn each_microarchitecture_has_its_format_and_counters() {
        let general = |format, general_counters, general_bits, full_width| PebsCapabilities {
            format,
            general_resets: 8,
            general_counters,
            fixed_counters: 0,
            general_bits,
            fixed_bits: 48,
            trace_output: false,
            counter_values: false,
            load_latency: None,
            full_width,
            precise: PreciseEvents::Unlisted,
            period_rules: PeriodRules::All,
            microcode_counters: 0,
            memory_events_disturb: false,
            counters_need_clearing: false,
            global_in_use: false,
        };
        let newer = |found| PebsCapabilities { global_in_use: true, ..found };
        let skylake = Enumerated { signature: 0x506e3, counters: (0x0730_0804, 0x603), ..NEHALEM };
        let all = |general_counters, fixed_counters| PebsCapabilities {
            fixed_counters,
            precise: PreciseEvents::Extended,
            ..newer(general(Format::Adaptive, general_counters, 48, true))
        };
        let precise = |precise, found| PebsCapabilities { precise, ..found };
        let rules = |period_rules, found| PebsCapabilities { period_rules, ..found };
        let table = [
            (
                Enumerated {
                    signature: 0x10676,
                    counters: (0x0728_0202, 0x600),
                    capabilities: 0xc2,
                    ..NEHALEM
                },
                precise(PreciseEvents::Core, general(Format::Registers, 1, 40, false)),
            ),
            (
                NEHALEM,
                PebsCapabilities {
                    counters_need_clearing: true,
                    period_rules: PeriodRules::Nehalem,
                    ..precise(PreciseEvents::Nehalem, general(Format::Latency, 4, 48, false))
                },
            ),
            (
                Enumerated { signature: 0x306c3, capabilities: 0x32c4, ..NEHALEM },
                PebsCapabilities {
                    memory_events_disturb: true,
                    period_rules: PeriodRules::Haswell,
                    ..precise(PreciseEvents::Haswell, general(Format::Transaction, 4, 48, true))
                },
            ),
            // Goldmont and Denverton sample with counter 0, Goldmont Plus with all.
            (
                Enumerated {
                    signature: 0x506c9,
                    counters: (0x0730_0404, 0x603),
                    capabilities: 0x3303,
                    ..NEHALEM
                },
                newer(general(Format::Time, 1, 48, true)),
            ),
            (
                Enumerated {
                    signature: 0x506f1,
                    counters: (0x0730_0404, 0x603),
                    capabilities: 0x3303,
                    ..NEHALEM
                },
                newer(general(Format::Time, 1, 48, true)),
            ),
            (
                Enumerated {
                    signature: 0x706a1,
                    counters: (0x0730_0404, 0x603),
                    capabilities: 0x3303,
                    ..NEHALEM
                },
                newer(general(Format::Time, 4, 48, true)),
            ),
            // Counters 4 to 7 do not sample.
            (
                Enumerated { capabilities: 0x33c5, ..skylake },
                newer(precise(PreciseEvents::Skylake, general(Format::Time, 4, 48, true))),
            ),
            (
                Enumerated {
                    signature: 0x706e5,
                    counters: (0x0830_0805, 0x604),
                    capabilities: 0x74c5 | 1 << 14,
                    ..NEHALEM
                },
                all(8, 4),
            ),
            // Formats 5 and 6: the reset values of fixed-function counters come after those of 32 general-purpose
            // counters.
            (
                Enumerated {
                    signature: 0xa06a4,
                    counters: (0x0830_0806, 0x604),
                    capabilities: 0x75c5 | 1 << 14,
                    ..NEHALEM
                },
                rules(PeriodRules::GoldenCove, PebsCapabilities { general_resets: 32, ..all(8, 4) }),
            ),
            (
                Enumerated {
                    signature: 0xb06d1,
                    counters: (0x0830_0806, 0x604),
                    capabilities: 0x76c5 | 1 << 14,
                    ..NEHALEM
                },
                rules(
                    PeriodRules::GoldenCove,
                    PebsCapabilities { general_resets: 32, counter_values: true, ..all(8, 4) },
                ),
            ),
            // Tremont's records can go into a trace.
            (
                Enumerated {
                    signature: 0x906c0,
                    counters: (0x0730_0405, 0x603),
                    capabilities: 0x1_74c5,
                    ..NEHALEM
                },
                PebsCapabilities { trace_output: true, ..all(4, 3) },
            ),
            // More counters than IA32_FIXED_CTR_CTRL has fields for.
            (
                Enumerated {
                    signature: 0x706e5,
                    counters: (0x0830_0805, 0x610),
                    capabilities: 0x74c5 | 1 << 14,
                    ..NEHALEM
                },
                all(8, 8),
            ),
        ];
        for (row, expected) in table {
            // The latencies of each model have a test of their own.
            let found = detect(&row).map(|found| PebsCapabilities { load_latency: None, ..found });
            assert_eq!(found, Ok(expected), "{:#x}", row.signature);
        }
    }

    #[test]
    fn core_2_atoms_up_to_goldmont_and_knights_sample_with_counter_0_and_others_with_four() {
        // Models of family 06H. Source: SDM vol. 4, the tables of MSRs of each of them, "IA32_PEBS_ENABLE": its bits.
        let one = [
            0x16, 0x17, 0x1d, 0x1c, 0x26, 0x27, 0x35, 0x36, 0x37, 0x4a, 0x4c, 0x4d, 0x5a, 0x5d, 0x75, 0x5c,
            0x5f, 0x57, 0x85_u32,
        ];
        // Model 0FH does not sample.
        for model in (0..=0xff).filter(|model| *model != 0x0f) {
            let signature = 0x600 | (model >> 4) << 16 | (model & 0xf) << 4;
            // A processor that has only two counters samples with no more than two.
            for (there, all) in [(0x0730_0803, 4), (0x0730_0203, 2)] {
                let counters = if one.contains(&model) { 1 } else { all };
                let row = Enumerated { signature, counters: (there, 0x603), ..NEHALEM };
                // The newest microcode.
                let found = detect_with(&row, (0, 0), &[(0x8b, u64::MAX)]).unwrap();
                assert_eq!(found.general_counters, counters, "{model:#x}");
            }
        }
    }

    #[test]
    fn an_event_samples_on_counters_that_are_there() {
        for (row, event, counters) in [
            (NEHALEM, PreciseEvent::INST_RETIRED, 0b1111),
            (Enumerated { signature: 0x506e3, ..NEHALEM }, PreciseEvent::INST_RETIRED, 0),
            (Enumerated { signature: 0x506e3, ..NEHALEM }, PreciseEvent::INST_RETIRED_PREC_DIST, 0b10),
            (
                Enumerated { signature: 0x10676, counters: (0x0728_0202, 0), ..NEHALEM },
                PreciseEvent::INST_RETIRED,
                1,
            ),
            (
                Enumerated { counters: (0x0830_0805, 0x604), capabilities: 0x74c5, ..NEHALEM },
                PreciseEvent::INST_RETIRED,
                0xff,
            ),
        ] {
            assert_eq!(detect(&row).unwrap().counters_for(event), counters, "{:#x}", row.signature);
        }
    }

    #[test]
    fn sandy_bridge_samples_with_the_microcode_that_mends_it() {
        // (signature, first sufficient revision of the microcode)
        for (signature, needed) in
            [(0x206a7, 0x28), (0x206a2, 0x28), (0x206d6, 0x618), (0x206d7, 0x70c), (0x206d5, u32::MAX)]
        {
            let row = Enumerated { signature, ..NEHALEM };
            for revision in [0, 0x27, needed - 1, needed] {
                let found = detect_with(&row, (0, 0), &[(0x8b, u64::from(revision) << 32 | 0xffff_ffff)]);
                let missing = Missing::PebsMicrocode { revision, needed };
                let expected = if revision < needed { Some(missing) } else { None };
                assert_eq!(found.err(), expected, "{signature:#x} {revision:#x}");
            }
        }
        // Ivy Bridge needs none.
        assert!(detect(&Enumerated { signature: 0x306a9, ..NEHALEM }).is_ok());
    }

    #[test]
    fn counter_3_is_the_microcodes_while_it_makes_transactions_safe() {
        let skylake = Enumerated { signature: 0x506e3, counters: (0x0730_0404, 0x603), ..NEHALEM };
        const RTM: u32 = 1 << 11;
        const FORCE_ABORT: u32 = 1 << 13;
        // (CPUID.07H.0:EBX and EDX, IA32_TSX_FORCE_ABORT, counters that are taken)
        for (extended, control, taken) in [
            ((RTM, FORCE_ABORT), 0, 0b1000),
            ((RTM, FORCE_ABORT), 1, 0),
            ((RTM, 0), 0, 0),
            ((0, FORCE_ABORT), 0, 0),
        ] {
            let found = detect_with(&skylake, extended, &[(0x10f, control)]).unwrap();
            assert_eq!(found.microcode_counters, taken, "{extended:x?} {control}");
            assert_eq!(found.counters_for(PreciseEvent::BR_INST_RETIRED_PEBS), 0b1111 & !taken);
        }
    }

    #[test]
    fn memory_accesses_disturb_the_other_threads_counter_on_some_models() {
        let event = |select| PreciseEvent { select, umask: 1 };
        for (signature, disturbs) in [(0x306a9, true), (0x306c3, true), (0x306d4, false), (0x506e3, false)] {
            let found = detect(&Enumerated { signature, ..NEHALEM }).unwrap();
            for select in [0xcf, 0xd0, 0xd1, 0xd2, 0xd3, 0xd4] {
                let expected = disturbs && (0xd0..=0xd3).contains(&select);
                assert_eq!(
                    found.disturbs_other_thread(event(select)),
                    expected,
                    "{signature:#x} {select:#x}"
                );
            }
        }
    }

    #[test]
    fn says_why_it_is_not_there() {
        let table = [
            (Enumerated { misc_enable: 1 << 12 | 1 << 7, ..NEHALEM }, Missing::Pebs),
            (Enumerated { misc_enable: 0, ..NEHALEM }, Missing::PerformanceMonitoring),
            (Enumerated { signature: 0xf41, ..NEHALEM }, Missing::NetBurstPebs),
            (Enumerated { signature: 0x6f6, ..NEHALEM }, Missing::PebsErrata { family: 6, model: 0xf }),
            (Enumerated { signature: 0x6fd, ..NEHALEM }, Missing::PebsErrata { family: 6, model: 0xf }),
            (Enumerated { ecx: 1 << 2, ..NEHALEM }, Missing::PerfCapabilities),
            (Enumerated { ecx: 1 << 15, ..NEHALEM }, Missing::WideRecords),
            (Enumerated { counters: (0x0730_0401, 0), ..NEHALEM }, Missing::GlobalCtrl { version: 1 }),
            (Enumerated { counters: (0, 0), ..NEHALEM }, Missing::GlobalCtrl { version: 0 }),
            (Enumerated { counters: (0x0730_0003, 0x603), ..NEHALEM }, Missing::SamplingCounter),
            (Enumerated { capabilities: 0x700, ..NEHALEM }, Missing::PebsFormat { number: 7 }),
            // Architectural PEBS.
            (Enumerated { capabilities: 0xf00, ..NEHALEM }, Missing::PebsFormat { number: 0xf }),
        ];
        for (row, expected) in table {
            assert_eq!(detect(&row), Err(expected));
        }
    }
}
