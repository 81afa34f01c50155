//! Checks the execution with iced-x86: every step is an instruction of the program, and its successor is legal.

use std::collections::BTreeMap;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction};
use pugmark_generator::{CodeLevel, EventRates, Execution, ExecutionStep, Program, ProgramShape};
use pugmark_model::{Context, DeliveryKind, ExecMode, Retired};

const PROGRAMS: u64 = 200;
const STEPS: usize = 3000;

fn shape(seed: u64) -> ProgramShape {
    let mut shape = ProgramShape { ptwrite: seed.is_multiple_of(2), ..ProgramShape::default() };
    if seed.is_multiple_of(5) {
        shape.user = 0;
    }
    shape
}

fn decode(retired: &Retired) -> Instruction {
    let bits = match retired.before.mode {
        ExecMode::Bits16 => 16,
        ExecMode::Bits32 => 32,
        ExecMode::Bits64 => 64,
    };
    Decoder::with_ip(bits, retired.bytes, retired.before.ip, DecoderOptions::NONE).decode()
}

/// Returns whether `insn` can lead to where the execution went. The target of a return is not checked here.
fn is_legal(insn: &Instruction, before: &Context, after: &Context) -> bool {
    let next = after.ip == insn.next_ip();
    let same = Context { ip: after.ip, ..*before } == *after;
    match insn.code() {
        Code::Syscall => before.cpl == 3 && after.cpl == 0 && !after.iflag,
        Code::Sysretq => before.cpl == 0 && after.cpl == 3,
        Code::Iretq => before.cpl == 0,
        Code::Mov_cr_r64 => {
            next && before.cpl == 0
                && Context { cr3: before.cr3, ..*after } == Context { ip: after.ip, ..*before }
        }
        Code::Sti | Code::Cli => {
            next && before.cpl == 0
                && Context { iflag: before.iflag, ..*after } == Context { ip: after.ip, ..*before }
        }
        Code::Call_m1664 | Code::Retfq | Code::Retfd => before.cpl == after.cpl,
        Code::Jmp_m1664 => same,
        Code::Wrmsr => next && same && before.cpl == 0,
        _ => {
            same && match insn.flow_control() {
                FlowControl::Next => next,
                FlowControl::ConditionalBranch => next || after.ip == insn.near_branch_target(),
                FlowControl::UnconditionalBranch | FlowControl::Call => after.ip == insn.near_branch_target(),
                FlowControl::IndirectBranch | FlowControl::IndirectCall | FlowControl::Return => true,
                _ => false,
            }
        }
    }
}

#[test]
fn every_step_is_an_instruction_with_a_legal_successor() {
    for seed in 0..PROGRAMS {
        let program = Program::generate(seed, &shape(seed));
        let mut execution = Execution::new(&program, seed, EventRates::default());
        for at in 0..STEPS {
            let before = execution.context();
            let step = execution.next().expect("an execution never ends");
            if at % 500 == 499 {
                execution.request_nmi();
            }
            let after = match step {
                ExecutionStep::Retired(retired) | ExecutionStep::Switch(_, retired) => {
                    let insn = decode(&retired);
                    assert_eq!(insn.len(), retired.bytes.len(), "{seed}: {retired:x?}");
                    assert_eq!(retired.before, before, "{seed}");
                    assert!(is_legal(&insn, &before, &retired.after), "{seed}: {insn:?} {retired:x?}");
                    retired.after
                }
                ExecutionStep::Delivered(delivery) => {
                    assert_eq!(delivery.before, before, "{seed}");
                    assert_eq!((delivery.after.cpl, delivery.after.mode), (0, ExecMode::Bits64));
                    assert!(
                        before.iflag || delivery.kind != DeliveryKind::Interrupt,
                        "{seed}: {delivery:x?}"
                    );
                    delivery.after
                }
            };
            assert_eq!(execution.context(), after, "{seed}");
        }
    }
}

#[test]
fn the_same_seed_executes_the_same() {
    let execution = |seed| {
        let program = Program::generate(seed, &ProgramShape::default());
        let steps: Vec<_> = Execution::new(&program, seed, EventRates::default())
            .take(500)
            .map(|step| format!("{step:?}"))
            .collect();
        steps
    };
    assert_eq!(execution(3), execution(3));
    assert_ne!(execution(3), execution(4));
}

#[test]
fn the_executions_show_everything() {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let mut deepest = 0;
    for seed in 0..PROGRAMS {
        let program = Program::generate(seed, &shape(seed));
        let mut depth = 0u32;
        let mut execution = Execution::new(&program, seed, EventRates::default());
        execution.request_nmi();
        for step in execution.take(STEPS) {
            let mut count = |what: String| *seen.entry(what).or_default() += 1;
            match step {
                ExecutionStep::Retired(retired) => {
                    let insn = decode(&retired);
                    count(format!("level {} {:?}", retired.before.cpl, retired.before.mode));
                    count(format!("{:?}", insn.flow_control()));
                    count(format!("{:?}", insn.code()));
                    match insn.flow_control() {
                        FlowControl::Call | FlowControl::IndirectCall => depth += 1,
                        FlowControl::Return => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    deepest = deepest.max(depth);
                }
                ExecutionStep::Switch(switch, _) => count(format!("{switch:?}")),
                ExecutionStep::Delivered(delivery) => {
                    count(format!("{:?} from {}", delivery.kind, delivery.before.cpl))
                }
            }
        }
    }
    let wanted = [
        "level 0 Bits64",
        "level 3 Bits64",
        "level 3 Bits32",
        "Next",
        "UnconditionalBranch",
        "ConditionalBranch",
        "IndirectBranch",
        "Call",
        "IndirectCall",
        "Return",
        "Syscall",
        "Sysretq",
        "Iretq",
        "Mov_cr_r64",
        "Call_m1664",
        "Retfq",
        "Retfd",
        "Jmp_m1664",
        "Ptwrite_rm32",
        "Ptwrite_rm64",
        "Loop_rel8_64_RCX",
        "Jrcxz_rel8_64",
        "On",
        "Off",
        "Interrupt from 0",
        "Interrupt from 3",
        "Nmi from 0",
        "Fault from 0",
        "Fault from 3",
        "Trap from 0",
        "Trap from 3",
        "SoftwareInterrupt from 0",
        "SoftwareInterrupt from 3",
    ];
    for what in wanted {
        assert!(seen.get(what).is_some_and(|&times| times >= 10), "{what}: {:?}\n{seen:#?}", seen.get(what));
    }
    assert!(deepest > 100, "{deepest}");
}

#[test]
fn functions_and_sections_hold_the_instructions() {
    for seed in 0..20 {
        let program = Program::generate(seed, &ProgramShape::default());
        for (address, instruction) in program.instructions() {
            let inside = |function: &&pugmark_generator::Function| {
                function.range.contains(&address)
                    && function.range.contains(&(address + instruction.len as u64 - 1))
            };
            assert_eq!(program.functions().iter().filter(inside).count(), 1, "{seed}: {address:#x}");
            assert!(program.bytes_at(address).len() >= instruction.len);
        }
        for level in [CodeLevel::Kernel, CodeLevel::User, CodeLevel::Library, CodeLevel::Compat] {
            assert!(program.functions().iter().any(|function| function.level == level), "{seed}: {level:?}");
        }
        assert_eq!(program.bytes_at(program.start())[..2], [0x0f, 0x30]);
    }
}
