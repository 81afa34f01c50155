//! A recorded branch as a value.

use super::Recorder;
use crate::intel::lbr::Branch;

/// A branch, an interrupt or an exception.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Source, target, and the misprediction flag.
    pub branch: Branch,
    /// The evidence that the processor executed the branch.
    pub speculation: Speculation,
}

/// The time of recording (before or at retirement), and the fate of the branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// Unknown: branch sampling records branches that retire.
    #[default]
    Unknown,
    /// The branch was recorded when it retired.
    Retired,
    /// The branch was recorded before it retired.
    Speculated,
    /// The branch was recorded, but did not retire.
    WrongPath,
}

/// The addresses of LBR version 2 have 57 bits; the bits above are reserved.
const LBR_ADDRESS: u32 = 57;
/// A reserved bit of a target that reveals erratum 1452 (family 19h models 10h to 1Fh): this bit is set in an entry
/// that was recorded without a branch, although the entry's valid and speculative bits are set. No processor sets it in
/// the entry of a branch.
///
/// Source: Revision Guide for AMD Family 19h Models 10h-1Fh Processors, erratum 1452, as Linux cites it
/// (arch/x86/events/amd/lbr.c, `amd_pmu_lbr_read`).
const NO_BRANCH: u32 = 61;

impl Recorded {
    /// Decodes a branch from its registers; `None` for an entry that was never written or is no branch's.
    pub(super) fn of(recorder: Recorder, from: u64, to: u64) -> Option<Self> {
        let flag = |bits: u64, bit: u32| bits >> bit & 1 == 1;
        match recorder {
            Recorder::LbrV2 { .. } if flag(to, NO_BRANCH) => None,
            Recorder::LbrV2 { .. } => {
                let speculation = match (flag(to, 63), flag(to, 62)) {
                    (false, false) => return None,
                    (true, false) => Speculation::Retired,
                    (true, true) => Speculation::Speculated,
                    (false, true) => Speculation::WrongPath,
                };
                let (from, to, mispredicted) =
                    (extend(from, LBR_ADDRESS), extend(to, LBR_ADDRESS), flag(from, 63));
                let branch = Branch { from, to, mispredicted: Some(mispredicted), ..Branch::default() };
                Some(Self { branch, speculation })
            }
            Recorder::Sampling { linear_address_bits } => {
                let to = extend(to, linear_address_bits.into());
                Some(Self {
                    branch: Branch { from, to, ..Branch::default() },
                    speculation: Speculation::Unknown,
                })
            }
        }
    }
}

/// Makes an address of this many bits canonical.
const fn extend(address: u64, bits: u32) -> u64 {
    let shift = 64 - bits;
    ((address << shift) as i64 >> shift) as u64
}
