//! Numbers and fields of AMD's MSRs. Source: AMD64 Architecture Programmer's Manual (APM) vol. 2, Debug and Performance
//! Resources, "Performance Monitoring Counters" and "Instruction-Based Sampling"; BIOS and Kernel Developer's Guide for
//! AMD Family 10h Processors, "MSRs - MSRC001_0xxx" and "MSRs - MSRC001_1xxx".

/// MSR numbers.
pub(super) mod msr {
    pub(crate) const DEBUG_CTL: u32 = 0x1d9;
    pub(crate) const LBR_SELECT: u32 = 0xc000_010e;
    pub(crate) const DEBUG_EXTN_CTL: u32 = 0xc000_010f;
    /// The first of the stack's registers: for each branch its source, then its target.
    pub(crate) const LAST_BRANCH_STACK: u32 = 0xc001_0300;
    pub(crate) const PERF_CNT_GLOBAL_STATUS: u32 = 0xc000_0300;
    pub(crate) const PERF_CNT_GLOBAL_CTL: u32 = 0xc000_0301;
    pub(crate) const PERF_CNT_GLOBAL_STATUS_CLR: u32 = 0xc000_0302;
    pub(crate) const PERF_CNT_GLOBAL_STATUS_SET: u32 = 0xc000_0303;
    /// The first of the four legacy event-select registers.
    pub(crate) const PERF_EVT_SEL0: u32 = 0xc001_0000;
    /// The first of the four legacy counters.
    pub(crate) const PERF_CTR0: u32 = 0xc001_0004;
    pub(crate) const NB_CFG: u32 = 0xc001_001f;
    /// The first of the extended registers: for each counter its event select, then its value.
    pub(crate) const PERF_EVT_SEL0_EXT: u32 = 0xc001_0200;
    pub(crate) const IBS_FETCH_CTL: u32 = 0xc001_1030;
    pub(crate) const IBS_FETCH_LIN_AD: u32 = 0xc001_1031;
    pub(crate) const IBS_FETCH_PHYS_AD: u32 = 0xc001_1032;
    pub(crate) const IBS_OP_CTL: u32 = 0xc001_1033;
    pub(crate) const IBS_OP_RIP: u32 = 0xc001_1034;
    pub(crate) const IBS_OP_DATA: u32 = 0xc001_1035;
    pub(crate) const IBS_OP_DATA2: u32 = 0xc001_1036;
    pub(crate) const IBS_OP_DATA3: u32 = 0xc001_1037;
    pub(crate) const IBS_DC_LIN_AD: u32 = 0xc001_1038;
    pub(crate) const IBS_DC_PHYS_AD: u32 = 0xc001_1039;
    pub(crate) const IBS_CTL: u32 = 0xc001_103a;
    pub(crate) const IBS_BR_TARGET: u32 = 0xc001_103b;
    pub(crate) const IBS_FETCH_CTL_EXTD: u32 = 0xc001_103c;
    pub(crate) const IBS_OP_CTL2: u32 = 0xc001_103e;
    pub(crate) const IBS_FETCH_CTL2: u32 = 0xc001_103f;
}

/// DebugCtl.
pub(super) mod debug_ctl {
    /// FLBRI: an overflow freezes the Last Branch Record Stack.
    pub(crate) const FREEZE_LBR: u64 = 1 << 11;
    /// FPMCI: an overflow freezes the counters.
    pub(crate) const FREEZE_PMC: u64 = 1 << 12;
}

/// PerfCntGlobalStatus, without the counters' bits.
pub(super) mod global_status {
    pub(crate) const LBR_FROZEN: u64 = 1 << 58;
    pub(crate) const PMC_FROZEN: u64 = 1 << 59;
}

/// DebugExtnCtl.
pub(super) mod debug_extn {
    /// Enables the Last Branch Record Stack.
    pub(crate) const LBRSE: u64 = 1 << 6;
}

/// LastBranchStackSelect, LastBranchStackFromIp, LastBranchStackToIp.
pub(super) mod lbr {
    pub(crate) const CPL_EQ_0: u64 = 1 << 0;
    pub(crate) const CPL_GT_0: u64 = 1 << 1;
    pub(crate) const JCC: u64 = 1 << 2;
    pub(crate) const CALL_NEAR_REL: u64 = 1 << 3;
    pub(crate) const CALL_NEAR_IND: u64 = 1 << 4;
    pub(crate) const RET_NEAR: u64 = 1 << 5;
    pub(crate) const JMP_NEAR_IND: u64 = 1 << 6;
    pub(crate) const JMP_NEAR_REL: u64 = 1 << 7;
    pub(crate) const FAR_BRANCH: u64 = 1 << 8;
    pub(crate) const SELECT: u64 = 0x1ff;
    /// The address in both registers; the bits between the address and the flags are reserved.
    pub(crate) const ADDRESS: u64 = (1 << 57) - 1;
    pub(crate) const MISPREDICT: u64 = 1 << 63;
    pub(crate) const VALID: u64 = 1 << 63;
    pub(crate) const SPECULATIVE: u64 = 1 << 62;
}

/// DBG_EXTN_CFG, which is the same register on processors with branch sampling, and SAMP_BR_TO.
pub(super) mod sampling {
    pub(crate) const BRSMEN: u64 = 1 << 2;
    /// Reserved bits that must always be set.
    pub(crate) const ONES: u64 = 0b11 << 3;
    /// Branches were recorded.
    pub(crate) const VB: u64 = 1 << 5;
    /// The entry that is written next; it returns to 0 when all entries were written.
    pub(crate) const MSROFF_SHIFT: u32 = 16;
    pub(crate) const MSROFF: u64 = 0xf << MSROFF_SHIFT;
    /// The counter that started the recording.
    pub(crate) const PMC_SHIFT: u32 = 24;
    pub(crate) const PMC: u64 = 7 << PMC_SHIFT;
    pub(crate) const ALL: u64 = BRSMEN | ONES | VB | MSROFF | PMC;
    /// The bits of a target address; the bits above are reserved.
    pub(crate) const TO: u64 = (1 << 61) - 1;
}

/// PerfEvtSel.
pub(super) mod evtsel {
    pub(crate) const USR: u64 = 1 << 16;
    pub(crate) const OS: u64 = 1 << 17;
    pub(crate) const EDGE: u64 = 1 << 18;
    /// Pin control; reserved on later families.
    pub(crate) const PC: u64 = 1 << 19;
    pub(crate) const INT: u64 = 1 << 20;
    pub(crate) const EN: u64 = 1 << 22;
    pub(crate) const INV: u64 = 1 << 23;
    pub(crate) const GUEST_ONLY: u64 = 1 << 40;
    pub(crate) const HOST_ONLY: u64 = 1 << 41;
    /// The bits of every family: event\[7:0\], unit mask, USR, OS, EDGE, INT, EN, INV, CNT_MASK.
    pub(crate) const COMMON: u64 = 0xffff | USR | OS | EDGE | INT | EN | INV | 0xff << 24;
    /// Event\[11:8\].
    pub(crate) const EVENT_HIGH: u64 = 0xf << 32;

    pub(crate) const fn event(value: u64) -> u16 {
        (value & 0xff | (value >> 32 & 0xf) << 8) as u16
    }

    pub(crate) const fn unit_mask(value: u64) -> u8 {
        (value >> 8) as u8
    }

    pub(crate) const fn cnt_mask(value: u64) -> u8 {
        (value >> 24) as u8
    }
}

/// IbsFetchCtl.
pub(super) mod fetch_ctl {
    pub(crate) const MAX_CNT: u64 = 0xffff;
    pub(crate) const CNT_SHIFT: u32 = 16;
    pub(crate) const CNT: u64 = 0xffff << CNT_SHIFT;
    pub(crate) const LAT_SHIFT: u32 = 32;
    pub(crate) const LAT: u64 = 0xffff << LAT_SHIFT;
    pub(crate) const EN: u64 = 1 << 48;
    pub(crate) const VAL: u64 = 1 << 49;
    pub(crate) const COMP: u64 = 1 << 50;
    pub(crate) const IC_MISS: u64 = 1 << 51;
    pub(crate) const PHY_ADDR_VALID: u64 = 1 << 52;
    pub(crate) const L1_TLB_PG_SZ_SHIFT: u32 = 53;
    pub(crate) const L1_TLB_PG_SZ: u64 = 0b11 << L1_TLB_PG_SZ_SHIFT;
    pub(crate) const L1_TLB_MISS: u64 = 1 << 55;
    pub(crate) const L2_TLB_MISS: u64 = 1 << 56;
    pub(crate) const RAND_EN: u64 = 1 << 57;
    pub(crate) const L2_MISS: u64 = 1 << 58;
    pub(crate) const L3_MISS_ONLY: u64 = 1 << 59;
    pub(crate) const OC_MISS: u64 = 1 << 60;
    pub(crate) const L3_MISS: u64 = 1 << 61;
    /// The bits that a sample sets, as opposed to those that software sets.
    pub(crate) const RESULT: u64 = LAT
        | VAL
        | COMP
        | IC_MISS
        | PHY_ADDR_VALID
        | L1_TLB_PG_SZ
        | L1_TLB_MISS
        | L2_TLB_MISS
        | L2_MISS
        | OC_MISS
        | L3_MISS;
}

/// IbsOpCtl.
pub(super) mod op_ctl {
    pub(crate) const MAX_CNT_LOW: u64 = 0xffff;
    pub(crate) const L3_MISS_ONLY: u64 = 1 << 16;
    pub(crate) const EN: u64 = 1 << 17;
    pub(crate) const VAL: u64 = 1 << 18;
    pub(crate) const CNT_CTL: u64 = 1 << 19;
    /// MaxCnt\[26:20\].
    pub(crate) const MAX_CNT_EXT: u64 = 0x7f << 20;
    pub(crate) const CUR_CNT_SHIFT: u32 = 32;
    pub(crate) const LD_LAT_THRESHOLD: u64 = 0xf << 59;
    pub(crate) const LD_LAT_EN: u64 = 1 << 63;

    /// Returns MaxCnt\[26:4\].
    pub(crate) const fn max_cnt(value: u64) -> u64 {
        value & MAX_CNT_LOW | (value & MAX_CNT_EXT) >> 20 << 16
    }
}

/// IbsFetchCtl2.
pub(super) mod fetch_ctl2 {
    pub(crate) const DIS: u64 = 1 << 0;
    pub(crate) const LAT_FILTER_SHIFT: u32 = 1;
    pub(crate) const LAT_FILTER: u64 = 0xf << LAT_FILTER_SHIFT;
    pub(crate) const EXCLUDE_RIP_63_1: u64 = 1 << 5;
    pub(crate) const EXCLUDE_RIP_63_0: u64 = 1 << 6;
}

/// IbsOpCtl2.
pub(super) mod op_ctl2 {
    pub(crate) const DIS: u64 = 1 << 0;
    pub(crate) const EXCLUDE_RIP_63_0: u64 = 1 << 1;
    pub(crate) const EXCLUDE_RIP_63_1: u64 = 1 << 2;
    /// Only streaming stores are sampled.
    pub(crate) const STREAMING_STORES_ONLY: u64 = 1 << 3;
}

/// IbsOpData.
pub(super) mod op_data {
    pub(crate) const TAG_TO_RET_SHIFT: u32 = 16;
    pub(crate) const MISP_RETURN: u64 = 1 << 33;
    pub(crate) const RETURN: u64 = 1 << 34;
    pub(crate) const BRN_TAKEN: u64 = 1 << 35;
    pub(crate) const BRN_MISP: u64 = 1 << 36;
    pub(crate) const BRN_RET: u64 = 1 << 37;
    pub(crate) const RIP_INVALID: u64 = 1 << 38;
    pub(crate) const BRN_FUSE: u64 = 1 << 39;
    pub(crate) const MICROCODE: u64 = 1 << 40;
}

/// IbsOpData2.
pub(super) mod op_data2 {
    /// DataSrc\[2:0\].
    pub(crate) const SOURCE_LOW: u64 = 0b111;
    pub(crate) const RMT_NODE: u64 = 1 << 4;
    /// CacheHitSt: the line is in the owned state.
    pub(crate) const CACHE_HIT_ST: u64 = 1 << 5;
    /// DataSrc\[4:3\].
    pub(crate) const SOURCE_HIGH: u64 = 0b11 << 6;
    /// The op is a streaming store.
    pub(crate) const STREAMING_STORE: u64 = 1 << 8;
    pub(crate) const REMOTE_SOCKET: u64 = 1 << 9;
}

/// IbsOpData3.
pub(super) mod op_data3 {
    pub(crate) const LD_OP: u64 = 1 << 0;
    pub(crate) const ST_OP: u64 = 1 << 1;
    pub(crate) const L1_TLB_MISS: u64 = 1 << 2;
    pub(crate) const L2_TLB_MISS: u64 = 1 << 3;
    pub(crate) const L1_TLB_HIT_2M: u64 = 1 << 4;
    pub(crate) const L1_TLB_HIT_1G: u64 = 1 << 5;
    /// With [`ibs_cap::OP_DTLB_PAGE_SIZE`](super::ibs_cap::OP_DTLB_PAGE_SIZE): 0 4 KiB, 1 2 MiB, 2 1 GiB.
    pub(crate) const PAGE_SIZE_SHIFT: u32 = 4;
    pub(crate) const L2_TLB_HIT_2M: u64 = 1 << 6;
    pub(crate) const DC_MISS: u64 = 1 << 7;
    pub(crate) const MIS_ACC: u64 = 1 << 8;
    pub(crate) const UC_MEM_ACC: u64 = 1 << 14;
    pub(crate) const LOCKED: u64 = 1 << 15;
    pub(crate) const LIN_ADDR_VALID: u64 = 1 << 17;
    pub(crate) const PHY_ADDR_VALID: u64 = 1 << 18;
    pub(crate) const L2_TLB_HIT_1G: u64 = 1 << 19;
    pub(crate) const L2_MISS: u64 = 1 << 20;
    pub(crate) const SW_PF: u64 = 1 << 21;
    pub(crate) const WIDTH_SHIFT: u32 = 22;
    pub(crate) const DC_MISS_LAT_SHIFT: u32 = 32;
    pub(crate) const TLB_REFILL_LAT_SHIFT: u32 = 48;
}

/// CPUID Fn8000_001B EAX.
pub(super) mod ibs_cap {
    pub(crate) const FFV: u32 = 1 << 0;
    pub(crate) const FETCH_SAM: u32 = 1 << 1;
    pub(crate) const OP_SAM: u32 = 1 << 2;
    pub(crate) const RD_WR_OP_CNT: u32 = 1 << 3;
    pub(crate) const OP_CNT: u32 = 1 << 4;
    pub(crate) const BRN_TRGT: u32 = 1 << 5;
    pub(crate) const OP_CNT_EXT: u32 = 1 << 6;
    pub(crate) const RIP_INVALID_CHK: u32 = 1 << 7;
    pub(crate) const OP_BRN_FUSE: u32 = 1 << 8;
    pub(crate) const FETCH_CTL_EXTD: u32 = 1 << 9;
    pub(crate) const L3_MISS_FILTERING: u32 = 1 << 11;
    pub(crate) const LD_LAT_FILTERING: u32 = 1 << 12;
    /// The second control registers, with which either unit can be disabled.
    pub(crate) const DIS: u32 = 1 << 13;
    pub(crate) const FETCH_LAT_FILTERING: u32 = 1 << 14;
    pub(crate) const BIT_63_FILTERING: u32 = 1 << 15;
    /// The filter of streaming stores, and bits of IbsOpData2 for them and for data of another socket.
    pub(crate) const STREAMING_STORES: u32 = 1 << 16;
    /// IbsOpData3 has a field for the size of the data's page instead of a bit for each level and size.
    pub(crate) const OP_DTLB_PAGE_SIZE: u32 = 1 << 19;
}
