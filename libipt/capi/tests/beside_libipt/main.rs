//! Makes the same calls to libipt 2.0.5 and to ours, and to 2.1.2 those that are new in it: every returned value,
//! structure and error must be equal.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each is a call of the library, with what both libraries get"
)]

#[path = "../../../../lab/harness/src/libipt/binding.rs"]
mod binding;
mod configuration;
mod damage;
mod encoder;
mod event_trace;
mod events;
mod flow;
mod functions;
mod known_code;
mod library;
mod packets;
mod queries;
#[allow(dead_code, unreachable_pub, reason = "a module of another crate, of which this needs one release")]
#[path = "../../../../lab/harness/src/libipt/release.rs"]
mod release;
mod rules;
mod sections;
