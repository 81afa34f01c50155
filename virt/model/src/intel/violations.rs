//! What software does wrong without the hardware telling it.

/// What software did that the manual warns of and that hardware does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntelViolations {
    /// Cached ToPA entries found changed in memory while TraceEn was set. A correct driver makes none.
    pub live_table_edits: u32,
    /// The physical address of the first entry found changed.
    pub first_live_edit: Option<u64>,
    /// Times that output stopped or met an operational error between a PMI's cause and its delivery: no room was
    /// left for the skid.
    pub stopped_in_skid: u32,
    /// Writes of trace output to where no memory is.
    pub writes_outside_memory: u32,
    /// Instructions that were said to retire and to go on elsewhere than behind themselves, though they are no
    /// branches: a mistake of whoever feeds the model, not of the software that runs.
    pub unexplained_transfers: u32,
    /// PMIs dropped because the LVT entry was masked. Hardware does that to a second one while the first is handled.
    pub pmis_dropped: u32,
    /// PMIs dropped because the LVT entry had a delivery mode other than Fixed or NMI.
    pub pmis_misprogrammed: u32,
    /// Accesses to the Debug Store save area that were page faults.
    pub ds_page_faults: u32,
    /// Accesses to a page of the save area that was not marked as accessed, or for a write not as dirty.
    pub ds_pages_not_marked: u32,
    /// Accesses to a page of the save area that software of privilege level 3 can reach.
    pub ds_user_pages: u32,
    /// Times that a page of the save area was found at another physical address than before.
    pub ds_pages_moved: u32,
    /// Branch records that were not stored because the buffer is smaller than one, or the index outside of it.
    pub ds_misconfigured: u32,
    /// Branch records that were not stored because the buffer was full, with BTINT set.
    pub branch_records_dropped: u32,
    /// Interrupts of a circular branch buffer: with BTINT clear the threshold must lie behind the absolute maximum.
    pub circular_interrupts: u32,
    /// PEBS records that were not stored because they did not fit.
    pub samples_dropped: u32,
    /// Branches that the last branch record stack should have recorded, though its contents are undefined: TR set
    /// where both exclude each other, or call-stack mode with a filter that does not go with it.
    pub lbr_undefined: u32,
}

impl IntelViolations {
    /// What each is called, and how often it happened.
    #[must_use]
    pub const fn counts(&self) -> [(&'static str, u32); 15] {
        // Named one by one, so that none can be left out.
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
