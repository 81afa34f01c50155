//! Instructions as text.

use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};
use pugmark_decoder_core::{
    image::{Asid, Image},
    insn::MAX_LEN,
};

/// Decodes the instruction at an address, and returns its bytes, too, with others after them. It is invalid if its code
/// is not known, or is none.
pub(super) fn instruction(image: Image<'_>, ip: u64) -> (Instruction, [u8; MAX_LEN]) {
    let mut bytes = [0; MAX_LEN];
    let length = image.read(ip, Asid::default(), &mut bytes);
    let known = bytes.get(..length).unwrap_or_default();
    (Decoder::with_ip(64, known, ip, DecoderOptions::NONE).decode(), bytes)
}

/// Puts down an instruction as Intel's manual writes it.
pub(super) fn put(insn: &Instruction, text: &mut String) {
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_hex_prefix("0x");
    formatter.options_mut().set_hex_suffix("");
    formatter.options_mut().set_uppercase_hex(false);
    formatter.options_mut().set_space_after_operand_separator(true);
    formatter.options_mut().set_branch_leading_zeros(false);
    formatter.format(insn, text);
}
