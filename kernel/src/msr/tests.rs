//! The masks, compared with tables copied from the manual a second time.

use super::*;

/// (field, lowest bit, highest bit), from "Table IA32_RTIT_CTL MSR".
#[test]
fn rtit_ctl_has_the_manuals_bits() {
    let table = [
        (RtitCtl::TRACE_EN, 0, 0),
        (RtitCtl::CYC_EN, 1, 1),
        (RtitCtl::OS, 2, 2),
        (RtitCtl::USER, 3, 3),
        (RtitCtl::PWR_EVT_EN, 4, 4),
        (RtitCtl::FUP_ON_PTW, 5, 5),
        (RtitCtl::FABRIC_EN, 6, 6),
        (RtitCtl::CR3_FILTER, 7, 7),
        (RtitCtl::TOPA, 8, 8),
        (RtitCtl::MTC_EN, 9, 9),
        (RtitCtl::TSC_EN, 10, 10),
        (RtitCtl::DIS_RETC, 11, 11),
        (RtitCtl::PTW_EN, 12, 12),
        (RtitCtl::BRANCH_EN, 13, 13),
        (RtitCtl::MTC_FREQ, 14, 17),
        (RtitCtl::CYC_THRESH, 19, 22),
        (RtitCtl::PSB_FREQ, 24, 27),
        (RtitCtl::EVENT_EN, 31, 31),
        (RtitCtl::ADDR0_CFG, 32, 35),
        (RtitCtl::ADDR1_CFG, 36, 39),
        (RtitCtl::ADDR2_CFG, 40, 43),
        (RtitCtl::ADDR3_CFG, 44, 47),
        (RtitCtl::DIS_TNT, 55, 55),
        (RtitCtl::INJECT_PSB_PMI_ON_ENABLE, 56, 56),
    ];
    let mut all = 0;
    for (field, low, high) in table {
        assert_eq!(field.bits(), bits(low, high), "bits {high}:{low}");
        all |= field.bits();
    }
    assert_eq!(RtitCtl::all().bits(), all);
}

#[test]
fn rtit_ctl_fields_hold_their_encoding_and_nothing_else() {
    for n in 0..16 {
        let n64 = u64::from(n);
        assert_eq!(RtitCtl::all().with_mtc_freq(n).bits() >> 14 & 0xf, n64);
        assert_eq!(RtitCtl::all().with_cyc_thresh(n).bits() >> 19 & 0xf, n64);
        assert_eq!(RtitCtl::all().with_psb_freq(n).bits() >> 24 & 0xf, n64);
        assert_eq!(RtitCtl::empty().with_mtc_freq(n).bits(), n64 << 14);
        assert_eq!(RtitCtl::empty().with_cyc_thresh(n).bits(), n64 << 19);
        assert_eq!(RtitCtl::empty().with_psb_freq(n).bits(), n64 << 24);
    }
    for (n, shift) in [32, 36, 40, 44].into_iter().enumerate() {
        assert_eq!(RtitCtl::all().with_addr_cfg(n, AddrCfg::Filter).bits() >> shift & 0xf, 1);
        assert_eq!(RtitCtl::empty().with_addr_cfg(n, AddrCfg::Filter).bits(), 1 << shift);
        assert_eq!(RtitCtl::empty().with_addr_cfg(n, AddrCfg::TraceStop).bits(), 2 << shift);
    }
}

#[test]
fn rtit_status_has_the_manuals_bits() {
    let table = [
        (RtitStatus::FILTER_EN, 0, 0),
        (RtitStatus::CONTEXT_EN, 1, 1),
        (RtitStatus::TRIGGER_EN, 2, 2),
        (RtitStatus::ERROR, 4, 4),
        (RtitStatus::STOPPED, 5, 5),
        (RtitStatus::PEND_PSB, 6, 6),
        (RtitStatus::PEND_TOPA_PMI, 7, 7),
        (RtitStatus::PACKET_BYTE_CNT, 32, 48),
    ];
    let mut all = 0;
    for (field, low, high) in table {
        assert_eq!(field.bits(), bits(low, high), "bits {high}:{low}");
        all |= field.bits();
    }
    assert_eq!(RtitStatus::all().bits(), all);
}

#[test]
fn perf_global_status_has_the_manuals_bits() {
    let table = [
        (GlobalStatus::OVF_PMC, 0, 31),
        (GlobalStatus::OVF_FIXED_CTR, 32, 47),
        (GlobalStatus::OVF_PERF_METRICS, 48, 48),
        (GlobalStatus::ARCH_PEBS_THRESHOLD, 54, 54),
        (GlobalStatus::TRACE_TOPA_PMI, 55, 55),
        (GlobalStatus::LBR_FRZ, 58, 58),
        (GlobalStatus::CTR_FRZ, 59, 59),
        (GlobalStatus::ASCI, 60, 60),
        (GlobalStatus::OVF_UNCORE, 61, 61),
        (GlobalStatus::OVF_BUF, 62, 62),
        (GlobalStatus::COND_CHGD, 63, 63),
    ];
    for (field, low, high) in table {
        assert_eq!(field.bits(), bits(low, high), "bits {high}:{low}");
    }
    assert_eq!(DebugCtlLayout::Ia32.bits(DebugFlags::RECORDERS), bits(0, 0) | bits(6, 7));
    assert_eq!(VmxMisc::all().bits(), bits(14, 14));
    assert_eq!(PerfCapabilities::PEBS_OUTPUT_PT_AVAIL.bits(), bits(16, 16));
    assert_eq!([PebsEnable::PMI_AFTER_EACH_RECORD, PebsEnable::OUTPUT_PT], [bits(60, 60), bits(61, 61)]);
}

#[test]
fn registers_are_at_the_manuals_addresses() {
    let table = [
        (OutputBase::ADDRESS, 0x560),
        (OutputMaskPtrs::ADDRESS, 0x561),
        (RtitCtl::ADDRESS, 0x570),
        (RtitStatus::ADDRESS, 0x571),
        (Cr3Match::ADDRESS, 0x572),
        (addr_a(0).address(), 0x580),
        (addr_b(0).address(), 0x581),
        (addr_a(1).address(), 0x582),
        (addr_b(1).address(), 0x583),
        (addr_a(2).address(), 0x584),
        (addr_b(2).address(), 0x585),
        (addr_a(3).address(), 0x586),
        (addr_b(3).address(), 0x587),
        (GlobalStatus::ADDRESS, 0x38e),
        (GlobalStatusReset::ADDRESS, 0x390),
        (DebugCtl::ADDRESS, 0x1d9),
        (VmxMisc::ADDRESS, 0x485),
        (PerfCapabilities::ADDRESS, 0x345),
        (LbrSelect::ADDRESS, 0x1c8),
        (LbrCtl::ADDRESS, 0x14ce),
        (LbrDepth::ADDRESS, 0x14cf),
        (FixedCtrCtrl::ADDRESS, 0x38d),
        (GlobalCtrl::ADDRESS, 0x38f),
        (PebsEnable::ADDRESS, 0x3f1),
        (PebsDataCfg::ADDRESS, 0x3f2),
        (PebsLdLatThreshold::ADDRESS, 0x3f6),
        (PebsBase::ADDRESS, 0x3f4),
        (PebsIndex::ADDRESS, 0x3f5),
        (Ia32PerfEvtSel::at(0).address(), 0x186),
        (Ia32PerfEvtSel::at(7).address(), 0x18d),
        (pmc(7).address(), 0xc8),
        (full_width_pmc(7).address(), 0x4c8),
        (fixed_counter(2).address(), 0x30b),
        (CounterAddresses::ByKind.value(Counter::General(7)).address(), 0xc8),
        (CounterAddresses::ByKind.value(Counter::Fixed(2)).address(), 0x30b),
        (CounterAddresses::ByKind.select(7).address(), 0x18d),
        // Version 6: IA32_PMC_GP0_CTR at 1900H, IA32_PMC_FX0_CTR at 1980H, four addresses for each counter.
        (CounterAddresses::ByCounter.value(Counter::General(0)).address(), 0x1900),
        (CounterAddresses::ByCounter.value(Counter::General(31)).address(), 0x197c),
        (CounterAddresses::ByCounter.value(Counter::Fixed(3)).address(), 0x198c),
        (CounterAddresses::ByCounter.select(0).address(), 0x1901),
        (CounterAddresses::ByCounter.select(9).address(), 0x1925),
        (reload_causes(Counter::General(0)).address(), 0x1902),
        (reload_causes(Counter::Fixed(1)).address(), 0x1986),
        (reload_value(Counter::General(2)).address(), 0x190b),
        (reload_value(Counter::Fixed(0)).address(), 0x1983),
        (reload_pmc(0).address(), 0x14c1),
        (reload_pmc(7).address(), 0x14c8),
        (reload_fixed_counter(0).address(), 0x1309),
        (reload_fixed_counter(3).address(), 0x130c),
    ];
    for (is, should) in table {
        assert_eq!(is, should);
    }
}

#[test]
fn registers_are_written_as_they_were_read() {
    fn both_ways<R: Register>(bits: u64) {
        assert_eq!(R::from_bits(bits).to_bits(), bits, "MSR {:#x}", R::ADDRESS);
    }
    // Bits that have no name here may belong to another owner, too.
    for bits in [0, 0x0123_4567_89ab_cdef, !0] {
        both_ways::<OutputBase>(bits);
        both_ways::<OutputMaskPtrs>(bits);
        both_ways::<RtitCtl>(bits);
        both_ways::<RtitStatus>(bits);
        both_ways::<Cr3Match>(bits);
        both_ways::<GlobalStatus>(bits);
        both_ways::<GlobalStatusReset>(bits);
        both_ways::<DebugCtl>(bits);
        both_ways::<VmxMisc>(bits);
        both_ways::<PerfCapabilities>(bits);
        both_ways::<LbrSelect>(bits);
        both_ways::<LbrCtl>(bits);
        both_ways::<LbrDepth>(bits);
        both_ways::<FixedCtrCtrl>(bits);
        both_ways::<GlobalCtrl>(bits);
        both_ways::<PebsEnable>(bits);
        both_ways::<PebsDataCfg>(bits);
        both_ways::<PebsBase>(bits);
        both_ways::<PebsIndex>(bits);
        both_ways::<ApicBase>(bits);
        both_ways::<DsAreaBase>(bits);
        both_ways::<MiscEnable>(bits);
        both_ways::<amd::DbgExtnCfg>(bits);
        both_ways::<amd::Efer>(bits);
        both_ways::<amd::PerfCntrGlobalCtl>(bits);
        both_ways::<amd::PerfCntrGlobalStatus>(bits);
        both_ways::<amd::PerfCntrGlobalStatusClr>(bits);
        both_ways::<amd::IbsFetchCtl2>(bits);
        both_ways::<amd::IbsOpCtl2>(bits);
        both_ways::<amd::IbsFetchCtl>(bits);
        both_ways::<amd::IbsOpCtl>(bits);
    }
}

#[test]
fn the_counters_registers_have_the_manuals_bits() {
    let table = [
        (Ia32PerfEvtSel::EVENT, 0, 7),
        (Ia32PerfEvtSel::UMASK, 8, 15),
        (Ia32PerfEvtSel::USR, 16, 16),
        (Ia32PerfEvtSel::OS, 17, 17),
        (Ia32PerfEvtSel::E, 18, 18),
        (Ia32PerfEvtSel::INT, 20, 20),
        (Ia32PerfEvtSel::ANY, 21, 21),
        (Ia32PerfEvtSel::EN, 22, 22),
        (Ia32PerfEvtSel::INV, 23, 23),
        (Ia32PerfEvtSel::CMASK, 24, 31),
        (Ia32PerfEvtSel::ADAPTIVE_RECORD, 34, 34),
        (Ia32PerfEvtSel::EN_LBR_LOG, 35, 35),
        (Ia32PerfEvtSel::EQ, 36, 36),
        (Ia32PerfEvtSel::RDPMC_USR_DISABLE, 37, 37),
        (Ia32PerfEvtSel::UMASK2, 40, 47),
    ];
    for (field, low, high) in table {
        assert_eq!(field.bits(), bits(low, high), "bits {high}:{low}");
    }
    let table = [
        (PerfCapabilities::LBR_FMT, 0, 5),
        (PerfCapabilities::PEBS_TRAP, 6, 6),
        (PerfCapabilities::PEBS_ARCH_REG, 7, 7),
        (PerfCapabilities::PEBS_REC_FMT, 8, 11),
        (PerfCapabilities::SMM_FREEZE, 12, 12),
        (PerfCapabilities::FW_WRITE, 13, 13),
        (PerfCapabilities::PEBS_BASELINE, 14, 14),
    ];
    for (field, low, high) in table {
        assert_eq!(field.bits(), bits(low, high), "bits {high}:{low}");
    }
    let table = [
        (PebsDataCfg::MEMORY, 0, 0),
        (PebsDataCfg::GPRS, 1, 1),
        (PebsDataCfg::XMMS, 2, 2),
        (PebsDataCfg::LBRS, 3, 3),
        (PebsDataCfg::CNTR, 4, 4),
        (PebsDataCfg::METRICS, 5, 5),
        (PebsDataCfg::LBR_ENTRIES, 24, 31),
    ];
    for (field, low, high) in table {
        assert_eq!(field.bits(), bits(low, high), "bits {high}:{low}");
    }
    let capabilities = PerfCapabilities::from_bits_retain(0x33c5);
    assert_eq!((capabilities.lbr_format(), capabilities.pebs_format()), (5, 3));
    assert_eq!(Ia32PerfEvtSel::event(0xc4, 0x20).bits(), 0x20c4);
    // Counter 1: OS, user, both; adaptive.
    assert_eq!(FixedCtrCtrl::counting(1, true, false, false), 0x10);
    assert_eq!(FixedCtrCtrl::counting(1, false, true, false), 0x20);
    assert_eq!(FixedCtrCtrl::counting(1, true, true, true), 0x10_0000_0030);
    assert_eq!(FixedCtrCtrl::mask(1), 0x30_0000_00f0);
    assert_eq!([0, 1, 2, 3].map(FixedCtrCtrl::rdpmc_usr_disable), [33, 37, 41, 45].map(|bit| 1 << bit));
}

#[test]
fn architectural_pebs_has_the_headers_bits() {
    let table = [
        (ArchPebsGroups::COUNTERS, 36, 36),
        (ArchPebsGroups::FIXED_COUNTERS, 37, 37),
        (ArchPebsGroups::METRICS, 38, 38),
        (ArchPebsGroups::BRANCHES_8, 40, 40),
        (ArchPebsGroups::BRANCHES_16, 41, 41),
        (ArchPebsGroups::BRANCHES, 40, 41),
        (ArchPebsGroups::XMM, 49, 49),
        (ArchPebsGroups::YMM_HIGH, 50, 50),
        (ArchPebsGroups::OPMASK, 53, 53),
        (ArchPebsGroups::ZMM_HIGH, 54, 54),
        (ArchPebsGroups::ZMM_16_31, 55, 55),
        (ArchPebsGroups::REGISTERS, 61, 61),
        (ArchPebsGroups::AUXILIARY, 62, 62),
    ];
    for (field, low, high) in table {
        assert_eq!(field.bits(), bits(low, high), "bits {high}:{low}");
    }
    assert_eq!([ArchPebsGroups::ALLOW_IN_RECORD, ArchPebsGroups::ENABLE], [bits(35, 35), bits(63, 63)]);
    assert_eq!([PebsIndex::FULL, PebsIndex::EN], [bits(31, 31), bits(32, 32)]);
    assert_eq!(PebsIndex::SETTINGS, bits(32, 32) | bits(36, 58));
    assert_eq!(PebsIndex::new(0x7f_ffff, 0).0, bits(4, 26) | bits(32, 32));
    assert_eq!(PebsIndex::new(0, 0x7f_ffff).0, PebsIndex::SETTINGS);
    assert_eq!(PebsIndex::new(5, 7).bytes(), 80);
}

#[test]
fn output_mask_ptrs_places_mask_entry_and_offset() {
    // (register, bits 31:0, bits 63:32)
    let table = [
        (OutputMaskPtrs::single_range(0xfff, 0), 0xfff, 0),
        (OutputMaskPtrs::single_range(0x7f, 0x13), 0x7f, 0x13),
        (OutputMaskPtrs::topa(0, 0), 0x7f, 0),
        (OutputMaskPtrs::topa(3, 0x40), 0x1ff, 0x40),
        (OutputMaskPtrs::topa(511, 0x7ff_ffff), 0xffff, 0x7ff_ffff),
        (OutputMaskPtrs::topa(0x1ff_ffff, 1), 0xffff_ffff, 1),
    ];
    for (register, low, high) in table {
        assert_eq!(register.to_bits(), low | high << 32);
        assert_eq!(u64::from(register.offset()), high);
    }
    assert_eq!(OutputMaskPtrs::topa(511, 9).entry(), 511);
}

#[test]
fn a_fault_names_the_access() {
    let read = GeneralProtection { address: 0x570, written: None };
    let write = GeneralProtection { address: 0x570, written: Some(0x2005) };
    assert_eq!(read.to_string(), "RDMSR 0x570 raised #GP(0)");
    assert_eq!(write.to_string(), "WRMSR 0x570 with 0x2005 raised #GP(0)");
}

fn bits(low: u32, high: u32) -> u64 {
    (low..=high).map(|bit| 1u64 << bit).sum()
}
