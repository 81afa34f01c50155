//! Bytes to meaning and back: Intel Processor Trace packets, the events they make, and the flow of
//! instructions that they describe.
#![no_std]
#![forbid(unsafe_code)]

pub mod error;
pub mod event;
pub mod flow;
pub mod hash;
pub mod image;
pub mod insn;
pub mod last_ip;
pub mod mode;
pub mod packet;
pub mod ret_stack;
pub mod sync;

pub use error::{Error, ErrorKind};
pub use packet::Packet;
