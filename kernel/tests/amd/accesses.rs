//! Samples' reports on loads, compared with the loads' true sources: the driver reads the model's registers, and
//! `decoder-core` interprets them for that processor.

use super::machine::{DEVICE, HUGE, Kernel, LARGE, UNCACHED, WITH_IBS};
use pugmark_decoder_core::ibs::{CacheState, DataSource, Dtlb, OpSample, PageSize, Sample};
use pugmark_kernel::amd::ibs::IbsConfig;

/// Returns the last op that was sampled during loads from these addresses in turn.
fn sample(profile: &str, config: IbsConfig, addresses: &[u64]) -> Option<OpSample> {
    let mut kernel = Kernel::new(profile, 0);
    let running = kernel.ibs_unit().start(&config).map_err(|failed| failed.error()).unwrap();
    addresses.iter().cycle().take(LOADS).for_each(|address| kernel.machine.load(*address));
    let stopped = running.stop().map_err(|failed| failed.fault).unwrap().expect(&mut kernel.handler);
    assert_eq!(kernel.machine.violations(), Default::default(), "{profile}");
    stopped.last().find_map(|sample| match sample {
        Sample::Op(op) => Some(*op),
        Sample::Fetch(_) => None,
    })
}

/// The number of loads, and, if ops cannot be counted, the cycles until one is sampled: more than the first loads take,
/// which miss the caches.
const LOADS: usize = 3000;
const CYCLES: u32 = 0x800;

/// Returns a load from one of these addresses.
fn load(profile: &str, addresses: &[u64]) -> OpSample {
    let config = match profile {
        "barcelona" => IbsConfig::new().op(CYCLES),
        _ => IbsConfig::new().op(0x90).op_counts_dispatched(),
    };
    let op = sample(profile, config, addresses).unwrap();
    let access = op.access().unwrap();
    assert!(access.is_load() && addresses.contains(&access.linear_address().unwrap()), "{profile}");
    op
}

#[test]
fn the_size_of_a_page_is_that_of_the_page() {
    for profile in WITH_IBS {
        for (address, size) in [(0x1000, PageSize::K4), (LARGE, PageSize::M2), (HUGE, PageSize::G1)] {
            let op = load(profile, &[address]);
            let access = op.access().unwrap();
            let told = (access.dtlb(), access.page_size(), access.physical_address());
            assert_eq!(told, (Some(Dtlb::L1), Some(size), Some(address)), "{profile}");
            // The first level's entry holds another page.
            let op = load(profile, &[address, address + 16 * 4096]);
            let access = op.access().unwrap();
            let told = (access.dtlb(), access.page_size());
            assert_eq!(told, (Some(Dtlb::L2), Some(size)), "{profile} {address:#x}");
        }
    }
}

#[test]
fn what_no_cache_may_answer_tells_nothing_of_caches() {
    for profile in WITH_IBS {
        for (address, source) in [(UNCACHED, None), (DEVICE, Some(DataSource::Io))] {
            let op = load(profile, &[address]);
            let access = op.access().unwrap();
            assert!(access.uncacheable(), "{profile}");
            let told = (access.dc_miss(), access.l2_miss(), access.miss_latency(), access.source());
            assert_eq!(told, (None, None, None, source), "{profile} {address:#x}");
        }
        let op = load(profile, &[0x1000]);
        let access = op.access().unwrap();
        assert!(!access.uncacheable() && access.dc_miss() == Some(false), "{profile}");
    }
}

#[test]
fn a_line_has_a_state_where_the_processor_tells_it() {
    // In level 3 only: both addresses have the same place in the other levels. The model's lines alternate between the
    // states.
    for (base, state) in [(0x1000, CacheState::Modified), (0x1040, CacheState::Owned)] {
        for (profile, source, tells) in [
            ("barcelona", DataSource::LocalL3, false),
            ("trinity", DataSource::Dram, false),
            ("zen2", DataSource::NodeCache, true),
            ("zen3", DataSource::NodeCache, false),
            ("zen4", DataSource::LocalL3, true),
            ("zen5", DataSource::LocalL3, true),
            ("zen6", DataSource::LocalL3, true),
        ] {
            let op = load(profile, &[base, base + 512 * 64]);
            let access = op.access().unwrap();
            assert_eq!(access.source(), Some(source), "{profile}");
            assert_eq!(access.cache_state(), tells.then_some(state), "{profile} {base:#x}");
        }
    }
}

#[test]
fn the_filter_by_latency_lets_no_fast_load_through() {
    let config = IbsConfig::new().op(0x90).op_counts_dispatched().op_latency(128);
    // Only from the first level.
    for profile in ["zen5", "zen6"] {
        assert_eq!(sample(profile, config, &[0x1000]), None, "{profile}");
        // Each load goes to memory, because level 3 has 1024 places.
        let slow: Vec<u64> = (0..4).map(|n| 0x1000 + n * 1024 * 64).collect();
        let op = sample(profile, config, &slow).unwrap();
        assert!(op.access().unwrap().miss_latency().unwrap() > 128, "{profile}");
    }
}
