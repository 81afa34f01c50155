//! Settings for implementation-specific behaviour.

/// The behaviour of a processor where the manual leaves a choice. The default is as strict as hardware may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntelSettings {
    /// Instructions between the event that raises a PMI and its delivery. Only traced instructions count; if TraceEn is
    /// cleared, the PMI is delivered at once.
    pub pmi_skid: u32,
    /// Bytes of output that stay inside the processor until TraceEn is cleared, at most 256 and at most an eighth of
    /// the internal buffer's capacity.
    pub visibility: u32,
    /// The internal buffer and its drain rate; `None`: the buffer never overflows.
    pub overflow: Option<Overflow>,
    /// Conditional branches are collected in long TNT packets; otherwise in short ones.
    pub long_tnt: bool,
    /// TIP packets are held back until the TNT buffer is full, see "Deferred TIPs".
    pub deferred_tips: bool,
    /// PSB+ precedes TIP.PGE when TraceEn is set, as in recorded traces; otherwise it follows TIP.PGE, as in the table
    /// "Packet Generation under Different Enable Conditions".
    pub psb_before_pge: bool,
    /// The effect of a near RET that does not return to its CALL on the stack of CALLs for return compression.
    pub return_elsewhere: ReturnElsewhere,
    /// The first IP after an OVF is compressed against the last one before it, as "Overflow (OVF) Packet" allows;
    /// otherwise it is not compressed. libipt clears the last IP at an OVF.
    pub compress_after_overflow: bool,
    /// The privilege level of a branch if records are filtered by level (BTS_OFF_OS, MSR_LBR_SELECT).
    pub branch_level: BranchLevel,
    /// Reaching the threshold of the BTS buffer sets IA32_PERF_GLOBAL_STATUS.OvfDSBuffer, as in that bit's description;
    /// there are known parts on which only PEBS sets it.
    pub bts_sets_status: bool,
    /// Each PSB+ is followed by an MNT packet, which is generated when an implementation chooses.
    pub maintenance: bool,
    /// The core clock in units of the bus clock; `None`: the maximum non-turbo ratio.
    pub core_ratio: Option<u8>,
}

/// The effect of a RET that is not compressed on the stack of CALLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnElsewhere {
    /// Empties the stack. Every RET compressed later then has a CALL that all readers know, including those, like
    /// libipt, that do not pop for a RET with a TIP.
    Empties,
    /// Pops one CALL, as does a decoder that follows "Indirect Transfer Compression for Returns (RET)".
    Pops,
}

/// The privilege level of a branch between levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchLevel {
    /// The level of its source.
    From,
    /// The level of its target.
    To,
}

impl BranchLevel {
    pub(crate) const fn choose(self, before: u8, after: u8) -> u8 {
        match self {
            Self::From => before,
            Self::To => after,
        }
    }
}

/// The rate at which output leaves the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// Capacity of the internal buffer in bytes, 128 to 2048.
    pub capacity: u32,
    /// Bytes drained per instruction.
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
            maintenance: false,
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
            maintenance,
            core_ratio,
        } = IntelSettings::default();
        // A PMI is not precise: a driver that treats it as precise misjudges the position in its buffer.
        assert_eq!(pmi_skid, 40);
        // Data read while tracing is on may lack its end.
        assert_eq!(visibility, 64);
        // A driver cannot prevent this loss, so it is not the default.
        assert_eq!(overflow, None);
        // The long packet demands more of a reader.
        assert!(long_tnt);
        // "Deferred TIPs" are allowed, but no recorded trace has them.
        assert!(!deferred_tips);
        // As in recorded traces.
        assert!(psb_before_pge);
        // All readers decode these, including readers that do not pop for a RET with a TIP, or that clear the last IP
        // at an OVF.
        assert_eq!(return_elsewhere, ReturnElsewhere::Empties);
        assert!(!compress_after_overflow);
        // With BTS_OFF_OS branch records are suppressed "when CPL = 0": once the branch retires, CPL is the new level.
        assert_eq!(branch_level, BranchLevel::To);
        // "MSR_PERF_GLOBAL_STATUS[bit 62] indicates overflow conditions of the DS area data buffer": this covers both
        // buffers. A driver that clears the bit only after samples finds it set here.
        assert!(bts_sets_status);
        // No recorded trace has MNT packets.
        assert!(!maintenance);
        // The profile's own ratio.
        assert_eq!(core_ratio, None);
    }
}
