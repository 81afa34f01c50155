//! Derives calls, and edges between blocks, from the executed addresses.

use anyhow::{Context, Result, ensure};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use crate::truth::Record;

/// The symbol of the stubs of all interrupts, in `lab/machine`.
const STUBS: &str = "trap_stubs";

/// The symbol of a program's file in the kernel's, in `lab/examples/machine`.
const EMBEDDED: &str = "program_file";

/// Returns whether an interrupt came after an instruction, where the execution went on at `to`: no branch leads to the
/// stubs of interrupts.
pub(super) fn is_interrupted(program: &ExampleProgram, instruction: &Instruction, to: u64) -> bool {
    to != instruction.next_ip() && program.name(to) == STUBS
}

/// An image: its code and its functions.
pub(super) struct ExampleProgram {
    segments: Vec<(u64, Vec<u8>)>,
    /// Address, length and name of each function.
    functions: BTreeMap<u64, (u64, String)>,
}

/// The entry of a function by a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// The address of its first instruction.
    pub(super) to: u64,
    /// The function's name, without the hash; `?` if it has none.
    pub(super) name: String,
    /// Number of calls that have not returned, including this one.
    pub(super) depth: i64,
}

/// The entry of a function by a call or by another function's jump, or of an interrupt's stub by the interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entered {
    /// The address of its first instruction; `None` if the function was interrupted before that, and so is unknown.
    pub(super) to: Option<u64>,
    /// The function's name, without the hash; `?` if it has none.
    pub(super) name: String,
}

impl Entered {
    /// Returns true if a kernel has printed this entry: address and name.
    pub(super) fn is_printed_as(&self, line: &str) -> bool {
        self.to.is_none_or(|to| line == format!("{to:#x} {}", self.name))
    }
}

/// The properties of a path that NMIs interrupt.
pub(super) struct Summary {
    /// Number of edges taken: one to each block.
    pub(super) edges: u64,
    /// Sources and targets of transfers elsewhere than to the next instruction.
    pub(super) transfers: Vec<(u64, u64)>,
}

impl ExampleProgram {
    /// Reads an ELF file, and the program in it, if there is one.
    pub(super) fn read(image: &Path) -> Result<Self> {
        let file = std::fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
        let elf = object::File::parse(&*file).with_context(|| format!("{} is no ELF", image.display()))?;
        let mut all = Self::of(&elf)?;
        if let Some(symbol) = elf.symbol_by_name(EMBEDDED) {
            let section = elf.section_by_index(symbol.section_index().context("a file without bytes")?)?;
            let file =
                section.data_range(symbol.address(), symbol.size())?.context("a file without bytes")?;
            let program = Self::of(&object::File::parse(file).context("the program is no ELF")?)?;
            all.segments.extend(program.segments);
            all.functions.extend(program.functions);
        }
        Ok(all)
    }

    /// Reads the file of a UEFI application, which was loaded at this address.
    pub(super) fn read_at(image: &Path, base: u64) -> Result<Self> {
        let file = std::fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
        let pe = object::File::parse(&*file).with_context(|| format!("{} is no PE file", image.display()))?;
        let Self { segments, functions } = Self::of(&pe)?;
        let loaded = |address: u64| address - pe.relative_address_base() + base;
        let starts: Vec<u64> = functions.keys().copied().collect();
        // Its symbols have no sizes: a function ends where the next one begins.
        let next = starts.iter().skip(1).copied().chain([u64::MAX]);
        let functions = functions.into_iter().zip(next);
        Ok(Self {
            segments: segments.into_iter().map(|(address, bytes)| (loaded(address), bytes)).collect(),
            functions: functions
                .map(|((start, (_, name)), next)| (loaded(start), (next - start, name)))
                .collect(),
        })
    }

    fn of(elf: &object::File<'_>) -> Result<Self> {
        let segments = elf.segments().map(|segment| Ok((segment.address(), segment.data()?.to_vec())));
        let functions =
            elf.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
        let functions = functions.map(|symbol| {
            let name = format!("{:#}", rustc_demangle::demangle(symbol.name()?));
            Ok((symbol.address(), (symbol.size().max(1), name)))
        });
        Ok(Self { segments: segments.collect::<Result<_>>()?, functions: functions.collect::<Result<_>>()? })
    }

    /// Returns the calls on a path, in order, with their depths.
    pub(super) fn calls(&self, path: &[Record]) -> Result<Vec<Call>> {
        let (mut calls, mut depth) = (Vec::new(), 0);
        self.transfers(path, |instruction, to| match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall if to != instruction.next_ip() => {
                depth += 1;
                calls.push(Call { to, name: self.name(to), depth });
            }
            FlowControl::Return => depth -= 1,
            _ => {}
        })?;
        Ok(calls)
    }

    /// Returns the target of each call instruction on a path that an interrupt may interrupt, but for calls of the next
    /// instruction. An interrupt comes before no target of an indirect call.
    pub(super) fn call_instructions(&self, path: &[Record]) -> Result<Vec<u64>> {
        let mut calls = Vec::new();
        self.steps(path, |instruction, to| {
            let target = match instruction.flow_control() {
                FlowControl::Call => instruction.near_branch_target(),
                FlowControl::IndirectCall => to,
                _ => return Ok(()),
            };
            calls.extend((target != instruction.next_ip()).then_some(target));
            Ok(())
        })?;
        Ok(calls)
    }

    /// Returns the entries on a path that an NMI may interrupt, by calls, by tail calls and by the interrupt.
    pub(super) fn calls_and_interrupts(&self, path: &[Record]) -> Result<Vec<Entered>> {
        let mut entered = Vec::new();
        self.steps(path, |instruction, to| {
            let next = instruction.next_ip();
            let target = instruction.near_branch_target();
            let interrupted = is_interrupted(self, instruction, to);
            let call = |to| Entered { to: Some(to), name: self.name(to) };
            match instruction.flow_control() {
                // It was called and interrupted before its first instruction.
                FlowControl::Call if interrupted => entered.push(call(target)),
                FlowControl::IndirectCall if interrupted => {
                    entered.push(Entered { to: None, name: String::new() });
                }
                FlowControl::Call | FlowControl::IndirectCall if !interrupted && to != next => {
                    entered.push(call(to));
                }
                FlowControl::UnconditionalBranch if self.begins_another(instruction.ip(), target) => {
                    entered.push(call(target));
                }
                FlowControl::ConditionalBranch if self.begins_another(instruction.ip(), target) => {
                    ensure!(!interrupted, "nobody knows whether {:#x} jumped", instruction.ip());
                    if to == target {
                        entered.push(call(target));
                    }
                }
                FlowControl::IndirectBranch if self.begins_another(instruction.ip(), to) => {
                    entered.push(call(to));
                }
                _ => {}
            }
            if interrupted {
                entered.push(call(to));
            }
            Ok(())
        })?;
        Ok(entered)
    }

    /// Returns the edges on a path, as the decoder defines them: a block ends with each branch that the code alone does
    /// not decide. A block's place is the upper 16 bits of its address times an odd number; an edge is the place of its
    /// second block, exclusive-or half the place of its first one.
    pub(super) fn edges(&self, path: &[Record]) -> Result<HashSet<u16>> {
        let (mut edges, mut before) = (HashSet::new(), 0);
        let mut block = |ip: u64| {
            let place = (ip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16;
            edges.insert(place ^ before);
            before = place >> 1;
        };
        block(path.first().context("nothing was executed")?.rip);
        self.transfers(path, |instruction, to| match instruction.flow_control() {
            FlowControl::ConditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::IndirectCall
            | FlowControl::Return => block(to),
            _ => {}
        })?;
        Ok(edges)
    }

    /// Returns the summary of a processor's execution, with the NMIs that interrupted it.
    pub(super) fn summary(&self, path: &[Record]) -> Result<Summary> {
        let mut summary = Summary { edges: 1, transfers: Vec::new() };
        self.steps(path, |instruction, to| {
            let next = instruction.next_ip();
            // An interrupt is detected where the instruction alone decides the next address. Tracing goes off and on
            // where the handler writes the control register.
            let ends_block = match instruction.flow_control() {
                FlowControl::UnconditionalBranch | FlowControl::Call => {
                    to != instruction.near_branch_target()
                }
                FlowControl::Next => to != next || instruction.mnemonic() == Mnemonic::Wrmsr,
                _ => true,
            };
            summary.edges += u64::from(ends_block);
            if to != next {
                summary.transfers.push((instruction.ip(), to));
            }
            Ok(())
        })?;
        Ok(summary)
    }

    /// Calls `visit` with each instruction and the next executed address; nothing interrupts the path.
    fn transfers(&self, path: &[Record], mut visit: impl FnMut(&Instruction, u64)) -> Result<()> {
        self.steps(path, |instruction, to| {
            let goes_on = instruction.flow_control() == FlowControl::Next;
            let follows = !goes_on || to == instruction.next_ip();
            ensure!(follows, "{to:#x} does not follow {:#x}: an interrupt", instruction.ip());
            visit(instruction, to);
            Ok(())
        })
    }

    /// Calls `visit` with each instruction and the next executed address.
    pub(super) fn steps(
        &self,
        path: &[Record],
        mut visit: impl FnMut(&Instruction, u64) -> Result<()>,
    ) -> Result<()> {
        let mut known: HashMap<u64, Instruction> = HashMap::new();
        for pair in path.windows(2) {
            let [from, to] = [pair[0].rip, pair[1].rip];
            let instruction = match known.get(&from) {
                Some(instruction) => *instruction,
                None => self.instruction(from)?,
            };
            known.insert(from, instruction);
            visit(&instruction, to)?;
        }
        Ok(())
    }

    fn instruction(&self, ip: u64) -> Result<Instruction> {
        let bytes = self.segments.iter().find_map(|(start, bytes)| {
            bytes.get(usize::try_from(ip.checked_sub(*start)?).ok()?..).filter(|bytes| !bytes.is_empty())
        });
        let bytes = bytes.with_context(|| format!("the image has no code at {ip:#x}"))?;
        Ok(Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode())
    }

    /// Returns the start and the name of the function at an address.
    fn function(&self, address: u64) -> Option<(u64, &str)> {
        let (start, (size, name)) = self.functions.range(..=address).next_back()?;
        (address - start < *size).then_some((*start, name))
    }

    /// Returns true if a function begins at `to` and does not contain `from`.
    fn begins_another(&self, from: u64, to: u64) -> bool {
        let start = |address| self.function(address).map(|(start, _)| start);
        start(to) == Some(to) && start(from) != Some(to)
    }

    pub(super) fn name(&self, address: u64) -> String {
        self.function(address).map_or_else(|| "?".into(), |(_, name)| name.into())
    }
}
