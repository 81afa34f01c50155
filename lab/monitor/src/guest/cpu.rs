//! The architectural state of the guest's processor that event delivery and emulation read and write.

/// Bits of RFLAGS. Source: SDM vol. 3, System Architecture Overview, "System Flags and Fields in the EFLAGS Register".
pub mod rflags {
    /// Carry.
    pub const CF: u64 = 1 << 0;
    /// Always 1.
    pub const FIXED: u64 = 1 << 1;
    /// Trap: a debug exception follows each instruction.
    pub const TF: u64 = 1 << 8;
    /// Maskable interrupts are taken.
    pub const IF: u64 = 1 << 9;
    /// Direction of string instructions: down.
    pub const DF: u64 = 1 << 10;
    /// Overflow.
    pub const OF: u64 = 1 << 11;
    /// I/O privilege level, two bits.
    pub const IOPL: u64 = 3 << 12;
    /// Nested task.
    pub const NT: u64 = 1 << 14;
    /// Resume: suppresses an instruction breakpoint at the next instruction.
    pub const RF: u64 = 1 << 16;
    /// Virtual-8086 mode.
    pub const VM: u64 = 1 << 17;
    /// Alignment check, or access control if CR4.SMAP is set.
    pub const AC: u64 = 1 << 18;
    /// Virtual interrupt flag.
    pub const VIF: u64 = 1 << 19;
    /// Virtual interrupt pending.
    pub const VIP: u64 = 1 << 20;
    /// CPUID is available.
    pub const ID: u64 = 1 << 21;
    /// CF, PF, AF, ZF, SF, DF and OF: the flags that code of any privilege level may change.
    pub const STATUS_AND_DF: u64 = 0xcd5;
}

/// Bits of CR0. Source: SDM vol. 3, System Architecture Overview, "Control Registers".
pub mod cr0 {
    /// Protected mode.
    pub const PE: u64 = 1 << 0;
    /// Always 1: there is an x87 unit.
    pub const ET: u64 = 1 << 4;
    /// Supervisor-mode writes respect read-only pages.
    pub const WP: u64 = 1 << 16;
    /// Not write-through.
    pub const NW: u64 = 1 << 29;
    /// Caches are disabled.
    pub const CD: u64 = 1 << 30;
    /// Paging is enabled.
    pub const PG: u64 = 1 << 31;
}

/// Bits of CR4. Source: SDM vol. 3, System Architecture Overview, "Control Registers".
pub mod cr4 {
    /// Protected-mode virtual interrupts.
    pub const PVI: u64 = 1 << 1;
    /// 4 MiB pages in 32-bit paging.
    pub const PSE: u64 = 1 << 4;
    /// Paging-structure entries have 64 bits.
    pub const PAE: u64 = 1 << 5;
    /// Five levels of page tables.
    pub const LA57: u64 = 1 << 12;
    /// No execution of user pages at CPL below 3.
    pub const SMEP: u64 = 1 << 20;
    /// No access to user pages at CPL below 3 without RFLAGS.AC.
    pub const SMAP: u64 = 1 << 21;
    /// RDPMC is allowed at every privilege level.
    pub const PCE: u64 = 1 << 8;
}

/// Bits of IA32_EFER. Source: SDM vol. 3, System Architecture Overview, "Extended Feature Enable Register".
pub mod efer {
    /// SYSCALL and SYSRET are enabled.
    pub const SCE: u64 = 1 << 0;
    /// Long mode is active.
    pub const LMA: u64 = 1 << 10;
    /// Bit 63 of a paging-structure entry forbids execution.
    pub const NXE: u64 = 1 << 11;
}

/// Bits of DR6. Source: SDM vol. 3, Debug, Branch Profile, TSC, "Debug Status Register (DR6)".
pub(super) mod dr6 {
    /// A breakpoint condition of DR0 to DR3 was met.
    pub(in crate::guest) const B: u64 = 0xf;
    /// Debug register access detected.
    pub(in crate::guest) const BD: u64 = 1 << 13;
    /// Single step.
    pub(in crate::guest) const BS: u64 = 1 << 14;
    /// The bits that software may write: B, BD, BS and BT.
    pub(in crate::guest) const WRITABLE: u64 = 0xe00f;
    /// The bits that read as 1.
    pub(in crate::guest) const FIXED: u64 = 0xffff_0ff0;
}

/// Bits of DR7. Source: SDM vol. 3, Debug, Branch Profile, TSC, "Debug Control Register (DR7)".
pub(super) mod dr7 {
    /// A breakpoint of DR0 to DR3 is enabled, locally or globally.
    pub(in crate::guest) const ENABLED: u64 = 0xff;
    /// General detect enable.
    pub(in crate::guest) const GD: u64 = 1 << 13;
}

/// The general registers, numbered as in an instruction's encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the registers'")]
pub enum Gpr {
    Rax,
    Rcx,
    Rdx,
    Rbx,
    Rsp,
    Rbp,
    Rsi,
    Rdi,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

/// A segment register with its hidden part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The visible selector.
    pub selector: u16,
    /// As in the VMCB: type 3:0, S 4, DPL 6:5, P 7, AVL 8, L 9, D/B 10, G 11. Attributes of 0 mark a null segment.
    pub attributes: u16,
    /// The limit in bytes, with the granularity applied.
    pub limit: u32,
    /// The base.
    pub base: u64,
}

impl Segment {
    /// Type bit 0: accessed.
    pub(super) const ACCESSED: u16 = 1 << 0;
    /// Type bit 1: writable data, or readable code.
    pub(super) const READ_WRITE: u16 = 1 << 1;
    /// Type bit 2: conforming code, or expand-down data.
    pub(super) const CONFORMING: u16 = 1 << 2;
    /// Type bit 3: code.
    pub(super) const CODE: u16 = 1 << 3;
    /// S: a code or data segment, not a system segment.
    pub(super) const S: u16 = 1 << 4;
    /// P: present.
    pub(super) const P: u16 = 1 << 7;
    /// L: 64-bit code.
    pub(super) const L: u16 = 1 << 9;
    /// D/B: 32-bit operands, addresses and stack pointer.
    pub(super) const DB: u16 = 1 << 10;
    /// G: the limit counts pages instead of bytes.
    pub(super) const G: u16 = 1 << 11;

    /// Returns a flat segment (base 0, largest limit), as SYSCALL, SYSRET, SYSENTER and SYSEXIT load it.
    pub(super) const fn flat(selector: u16, attributes: u16) -> Self {
        Self { selector, attributes, limit: u32::MAX, base: 0 }
    }

    pub(super) const fn has(&self, bits: u16) -> bool {
        self.attributes & bits == bits
    }

    pub(super) const fn dpl(&self) -> u8 {
        (self.attributes >> 5 & 3) as u8
    }
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorTableRegister {
    /// The linear address of the table.
    pub base: u64,
    /// The offset of the last byte.
    pub limit: u16,
}

/// The instruction that opened an interrupt shadow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shadow {
    /// STI: no interrupt is taken before the end of the next instruction.
    Sti,
    /// MOV SS or POP SS: no interrupt, NMI or debug trap is taken before the end of the next instruction.
    MovSs,
}

/// The mode of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Real-address mode.
    Real,
    /// Virtual-8086 mode.
    Virtual8086,
    /// Protected mode; CS.D selects 16-bit or 32-bit code.
    Protected,
    /// Compatibility mode; CS.D selects 16-bit or 32-bit code.
    Compatibility,
    /// 64-bit mode.
    Bits64,
}

/// The guest's processor as the guest's software sees it, without any bit that the monitor has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// The general registers in the order of [`Gpr`].
    pub gpr: [u64; 16],
    /// RIP of the next instruction.
    pub rip: u64,
    /// RFLAGS; TF is the guest's own.
    pub rflags: u64,
    /// The current privilege level.
    pub cpl: u8,
    /// CR0.
    pub cr0: u64,
    /// CR2.
    pub cr2: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// IA32_EFER; SVME in it is ignored.
    pub efer: u64,
    /// DR6, the guest's own.
    pub dr6: u64,
    /// DR7.
    pub dr7: u64,
    /// ES.
    pub es: Segment,
    /// CS.
    pub cs: Segment,
    /// SS.
    pub ss: Segment,
    /// DS.
    pub ds: Segment,
    /// FS.
    pub fs: Segment,
    /// GS.
    pub gs: Segment,
    /// LDTR.
    pub ldtr: Segment,
    /// TR.
    pub tr: Segment,
    /// GDTR.
    pub gdtr: DescriptorTableRegister,
    /// IDTR.
    pub idtr: DescriptorTableRegister,
    /// IA32_STAR.
    pub star: u64,
    /// IA32_LSTAR.
    pub lstar: u64,
    /// IA32_CSTAR. It is only stored for the guest: on a processor whose CPUID says GenuineIntel, SYSCALL outside
    /// 64-bit mode raises `#UD`.
    pub cstar: u64,
    /// IA32_FMASK.
    pub sfmask: u64,
    /// IA32_KERNEL_GS_BASE.
    pub kernel_gs_base: u64,
    /// IA32_SYSENTER_CS.
    pub sysenter_cs: u64,
    /// IA32_SYSENTER_ESP.
    pub sysenter_esp: u64,
    /// IA32_SYSENTER_EIP.
    pub sysenter_eip: u64,
    /// The interrupt shadow that the last instruction opened.
    pub shadow: Option<Shadow>,
    /// An NMI handler has not yet executed its IRET.
    pub nmi_blocked: bool,
    /// `CPUID.80000008H:EAX[7:0]`: the bits of a physical address above this width are reserved. 0 counts as 52.
    pub physical_address_bits: u8,
}

impl Cpu {
    /// Returns the general register `register`.
    pub const fn get(&self, register: Gpr) -> u64 {
        self.gpr[register as usize]
    }

    /// Sets all 64 bits of the general register `register`.
    pub const fn set(&mut self, register: Gpr, value: u64) {
        self.gpr[register as usize] = value;
    }

    /// Returns the mode of operation.
    pub const fn mode(&self) -> Mode {
        if self.cr0 & cr0::PE == 0 {
            Mode::Real
        } else if self.efer & efer::LMA != 0 {
            if self.cs.has(Segment::L) { Mode::Bits64 } else { Mode::Compatibility }
        } else if self.rflags & rflags::VM != 0 {
            Mode::Virtual8086
        } else {
            Mode::Protected
        }
    }

    /// Returns the operand and address size of the code segment: 16, 32 or 64.
    pub const fn code_bits(&self) -> u32 {
        match self.mode() {
            Mode::Bits64 => 64,
            Mode::Virtual8086 => 16,
            _ if self.cs.has(Segment::DB) => 32,
            _ => 16,
        }
    }

    /// Returns whether a maskable interrupt would be taken now: RFLAGS.IF is set and there is no shadow.
    pub const fn takes_interrupts(&self) -> bool {
        self.rflags & rflags::IF != 0 && self.shadow.is_none()
    }

    /// Returns whether an NMI would be taken now: none is in progress, and there is no shadow of MOV SS.
    pub const fn takes_nmi(&self) -> bool {
        !self.nmi_blocked && !matches!(self.shadow, Some(Shadow::MovSs))
    }

    /// Returns the RFLAGS to run the guest with so that it traps after one instruction.
    pub const fn rflags_for_stepping(&self) -> u64 {
        self.rflags | rflags::TF
    }

    /// Sets RFLAGS after a run with [`Cpu::rflags_for_stepping`]. TF stays the guest's own, because no instruction that
    /// ran there can have changed it.
    pub const fn set_rflags_from_hardware(&mut self, value: u64) {
        self.rflags = value & !rflags::TF | self.rflags & rflags::TF;
    }

    /// Returns whether the guest steps itself. A single-step trap is then (also) the guest's own, and must be delivered
    /// with [`Exception::single_step`](super::Exception::single_step).
    ///
    /// Call this with the state before the instruction. It does not apply to an instruction that
    /// [`execute`](super::execute) has executed.
    pub const fn owns_single_step(&self) -> bool {
        self.rflags & rflags::TF != 0
    }

    /// Returns whether `address` is canonical in the current paging mode (48 bits, 57 with CR4.LA57).
    pub const fn is_canonical(&self, address: u64) -> bool {
        let unused = if self.cr4 & cr4::LA57 != 0 { 7 } else { 16 };
        ((address << unused) as i64 >> unused) as u64 == address
    }

    /// Returns RIP after an instruction of `length` bytes at RIP.
    pub(super) const fn rip_after(&self, length: u8) -> u64 {
        let next = self.rip.wrapping_add(length as u64);
        if matches!(self.mode(), Mode::Bits64) { next } else { next & 0xffff_ffff }
    }

    /// Returns RFLAGS.IOPL.
    pub(super) const fn iopl(&self) -> u8 {
        ((self.rflags & rflags::IOPL) >> 12) as u8
    }

    pub(super) const fn is_long_mode(&self) -> bool {
        self.efer & efer::LMA != 0
    }
}
