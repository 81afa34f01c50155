//! The same calls to the installed libipt and to ours: every returned value, structure and error must be equal.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each is a call of the library, with what both libraries get"
)]

mod configuration;
mod damage;
mod encoder;
mod flow;
mod functions;
mod known_code;
mod library;
mod packets;
mod queries;
mod rules;
mod sections;
