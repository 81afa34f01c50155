//! Instructions: how libipt goes past one, and which events bind to it.

use super::block::{BlockInsn, SectionId};
use crate::code::Code;
use pugmark_decoder_core::{
    image::{Asid, Image, Window},
    insn::{self, Class, Insn, InsnError, MAX_LEN, Op},
    mode::ExecMode,
};

/// The part of an image in which instructions were found last, and the place to look for others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory<'a> {
    image: Image<'a>,
    space: Asid,
    window: Window<'a>,
}

/// An instruction that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetched {
    pub(super) insn: Insn,
    pub(super) section: SectionId,
    /// True if it goes on in another section.
    pub(super) truncated: bool,
}

impl<'a> Memory<'a> {
    pub(super) fn new(image: Image<'a>) -> Self {
        Self { image, space: Asid::default(), window: Window::default() }
    }

    pub(super) fn image(&self) -> Image<'a> {
        self.image
    }

    pub(super) fn space(&self) -> Asid {
        self.space
    }

    pub(super) fn set_image(&mut self, image: Image<'a>) {
        (self.image, self.window) = (image, Window::default());
    }

    pub(super) fn set_space(&mut self, space: Asid) {
        (self.space, self.window) = (space, Window::default());
    }

    /// Returns the section at an address.
    pub(super) fn window(&mut self, ip: u64) -> Result<Window<'a>, Code> {
        if self.window.from(ip).is_empty() {
            self.window = self.image.window(ip, self.space).ok_or(Code::NotMapped)?;
        }
        Ok(self.window)
    }

    /// Reads the instruction at an address.
    pub(super) fn fetch(&mut self, ip: u64, mode: Option<ExecMode>) -> Result<Fetched, Code> {
        // libipt takes code of an unknown mode for 16-bit code.
        let mode = mode.unwrap_or(ExecMode::Bits16);
        let window = self.window(ip)?;
        let section = (window.base, window.bytes.as_ptr().addr());
        match insn::decode(window.from(ip), mode, ip) {
            Ok(insn) => return Ok(Fetched { insn, section, truncated: false }),
            Err(InsnError::Truncated) => {}
            Err(_) => return Err(Code::BadInstruction),
        }
        let mut bytes = [0; MAX_LEN];
        let len = self.image.read(ip, self.space, &mut bytes);
        match insn::decode(bytes.get(..len).unwrap_or_default(), mode, ip) {
            Ok(insn) => Ok(Fetched { insn, section, truncated: true }),
            Err(_) => Err(Code::BadInstruction),
        }
    }
}

impl BlockInsn {
    /// Returns the address after the instruction.
    pub(super) const fn end(&self) -> u64 {
        self.insn.next(self.ip)
    }

    /// Returns the address of the next instruction; `None` if only the trace gives it.
    pub(super) fn next_ip(&self) -> Option<u64> {
        match self.insn.class {
            Class::Other | Class::Ptwrite => Some(self.end()),
            Class::NearJump | Class::NearCall => self.insn.target,
            _ => None,
        }
    }

    /// Returns true for a jump or call that needs no trace.
    pub(super) const fn is_direct(&self) -> bool {
        matches!(self.insn.class, Class::NearJump | Class::NearCall)
    }

    /// Returns the return address, if the instruction is a near call that libipt pushes.
    pub(super) fn return_address(&self) -> Option<u64> {
        let is_call = match self.insn.class {
            // A call of the next instruction only reads the address.
            Class::NearCall => self.insn.target != Some(self.end()),
            class => class == Class::IndirectCall,
        };
        is_call.then_some(self.end())
    }
}

pub(super) const fn writes_cr3(insn: &Insn) -> bool {
    matches!(insn.op, Op::MovToCr3)
}

pub(super) const fn binds_to_pip(insn: &Insn) -> bool {
    insn.class.is_far() || writes_cr3(insn)
}

pub(super) const fn binds_to_vmcs(insn: &Insn) -> bool {
    insn.class.is_far() || matches!(insn.op, Op::Vmptrld)
}

pub(super) const fn is_ptwrite(insn: &Insn) -> bool {
    matches!(insn.class, Class::Ptwrite)
}

pub(super) const fn is_iret(insn: &Insn) -> bool {
    matches!(insn.op, Op::Iret | Op::Sysret | Op::Sysexit | Op::Eret)
}

pub(super) const fn is_vm_entry(insn: &Insn) -> bool {
    matches!(insn.op, Op::VmEntry)
}

pub(super) const fn is_uiret(insn: &Insn) -> bool {
    matches!(insn.op, Op::Uiret)
}

pub(super) const fn is_software_interrupt(insn: &Insn) -> bool {
    matches!(insn.op, Op::IntN | Op::Int3 | Op::Int1 | Op::Into)
}

pub(super) const fn is_system_call(insn: &Insn) -> bool {
    matches!(insn.op, Op::Syscall | Op::Sysenter)
}
