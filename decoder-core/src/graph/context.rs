//! CodeContexts: what besides its address decides what code does.

use crate::{
    block::Block,
    image::{AddressSpace, Asid, Image},
    mode::ExecMode,
};

/// The mode and the address space of code, and whether it is in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeContext {
    pub(super) mode: ExecMode,
    pub(super) speculative: bool,
    pub(super) space: Asid,
}

/// The contexts of a graph's blocks, by small numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeContexts {
    known: [Option<CodeContext>; Self::MOST],
    /// Whether the image's code depends on CR3, and on the VMCS.
    cr3: bool,
    vmcs: bool,
}

impl CodeContexts {
    const MOST: usize = 32;

    pub(super) const NONE: Self = Self { known: [None; Self::MOST], cr3: true, vmcs: true };

    /// Forgets the contexts, but not what the code depends on.
    pub(super) fn clear(&mut self) {
        self.known = [None; Self::MOST];
    }

    /// Ignores what the code of `image` does not depend on.
    pub(super) fn sees(&mut self, image: Image<'_>) {
        let any = |has: fn(AddressSpace) -> Option<u64>| {
            image.reader().is_some() || image.sections().iter().any(|section| has(section.space).is_some())
        };
        (self.cr3, self.vmcs) = (any(AddressSpace::cr3), any(AddressSpace::vmcs));
    }

    /// The number of a context, which may be new; `None` if there are too many.
    pub(super) fn number_of(&mut self, context: CodeContext) -> Option<u8> {
        let Asid { cr3, vmcs } = context.space;
        let space = Asid { cr3: cr3.filter(|_| self.cr3), vmcs: vmcs.filter(|_| self.vmcs) };
        let context = Some(CodeContext { space, ..context });
        let number = self.known.iter().position(|known| *known == context || known.is_none())?;
        if let Some(known) = self.known.get_mut(number) {
            *known = context;
        }
        u8::try_from(number).ok()
    }
}

impl CodeContext {
    /// A block without instructions.
    pub(super) const fn block(&self) -> Block {
        Block {
            ip: 0,
            end_ip: 0,
            insns: 0,
            section: u32::MAX,
            mode: self.mode,
            speculative: self.speculative,
            truncated: false,
        }
    }
}
