//! Generates random functions that do not have addresses yet.

use fastrand::Rng;
use pugmark_model::ExecMode;

use crate::encode;
use crate::program::{Level, Switch};

/// Size and ingredients of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
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

impl Default for Shape {
    /// A little of everything except PTWRITE, which not all processors have.
    fn default() -> Self {
        Self { kernel: 8, user: 8, lib: 4, compat: 3, blocks: 7, ptwrite: false, cr3_writes: true }
    }
}

/// A function's index in [`Code::functions`].
pub(crate) type FunctionId = usize;

/// A basic block's index in its function.
pub(crate) type BlockId = usize;

/// All functions, and the ones that the processor enters by itself.
pub(crate) struct Code {
    pub(crate) functions: Vec<Body>,
    pub(crate) start: FunctionId,
    pub(crate) user: Option<FunctionId>,
    pub(crate) syscall: FunctionId,
    pub(crate) handlers: Vec<FunctionId>,
    pub(crate) nmi: FunctionId,
}

/// One function.
pub(crate) struct Body {
    pub(crate) level: Level,
    pub(crate) blocks: Vec<Vec<Item>>,
    /// Number of INT3 bytes after the function.
    pub(crate) gap: usize,
}

/// One instruction whose targets are not addresses yet.
pub(crate) enum Item {
    Plain(Vec<u8>),
    Memory(Vec<u8>),
    Rep(Vec<u8>),
    /// The opcode of the short form (70 to 7F, E0 to E3), the target block, and in how many of 256 cases it is taken.
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
    Wrmsr(Switch),
}

/// The instruction that ends a function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Return,
    FarReturn,
    Loop,
    Sysret,
    Iret,
    EnterUser,
}

/// All functions in order. A function calls only functions with higher indices, so that nothing recurses except the
/// recursive functions.
struct Plan {
    /// Level and end of each function, in order.
    functions: Vec<(Level, End)>,
}

/// Generates the functions for `seed`.
pub(crate) fn generate(seed: u64, shape: &Shape) -> Code {
    let mut rng = Rng::with_seed(seed);
    let handlers = 2;
    let mut plan = Plan { functions: Vec::new() };
    let mut add = |level, end, count: usize| {
        let first = plan.functions.len();
        plan.functions.extend(std::iter::repeat_n((level, end), count));
        first
    };
    let has_user = shape.user > 0;
    let start = add(Level::Kernel, if has_user { End::EnterUser } else { End::Loop }, 1);
    let user = has_user.then(|| add(Level::User, End::Loop, 1));
    let syscall = add(Level::Kernel, End::Sysret, 1);
    let first_handler = add(Level::Kernel, End::Iret, handlers);
    let nmi = add(Level::Kernel, End::Iret, 1);
    add(Level::User, End::Return, shape.user);
    add(Level::Library, End::Return, if has_user { shape.lib } else { 0 });
    add(Level::Compat, End::FarReturn, usize::from(has_user && shape.compat > 0));
    add(Level::Compat, End::Return, if has_user { shape.compat.saturating_sub(1) } else { 0 });
    add(Level::Kernel, End::FarReturn, 1);
    add(Level::Kernel, End::Return, shape.kernel);

    let mut functions: Vec<Body> = (0..plan.functions.len())
        .map(|id| Maker { rng: &mut rng, shape, plan: &plan, id }.function())
        .collect();
    functions[start].blocks.insert(0, vec![Item::Wrmsr(Switch::On)]);
    shift_blocks(&mut functions[start]);
    functions[nmi].blocks = nmi_handler(&mut rng);
    Code {
        functions,
        start,
        user,
        syscall,
        handlers: (first_handler..first_handler + handlers).collect(),
        nmi,
    }
}

/// Adds one to all block references of `body`, because a block was inserted before the first.
fn shift_blocks(body: &mut Body) {
    for item in body.blocks.iter_mut().flatten() {
        match item {
            Item::Cond { to, .. }
            | Item::EndRecursion { to }
            | Item::Jump { to, .. }
            | Item::FarJump(_, to) => *to += 1,
            Item::JumpTable(_, targets) => targets.iter_mut().for_each(|to| *to += 1),
            _ => {}
        }
    }
}

/// Makes the NMI handler: it stops the trace, executes a few instructions, and starts the trace again.
fn nmi_handler(rng: &mut Rng) -> Vec<Vec<Item>> {
    let plain = |rng: &mut Rng| Item::Plain(encode::plain(ExecMode::Bits64, rng));
    vec![vec![
        plain(rng),
        Item::Wrmsr(Switch::Off),
        plain(rng),
        plain(rng),
        Item::Wrmsr(Switch::On),
        plain(rng),
        Item::Iret,
    ]]
}

struct Maker<'a> {
    rng: &'a mut Rng,
    shape: &'a Shape,
    plan: &'a Plan,
    id: FunctionId,
}

impl Maker<'_> {
    fn level(&self) -> Level {
        self.plan.functions[self.id].0
    }

    fn end(&self) -> End {
        self.plan.functions[self.id].1
    }

    fn function(&mut self) -> Body {
        let recursive = self.end() == End::Return && self.rng.u8(..5) == 0;
        let blocks = if recursive { self.recursion() } else { self.body() };
        Body { level: self.level(), blocks, gap: self.rng.usize(..32) }
    }

    /// Makes a function that calls itself until it is deep enough.
    fn recursion(&mut self) -> Vec<Vec<Item>> {
        let mut descend = self.plain_items();
        descend.push(Item::Call(self.id));
        let mut first = self.plain_items();
        first.push(Item::EndRecursion { to: 2 });
        let mut last = self.plain_items();
        last.push(Item::Return(encode::ret(self.rng)));
        vec![first, descend, last]
    }

    fn body(&mut self) -> Vec<Vec<Item>> {
        let count = 1 + self.rng.usize(..self.shape.blocks.max(1));
        let mut blocks: Vec<_> = (0..count).map(|block| self.block(block, count)).collect();
        let mut last = self.plain_items();
        last.push(match self.end() {
            End::Return => self.leave(),
            End::FarReturn if self.level() == Level::Compat => Item::FarReturn(vec![0xcb]),
            End::FarReturn => Item::FarReturn(vec![0x48, 0xcb]),
            // Not a direct jump: a trace has no packets for a loop without any other branch.
            End::Loop => Item::JumpTable(encode::jump(self.level().mode(), self.rng), vec![0]),
            End::Sysret => Item::Sysret,
            End::Iret => Item::Iret,
            End::EnterUser => Item::EnterUser,
        });
        blocks.push(last);
        blocks
    }

    /// Returns RET, a jump into another function, or, rarely, a jump that skips some callers' frames.
    fn leave(&mut self) -> Item {
        let others = self.callable(End::Return, |level, own| level == own);
        match self.rng.u8(..12) {
            0 if !others.is_empty() => Item::TailJump(self.one(&others)),
            1 if !others.is_empty() => {
                Item::IndirectTail(encode::jump(self.level().mode(), self.rng), self.some(&others))
            }
            // PUSH of a function's address, RET.
            2 if !others.is_empty() => Item::IndirectTail(vec![0xc3], self.some(&others)),
            3 => Item::Unwind(encode::jump(self.level().mode(), self.rng)),
            _ => Item::Return(encode::ret(self.rng)),
        }
    }

    /// Makes some items; the last one may branch.
    fn block(&mut self, block: BlockId, count: usize) -> Vec<Item> {
        let mut items = self.plain_items();
        let level = self.level();
        let later = |rng: &mut Rng| block + 1 + rng.usize(..count - block);
        let near = self.callable(End::Return, |other, own| other == own);
        let any = self.callable(End::Return, reachable_near);
        let far = self.callable(End::FarReturn, reachable_far);
        let wide = level != Level::Compat;
        // Handlers run in whatever an exception interrupts, so nothing they can call may raise an exception
        // unconditionally.
        let raises = level != Level::Kernel || matches!(self.end(), End::Sysret | End::EnterUser | End::Loop);
        let item = match self.rng.u8(..40) {
            0..=9 => {
                let opcode =
                    if self.rng.u8(..6) == 0 { 0xe0 + self.rng.u8(..4) } else { 0x70 + self.rng.u8(..16) };
                Item::Cond { opcode, to: later(self.rng), taken: self.rng.u8(..) }
            }
            10..=13 => {
                let to = self.rng.usize(..=block);
                Item::Cond { opcode: 0x70 + self.rng.u8(..16), to, taken: self.rng.u8(..200) }
            }
            14..=15 => Item::Jump { to: later(self.rng), short: self.rng.bool() },
            16..=17 if wide => {
                let targets = (0..1 + self.rng.usize(..5)).map(|_| later(self.rng)).collect();
                Item::JumpTable(encode::jump(self.level().mode(), self.rng), targets)
            }
            18..=24 if !near.is_empty() => Item::Call(self.one(&near)),
            25..=27 if wide && !any.is_empty() => Item::IndirectCall(encode::call(self.rng), self.some(&any)),
            28 if wide && !far.is_empty() => {
                Item::FarCall(vec![0x48, 0xff, 0x5d, self.rng.u8(..)], self.one_level(&far))
            }
            29 => Item::CallNext,
            30 if wide => Item::FarJump(vec![0x48, 0xff, 0x6d, self.rng.u8(..)], later(self.rng)),
            31 if raises => match self.rng.u8(..3) {
                0 => Item::SoftwareInterrupt(vec![0xcc], 3),
                1 => Item::SoftwareInterrupt(vec![0xf1], 1),
                _ => {
                    let vector = self.rng.u8(32..);
                    Item::SoftwareInterrupt(vec![0xcd, vector], vector)
                }
            },
            32 if raises => Item::Undefined,
            33..=34 if matches!(level, Level::User | Level::Library) => Item::Syscall,
            33 if level == Level::Kernel && self.shape.cr3_writes => Item::MovCr3,
            34 if level == Level::Kernel => Item::Sti,
            35 if level == Level::Kernel => Item::Cli,
            _ => return items,
        };
        items.push(item);
        items
    }

    /// Makes some instructions that do not branch.
    fn plain_items(&mut self) -> Vec<Item> {
        let mode = self.level().mode();
        let count = self.rng.usize(..5);
        (0..count)
            .map(|_| match self.rng.u8(..24) {
                0 => Item::Memory(encode::memory(self.rng)),
                1 if mode == ExecMode::Bits64 => Item::Rep(encode::rep(self.rng)),
                2 if self.shape.ptwrite => Item::Ptwrite(vec![0xf3, 0x0f, 0xae, 0xe0 | self.rng.u8(..8)]),
                3 if self.shape.ptwrite && mode == ExecMode::Bits64 => {
                    Item::Ptwrite(vec![0xf3, 0x48, 0x0f, 0xae, 0x60, self.rng.u8(..)])
                }
                _ => Item::Plain(encode::plain(mode, self.rng)),
            })
            .collect()
    }

    /// Returns the later functions with this end that `reachable` allows from this level.
    fn callable(&self, end: End, reachable: fn(Level, Level) -> bool) -> Vec<FunctionId> {
        let own = self.level();
        (self.id + 1..self.plan.functions.len())
            .filter(|&id| self.plan.functions[id].1 == end && reachable(self.plan.functions[id].0, own))
            .collect()
    }

    fn one(&mut self, functions: &[FunctionId]) -> FunctionId {
        functions[self.rng.usize(..functions.len())]
    }

    fn some(&mut self, functions: &[FunctionId]) -> Vec<FunctionId> {
        (0..1 + self.rng.usize(..4)).map(|_| self.one(functions)).collect()
    }

    /// Picks functions that share a level, because one far call enters one mode.
    fn one_level(&mut self, functions: &[FunctionId]) -> Vec<FunctionId> {
        vec![self.one(functions)]
    }
}

/// Returns whether code of level `own` can call a function of level `other` through a near pointer.
fn reachable_near(other: Level, own: Level) -> bool {
    match own {
        Level::User | Level::Library => matches!(other, Level::User | Level::Library),
        _ => other == own,
    }
}

/// Returns whether code of level `own` can call a function of level `other` far.
fn reachable_far(other: Level, own: Level) -> bool {
    match own {
        Level::User | Level::Library => other == Level::Compat,
        Level::Kernel => other == Level::Kernel,
        Level::Compat => false,
    }
}
