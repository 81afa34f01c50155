//! Finds the address to report for an error.

use pugmark_decoder_core::insn::Class;
use pugmark_ipt::{Block, Code};
use std::ffi::c_int;

/// The last instruction, for errors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastInsn {
    /// Its address, or that of an empty block; 0 if there is none yet.
    ip: u64,
    /// The address after it; for a direct branch its target, taken or not.
    next: u64,
}

impl LastInsn {
    /// Returns the last instruction of a block.
    pub(super) fn of(block: &Block) -> Self {
        let Some(last) = block.last() else { return Self { ip: block.ip, next: block.ip } };
        let target = match last.insn.class {
            Class::CondJump | Class::NearJump | Class::NearCall => last.insn.target,
            _ => None,
        };
        Self { ip: last.ip, next: target.unwrap_or(last.insn.next(last.ip)) }
    }

    /// Returns the address of an error: an instruction that does not fit the trace, or what would be next.
    pub(super) fn address(&self, error: c_int) -> u64 {
        if error == Code::BadQuery.status() { self.ip } else { self.next }
    }
}
