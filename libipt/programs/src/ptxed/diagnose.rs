//! Finds the address to report for an error.

use pugmark_decoder_core::insn::Class;
use pugmark_decoder_core::{Error, ErrorKind};

/// The continuation of the last instruction shown, for errors that are not about an instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastInsn {
    /// The address after the instruction; for a direct branch its target, taken or not. 0 if there is no instruction
    /// yet.
    next: u64,
}

impl LastInsn {
    /// Starts after the instruction at `ip`.
    pub(super) fn after(ip: u64, len: u8, class: Class, bytes: &[u8], target: Option<u64>) -> Self {
        let direct = matches!(class, Class::CondJump | Class::NearJump | Class::NearCall);
        let next = ip.wrapping_add(u64::from(len));
        Self { next: if direct && !bytes.is_empty() { target.unwrap_or(next) } else { next } }
    }

    /// Moves to `ip`, where the next block begins after an event.
    pub(super) fn begin_at(&mut self, ip: u64) {
        self.next = ip;
    }

    /// Returns the address that was reported last.
    pub(super) fn recorded(&self) -> u64 {
        self.next
    }

    /// Sets the address to report again for further errors with the same cause.
    pub(super) fn record(&mut self, address: u64) {
        self.next = address;
    }

    /// Returns the address of an error.
    pub(super) fn address(&self, error: &Error) -> u64 {
        match error.kind {
            ErrorKind::NoMemory { ip }
            | ErrorKind::TruncatedInstruction { ip }
            | ErrorKind::UnknownInstruction { ip }
            | ErrorKind::UnknownMode { ip }
            | ErrorKind::TraceMismatch { ip }
            | ErrorKind::EndlessLoop { ip }
            | ErrorKind::EndlessCode { ip, .. } => ip,
            _ => self.next,
        }
    }
}

/// Returns true if the error is that the next instruction could not be read.
pub(super) fn is_fetch_error(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::NoMemory { .. }
            | ErrorKind::TruncatedInstruction { .. }
            | ErrorKind::UnknownInstruction { .. }
            | ErrorKind::UnknownMode { .. }
    )
}
