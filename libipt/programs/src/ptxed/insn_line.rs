//! Writes instructions as text in the form of XED, the library that libipt's programs use.

use super::PtxedOptions;
use super::reading::{IcedReading, Refusal};
use iced_x86::{CC_a, CC_ae, CC_e, CC_g, CC_ge, CC_ne};
use iced_x86::{
    Code, CodeSize, Formatter, FormatterOptions, GasFormatter, Instruction, InstructionInfoFactory,
    IntelFormatter,
};
use iced_x86::{MemorySizeOptions, Mnemonic, OpKind, Register};
use pugmark_decoder_core::insn::MAX_LEN;
use std::fmt::Write;

/// Returns the text after an instruction's address: its bytes and its disassembly, if the options ask for them.
pub(super) fn insn_text(reading: &IcedReading, bytes: &[u8], options: &PtxedOptions) -> String {
    let mut text = String::new();
    if options.no_inst {
        return text;
    }
    if options.raw_insn {
        text = bytes_text(bytes);
    }
    text.push_str("  ");
    match reading {
        IcedReading::Insn(insn) if options.att => att(insn, &mut text),
        IcedReading::Insn(insn) => intel(insn, &mut text),
        IcedReading::Newer | IcedReading::Refused(_) => text.push_str("(unknown)"),
    }
    text
}

/// Returns the text after the address of an instruction that the other decoder refuses.
pub(super) fn refusal_text(refusal: Refusal, bytes: &[u8]) -> String {
    format!("{} [xed decode error: {refusal}]", bytes_text(bytes))
}

/// Writes the bytes and pads them to the width of the longest instruction.
fn bytes_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(3 * MAX_LEN);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, " {byte:02x}");
    }
    text.push_str(&" ".repeat(3 * MAX_LEN.saturating_sub(bytes.len())));
    text
}

/// Writes the instruction in Intel syntax, corrected where the formatting library (iced-x86) differs from XED.
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
        text.insert_str(bracket, if insn.mnemonic() == Mnemonic::Invlpg { "byte ptr " } else { "ptr " });
    }
    if has_unnamed_size(insn) {
        for size in ["tbyte ptr ", "byte ptr ", "fword ptr "] {
            let shown = text.split_off(start);
            text.push_str(&shown.replace(size, "ptr "));
        }
    }
}

/// Writes the instruction in XED's AT&T syntax. That is Intel's mnemonic (except for far branches) with a suffix for
/// the size of the operand in memory and for no other operand, and the operands in reverse order.
fn att(insn: &Instruction, text: &mut String) {
    let mut formatter = IntelFormatter::new();
    choose(formatter.options_mut(), insn);
    let start = text.len();
    mnemonic(&mut formatter, insn, text);
    if let Some(before) = text[start..].find(" far").and_then(|far| text[..start + far].rfind(' ')) {
        text.truncate(before + 1);
        // XED calls a far return `lcall`, too.
        text.push_str(if insn.is_jmp_far() || insn.is_jmp_far_indirect() { "ljmp" } else { "lcall" });
    }
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

/// Writes the operands that XED shows.
fn operands(formatter: &mut dyn Formatter, insn: &Instruction, text: &mut String) {
    let count = formatter.operand_count(insn);
    // The library omits the repeated register of a multiplication that has its target as a source.
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
            // The index is below the formatter's own count, so this cannot fail.
            let _ = formatter.format_operand(insn, text, shown);
            separator = ", ";
        }
    }
}

/// Writes the mnemonic with its prefixes.
fn mnemonic(formatter: &mut dyn Formatter, insn: &Instruction, text: &mut String) {
    // The library treats 66 90 as an exchange of AX with itself, and 48 90 as one of RAX.
    match insn.code() {
        Code::Nopw => return text.push_str("data16 nop"),
        Code::Nopq => return text.push_str("nop"),
        _ => {}
    }
    let start = text.len();
    formatter.format_mnemonic(insn, text);
    // The formatter's options for the names of conditions do not apply to prefixes.
    let mut shown = text.split_off(start).replace("repnz ", "repne ").replace("repz ", "repe ");
    // XED shows the operand size as a prefix only if no operand shows it.
    for prefix in ["data16 ", "data32 ", "data64 "] {
        if has_operands(insn) || prefix == "data64 " {
            shown = shown.replace(prefix, "");
        }
    }
    match (insn.code(), insn.code_size()) {
        (Code::Iretw, CodeSize::Code32 | CodeSize::Code64) => text.push_str("data16 "),
        (Code::Iretd, CodeSize::Code16) => text.push_str("data32 "),
        _ => {}
    }
    for (name, xeds) in
        [("loopnz", "loopne"), ("loopz", "loope"), ("sysretq", "sysret"), ("sysexitq", "sysexit")]
    {
        shown = shown.replace(name, xeds);
    }
    text.push_str(&shown);
}

fn has_operands(insn: &Instruction) -> bool {
    let is_shown_by_name = matches!(
        insn.mnemonic(),
        Mnemonic::Insb
            | Mnemonic::Insw
            | Mnemonic::Insd
            | Mnemonic::Outsb
            | Mnemonic::Outsw
            | Mnemonic::Outsd
            | Mnemonic::Xlatb
    );
    insn.op_count() > 0 && !is_plain_nop(insn) && !is_shown_by_name
}

/// Returns true if the instruction is a NOP that the library treats as an exchange of a register with itself.
fn is_plain_nop(insn: &Instruction) -> bool {
    matches!(insn.code(), Code::Nopw | Code::Nopq)
}

/// Returns true if the instruction has operands that XED does not show, for which it writes a blank.
fn has_hidden_operands(insn: &Instruction) -> bool {
    match insn.mnemonic() {
        Mnemonic::Swapgs | Mnemonic::Int3 | Mnemonic::Int1 => return true,
        Mnemonic::Clts => return false,
        _ => {}
    }
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(insn);
    let flags = insn.rflags_read() | insn.rflags_modified();
    !is_plain_nop(insn) && (flags != 0 || !info.used_registers().is_empty() || !info.used_memory().is_empty())
}

/// Returns true if the operand is the accumulator of a string instruction, which XED does not show.
fn is_implied(insn: &Instruction, operand: u32) -> bool {
    insn.is_string_instruction() && insn.op_kind(operand) == OpKind::Register
}

/// Returns true if the operand is in memory, as opposed to a register or an immediate.
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

/// Returns the suffix for the size of the operand in memory, which may be on the stack.
fn suffix(insn: &Instruction) -> Option<char> {
    if (0..insn.op_count()).any(|operand| is_in_memory(insn.op_kind(operand))) {
        return match insn.memory_size().size() {
            _ if insn.mnemonic() == Mnemonic::Lea => None,
            _ if insn.mnemonic() == Mnemonic::Invlpg => Some('b'),
            // The operand is a cache line.
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
        // XED gives UIRET this suffix for the three words that it pops.
        Mnemonic::Uiret => Some('l'),
        // The suffix does not count the bytes that a return releases and ENTER reserves.
        Mnemonic::Ret | Mnemonic::Retf | Mnemonic::Enter | Mnemonic::Leave => match insn.code() {
            Code::Retnw | Code::Retnw_imm16 | Code::Enterw_imm16_imm8 | Code::Leavew => Some('w'),
            Code::Retnd | Code::Retnd_imm16 | Code::Enterd_imm16_imm8 | Code::Leaved => Some('l'),
            Code::Retfw | Code::Retfw_imm16 => Some('l'),
            Code::Retfq | Code::Retfq_imm16 => Some('x'),
            _ => Some('q'),
        },
        Mnemonic::Pushf | Mnemonic::Popf => Some('w'),
        Mnemonic::Pushfd | Mnemonic::Popfd => Some('l'),
        Mnemonic::Pushfq | Mnemonic::Popfq => Some('q'),
        // PUSHA and POPA move eight registers.
        Mnemonic::Pusha | Mnemonic::Popa => Some('x'),
        Mnemonic::Pushad | Mnemonic::Popad => Some('y'),
        Mnemonic::Call | Mnemonic::Push | Mnemonic::Pop => {
            match insn.stack_pointer_increment().unsigned_abs() {
                2 => Some('w'),
                4 => Some('l'),
                _ => Some('q'),
            }
        }
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

/// Returns true if XED has no name for the operand's size.
fn has_unnamed_size(insn: &Instruction) -> bool {
    let table = matches!(insn.mnemonic(), Mnemonic::Sgdt | Mnemonic::Sidt | Mnemonic::Lgdt | Mnemonic::Lidt);
    let pointer = matches!(
        insn.mnemonic(),
        Mnemonic::Lds | Mnemonic::Les | Mnemonic::Lss | Mnemonic::Lfs | Mnemonic::Lgs
    );
    table || pointer || is_cache_line(insn) || insn.is_call_far_indirect() || insn.is_jmp_far_indirect()
}

/// Sets the names of conditions and sizes to XED's, where the library has options for them.
fn choose(options: &mut FormatterOptions, insn: &Instruction) {
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    // The library writes the selector and the offset of a far target as one operand.
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
    use pugmark_decoder_core::mode::ExecMode::{self, Bits16, Bits32, Bits64};

    #[test]
    fn the_text_follows_the_bytes_in_either_syntax() {
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
            // CMC reads and changes a flag, CLC only changes one.
            (&[0xf5], false, false, "  cmc "),
            (&[0xf8], false, false, "  clc "),
            (&[0xf2, 0xae], false, false, "  repne scasb byte ptr [rdi]"),
            (&[0x66, 0x90], false, false, "  data16 nop"),
            (&[0x6b, 0xc0, 0x03], false, false, "  imul eax, eax, 0x3"),
            (&[0x6b, 0xc0, 0x03], false, true, "  imul $0x3, %eax, %eax"),
            (&[0x48, 0xab], false, true, "  stosqq  (%rdi)"),
            (&[0xf3, 0xa4], false, true, "  rep movsbb  (%rsi), (%rdi)"),
            (&[0x0f, 0x18, 0x08], false, true, "  prefetcht0z  (%rax)"),
            (&[0x0f, 0xc2, 0xc8, 0x01], false, false, "  cmpps xmm1, xmm0, 0x1"),
            (&[0xf3, 0x0f, 0x01, 0xec], false, true, "  uiretl  "),
            // APX's ADD, MOVRS, VMOVRSB, UDB.
            (&[0xd5, 0x48, 0x01, 0xc0], false, false, "  (unknown)"),
            (&[0x0f, 0x38, 0x8a, 0x00], false, false, "  (unknown)"),
            (&[0x62, 0xf5, 0x7f, 0x08, 0x6f, 0x00], false, false, "  (unknown)"),
            (&[0xd6], false, false, "  (unknown)"),
        ] {
            let options = PtxedOptions { raw_insn, att, ..PtxedOptions::default() };
            let reading = IcedReading::of(bytes, ExecMode::Bits64, 0x1000);
            assert_eq!(insn_text(&reading, bytes, &options), text, "{bytes:x?}");
            let without = PtxedOptions { no_inst: true, ..options };
            assert_eq!(insn_text(&reading, bytes, &without), "");
        }
    }

    #[test]
    fn branches_are_as_xed_writes_them_at_each_operand_size() {
        // The expected texts are those of XED 2026.06 in Intel and in AT&T syntax.
        for (mode, bytes, in_intel, in_att) in [
            (Bits32, &[0x9a, 0, 0x10, 0, 0, 8, 0][..], "call far 0x1000, 0x8", "lcallq  $0x8, $0x1000"),
            (Bits32, &[0x66, 0x9a, 0, 0x10, 8, 0], "call far 0x1000, 0x8", "lcalll  $0x8, $0x1000"),
            (Bits32, &[0xea, 0, 0x10, 0, 0, 8, 0], "jmp far 0x1000, 0x8", "ljmp $0x8, $0x1000"),
            (Bits32, &[0x66, 0xea, 0, 0x10, 8, 0], "jmp far 0x1000, 0x8", "ljmp $0x8, $0x1000"),
            (Bits32, &[0xff, 0x18], "call far ptr [eax]", "lcall (%eax)"),
            (Bits32, &[0x66, 0xff, 0x18], "call far dword ptr [eax]", "lcalll  (%eax)"),
            (Bits32, &[0xff, 0x28], "jmp far ptr [eax]", "ljmp (%eax)"),
            (Bits32, &[0x66, 0xff, 0x28], "jmp far dword ptr [eax]", "ljmpl  (%eax)"),
            (Bits32, &[0xff, 0x58, 8], "call far ptr [eax+0x8]", "lcall 0x8(%eax)"),
            (Bits32, &[0xff, 0x1d, 0, 0x10, 0, 0], "call far ptr [0x1000]", "lcall 0x1000"),
            (Bits32, &[0x64, 0xff, 0x2c, 0x88], "jmp far ptr fs:[eax+ecx*4]", "ljmp %fs:(%eax,%ecx,4)"),
            (Bits32, &[0xcb], "ret far ", "lcallq  "),
            (Bits32, &[0x66, 0xcb], "data16 ret far ", "data16 lcalll  "),
            (Bits32, &[0xca, 4, 0], "ret far 0x4", "lcallq  $0x4"),
            (Bits32, &[0x66, 0xca, 4, 0], "ret far 0x4", "lcalll  $0x4"),
            (Bits16, &[0x9a, 0, 0x10, 8, 0], "call far 0x1000, 0x8", "lcalll  $0x8, $0x1000"),
            (Bits16, &[0x66, 0x9a, 0, 0x10, 0, 0, 8, 0], "call far 0x1000, 0x8", "lcallq  $0x8, $0x1000"),
            (Bits16, &[0xea, 0, 0x10, 8, 0], "jmp far 0x1000, 0x8", "ljmp $0x8, $0x1000"),
            (Bits16, &[0x66, 0xea, 0, 0x10, 0, 0, 8, 0], "jmp far 0x1000, 0x8", "ljmp $0x8, $0x1000"),
            (Bits16, &[0xff, 0x1f], "call far dword ptr [bx]", "lcalll  (%bx)"),
            (Bits16, &[0x66, 0xff, 0x1f], "call far ptr [bx]", "lcall (%bx)"),
            (Bits16, &[0xff, 0x2f], "jmp far dword ptr [bx]", "ljmpl  (%bx)"),
            (Bits16, &[0x66, 0xff, 0x2f], "jmp far ptr [bx]", "ljmp (%bx)"),
            (Bits16, &[0xcb], "ret far ", "lcalll  "),
            (Bits16, &[0x66, 0xcb], "data32 ret far ", "data32 lcallq  "),
            (Bits16, &[0xca, 4, 0], "ret far 0x4", "lcalll  $0x4"),
            (Bits16, &[0x66, 0xca, 4, 0], "ret far 0x4", "lcallq  $0x4"),
            (Bits64, &[0xff, 0x18], "call far ptr [rax]", "lcall (%rax)"),
            (Bits64, &[0x66, 0xff, 0x18], "call far dword ptr [rax]", "lcalll  (%rax)"),
            (Bits64, &[0x48, 0xff, 0x18], "call far ptr [rax]", "lcall (%rax)"),
            (Bits64, &[0xff, 0x28], "jmp far ptr [rax]", "ljmp (%rax)"),
            (Bits64, &[0x66, 0xff, 0x28], "jmp far dword ptr [rax]", "ljmpl  (%rax)"),
            (Bits64, &[0x48, 0xff, 0x28], "jmp far ptr [rax]", "ljmp (%rax)"),
            (Bits64, &[0xff, 0x1d, 8, 0, 0, 0], "call far ptr [rip+0x8]", "lcall 0x8(%rip)"),
            (Bits64, &[0xcb], "ret far ", "lcallq  "),
            (Bits64, &[0x66, 0xcb], "data16 ret far ", "data16 lcalll  "),
            (Bits64, &[0x48, 0xcb], "ret far ", "lcallx  "),
            (Bits64, &[0xca, 4, 0], "ret far 0x4", "lcallq  $0x4"),
            (Bits64, &[0x66, 0xca, 4, 0], "ret far 0x4", "lcalll  $0x4"),
            (Bits64, &[0x48, 0xca, 4, 0], "ret far 0x4", "lcallx  $0x4"),
            (Bits64, &[0xcf], "iretd ", "iretd "),
            (Bits64, &[0x66, 0xcf], "data16 iret ", "data16 iret "),
            (Bits64, &[0x48, 0xcf], "iretq ", "iretq "),
            (Bits32, &[0x66, 0xe8, 0, 0], "call 0x1004", "callw  0x1004"),
            (Bits32, &[0x66, 0xe9, 0, 0], "jmp 0x1004", "jmp 0x1004"),
            (Bits32, &[0xc3], "ret ", "retl  "),
            (Bits32, &[0x66, 0xc3], "data16 ret ", "data16 retw  "),
            (Bits32, &[0xc2, 4, 0], "ret 0x4", "retl  $0x4"),
            (Bits32, &[0x66, 0xc2, 4, 0], "ret 0x4", "retw  $0x4"),
            (Bits32, &[0xc8, 4, 0, 1], "enter 0x4, 0x1", "enterl  $0x4, $0x1"),
            (Bits32, &[0x66, 0xc8, 4, 0, 1], "enter 0x4, 0x1", "enterw  $0x4, $0x1"),
            (Bits16, &[0x66, 0xc3], "data32 ret ", "data32 retl  "),
            (Bits16, &[0x66, 0xe8, 0, 0, 0, 0], "call 0x1006", "calll  0x1006"),
            (Bits16, &[0xc2, 4, 0], "ret 0x4", "retw  $0x4"),
            (Bits16, &[0xcf], "iret ", "iret "),
            (Bits16, &[0x66, 0xcf], "data32 iretd ", "data32 iretd "),
            (Bits64, &[0x66, 0xc3], "ret ", "retq  "),
            (Bits64, &[0x48, 0xc3], "ret ", "retq  "),
            (Bits64, &[0xc2, 4, 0], "ret 0x4", "retq  $0x4"),
            (Bits64, &[0x66, 0xc2, 4, 0], "ret 0x4", "retq  $0x4"),
            (Bits64, &[0x66, 0xeb, 0], "jmp 0x1003", "jmp 0x1003"),
            (Bits64, &[0xc8, 4, 0, 1], "enter 0x4, 0x1", "enterq  $0x4, $0x1"),
            (Bits64, &[0x66, 0xc8, 4, 0, 1], "enter 0x4, 0x1", "enterw  $0x4, $0x1"),
            (Bits64, &[0x66, 0xc9], "data16 leave ", "data16 leavew  "),
            (Bits32, &[0xc9], "leave ", "leavel  "),
            (Bits16, &[0xc9], "leave ", "leavew  "),
            (Bits16, &[0x66, 0xc9], "data32 leave ", "data32 leavel  "),
        ] {
            agrees_with_xed(mode, bytes, in_intel, in_att);
        }
    }

    #[test]
    fn what_the_library_names_or_sizes_otherwise_is_as_xed_writes_it() {
        // The expected texts are from the same version of XED.
        for (mode, bytes, in_intel, in_att) in [
            (Bits64, &[0xe0, 0][..], "loopne 0x1002", "loopne 0x1002"),
            (Bits64, &[0xe1, 0], "loope 0x1002", "loope 0x1002"),
            (Bits64, &[0x48, 0x0f, 0x07], "sysret ", "sysret "),
            (Bits64, &[0x48, 0x0f, 0x35], "sysexit ", "sysexit "),
            (Bits64, &[0x48, 0x90], "nop", "nop"),
            (Bits64, &[0x0f, 0x01, 0xf8], "swapgs ", "swapgs "),
            (Bits64, &[0xcc], "int3 ", "int3 "),
            (Bits64, &[0xf1], "int1 ", "int1 "),
            (Bits64, &[0x0f, 0x06], "clts", "clts"),
            (Bits64, &[0x9c], "pushfq ", "pushfqq  "),
            (Bits64, &[0x9d], "popfq ", "popfqq  "),
            (Bits32, &[0x9c], "pushfd ", "pushfdl  "),
            (Bits16, &[0x9d], "popf ", "popfw  "),
            (Bits32, &[0x60], "pushad ", "pushady  "),
            (Bits16, &[0x61], "popa ", "popax  "),
            (Bits64, &[0x0f, 0x01, 0x38], "invlpg byte ptr [rax]", "invlpgb  (%rax)"),
            (Bits64, &[0x0f, 0xb2, 0x00], "lss eax, ptr [rax]", "lss (%rax), %eax"),
            (Bits32, &[0xc5, 0x08], "lds ecx, ptr [eax]", "lds (%eax), %ecx"),
            (Bits64, &[0x6c], "insb ", "insbb  "),
            (Bits64, &[0x6f], "outsd ", "outsdl  "),
            (Bits64, &[0xd7], "xlat ", "xlatb  "),
        ] {
            agrees_with_xed(mode, bytes, in_intel, in_att);
        }
    }

    fn agrees_with_xed(mode: ExecMode, bytes: &[u8], in_intel: &str, in_att: &str) {
        let reading = IcedReading::of(bytes, mode, 0x1000);
        for (att, text) in [(false, in_intel), (true, in_att)] {
            let options = PtxedOptions { att, ..PtxedOptions::default() };
            assert_eq!(insn_text(&reading, bytes, &options), format!("  {text}"), "{mode:?} {bytes:x?}");
        }
    }

    #[test]
    fn conditions_have_xeds_names() {
        let names =
            ["o", "no", "b", "nb", "z", "nz", "be", "nbe", "s", "ns", "p", "np", "l", "nl", "le", "nle"];
        for (condition, name) in (0x70..).zip(names) {
            let text = format!("j{name} 0x1003");
            agrees_with_xed(ExecMode::Bits64, &[condition, 1], &text, &text);
        }
    }

    #[test]
    fn a_refusal_has_the_bytes_in_front_of_it() {
        let text = refusal_text(Refusal::Other, &[0x06]);
        assert_eq!(text, format!(" 06{} [xed decode error: (2) GENERAL_ERROR]", " ".repeat(42)));
    }
}
