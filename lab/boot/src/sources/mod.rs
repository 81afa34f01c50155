//! The sources of recordings: the processor's units that trace, count or sample. Each is one file.

mod addresses;
mod bts;
mod counters;
mod debug_store;
mod frames;
mod ibs;
mod in_place;
mod lbr;
mod linear;
mod pebs;
mod pt;
mod source;
mod toggle;

pub(crate) use frames::KernelFrames;
pub(crate) use in_place::InPlace;
pub(crate) use source::Source;

/// All sources, with their names on the command line. The first one is the default.
pub(crate) const ALL: [(&str, &dyn Source); 6] = [
    ("pt", &pt::ProcessorTrace),
    ("bts", &bts::BranchTraceStore),
    ("pebs", &pebs::PreciseSampling),
    ("lbr", &lbr::LastBranches),
    ("counters", &counters::Counters),
    ("ibs", &ibs::InstructionSampling),
];
