//! Decodes the instructions that the records of the truth name only by address.

use anyhow::{Context, Result, ensure};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions,
    Mnemonic, OpAccess, Register,
};
use std::collections::HashMap;

use crate::code::Code;
use crate::truth::Record;

/// The properties of an instruction that the judges need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Length in bytes.
    pub len: u64,
    /// Execution can continue elsewhere than at the next instruction.
    pub branch: bool,
    /// The instruction is a far transfer.
    pub far: bool,
    /// The privilege level to which it leads, if the instruction alone decides it: SYSCALL and SYSRET.
    pub leads_to: Option<u8>,
    /// The instruction ends a handler: IRET.
    pub returns_from_handler: bool,
    /// Number of ops, as in the model of AMD's processors: 8 for microcoded instructions, 2 for near calls and returns
    /// and for an instruction that loads from and stores to the same place, otherwise 1. No manual lists these numbers.
    pub ops: u64,
}

/// The instructions of some code.
#[derive(Debug)]
pub struct Instructions {
    code: Vec<Code>,
    known: HashMap<(usize, u64), Kind>,
}

impl Instructions {
    /// Returns the instructions of this 64-bit code.
    #[must_use]
    pub fn new(code: Vec<Code>) -> Self {
        Self { code, known: HashMap::new() }
    }

    /// Returns the instruction of a record.
    ///
    /// # Errors
    /// If there is no code, or no valid instruction, at the record's address.
    pub fn of(&mut self, record: &Record) -> Result<Kind> {
        let Record { rip, cr3, .. } = *record;
        let holds = |code: &Code| {
            let in_space = code.cr3.is_none_or(|space| space >> 12 == cr3 >> 12);
            in_space && rip.checked_sub(code.base).is_some_and(|at| at < code.bytes.len() as u64)
        };
        let index = self.code.iter().position(holds);
        let index = index.with_context(|| format!("there is no code at {rip:#x} under CR3 {cr3:#x}"))?;
        if let Some(kind) = self.known.get(&(index, rip)) {
            return Ok(*kind);
        }
        let Code { base, bytes, .. } = &self.code[index];
        let instruction =
            Decoder::with_ip(64, &bytes[(rip - base) as usize..], rip, DecoderOptions::NONE).decode();
        ensure!(!instruction.is_invalid(), "there is no instruction at {rip:#x}");
        let kind = Kind::of(&instruction);
        self.known.insert((index, rip), kind);
        Ok(kind)
    }
}

impl Kind {
    fn of(instruction: &Instruction) -> Self {
        use Mnemonic::{Hlt, Iret, Iretd, Iretq, Mov, Mwait, Retf, Syscall, Sysret, Sysretq};
        let mnemonic = instruction.mnemonic();
        let returns_from_handler = matches!(mnemonic, Iret | Iretd | Iretq);
        let far = returns_from_handler
            || matches!(mnemonic, Retf | Syscall | Sysret | Sysretq)
            || instruction.is_call_far()
            || instruction.is_call_far_indirect()
            || instruction.is_jmp_far()
            || instruction.is_jmp_far_indirect();
        let flow = instruction.flow_control();
        let branch = !matches!(flow, FlowControl::Next | FlowControl::Exception);
        let to_cr3 = mnemonic == Mov && instruction.op0_register() == Register::CR3;
        let ops = if far || to_cr3 || matches!(mnemonic, Hlt | Mwait) {
            8
        } else if matches!(flow, FlowControl::Call | FlowControl::IndirectCall | FlowControl::Return)
            || changes_memory(instruction)
        {
            2
        } else {
            1
        };
        let leads_to = match mnemonic {
            Syscall => Some(0),
            Sysret | Sysretq => Some(3),
            _ => None,
        };
        let len = instruction.len() as u64;
        Self { len, branch, far, leads_to, returns_from_handler, ops }
    }
}

/// Returns true if the instruction also stores to the first place that it loads from.
fn changes_memory(instruction: &Instruction) -> bool {
    use OpAccess::{CondRead, Read, ReadCondWrite, ReadWrite};
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info_options(instruction, InstructionInfoOptions::NO_REGISTER_USAGE);
    let mut accesses = info.used_memory().iter().map(|memory| memory.access());
    let first = accesses.find(|access| matches!(access, Read | CondRead | ReadWrite | ReadCondWrite));
    matches!(first, Some(ReadWrite | ReadCondWrite))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::truth::RecordFlags;

    const fn record(rip: u64, cr3: u64) -> Record {
        Record { rip, cr3, session: 1, flags: RecordFlags::new(0), cpu: 0 }
    }

    #[test]
    fn bytes_tell_lengths_branches_far_transfers_and_ops() {
        // Bytes; `true` if it is a branch, a far transfer, an IRET; its ops.
        let rows: [(&[u8], bool, bool, bool, u64); 15] = [
            (&[0x90], false, false, false, 1),
            (&[0x74, 0x10], true, false, false, 1),
            (&[0xe2, 0x10], true, false, false, 1),
            (&[0xeb, 0x10], true, false, false, 1),
            (&[0xff, 0xe0], true, false, false, 1),
            (&[0xe8, 0, 0, 0, 0], true, false, false, 2),
            (&[0xff, 0xd0], true, false, false, 2),
            (&[0xc3], true, false, false, 2),
            (&[0x48, 0xcf], true, true, true, 8),
            (&[0x0f, 0x05], true, true, false, 8),
            (&[0x48, 0x0f, 0x07], true, true, false, 8),
            (&[0x0f, 0x22, 0xd8], false, false, false, 8),
            (&[0xf4], false, false, false, 8),
            // add [rax], rcx; push [rax].
            (&[0x48, 0x01, 0x08], false, false, false, 2),
            (&[0xff, 0x30], false, false, false, 1),
        ];
        for (bytes, branch, far, returns_from_handler, ops) in rows {
            let code = Code { base: 0x100, bytes: bytes.to_vec(), cr3: None };
            let found = Instructions::new(vec![code]).of(&record(0x100, 0)).unwrap();
            let leads_to = match bytes {
                [0x0f, 0x05] => Some(0),
                [0x48, 0x0f, 0x07] => Some(3),
                _ => None,
            };
            let len = bytes.len() as u64;
            assert_eq!(found, Kind { len, branch, far, leads_to, returns_from_handler, ops }, "{bytes:02x?}");
        }
    }

    #[test]
    fn an_address_space_has_its_own_code() {
        let code = |byte, cr3| Code { base: 0x100, bytes: vec![byte, 0xc3], cr3 };
        let mut instructions = Instructions::new(vec![code(0x90, Some(0x5000)), code(0xc3, Some(0x6000))]);
        let branch = |instructions: &mut Instructions, rip, cr3| {
            instructions.of(&record(rip, cr3)).ok().map(|kind| kind.branch)
        };
        assert_eq!(branch(&mut instructions, 0x100, 0x5001), Some(false));
        assert_eq!(branch(&mut instructions, 0x100, 0x6000), Some(true));
        assert_eq!(branch(&mut instructions, 0x101, 0x5000), Some(true));
        assert_eq!(branch(&mut instructions, 0x102, 0x5000), None);
        assert_eq!(branch(&mut instructions, 0x100, 0x7000), None);
    }
}
