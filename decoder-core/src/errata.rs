//! Processors whose traces differ from the manual, and how.
//!
//! Source: the specification updates of the processors that give the errata their names.
//!
//! ```
//! use pugmark_decoder_core::errata::{Cpu, Errata};
//!
//! let skylake = Errata::of(Cpu { family: 6, model: 0x5e, stepping: 3 }).unwrap();
//! assert!(skylake.skd007 && !skylake.skz84);
//! assert_eq!(Errata::of(Cpu { family: 0, model: 0, stepping: 0 }), None);
//! ```

/// A processor of Intel's by CPUID.01H:EAX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cpu {
    /// The display family.
    pub family: u16,
    /// The display model.
    pub model: u8,
    /// The stepping.
    pub stepping: u8,
}

/// The errata that a decoder allows for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Errata {
    /// BDM64: after a transaction abort the branch before it may have led to the abort's IP.
    pub bdm64: bool,
    /// BDM70: a PSB+ may say that tracing is on where a TIP.PGE follows.
    pub bdm70: bool,
    /// SKD007: an OVF may have a first byte too many in front, which with the OVF's first looks like a CYC.
    pub skd007: bool,
    /// SKD022: VM entries may give a FUP before the TIP.PGD.
    pub skd022: bool,
    /// SKD010: the FUP behind an OVF may be missing.
    pub skd010: bool,
    /// SKL014: a TIP.PGD at a direct branch out of a filter range may suppress the IP.
    pub skl014: bool,
    /// SKL168: the first MTC behind a PSB may come late.
    pub skl168: bool,
    /// SKZ84: a TMA may have reserved bits set and eight bytes.
    pub skz84: bool,
    /// APL11: an OVF may be followed by a TIP.PGD.
    pub apl11: bool,
    /// APL12: an OVF that resolves while tracing goes off may be followed by a FUP.
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

    /// The errata of a processor, or `None` for one that is not in the table.
    pub const fn of(cpu: Cpu) -> Option<Self> {
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
        Some(match (cpu.family, cpu.model) {
            (6, 0x3d | 0x47 | 0x4f | 0x56) => BROADWELL,
            (6, 0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6) => SKYLAKE,
            (6, 0x55 | 0x6a | 0x6c) => SKYLAKE_SP,
            (6, 0x8f | 0xcf | 0xad | 0xae) | (0x13, 1) => SAPPHIRE_RAPIDS,
            (6, 0x66 | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7 | 0xa8) => ICE_LAKE,
            (6, 0x97 | 0x9a | 0xba | 0xb7 | 0xbf | 0xc5 | 0xc6 | 0xb5 | 0xaa | 0xac | 0xbd | 0xcc | 0xd5)
            | (0x12, 1 | 3) => ALDER_LAKE,
            (6, 0x5c | 0x5f) => GOLDMONT,
            (6, 0x7a | 0x86 | 0x96 | 0x9c | 0xb6 | 0xaf | 0xdd) => GOLDMONT_PLUS,
            _ => return None,
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
                    assert_eq!(Errata::of(Cpu { family, model, stepping }), Some(errata), "{family}/{model}");
                }
                assert_eq!(Errata::of(Cpu { family: 15, model, stepping: 0 }), None);
            }
        }
        assert_eq!(Errata::of(Cpu { family: 6, model: 60, stepping: 3 }), None);
    }
}
