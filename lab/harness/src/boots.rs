//! The boots of a run of the guest kernel's workloads.

use crate::expected::{Expected, expected};
use crate::judge::Source;
use crate::workloads::{self, Loss, WORKLOADS};

/// One boot of the guest kernel: the machine's settings and the workloads to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// The monitor's command line.
    pub monitor_options: String,
    /// The guest's command line.
    pub command_line: String,
}

/// Returns the boots of a whole run with a source on a profile. `only`, names separated by commas, limits it to these
/// workloads.
///
/// A workload that overflows gets a machine of its own, whose trace output is too slow on purpose.
#[must_use]
pub fn boots(source: Source, profile: &str, only: Option<&str>) -> Vec<Boot> {
    // The guest reports unknown workloads; without names it runs all workloads.
    let names: Vec<&str> = match only {
        Some(only) => only.split(',').collect(),
        None => WORKLOADS.iter().map(|workload| workload.name).collect(),
    };
    let overflows = |name: &&str| {
        let loses = workloads::find(name).is_ok_and(|workload| workload.loss == Loss::Overflow);
        loses && matches!(expected(source, name, profile), Ok(Expected::Traces))
    };
    let (overflowing, steady): (Vec<&str>, Vec<&str>) = names.into_iter().partition(overflows);
    let all = only.is_none() && overflowing.is_empty();
    let boot = |options: &str, names: &[&str], words: &str| {
        let only = if all { String::new() } else { format!(" only={}", names.join(",")) };
        Boot {
            monitor_options: format!("profile={profile}{options}"),
            command_line: format!("source={}{only}{words}", source.word()),
        }
    };
    let boots = [(steady, "", ""), (overflowing, " ovf=256:1", " expect-ovf")];
    let boots = boots.iter().filter(|(names, ..)| !names.is_empty());
    boots.map(|(names, options, words)| boot(options, names, words)).collect()
}

/// Returns the word of the guest's command line for all processors of its machine; empty for one.
#[must_use]
pub fn processors(processors: u16) -> String {
    if processors > 1 { format!(" processors={processors}") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(source: Source, only: Option<&str>) -> Vec<String> {
        boots(source, "skylake", only).into_iter().map(|boot| boot.command_line).collect()
    }

    #[test]
    fn a_workload_that_overflows_has_its_own_boot() {
        assert_eq!(lines(Source::Pt, Some("sort,timer")), ["source=pt only=sort,timer"]);
        assert_eq!(lines(Source::Pt, Some("overflow")), ["source=pt only=overflow expect-ovf"]);
        assert_eq!(lines(Source::Pt, Some("nothing")), ["source=pt only=nothing"]);
        let options = |only| boots(Source::Pt, "skylake", only).swap_remove(0).monitor_options;
        assert_eq!(options(Some("sort")), "profile=skylake");
        assert_eq!(options(Some("overflow")), "profile=skylake ovf=256:1");
        assert_eq!(lines(Source::Pt, None).len(), 2);
        assert!(!lines(Source::Pt, None)[0].contains("overflow"));
        // This source declines the workload.
        assert_eq!(lines(Source::Bts, Some("overflow")), ["source=bts only=overflow"]);
    }

    #[test]
    fn one_processor_needs_no_word() {
        assert_eq!((processors(1), processors(4)), (String::new(), " processors=4".into()));
    }

    #[test]
    fn the_command_line_names_the_source_and_the_workloads() {
        assert_eq!(lines(Source::Ibs, Some("sort")), ["source=ibs only=sort"]);
        assert_eq!(lines(Source::Pebs, None), ["source=pebs"]);
        assert_eq!(boots(Source::Counters, "k8", Some("sort"))[0].monitor_options, "profile=k8");
    }
}
