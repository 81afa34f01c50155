//! Blocks hold the instructions that the instruction flow gives, between the same events, with the same errors: on
//! scenarios whole, damaged and cut, on random programs, on libipt's vectors and on traces of real processors.

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod programs;
mod real;
mod scenario;
mod vectors;

/// How random programs are traced: modules of the tests of `virt/program`.
#[allow(dead_code, reason = "a module of another test")]
#[path = "../../../virt/program/tests/trace/config.rs"]
mod config;
#[allow(dead_code, reason = "a module of another test")]
#[path = "../../../virt/program/tests/trace/machine.rs"]
mod machine;
