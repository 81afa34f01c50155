//! `struct pt_insn`, and reading instructions from an image.

use super::{
    Image, PtAsid,
    code::{Detail, Extra, decode},
};
use crate::{error::Code, event::kind};
use std::ffi::c_int;

/// `struct pt_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtInsn {
    pub(crate) ip: u64,
    pub(crate) isid: c_int,
    pub(crate) mode: c_int,
    pub(crate) class: c_int,
    pub(crate) raw: [u8; 15],
    pub(crate) size: u8,
    pub(crate) flags: u32,
}

/// The flags of `struct pt_insn`.
pub(crate) mod flag {
    pub(crate) const SPECULATIVE: u32 = 1 << 0;
    pub(crate) const TRUNCATED: u32 = 1 << 1;
}

/// `enum pt_insn_class`.
pub(crate) mod class {
    use std::ffi::c_int;

    pub(crate) const ERROR: c_int = 0;
    pub(crate) const OTHER: c_int = 1;
    pub(crate) const CALL: c_int = 2;
    pub(crate) const RETURN: c_int = 3;
    pub(crate) const JUMP: c_int = 4;
    pub(crate) const COND_JUMP: c_int = 5;
    pub(crate) const FAR_CALL: c_int = 6;
    pub(crate) const FAR_RETURN: c_int = 7;
    pub(crate) const FAR_JUMP: c_int = 8;
    pub(crate) const PTWRITE: c_int = 9;

    pub(crate) const fn is_branch(class: c_int) -> bool {
        matches!(class, CALL..=FAR_JUMP)
    }
}

impl PtInsn {
    pub(crate) const EMPTY: Self =
        Self { ip: 0, isid: 0, mode: 0, class: 0, raw: [0; 15], size: 0, flags: 0 };

    /// Returns the address of the instruction's end.
    pub(crate) fn end(&self) -> u64 {
        self.ip.wrapping_add(self.size.into())
    }

    pub(crate) const fn is_far(&self) -> bool {
        matches!(self.class, class::FAR_CALL | class::FAR_RETURN | class::FAR_JUMP)
    }

    pub(crate) const fn is_branch(&self) -> bool {
        class::is_branch(self.class)
    }

    pub(crate) fn binds_to_pip(&self, extra: &Extra) -> bool {
        matches!(extra.detail, Detail::MovCr3 | Detail::VmEntry) || self.is_far()
    }

    pub(crate) fn binds_to_vmcs(&self, extra: &Extra) -> bool {
        matches!(extra.detail, Detail::Vmptrld | Detail::VmEntry) || self.is_far()
    }

    /// Returns true if an event without an address belongs to such an instruction.
    pub(crate) fn binds_to(&self, kind: c_int, extra: &Extra) -> bool {
        let bytes = self.raw.get(..self.size.into()).unwrap_or_default();
        match kind {
            kind::PTWRITE => self.class == class::PTWRITE,
            kind::VMENTRY => extra.detail == Detail::VmEntry,
            // IRET, SYSRET or SYSEXIT; RET to another segment has an operand of two bytes.
            kind::IRET => {
                self.class == class::FAR_RETURN
                    && matches!(bytes, [.., 0xcf] | [.., 0x0f, 0x07 | 0x35])
                    && !matches!(bytes, [.., 0xca, _, _])
            }
            kind::UIRET => matches!(bytes, [.., 0x0f, 0x01, 0xec]),
            _ => false,
        }
    }

    /// Returns the target of a direct branch.
    pub(crate) fn target(&self, extra: &Extra) -> Option<u64> {
        extra.displacement.map(|displacement| self.end().wrapping_add_signed(displacement.into()))
    }

    /// Returns the address of the next instruction, if it does not depend on the trace.
    pub(crate) fn next_ip(&self, extra: &Extra) -> Result<u64, Code> {
        match self.class {
            class::PTWRITE | class::OTHER => Ok(self.end()),
            class::CALL | class::JUMP => self.target(extra).ok_or(Code::BadQuery),
            class::ERROR => Err(Code::BadInstruction),
            _ => Err(Code::BadQuery),
        }
    }

    /// Reads the instruction from an image and decodes it. Its address and mode are already set.
    pub(crate) fn read(&mut self, image: &mut Image, asid: &PtAsid) -> Result<Extra, c_int> {
        let (status, isid) = image.read(&mut self.raw, asid, self.ip);
        if let Some(isid) = isid {
            self.isid = isid;
        }
        if status < 0 {
            return Err(status);
        }
        // The caller's callback may return anything.
        self.size = status as u8;
        let bad = Code::BadInstruction.status();
        loop {
            if let Ok(extra) = decode(self) {
                return Ok(extra);
            }
            // The end of the instruction may be in another section.
            let size = usize::from(self.size);
            let Some(rest) = self.raw.get_mut(size..).filter(|rest| !rest.is_empty()) else {
                return Err(bad);
            };
            let (status, _) = image.read(rest, asid, self.ip.wrapping_add(size as u64));
            match status {
                0 => return Err(Code::Internal.status()),
                error if error == Code::NotMapped.status() => return Err(bad),
                ..0 => return Err(status),
                _ => self.size = self.size.wrapping_add(status as u8),
            }
            if let Ok(extra) = decode(self) {
                self.flags |= flag::TRUNCATED;
                return Ok(extra);
            }
        }
    }
}

/// Returns true if `end` can be reached from `begin` in a few instructions, without the trace.
pub(crate) fn is_contiguous(begin: u64, end: u64, mode: c_int, image: &mut Image, asid: &PtAsid) -> bool {
    let mut insn = PtInsn { ip: begin, mode, ..PtInsn::EMPTY };
    for _ in 0..0x100 {
        if insn.ip == end {
            return true;
        }
        let Ok(extra) = insn.read(image, asid) else { return false };
        let Ok(next) = insn.next_ip(&extra) else { return false };
        insn.ip = next;
    }
    insn.ip == end
}
