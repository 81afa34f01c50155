//! Samples against the manuals' tables.

extern crate std;

mod raw;

use super::*;
use std::{string::ToString, vec::Vec};

const BARCELONA: Part = Part { family: 0x10, model: 0x02, caps: Caps(0x7) };
const BULLDOZER: Part = Part { family: 0x15, model: 0x01, caps: Caps(0xff) };
const ZEN2: Part = Part { family: 0x17, model: 0x31, caps: Caps(0x3ff) };
const ZEN3: Part = Part { family: 0x19, model: 0x01, caps: Caps(0x3ff) };
const ZEN4: Part = Part { family: 0x19, model: 0x11, caps: Caps(0xbff) };
/// Zen 5, also with newer capabilities, but without the one for the page size.
const ZEN5: Part = Part { family: 0x1a, model: 0x02, caps: Caps(0x1_ffff) };
const PAGE_SIZE: Part = Part { family: 0x1a, model: 0x02, caps: Caps(0x8_1bff) };

const FETCH_VAL: u64 = 1 << 49;
const OP_VAL: u64 = 1 << 18;

fn fetch(part: Part, ctl: u64) -> FetchSample {
    let registers = FetchRegisters { ctl: ctl | FETCH_VAL, linear: 0x11, physical: 0x22, extended: 0x1_0033 };
    FetchSample::new(part, registers).unwrap()
}

fn op(part: Part, registers: OpRegisters) -> OpSample {
    OpSample::new(part, OpRegisters { ctl: registers.ctl | OP_VAL, ..registers }).unwrap()
}

fn data(part: Part, data: u64) -> OpSample {
    op(part, OpRegisters { rip: 0x44, data, br_target: 0x55, data4: 0x66, ..OpRegisters::default() })
}

fn memory(part: Part, data2: u64, data3: u64) -> OpSample {
    op(part, OpRegisters { data2, data3, dc_linear: 0x77, dc_physical: 0x88, ..OpRegisters::default() })
}

#[test]
fn registers_without_a_sample_have_none() {
    assert_eq!(FetchSample::new(ZEN2, FetchRegisters { ctl: !FETCH_VAL, ..Default::default() }), None);
    assert_eq!(OpSample::new(ZEN2, OpRegisters { ctl: !OP_VAL, ..Default::default() }), None);
}

#[test]
fn fields_of_a_fetch_are_where_the_manual_has_them() {
    let sample = fetch(ZEN2, 0x1234_0000_8765);
    assert_eq!((sample.max_count(), sample.latency()), (0x8_7650, 0x1234));
    // A bit, and the method that returns true if only this bit is set.
    type Row = (u32, fn(&FetchSample) -> bool);
    let rows: [Row; 3] = [
        (50, FetchSample::completed),
        (51, |sample| sample.ic_miss() == Some(true)),
        (55, FetchSample::l1_tlb_miss),
    ];
    for (bit, read) in rows {
        assert!(read(&fetch(ZEN2, 1 << bit)), "{bit}");
        assert!(!read(&fetch(ZEN2, !(1 << bit))), "{bit}");
    }
}

#[test]
fn fields_of_a_fetch_are_readable_only_where_they_are_valid() {
    type Row = (Part, u64, fn(&FetchSample) -> Option<bool>, Option<bool>);
    let (comp, l1_tlb, l2) = (1 << 50, 1 << 55, 1 << 58);
    let rows: [Row; 16] = [
        (ZEN2, 1 << 56, FetchSample::l2_tlb_miss, None),
        (ZEN2, l1_tlb, FetchSample::l2_tlb_miss, Some(false)),
        (ZEN2, l1_tlb | 1 << 56, FetchSample::l2_tlb_miss, Some(true)),
        (ZEN2, l2, FetchSample::l2_miss, None),
        (ZEN2, comp, FetchSample::l2_miss, Some(false)),
        (ZEN2, comp | l2, FetchSample::l2_miss, Some(true)),
        (BULLDOZER, comp | l2, FetchSample::l2_miss, None),
        (ZEN2, comp | 1 << 60, FetchSample::oc_miss, None),
        (ZEN4, comp | 1 << 60, FetchSample::oc_miss, Some(true)),
        (ZEN4, 1 << 60, FetchSample::oc_miss, None),
        (ZEN4, comp | l2 | 1 << 61, FetchSample::l3_miss, Some(true)),
        (ZEN4, comp | l2, FetchSample::l3_miss, Some(false)),
        (ZEN4, comp | 1 << 61, FetchSample::l3_miss, None),
        (ZEN2, comp | l2 | 1 << 61, FetchSample::l3_miss, None),
        (ZEN4, 1 << 51, FetchSample::ic_miss, Some(true)),
        (ZEN3, 1 << 51, FetchSample::ic_miss, None),
    ];
    for (part, ctl, read, expected) in rows {
        assert_eq!(read(&fetch(part, ctl)), expected, "{part:?} {ctl:#x}");
    }
    for (ctl, physical) in [(1 << 52, Some(0x22)), (!(1 << 52), None)] {
        assert_eq!(fetch(ZEN2, ctl).physical_address(), physical);
    }
    assert_eq!(fetch(ZEN2, 0).itlb_refill_latency(), Some(0x33));
    assert_eq!(fetch(BULLDOZER, 0).itlb_refill_latency(), None);
}

#[test]
fn page_sizes_are_those_of_the_processor() {
    let valid = 1 << 52;
    use PageSize::{G1, K4, K16, M2};
    for (part, sizes) in
        [(ZEN2, [Some(K4), Some(M2), Some(G1), None]), (ZEN3, [Some(K4), Some(K16), Some(M2), Some(G1)])]
    {
        for (n, size) in (0..).zip(sizes) {
            assert_eq!(fetch(part, valid | n << 53).page_size(), size, "{part:?} {n}");
            assert_eq!(fetch(part, n << 53).page_size(), None);
        }
    }
}

#[test]
fn a_fetch_at_zero_is_no_address_with_erratum_1197() {
    let at = |part, linear| {
        let registers = FetchRegisters { ctl: FETCH_VAL, linear, ..FetchRegisters::default() };
        FetchSample::new(part, registers).unwrap().linear_address()
    };
    for (part, linear, expected) in
        [(ZEN3, 0, None), (ZEN3, 0x11, Some(0x11)), (ZEN4, 0, Some(0)), (ZEN2, 0, Some(0))]
    {
        assert_eq!(at(part, linear), expected, "{part:?}");
    }
}

#[test]
fn a_period_has_the_width_and_the_unit_of_the_processor() {
    let ctl = 0x7f << 20 | 0xffff | 1 << 19 | 0xffff_ffff << 32;
    for (part, period, unit, count) in [
        (BARCELONA, 0xf_fff0, OpCount::Cycles, None),
        (BULLDOZER, 0x7ff_fff0, OpCount::Dispatched, Some(0x7ff_ffff)),
        (Part { caps: Caps(0xbf), ..BULLDOZER }, 0xf_fff0, OpCount::Dispatched, Some(0xf_ffff)),
    ] {
        let sample = op(part, OpRegisters { ctl, ..OpRegisters::default() });
        assert_eq!((sample.max_count(), sample.counts(), sample.current_count()), (period, unit, count));
    }
    let none = op(BULLDOZER, OpRegisters::default());
    assert_eq!((none.max_count(), none.counts(), none.current_count()), (0, OpCount::Cycles, Some(0)));
}

#[test]
fn what_was_executed_is_readable_only_where_it_is_valid() {
    type Row = (Part, u64, fn(&OpSample) -> Option<bool>, Option<bool>);
    let branch = 1 << 37;
    let rows: [Row; 9] = [
        (ZEN2, 1 << 40, OpSample::microcode, Some(true)),
        (BULLDOZER, 1 << 40, OpSample::microcode, None),
        (BULLDOZER, 1 << 32, OpSample::resync, Some(true)),
        (BULLDOZER, !(1 << 32), OpSample::resync, Some(false)),
        (ZEN2, 1 << 32, OpSample::resync, None),
        (BARCELONA, branch | 1 << 33, OpSample::mispredicted_return, Some(true)),
        (BARCELONA, branch, OpSample::mispredicted_return, Some(false)),
        (BARCELONA, 1 << 33, OpSample::mispredicted_return, None),
        (ZEN2, branch | 1 << 33, OpSample::mispredicted_return, None),
    ];
    for (part, bits, read, expected) in rows {
        assert_eq!(read(&data(part, bits)), expected, "{part:?} {bits:#x}");
    }
    let sample = data(ZEN2, 0x1234_5678);
    assert_eq!((sample.completion_to_retire(), sample.tag_to_retire()), (0x5678, 0x1234));
    // (processor, IbsRipInvalid, address)
    for (part, bits, rip) in [(ZEN2, 0, Some(0x44)), (ZEN2, 1 << 38, None), (BARCELONA, 1 << 38, Some(0x44))]
    {
        assert_eq!(data(part, bits).rip(), rip);
    }
    assert_eq!((data(ZEN2, 0).data4(), data(ZEN5, 0).data4()), (None, Some(0x66)));
}

#[test]
fn a_branch_is_one_that_retired() {
    let retired = 1 << 37;
    let none = RetiredBranch {
        taken: false,
        mispredicted: false,
        is_return: false,
        fused: Some(false),
        target: Some(0x55),
    };
    for (part, bits, expected) in [
        (ZEN2, !retired, None),
        (ZEN2, retired, Some(none)),
        (ZEN2, retired | 1 << 34, Some(RetiredBranch { is_return: true, ..none })),
        (ZEN2, retired | 1 << 35, Some(RetiredBranch { taken: true, ..none })),
        (ZEN2, retired | 1 << 36, Some(RetiredBranch { mispredicted: true, ..none })),
        (ZEN2, retired | 1 << 39, Some(RetiredBranch { fused: Some(true), ..none })),
        (BULLDOZER, retired | 1 << 39, Some(RetiredBranch { fused: None, target: None, ..none })),
        (Part { model: 0x10, ..BULLDOZER }, retired, Some(RetiredBranch { fused: None, ..none })),
        (BARCELONA, retired, Some(RetiredBranch { fused: None, target: None, ..none })),
    ] {
        assert_eq!(data(part, bits).branch(), expected, "{part:?} {bits:#x}");
    }
    let nowhere = op(ZEN2, OpRegisters { data: retired, ..OpRegisters::default() });
    assert_eq!(nowhere.branch().unwrap().target, None);
}

#[test]
fn an_access_is_a_load_or_a_store() {
    for (bits, expected) in [
        (0, None),
        (!0b11, None),
        (1, Some((true, false))),
        (2, Some((false, true))),
        (3, Some((true, true))),
    ] {
        let sample = memory(ZEN2, 0, bits);
        assert_eq!(sample.access().map(|access| (access.is_load(), access.is_store())), expected);
    }
}

#[test]
fn bits_of_an_access_are_readable_only_where_they_are_valid() {
    type Row = (Part, u64, fn(Access<'_>) -> Option<bool>, Option<bool>);
    let (load, store, miss, uc) = (1, 2, 1 << 7, 1 << 14);
    let rows: [Row; 34] = [
        (ZEN2, load | 1 << 21, |access| access.software_prefetch(), Some(true)),
        (BULLDOZER, load | 1 << 21, |access| access.software_prefetch(), None),
        (ZEN2, load | miss, |access| access.dc_miss(), Some(true)),
        (ZEN2, load, |access| access.dc_miss(), Some(false)),
        (ZEN2, load | miss | uc, |access| access.dc_miss(), None),
        (ZEN2, load | miss | 1 << 20, |access| access.l2_miss(), Some(true)),
        (ZEN2, store | miss, |access| access.l2_miss(), Some(false)),
        (ZEN2, load | 1 << 20, |access| access.l2_miss(), None),
        (BULLDOZER, load | miss | 1 << 20, |access| access.l2_miss(), None),
        (ZEN3, load | miss | 1 << 20, |access| access.l2_miss(), Some(true)),
        (ZEN3, load | miss | 1 << 20 | 1 << 21, |access| access.l2_miss(), None),
        (ZEN3, load | miss | 1 << 20 | 1 << 16, |access| access.l2_miss(), None),
        (ZEN4, load | miss | 1 << 20 | 1 << 16, |access| access.l2_miss(), Some(true)),
        (ZEN2, load | 1 << 8, |access| Some(access.misaligned()), Some(true)),
        (ZEN2, load | 1 << 13, |access| Some(access.write_combining()), Some(true)),
        (ZEN2, load | 1 << 13, |access| Some(access.uncacheable()), Some(false)),
        (ZEN2, load | uc, |access| Some(access.uncacheable()), Some(true)),
        (ZEN2, load | 1 << 15, |access| Some(access.locked()), Some(true)),
        (BULLDOZER, load | 1 << 9, |access| access.load_bank_conflict(), Some(true)),
        (BULLDOZER, store | 1 << 9, |access| access.load_bank_conflict(), None),
        (ZEN2, load | 1 << 9, |access| access.load_bank_conflict(), None),
        (BARCELONA, load | 1 << 10, |access| access.store_bank_conflict(), Some(true)),
        (ZEN2, load | 1 << 10, |access| access.store_bank_conflict(), None),
        (BARCELONA, load | 1 << 11, |access| access.store_to_load_forwarded(), Some(true)),
        (ZEN2, load | 1 << 11, |access| access.store_to_load_forwarded(), None),
        (BARCELONA, load | 1 << 12, |access| access.store_to_load_cancelled(), Some(true)),
        (BARCELONA, store | 1 << 12, |access| access.store_to_load_cancelled(), None),
        (BARCELONA, load | miss | 1 << 16, |access| access.mab_hit(), Some(true)),
        (BULLDOZER, load | 1 << 16, |access| access.mab_hit(), None),
        (ZEN2, load | miss | 1 << 16, |access| access.mab_hit(), None),
        (ZEN2, load | 1 << 16, |access| access.miss_without_mab(), Some(true)),
        (BULLDOZER, load | 1 << 16, |access| access.miss_without_mab(), None),
        (ZEN2, load, |access| access.streaming_store(), None),
        (ZEN4, store, |access| access.streaming_store(), None),
    ];
    for (part, bits, read, expected) in rows {
        let sample = memory(part, 0, bits);
        assert_eq!(read(sample.access().unwrap()), expected, "{part:?} {bits:#x}");
    }
    for (bits, linear, physical) in
        [(0, None, None), (1 << 17, Some(0x77), None), (1 << 18, None, Some(0x88))]
    {
        let sample = memory(ZEN2, 0, bits | load);
        let access = sample.access().unwrap();
        assert_eq!((access.linear_address(), access.physical_address()), (linear, physical));
    }
}

#[test]
fn a_translation_is_told_with_its_level_and_page() {
    let (valid, l1_miss, l2_miss) = (1 << 17, 1 << 2, 1 << 3);
    use PageSize::{G1, K4, M2};
    for (bits, expected) in [
        (0, None),
        (valid, Some((Dtlb::L1, Some(K4)))),
        (valid | l2_miss | 1 << 4, Some((Dtlb::L1, Some(M2)))),
        (valid | 1 << 5, Some((Dtlb::L1, Some(G1)))),
        (valid | l1_miss | 1 << 4, Some((Dtlb::L2, Some(K4)))),
        (valid | l1_miss | 1 << 6, Some((Dtlb::L2, Some(M2)))),
        (valid | l1_miss | 1 << 19, Some((Dtlb::L2, Some(G1)))),
        (valid | l1_miss | l2_miss | 1 << 6, Some((Dtlb::Miss, None))),
    ] {
        // The validity of the physical address has no effect on these processors.
        for (part, physical) in [(ZEN2, 0), (ZEN2, 1 << 18), (ZEN5, 0), (ZEN5, 1 << 18)] {
            let sample = memory(part, 0, 1 | bits | physical);
            let access = sample.access().unwrap();
            assert_eq!(access.dtlb().map(|dtlb| (dtlb, access.page_size())), expected, "{bits:#x}");
        }
    }
}

#[test]
fn a_page_size_has_a_field_of_its_own_where_cpuid_says_so() {
    let (linear, physical, l1_miss, l2_miss, reserved) = (1 << 17, 1 << 18, 1 << 2, 1 << 3, 1 << 6 | 1 << 19);
    use PageSize::{G1, K4, M2};
    for (n, size) in (0..).zip([Some(K4), Some(M2), Some(G1), None]) {
        let page = n << 4;
        for (bits, expected) in [
            (linear | physical, Some(Dtlb::L1)),
            (linear | physical | l2_miss, Some(Dtlb::L1)),
            (linear | physical | l1_miss, Some(Dtlb::L2)),
            (linear | physical | l1_miss | l2_miss, Some(Dtlb::Miss)),
            (linear | l1_miss, None),
            (physical | l1_miss, None),
        ] {
            for reserved in [0, reserved] {
                let sample = memory(PAGE_SIZE, 0, 1 | bits | page | reserved | 7 << 48);
                let access = sample.access().unwrap();
                let size = expected.and(size);
                assert_eq!((access.dtlb(), access.page_size()), (expected, size), "{bits:#x} {n}");
                let refilled = matches!(expected, Some(Dtlb::L2 | Dtlb::Miss));
                assert_eq!(access.tlb_refill_latency(), refilled.then_some(7), "{bits:#x}");
            }
        }
    }
}

#[test]
fn numbers_of_an_access_are_readable_only_where_they_are_valid() {
    type Row = (Part, u64, fn(Access<'_>) -> Option<u32>, Option<u32>);
    let (load, store, miss, l1_miss, lin) = (1, 2, 1 << 7, 1 << 2, 1 << 17);
    let latency: fn(Access<'_>) -> Option<u32> = |access| access.miss_latency().map(u32::from);
    let refill: fn(Access<'_>) -> Option<u32> = |access| access.tlb_refill_latency().map(u32::from);
    let requests: fn(Access<'_>) -> Option<u32> = |access| access.open_requests().map(u32::from);
    let rows: [Row; 17] = [
        (ZEN2, load, |access| access.bytes(), None),
        (ZEN2, load | 1 << 22, |access| access.bytes(), Some(1)),
        (ZEN2, store | 6 << 22, |access| access.bytes(), Some(32)),
        (BULLDOZER, load | 6 << 22, |access| access.bytes(), None),
        (BARCELONA, load | miss | 0x1234 << 32, latency, Some(0x1234)),
        (BARCELONA, store | miss | 0x1234 << 32, latency, None),
        (BARCELONA, load | 0x1234 << 32, latency, None),
        (ZEN2, load | miss | 1 << 21 | 0x1234 << 32, latency, None),
        (ZEN2, load | lin | l1_miss | 0x4321 << 48, refill, Some(0x4321)),
        (ZEN2, load | lin | 0x4321 << 48, refill, None),
        (BULLDOZER, load | lin | l1_miss | 0x4321 << 48, refill, None),
        (ZEN2, load | miss | 0x2a << 26, requests, Some(0x2a)),
        (ZEN2, store | miss | 0x2a << 26, requests, None),
        (ZEN2, load | 0x2a << 26, requests, None),
        (BULLDOZER, load | miss | 0x2a << 26, requests, None),
        (ZEN3, load | miss | 0x2a << 26, requests, Some(0x2a)),
        (ZEN3, load | miss | 1 << 16 | 0x2a << 26, requests, None),
    ];
    for (part, bits, read, expected) in rows {
        let sample = memory(part, 0, bits);
        assert_eq!(read(sample.access().unwrap()), expected, "{part:?} {bits:#x}");
    }
}

#[test]
fn each_family_has_its_own_encoding_of_the_source() {
    use DataSource::*;
    let r = |n| Some(Reserved(n));
    let northbridge = [None, Some(LocalL3), Some(NodeCache), Some(Dram), r(4), r(5), r(6), Some(Io)];
    let zen = [None, r(1), Some(NodeCache), Some(Dram), Some(RemoteCache), r(5), r(6), Some(Io)];
    let bits = 1 | 1 << 7 | 1 << 20;
    for (part, sources) in [(BARCELONA, northbridge), (BULLDOZER, northbridge), (ZEN2, zen), (ZEN3, zen)] {
        for (n, source) in (0..).zip(sources) {
            // These processors do not have the high bits of the source.
            let sample = memory(part, n | 0b11 << 6, bits);
            assert_eq!(sample.access().unwrap().source(), source, "{part:?} {n}");
        }
    }
    for n in 0..32 {
        let source = match n {
            0 => None,
            1 => Some(LocalL3),
            2 => Some(NodeCache),
            3 => Some(Dram),
            5 => Some(RemoteCache),
            6 => Some(LongLatencyDimm),
            7 => Some(Io),
            8 => Some(ExtensionMemory),
            12 => Some(PeerMemory),
            n => r(n as u8),
        };
        let sample = memory(ZEN4, n & 7 | (n & 0x18) << 3, bits);
        assert_eq!(sample.access().unwrap().source(), source, "{n}");
    }
}

#[test]
fn a_source_is_that_of_a_load_that_missed() {
    let (load, store, miss, l2) = (1, 2, 1 << 7, 1 << 20);
    for (part, bits, valid) in [
        (ZEN2, load | miss | l2, true),
        (ZEN2, load | miss, false),
        (ZEN2, load | l2, false),
        (ZEN2, store | miss | l2, false),
        (ZEN2, load | miss | l2 | 1 << 14, false),
        (BARCELONA, load | miss, true),
        (BARCELONA, load, false),
        (ZEN3, load | miss | l2, true),
        (ZEN3, load | miss | l2 | 1 << 16, false),
        (ZEN3, load | miss | l2 | 1 << 21, false),
        (ZEN4, load | miss | l2 | 1 << 21, true),
    ] {
        let sample = memory(part, 3, bits);
        let access = sample.access().unwrap();
        assert_eq!(access.source(), valid.then_some(DataSource::Dram), "{part:?} {bits:#x}");
        assert_eq!(access.remote_node(), valid.then_some(false));
    }
}

#[test]
fn an_uncacheable_load_tells_only_that_io_answered_it() {
    let (load, store, miss, l2, uc) = (1, 2, 1 << 7, 1 << 20, 1 << 14);
    let io = Some(DataSource::Io);
    for (part, source, bits, expected) in [
        (ZEN2, 7, load | uc, io),
        (ZEN4, 7, load | uc, io),
        (BARCELONA, 7, load | uc, io),
        (ZEN2, 7, load | uc | miss | l2, io),
        (ZEN2, 3, load | uc | miss | l2, None),
        (ZEN2, 0, load | uc, None),
        (ZEN2, 7, store | uc, None),
        (ZEN2, 7, load, None),
        (ZEN2, 7, load | miss | l2, io),
        // Erratum 1293.
        (ZEN3, 7, load | uc | 1 << 16, None),
    ] {
        let sample = memory(part, source, bits);
        let access = sample.access().unwrap();
        assert_eq!(access.source(), expected, "{part:?} {source} {bits:#x}");
        assert_eq!(access.remote_node(), expected.map(|_| false));
        assert_eq!(access.cache_state(), None);
    }
}

#[test]
fn what_goes_with_a_source_is_readable_only_with_it() {
    use CacheState::{Modified, Owned};
    let bits = 3 | 1 << 7 | 1 << 20;
    // (processor, IbsOpData2, state, remote node, remote socket, streaming store)
    for (part, data2, state, node, socket, stream) in [
        (BARCELONA, 2, Some(Modified), Some(false), None, None),
        (BARCELONA, 2 | 1 << 5 | 1 << 4, Some(Owned), Some(true), None, None),
        (BARCELONA, 1, None, Some(false), None, None),
        (ZEN2, 2 | 1 << 5, Some(Owned), Some(false), None, None),
        (ZEN2, 3 | 1 << 5, None, Some(false), None, None),
        (ZEN3, 2 | 1 << 5 | 1 << 4, None, Some(true), None, None),
        (ZEN3, 2, None, Some(false), None, None),
        (ZEN2, 4 | 1 << 5, None, Some(false), None, None),
        (ZEN4, 1 | 1 << 5, Some(Owned), Some(false), None, None),
        (ZEN4, 5, Some(Modified), Some(false), None, None),
        (ZEN5, 3 | 1 << 9, None, Some(false), Some(true), Some(false)),
        (ZEN5, 3 | 1 << 8, None, Some(false), Some(false), Some(true)),
        (ZEN5, 1 << 4 | 1 << 5 | 1 << 9, None, None, None, Some(false)),
    ] {
        let sample = memory(part, data2, bits);
        let access = sample.access().unwrap();
        let read =
            (access.cache_state(), access.remote_node(), access.remote_socket(), access.streaming_store());
        assert_eq!(read, (state, node, socket, stream), "{part:?} {data2:#x}");
    }
}

#[test]
fn zen_3_does_not_report_the_state_of_a_cache_line() {
    // (family, models, validity of CacheHitSt)
    for (family, models, is_valid) in [
        (0x17, 0x00..=0xff, true),
        (0x19, 0x00..=0x0f, false),
        (0x19, 0x10..=0x1f, true),
        (0x19, 0x20..=0x5f, false),
        (0x19, 0x60..=0xff, true),
        (0x1a, 0x00..=0xff, true),
    ] {
        for model in models {
            let part = Part { family, model, caps: Caps(0x3ff) };
            let sample = memory(part, 2, 1 | 1 << 7 | 1 << 20);
            let access = sample.access().unwrap();
            assert_eq!(access.source(), Some(DataSource::NodeCache));
            assert_eq!(access.cache_state().is_some(), is_valid, "{family:#x} {model:#x}");
        }
    }
}

#[test]
fn errata_belong_to_their_families_and_models() {
    // Each erratum, and the ranges of models that have it: family, first model, last model.
    type Row = (IbsErrata, &'static [(u8, u8, u8)]);
    let rows: [Row; 11] = [
        (IbsErrata::LATE_OP_INTERRUPT, &[(0x10, 0, 0xff)]),
        (IbsErrata::INACCURATE_MAB_AND_TARGET, &[(0x15, 0, 0x0f)]),
        (IbsErrata::STICKY_DATA3, &[(0x15, 0, 0x1f)]),
        (IbsErrata::FETCH_COUNT_QUIRK, &[(0x15, 0x10, 0x1f)]),
        (IbsErrata::FETCH_COUNT_RESET, &[(0x16, 0, 0xff), (0x17, 0, 0xff), (0x18, 0, 0xff)]),
        (IbsErrata::LOCKED, &[(0x17, 0, 0x1f)]),
        (IbsErrata::FETCH_ADDRESS_ZERO, &[(0x19, 0, 0x0f)]),
        (IbsErrata::IC_MISS_INVALID, &[(0x19, 0, 0x0f)]),
        (IbsErrata::DATA2_INVALID, &[(0x19, 0, 0x0f)]),
        (IbsErrata::L1_TLB_PAGE_SIZES, &[(0x19, 0, 0x0f)]),
        (IbsErrata::LATENCY_NEEDS_L3_MISS, &[(0x1a, 0, 0x2f), (0x1a, 0x40, 0x4f), (0x1a, 0x60, 0x7f)]),
    ];
    for (erratum, parts) in rows {
        for family in 0..=u8::MAX {
            for model in 0..=u8::MAX {
                let expected =
                    parts.iter().any(|&(f, first, last)| f == family && (first..=last).contains(&model));
                let has = IbsErrata::of(family, model).has(erratum);
                assert_eq!(has, expected, "{erratum:?} {family:#x} {model:#x}");
            }
        }
    }
}

#[test]
fn capabilities_that_say_nothing_are_those_of_the_first_units() {
    assert_eq!(Caps::from_eax(0x3ff), Caps(0x3ff));
    assert_eq!(Caps::from_eax(0x3fe), Caps(0x7));
    assert_eq!(Caps::from_eax(0), Caps(0x7));
    for (caps, family) in [(0x7, 0x10), (0xff, 0x15), (0x3ff, 0x17), (0xbff, 0x19), (0x8_1bff, 0x1a)] {
        assert_eq!(Part::by_caps(Caps(caps)).family, family);
    }
}
