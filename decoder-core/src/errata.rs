//! Processor errata: the processors whose traces differ from the manual, and the differences.
//!
//! Source: the specification updates of the processors that give the errata their names.
//!
//! ```
//! use pugmark_decoder_core::errata::{Cpu, Errata};
//!
//! // CPUID.01H:EAX of a Skylake.
//! let cpu = Cpu::from_signature(0x0005_06e3);
//! assert_eq!(cpu, Cpu::intel(6, 0x5e, 3));
//! let skylake = Errata::of(cpu)?;
//! assert!(skylake.skd007 && !skylake.skz84);
//! assert!(Errata::of(Cpu::intel(0, 0, 0)).is_err());
//! # Ok::<(), pugmark_decoder_core::errata::UnknownCpu>(())
//! ```

use core::fmt;

/// A processor, by its vendor and CPUID.01H:EAX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cpu {
    /// The manufacturer.
    pub vendor: Vendor,
    /// The display family.
    pub family: u16,
    /// The display model.
    pub model: u8,
    /// The stepping.
    pub stepping: u8,
}

/// The manufacturer of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// CPUID.0H returns "GenuineIntel".
    Intel,
    /// Any other vendor string.
    Other,
}

impl Cpu {
    /// Creates an Intel processor.
    #[must_use]
    pub const fn intel(family: u16, model: u8, stepping: u8) -> Self {
        Self { vendor: Vendor::Intel, family, model, stepping }
    }

    /// Returns the Intel processor whose CPUID.01H:EAX is `signature`.
    ///
    /// Source: SDM vol. 2, CPUID, "INPUT EAX = 01H: Returns Model, Family, Stepping Information".
    #[must_use]
    pub const fn from_signature(signature: u32) -> Self {
        let [stepping, low_model] = [signature & 0xf, signature >> 4 & 0xf];
        let [family, high_model, more_family] =
            [signature >> 8 & 0xf, signature >> 16 & 0xf, signature >> 20 & 0xff];
        // The casts lose nothing: the stepping has 4 bits, the model 8, and the family is at most 0fH + ffH.
        let model = match family {
            6 | 15 => high_model << 4 | low_model,
            _ => low_model,
        };
        let family = if family == 15 { family + more_family } else { family };
        Self::intel(family as u16, model as u8, stepping as u8)
    }
}

impl fmt::Display for Cpu {
    /// Formats as `6/94/3`: family, model and stepping.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.family, self.model, self.stepping)
    }
}

/// A processor whose errata are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnknownCpu(pub Cpu);

impl fmt::Display for UnknownCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.vendor {
            Vendor::Intel => write!(f, "the errata of processor {} are not known", self.0),
            Vendor::Other => write!(f, "processor {} is not one of Intel's", self.0),
        }
    }
}

impl core::error::Error for UnknownCpu {}

/// The errata that a decoder allows for.
///
/// Each field names the erratum's title in its specification update, the names of the same erratum on other
/// processors, and the layers that allow for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Errata {
    /// BDM64, "An Incorrect LBR or Intel Processor Trace Packet May Be Recorded Following a Transactional Abort": the
    /// branch before the abort may have led to the abort's IP.
    ///
    /// Layers: instructions and blocks.
    pub bdm64: bool,
    /// BDM70, "Intel Processor Trace PSB+ Packets May Contain Unexpected Packets": a PSB+ may say that tracing is on
    /// although a TIP.PGE follows.
    ///
    /// Same as SKD024, SKL021, KBL021. Layers: events and all above them.
    pub bdm70: bool,
    /// SKD007, "Intel PT Buffer Overflow May Result in Incorrect Packets": after the first byte of a CYC with several
    /// bytes an OVF may follow in place of the other bytes.
    ///
    /// Same as SKL049, KBL041. Layers: packets and all above them.
    pub skd007: bool,
    /// SKD022, "VM Entry That Clears TraceEn May Generate a FUP": a FUP may precede the TIP.PGD of a VM entry.
    ///
    /// Same as SKL024, KBL023. Layers: instructions and blocks.
    pub skd022: bool,
    /// SKD010, "Intel PT FUP May be Dropped After OVF": the FUP or TIP.PGE after an OVF may be missing.
    ///
    /// Same as SKD014, SKL033, KBL030. Layers: events and all above them.
    pub skd010: bool,
    /// SKL014, "Intel PT TIP.PGD May Not Have Target IP Payload": the TIP.PGD of a direct branch out of a filter range
    /// may suppress the IP.
    ///
    /// Same as KBL014. Layers: instructions and blocks, if [`Config::filter`](crate::config::Config::filter) is set.
    pub skl014: bool,
    /// SKL168, "Intel PT CYC Packets Can be Dropped When Immediately Preceding PSB": cycles, and with them an MTC,
    /// may be missing before a PSB.
    ///
    /// Layers: time and all above it.
    pub skl168: bool,
    /// SKZ84, "Use of VMX TSC Scaling or TSC Offsetting Will Result in Corrupted Intel PT Packets": a TMA may have
    /// wrong values, reserved bits set and one byte too many.
    ///
    /// Layers: packets and all above them.
    pub skz84: bool,
    /// APL11, "Intel PT OVF Packet May Be Followed by TIP.PGD Packet".
    ///
    /// Layers: events and all above them.
    pub apl11: bool,
    /// APL12, "Intel PT OVF May Be Followed By An Unexpected FUP Packet": while a filter has disabled tracing.
    ///
    /// Layers: events and all above them.
    pub apl12: bool,
}

impl Errata {
    /// No errata.
    pub const NONE: Self = Self {
        bdm64: false,
        bdm70: false,
        skd007: false,
        skd022: false,
        skd010: false,
        skl014: false,
        skl168: false,
        skz84: false,
        apl11: false,
        apl12: false,
    };

    /// Returns the errata of a processor.
    ///
    /// # Errors
    /// [`UnknownCpu`] for a processor that is not in the table, and for every processor that is not Intel's.
    pub const fn of(cpu: Cpu) -> Result<Self, UnknownCpu> {
        const BROADWELL: Errata = Errata { bdm70: true, bdm64: true, ..Errata::NONE };
        const SKYLAKE: Errata = Errata {
            bdm70: true,
            skd007: true,
            skd022: true,
            skd010: true,
            skl014: true,
            skl168: true,
            ..Errata::NONE
        };
        const SKYLAKE_SP: Errata =
            Errata { bdm70: true, skl014: true, skd022: true, skz84: true, ..Errata::NONE };
        const SAPPHIRE_RAPIDS: Errata = Errata { bdm70: true, skd022: true, skz84: true, ..Errata::NONE };
        const ICE_LAKE: Errata = Errata { bdm70: true, skl014: true, skd022: true, ..Errata::NONE };
        const ALDER_LAKE: Errata = Errata { bdm70: true, skd022: true, apl11: true, ..Errata::NONE };
        const GOLDMONT: Errata = Errata { apl12: true, apl11: true, ..Errata::NONE };
        const GOLDMONT_PLUS: Errata = Errata { apl11: true, ..Errata::NONE };
        if matches!(cpu.vendor, Vendor::Other) {
            return Err(UnknownCpu(cpu));
        }
        Ok(match (cpu.family, cpu.model) {
            (6, 0x3d | 0x47 | 0x4f | 0x56) => BROADWELL,
            (6, 0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6) => SKYLAKE,
            (6, 0x55 | 0x6a | 0x6c) => SKYLAKE_SP,
            (6, 0x8f | 0xcf | 0xad | 0xae) | (0x13, 1) => SAPPHIRE_RAPIDS,
            (6, 0x66 | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7 | 0xa8) => ICE_LAKE,
            (6, 0x97 | 0x9a | 0xba | 0xb7 | 0xbf | 0xc5 | 0xc6 | 0xb5 | 0xaa | 0xac | 0xbd | 0xcc | 0xd5)
            | (0x12, 1 | 3) => ALDER_LAKE,
            (6, 0x5c | 0x5f) => GOLDMONT,
            (6, 0x7a | 0x86 | 0x96 | 0x9c | 0xb6 | 0xaf | 0xdd) => GOLDMONT_PLUS,
            _ => return Err(UnknownCpu(cpu)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_knows_each_processor_by_family_and_model() {
        let none = Errata::NONE;
        for (family, models, errata) in [
            (6, &[61, 71, 79, 86][..], Errata { bdm64: true, bdm70: true, ..none }),
            (
                6,
                &[78, 94, 142, 158, 165, 166],
                Errata {
                    bdm70: true,
                    skd007: true,
                    skd010: true,
                    skd022: true,
                    skl014: true,
                    skl168: true,
                    ..none
                },
            ),
            (6, &[85, 106, 108], Errata { bdm70: true, skl014: true, skd022: true, skz84: true, ..none }),
            (6, &[143, 207, 173, 174], Errata { bdm70: true, skd022: true, skz84: true, ..none }),
            (
                6,
                &[102, 125, 126, 140, 141, 167, 168],
                Errata { bdm70: true, skl014: true, skd022: true, ..none },
            ),
            (
                6,
                &[151, 154, 186, 183, 191, 197, 198, 181, 170, 172, 189, 204, 213],
                Errata { bdm70: true, skd022: true, apl11: true, ..none },
            ),
            (6, &[92, 95], Errata { apl11: true, apl12: true, ..none }),
            (6, &[122, 134, 150, 156, 182, 175, 221], Errata { apl11: true, ..none }),
            (18, &[1, 3], Errata { bdm70: true, skd022: true, apl11: true, ..none }),
            (19, &[1], Errata { bdm70: true, skd022: true, skz84: true, ..none }),
        ] {
            for &model in models {
                for stepping in [0, 15] {
                    let cpu = Cpu::intel(family, model, stepping);
                    assert_eq!(Errata::of(cpu), Ok(errata), "{cpu}");
                    let foreign = Cpu { vendor: Vendor::Other, ..cpu };
                    assert_eq!(Errata::of(foreign), Err(UnknownCpu(foreign)));
                }
                let other = Cpu::intel(15, model, 0);
                assert_eq!(Errata::of(other), Err(UnknownCpu(other)));
            }
        }
        let haswell = Cpu::intel(6, 60, 3);
        assert_eq!(Errata::of(haswell), Err(UnknownCpu(haswell)));
    }

    #[test]
    fn signatures_hold_family_model_and_stepping() {
        for (signature, family, model, stepping) in [
            (0x0005_06e3, 6, 0x5e, 3),
            (0x0003_06d4, 6, 0x3d, 4),
            // The extended model counts only in families 6 and 15, the extended family only in 15.
            (0x0002_0f31, 15, 0x23, 1),
            (0x0030_0f10, 18, 1, 0),
            (0xfff0_0f00, 0x10e, 0, 0),
            (0x0ff0_0543, 5, 4, 3),
            (0x0ffe_0543, 5, 4, 3),
        ] {
            assert_eq!(Cpu::from_signature(signature), Cpu::intel(family, model, stepping), "{signature:x}");
        }
    }
}
