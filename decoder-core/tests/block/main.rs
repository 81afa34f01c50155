//! Blocks hold the instructions of the instruction flow, between the same events, with the same errors: on whole,
//! damaged and cut scenarios, random programs, libipt's vectors and traces of real processors.

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod forget;
mod graph;
mod images;
mod places;
mod programs;
mod real;
mod recover;
mod repeats;
mod scenario;
mod section;
mod vectors;
mod walks;
