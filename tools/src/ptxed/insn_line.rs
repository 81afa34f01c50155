//! Instructions as text.

use super::Options;
use super::reading::{Reading, Refusal};
use iced_x86::{CC_a, CC_ae, CC_e, CC_g, CC_ge, CC_ne};
use iced_x86::{Formatter, GasFormatter, Instruction, IntelFormatter, MemorySizeOptions, Mnemonic};
use pugmark_decoder_core::insn::MAX_LEN;
use std::fmt::Write;

/// What is behind an instruction's address: its bytes and its text, as far as they are asked for.
pub(super) fn insn_text(reading: &Reading, bytes: &[u8], options: &Options) -> String {
    let mut text = String::new();
    if options.no_inst {
        return text;
    }
    if options.raw_insn {
        text = bytes_text(bytes);
    }
    text.push_str("  ");
    match reading {
        Reading::Insn(insn) if options.att => format(&mut GasFormatter::new(), insn, &mut text),
        Reading::Insn(insn) => format(&mut IntelFormatter::new(), insn, &mut text),
        Reading::Newer | Reading::Refused(_) => text.push_str("(unknown)"),
    }
    text
}

/// What is behind the address of an instruction that cannot be read again.
pub(super) fn refusal_text(refusal: Refusal, bytes: &[u8]) -> String {
    format!("{} [xed decode error: {refusal}]", bytes_text(bytes))
}

/// Bytes, as wide as those of the longest instruction.
fn bytes_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(3 * MAX_LEN);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, " {byte:02x}");
    }
    text.push_str(&" ".repeat(3 * MAX_LEN.saturating_sub(bytes.len())));
    text
}

/// XED's conditions and sizes, as far as the library has a choice.
fn format(formatter: &mut dyn Formatter, insn: &Instruction, text: &mut String) {
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_space_after_operand_separator(true);
    options.set_branch_leading_zeros(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_show_branch_size(false);
    options.set_memory_size_options(MemorySizeOptions::Always);
    options.set_gas_show_mnemonic_size_suffix(true);
    options.set_cc_ae(CC_ae::nb);
    options.set_cc_e(CC_e::z);
    options.set_cc_ne(CC_ne::nz);
    options.set_cc_a(CC_a::nbe);
    options.set_cc_ge(CC_ge::nl);
    options.set_cc_g(CC_g::nle);
    formatter.format(insn, text);
    // XED leaves a place for operands that are not shown, but not where there are none.
    let has_operands = !matches!(insn.mnemonic(), Mnemonic::Nop | Mnemonic::Hlt | Mnemonic::Wait);
    if insn.op_count() == 0 && has_operands {
        text.push(' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::mode::ExecMode;

    #[test]
    fn the_text_is_behind_the_bytes_in_either_syntax() {
        for (bytes, raw_insn, att, text) in [
            (&[0x90][..], false, false, "  nop"),
            (&[0x90], true, true, " 90                                            nop"),
            (&[0xc3], false, false, "  ret "),
            (&[0x75, 0x01], false, false, "  jnz 0x1003"),
            (&[0xe8, 0, 0, 0, 0], true, false, " e8 00 00 00 00                                call 0x1005"),
            (&[0x48, 0x8b, 0x03], false, false, "  mov rax, qword ptr [rbx]"),
            (&[0x48, 0x8b, 0x03], false, true, "  movq (%rbx), %rax"),
            (&[0xff, 0xd0], false, true, "  callq *%rax"),
            (&[0xd5, 0x48, 0x01, 0xc0], false, false, "  (unknown)"),
        ] {
            let options = Options { raw_insn, att, ..Options::default() };
            let reading = Reading::of(bytes, ExecMode::Bits64, 0x1000);
            assert_eq!(insn_text(&reading, bytes, &options), text, "{bytes:x?}");
            let without = Options { no_inst: true, ..options };
            assert_eq!(insn_text(&reading, bytes, &without), "");
        }
    }

    #[test]
    fn a_refusal_has_the_bytes_in_front_of_it() {
        let text = refusal_text(Refusal::Other, &[0x06]);
        assert_eq!(text, format!(" 06{} [xed decode error: (2) GENERAL_ERROR]", " ".repeat(42)));
    }
}
