//! The guest kernel's table of stubs, the entry points of the handlers of interrupts and exceptions.

use anyhow::Result;

use crate::symbols::Symbols;

/// The symbol of the guest kernel's table of stubs, one for each of the 256 vectors.
pub(crate) const STUBS: &str = "trap_stubs";
/// Size of each stub in bytes.
pub(crate) const STUB: u64 = 16;
const VECTORS: u64 = 256;

/// Returns true if `rip` is the first instruction of a handler's stub in the table at `stubs`.
pub(crate) fn is_begin_of_stub(rip: u64, stubs: u64) -> bool {
    rip.checked_sub(stubs).is_some_and(|at| at < VECTORS * STUB && at.is_multiple_of(STUB))
}

/// Returns the entry point of the NMI handler.
///
/// # Errors
/// If the image has no stubs.
pub(crate) fn nmi_handler(symbols: &Symbols) -> Result<u64> {
    const NMI: u64 = 2;
    Ok(symbols.address(STUBS)? + NMI * STUB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_vector_has_a_stub() {
        for (rip, begins) in [
            (0x1ff0, false),
            (0x2000, true),
            (0x2001, false),
            (0x200f, false),
            (0x2010, true),
            (0x2ff0, true),
            (0x3000, false),
        ] {
            assert_eq!(is_begin_of_stub(rip, 0x2000), begins, "{rip:#x}");
        }
    }
}
