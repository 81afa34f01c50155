//! The events that each counter can sample, typed from the manual a second time.

use std::vec::Vec;

use crate::intel::{CountedEvent, IntelProfile};
use CountedEvent::*;

const ALL_FOUR: u32 = 0b1111;
const ALL_EIGHT: u32 = 0xff;

/// Source: SDM vol. 3, Performance Monitoring, the tables of precise events of each microarchitecture; Performance
/// Monitoring Events, "Pre-defined Architectural Performance Events".
#[test]
fn each_counter_samples_the_precise_events_and_no_others() {
    // Umask, event select, the counted unit, the counters that sample it.
    type Row = (u16, CountedEvent, u32);
    let from_haswell = |far: u32| -> Vec<Row> {
        [
            (0x003c, CoreClocks, 0),
            (0x013c, BusClocks, 0),
            (0x00c0, Instructions, 0),
            (0x01c0, Instructions, 1 << 1),
            (0x00c4, Branches, 0),
            (0x01c4, Conditional, ALL_FOUR),
            (0x02c4, NearCalls, ALL_FOUR),
            (0x04c4, Branches, ALL_FOUR),
            (0x08c4, NearReturns, ALL_FOUR),
            (0x20c4, NearTaken, ALL_FOUR),
            (0x40c4, FarBranches, far),
            (0x00c5, Mispredicted, 0),
            (0x04c5, Mispredicted, ALL_FOUR),
        ]
        .into()
    };
    let rows: [(&str, Vec<Row>); 9] = [
        ("prescott", [].into()),
        ("pentium-m", [].into()),
        (
            "core2",
            [
                (0x003c, CoreClocks, 0),
                (0x013c, BusClocks, 0),
                (0x00c0, Instructions, 1),
                (0x00c4, Branches, 0),
                (0x00c5, Mispredicted, 1),
            ]
            .into(),
        ),
        (
            "nehalem",
            [
                (0x003c, CoreClocks, 0),
                (0x013c, BusClocks, 0),
                (0x00c0, Instructions, ALL_FOUR),
                (0x00c4, Branches, ALL_FOUR),
                (0x01c4, Conditional, ALL_FOUR),
                (0x02c4, NearCalls, ALL_FOUR),
                (0x00c5, Mispredicted, ALL_FOUR),
            ]
            .into(),
        ),
        ("broadwell", from_haswell(0)),
        ("skylake", from_haswell(ALL_FOUR)),
        (
            "icelake",
            [
                (0x003c, CoreClocks, ALL_EIGHT),
                (0x013c, BusClocks, ALL_EIGHT),
                (0x01a4, Slots, ALL_EIGHT),
                (0x00c0, Instructions, ALL_EIGHT),
                (0x00c4, Branches, ALL_EIGHT),
                (0x11c4, Conditional, ALL_EIGHT),
                (0x02c4, NearCalls, ALL_EIGHT),
                (0x08c4, NearReturns, ALL_EIGHT),
                (0x20c4, NearTaken, ALL_EIGHT),
                (0x40c4, FarBranches, ALL_EIGHT),
                (0x00c5, Mispredicted, ALL_EIGHT),
            ]
            .into(),
        ),
        (
            "tremont",
            [
                (0x003c, CoreClocks, ALL_FOUR),
                (0x013c, BusClocks, ALL_FOUR),
                (0x00c0, Instructions, ALL_FOUR),
                (0x00c4, Branches, ALL_FOUR),
                (0x7ec4, Conditional, ALL_FOUR),
                (0xf9c4, NearCalls, ALL_FOUR),
                (0xf7c4, NearReturns, ALL_FOUR),
                (0xbfc4, FarBranches, ALL_FOUR),
                (0x00c5, Mispredicted, ALL_FOUR),
            ]
            .into(),
        ),
        (
            "sapphire-rapids",
            [
                (0x003c, CoreClocks, ALL_EIGHT),
                (0x013c, BusClocks, ALL_EIGHT),
                (0x01a4, Slots, ALL_EIGHT),
                (0x00c0, Instructions, ALL_EIGHT),
                (0x00c4, Branches, ALL_EIGHT),
                (0x11c4, Conditional, ALL_EIGHT),
                (0x02c4, NearCalls, ALL_EIGHT),
                (0x08c4, NearReturns, ALL_EIGHT),
                (0x20c4, NearTaken, ALL_EIGHT),
                (0x40c4, FarBranches, ALL_EIGHT),
                (0x00c5, Mispredicted, ALL_EIGHT),
            ]
            .into(),
        ),
    ];
    for (name, expected) in rows {
        let profile = IntelProfile::by_name(name).expect(name);
        let events = profile.counters.as_ref().map_or(&[][..], |counters| counters.events);
        let found: Vec<Row> = events
            .iter()
            .map(|event| (u16::from_le_bytes([event.select, event.umask]), event.counts, event.precise))
            .collect();
        assert_eq!(found, expected, "{name}");
    }
}
