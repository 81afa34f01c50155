//! Where an error is said to be.

use pugmark_decoder_core::error::{Error, ErrorKind};
use pugmark_decoder_core::insn::Class;

/// The last instruction shown, for errors that are about no other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Last {
    /// The address behind it; for a direct branch its target, taken or not. 0 where there is none.
    next: u64,
}

impl Last {
    /// Behind the instruction at `ip`.
    pub(super) fn after(ip: u64, len: u8, class: Class, bytes: &[u8], target: Option<u64>) -> Self {
        let direct = matches!(class, Class::CondJump | Class::NearJump | Class::NearCall);
        let next = ip.wrapping_add(u64::from(len));
        Self { next: if direct && !bytes.is_empty() { target.unwrap_or(next) } else { next } }
    }

    /// The next block has begun at `ip`, behind an event.
    pub(super) fn begin_at(&mut self, ip: u64) {
        self.next = ip;
    }

    /// The address that was said last.
    pub(super) fn recorded(&self) -> u64 {
        self.next
    }

    /// Says `address` again for what follows from the same error.
    pub(super) fn record(&mut self, address: u64) {
        self.next = address;
    }

    /// The address of an error.
    pub(super) fn address(&self, error: &Error) -> u64 {
        match error.kind {
            ErrorKind::NoMemory { ip }
            | ErrorKind::TruncatedInstruction { ip }
            | ErrorKind::UnknownInstruction { ip }
            | ErrorKind::UnknownMode { ip }
            | ErrorKind::TraceMismatch { ip }
            | ErrorKind::EndlessLoop { ip } => ip,
            _ => self.next,
        }
    }
}

/// Whether the next instruction could not be had.
pub(super) fn is_fetch_error(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::NoMemory { .. }
            | ErrorKind::TruncatedInstruction { .. }
            | ErrorKind::UnknownInstruction { .. }
            | ErrorKind::UnknownMode { .. }
    )
}
