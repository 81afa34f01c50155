//! Edges between blocks, found in the output of libipt's instruction flow decoder: a second opinion on those that our
//! decoder counts. The definition is that of its documentation, module `block_cache::edges`.

use std::ffi::c_int;

// `enum pt_event_type`.
const ENABLED: c_int = 0;
const ASYNC_BRANCH: c_int = 3;
const OVERFLOW: c_int = 6;

// `enum pt_insn_class`.
const CALL: c_int = 2;
const RETURN: c_int = 3;
const JUMP: c_int = 4;
const COND_JUMP: c_int = 5;
const FAR_JUMP: c_int = 8;

/// Finds edges. At first, the decoder has just synchronised.
#[derive(Debug, Default)]
pub(crate) struct EdgeFinder {
    /// Half the place of the block; 0 if unknown.
    before: u16,
    /// The section of the block, if the next instruction may belong to it.
    section: Option<c_int>,
}

impl EdgeFinder {
    /// Takes an event: its type, and whether it only updates the status, as those of a PSB+ do.
    pub(crate) const fn event(&mut self, kind: c_int, is_status_update: bool) {
        if is_status_update {
            return;
        }
        self.section = None;
        if matches!(kind, ENABLED | ASYNC_BRANCH | OVERFLOW) {
            self.before = 0;
        }
    }

    /// Takes an instruction of a section. Returns the edge to the block that begins with it, if one does.
    #[inline]
    pub(crate) fn insn(&mut self, ip: u64, section: c_int, class: c_int, bytes: &[u8]) -> Option<u16> {
        let edge = (self.section != Some(section)).then(|| {
            let place = place(ip);
            let edge = place ^ self.before;
            self.before = place / 2;
            edge
        });
        self.section = (!is_decided_by_trace(class, bytes)).then_some(section);
        edge
    }
}

/// Returns the place of the block at `ip`: the highest 16 bits of the product with 2^64 divided by the golden ratio.
const fn place(ip: u64) -> u16 {
    (ip.wrapping_mul(11_400_714_819_323_198_485) >> 48) as u16
}

/// Returns true if the code does not determine the next instruction. libipt has one class for direct and indirect
/// calls, and one for jumps.
fn is_decided_by_trace(class: c_int, bytes: &[u8]) -> bool {
    match class {
        CALL | JUMP => {
            // FF /2 and FF /4.
            bytes.iter().find(|byte| !is_prefix(**byte)) == Some(&0xff)
        }
        RETURN | COND_JUMP..=FAR_JUMP => true,
        _ => false,
    }
}

/// Returns true if the byte is a prefix, with which a jump or call can begin.
const fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3)
}
