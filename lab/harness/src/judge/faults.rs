//! Page faults of the debug store: the processor itself writes into its area through the page tables.

use anyhow::{Result, ensure};

use crate::report::Run;

/// Workloads in which a page of the debug store's area is missing, with the error code of the resulting page fault: a
/// write, by the processor itself, to a page that is absent or read-only.
const MISSING_PAGES: [(&str, u64); 2] = [("area-absent", 0b10), ("area-read-only", 0b11)];

/// Returns the error code of a workload's required page fault; `None` if none is allowed.
pub(super) fn expected(workload: &str) -> Option<u64> {
    MISSING_PAGES.iter().find(|(name, _)| *name == workload).map(|(_, code)| *code)
}

/// Checks that the guest reports the expected page faults: one in each of its `sessions`, or none.
///
/// # Errors
/// If other page faults were reported.
pub(super) fn as_expected(run: &Run, sessions: usize) -> Result<()> {
    let codes: Vec<u64> = run.faults.iter().map(|fault| fault.code).collect();
    let expected = expected(&run.name).map(|code| vec![code; sessions]).unwrap_or_default();
    ensure!(
        codes == expected,
        "page faults {:x?}, instead of faults with the codes {expected:x?}",
        run.faults
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads;
    use pugmark_protocol::Fault;

    #[test]
    fn a_page_is_missing_in_a_workload_that_there_is() {
        for (name, _) in MISSING_PAGES {
            assert!(workloads::find(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn each_session_has_the_page_fault_of_its_workload() {
        let run = |name: &str, codes: &[u64]| Run {
            name: name.into(),
            faults: codes.iter().map(|&code| Fault { address: 0x1000, code }).collect(),
            ..Run::default()
        };
        for (name, codes, sessions, right) in [
            ("sort", &[][..], 1, true),
            ("sort", &[2], 1, false),
            ("area-absent", &[2], 1, true),
            ("area-absent", &[], 1, false),
            ("area-absent", &[3], 1, false),
            ("area-absent", &[2, 2], 1, false),
            ("area-absent", &[2, 2], 2, true),
            ("area-absent", &[2], 2, false),
            ("area-read-only", &[3], 1, true),
        ] {
            assert_eq!(as_expected(&run(name, codes), sessions).is_ok(), right, "{name} {codes:?}");
        }
    }
}
