//! The instruction flow: scenarios, libipt's vectors, traces of real processors, and damaged ones.

#[path = "../common/mod.rs"]
mod common;
mod coverage;
mod endless;
mod event_text;
mod real;
mod robustness;
mod scenarios;
mod vectors;

#[allow(dead_code, unreachable_pub, reason = "a module of another crate, of which this needs two functions")]
#[path = "../../../lab/harness/src/libipt/mod.rs"]
mod libipt;
