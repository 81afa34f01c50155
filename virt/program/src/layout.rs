//! Assigns addresses to functions and encodes the instructions that refer to them.

use std::collections::HashMap;

use crate::generate::{Body, Code, FunctionId, Item};
use crate::program::{Entries, Flow, Function, Instruction, Level, Program, Section};

/// INT3, the filler between functions.
const FILLER: u8 = 0xcc;

/// Lays out `code` in memory.
pub(crate) fn lay_out(code: Code) -> Program {
    let near: Vec<_> = code.functions.iter().map(near_forms).collect();
    let mut next = Level::ALL.map(Level::base);
    let mut starts = Vec::new();
    for (body, near) in code.functions.iter().zip(&near) {
        let next = &mut next[body.level as usize];
        starts.push(*next);
        *next += offsets(body, near).end as u64 + body.gap as u64;
    }
    let mut program = Program {
        sections: Level::ALL.iter().map(|level| Section { base: level.base(), bytes: Vec::new() }).collect(),
        functions: Vec::new(),
        instructions: HashMap::new(),
        entries: Entries {
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

/// For each item of each block: whether a branch must have the near form because the short one does not reach.
type NearForms = Vec<Vec<bool>>;

fn near_forms(body: &Body) -> NearForms {
    let short = |item: &Item| !matches!(item, Item::Jump { short: false, .. });
    let mut near: NearForms =
        body.blocks.iter().map(|block| block.iter().map(|item| !short(item)).collect()).collect();
    loop {
        let offsets = offsets(body, &near);
        let mut changed = false;
        for (block, items) in body.blocks.iter().enumerate() {
            let mut end = offsets.blocks[block];
            for (at, item) in items.iter().enumerate() {
                end += size(item, near[block][at]);
                let (Item::Cond { to, .. } | Item::EndRecursion { to } | Item::Jump { to, .. }) = item else {
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

fn offsets(body: &Body, near: &NearForms) -> Offsets {
    let mut end = 0;
    let mut blocks = Vec::new();
    for (items, near) in body.blocks.iter().zip(near) {
        blocks.push(end);
        end += items.iter().zip(near).map(|(item, &near)| size(item, near)).sum::<usize>();
    }
    Offsets { blocks, end }
}

/// Returns the size of an item. A conditional branch with only a short form is combined with a near jump.
fn size(item: &Item, near: bool) -> usize {
    match item {
        Item::Plain(bytes) | Item::Memory(bytes) | Item::Rep(bytes) | Item::Ptwrite(bytes) => bytes.len(),
        Item::JumpTable(bytes, _) | Item::IndirectTail(bytes, _) | Item::Unwind(bytes) => bytes.len(),
        Item::IndirectCall(bytes, _) | Item::FarCall(bytes, _) | Item::FarJump(bytes, _) => bytes.len(),
        Item::Return(bytes) | Item::FarReturn(bytes) | Item::SoftwareInterrupt(bytes, _) => bytes.len(),
        Item::Cond { opcode: 0xe0.., .. } if near => 2 + 2 + 5,
        Item::Cond { .. } | Item::EndRecursion { .. } => {
            if near {
                6
            } else {
                2
            }
        }
        Item::Jump { .. } => {
            if near {
                5
            } else {
                2
            }
        }
        Item::TailJump(_) | Item::Call(_) | Item::CallNext => 5,
        Item::Syscall | Item::Undefined | Item::Wrmsr(_) => 2,
        Item::Iret | Item::EnterUser => 2,
        Item::Sysret | Item::MovCr3 => 3,
        Item::Sti | Item::Cli => 1,
    }
}

struct Linker<'a> {
    code: &'a Code,
    starts: &'a [u64],
    body: &'a Body,
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

    /// Encodes the item at `at`: one instruction, except for a conditional branch with only a short form that does not
    /// reach.
    fn encode(&self, item: &Item, near: bool, at: u64) -> Vec<(Vec<u8>, Flow)> {
        let block = |to: usize| self.start + self.offsets.blocks[to] as u64;
        let function = |id: &FunctionId| self.starts[*id];
        let one = |bytes: &[u8], flow| vec![(bytes.to_vec(), flow)];
        match item {
            Item::Plain(bytes) => one(bytes, Flow::Next),
            Item::Memory(bytes) => one(bytes, Flow::MayFault),
            Item::Rep(bytes) => one(bytes, Flow::Rep),
            Item::Ptwrite(bytes) => one(bytes, Flow::Ptwrite),
            &Item::Cond { opcode, to, taken } => {
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
            &Item::EndRecursion { to } => {
                let target = block(to);
                vec![(conditional(0x74, near, at, target), Flow::EndRecursion { target })]
            }
            &Item::Jump { to, .. } => {
                let target = block(to);
                let bytes = if near { branch(&[0xe9], at, target) } else { short(0xeb, at, target) };
                vec![(bytes, Flow::Jump(target))]
            }
            Item::TailJump(id) => vec![(branch(&[0xe9], at, function(id)), Flow::Jump(function(id)))],
            Item::JumpTable(bytes, to) => {
                one(bytes, Flow::IndirectJump(to.iter().map(|&to| block(to)).collect()))
            }
            Item::IndirectTail(bytes, to) => {
                one(bytes, Flow::IndirectJump(to.iter().map(function).collect()))
            }
            Item::Unwind(bytes) => one(bytes, Flow::Unwind),
            Item::Call(id) => vec![(branch(&[0xe8], at, function(id)), Flow::Call(function(id)))],
            Item::CallNext => one(&[0xe8, 0, 0, 0, 0], Flow::CallNext),
            Item::IndirectCall(bytes, to) => {
                one(bytes, Flow::IndirectCall(to.iter().map(function).collect()))
            }
            Item::FarCall(bytes, to) => {
                let mode = to.first().map_or(self.body.level, |&id| self.code.functions[id].level).mode();
                one(bytes, Flow::FarCall(to.iter().map(function).collect(), mode))
            }
            Item::FarJump(bytes, to) => one(bytes, Flow::FarJump(block(*to))),
            Item::Return(bytes) => one(bytes, Flow::Return),
            Item::FarReturn(bytes) => one(bytes, Flow::FarReturn),
            Item::Syscall => one(&[0x0f, 0x05], Flow::Syscall),
            Item::Sysret => one(&[0x48, 0x0f, 0x07], Flow::Sysret),
            Item::Iret => one(&[0x48, 0xcf], Flow::Iret),
            Item::EnterUser => one(&[0x48, 0xcf], Flow::EnterUser),
            Item::SoftwareInterrupt(bytes, vector) => one(bytes, Flow::SoftwareInterrupt(*vector)),
            Item::Undefined => one(&[0x0f, 0x0b], Flow::Undefined),
            Item::MovCr3 => one(&[0x0f, 0x22, 0xd8], Flow::MovCr3),
            Item::Sti => one(&[0xfb], Flow::Sti),
            Item::Cli => one(&[0xfa], Flow::Cli),
            Item::Wrmsr(switch) => one(&[0x0f, 0x30], Flow::Wrmsr(*switch)),
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
