//! The load-latency facility: records of loads with the cycles that they took.
//!
//! Source: SDM vol. 3, Performance Monitoring, "Load Latency Performance Monitoring Facility" of Nehalem, Sandy Bridge
//! and their successors; Linux, `arch/x86/events/intel/ds.c`, `intel_pmu_pebs_enable`, and the extra registers of each
//! model in `core.c`.

use super::{PreciseEvent, PreciseEvents};

/// The load-latency facility of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadLatency {
    /// The event that it samples.
    pub(crate) event: PreciseEvent,
    /// True if IA32_PEBS_ENABLE has a bit for it for each counter. Later, these are bits of fixed-function counters.
    pub(crate) has_enable: bool,
    /// True if no other counter may sample meanwhile.
    pub(crate) is_alone: bool,
}

impl LoadLatency {
    /// The lowest threshold, in core cycles.
    pub(crate) const LEAST: u16 = 3;

    /// Returns the facility of a model of family 06H, with this version of architectural performance monitoring.
    ///
    /// From Alder Lake on a second event has to be counted beside it, and small cores have another: they are left out.
    pub(crate) const fn of(model: u8, version: u8) -> Option<Self> {
        let (event, is_alone) = match PreciseEvents::of(model) {
            PreciseEvents::Nehalem => (PreciseEvent::LATENCY_ABOVE_THRESHOLD, false),
            PreciseEvents::SandyBridge => (PreciseEvent::LOAD_LATENCY, true),
            PreciseEvents::Haswell | PreciseEvents::Skylake => (PreciseEvent::LOAD_LATENCY, false),
            _ => match model {
                // Ice Lake, Rocket Lake, Tiger Lake.
                0x6a | 0x6c | 0x7d | 0x7e | 0xa7 | 0x8c | 0x8d => (PreciseEvent::LOAD_LATENCY, false),
                _ => return None,
            },
        };
        Some(Self { event, has_enable: version < 5, is_alone })
    }
}

#[cfg(test)]
mod tests {
    use crate::cpuid::CpuIdResult;
    use crate::fake::FakeMsr;
    use crate::intel::pebs::{
        Counter, Groups, PebsCapabilities, PebsConfig, PebsRefusal, PreciseEvent, Program,
    };
    use crate::msr::MiscEnable;

    const PEBS_ENABLE: u32 = 0x3f1;
    const LD_LAT: u32 = 0x3f6;

    fn capabilities(signature: u32, version: u32, format: u64) -> PebsCapabilities {
        let cpuid = |leaf, _| match leaf {
            0 => CpuIdResult { eax: 0xb, ebx: 0x756e_6547, edx: 0x4965_6e69, ecx: 0x6c65_746e },
            1 => CpuIdResult { eax: signature, ebx: 0, ecx: 1 << 2 | 1 << 15, edx: 1 << 21 },
            0xa => CpuIdResult { eax: 0x0730_0400 | version, ebx: 0, ecx: 0, edx: 0x603 },
            _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
        };
        let mut msr = FakeMsr::new();
        msr.set(0x345, format);
        // The microcode with which Sandy Bridge samples.
        msr.set(0x8b, 0x28 << 32);
        let misc_enable = MiscEnable::PERFORMANCE_MONITORING;
        PebsCapabilities::detect(&cpuid, misc_enable, true, &mut msr).unwrap().unwrap()
    }

    #[test]
    fn each_model_has_the_manuals_event() {
        let [nehalem, later] = [(0x0b, 0x10), (0xcd, 0x01)];
        for (signature, version, format, event) in [
            (0x106a5, 3, 0x1c4, Some(nehalem)),
            (0x206c2, 3, 0x1c4, Some(nehalem)),
            (0x206a7, 3, 0x1c4, Some(later)),
            (0x306c3, 3, 0x32c4, Some(later)),
            (0x506e3, 4, 0x33c5, Some(later)),
            (0x706e5, 5, 0x74c5, Some(later)),
            // Core 2, Goldmont, Alder Lake.
            (0x10676, 2, 0xc2, None),
            (0x506c9, 4, 0x3303, None),
            (0x90672, 5, 0x74c5, None),
        ] {
            let found = capabilities(signature, version, format).load_latency_event();
            assert_eq!(found.map(|it| (it.select, it.umask)), event, "{signature:#x}");
        }
    }

    #[test]
    fn the_threshold_and_the_enable_bit_are_written_and_restored() {
        // (signature, version, format, the counter, IA32_PEBS_ENABLE)
        for (signature, version, format, n, enable) in [
            (0x106a5, 3, 0x1c4, 2, 0x4_0000_0004),
            (0x206a7, 3, 0x1c4, 3, 0x8_0000_0008),
            (0x506e3, 4, 0x33c5, 1, 0x2_0000_0002),
            (0x706e5, 5, 0x74c5, 1, 0x2),
        ] {
            let capabilities = capabilities(signature, version, format);
            let event = capabilities.load_latency_event().unwrap();
            let config = PebsConfig::new().load_latency(n, event, 64, 1000);
            assert_eq!(config.check(&capabilities, 9), Ok(()), "{signature:#x}");
            let mut program = Program::new(config, capabilities, Groups::BASIC.memory(true).data_cfg());
            let mut msr = FakeMsr::new();
            msr.set(LD_LAT, 0x77);
            program.prepare(&mut msr).unwrap();
            assert_eq!(msr.get(LD_LAT), 64);
            // SAFETY: the registers represent no hardware.
            unsafe { program.go_on(&mut msr, &mut 0) }.unwrap();
            assert_eq!((msr.get(PEBS_ENABLE), program.enable().0), (enable, enable), "{signature:#x}");
            assert_eq!(program.stop(&mut msr), Ok(true));
            program.put_back(&mut msr).unwrap();
            assert_eq!((msr.get(PEBS_ENABLE), msr.get(LD_LAT)), (0, 0x77));
        }
        // Without it the register is not touched.
        let capabilities = capabilities(0x506e3, 4, 0x33c5);
        let plain = PebsConfig::new().general(1, PreciseEvent::LOAD_LATENCY, 1000);
        let mut program = Program::new(plain, capabilities, Groups::BASIC.data_cfg());
        let mut msr = FakeMsr::new();
        program.prepare(&mut msr).unwrap();
        program.put_back(&mut msr).unwrap();
        assert!(!msr.reads.contains(&LD_LAT) && msr.writes.iter().all(|(register, _)| *register != LD_LAT));
        assert_eq!(program.enable().0, 0b10);
    }

    #[test]
    fn latencies_that_the_processor_does_not_sample_are_refused() {
        let [skylake, sandy_bridge] = [capabilities(0x506e3, 4, 0x33c5), capabilities(0x206a7, 3, 0x1c4)];
        let event = PreciseEvent::LOAD_LATENCY;
        let config = |n, threshold| PebsConfig::new().load_latency(n, event, threshold, 1000);
        for threshold in [0, 2] {
            let refusal = PebsRefusal::LatencyThreshold { threshold };
            assert_eq!(config(0, threshold).check(&skylake, 9), Err(refusal));
        }
        assert_eq!(config(0, 3).check(&skylake, 9), Ok(()));
        assert_eq!(config(0, u16::MAX).check(&skylake, 9), Ok(()));
        let none = Err(PebsRefusal::NoLoadLatency(Counter::General(1)));
        let branches = PreciseEvent::BR_INST_RETIRED_PEBS;
        assert_eq!(PebsConfig::new().load_latency(1, branches, 3, 1000).check(&skylake, 9), none);
        assert_eq!(config(1, 3).general(1, branches, 1000).check(&skylake, 9), none);
        let goldmont = PebsCapabilities { load_latency: None, ..skylake };
        assert_eq!(config(1, 3).check(&goldmont, 9), none);
        // Sandy Bridge samples nothing else meanwhile, and loads on counter 3 alone.
        let both = |n| config(n, 3).general(2, branches, 1000);
        assert_eq!(both(0).check(&skylake, 9), Ok(()));
        assert_eq!(both(3).check(&sandy_bridge, 9), Err(PebsRefusal::NotAlone(Counter::General(3))));
        assert!(matches!(config(0, 3).check(&sandy_bridge, 9), Err(PebsRefusal::NotPrecise { .. })));
        assert_eq!(config(8, 3), PebsConfig::new());
    }
}
