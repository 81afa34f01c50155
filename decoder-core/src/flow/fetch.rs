//! Fetches and decodes one instruction from an image.

use crate::{
    error::ErrorKind,
    image::{Asid, Image, Window},
    insn::{self, Insn, InsnError},
    mode::ExecMode,
};

/// Decodes the instruction at `ip`, trying `window` first. Returns it with the part of the image that holds its first
/// byte.
#[inline]
pub(crate) fn fetch<'a>(
    image: Image<'a>,
    space: Asid,
    window: Window<'a>,
    ip: u64,
    mode: ExecMode,
) -> Result<(Window<'a>, Insn), ErrorKind> {
    match insn::decode(window.from(ip), mode, ip) {
        Ok(insn) => Ok((window, insn)),
        Err(error) => fetch_elsewhere(error, image, space, ip, mode),
    }
}

/// Decodes an instruction that is not completely in the last window; `error` is the result of trying that window.
#[cold]
pub(super) fn fetch_elsewhere(
    error: InsnError,
    image: Image<'_>,
    space: Asid,
    ip: u64,
    mode: ExecMode,
) -> Result<(Window<'_>, Insn), ErrorKind> {
    if error != InsnError::Truncated {
        return Err(ErrorKind::UnknownInstruction { ip });
    }
    // Code from the image's reader has no window.
    let window = image.window(ip, space).unwrap_or_default();
    match insn::decode(window.from(ip), mode, ip) {
        Ok(insn) => return Ok((window, insn)),
        Err(InsnError::Truncated) => {}
        Err(_) => return Err(ErrorKind::UnknownInstruction { ip }),
    }
    let mut bytes = [0; insn::MAX_LEN];
    let len = image.read(ip, space, &mut bytes);
    if len == 0 {
        return Err(ErrorKind::NoMemory { ip });
    }
    match insn::decode(bytes.get(..len).unwrap_or_default(), mode, ip) {
        Ok(insn) => Ok((window, insn)),
        Err(InsnError::Truncated) => Err(ErrorKind::TruncatedInstruction { ip }),
        Err(_) => Err(ErrorKind::UnknownInstruction { ip }),
    }
}
