//! Names of processors, which `--cpu` takes instead of numbers.

use pugmark_decoder_core::errata::Cpu;
use std::{fmt::Write, io};

/// Name, family, model, and the names under which the processor was sold.
///
/// Source: SDM vol. 4, "Model-Specific Registers", Table 2-1, "CPUID Signature Values of DisplayFamily_DisplayModel";
/// the names are those of Linux, `arch/x86/include/asm/intel-family.h`, in small letters and with hyphens.
const PROCESSORS: [(&str, u16, u8, &str); 48] = [
    ("broadwell", 6, 0x3d, "Core, 5th generation"),
    ("broadwell-g", 6, 0x47, "Core, 5th generation, with Iris Pro"),
    ("broadwell-x", 6, 0x4f, "Xeon E5 and E7 v4"),
    ("broadwell-d", 6, 0x56, "Xeon D-1500"),
    ("skylake-l", 6, 0x4e, "Core, 6th generation, mobile"),
    ("skylake", 6, 0x5e, "Core, 6th generation; Xeon E3 v5"),
    ("skylake-x", 6, 0x55, "Xeon Scalable, 1st to 3rd generation: Skylake, Cascade Lake, Cooper Lake"),
    ("kabylake-l", 6, 0x8e, "Core, 7th and 8th generation, mobile"),
    ("kabylake", 6, 0x9e, "Core, 7th to 9th generation"),
    ("cometlake", 6, 0xa5, "Core, 10th generation"),
    ("cometlake-l", 6, 0xa6, "Core, 10th generation, mobile"),
    ("cannonlake-l", 6, 0x66, "Core, 8th generation, 10 nm"),
    ("icelake", 6, 0x7d, "Core, 10th generation, 10 nm"),
    ("icelake-l", 6, 0x7e, "Core, 10th generation, 10 nm, mobile"),
    ("icelake-x", 6, 0x6a, "Xeon Scalable, 3rd generation"),
    ("icelake-d", 6, 0x6c, "Xeon D-1700 and D-2700"),
    ("tigerlake-l", 6, 0x8c, "Core, 11th generation, mobile"),
    ("tigerlake", 6, 0x8d, "Core, 11th generation, mobile, H series"),
    ("rocketlake", 6, 0xa7, "Core, 11th generation"),
    ("sapphirerapids-x", 6, 0x8f, "Xeon Scalable, 4th generation"),
    ("emeraldrapids-x", 6, 0xcf, "Xeon Scalable, 5th generation"),
    ("graniterapids-x", 6, 0xad, "Xeon 6, P-cores"),
    ("graniterapids-d", 6, 0xae, "Xeon 6 SoC"),
    ("diamondrapids-x", 19, 0x01, ""),
    ("alderlake", 6, 0x97, "Core, 12th generation"),
    ("alderlake-l", 6, 0x9a, "Core, 12th generation, mobile"),
    ("raptorlake", 6, 0xb7, "Core, 13th and 14th generation"),
    ("raptorlake-p", 6, 0xba, "Core, 13th generation, mobile"),
    ("raptorlake-s", 6, 0xbf, "Core, 13th and 14th generation"),
    ("meteorlake", 6, 0xac, "Core Ultra, series 1, desktop"),
    ("meteorlake-l", 6, 0xaa, "Core Ultra, series 1"),
    ("arrowlake-h", 6, 0xc5, "Core Ultra, series 2, H"),
    ("arrowlake", 6, 0xc6, "Core Ultra, series 2"),
    ("arrowlake-u", 6, 0xb5, "Core Ultra, series 2, U"),
    ("lunarlake-m", 6, 0xbd, "Core Ultra, series 2, V"),
    ("pantherlake-l", 6, 0xcc, "Core Ultra, series 3"),
    ("wildcatlake-l", 6, 0xd5, "Core, series 3"),
    ("novalake", 18, 0x01, ""),
    ("novalake-l", 18, 0x03, "mobile"),
    ("goldmont", 6, 0x5c, "Atom, Celeron, Pentium: Apollo Lake"),
    ("goldmont-d", 6, 0x5f, "Atom C3000"),
    ("goldmont-plus", 6, 0x7a, "Celeron, Pentium: Gemini Lake"),
    ("tremont-d", 6, 0x86, "Atom P5900"),
    ("tremont", 6, 0x96, "Atom x6000: Elkhart Lake"),
    ("tremont-l", 6, 0x9c, "Celeron, Pentium: Jasper Lake"),
    ("crestmont-x", 6, 0xaf, "Xeon 6, E-cores: Sierra Forest"),
    ("crestmont", 6, 0xb6, "Grand Ridge"),
    ("darkmont-x", 6, 0xdd, "Clearwater Forest"),
];

/// Returns the processor of this name; case, underscores and hyphens make no difference.
#[must_use]
pub fn by_name(name: &str) -> Option<Cpu> {
    let bare = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
    let wanted = bare(name);
    // The final X of a server's name may be left out where no other processor has that name.
    let (_, family, model, _) = PROCESSORS
        .iter()
        .find(|(name, ..)| bare(name) == wanted)
        .or_else(|| PROCESSORS.iter().find(|(name, ..)| bare(name) == format!("{wanted}x")))?;
    Some(Cpu::intel(*family, *model, 0))
}

/// Returns the processor that this program runs on; `None` on other architectures than x86-64.
#[must_use]
pub fn host() -> Option<Cpu> {
    #[cfg(target_arch = "x86_64")]
    {
        use pugmark_decoder_core::errata::Vendor;
        use std::arch::x86_64::__cpuid;
        let (vendor, features) = (__cpuid(0), __cpuid(1));
        let mut cpu = Cpu::from_signature(features.eax);
        if [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() != b"GenuineIntel" {
            cpu.vendor = Vendor::Other;
        }
        Some(cpu)
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Writes the processors' names, one a line.
///
/// # Errors
/// Those of `out`.
pub fn list(out: &mut dyn io::Write) -> io::Result<()> {
    let mut text = String::new();
    for (name, family, model, sold) in PROCESSORS {
        let cpu = format!("{family}/{model}");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", format!("{name:<18}{cpu:<8}{sold}").trim_end());
    }
    out.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::errata::Errata;
    use std::collections::HashSet;

    #[test]
    fn every_name_is_one_processor_whose_errata_are_known() {
        let mut models = HashSet::new();
        for (name, family, model, _) in PROCESSORS {
            let cpu = Cpu::intel(family, model, 0);
            assert_eq!(by_name(name), Some(cpu), "{name}");
            assert!(Errata::of(cpu).is_ok(), "{name}");
            assert!(models.insert((family, model)), "{name}");
        }
    }

    #[test]
    fn names_are_read_as_people_write_them() {
        for (name, family, model) in [
            ("Skylake", 6, 0x5e),
            ("SKYLAKE_X", 6, 0x55),
            ("icelake", 6, 0x7d),
            ("sapphire-rapids", 6, 0x8f),
            ("sapphirerapids", 6, 0x8f),
            ("emerald_rapids_x", 6, 0xcf),
            ("goldmont-plus", 6, 0x7a),
        ] {
            assert_eq!(by_name(name), Some(Cpu::intel(family, model, 0)), "{name}");
        }
        for name in ["", "x", "lake", "haswell", "zen4"] {
            assert_eq!(by_name(name), None, "{name}");
        }
    }

    #[test]
    fn the_list_has_a_line_for_each_name() {
        let mut out = vec![];
        list(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), PROCESSORS.len());
        assert!(text.contains("\nskylake           6/94    Core, 6th generation"), "{text}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_host_is_what_the_system_says_it_is() {
        let cpu = host().unwrap();
        let Ok(info) = std::fs::read_to_string("/proc/cpuinfo") else { return };
        let field = |name: &str| {
            let line = info.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
            line.and_then(|line| line.split(": ").nth(1)).unwrap().to_owned()
        };
        assert_eq!((cpu.family.to_string(), cpu.model.to_string()), (field("cpu family"), field("model")));
        assert_eq!(
            cpu.vendor == pugmark_decoder_core::errata::Vendor::Intel,
            field("vendor_id") == "GenuineIntel"
        );
    }
}
