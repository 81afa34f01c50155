//! The values of the control registers of Instruction Based Sampling (IBS).

/// The MSR IbsFetchCtl.
pub(super) const FETCH_MSR: u32 = 0xc001_1030;
/// The MSR IbsOpCtl.
pub(super) const OP_MSR: u32 = 0xc001_1033;

/// Returns the value of IbsFetchCtl that samples a fetch after each `max_count` completed fetches: bits 19:4 of the
/// period in bits 15:0, IbsFetchEn in bit 48. If `random`, the low bits of the period are random (IbsRandEn, bit 57).
///
/// Source: APM vol. 2, Debug and Performance Resources, "Instruction-Based Sampling"; BKDG 31116, "IBS Fetch Control
/// Register".
pub(super) fn fetch_control(max_count: u32, random: bool) -> u64 {
    u64::from(max_count >> 4 & 0xffff) | 1 << 48 | u64::from(random) << 57
}

/// Returns the value of IbsOpCtl that samples an op after each `max_count` clocks: bits 19:4 of the period in bits
/// 15:0, IbsOpEn in bit 17. If `ops`, the period is in dispatched ops (IbsOpCntCtl, bit 19).
///
/// Source: as for [`fetch_control`]; BKDG 31116, "IBS Execution Control Register".
pub(super) fn op_control(max_count: u32, ops: bool) -> u64 {
    u64::from(max_count >> 4 & 0xffff) | 1 << 17 | u64::from(ops) << 19
}
