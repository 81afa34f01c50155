//! Assigns addresses to functions and encodes the instructions that refer to them.

use std::collections::HashMap;

use crate::generate::{FunctionBody, FunctionId, GeneratedCode, PlannedInstruction};
use crate::program::{CodeLevel, EntryPoints, Flow, Function, Instruction, Program, Section};

/// INT3, the filler between functions.
const FILLER: u8 = 0xcc;

/// Lays out `code` in memory.
pub(crate) fn lay_out(code: GeneratedCode) -> Program {
    let near: Vec<_> = code.functions.iter().map(near_forms).collect();
    let mut next = CodeLevel::ALL.map(CodeLevel::base);
    let mut starts = Vec::new();
    for (body, near) in code.functions.iter().zip(&near) {
        let next = &mut next[body.level as usize];
        starts.push(*next);
        *next += offsets(body, near).end as u64 + body.gap as u64;
    }
    let mut program = Program {
        sections: CodeLevel::ALL
            .iter()
            .map(|level| Section { base: level.base(), bytes: Vec::new() })
            .collect(),
        functions: Vec::new(),
        instructions: HashMap::new(),
        entries: EntryPoints {
            start: starts[code.start],
            user: code.user.map_or(0, |user| starts[user]),
            syscall: starts[code.syscall],
            handlers: code.handlers.iter().map(|&handler| starts[handler]).collect(),
            nmi: starts[code.nmi],
        },
    };
    for (id, body) in code.functions.iter().enumerate() {
        let linker = Linker {
            code: &code,
            starts: &starts,
            body,
            offsets: offsets(body, &near[id]),
            start: starts[id],
        };
        linker.place(&near[id], &mut program);
    }
    program.sections.retain(|section| !section.bytes.is_empty());
    program
}

/// Offsets of the blocks in a function.
struct Offsets {
    blocks: Vec<usize>,
    end: usize,
}

/// For each item of each block: `true` if the target is out of reach of the short form.
type NearForms = Vec<Vec<bool>>;

fn near_forms(body: &FunctionBody) -> NearForms {
    let short = |item: &PlannedInstruction| !matches!(item, PlannedInstruction::Jump { short: false, .. });
    let mut near: NearForms =
        body.blocks.iter().map(|block| block.iter().map(|item| !short(item)).collect()).collect();
    loop {
        let offsets = offsets(body, &near);
        let mut changed = false;
        for (block, items) in body.blocks.iter().enumerate() {
            let mut end = offsets.blocks[block];
            for (at, item) in items.iter().enumerate() {
                end += size(item, near[block][at]);
                let (PlannedInstruction::Cond { to, .. }
                | PlannedInstruction::EndRecursion { to }
                | PlannedInstruction::Jump { to, .. }) = item
                else {
                    continue;
                };
                let reaches = i8::try_from(offsets.blocks[*to] as i64 - end as i64).is_ok();
                if !reaches && !near[block][at] {
                    near[block][at] = true;
                    changed = true;
                }
            }
        }
        if !changed {
            return near;
        }
    }
}

fn offsets(body: &FunctionBody, near: &NearForms) -> Offsets {
    let mut end = 0;
    let mut blocks = Vec::new();
    for (items, near) in body.blocks.iter().zip(near) {
        blocks.push(end);
        end += items.iter().zip(near).map(|(item, &near)| size(item, near)).sum::<usize>();
    }
    Offsets { blocks, end }
}

/// Returns the size of an item. A conditional branch with only a short form is combined with a near jump.
fn size(item: &PlannedInstruction, near: bool) -> usize {
    match item {
        PlannedInstruction::Plain(bytes)
        | PlannedInstruction::Memory(bytes)
        | PlannedInstruction::Rep(bytes)
        | PlannedInstruction::Ptwrite(bytes) => bytes.len(),
        PlannedInstruction::JumpTable(bytes, _)
        | PlannedInstruction::IndirectTail(bytes, _)
        | PlannedInstruction::Unwind(bytes) => bytes.len(),
        PlannedInstruction::IndirectCall(bytes, _)
        | PlannedInstruction::FarCall(bytes, _)
        | PlannedInstruction::FarJump(bytes, _) => bytes.len(),
        PlannedInstruction::Return(bytes)
        | PlannedInstruction::FarReturn(bytes)
        | PlannedInstruction::SoftwareInterrupt(bytes, _) => bytes.len(),
        PlannedInstruction::Cond { opcode: 0xe0.., .. } if near => 2 + 2 + 5,
        PlannedInstruction::Cond { .. } | PlannedInstruction::EndRecursion { .. } => {
            if near {
                6
            } else {
                2
            }
        }
        PlannedInstruction::Jump { .. } => {
            if near {
                5
            } else {
                2
            }
        }
        PlannedInstruction::TailJump(_) | PlannedInstruction::Call(_) | PlannedInstruction::CallNext => 5,
        PlannedInstruction::Syscall | PlannedInstruction::Undefined | PlannedInstruction::Wrmsr(_) => 2,
        PlannedInstruction::Iret | PlannedInstruction::EnterUser => 2,
        PlannedInstruction::Sysret | PlannedInstruction::MovCr3 => 3,
        PlannedInstruction::Sti | PlannedInstruction::Cli => 1,
    }
}

struct Linker<'a> {
    code: &'a GeneratedCode,
    starts: &'a [u64],
    body: &'a FunctionBody,
    offsets: Offsets,
    start: u64,
}

impl Linker<'_> {
    /// Appends the function to its section.
    fn place(&self, near: &NearForms, program: &mut Program) {
        let end = self.start + self.offsets.end as u64;
        program.functions.push(Function { range: self.start..=end - 1, level: self.body.level });
        let mut bytes = Vec::new();
        for (items, near) in self.body.blocks.iter().zip(near) {
            for (item, &near) in items.iter().zip(near) {
                for (encoded, flow) in self.encode(item, near, self.start + bytes.len() as u64) {
                    let instruction = Instruction { len: encoded.len(), flow };
                    program.instructions.insert(self.start + bytes.len() as u64, instruction);
                    bytes.extend(encoded);
                }
            }
        }
        debug_assert_eq!(bytes.len(), self.offsets.end);
        bytes.resize(bytes.len() + self.body.gap, FILLER);
        program.sections[self.body.level as usize].bytes.extend(bytes);
    }

    /// Encodes the item at `at`: one instruction, or several if only a short form exists and the target is out of its
    /// reach.
    fn encode(&self, item: &PlannedInstruction, near: bool, at: u64) -> Vec<(Vec<u8>, Flow)> {
        let block = |to: usize| self.start + self.offsets.blocks[to] as u64;
        let function = |id: &FunctionId| self.starts[*id];
        let one = |bytes: &[u8], flow| vec![(bytes.to_vec(), flow)];
        match item {
            PlannedInstruction::Plain(bytes) => one(bytes, Flow::Next),
            PlannedInstruction::Memory(bytes) => one(bytes, Flow::MayFault),
            PlannedInstruction::Rep(bytes) => one(bytes, Flow::Rep),
            PlannedInstruction::Ptwrite(bytes) => one(bytes, Flow::Ptwrite),
            &PlannedInstruction::Cond { opcode, to, taken } => {
                let target = block(to);
                if opcode >= 0xe0 && near {
                    // LOOP +2; JMP over; JMP target.
                    let to_jump = at + 4;
                    let over = at + 9;
                    return vec![
                        (vec![opcode, 2], Flow::Cond { target: to_jump, taken }),
                        (vec![0xeb, 5], Flow::Jump(over)),
                        (branch(&[0xe9], to_jump, target), Flow::Jump(target)),
                    ];
                }
                vec![(conditional(opcode, near, at, target), Flow::Cond { target, taken })]
            }
            &PlannedInstruction::EndRecursion { to } => {
                let target = block(to);
                vec![(conditional(0x74, near, at, target), Flow::EndRecursion { target })]
            }
            &PlannedInstruction::Jump { to, .. } => {
                let target = block(to);
                let bytes = if near { branch(&[0xe9], at, target) } else { short(0xeb, at, target) };
                vec![(bytes, Flow::Jump(target))]
            }
            PlannedInstruction::TailJump(id) => {
                vec![(branch(&[0xe9], at, function(id)), Flow::Jump(function(id)))]
            }
            PlannedInstruction::JumpTable(bytes, to) => {
                one(bytes, Flow::IndirectJump(to.iter().map(|&to| block(to)).collect()))
            }
            PlannedInstruction::IndirectTail(bytes, to) => {
                one(bytes, Flow::IndirectJump(to.iter().map(function).collect()))
            }
            PlannedInstruction::Unwind(bytes) => one(bytes, Flow::Unwind),
            PlannedInstruction::Call(id) => {
                vec![(branch(&[0xe8], at, function(id)), Flow::Call(function(id)))]
            }
            PlannedInstruction::CallNext => one(&[0xe8, 0, 0, 0, 0], Flow::CallNext),
            PlannedInstruction::IndirectCall(bytes, to) => {
                one(bytes, Flow::IndirectCall(to.iter().map(function).collect()))
            }
            PlannedInstruction::FarCall(bytes, to) => {
                let mode = to.first().map_or(self.body.level, |&id| self.code.functions[id].level).mode();
                one(bytes, Flow::FarCall(to.iter().map(function).collect(), mode))
            }
            PlannedInstruction::FarJump(bytes, to) => one(bytes, Flow::FarJump(block(*to))),
            PlannedInstruction::Return(bytes) => one(bytes, Flow::Return),
            PlannedInstruction::FarReturn(bytes) => one(bytes, Flow::FarReturn),
            PlannedInstruction::Syscall => one(&[0x0f, 0x05], Flow::Syscall),
            PlannedInstruction::Sysret => one(&[0x48, 0x0f, 0x07], Flow::Sysret),
            PlannedInstruction::Iret => one(&[0x48, 0xcf], Flow::Iret),
            PlannedInstruction::EnterUser => one(&[0x48, 0xcf], Flow::EnterUser),
            PlannedInstruction::SoftwareInterrupt(bytes, vector) => {
                one(bytes, Flow::SoftwareInterrupt(*vector))
            }
            PlannedInstruction::Undefined => one(&[0x0f, 0x0b], Flow::Undefined),
            PlannedInstruction::MovCr3 => one(&[0x0f, 0x22, 0xd8], Flow::MovCr3),
            PlannedInstruction::Sti => one(&[0xfb], Flow::Sti),
            PlannedInstruction::Cli => one(&[0xfa], Flow::Cli),
            PlannedInstruction::Wrmsr(switch) => one(&[0x0f, 0x30], Flow::Wrmsr(*switch)),
        }
    }
}

/// Encodes Jcc (or LOOP, JRCXZ in the short form) to `target`.
fn conditional(opcode: u8, near: bool, at: u64, target: u64) -> Vec<u8> {
    if near { branch(&[0x0f, opcode + 0x10], at, target) } else { short(opcode, at, target) }
}

/// Encodes an opcode with 32 bits of displacement.
fn branch(opcode: &[u8], at: u64, target: u64) -> Vec<u8> {
    let end = at + opcode.len() as u64 + 4;
    let mut bytes = opcode.to_vec();
    bytes.extend((target.wrapping_sub(end) as u32).to_le_bytes());
    bytes
}

/// Encodes an opcode with 8 bits of displacement.
fn short(opcode: u8, at: u64, target: u64) -> Vec<u8> {
    vec![opcode, target.wrapping_sub(at + 2) as u8]
}
