//! The units of Intel's processors: Processor Trace, the debug store with branch records and samples, and last branch
//! records.

pub mod bts;
pub mod ds;
pub(crate) mod errata;
pub mod lbr;
pub mod pebs;
pub mod pt;
