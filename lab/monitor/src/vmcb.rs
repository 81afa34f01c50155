//! The virtual machine control block (VMCB), which AMD's VMRUN reads to enter a guest and writes at an exit.
//!
//! Source: AMD64 Architecture Programmer's Manual vol. 2, Appendix "Layout of VMCB" and Secure Virtual Machine,
//! "Exception and Interrupt Intercepts", "Instruction Intercepts".

use core::mem::offset_of;

use crate::guest::{Cpu, DescriptorTableRegister, Gpr, Segment};

/// A virtual machine control block: one page.
#[derive(Clone, Debug)]
#[repr(C, align(4096))]
pub struct Vmcb {
    /// Intercepts and other requests of the monitor, and the reason of an exit.
    pub control: ControlArea,
    /// The guest's state.
    pub save: SaveArea,
    reserved: [u8; 0x1000 - 0x400 - size_of::<SaveArea>()],
}

/// The control area.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct ControlArea {
    /// Intercepted reads (15:0) and writes (31:16) of control registers.
    pub intercept_cr: u32,
    /// Intercepted reads (15:0) and writes (31:16) of debug registers.
    pub intercept_dr: u32,
    /// Intercepted exceptions, one bit per vector.
    pub intercept_exceptions: u32,
    /// First word of instruction intercepts: [`intercept1`].
    pub intercept1: u32,
    /// Second word of instruction intercepts: [`intercept2`].
    pub intercept2: u32,
    reserved_014: [u8; 0x3c - 0x14],
    /// PAUSE filter threshold and count.
    pub pause_filter: u32,
    /// Physical address of the I/O permission map.
    pub iopm_base: u64,
    /// Physical address of the MSR permission map.
    pub msrpm_base: u64,
    /// Added to the time-stamp counter that the guest reads.
    pub tsc_offset: u64,
    /// Address space identifier of the guest; must not be 0.
    pub asid: u32,
    /// Translations that VMRUN flushes: 0 none, 1 all.
    pub tlb_control: u32,
    /// Virtual interrupt and V_INTR_MASKING.
    pub virtual_interrupt: u64,
    /// Bit 0: the guest was in an interrupt shadow.
    pub interrupt_shadow: u64,
    /// The reason of the exit: [`exit_code`].
    pub exit_code: u64,
    /// First word of details of the exit.
    pub exit_info1: u64,
    /// Second word of details of the exit.
    pub exit_info2: u64,
    /// An event whose delivery was interrupted; valid with bit 31.
    pub exit_interrupt_info: u64,
    /// Bit 0: nested paging.
    pub nested_control: u64,
    reserved_098: [u8; 0xa8 - 0x98],
    /// An event that VMRUN delivers; valid with bit 31.
    pub event_injection: u64,
    /// Root of the nested page tables.
    pub nested_cr3: u64,
    /// LBR virtualization.
    pub lbr_control: u64,
    reserved_0c0: [u8; 0x400 - 0xc0],
}

/// The state save area.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct SaveArea {
    /// ES.
    pub es: VmcbSegment,
    /// CS.
    pub cs: VmcbSegment,
    /// SS.
    pub ss: VmcbSegment,
    /// DS.
    pub ds: VmcbSegment,
    /// FS; transferred by VMLOAD and VMSAVE.
    pub fs: VmcbSegment,
    /// GS; transferred by VMLOAD and VMSAVE.
    pub gs: VmcbSegment,
    /// GDTR.
    pub gdtr: VmcbSegment,
    /// LDTR; transferred by VMLOAD and VMSAVE.
    pub ldtr: VmcbSegment,
    /// IDTR.
    pub idtr: VmcbSegment,
    /// TR; transferred by VMLOAD and VMSAVE.
    pub tr: VmcbSegment,
    reserved_0a0: [u8; 0xcb - 0xa0],
    /// The privilege level.
    pub cpl: u8,
    reserved_0cc: [u8; 4],
    /// EFER; SVME must be set.
    pub efer: u64,
    reserved_0d8: [u8; 0x148 - 0xd8],
    /// CR4.
    pub cr4: u64,
    /// CR3.
    pub cr3: u64,
    /// CR0.
    pub cr0: u64,
    /// DR7.
    pub dr7: u64,
    /// DR6.
    pub dr6: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// RIP.
    pub rip: u64,
    reserved_180: [u8; 0x1d8 - 0x180],
    /// RSP.
    pub rsp: u64,
    reserved_1e0: [u8; 0x1f8 - 0x1e0],
    /// RAX.
    pub rax: u64,
    /// IA32_STAR. This field and the following ones up to `sysenter_eip` are transferred by VMLOAD and VMSAVE.
    pub star: u64,
    /// IA32_LSTAR.
    pub lstar: u64,
    /// IA32_CSTAR.
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
    /// CR2.
    pub cr2: u64,
    reserved_248: [u8; 0x268 - 0x248],
    /// PAT of the guest, with nested paging.
    pub g_pat: u64,
}

/// A segment or table register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VmcbSegment {
    /// The selector.
    pub selector: u16,
    /// Type 3:0, S 4, DPL 6:5, P 7, AVL 8, L 9, D/B 10, G 11.
    pub attributes: u16,
    /// The limit in bytes.
    pub limit: u32,
    /// The base.
    pub base: u64,
}

/// Bits of [`ControlArea::intercept1`].
#[expect(missing_docs, reason = "the names are the instructions' and events'")]
pub mod intercept1 {
    pub const INTR: u32 = 1 << 0;
    pub const NMI: u32 = 1 << 1;
    pub const RDTSC: u32 = 1 << 14;
    pub const RDPMC: u32 = 1 << 15;
    pub const PUSHF: u32 = 1 << 16;
    pub const POPF: u32 = 1 << 17;
    pub const CPUID: u32 = 1 << 18;
    pub const IRET: u32 = 1 << 20;
    pub const SWINT: u32 = 1 << 21;
    pub const HLT: u32 = 1 << 24;
    pub const INVLPGA: u32 = 1 << 26;
    pub const IO: u32 = 1 << 27;
    pub const MSR: u32 = 1 << 28;
    pub const TASK_SWITCH: u32 = 1 << 29;
    pub const SHUTDOWN: u32 = 1 << 31;
}

/// Bits of [`ControlArea::intercept2`].
#[expect(missing_docs, reason = "the names are the instructions'")]
pub mod intercept2 {
    pub const VMRUN: u32 = 1 << 0;
    pub const VMMCALL: u32 = 1 << 1;
    pub const VMLOAD: u32 = 1 << 2;
    pub const VMSAVE: u32 = 1 << 3;
    pub const STGI: u32 = 1 << 4;
    pub const CLGI: u32 = 1 << 5;
    pub const SKINIT: u32 = 1 << 6;
    pub const RDTSCP: u32 = 1 << 7;
    pub const ICEBP: u32 = 1 << 8;
    pub const MWAIT: u32 = 1 << 11;
    pub const MWAIT_ARMED: u32 = 1 << 12;
}

/// Values of [`ControlArea::exit_code`].
///
/// Source: AMD64 Architecture Programmer's Manual vol. 2, Appendix "SVM Intercept Exit Codes".
#[expect(missing_docs, reason = "the names are the manual's")]
pub mod exit_code {
    pub const EXCEPTION_FIRST: u64 = 0x40;
    pub const EXCEPTION_LAST: u64 = 0x5f;
    pub const INTR: u64 = 0x60;
    pub const NMI: u64 = 0x61;
    pub const RDTSC: u64 = 0x6e;
    pub const RDPMC: u64 = 0x6f;
    pub const PUSHF: u64 = 0x70;
    pub const POPF: u64 = 0x71;
    pub const CPUID: u64 = 0x72;
    pub const IRET: u64 = 0x74;
    pub const SWINT: u64 = 0x75;
    pub const HLT: u64 = 0x78;
    pub const INVLPGA: u64 = 0x7a;
    pub const IOIO: u64 = 0x7b;
    pub const MSR: u64 = 0x7c;
    pub const TASK_SWITCH: u64 = 0x7d;
    pub const SHUTDOWN: u64 = 0x7f;
    pub const VMRUN: u64 = 0x80;
    pub const SKINIT: u64 = 0x86;
    pub const RDTSCP: u64 = 0x87;
    pub const ICEBP: u64 = 0x88;
    pub const MWAIT: u64 = 0x8b;
    pub const MWAIT_ARMED: u64 = 0x8c;
    pub const NPF: u64 = 0x400;
    pub const INVALID: u64 = !0;
}

/// EFER.SVME: VMRUN fails if it is clear in the guest's state. The monitor hides it from the guest.
pub const EFER_SVME: u64 = 1 << 12;

impl Vmcb {
    /// All zero.
    pub const ZERO: Self = {
        // SAFETY: every field is an integer or an array of integers, for which zero bits are a value.
        unsafe { core::mem::zeroed() }
    };
}

impl SaveArea {
    /// Copies the state into `cpu`, except the general registers that are not stored here and the fields that VMSAVE
    /// writes. RFLAGS.TF and DR6 in `cpu` stay unchanged, because they hold the guest's own values.
    pub fn store_to(&self, cpu: &mut Cpu) {
        cpu.set(Gpr::Rax, self.rax);
        cpu.set(Gpr::Rsp, self.rsp);
        cpu.rip = self.rip;
        cpu.set_rflags_from_hardware(self.rflags);
        cpu.cpl = self.cpl;
        cpu.cr0 = self.cr0;
        cpu.cr2 = self.cr2;
        cpu.cr3 = self.cr3;
        cpu.cr4 = self.cr4;
        cpu.efer = self.efer & !EFER_SVME;
        cpu.dr7 = self.dr7;
        cpu.es = self.es.into();
        cpu.cs = self.cs.into();
        cpu.ss = self.ss.into();
        cpu.ds = self.ds.into();
        cpu.gdtr = self.gdtr.into();
        cpu.idtr = self.idtr.into();
    }

    /// Copies the state from `cpu`: the reverse of [`SaveArea::store_to`], but with RFLAGS and DR6 of `cpu`.
    pub fn load_from(&mut self, cpu: &Cpu) {
        self.rax = cpu.get(Gpr::Rax);
        self.rsp = cpu.get(Gpr::Rsp);
        self.rip = cpu.rip;
        self.rflags = cpu.rflags;
        self.cpl = cpu.cpl;
        self.cr0 = cpu.cr0;
        self.cr2 = cpu.cr2;
        self.cr3 = cpu.cr3;
        self.cr4 = cpu.cr4;
        self.efer = cpu.efer | EFER_SVME;
        self.dr6 = cpu.dr6;
        self.dr7 = cpu.dr7;
        self.es = cpu.es.into();
        self.cs = cpu.cs.into();
        self.ss = cpu.ss.into();
        self.ds = cpu.ds.into();
        self.gdtr = cpu.gdtr.into();
        self.idtr = cpu.idtr.into();
    }

    /// Copies the fields that VMSAVE wrote into `cpu`.
    pub fn store_vmsave_state_to(&self, cpu: &mut Cpu) {
        cpu.fs = self.fs.into();
        cpu.gs = self.gs.into();
        cpu.ldtr = self.ldtr.into();
        cpu.tr = self.tr.into();
        cpu.star = self.star;
        cpu.lstar = self.lstar;
        cpu.cstar = self.cstar;
        cpu.sfmask = self.sfmask;
        cpu.kernel_gs_base = self.kernel_gs_base;
        cpu.sysenter_cs = self.sysenter_cs;
        cpu.sysenter_esp = self.sysenter_esp;
        cpu.sysenter_eip = self.sysenter_eip;
    }

    /// Copies the fields that VMLOAD reads from `cpu`.
    pub fn load_vmload_state_from(&mut self, cpu: &Cpu) {
        self.fs = cpu.fs.into();
        self.gs = cpu.gs.into();
        self.ldtr = cpu.ldtr.into();
        self.tr = cpu.tr.into();
        self.star = cpu.star;
        self.lstar = cpu.lstar;
        self.cstar = cpu.cstar;
        self.sfmask = cpu.sfmask;
        self.kernel_gs_base = cpu.kernel_gs_base;
        self.sysenter_cs = cpu.sysenter_cs;
        self.sysenter_esp = cpu.sysenter_esp;
        self.sysenter_eip = cpu.sysenter_eip;
    }
}

impl From<VmcbSegment> for Segment {
    fn from(VmcbSegment { selector, attributes, limit, base }: VmcbSegment) -> Self {
        Self { selector, attributes, limit, base }
    }
}

impl From<Segment> for VmcbSegment {
    fn from(Segment { selector, attributes, limit, base }: Segment) -> Self {
        Self { selector, attributes, limit, base }
    }
}

impl From<VmcbSegment> for DescriptorTableRegister {
    fn from(VmcbSegment { limit, base, .. }: VmcbSegment) -> Self {
        Self { base, limit: limit as u16 }
    }
}

impl From<DescriptorTableRegister> for VmcbSegment {
    fn from(DescriptorTableRegister { base, limit }: DescriptorTableRegister) -> Self {
        Self { selector: 0, attributes: 0, limit: limit.into(), base }
    }
}

macro_rules! offsets {
    ($type:ty: $($field:ident $offset:literal),* $(,)?) => {
        $(const _: () = assert!(offset_of!($type, $field) == $offset);)*
    };
}

offsets!(Vmcb: control 0, save 0x400);
offsets!(ControlArea:
    intercept_cr 0x000, intercept_dr 0x004, intercept_exceptions 0x008, intercept1 0x00c, intercept2 0x010,
    pause_filter 0x03c, iopm_base 0x040, msrpm_base 0x048, tsc_offset 0x050, asid 0x058, tlb_control 0x05c,
    virtual_interrupt 0x060, interrupt_shadow 0x068, exit_code 0x070, exit_info1 0x078, exit_info2 0x080,
    exit_interrupt_info 0x088, nested_control 0x090, event_injection 0x0a8, nested_cr3 0x0b0, lbr_control 0x0b8,
);
offsets!(SaveArea:
    es 0x000, cs 0x010, ss 0x020, ds 0x030, fs 0x040, gs 0x050, gdtr 0x060, ldtr 0x070, idtr 0x080, tr 0x090,
    cpl 0x0cb, efer 0x0d0, cr4 0x148, cr3 0x150, cr0 0x158, dr7 0x160, dr6 0x168, rflags 0x170, rip 0x178,
    rsp 0x1d8, rax 0x1f8, star 0x200, lstar 0x208, cstar 0x210, sfmask 0x218, kernel_gs_base 0x220,
    sysenter_cs 0x228, sysenter_esp 0x230, sysenter_eip 0x238, cr2 0x240, g_pat 0x268,
);
offsets!(VmcbSegment: selector 0, attributes 2, limit 4, base 8);
const _: () = assert!(size_of::<Vmcb>() == 0x1000);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::rflags;

    #[test]
    fn what_is_stored_and_loaded_again_is_the_same() {
        let mut vmcb = Vmcb::ZERO;
        let words = (&raw mut vmcb.save).cast::<u8>();
        for index in 0..size_of::<SaveArea>() {
            // SAFETY: the index is within the structure, which is plain integers.
            let byte = unsafe { words.add(index) };
            // SAFETY: as above, and nothing else refers to it.
            unsafe { byte.write(index as u8 | 1) };
        }
        vmcb.save.rflags &= !rflags::TF;
        for table in [&mut vmcb.save.gdtr, &mut vmcb.save.idtr] {
            *table = VmcbSegment { limit: 0xfff, base: 0x1234_5678, ..VmcbSegment::default() };
        }
        vmcb.save.efer |= EFER_SVME;
        let mut cpu = Cpu { dr6: vmcb.save.dr6, ..Cpu::default() };
        vmcb.save.store_to(&mut cpu);
        vmcb.save.store_vmsave_state_to(&mut cpu);
        assert_eq!(cpu.efer & EFER_SVME, 0);
        let mut again = vmcb.clone();
        again.save.load_from(&Cpu::default());
        again.save.load_vmload_state_from(&Cpu::default());
        // Nothing of the previous content is left.
        let mut empty = Cpu::default();
        again.save.store_to(&mut empty);
        again.save.store_vmsave_state_to(&mut empty);
        assert_eq!(empty, Cpu::default());
        again.save.load_from(&cpu);
        again.save.load_vmload_state_from(&cpu);
        assert_eq!(format(&again.save), format(&vmcb.save));
    }

    #[test]
    fn what_is_loaded_is_in_place_of_what_was_there() {
        let cpu = Cpu {
            cr0: 0x11,
            cr2: 0x12,
            cr3: 0x13,
            cr4: 0x14,
            dr7: 0x417,
            efer: 0x500,
            star: 0x21,
            lstar: 0x22,
            cstar: 0x23,
            sfmask: 0x24,
            kernel_gs_base: 0x25,
            sysenter_cs: 0x26,
            sysenter_esp: 0x27,
            sysenter_eip: 0x28,
            cpl: 3,
            rip: 0x31,
            rflags: 2,
            dr6: 0xffff_0ff0,
            ..Cpu::default()
        };
        let mut vmcb = Vmcb::ZERO;
        vmcb.save.load_from(&cpu);
        vmcb.save.load_vmload_state_from(&cpu);
        let mut found = Cpu { dr6: cpu.dr6, ..Cpu::default() };
        vmcb.save.store_to(&mut found);
        vmcb.save.store_vmsave_state_to(&mut found);
        assert_eq!(found, cpu);
    }

    fn format(save: &SaveArea) -> alloc::string::String {
        alloc::format!("{save:x?}")
    }

    #[test]
    fn a_trap_flag_of_the_monitor_does_not_reach_the_guest() {
        for (own, hardware) in [(0, 2 | rflags::TF), (rflags::TF, 2 | rflags::TF)] {
            let mut vmcb = Vmcb::ZERO;
            vmcb.save.rflags = hardware;
            vmcb.save.dr6 = 0xffff_4ff0;
            let mut cpu = Cpu { rflags: own, dr6: 0xffff_0ff0, ..Cpu::default() };
            vmcb.save.store_to(&mut cpu);
            assert_eq!((cpu.rflags, cpu.dr6), (2 | own, 0xffff_0ff0));
        }
    }
}
