//! Blocks hold the instructions of the instruction flow, between the same events, with the same errors: on whole,
//! damaged and cut scenarios, random programs, libipt's vectors and traces of real processors.

mod block_cache;
#[path = "../common/mod.rs"]
mod common;
mod compare;
mod forget;
mod images;
mod places;
mod programs;
mod real;
mod recover;
mod scenario;
mod section;
mod sequences;
mod vectors;
mod walks;
