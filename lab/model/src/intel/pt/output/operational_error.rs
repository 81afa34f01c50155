//! The reasons for operational errors of the output.

/// The reason for which IA32_RTIT_STATUS.Error was set. Hardware does not report the reason; it is here for tests.
///
/// Source: SDM vol. 3, Intel Processor Trace, "Single-Range Output Errors" and "ToPA Errors".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationalError {
    /// The single range's mask has a 0 below a 1.
    MaskNotContiguous {
        /// The mask.
        mask: u32,
    },
    /// The single range's base has a bit of the mask.
    BaseOverlapsMask {
        /// The base.
        base: u64,
        /// The mask.
        mask: u32,
    },
    /// OutputOffset is beyond the range or region.
    OffsetBeyondRange {
        /// The offset.
        offset: u32,
    },
    /// The table is not 4 KiB aligned.
    TableMisaligned {
        /// The physical address of the table.
        table: u64,
    },
    /// There is no memory at the table's address.
    TableUnreadable {
        /// The physical address of the page.
        address: u64,
    },
    /// A ToPA entry has reserved bits or address bits beyond MAXPHYADDR, or it has INT or STOP together with END.
    ReservedBits {
        /// The entry's physical address.
        address: u64,
        /// The entry.
        entry: u64,
    },
    /// A region is not aligned to its size.
    RegionMisaligned {
        /// The entry's physical address.
        address: u64,
        /// The entry.
        entry: u64,
    },
    /// Entry 0 of a table has END.
    EndInFirstEntry {
        /// The entry's physical address.
        address: u64,
    },
    /// On parts whose tables have a single entry: entry 1 does not have END.
    NoEndInSecondEntry {
        /// The entry's physical address.
        address: u64,
    },
    /// On parts whose tables have a single entry: the END entry does not point back to its own table.
    EndElsewhere {
        /// The entry's physical address.
        address: u64,
        /// The entry.
        entry: u64,
    },
}
