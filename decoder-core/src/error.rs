//! Errors in recorded bytes, and their places: packets, branch records, PEBS records, raw IBS samples.

use crate::mode::ExecMode;
use core::fmt;

/// An error, with the offset of the packet, record or sample that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// The start of the packet, record or sample, in bytes from the first byte. In a circular buffer of records the
    /// oldest record is the first.
    pub offset: u64,
    /// The kind of error.
    pub kind: ErrorKind,
}

/// The kinds of errors in recorded bytes, or in the code that they lead through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No packet begins with this byte.
    UnknownOpcode(u8),
    /// No packet begins with `02` and this byte.
    UnknownExtendedOpcode(u8),
    /// No packet begins with `02 c3` and this byte.
    UnknownOpcodeAfterC3(u8),
    /// A packet whose opcode is known has a value that the manual does not allow.
    MalformedPacket {
        /// The packet's name in the manual.
        packet: &'static str,
        /// The value that is not allowed.
        value: u64,
    },
    /// [`Config::unknown`](crate::config::Config::unknown) refused an unknown packet, with a code of its own.
    Refused(u32),
    /// The slice of the trace ends here, and the next item depends on the bytes after it. That is no loss: the decoder
    /// continues in the next slice. Streams ([`resume`](crate::resume)) never report it.
    EndOfSlice,
    /// The meaning of this packet depends on packets farther away than the decoder can look in a trace that comes in
    /// slices.
    LooksTooFar,
    /// The caller asked for more before a PSB was found, or after an error without synchronising again.
    OutOfSync,
    /// This packet has no meaning at this place.
    UnexpectedPacket(&'static str),
    /// This packet suppresses its IP although an IP is needed here.
    IpSuppressed(&'static str),
    /// More packets wait for the packet that completes them than any processor leaves waiting.
    TooManyWaiting(&'static str),
    /// The state in a PSB+ (the packets from PSB to PSBEND, which repeat the current state) differs from the state
    /// that the packets before it left.
    StateMismatch {
        /// The decoder's place.
        ip: u64,
    },
    /// A MODE.Exec in a PSB+ gives another mode or RFLAGS.IF than the packets before it left.
    ModeMismatch {
        /// The mode that the MODE.Exec gives.
        mode: Option<ExecMode>,
    },
    /// The instruction needs one kind of packet (an outcome or a target), but the trace has another kind next.
    TraceMismatch {
        /// The instruction.
        ip: u64,
    },
    /// The path to the next event is an endless loop: no instruction in it needs a packet.
    EndlessLoop {
        /// An instruction in the loop.
        ip: u64,
    },
    /// The path to the next event is endless, as in memory that reads as zeros everywhere: more consecutive
    /// instructions need no packet than the image has bytes, or than is plausible for an infinite image.
    EndlessCode {
        /// The last of these instructions.
        ip: u64,
        /// The number of instructions since a packet was used.
        insns: u64,
    },
    /// The image has no byte at the instruction's address.
    NoMemory {
        /// The address of the instruction.
        ip: u64,
    },
    /// The image holds the start of the instruction, but not all of its bytes.
    TruncatedInstruction {
        /// The address of the instruction.
        ip: u64,
    },
    /// The bytes at this address are no instruction.
    UnknownInstruction {
        /// Their address.
        ip: u64,
    },
    /// No packet gave the execution mode, or a packet gave one that does not exist.
    UnknownMode {
        /// The address of the instruction.
        ip: u64,
    },
    /// A compressed return whose call is not in the trace.
    ReturnWithoutCall {
        /// The return.
        ip: u64,
    },
    /// A not-taken outcome for a return.
    BadReturnCompression {
        /// The return.
        ip: u64,
    },
    /// The bytes end within a record or sample, or there is no room to write it.
    Truncated {
        /// The number of bytes present.
        bytes: usize,
        /// The number of bytes needed.
        needed: usize,
    },
    /// A value does not fit into a record's field of 32 bits.
    TooWide {
        /// The value.
        value: u64,
    },
    /// Branch records that are all zero: memory that the processor has not written.
    EmptyRecords {
        /// The number of consecutive empty records.
        count: u64,
    },
    /// A PERF_RECORD_SAMPLE has more than PERF_SAMPLE_IP and PERF_SAMPLE_ADDR.
    OtherSample {
        /// Its size.
        bytes: usize,
    },
    /// Execution cannot reach the branch of a record: no path without a branch leads there, so records are missing or
    /// the code is not the traced code.
    UnreachableBranch {
        /// The target in the previous record.
        at: u64,
        /// The origin in this record.
        from: u64,
        /// The instruction at which the path ends.
        end: u64,
    },
    /// The branch of a record leads neither to a target of the instruction at its origin nor to a handler.
    ImpossibleBranch {
        /// The origin.
        from: u64,
        /// The target in the record.
        to: u64,
    },
    /// The size that an adaptive PEBS record gives differs from the size of its groups, or an architectural one gives a
    /// smaller size.
    RecordSize {
        /// The size that the record gives.
        size: usize,
        /// The size of its groups.
        groups: usize,
    },
    /// An adaptive or architectural PEBS record has unknown groups.
    UnknownGroups {
        /// Its record format: bits 31:0 of an adaptive record, bits 63:32 of an architectural one's header.
        format: u32,
    },
    /// A fragment of an architectural PEBS record has a group that an earlier one has.
    RepeatedGroups {
        /// Bits 63:32 of its header.
        format: u32,
    },
    /// The number of last branches is not between 1 and 32, the capacity of an adaptive PEBS record.
    LastBranchCount {
        /// The number of branches.
        count: usize,
    },
    /// A block in a trace, which BBP begins, has an unknown type.
    UnknownBlock {
        /// The type, 5 bits.
        kind: u8,
    },
    /// A block of this type in a trace has no such item (BIP).
    UnknownBlockItem {
        /// The block's type.
        kind: u8,
        /// The item's number.
        id: u8,
    },
    /// The blocks of a record in a trace have this item (BIP) twice.
    RepeatedBlockItem {
        /// The block's type.
        kind: u8,
        /// The item's number.
        id: u8,
    },
    /// No raw IBS sample of a fetch or an op has this size with these capabilities.
    SampleSize {
        /// The number of bytes after the size field.
        size: u32,
        /// The capabilities.
        caps: u32,
    },
}

impl ErrorKind {
    /// Returns the address of the instruction that the error is about, if any.
    #[must_use]
    pub const fn ip(&self) -> Option<u64> {
        match *self {
            Self::StateMismatch { ip }
            | Self::TraceMismatch { ip }
            | Self::EndlessLoop { ip }
            | Self::EndlessCode { ip, .. }
            | Self::NoMemory { ip }
            | Self::TruncatedInstruction { ip }
            | Self::UnknownInstruction { ip }
            | Self::UnknownMode { ip }
            | Self::ReturnWithoutCall { ip }
            | Self::BadReturnCompression { ip } => Some(ip),
            Self::UnreachableBranch { from, .. } | Self::ImpossibleBranch { from, .. } => Some(from),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}: {}", self.offset, self.kind)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOpcode(byte) => write!(f, "unknown packet opcode {byte:#04x}"),
            Self::UnknownExtendedOpcode(byte) => write!(f, "unknown extended packet opcode 0x02 {byte:#04x}"),
            Self::UnknownOpcodeAfterC3(byte) => write!(f, "unknown packet opcode 0x02 0xc3 {byte:#04x}"),
            Self::MalformedPacket { packet, value } => write!(f, "{packet} packet with value {value:#x}"),
            Self::Refused(code) => write!(f, "unknown packet refused with code {code:#x}"),
            Self::EndOfSlice => f.write_str("the slice of the trace ends"),
            Self::LooksTooFar => f.write_str("what it means depends on packets that are too far away"),
            Self::OutOfSync => f.write_str("not synchronised onto a PSB"),
            Self::UnexpectedPacket(packet) => write!(f, "{packet} packet has no meaning here"),
            Self::IpSuppressed(packet) => {
                write!(f, "{packet} packet without the IP that is needed here")
            }
            Self::TooManyWaiting(packet) => {
                write!(f, "{packet} packet while too many others wait for their partners")
            }
            Self::ModeMismatch { mode: Some(mode) } => {
                write!(f, "MODE.Exec in a PSB+ contradicts what is known: {mode:?}")
            }
            Self::ModeMismatch { mode: None } => {
                write!(f, "MODE.Exec in a PSB+ contradicts what is known: no mode")
            }
            Self::StateMismatch { ip } => write!(f, "PSB+ contradicts the state at {ip:#x}"),
            Self::TraceMismatch { ip } => write!(f, "the instruction at {ip:#x} does not fit the trace"),
            Self::EndlessLoop { ip } => write!(f, "endless loop at {ip:#x} on the way to the next event"),
            Self::EndlessCode { ip, insns } => {
                write!(f, "endless code at {ip:#x}, {insns} instructions after the last event")
            }
            Self::NoMemory { ip } => write!(f, "no memory in the image for the instruction at {ip:#x}"),
            Self::TruncatedInstruction { ip } => {
                write!(f, "no memory in the image for all of the instruction at {ip:#x}")
            }
            Self::UnknownInstruction { ip } => write!(f, "no instruction at {ip:#x}"),
            Self::UnknownMode { ip } => write!(f, "unknown execution mode at {ip:#x}"),
            Self::ReturnWithoutCall { ip } => write!(f, "compressed return without a call at {ip:#x}"),
            Self::BadReturnCompression { ip } => write!(f, "not-taken outcome for the return at {ip:#x}"),
            Self::Truncated { bytes, needed } => write!(f, "{bytes} bytes where {needed} are needed"),
            Self::TooWide { value } => write!(f, "no room for the value {value:#x}"),
            Self::EmptyRecords { count } => write!(f, "empty branch records, {count} in a row"),
            Self::OtherSample { bytes } => {
                write!(f, "a sample of {bytes} bytes, one of nothing but IP and ADDR has 24")
            }
            Self::UnreachableBranch { at, from, end } => {
                write!(f, "no path without a branch from {at:#x} to {from:#x}, it ends at {end:#x}")
            }
            Self::ImpossibleBranch { from, to } => {
                write!(f, "the instruction at {from:#x} does not lead to {to:#x}, and no handler is there")
            }
            Self::RecordSize { size, groups } => {
                write!(f, "a PEBS record of {size} bytes whose groups have {groups}")
            }
            Self::UnknownGroups { format } => write!(f, "a PEBS record of unknown groups: {format:#x}"),
            Self::RepeatedGroups { format } => {
                write!(f, "a PEBS record of groups that it has already: {format:#x}")
            }
            Self::LastBranchCount { count } => {
                write!(f, "a PEBS record of {count} last branches, it holds 1 to 32")
            }
            Self::UnknownBlock { kind } => write!(f, "a block of the unknown type {kind}"),
            Self::UnknownBlockItem { kind, id } => {
                write!(f, "a block of type {kind} with the unknown item {id}")
            }
            Self::RepeatedBlockItem { kind, id } => {
                write!(f, "a record whose blocks of type {kind} have item {id} twice")
            }
            Self::SampleSize { size, caps } => {
                write!(f, "no IBS sample has {size} bytes with the capabilities {caps:#x}")
            }
        }
    }
}

impl core::error::Error for Error {}
impl core::error::Error for ErrorKind {}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;

    #[test]
    fn errors_say_where_and_what() {
        let ip = 0x1000;
        for (kind, own) in [
            (ErrorKind::UnknownOpcode(0xc9), "unknown packet opcode 0xc9"),
            (ErrorKind::MalformedPacket { packet: "TIP", value: 5 }, "TIP packet with value 0x5"),
            (ErrorKind::Refused(7), "unknown packet refused with code 0x7"),
            (ErrorKind::OutOfSync, "not synchronised onto a PSB"),
            (ErrorKind::UnexpectedPacket("TIP"), "TIP packet has no meaning here"),
            (ErrorKind::IpSuppressed("FUP"), "FUP packet without the IP that is needed here"),
            (ErrorKind::TooManyWaiting("CFE"), "CFE packet while too many others wait for their partners"),
            (ErrorKind::StateMismatch { ip }, "PSB+ contradicts the state at 0x1000"),
            (ErrorKind::TraceMismatch { ip }, "the instruction at 0x1000 does not fit the trace"),
            (ErrorKind::EndlessLoop { ip }, "endless loop at 0x1000 on the way to the next event"),
            (
                ErrorKind::EndlessCode { ip, insns: 4096 },
                "endless code at 0x1000, 4096 instructions after the last event",
            ),
            (ErrorKind::NoMemory { ip }, "no memory in the image for the instruction at 0x1000"),
            (ErrorKind::UnknownInstruction { ip }, "no instruction at 0x1000"),
            (ErrorKind::UnknownMode { ip }, "unknown execution mode at 0x1000"),
            (ErrorKind::ReturnWithoutCall { ip }, "compressed return without a call at 0x1000"),
            (ErrorKind::BadReturnCompression { ip }, "not-taken outcome for the return at 0x1000"),
            (ErrorKind::Truncated { bytes: 5, needed: 24 }, "5 bytes where 24 are needed"),
            (ErrorKind::TooWide { value: 1 << 33 }, "no room for the value 0x200000000"),
            (ErrorKind::EmptyRecords { count: 2 }, "empty branch records, 2 in a row"),
            (
                ErrorKind::UnreachableBranch { at: 0x900, from: ip, end: 0x910 },
                "no path without a branch from 0x900 to 0x1000, it ends at 0x910",
            ),
            (
                ErrorKind::ImpossibleBranch { from: ip, to: 0x900 },
                "the instruction at 0x1000 does not lead to 0x900, and no handler is there",
            ),
            (
                ErrorKind::RecordSize { size: 40, groups: 32 },
                "a PEBS record of 40 bytes whose groups have 32",
            ),
            (ErrorKind::UnknownGroups { format: 0x80 }, "a PEBS record of unknown groups: 0x80"),
            (ErrorKind::RepeatedGroups { format: 0x80 }, "a PEBS record of groups that it has already: 0x80"),
            (ErrorKind::LastBranchCount { count: 33 }, "a PEBS record of 33 last branches, it holds 1 to 32"),
            (ErrorKind::UnknownBlock { kind: 3 }, "a block of the unknown type 3"),
            (ErrorKind::UnknownBlockItem { kind: 4, id: 9 }, "a block of type 4 with the unknown item 9"),
            (
                ErrorKind::RepeatedBlockItem { kind: 4, id: 2 },
                "a record whose blocks of type 4 have item 2 twice",
            ),
            (
                ErrorKind::SampleSize { size: 9, caps: 3 },
                "no IBS sample has 9 bytes with the capabilities 0x3",
            ),
        ] {
            assert_eq!(Error { offset: 0x40, kind }.to_string(), std::format!("0x40: {own}"));
            assert_eq!(kind.ip(), own.contains("0x1000").then_some(ip), "{kind:?}");
        }
    }
}
