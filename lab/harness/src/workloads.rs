//! The workloads of the guest kernel, and the permitted loss of each.

use anyhow::{Context, Result};

use Loss::{Nothing, Overflow, Stop, Wrap};

/// The permitted loss of a workload's recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing at all.
    Nothing,
    /// Everything while the buffer was full, until the interrupt that drains it. The buffer must run full.
    Stop,
    /// Everything except the content of the ring at the end.
    Wrap,
    /// Everything until an overflow was resolved; the machine must overflow.
    Overflow,
}

/// A workload of the guest kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Name.
    pub name: &'static str,
    /// The permitted loss.
    pub loss: Loss,
}

/// All workloads, in the order in which the guest runs them.
#[rustfmt::skip]
pub const WORKLOADS: &[Workload] = &[
    Workload { name: "recursion",       loss: Nothing },
    Workload { name: "sort",            loss: Nothing },
    Workload { name: "hash-map",        loss: Nothing },
    Workload { name: "dispatch",        loss: Nothing },
    Workload { name: "interpreter",     loss: Nothing },
    Workload { name: "strings",         loss: Nothing },
    Workload { name: "timer",           loss: Nothing },
    Workload { name: "exceptions",      loss: Nothing },
    Workload { name: "events",          loss: Nothing },
    Workload { name: "shadows",         loss: Nothing },
    Workload { name: "syscall",         loss: Nothing },
    Workload { name: "syscall-tf-kept", loss: Nothing },
    Workload { name: "user-interrupt",  loss: Nothing },
    Workload { name: "filter-os",       loss: Nothing },
    Workload { name: "filter-user",     loss: Nothing },
    Workload { name: "area-absent",     loss: Nothing },
    Workload { name: "area-read-only",  loss: Nothing },
    Workload { name: "address-spaces",  loss: Nothing },
    Workload { name: "filter-cr3",      loss: Nothing },
    Workload { name: "filter-range",    loss: Nothing },
    Workload { name: "trace-stop",      loss: Nothing },
    Workload { name: "timing",          loss: Nothing },
    Workload { name: "ptwrite",         loss: Nothing },
    Workload { name: "power",           loss: Nothing },
    Workload { name: "small-buffers",   loss: Nothing },
    Workload { name: "circular",        loss: Nothing },
    Workload { name: "nmi",             loss: Nothing },
    Workload { name: "foreign-nmis",    loss: Nothing },
    Workload { name: "pause",           loss: Nothing },
    Workload { name: "single-range",    loss: Nothing },
    Workload { name: "stop",            loss: Stop },
    Workload { name: "ring",            loss: Wrap },
    Workload { name: "overflow",        loss: Overflow },
];

/// The workloads that the guest kernel runs on all processors at the same time, if it is told that there are several.
#[rustfmt::skip]
const ON_ALL: [&str; 11] = [
    "recursion", "sort", "hash-map", "dispatch", "interpreter", "strings",
    "small-buffers", "circular", "nmi", "stop", "ring",
];

/// Returns the names of a workload's runs on a machine with this many processors: a run on another than the first has
/// its processor's number after the name, as `sort@1`.
pub fn runs_of(workload: &str, processors: u16) -> impl Iterator<Item = String> {
    let last = if ON_ALL.contains(&workload) { processors } else { 1 };
    (0..last).map(move |number| match number {
        0 => workload.to_owned(),
        _ => format!("{workload}@{number}"),
    })
}

/// Returns the workload of a run with this name.
#[must_use]
pub fn of_run(name: &str) -> &str {
    name.split_once('@').map_or(name, |(workload, _)| workload)
}

/// Finds a workload by its name.
///
/// # Errors
/// If no workload has this name.
pub fn find(name: &str) -> Result<&'static Workload> {
    let workload = WORKLOADS.iter().find(|workload| workload.name == name);
    workload.with_context(|| format!("{name} is no workload"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_processor_has_a_run_of_its_own_where_all_run_a_workload() {
        let runs = |workload, processors| runs_of(workload, processors).collect::<Vec<_>>();
        assert_eq!(runs("sort", 3), ["sort", "sort@1", "sort@2"]);
        assert_eq!((runs("sort", 1), runs("timer", 3)), (vec!["sort".into()], vec!["timer".into()]));
        assert!(ON_ALL.iter().all(|name| find(name).is_ok()));
        assert!(
            WORKLOADS
                .iter()
                .all(|workload| runs_of(workload.name, 4).all(|run| of_run(&run) == workload.name))
        );
    }
}
