//! The fields of a PEBS record about memory accesses and transactions.

/// The memory access that was sampled. The event that was counted determines which fields are meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// Data linear address: the address of the load or store.
    pub address: u64,
    /// Data source encoding, or store status.
    pub source: DataSourceEncoding,
    /// Latency in core cycles. From Alder Lake on, format 4 has the latency of the instruction in bits 15:0 and that of
    /// the cache access in bits 47:32.
    pub latency: u64,
}

/// Data source encoding of a load, or status of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DataSourceEncoding(pub u64);

impl DataSourceEncoding {
    /// Returns the data source of a load, an encoding of the table "Data Source Encoding for Load Latency Record".
    #[must_use]
    pub const fn source(self) -> u8 {
        (self.0 & 0xf) as u8
    }

    /// Returns true if a store hit the data cache closest to the core.
    #[must_use]
    pub const fn store_hit(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns true if the access missed the second-level TLB.
    #[must_use]
    pub const fn stlb_miss(self) -> bool {
        self.0 & 1 << 4 != 0
    }

    /// Returns true if the access was part of a locked one.
    #[must_use]
    pub const fn locked(self) -> bool {
        self.0 & 1 << 5 != 0
    }
}

/// TX abort information.
///
/// Source: SDM vol. 3, Performance Monitoring, "Intel TSX and PEBS Support", the table "TX Abort Information Field
/// Definition".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TxAbort(pub u64);

impl TxAbort {
    /// Returns the core cycles in the last transaction.
    #[must_use]
    pub const fn cycles(self) -> u32 {
        self.0 as u32
    }

    /// Returns true if an HLE region aborted.
    #[must_use]
    pub const fn hle(self) -> bool {
        self.0 & 1 << 32 != 0
    }

    /// Returns true if an RTM region aborted.
    #[must_use]
    pub const fn rtm(self) -> bool {
        self.0 & 1 << 33 != 0
    }

    /// Returns true if the instruction at the eventing IP caused the abort.
    #[must_use]
    pub const fn instruction(self) -> bool {
        self.0 & 1 << 34 != 0
    }

    /// Returns true if the instruction at the eventing IP may be unrelated to the abort.
    #[must_use]
    pub const fn non_instruction(self) -> bool {
        self.0 & 1 << 35 != 0
    }

    /// Returns true if a retry may succeed.
    #[must_use]
    pub const fn retry(self) -> bool {
        self.0 & 1 << 36 != 0
    }

    /// Returns true if another logical processor accessed the same memory.
    #[must_use]
    pub const fn data_conflict(self) -> bool {
        self.0 & 1 << 37 != 0
    }

    /// Returns true if the transaction wrote more than the processor can track.
    #[must_use]
    pub const fn capacity_writes(self) -> bool {
        self.0 & 1 << 38 != 0
    }

    /// Returns true if the transaction read more than the processor can track.
    #[must_use]
    pub const fn capacity_reads(self) -> bool {
        self.0 & 1 << 39 != 0
    }

    /// Returns true if a transaction aborted.
    #[must_use]
    pub const fn aborted(self) -> bool {
        self.hle() || self.rtm()
    }
}
