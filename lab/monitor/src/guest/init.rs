//! The state of a processor after INIT and after a start-up interrupt.

use super::cpu::{Cpu, DescriptorTableRegister, Gpr, Segment, cr0, rflags};
use crate::single_step::NO_CONDITION;

impl Cpu {
    /// Resets the processor as INIT does. EDX becomes `signature`, the value of EAX in CPUID leaf 01H. MSRs other than
    /// IA32_EFER are not changed.
    ///
    /// Source: SDM vol. 3, Processor Management and Initialization, "Processor State After Reset", the column of INIT.
    pub fn init(&mut self, signature: u32) {
        const CACHE: u64 = cr0::CD | cr0::NW;
        const DATA: u16 = Segment::P | Segment::S | Segment::READ_WRITE | Segment::ACCESSED;
        const LDT: u16 = Segment::P | 0x2;
        const BUSY_TSS: u16 = Segment::P | 0xb;
        let segment = |attributes| Segment { selector: 0, attributes, limit: 0xffff, base: 0 };
        let data = segment(DATA);
        let table = DescriptorTableRegister { base: 0, limit: 0xffff };
        *self = Self {
            gpr: [0; 16],
            rip: 0xfff0,
            rflags: rflags::FIXED,
            cpl: 0,
            cr0: self.cr0 & CACHE | cr0::ET,
            cr2: 0,
            cr3: 0,
            cr4: 0,
            efer: 0,
            dr6: NO_CONDITION,
            dr7: 0x400,
            es: data,
            cs: Segment { selector: 0xf000, base: 0xffff_0000, ..segment(DATA | Segment::CODE) },
            ss: data,
            ds: data,
            fs: data,
            gs: data,
            ldtr: segment(LDT),
            tr: segment(BUSY_TSS),
            gdtr: table,
            idtr: table,
            shadow: None,
            nmi_blocked: false,
            ..*self
        };
        self.set(Gpr::Rdx, signature.into());
    }

    /// Starts a processor that waits after INIT, at the page that the start-up interrupt's `vector` names.
    ///
    /// Source: SDM vol. 3, Multiple-Processor Management, "MP Initialization Example".
    pub fn start_up(&mut self, vector: u8) {
        self.cs.selector = u16::from(vector) << 8;
        self.cs.base = u64::from(vector) << 12;
        self.rip = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::{Mode, Shadow};

    const SIGNATURE: u32 = 0x5_06e3;

    /// Returns a processor in 64-bit mode at privilege level 3, with no register at its reset value.
    fn busy() -> Cpu {
        let segment = Segment { selector: 0x33, attributes: 0xaff, limit: 5, base: 7 };
        let table = DescriptorTableRegister { base: 0x1000, limit: 0x3ff };
        Cpu {
            gpr: [!0; 16],
            rip: !0,
            rflags: 0x3_0346,
            cpl: 3,
            cr0: 0x8001_0033,
            cr2: 1,
            cr3: 0x2000,
            cr4: 0x620,
            efer: 0xd01,
            dr6: 0,
            dr7: 0x401,
            es: segment,
            cs: segment,
            ss: segment,
            ds: segment,
            fs: segment,
            gs: segment,
            ldtr: segment,
            tr: segment,
            gdtr: table,
            idtr: table,
            star: 11,
            lstar: 12,
            cstar: 13,
            sfmask: 14,
            kernel_gs_base: 15,
            sysenter_cs: 16,
            sysenter_esp: 17,
            sysenter_eip: 18,
            shadow: Some(Shadow::Sti),
            nmi_blocked: true,
            physical_address_bits: 40,
        }
    }

    #[test]
    fn init_leaves_the_state_of_the_manuals_table() {
        let mut cpu = busy();
        cpu.init(SIGNATURE);
        let mut gpr = [0; 16];
        gpr[2] = SIGNATURE.into();
        let segment = |attributes| Segment { selector: 0, attributes, limit: 0xffff, base: 0 };
        let table = DescriptorTableRegister { base: 0, limit: 0xffff };
        let expected = Cpu {
            gpr,
            rip: 0xfff0,
            rflags: 2,
            cpl: 0,
            cr0: 0x10,
            cr2: 0,
            cr3: 0,
            cr4: 0,
            efer: 0,
            dr6: 0xffff_0ff0,
            dr7: 0x400,
            es: segment(0x93),
            cs: Segment { selector: 0xf000, attributes: 0x9b, limit: 0xffff, base: 0xffff_0000 },
            ss: segment(0x93),
            ds: segment(0x93),
            fs: segment(0x93),
            gs: segment(0x93),
            ldtr: segment(0x82),
            tr: segment(0x8b),
            gdtr: table,
            idtr: table,
            shadow: None,
            nmi_blocked: false,
            ..busy()
        };
        assert_eq!(cpu, expected);
        assert_eq!((cpu.mode(), cpu.code_bits()), (Mode::Real, 16));
    }

    #[test]
    fn init_leaves_the_caches_as_they_are() {
        for cache in [0, 1 << 30, 3 << 29] {
            let mut cpu = Cpu { cr0: 0x8000_0011 | cache, ..Cpu::default() };
            cpu.init(SIGNATURE);
            assert_eq!(cpu.cr0, 0x10 | cache);
        }
    }

    #[test]
    fn a_start_up_interrupt_names_a_page() {
        for (vector, selector, base) in [(0, 0, 0), (8, 0x800, 0x8000), (0xff, 0xff00, 0xf_f000)] {
            let mut cpu = busy();
            cpu.init(SIGNATURE);
            cpu.start_up(vector);
            assert_eq!((cpu.cs.selector, cpu.cs.base, cpu.rip), (selector, base, 0));
            assert_eq!((cpu.cs.attributes, cpu.cs.limit), (0x9b, 0xffff));
        }
    }
}
