//! Blocks hold the instructions that the instruction flow gives, between the same events, with the same errors: on
//! scenarios whole, damaged and cut, on random programs, on libipt's vectors and on traces of real processors.

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
