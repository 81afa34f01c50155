//! A guest that begins in UEFI firmware: the state in which the firmware has called the monitor.
//!
//! The monitor's image is a driver in the option ROM of a PCI device. The firmware calls it while it starts; the driver
//! lets the firmware allocate the monitor's addresses as reserved memory, puts a copy of the image there, and enters
//! it. The guest begins with the driver's return to the firmware, which goes on as the guest.
//!
//! Source: UEFI specification, "Overview: Calling Conventions, x64 Platforms", "PCI Option ROMs", "Services: Boot
//! Services, EFI_BOOT_SERVICES.AllocatePages()".

use crate::guest::{Cpu, DescriptorTableRegister, Gpr, Segment, rflags};
use crate::single_step::NO_CONDITION;

/// The registers that the driver has saved. The other general registers are on its stack, or need not be preserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct SavedState {
    /// XMM0 to XMM15.
    pub xmm: [u128; 16],
    /// CR0; 0 if no driver has saved anything.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// IA32_EFER.
    pub efer: u64,
    /// RSP.
    pub rsp: u64,
    /// The address at which the guest begins.
    pub rip: u64,
    /// The selectors of CS, DS, ES, FS, GS and SS.
    pub selectors: [u64; 6],
    /// The address of the firmware's system table.
    pub system_table: u64,
    /// GDTR as SGDT stores it, with six bytes of padding.
    pub gdtr: [u16; 8],
    /// IDTR as SIDT stores it, with six bytes of padding.
    pub idtr: [u16; 8],
}

impl SavedState {
    /// Returns the guest's first state. Interrupts are off; the driver's code enables them again.
    #[must_use]
    pub fn cpu(&self) -> Cpu {
        /// 64-bit code, and data.
        const CODE: u16 = 0xa9b;
        const DATA: u16 = 0xc93;
        let [cs, ds, es, fs, gs, ss] = self.selectors.map(|selector| selector as u16);
        // The firmware's segments are flat.
        let data = |selector| Segment { selector, attributes: DATA, limit: u32::MAX, base: 0 };
        let mut cpu = Cpu {
            rip: self.rip,
            rflags: rflags::FIXED,
            cr0: self.cr0,
            cr3: self.cr3,
            cr4: self.cr4,
            efer: self.efer,
            dr6: NO_CONDITION,
            dr7: 0x400,
            cs: Segment { attributes: CODE, ..data(cs) },
            ds: data(ds),
            es: data(es),
            fs: data(fs),
            gs: data(gs),
            ss: data(ss),
            gdtr: table_register(&self.gdtr),
            idtr: table_register(&self.idtr),
            ..Cpu::default()
        };
        cpu.set(Gpr::Rsp, self.rsp);
        cpu
    }
}

/// Returns a register of a descriptor table from its limit and the words of its base.
fn table_register(stored: &[u16; 8]) -> DescriptorTableRegister {
    let [limit, base @ .., _, _, _] = stored;
    let base = base.iter().rev().fold(0, |base, word| base << 16 | u64::from(*word));
    DescriptorTableRegister { base, limit: *limit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Mode;

    #[test]
    fn the_guest_begins_where_the_driver_was_in_flat_64_bit_code() {
        let saved = SavedState {
            cr0: 0x8001_0033,
            cr3: 0x1f80_1000,
            cr4: 0x668,
            efer: 0xd00,
            rsp: 0x1fe9_f000,
            rip: 0x1e60_0123,
            selectors: [0x38, 0x30, 0x30, 0x30, 0x30, 0x30],
            gdtr: [0x47, 0xe000, 0x1f9d, 0, 0, 1, 2, 3],
            idtr: [0xfff, 0x1018, 0x1f42, 5, 6, 1, 2, 3],
            ..SavedState::default()
        };
        let cpu = saved.cpu();
        assert_eq!((cpu.mode(), cpu.code_bits(), cpu.cpl), (Mode::Bits64, 64, 0));
        assert_eq!((cpu.rip, cpu.get(Gpr::Rsp), cpu.rflags), (0x1e60_0123, 0x1fe9_f000, 2));
        assert_eq!((cpu.cr0, cpu.cr3, cpu.cr4, cpu.efer), (0x8001_0033, 0x1f80_1000, 0x668, 0xd00));
        assert_eq!((cpu.cs.selector, cpu.cs.attributes), (0x38, 0xa9b));
        for segment in [cpu.ds, cpu.es, cpu.fs, cpu.gs, cpu.ss] {
            assert_eq!(segment, Segment { selector: 0x30, attributes: 0xc93, limit: u32::MAX, base: 0 });
        }
        assert_eq!(cpu.gdtr, DescriptorTableRegister { base: 0x1f9d_e000, limit: 0x47 });
        assert_eq!(cpu.idtr, DescriptorTableRegister { base: 0x6_0005_1f42_1018, limit: 0xfff });
    }
}
