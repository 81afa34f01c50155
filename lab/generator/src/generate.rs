//! Generates random functions that do not have addresses yet.

use fastrand::Rng;
use pugmark_model::ExecMode;

use crate::encode;
use crate::program::{CodeLevel, TracingSwitch};

/// Size and ingredients of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramShape {
    /// Functions of the kernel, not counting its handlers.
    pub kernel: usize,
    /// Functions of the user's program. If 0, the kernel never leaves privilege level 0.
    pub user: usize,
    /// Functions of the library.
    pub lib: usize,
    /// Functions in 32-bit code.
    pub compat: usize,
    /// Basic blocks in a function, at most.
    pub blocks: usize,
    /// The program contains PTWRITE instructions.
    pub ptwrite: bool,
    /// The kernel writes CR3.
    pub cr3_writes: bool,
}

impl Default for ProgramShape {
    /// Returns a little of everything except PTWRITE, which some processors lack.
    fn default() -> Self {
        Self { kernel: 8, user: 8, lib: 4, compat: 3, blocks: 7, ptwrite: false, cr3_writes: true }
    }
}

/// A function's index in [`GeneratedCode::functions`].
pub(crate) type FunctionId = usize;

/// A basic block's index in its function.
pub(crate) type BlockId = usize;

/// All functions, and the entry points among them.
pub(crate) struct GeneratedCode {
    pub(crate) functions: Vec<FunctionBody>,
    pub(crate) start: FunctionId,
    pub(crate) user: Option<FunctionId>,
    pub(crate) syscall: FunctionId,
    pub(crate) handlers: Vec<FunctionId>,
    pub(crate) nmi: FunctionId,
}

/// One function.
pub(crate) struct FunctionBody {
    pub(crate) level: CodeLevel,
    pub(crate) blocks: Vec<Vec<PlannedInstruction>>,
    /// Number of INT3 bytes after the function.
    pub(crate) gap: usize,
}

/// One instruction whose targets are not addresses yet.
pub(crate) enum PlannedInstruction {
    Plain(Vec<u8>),
    Memory(Vec<u8>),
    Rep(Vec<u8>),
    /// The opcode of the short form (70 to 7F, E0 to E3), the target block, and the cases of 256 in which it is taken.
    Cond {
        opcode: u8,
        to: BlockId,
        taken: u8,
    },
    EndRecursion {
        to: BlockId,
    },
    Jump {
        to: BlockId,
        short: bool,
    },
    TailJump(FunctionId),
    JumpTable(Vec<u8>, Vec<BlockId>),
    IndirectTail(Vec<u8>, Vec<FunctionId>),
    Unwind(Vec<u8>),
    Call(FunctionId),
    CallNext,
    IndirectCall(Vec<u8>, Vec<FunctionId>),
    FarCall(Vec<u8>, Vec<FunctionId>),
    FarJump(Vec<u8>, BlockId),
    Return(Vec<u8>),
    FarReturn(Vec<u8>),
    Syscall,
    Sysret,
    Iret,
    EnterUser,
    SoftwareInterrupt(Vec<u8>, u8),
    Undefined,
    MovCr3,
    Sti,
    Cli,
    Ptwrite(Vec<u8>),
    Wrmsr(TracingSwitch),
}

/// The instruction that ends a function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FunctionEnd {
    Return,
    FarReturn,
    Loop,
    Sysret,
    Iret,
    EnterUser,
}

/// All functions in order. A function calls only functions with higher indices, so only the recursive functions
/// recurse.
struct FunctionPlan {
    /// Level and end of each function, in order.
    functions: Vec<(CodeLevel, FunctionEnd)>,
}

/// Generates the functions for `seed`.
pub(crate) fn generate(seed: u64, shape: &ProgramShape) -> GeneratedCode {
    let mut rng = Rng::with_seed(seed);
    let handlers = 2;
    let mut plan = FunctionPlan { functions: Vec::new() };
    let mut add = |level, end, count: usize| {
        let first = plan.functions.len();
        plan.functions.extend(std::iter::repeat_n((level, end), count));
        first
    };
    let has_user = shape.user > 0;
    let start = add(CodeLevel::Kernel, if has_user { FunctionEnd::EnterUser } else { FunctionEnd::Loop }, 1);
    let user = has_user.then(|| add(CodeLevel::User, FunctionEnd::Loop, 1));
    let syscall = add(CodeLevel::Kernel, FunctionEnd::Sysret, 1);
    let first_handler = add(CodeLevel::Kernel, FunctionEnd::Iret, handlers);
    let nmi = add(CodeLevel::Kernel, FunctionEnd::Iret, 1);
    add(CodeLevel::User, FunctionEnd::Return, shape.user);
    add(CodeLevel::Library, FunctionEnd::Return, if has_user { shape.lib } else { 0 });
    add(CodeLevel::Compat, FunctionEnd::FarReturn, usize::from(has_user && shape.compat > 0));
    add(CodeLevel::Compat, FunctionEnd::Return, if has_user { shape.compat.saturating_sub(1) } else { 0 });
    add(CodeLevel::Kernel, FunctionEnd::FarReturn, 1);
    add(CodeLevel::Kernel, FunctionEnd::Return, shape.kernel);

    let mut functions: Vec<FunctionBody> = (0..plan.functions.len())
        .map(|id| FunctionGenerator { rng: &mut rng, shape, plan: &plan, id }.function())
        .collect();
    functions[start].blocks.insert(0, vec![PlannedInstruction::Wrmsr(TracingSwitch::On)]);
    shift_blocks(&mut functions[start]);
    functions[nmi].blocks = nmi_handler(&mut rng);
    GeneratedCode {
        functions,
        start,
        user,
        syscall,
        handlers: (first_handler..first_handler + handlers).collect(),
        nmi,
    }
}

/// Adds one to all block references of `body`, because a block was inserted before the first.
fn shift_blocks(body: &mut FunctionBody) {
    for item in body.blocks.iter_mut().flatten() {
        match item {
            PlannedInstruction::Cond { to, .. }
            | PlannedInstruction::EndRecursion { to }
            | PlannedInstruction::Jump { to, .. }
            | PlannedInstruction::FarJump(_, to) => *to += 1,
            PlannedInstruction::JumpTable(_, targets) => targets.iter_mut().for_each(|to| *to += 1),
            _ => {}
        }
    }
}

/// Makes the NMI handler: it stops the trace, executes a few instructions, and starts the trace again.
fn nmi_handler(rng: &mut Rng) -> Vec<Vec<PlannedInstruction>> {
    let plain = |rng: &mut Rng| PlannedInstruction::Plain(encode::plain(ExecMode::Bits64, rng));
    vec![vec![
        plain(rng),
        PlannedInstruction::Wrmsr(TracingSwitch::Off),
        plain(rng),
        plain(rng),
        PlannedInstruction::Wrmsr(TracingSwitch::On),
        plain(rng),
        PlannedInstruction::Iret,
    ]]
}

struct FunctionGenerator<'a> {
    rng: &'a mut Rng,
    shape: &'a ProgramShape,
    plan: &'a FunctionPlan,
    id: FunctionId,
}

impl FunctionGenerator<'_> {
    fn level(&self) -> CodeLevel {
        self.plan.functions[self.id].0
    }

    fn end(&self) -> FunctionEnd {
        self.plan.functions[self.id].1
    }

    fn function(&mut self) -> FunctionBody {
        let recursive = self.end() == FunctionEnd::Return && self.rng.u8(..5) == 0;
        let blocks = if recursive { self.recursive_body() } else { self.body() };
        FunctionBody { level: self.level(), blocks, gap: self.rng.usize(..32) }
    }

    /// Makes a function that calls itself up to a chosen depth.
    fn recursive_body(&mut self) -> Vec<Vec<PlannedInstruction>> {
        let mut descend = self.straight_line_code();
        descend.push(PlannedInstruction::Call(self.id));
        let mut first = self.straight_line_code();
        first.push(PlannedInstruction::EndRecursion { to: 2 });
        let mut last = self.straight_line_code();
        last.push(PlannedInstruction::Return(encode::ret(self.rng)));
        vec![first, descend, last]
    }

    fn body(&mut self) -> Vec<Vec<PlannedInstruction>> {
        let count = 1 + self.rng.usize(..self.shape.blocks.max(1));
        let mut blocks: Vec<_> = (0..count).map(|block| self.block(block, count)).collect();
        let mut last = self.straight_line_code();
        last.push(match self.end() {
            FunctionEnd::Return => self.return_or_tail_jump(),
            FunctionEnd::FarReturn if self.level() == CodeLevel::Compat => {
                PlannedInstruction::FarReturn(vec![0xcb])
            }
            FunctionEnd::FarReturn => PlannedInstruction::FarReturn(vec![0x48, 0xcb]),
            // An indirect jump: a trace has no packets for a loop of direct jumps.
            FunctionEnd::Loop => {
                PlannedInstruction::JumpTable(encode::jump(self.level().mode(), self.rng), vec![0])
            }
            FunctionEnd::Sysret => PlannedInstruction::Sysret,
            FunctionEnd::Iret => PlannedInstruction::Iret,
            FunctionEnd::EnterUser => PlannedInstruction::EnterUser,
        });
        blocks.push(last);
        blocks
    }

    /// Returns RET, a jump into another function, or, rarely, a jump that discards callers' frames.
    fn return_or_tail_jump(&mut self) -> PlannedInstruction {
        let others = self.callable(FunctionEnd::Return, |level, own| level == own);
        match self.rng.u8(..12) {
            0 if !others.is_empty() => PlannedInstruction::TailJump(self.pick_one(&others)),
            1 if !others.is_empty() => PlannedInstruction::IndirectTail(
                encode::jump(self.level().mode(), self.rng),
                self.pick_some(&others),
            ),
            // PUSH of a function's address, RET.
            2 if !others.is_empty() => PlannedInstruction::IndirectTail(vec![0xc3], self.pick_some(&others)),
            3 => PlannedInstruction::Unwind(encode::jump(self.level().mode(), self.rng)),
            _ => PlannedInstruction::Return(encode::ret(self.rng)),
        }
    }

    /// Makes some items; the last one may branch.
    fn block(&mut self, block: BlockId, count: usize) -> Vec<PlannedInstruction> {
        let mut items = self.straight_line_code();
        let level = self.level();
        let later = |rng: &mut Rng| block + 1 + rng.usize(..count - block);
        let near = self.callable(FunctionEnd::Return, |other, own| other == own);
        let any = self.callable(FunctionEnd::Return, reachable_near);
        let far = self.callable(FunctionEnd::FarReturn, reachable_far);
        let wide = level != CodeLevel::Compat;
        // Handlers run inside any function that raises an exception, so no function that they call may raise one
        // unconditionally.
        let raises = level != CodeLevel::Kernel
            || matches!(self.end(), FunctionEnd::Sysret | FunctionEnd::EnterUser | FunctionEnd::Loop);
        let item = match self.rng.u8(..40) {
            0..=9 => {
                let opcode =
                    if self.rng.u8(..6) == 0 { 0xe0 + self.rng.u8(..4) } else { 0x70 + self.rng.u8(..16) };
                PlannedInstruction::Cond { opcode, to: later(self.rng), taken: self.rng.u8(..) }
            }
            10..=13 => {
                let to = self.rng.usize(..=block);
                PlannedInstruction::Cond { opcode: 0x70 + self.rng.u8(..16), to, taken: self.rng.u8(..200) }
            }
            14..=15 => PlannedInstruction::Jump { to: later(self.rng), short: self.rng.bool() },
            16..=17 if wide => {
                let targets = (0..1 + self.rng.usize(..5)).map(|_| later(self.rng)).collect();
                PlannedInstruction::JumpTable(encode::jump(self.level().mode(), self.rng), targets)
            }
            18..=24 if !near.is_empty() => PlannedInstruction::Call(self.pick_one(&near)),
            25..=27 if wide && !any.is_empty() => {
                PlannedInstruction::IndirectCall(encode::call(self.rng), self.pick_some(&any))
            }
            28 if wide && !far.is_empty() => PlannedInstruction::FarCall(
                vec![0x48, 0xff, 0x5d, self.rng.u8(..)],
                self.pick_of_one_level(&far),
            ),
            29 => PlannedInstruction::CallNext,
            30 if wide => {
                PlannedInstruction::FarJump(vec![0x48, 0xff, 0x6d, self.rng.u8(..)], later(self.rng))
            }
            31 if raises => match self.rng.u8(..3) {
                0 => PlannedInstruction::SoftwareInterrupt(vec![0xcc], 3),
                1 => PlannedInstruction::SoftwareInterrupt(vec![0xf1], 1),
                _ => {
                    let vector = self.rng.u8(32..);
                    PlannedInstruction::SoftwareInterrupt(vec![0xcd, vector], vector)
                }
            },
            32 if raises => PlannedInstruction::Undefined,
            33..=34 if matches!(level, CodeLevel::User | CodeLevel::Library) => PlannedInstruction::Syscall,
            33 if level == CodeLevel::Kernel && self.shape.cr3_writes => PlannedInstruction::MovCr3,
            34 if level == CodeLevel::Kernel => PlannedInstruction::Sti,
            35 if level == CodeLevel::Kernel => PlannedInstruction::Cli,
            _ => return items,
        };
        items.push(item);
        items
    }

    /// Makes some instructions that do not branch.
    fn straight_line_code(&mut self) -> Vec<PlannedInstruction> {
        let mode = self.level().mode();
        let count = self.rng.usize(..5);
        (0..count)
            .map(|_| match self.rng.u8(..24) {
                0 => PlannedInstruction::Memory(encode::memory(self.rng)),
                1 if mode == ExecMode::Bits64 => PlannedInstruction::Rep(encode::rep(self.rng)),
                2 if self.shape.ptwrite => {
                    PlannedInstruction::Ptwrite(vec![0xf3, 0x0f, 0xae, 0xe0 | self.rng.u8(..8)])
                }
                3 if self.shape.ptwrite && mode == ExecMode::Bits64 => {
                    PlannedInstruction::Ptwrite(vec![0xf3, 0x48, 0x0f, 0xae, 0x60, self.rng.u8(..)])
                }
                _ => PlannedInstruction::Plain(encode::plain(mode, self.rng)),
            })
            .collect()
    }

    /// Returns the later functions with this end that `reachable` allows from this level.
    fn callable(&self, end: FunctionEnd, reachable: fn(CodeLevel, CodeLevel) -> bool) -> Vec<FunctionId> {
        let own = self.level();
        (self.id + 1..self.plan.functions.len())
            .filter(|&id| self.plan.functions[id].1 == end && reachable(self.plan.functions[id].0, own))
            .collect()
    }

    fn pick_one(&mut self, functions: &[FunctionId]) -> FunctionId {
        functions[self.rng.usize(..functions.len())]
    }

    fn pick_some(&mut self, functions: &[FunctionId]) -> Vec<FunctionId> {
        (0..1 + self.rng.usize(..4)).map(|_| self.pick_one(functions)).collect()
    }

    /// Picks functions that share a level, because one far call enters one mode.
    fn pick_of_one_level(&mut self, functions: &[FunctionId]) -> Vec<FunctionId> {
        vec![self.pick_one(functions)]
    }
}

/// Returns whether code of level `own` can call a function of level `other` through a near pointer.
fn reachable_near(other: CodeLevel, own: CodeLevel) -> bool {
    match own {
        CodeLevel::User | CodeLevel::Library => matches!(other, CodeLevel::User | CodeLevel::Library),
        _ => other == own,
    }
}

/// Returns whether code of level `own` can call a function of level `other` far.
fn reachable_far(other: CodeLevel, own: CodeLevel) -> bool {
    match own {
        CodeLevel::User | CodeLevel::Library => other == CodeLevel::Compat,
        CodeLevel::Kernel => other == CodeLevel::Kernel,
        CodeLevel::Compat => false,
    }
}
