//! Violations by the software that hardware does not report.

/// Counts of violations that the manual warns of and hardware does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntelViolations {
    /// Cached ToPA entries that were changed in memory while TraceEn was set. A correct driver does not cause any.
    pub live_table_edits: u32,
    /// The physical address of the first entry that was changed.
    pub first_live_edit: Option<u64>,
    /// Number of times that output stopped or met an operational error between a PMI's cause and its delivery, because
    /// there was not enough room for the skid.
    pub stopped_in_skid: u32,
    /// Writes of trace output to addresses without memory.
    pub writes_outside_memory: u32,
    /// Instructions reported to retire and to continue elsewhere than at the next instruction, though they are not
    /// branches: an error of the model's caller, not of the guest software.
    pub unexplained_transfers: u32,
    /// PMIs dropped because the LVT entry was masked. Hardware drops a second PMI while the first is being handled.
    pub pmis_dropped: u32,
    /// PMIs dropped because the LVT entry had a delivery mode other than Fixed or NMI.
    pub pmis_misprogrammed: u32,
    /// Accesses to the Debug Store save area that were page faults.
    pub ds_page_faults: u32,
    /// Accesses to a page of the save area whose accessed flag, or for a write dirty flag, was clear.
    pub ds_pages_not_marked: u32,
    /// Accesses to a page of the save area that software at privilege level 3 can access.
    pub ds_user_pages: u32,
    /// Number of times that a page of the save area was mapped to another physical address than before.
    pub ds_pages_moved: u32,
    /// Branch records not stored because the buffer is smaller than one record, or the index is outside the buffer.
    pub ds_misconfigured: u32,
    /// Branch records not stored because the buffer was full, with BTINT set.
    pub branch_records_dropped: u32,
    /// Interrupts of a circular branch buffer: with BTINT clear the threshold must be above the absolute maximum.
    pub circular_interrupts: u32,
    /// PEBS records not stored because they did not fit.
    pub samples_dropped: u32,
    /// Branches that the last branch record stack should have recorded while its contents are undefined: TR is set on a
    /// processor where the stack and TR exclude each other, or call-stack mode has a filter that it does not allow.
    pub lbr_undefined: u32,
}

impl IntelViolations {
    /// Returns the name and the count of each violation.
    #[must_use]
    pub const fn counts(&self) -> [(&'static str, u32); 15] {
        // Named one by one, so that the compiler detects a missing one.
        let Self {
            live_table_edits,
            first_live_edit: _,
            stopped_in_skid,
            writes_outside_memory,
            unexplained_transfers,
            pmis_dropped,
            pmis_misprogrammed,
            ds_page_faults,
            ds_pages_not_marked,
            ds_user_pages,
            ds_pages_moved,
            ds_misconfigured,
            branch_records_dropped,
            circular_interrupts,
            samples_dropped,
            lbr_undefined,
        } = *self;
        [
            ("live_table_edits", live_table_edits),
            ("stopped_in_skid", stopped_in_skid),
            ("writes_outside_memory", writes_outside_memory),
            ("unexplained_transfers", unexplained_transfers),
            ("pmis_dropped", pmis_dropped),
            ("pmis_misprogrammed", pmis_misprogrammed),
            ("ds_page_faults", ds_page_faults),
            ("ds_pages_not_marked", ds_pages_not_marked),
            ("ds_user_pages", ds_user_pages),
            ("ds_pages_moved", ds_pages_moved),
            ("ds_misconfigured", ds_misconfigured),
            ("branch_records_dropped", branch_records_dropped),
            ("circular_interrupts", circular_interrupts),
            ("samples_dropped", samples_dropped),
            ("lbr_undefined", lbr_undefined),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_by_its_name() {
        let counts =
            IntelViolations { pmis_dropped: 2, lbr_undefined: 1, ..IntelViolations::default() }.counts();
        let there: [_; 2] =
            core::array::from_fn(|nth| counts.iter().filter(|(_, count)| *count > 0).nth(nth));
        assert_eq!(there, [Some(&("pmis_dropped", 2)), Some(&("lbr_undefined", 1))]);
    }
}
