//! Registers that configure the processor beyond its counters, and report its clock frequency. Software finds them on
//! every processor of a family; here they only hold the written value.
//!
//! Source: APM vol. 2, MSR Cross-Reference; BIOS and Kernel Developer's Guides for families 0Fh, 10h and 15h, and
//! Processor Programming References for families 17h, 19h and 1Ah, "MSRs - MSRC001_0xxx" and "MSRs - MSRC001_1xxx".

use super::AmdProfile;
use crate::GeneralProtection;

/// HWCR.TscFreqSel, read-only: the TSC counts at the frequency of P-state 0. From family 10h on.
const TSC_FREQ_SEL: u64 = 1 << 24;
/// SYSCFG.MtrrVarDramEn: TOP_MEM is the end of memory.
const MTRR_VAR_DRAM_EN: u64 = 1 << 20;
/// PStateDef.PstateEn.
const PSTATE_EN: u64 = 1 << 63;

/// A register that some families have.
struct ConfigurationRegister {
    number: u32,
    /// The first and the last family with the register.
    families: (u32, u32),
    /// The value after firmware has run.
    reset: u64,
    /// Bits that a write changes.
    writable: u64,
}

const ANY: (u32, u32) = (0x0f, u32::MAX);
const FROM_10H: (u32, u32) = (0x10, u32::MAX);
const FROM_17H: (u32, u32) = (0x17, u32::MAX);

const fn plain(number: u32, families: (u32, u32), reset: u64) -> ConfigurationRegister {
    ConfigurationRegister { number, families, reset, writable: !0 }
}

/// The number of registers.
const COUNT: usize = 16;

static REGISTERS: [ConfigurationRegister; COUNT] = [
    // SYSCFG; TOP_MEM, the end of memory and start of devices' memory; TOP_MEM2.
    plain(0xc001_0010, ANY, MTRR_VAR_DRAM_EN),
    plain(0xc001_001a, ANY, 0xc000_0000),
    plain(0xc001_001d, ANY, 0),
    // HWCR.
    plain(0xc001_0015, (0x0f, 0x0f), 0),
    ConfigurationRegister {
        number: 0xc001_0015,
        families: FROM_10H,
        reset: TSC_FREQ_SEL,
        writable: !TSC_FREQ_SEL,
    },
    // NB_CFG.
    plain(0xc001_001f, FROM_10H, 0),
    // MC4_CTL_MASK; Interrupt Pending; MMIO Configuration Base Address.
    plain(0xc001_0048, (0x0f, 0x16), 0),
    plain(0xc001_0055, (0x0f, 0x16), 0),
    plain(0xc001_0058, FROM_10H, 0),
    // LS_CFG, IC_CFG, DE_CFG with LFENCE serialising, BU_CFG2.
    plain(0xc001_1020, FROM_10H, 0),
    plain(0xc001_1021, FROM_10H, 0),
    plain(0xc001_1029, FROM_10H, 1 << 1),
    plain(0xc001_102a, (0x10, 0x16), 0),
    // BP_CFG; LS_CFG2, one bit of which Linux calls the spectral chicken on Zen 2.
    plain(0xc001_102e, FROM_17H, 0),
    plain(0xc001_10e3, FROM_17H, 0),
    // P-state control.
    plain(0xc001_0062, FROM_10H, 0),
];

/// P-state limit; P-state status; the first of the eight P-state definitions; FIDVID_STATUS of family 0Fh.
const PSTATE_LIMIT: u32 = 0xc001_0061;
const PSTATE_STATUS: u32 = 0xc001_0063;
const PSTATE_DEF0: u32 = 0xc001_0064;
const PSTATE_DEF7: u32 = 0xc001_006b;
const FIDVID_STATUS: u32 = 0xc001_0042;

/// The registers of one processor.
#[derive(Debug)]
pub(super) struct ConfigurationRegisters {
    family: u32,
    tsc_mhz: u32,
    values: [u64; COUNT],
}

impl ConfigurationRegisters {
    pub(super) fn new(profile: &AmdProfile) -> Self {
        Self {
            family: profile.family(),
            tsc_mhz: profile.tsc_mhz,
            values: core::array::from_fn(|index| REGISTERS[index].reset),
        }
    }

    fn index(&self, number: u32) -> Option<usize> {
        let is = |register: &ConfigurationRegister| {
            let (first, last) = register.families;
            register.number == number && (first..=last).contains(&self.family)
        };
        REGISTERS.iter().position(is)
    }

    pub(super) fn owns_msr(&self, number: u32) -> bool {
        self.index(number).is_some() || self.clock(number).is_some()
    }

    pub(super) fn read(&self, number: u32) -> Result<u64, GeneralProtection> {
        let register = self.index(number).map(|index| self.values[index]);
        register.or_else(|| self.clock(number)).ok_or(GeneralProtection)
    }

    /// Writes a register. Those that report the clock frequency are read-only here: there is one P-state.
    pub(super) fn write(&mut self, number: u32, value: u64) -> Result<(), GeneralProtection> {
        let index = self.index(number).ok_or(GeneralProtection)?;
        let writable = REGISTERS[index].writable;
        self.values[index] = value & writable | self.values[index] & !writable;
        Ok(())
    }

    /// Returns the value of a register that reports the frequency of the only P-state.
    fn clock(&self, number: u32) -> Option<u64> {
        let mhz = u64::from(self.tsc_mhz);
        match (number, self.family) {
            // CurrFID and MaxFID.
            (FIDVID_STATUS, 0x0f) => Some((mhz / 100).saturating_sub(8) * (1 | 1 << 16)),
            (PSTATE_LIMIT | PSTATE_STATUS, 0x10..) => Some(0),
            (PSTATE_DEF0, 0x10..=0x16) => Some(PSTATE_EN | (mhz / 100).saturating_sub(0x10)),
            // CpuFid in units of 25 MHz, which CpuDfsId divides by 8/8.
            (PSTATE_DEF0, 0x17..=0x19) => Some(PSTATE_EN | (8 << 8) | (mhz / 25)),
            (PSTATE_DEF0, 0x1a..) => Some(PSTATE_EN | (mhz / 5)),
            (PSTATE_DEF0..=PSTATE_DEF7, 0x10..) => Some(0),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(name: &str) -> ConfigurationRegisters {
        ConfigurationRegisters::new(AmdProfile::by_name(name).expect(name))
    }

    #[test]
    fn what_linux_reads_and_writes_at_its_start_is_there() {
        // Linux 6.1 and 6.12, arch/x86/kernel/cpu/amd.c, arch/x86/pci/amd_bus.c and arch/x86/kernel/cpu/mtrr.
        let rows = [
            ("k8", 0xc001_0010, Some(1 << 20)),
            ("k8", 0xc001_0015, Some(0)),
            ("k8", 0xc001_001f, None),
            ("k8", 0xc001_1029, None),
            ("k8", 0xc001_0055, Some(0)),
            ("barcelona", 0xc001_0015, Some(1 << 24)),
            ("barcelona", 0xc001_0048, Some(0)),
            ("barcelona", 0xc001_0058, Some(0)),
            ("barcelona", 0xc001_102a, Some(0)),
            ("zen4", 0xc001_0015, Some(1 << 24)),
            ("zen4", 0xc001_001f, Some(0)),
            ("zen4", 0xc001_0055, None),
            ("zen4", 0xc001_1029, Some(2)),
            ("zen4", 0xc001_102e, Some(0)),
            ("zen4", 0xc001_0000, None),
        ];
        for (name, number, value) in rows {
            let mut registers = registers(name);
            assert_eq!(registers.owns_msr(number), value.is_some(), "{name} {number:#x}");
            assert_eq!(registers.read(number).ok(), value, "{name} {number:#x}");
            assert_eq!(registers.write(number, 1 << 46).is_ok(), value.is_some(), "{name} {number:#x}");
        }
    }

    #[test]
    fn writes_stay_and_tsc_freq_sel_is_read_only() {
        let mut registers = registers("zen4");
        registers.write(0xc001_001f, 1 << 46).unwrap();
        assert_eq!(registers.read(0xc001_001f), Ok(1 << 46));
        registers.write(0xc001_0015, 1 << 30).unwrap();
        assert_eq!(registers.read(0xc001_0015), Ok(1 << 30 | 1 << 24));
    }

    /// Checks BKDG for family 10h, "CoreCOF"; PPR for family 17h model 31h and for family 1Ah, "P-state Definition".
    #[test]
    fn p_state_0_is_as_fast_as_the_tsc() {
        for profile in AmdProfile::all() {
            let registers = ConfigurationRegisters::new(profile);
            let definition = registers.read(0xc001_0064).ok();
            let mhz = match profile.family() {
                0x0f => 800 + 100 * (registers.read(0xc001_0042).unwrap() & 0x3f),
                0x10 | 0x15 => {
                    (100 * ((definition.unwrap() & 0x3f) + 0x10)) >> (definition.unwrap() >> 6 & 7)
                }
                0x17 | 0x19 => 200 * (definition.unwrap() & 0xff) / (definition.unwrap() >> 8 & 0x3f),
                _ => 5 * (definition.unwrap() & 0xfff),
            };
            assert_eq!(mhz, u64::from(profile.tsc_mhz), "{}", profile.name);
            assert!(definition.is_none_or(|value| value >> 63 == 1), "{}", profile.name);
        }
    }
}
