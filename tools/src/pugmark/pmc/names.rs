//! Finds PMUs and processors by the names that people use, and names similar to an unknown one.

use pugmark_pfm::{Cpu, Pmu};
use std::fmt;

/// Code names of cores and server processors, each with the end of a PMU's name.
const ALIASES: [(&str, &str); 20] = [
    ("griffin", "turion"),
    ("ontario", "bobcat"),
    ("zacate", "bobcat"),
    ("bulldozer", "fam15h_interlagos"),
    ("piledriver", "fam15h_interlagos"),
    ("steamroller", "fam15h_interlagos"),
    ("excavator", "fam15h_interlagos"),
    ("fam15h", "fam15h_interlagos"),
    ("jaguar", "fam16h"),
    ("puma", "fam16h"),
    ("zen", "zen1"),
    ("zen+", "zen1"),
    ("naples", "zen1"),
    ("rome", "zen2"),
    ("milan", "zen3"),
    ("genoa", "zen4"),
    ("bergamo", "zen4"),
    ("siena", "zen4"),
    ("zen5c", "zen5"),
    ("turin", "zen5"),
];

/// The maximum number of similar names shown.
const MOST_SHOWN: usize = 5;

/// Finds a PMU by its name in libpfm4, by the end of that name after an underscore (`zen4`), or by a code name. Case
/// makes no difference.
pub(super) fn pmu(name: &str) -> Option<&'static Pmu> {
    let end = end(name);
    Pmu::by_name(name).or_else(|| Pmu::all().iter().find(|pmu| ends_with(pmu.name(), &end)))
}

/// Finds a processor by its name as `list` prints it, by the end of that name, or by a code name. Case makes no
/// difference.
pub(super) fn cpu(name: &str) -> Option<&'static Cpu> {
    let end = end(name);
    let of = |name: &str| Cpu::all().iter().find(|cpu| ends_with(cpu.name(), name));
    // The name of a PMU also selects its processor.
    let of_pmu = || pmu(name).and_then(|pmu| Cpu::all().iter().find(|cpu| cpu.title() == pmu.title()));
    Cpu::by_name(name).or_else(|| of(&end)).or_else(of_pmu)
}

/// Returns the names of all PMUs and processors, and the last words of PMU names that only one PMU has.
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    let names = || Pmu::all().iter().map(Pmu::name);
    let last = |name: &'static str| name.rsplit('_').next().unwrap_or(name);
    let is_alone = move |end: &&str| names().filter(|name| last(name) == *end).count() == 1;
    names().chain(Cpu::all().iter().map(Cpu::name)).chain(names().map(last).filter(is_alone))
}

/// Returns the name in lower case; a code name is replaced by the end of its PMU's name.
fn end(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, end)| (*end).to_owned())
}

fn ends_with(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'))
}

/// Names similar to an unknown one. `Display` writes the end of a message, which is empty if there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::pugmark) struct SimilarNames(pub(in crate::pugmark) Vec<String>);

impl SimilarNames {
    /// Finds the most similar of `names`. Up to a third of the letters may be wrong, or more may be missing at one end.
    pub(in crate::pugmark) fn to<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> Self {
        let name = name.to_ascii_lowercase();
        let mut near: Vec<(bool, usize, &str)> = Vec::new();
        for other in names {
            let lower = other.to_ascii_lowercase();
            let distance = strsim::osa_distance(&name, &lower);
            let lacks = name.len() > 1 && (lower.starts_with(&name) || lower.ends_with(&name));
            if (lacks || distance <= name.len().div_ceil(3))
                && !near.iter().any(|(.., there)| *there == other)
            {
                near.push((lacks, distance, other));
            }
        }
        near.sort_by_key(|&(_, distance, name)| (distance, name));
        let best = near.first().map_or(0, |(_, distance, _)| *distance);
        near.retain(|(lacks, distance, _)| *lacks || *distance <= best + 1);
        Self(near.into_iter().take(MOST_SHOWN).map(|(.., name)| name.to_owned()).collect())
    }
}

impl fmt::Display for SimilarNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; similar names: {}", self.0.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_found_by_the_end_of_its_name_and_by_its_code_name() {
        for (name, expected_pmu, expected_cpu) in [
            ("zen4", "amd64_fam19h_zen4", "fam19h_zen4"),
            ("Zen5", "amd64_fam1ah_zen5", "fam1ah_zen5"),
            ("zen", "amd64_fam17h_zen1", "fam17h_zen1"),
            ("fam19h_zen3", "amd64_fam19h_zen3", "fam19h_zen3"),
            ("GENOA", "amd64_fam19h_zen4", "fam19h_zen4"),
            ("k7", "amd64_k7", "k7"),
            ("K8_revf", "amd64_k8_revf", "k8_revf"),
            ("barcelona", "amd64_fam10h_barcelona", "fam10h_revb"),
            ("bulldozer", "amd64_fam15h_interlagos", "fam15h"),
            ("turion", "amd64_fam11h_turion", ""),
            ("llano", "amd64_fam12h_llano", "fam12h"),
            ("amd64_fam14h_bobcat", "amd64_fam14h_bobcat", "fam14h"),
            ("en4", "", ""),
            ("", "", ""),
        ] {
            assert_eq!(pmu(name).map_or("", Pmu::name), expected_pmu, "{name}");
            assert_eq!(cpu(name).map_or("", Cpu::name), expected_cpu, "{name}");
        }
        for (alias, end) in ALIASES {
            assert!(pmu(alias).is_some_and(|pmu| pmu.name().ends_with(end)), "{alias}");
        }
    }

    #[test]
    fn similar_names_are_found_and_the_most_similar_comes_first() {
        // The names are not in the order of the results.
        let names =
            ["ROBE", "PROBED", "PRESET", "UNHALTED_XYA", "UNHALTED_OPS", "RETIRED_UOPS", "PROBE", "PROBE"];
        for (name, near) in [
            ("probes", "; similar names: PROBE, PROBED, ROBE"),
            ("RETIRED", "; similar names: RETIRED_UOPS"),
            // Names with a distance of two more than the best are left out.
            ("UNHALTED_XYZ", "; similar names: UNHALTED_XYA"),
            ("UOPS", "; similar names: RETIRED_UOPS"),
            ("RETIRDE_UOPS", "; similar names: RETIRED_UOPS"),
            ("xyz", ""),
            // One letter is at the end of many names, so it finds none.
            ("d", ""),
            ("", ""),
        ] {
            assert_eq!(SimilarNames::to(name, names).to_string(), near, "{name}");
        }
    }
}
