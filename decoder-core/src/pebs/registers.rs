//! The general-purpose registers in a PEBS record.

/// RFLAGS, RIP and the general-purpose registers after the instruction that caused the record.
///
/// Outside IA-32e mode registers have 32 bits, and those that are not defined are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Registers {
    /// RFLAGS.
    pub rflags: u64,
    /// RIP: the instruction to be executed next.
    pub rip: u64,
    /// RAX.
    pub rax: u64,
    /// RBX.
    pub rbx: u64,
    /// RCX.
    pub rcx: u64,
    /// RDX.
    pub rdx: u64,
    /// RSI.
    pub rsi: u64,
    /// RDI.
    pub rdi: u64,
    /// RBP.
    pub rbp: u64,
    /// RSP.
    pub rsp: u64,
    /// R8 to R15.
    pub r8_r15: [u64; 8],
}

/// The vector registers that an architectural record has besides XMM0 to XMM15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VectorRegisters<'a> {
    /// Bits 255:128 of YMM0 to YMM15.
    pub ymm_high: Option<&'a [u8; 256]>,
    /// The opmask registers k0 to k7.
    pub opmask: Option<&'a [u8; 64]>,
    /// Bits 511:256 of ZMM0 to ZMM15.
    pub zmm_high: Option<&'a [u8; 512]>,
    /// ZMM16 to ZMM31.
    pub zmm_16_31: Option<&'a [u8; 1024]>,
}

/// The number of registers in a record of 64-bit fields.
pub(super) const WORDS: usize = 18;

impl Registers {
    /// Returns the registers in the order of the fixed formats.
    pub(super) fn fixed(self) -> [u64; WORDS] {
        let Self { rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8_r15 } = self;
        with_tail([rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp], r8_r15)
    }

    pub(super) fn from_fixed(words: [u64; WORDS]) -> Self {
        let [rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, ..] = words;
        Self { rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8_r15: tail(words) }
    }

    /// Returns the registers in the order of the adaptive format: by their numbers in instructions.
    pub(super) fn adaptive(self) -> [u64; WORDS] {
        let Self { rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8_r15 } = self;
        with_tail([rflags, rip, rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi], r8_r15)
    }

    pub(super) fn from_adaptive(words: [u64; WORDS]) -> Self {
        let [rflags, rip, rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, ..] = words;
        Self { rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8_r15: tail(words) }
    }
}

fn with_tail(head: [u64; 10], tail: [u64; 8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let (first, last) = words.split_at_mut(10);
    first.copy_from_slice(&head);
    last.copy_from_slice(&tail);
    words
}

fn tail(words: [u64; WORDS]) -> [u64; 8] {
    let [.., a, b, c, d, e, f, g, h] = words;
    [a, b, c, d, e, f, g, h]
}
