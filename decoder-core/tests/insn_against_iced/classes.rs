//! Converts iced's description of an instruction to the classes of this crate.

use iced_x86::{Code, FlowControl, Instruction};
use pugmark_decoder_core::insn::Class;

/// Returns the class of `insn`, and true if it has a direct target.
pub(crate) fn class(insn: &Instruction) -> (Class, bool) {
    let class = match insn.code() {
        Code::Ptwrite_rm32 | Code::Ptwrite_rm64 => Class::Ptwrite,
        Code::Vmcall | Code::Tdcall | Code::Seamcall | Code::Syscall | Code::Sysenter => Class::FarCall,
        Code::Vmlaunch | Code::Vmresume | Code::Seamret => Class::FarReturn,
        Code::Iretw | Code::Iretd | Code::Iretq => Class::FarReturn,
        Code::Retfw | Code::Retfd | Code::Retfq => Class::FarReturn,
        Code::Retfw_imm16 | Code::Retfd_imm16 | Code::Retfq_imm16 => Class::FarReturn,
        Code::Sysretd | Code::Sysretq | Code::Sysexitd | Code::Sysexitq => Class::FarReturn,
        Code::Rsm | Code::Uiret | Code::Erets | Code::Eretu => Class::FarReturn,
        // AMD's virtualization, which no processor with Intel PT has.
        Code::Vmmcall | Code::Vmgexit | Code::Vmgexit_F2 => Class::Other,
        Code::Vmrunw | Code::Vmrund | Code::Vmrunq | Code::Skinit => Class::Other,
        _ if insn.is_jmp_far() || insn.is_jmp_far_indirect() => Class::FarJump,
        _ if insn.is_call_far() || insn.is_call_far_indirect() => Class::FarCall,
        _ => return near(insn.flow_control()),
    };
    (class, false)
}

/// Returns the class of an instruction that is not a far transfer, and true if it has a direct target.
fn near(flow: FlowControl) -> (Class, bool) {
    match flow {
        FlowControl::ConditionalBranch => (Class::CondJump, true),
        FlowControl::UnconditionalBranch => (Class::NearJump, true),
        FlowControl::Call => (Class::NearCall, true),
        FlowControl::IndirectBranch => (Class::IndirectJump, false),
        FlowControl::IndirectCall => (Class::IndirectCall, false),
        FlowControl::Return => (Class::NearReturn, false),
        FlowControl::Interrupt => (Class::FarCall, false),
        // UD0, UD1 and UD2 fault. After XBEGIN, XABORT and XEND the next instruction follows; an abort is an event.
        FlowControl::Next | FlowControl::Exception | FlowControl::XbeginXabortXend => (Class::Other, false),
    }
}
