//! Instructions as text.

use super::Options;
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, Instruction, IntelFormatter};
use pugmark_decoder_core::insn::MAX_LEN;
use pugmark_decoder_core::mode::ExecMode;

/// What is behind an instruction's address: its bytes and its text, as far as they are asked for.
pub(super) fn insn_text(ip: u64, mode: ExecMode, bytes: &[u8], options: &Options) -> String {
    if options.no_inst {
        return String::new();
    }
    let mut text = String::new();
    if options.raw_insn {
        for byte in bytes {
            text.push_str(&format!(" {byte:02x}"));
        }
        text.push_str(&" ".repeat(3 * MAX_LEN.saturating_sub(bytes.len())));
    }
    text.push_str("  ");
    let bits = match mode {
        ExecMode::Bits16 => 16,
        ExecMode::Bits32 => 32,
        ExecMode::Bits64 => 64,
    };
    let insn = Decoder::with_ip(bits, bytes, ip, DecoderOptions::NONE).decode();
    if options.att {
        format(&mut GasFormatter::new(), &insn, &mut text);
    } else {
        format(&mut IntelFormatter::new(), &insn, &mut text);
    }
    text
}

fn format(formatter: &mut dyn Formatter, insn: &Instruction, text: &mut String) {
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_space_after_operand_separator(true);
    options.set_branch_leading_zeros(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_show_branch_size(false);
    formatter.format(insn, text);
}
