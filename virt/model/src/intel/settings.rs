//! What the manual leaves to the processor, as settings.

/// How a processor behaves where the manual leaves it a choice. The default is as strict as hardware may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntelSettings {
    /// Instructions between the event that raises a PMI and its delivery. Counted only while tracing; it is due at
    /// once when TraceEn is cleared.
    pub pmi_skid: u32,
    /// Bytes of output that stay inside the processor until TraceEn is cleared, at most 256 and at
    /// most an eighth of the internal buffer's capacity.
    pub visibility: u32,
    /// The internal buffer and how fast it empties; `None`: output never overflows.
    pub overflow: Option<Overflow>,
    /// Gather conditional branches in long TNT packets; otherwise in short ones.
    pub long_tnt: bool,
    /// Hold TIP packets back until the TNT buffer is full, see "Deferred TIPs".
    pub deferred_tips: bool,
    /// PSB+ comes before TIP.PGE when TraceEn is set, as recorded traces have it; otherwise after it, as the table
    /// "Packet Generation under Different Enable Conditions" has it.
    pub psb_before_pge: bool,
    /// What a near RET that goes elsewhere than its CALL came from leaves of the CALLs that RETs are compressed against.
    pub return_elsewhere: ReturnElsewhere,
    /// The first IP after an OVF is compressed against the last one before it, as "Overflow (OVF) Packet" allows;
    /// otherwise it is whole. libipt forgets the one before.
    pub compress_after_overflow: bool,
    /// Whose privilege level a branch record has where records are filtered by level (BTS_OFF_OS, MSR_LBR_SELECT).
    pub branch_level: BranchLevel,
    /// Reaching the threshold of the BTS buffer sets IA32_PERF_GLOBAL_STATUS.OvfDSBuffer, as that bit's description has
    /// it; parts are known on which only PEBS does.
    pub bts_sets_status: bool,
    /// The core clock in units of the bus clock; `None`: the maximum non-turbo ratio.
    pub core_ratio: Option<u8>,
}

/// What an uncompressed RET does to the stack of CALLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnElsewhere {
    /// It empties the stack: of what is compressed afterwards all readers know the CALL, also those that pop nothing for a
    /// RET with a TIP, as libipt.
    Empties,
    /// It pops its CALL, as a decoder does by "Indirect Transfer Compression for Returns (RET)".
    Pops,
}

/// Whose privilege level a branch from one level to another has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchLevel {
    /// That of the code it comes from.
    From,
    /// That of the code it leads to.
    To,
}

impl BranchLevel {
    pub(crate) const fn of(self, before: u8, after: u8) -> u8 {
        match self {
            Self::From => before,
            Self::To => after,
        }
    }
}

/// How output falls behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// Bytes the internal buffer holds, 128 to 2048.
    pub capacity: u32,
    /// Bytes that leave it per instruction.
    pub drain: u32,
}

impl Default for IntelSettings {
    fn default() -> Self {
        Self {
            pmi_skid: 40,
            visibility: 64,
            overflow: None,
            long_tnt: true,
            deferred_tips: false,
            psb_before_pge: true,
            return_elsewhere: ReturnElsewhere::Empties,
            compress_after_overflow: false,
            branch_level: BranchLevel::To,
            bts_sets_status: true,
            core_ratio: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_of_which_nothing_is_said_is_as_strict_as_hardware_may_be() {
        let IntelSettings {
            pmi_skid,
            visibility,
            overflow,
            long_tnt,
            deferred_tips,
            psb_before_pge,
            return_elsewhere,
            compress_after_overflow,
            branch_level,
            bts_sets_status,
            core_ratio,
        } = IntelSettings::default();
        // A PMI is not precise: a driver that takes it for that is wrong about where its buffer stands.
        assert_eq!(pmi_skid, 40);
        // What is read while tracing is on may lack its end.
        assert_eq!(visibility, 64);
        // A loss that no driver can help is not for every run.
        assert_eq!(overflow, None);
        // The larger packet is the one that asks more of a reader.
        assert!(long_tnt);
        // "Deferred TIPs" are allowed, and no recorded trace has them.
        assert!(!deferred_tips);
        // Recorded traces have it so.
        assert!(psb_before_pge);
        // What all readers understand, those among them that pop nothing for a RET with a TIP, or that forget an address
        // with an OVF.
        assert_eq!(return_elsewhere, ReturnElsewhere::Empties);
        assert!(!compress_after_overflow);
        // With BTS_OFF_OS branch records are left out "when CPL = 0": once the branch retires that is the new level.
        assert_eq!(branch_level, BranchLevel::To);
        // "MSR_PERF_GLOBAL_STATUS[bit 62] indicates overflow conditions of the DS area data buffer": of each of the two
        // buffers. A driver that clears it only after samples finds it set here.
        assert!(bts_sets_status);
        // The profile's own.
        assert_eq!(core_ratio, None);
    }
}
