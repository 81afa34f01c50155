//! Differences between the releases of libipt with damaged traces.

use pugmark_harness::libipt::release::{Release, V2_0_5, V2_1_2};

/// A release, and its way of reading a trace.
pub(crate) struct Reading {
    pub(crate) release: &'static Release,
    /// Number of branches that it has read while the walk needs none of them yet. Since 2.1 the decoders of branches
    /// and instructions take events from one another, each of which has read the next one.
    pub(crate) ahead: usize,
    /// If tracing is off after the first PSB+, it looks for the next event as a part of synchronising, so an error
    /// there has the offset of the PSBEND. Since 2.1.
    pub(crate) starts_with_event: bool,
    /// At a TIP, the branch is an event of its own, before the change of mode that waited for the TIP. Since 2.1.
    pub(crate) tip_comes_before_mode: bool,
    /// The shares of damaged traces.
    pub(crate) damaged: Shares,
    /// The shares of short traces.
    pub(crate) short: Shares,
}

/// The shares of traces, in thousandths, that may differ and that must not.
pub(crate) struct Shares {
    /// Maximum in each class.
    pub(crate) most: [u64; 5],
    /// Minimum that must be the same.
    pub(crate) least: u64,
}

/// The releases. Measured shares of a thousand damaged traces: 237, 30, 119, 14 and 3 in the classes for 2.0.5, and 597
/// the same; 84, 2, 38, 15, 3 and 859 for 2.1.2. Of a thousand short ones: 245, 93, 175, 49, 49 and 388; 241, 14, 120,
/// 49, 51 and 525. Both blame an event that contradicts the walk on the last packet that they hold, 2.3 on its own:
/// that is most of the first class in short traces, where the walk as libipt's is that of 2.3.
pub(crate) static READINGS: [Reading; 2] = [
    Reading {
        release: &V2_0_5,
        ahead: 0,
        starts_with_event: false,
        tip_comes_before_mode: false,
        damaged: Shares { most: [250, 38, 121, 16, 5], least: 595 },
        short: Shares { most: [252, 96, 180, 52, 51], least: 383 },
    },
    Reading {
        release: &V2_1_2,
        ahead: 1,
        starts_with_event: true,
        tip_comes_before_mode: true,
        damaged: Shares { most: [92, 4, 44, 18, 5], least: 850 },
        short: Shares { most: [247, 16, 125, 53, 53], least: 519 },
    },
];
