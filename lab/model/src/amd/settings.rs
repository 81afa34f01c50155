//! Settings for implementation-specific behaviour.

use super::Errata;

/// The behaviour of a processor where the manuals leave a choice. The default is as strict as hardware may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmdSettings {
    /// Instructions between an interrupt's cause and its delivery: the counter or IBS may be off when it arrives.
    pub skid: u32,
    /// The seed of the pseudo-random numbers.
    pub seed: u64,
    /// One op sample in this number has no valid RIP, if the processor can report that (IbsRipInvalid); 0: every RIP is
    /// valid.
    pub rip_invalid: u32,
    /// Errata instead of the profile's own.
    pub errata: Option<Errata>,
}

impl Default for AmdSettings {
    fn default() -> Self {
        Self { skid: 20, seed: 1, rip_invalid: 0, errata: None }
    }
}

/// Counts of violations that the manuals warn of and hardware does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AmdViolations {
    /// Writes of PerfEvtSel that set reserved bits. The bits stay 0.
    pub reserved_event_bits: u32,
    /// Number of times that IBS op sampling was enabled with a reserved maximum count, 1 to 8 times 16.
    pub reserved_op_counts: u32,
    /// Number of times that a unit of IBS was enabled with a count beyond the maximum: the count must wrap first.
    pub counts_beyond_maximum: u32,
    /// Interrupts dropped because the LVT entry was masked.
    pub interrupts_dropped: u32,
    /// Interrupts dropped because the LVT entry had a message type other than fixed or NMI, or a vector below 16.
    pub interrupts_misprogrammed: u32,
    /// IBS samples without an interrupt, because IBS_CTL names no LVT entry.
    pub samples_without_lvt: u32,
    /// Writes of DBG_EXTN_CFG, on a processor with branch sampling, that clear the two reserved bits that must be set.
    pub cleared_branch_bits: u32,
    /// Instructions reported to retire and to continue elsewhere than at the next instruction, though they are not
    /// branches: an error of the model's caller, not of the guest software.
    pub unexplained_transfers: u32,
}

impl AmdViolations {
    /// Returns the name and the count of each violation.
    #[must_use]
    pub const fn counts(&self) -> [(&'static str, u32); 8] {
        // Named one by one, so that the compiler detects a missing one.
        let Self {
            reserved_event_bits,
            reserved_op_counts,
            counts_beyond_maximum,
            interrupts_dropped,
            interrupts_misprogrammed,
            samples_without_lvt,
            cleared_branch_bits,
            unexplained_transfers,
        } = *self;
        [
            ("reserved_event_bits", reserved_event_bits),
            ("reserved_op_counts", reserved_op_counts),
            ("counts_beyond_maximum", counts_beyond_maximum),
            ("interrupts_dropped", interrupts_dropped),
            ("interrupts_misprogrammed", interrupts_misprogrammed),
            ("samples_without_lvt", samples_without_lvt),
            ("cleared_branch_bits", cleared_branch_bits),
            ("unexplained_transfers", unexplained_transfers),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_of_which_nothing_is_said_interrupts_late_and_has_the_errata_of_its_profile() {
        let AmdSettings { skid, seed, rip_invalid, errata } = AmdSettings::default();
        // The delay is long enough that a counter may be switched off before its interrupt arrives.
        assert_eq!(skid, 20);
        // With a fixed seed, runs are reproducible.
        assert_eq!(seed, 1);
        // Samples without a RIP are the exception, and not the default.
        assert_eq!((rip_invalid, errata), (0, None));
    }

    #[test]
    fn each_violation_has_its_name_and_its_count() {
        let violations = AmdViolations {
            reserved_event_bits: 1,
            reserved_op_counts: 2,
            counts_beyond_maximum: 3,
            interrupts_dropped: 4,
            interrupts_misprogrammed: 5,
            samples_without_lvt: 6,
            cleared_branch_bits: 7,
            unexplained_transfers: 8,
        };
        let counts = violations.counts();
        assert_eq!(counts.map(|(_, count)| count), [1, 2, 3, 4, 5, 6, 7, 8]);
        let names = "reserved_event_bits reserved_op_counts counts_beyond_maximum interrupts_dropped \
                     interrupts_misprogrammed samples_without_lvt cleared_branch_bits unexplained_transfers";
        assert!(names.split_whitespace().eq(counts.map(|(name, _)| name)));
    }
}
