//! What is run where, and what is expected of it: a table of workloads by profiles.

use Loss::{Nothing, Overflow, Stop, Wrap};
use anyhow::{Result, bail, ensure};

use crate::judge::{Verdict, judge};
use crate::protocol::Run;
use crate::symbols::Symbols;
use crate::truth::Truth;

/// The processors that the monitor can show.
pub const PROFILES: [&str; 4] = ["broadwell", "skylake", "icelake", "sapphire-rapids"];

/// What a workload's trace may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing at all.
    Nothing,
    /// What ran between a STOP and the interrupt that restarts the unit.
    Stop,
    /// All but what is in the ring at the end.
    Wrap,
    /// What ran until an overflow was resolved, where the machine overflows.
    Overflow,
}

impl Loss {
    /// The most instructions that one gap may have.
    #[must_use]
    pub const fn bound(self) -> u64 {
        match self {
            Self::Nothing => 0,
            // Each half of `stop` is some 15 500 instructions with interrupts off. Broadwell's tables have one region and
            // the interrupt brings the next one, so that 4 KiB, 4400 instructions, are traced of it: 11 000 are not. Where
            // a table has both regions 8 KiB are, and 6700 instructions are missing.
            Self::Stop => 12_000,
            Self::Wrap => 20_000,
            Self::Overflow => 2_000,
        }
    }
}

impl Loss {
    /// The least of what ran that must be there nonetheless, in percent.
    #[must_use]
    pub const fn least(self) -> u64 {
        match self {
            Self::Nothing => 100,
            Self::Stop => 40,
            Self::Wrap => 25,
            Self::Overflow => 50,
        }
    }

    /// Whether as much of `all` is there as must be, of a source that has `least` percent.
    ///
    /// # Errors
    /// It is less.
    pub(crate) fn enough(what: &str, there: u64, all: u64, least: u64) -> Result<()> {
        let enough = there > 0 && there * 100 >= all * least;
        ensure!(enough, "{there} {what} of {all} are there, which is less than {least} %");
        Ok(())
    }
}

/// A workload of the guest kernel.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// What may be missing from its trace.
    pub loss: Loss,
    /// The CPUID bit that the driver names when it declines, for each profile; empty where it traces.
    pub refusals: [&'static str; 4],
}

const TRACED: [&str; 4] = ["", "", "", ""];
const CYCLES: [&str; 4] = ["CPUID.14H.0:EBX[1]", "", "", ""];
const IP_FILTER: [&str; 4] = ["CPUID.14H.0:EBX[2]", "", "", ""];
const MANY_ENTRIES: [&str; 4] = ["CPUID.14H.0:ECX[1]", "", "", ""];
const SINGLE_RANGE: [&str; 4] = ["CPUID.14H.0:ECX[2]", "", "", ""];
const PTWRITE: [&str; 4] = ["CPUID.14H.0:EBX[4]", "CPUID.14H.0:EBX[4]", "", ""];
const AREA: [&str; 4] = ["only the debug store"; 4];
const EVENTS: [&str; 4] = ["CPUID.14H.0:EBX[7]", "CPUID.14H.0:EBX[7]", "CPUID.14H.0:EBX[7]", ""];

/// All workloads, in the order in which the guest runs them.
#[rustfmt::skip]
pub const WORKLOADS: &[Workload] = &[
    Workload { name: "recursion",       loss: Nothing,  refusals: TRACED },
    Workload { name: "sort",            loss: Nothing,  refusals: TRACED },
    Workload { name: "hash-map",        loss: Nothing,  refusals: TRACED },
    Workload { name: "dispatch",        loss: Nothing,  refusals: TRACED },
    Workload { name: "interpreter",     loss: Nothing,  refusals: TRACED },
    Workload { name: "strings",         loss: Nothing,  refusals: TRACED },
    Workload { name: "timer",           loss: Nothing,  refusals: TRACED },
    Workload { name: "exceptions",      loss: Nothing,  refusals: TRACED },
    Workload { name: "events",          loss: Nothing,  refusals: EVENTS },
    Workload { name: "shadows",         loss: Nothing,  refusals: TRACED },
    Workload { name: "syscall",         loss: Nothing,  refusals: TRACED },
    Workload { name: "syscall-tf-kept", loss: Nothing,  refusals: TRACED },
    Workload { name: "user-interrupt",  loss: Nothing,  refusals: TRACED },
    Workload { name: "filter-os",       loss: Nothing,  refusals: TRACED },
    Workload { name: "filter-user",     loss: Nothing,  refusals: TRACED },
    Workload { name: "area-absent",     loss: Nothing,  refusals: AREA },
    Workload { name: "area-read-only",  loss: Nothing,  refusals: AREA },
    Workload { name: "address-spaces",  loss: Nothing,  refusals: TRACED },
    Workload { name: "filter-cr3",      loss: Nothing,  refusals: TRACED },
    Workload { name: "filter-range",    loss: Nothing,  refusals: IP_FILTER },
    Workload { name: "trace-stop",      loss: Nothing,  refusals: IP_FILTER },
    Workload { name: "timing",          loss: Nothing,  refusals: CYCLES },
    Workload { name: "ptwrite",         loss: Nothing,  refusals: PTWRITE },
    Workload { name: "small-buffers",   loss: Nothing,  refusals: CYCLES },
    Workload { name: "circular",        loss: Nothing,  refusals: MANY_ENTRIES },
    Workload { name: "nmi",             loss: Nothing,  refusals: TRACED },
    Workload { name: "foreign-nmis",    loss: Nothing,  refusals: TRACED },
    Workload { name: "single-range",    loss: Nothing,  refusals: SINGLE_RANGE },
    Workload { name: "stop",            loss: Stop,     refusals: TRACED },
    Workload { name: "ring",            loss: Wrap,     refusals: MANY_ENTRIES },
    Workload { name: "overflow",        loss: Overflow, refusals: TRACED },
];

/// One boot of the guest kernel: a machine's settings and the workloads that go with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// The monitor's command line.
    pub monitor_options: String,
    /// The guest's.
    pub command_line: String,
}

impl Boot {
    /// A whole run by a source on a profile; `only`, names separated by commas, narrows the workloads down.
    #[must_use]
    pub fn of(source: &str, profile: &str, only: Option<&str>) -> Self {
        let only = only.map(|only| format!(" only={only}")).unwrap_or_default();
        Self { monitor_options: format!("profile={profile}"), command_line: format!("source={source}{only}") }
    }
}

/// The boots that make a whole run on a profile; `only`, names separated by commas, narrows the workloads down.
///
/// The workload that overflows has a machine of its own, one whose output cannot keep up.
#[must_use]
pub fn boots(profile: &str, only: Option<&str>) -> Vec<Boot> {
    let chosen = |name: &str| only.is_none_or(|only| only.split(',').any(|only_name| only_name == name));
    let names = |overflows: bool| -> Vec<&str> {
        let matching =
            |workload: &&Workload| (workload.loss == Overflow) == overflows && chosen(workload.name);
        WORKLOADS.iter().filter(matching).map(|workload| workload.name).collect()
    };
    let unknown = only.into_iter().flat_map(|only| only.split(','));
    let unknown = unknown.filter(|name| WORKLOADS.iter().all(|workload| workload.name != *name));
    // The guest is the one to say that there is no such workload.
    let steady: Vec<&str> = names(false).into_iter().chain(unknown).collect();
    let boot = |options: &str, names: Vec<&str>, words: &str| Boot {
        monitor_options: format!("profile={profile}{options}"),
        command_line: format!("only={}{words}", names.join(",")),
    };
    let boots = [boot("", steady, ""), boot(" ovf=256:1", names(true), " expect-ovf")];
    boots
        .into_iter()
        .filter(|boot| !boot.command_line.starts_with("only= ") && boot.command_line != "only=")
        .collect()
}

/// Whether a run of one of [`WORKLOADS`] went as the table says.
///
/// # Errors
/// What went otherwise: a refusal where none is due or a trace where one is, a decode that is not the truth, a
/// loss of another kind, a gap over its bound.
pub fn check(run: &Run, profile: &str, truth: &Truth, symbols: &Symbols) -> Result<Option<Verdict>> {
    let workload = WORKLOADS.iter().find(|workload| workload.name == run.name);
    let column = PROFILES.iter().position(|name| *name == profile);
    let (Some(workload), Some(column)) = (workload, column) else {
        bail!("{} on {profile} is not in the table", run.name)
    };
    let due = workload.refusals[column];
    match &run.refusal {
        Some(reason) if due.is_empty() || !reason.starts_with(due) => {
            bail!("the driver declined with {reason:?} where {due:?} was due")
        }
        Some(_) if run.traces_nothing() => return Ok(None),
        None if !due.is_empty() => bail!("the driver should have declined with {due}"),
        _ => {}
    }
    let verdict = judge(run, truth, symbols)?;
    let bound = workload.loss.bound();
    ensure!(verdict.longest_gap <= bound, "a gap of {} instructions, over {bound}", verdict.longest_gap);
    Loss::enough("instructions", verdict.decoded, verdict.truth_count, workload.loss.least())?;
    Ok(Some(verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_leaves_enough() {
        for (there, all, least, right) in [
            (100, 100, 100, true),
            (99, 100, 100, false),
            (40, 100, 40, true),
            (39, 100, 40, false),
            (0, 0, 100, false),
            (0, 100, 0, false),
        ] {
            assert_eq!(Loss::enough("x", there, all, least).is_ok(), right, "{there} of {all}");
        }
    }

    #[test]
    fn the_workload_that_overflows_has_its_own_boot() {
        let lines = |only| -> Vec<String> {
            boots("skylake", only).into_iter().map(|boot| boot.command_line).collect()
        };
        assert_eq!(lines(Some("sort,timer")), ["only=sort,timer"]);
        assert_eq!(lines(Some("overflow")), ["only=overflow expect-ovf"]);
        assert_eq!(lines(Some("nothing")), ["only=nothing"]);
        assert_eq!(lines(None).len(), 2);
        assert!(!lines(None)[0].contains("overflow"));
    }
}
