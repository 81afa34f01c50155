//! Contexts of code: the state, besides its address, that determines what code does.

use crate::{
    block::Block,
    image::{AddressSpace, Asid, Image},
    mode::ExecMode,
};

/// The mode and the address space of code, and its transaction state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeContext {
    pub(super) mode: ExecMode,
    pub(super) speculative: bool,
    pub(super) space: Asid,
}

/// The contexts of a block cache's blocks, by small numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeContexts {
    known: [Option<CodeContext>; Self::MOST],
    /// True if the image's code depends on CR3 (`cr3`), or on the VMCS (`vmcs`).
    cr3: bool,
    vmcs: bool,
}

impl CodeContexts {
    const MOST: usize = 32;

    pub(super) const NONE: Self = Self { known: [None; Self::MOST], cr3: true, vmcs: true };

    /// Forgets the contexts, but not the dependencies of the code.
    pub(super) fn clear(&mut self) {
        self.known = [None; Self::MOST];
    }

    /// Ignores state that the code of `image` does not depend on.
    pub(super) fn sees(&mut self, image: Image<'_>) {
        let any = |has: fn(AddressSpace) -> Option<u64>| {
            image.reader().is_some() || image.sections().iter().any(|section| has(section.space).is_some())
        };
        (self.cr3, self.vmcs) = (any(AddressSpace::cr3), any(AddressSpace::vmcs));
    }

    /// Returns the number of a context, which may be new; `None` if there are too many.
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
    /// Returns a block without instructions in this context.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Section;

    extern crate std;
    use std::vec::Vec;

    fn context(cr3: u64, vmcs: u64) -> CodeContext {
        let space = Asid { cr3: Some(cr3), vmcs: Some(vmcs) };
        CodeContext { mode: ExecMode::Bits64, speculative: false, space }
    }

    #[test]
    fn only_what_the_code_depends_on_makes_a_new_context() {
        const SPACES: [AddressSpace; 4] = [
            AddressSpace::Any,
            AddressSpace::Cr3(0x1000),
            AddressSpace::Vmcs(0x2000),
            AddressSpace::Guest { vmcs: 0x2000, cr3: 0x1000 },
        ];
        // Alternating CR3 and VMCS.
        let numbers = |contexts: &mut CodeContexts| {
            [(1, 1), (2, 1), (1, 2), (2, 2), (1, 1)]
                .map(|(cr3, vmcs)| contexts.number_of(context(cr3 << 12, vmcs << 12)).expect("there is room"))
        };
        let expected = [[0; 5], [0, 1, 0, 1, 0], [0, 0, 1, 1, 0], [0, 1, 2, 3, 0]];
        for (space, expected) in SPACES.into_iter().zip(expected) {
            let plain = Section { base: 0, bytes: &[0x90], space: AddressSpace::Any };
            let sections = [plain, Section { base: 0x1000, bytes: &[0x90], space }];
            let mut contexts = CodeContexts::NONE;
            contexts.sees(Image::new(&sections));
            assert_eq!(numbers(&mut contexts), expected, "{space:x?}");
            contexts.clear();
            assert_eq!(numbers(&mut contexts), expected, "{space:x?}, after it was cleared");
        }
    }

    #[test]
    fn there_are_as_many_contexts_as_have_room() {
        let mut contexts = CodeContexts::NONE;
        let numbers: Vec<_> = (0..34).map(|cr3| contexts.number_of(context(cr3 << 12, 0))).collect();
        let expected: Vec<_> = (0..34).map(|number| (number < 32).then_some(number)).collect();
        assert_eq!(numbers, expected);
    }
}
