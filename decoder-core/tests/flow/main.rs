//! The instruction flow: scenarios, libipt's vectors, traces of real processors, and damaged ones.

#[path = "../common/mod.rs"]
mod common;
mod coverage;
mod endless;
mod real;
mod robustness;
mod scenarios;
mod vectors;

#[allow(dead_code, unreachable_pub, reason = "a module of another crate, which tests share")]
#[path = "../../../libipt/engine/src/code.rs"]
mod code;
#[allow(unreachable_pub, reason = "likewise")]
#[path = "../../../libipt/engine/src/event_text.rs"]
mod event_text;
#[allow(dead_code, unreachable_pub, reason = "likewise")]
#[path = "../../../libipt/engine/src/packets.rs"]
mod packets;

use code::Code;

#[allow(dead_code, unreachable_pub, reason = "a module of another crate, of which this needs two functions")]
#[path = "../../../lab/harness/src/libipt/mod.rs"]
mod libipt;
