//! Instructions as text.

use super::Options;
use super::reading::{Reading, Refusal};
use iced_x86::{CC_a, CC_ae, CC_e, CC_g, CC_ge, CC_ne};
use iced_x86::{
    Code, Formatter, FormatterOptions, GasFormatter, Instruction, InstructionInfoFactory, IntelFormatter,
};
use iced_x86::{MemorySizeOptions, Mnemonic, OpKind, Register};
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
        Reading::Insn(insn) if options.att => att(insn, &mut text),
        Reading::Insn(insn) => intel(insn, &mut text),
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

/// The instruction as Intel writes it, as far as the library writes as XED does.
fn intel(insn: &Instruction, text: &mut String) {
    let mut formatter = IntelFormatter::new();
    choose(formatter.options_mut(), insn);
    let start = text.len();
    mnemonic(&mut formatter, insn, text);
    if !has_operands(insn) {
        if has_hidden_operands(insn) {
            text.push(' ');
        }
        return;
    }
    text.push(' ');
    let begin = text.len();
    operands(&mut formatter, insn, text);
    if let Some(bracket) = text[begin..].find('[').map(|bracket| begin + bracket)
        && !text[begin..bracket].contains("ptr ")
    {
        text.insert_str(bracket, "ptr ");
    }
    if has_unnamed_size(insn) {
        for size in ["byte ptr ", "fword ptr "] {
            let shown = text.split_off(start);
            text.push_str(&shown.replace(size, "ptr "));
        }
    }
}

/// The instruction in AT&T syntax. To XED that is Intel's mnemonic, with the size of what is in memory behind it and
/// only that, and the operands the other way round.
fn att(insn: &Instruction, text: &mut String) {
    let mut formatter = IntelFormatter::new();
    choose(formatter.options_mut(), insn);
    mnemonic(&mut formatter, insn, text);
    let suffix = suffix(insn);
    text.extend(suffix);
    match suffix {
        Some(_) => text.push_str("  "),
        None if has_operands(insn) || has_hidden_operands(insn) => text.push(' '),
        None => {}
    }
    if !has_operands(insn) {
        return;
    }
    let mut formatter = GasFormatter::new();
    choose(formatter.options_mut(), insn);
    let mut shown = String::new();
    operands(&mut formatter, insn, &mut shown);
    text.push_str(shown.trim_start_matches('*'));
}

/// All that XED shows.
fn operands(formatter: &mut dyn Formatter, insn: &Instruction, text: &mut String) {
    let count = formatter.operand_count(insn);
    // The library leaves away that a register is multiplied with itself as the target.
    let leaves_one = insn.mnemonic() == Mnemonic::Imul && insn.op_count() > count;
    let mut separator = "";
    for shown in 0..count {
        let operand = formatter.get_instruction_operand(insn, shown).ok().flatten();
        if count > 1 && operand.is_some_and(|operand| is_implied(insn, operand)) {
            continue;
        }
        let is_register = operand.is_some_and(|operand| insn.op_kind(operand) == OpKind::Register);
        for _ in 0..if leaves_one && is_register { 2 } else { 1 } {
            text.push_str(separator);
            // The formatter counted it.
            let _ = formatter.format_operand(insn, text, shown);
            separator = ", ";
        }
    }
}

/// With the prefixes.
fn mnemonic(formatter: &mut dyn Formatter, insn: &Instruction, text: &mut String) {
    // 66 90 is an exchange of AX with itself to the library.
    if insn.code() == Code::Nopw {
        return text.push_str("data16 nop");
    }
    let start = text.len();
    formatter.format_mnemonic(insn, text);
    // The choice of the conditions' names is not one of the prefixes' names.
    let shown = text.split_off(start);
    text.push_str(&shown.replace("repnz ", "repne ").replace("repz ", "repe "));
}

fn has_operands(insn: &Instruction) -> bool {
    insn.op_count() > 0 && insn.code() != Code::Nopw
}

/// XED leaves a blank for operands that are not shown, but not where there are none.
fn has_hidden_operands(insn: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(insn);
    let flags = insn.rflags_read() | insn.rflags_modified();
    insn.code() != Code::Nopw
        && (flags != 0 || !info.used_registers().is_empty() || !info.used_memory().is_empty())
}

/// The accumulator of a string instruction, which XED does not show.
fn is_implied(insn: &Instruction, operand: u32) -> bool {
    insn.is_string_instruction() && insn.op_kind(operand) == OpKind::Register
}

/// Whether the operand is in memory, and not a register or in the instruction.
fn is_in_memory(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Memory
            | OpKind::MemorySegSI
            | OpKind::MemorySegESI
            | OpKind::MemorySegRSI
            | OpKind::MemorySegDI
            | OpKind::MemorySegEDI
            | OpKind::MemorySegRDI
            | OpKind::MemoryESDI
            | OpKind::MemoryESEDI
            | OpKind::MemoryESRDI
    )
}

/// The size of the operand in memory, be it the stack's.
fn suffix(insn: &Instruction) -> Option<char> {
    if (0..insn.op_count()).any(|operand| is_in_memory(insn.op_kind(operand))) {
        return match insn.memory_size().size() {
            _ if insn.mnemonic() == Mnemonic::Lea => None,
            // A line of the cache.
            _ if is_cache_line(insn) => Some('z'),
            1 => Some('b'),
            2 => Some('w'),
            4 => Some('l'),
            8 => Some('q'),
            16 => Some('x'),
            32 => Some('y'),
            64 => Some('z'),
            _ => None,
        };
    }
    match insn.mnemonic() {
        // Of its three words.
        Mnemonic::Uiret => Some('l'),
        Mnemonic::Call
        | Mnemonic::Ret
        | Mnemonic::Push
        | Mnemonic::Pop
        | Mnemonic::Leave
        | Mnemonic::Enter => match insn.stack_pointer_increment().unsigned_abs() {
            2 => Some('w'),
            4 => Some('l'),
            _ => Some('q'),
        },
        _ => None,
    }
}

fn is_cache_line(insn: &Instruction) -> bool {
    matches!(
        insn.mnemonic(),
        Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetchw
            | Mnemonic::Clflush
            | Mnemonic::Clflushopt
            | Mnemonic::Clwb
    )
}

/// The operand's size has no name.
fn has_unnamed_size(insn: &Instruction) -> bool {
    let table = matches!(insn.mnemonic(), Mnemonic::Sgdt | Mnemonic::Sidt | Mnemonic::Lgdt | Mnemonic::Lidt);
    table || is_cache_line(insn)
}

/// XED's conditions and sizes, as far as the library has a choice.
fn choose(options: &mut FormatterOptions, insn: &Instruction) {
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    // The library has an operand for both numbers of a far target.
    options.set_space_after_operand_separator(true);
    options.set_branch_leading_zeros(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_show_branch_size(false);
    options.set_memory_size_options(MemorySizeOptions::Always);
    options.set_rip_relative_addresses(true);
    options.set_use_pseudo_ops(false);
    options.set_always_show_scale(insn.memory_index() != Register::None);
    options.set_cc_ae(CC_ae::nb);
    options.set_cc_e(CC_e::z);
    options.set_cc_ne(CC_ne::nz);
    options.set_cc_a(CC_a::nbe);
    options.set_cc_ge(CC_ge::nl);
    options.set_cc_g(CC_g::nle);
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
            (&[0x48, 0x8b, 0x03], false, true, "  movq  (%rbx), %rax"),
            (&[0xff, 0xd0], false, true, "  callq  %rax"),
            (&[0x48, 0x89, 0xc3], false, true, "  mov %rax, %rbx"),
            (&[0xc3], false, true, "  retq  "),
            (&[0x0f, 0x10, 0x08], false, true, "  movupsx  (%rax), %xmm1"),
            (&[0x0f, 0xb6, 0x08], false, true, "  movzxb  (%rax), %ecx"),
            (&[0x48, 0x8d, 0x43, 0x08], false, true, "  lea 0x8(%rbx), %rax"),
            (&[0x48, 0x8d, 0x43, 0x08], false, false, "  lea rax, ptr [rbx+0x8]"),
            (&[0x48, 0x8b, 0x05, 8, 0, 0, 0], false, false, "  mov rax, qword ptr [rip+0x8]"),
            (&[0x0f, 0xae, 0x38], false, false, "  clflush ptr [rax]"),
            (&[0x0f, 0xae, 0xf0], false, false, "  mfence"),
            (&[0x0f, 0xa2], false, false, "  cpuid "),
            (&[0xf2, 0xae], false, false, "  repne scasb byte ptr [rdi]"),
            (&[0x66, 0x90], false, false, "  data16 nop"),
            (&[0x6b, 0xc0, 0x03], false, false, "  imul eax, eax, 0x3"),
            (&[0x6b, 0xc0, 0x03], false, true, "  imul $0x3, %eax, %eax"),
            (&[0x48, 0xab], false, true, "  stosqq  (%rdi)"),
            (&[0xf3, 0xa4], false, true, "  rep movsbb  (%rsi), (%rdi)"),
            (&[0x0f, 0x18, 0x08], false, true, "  prefetcht0z  (%rax)"),
            (&[0x0f, 0xc2, 0xc8, 0x01], false, false, "  cmpps xmm1, xmm0, 0x1"),
            (&[0xf3, 0x0f, 0x01, 0xec], false, true, "  uiretl  "),
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
    fn far_targets_are_two_numbers() {
        // jmp 0x8:0x1000; call 0x8:0x1000.
        for (opcode, att, text) in [
            (0xea, false, "  jmp far 0x1000, 0x8"),
            (0x9a, false, "  call far 0x1000, 0x8"),
            (0xea, true, "  jmp far $0x8, $0x1000"),
        ] {
            let bytes = [opcode, 0, 0x10, 0, 0, 8, 0];
            let reading = Reading::of(&bytes, ExecMode::Bits32, 0x1000);
            let options = Options { att, ..Options::default() };
            assert_eq!(insn_text(&reading, &bytes, &options), text);
        }
    }

    #[test]
    fn conditions_have_xeds_names() {
        let names =
            ["o", "no", "b", "nb", "z", "nz", "be", "nbe", "s", "ns", "p", "np", "l", "nl", "le", "nle"];
        for (condition, name) in (0x70..).zip(names) {
            let bytes = [condition, 1];
            let reading = Reading::of(&bytes, ExecMode::Bits64, 0x1000);
            assert_eq!(insn_text(&reading, &bytes, &Options::default()), format!("  j{name} 0x1003"));
        }
    }

    #[test]
    fn a_refusal_has_the_bytes_in_front_of_it() {
        let text = refusal_text(Refusal::Other, &[0x06]);
        assert_eq!(text, format!(" 06{} [xed decode error: (2) GENERAL_ERROR]", " ".repeat(42)));
    }
}
