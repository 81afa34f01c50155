//! Intel PT packets: bytes to values and back.
//!
//! Source for all of them: SDM vol. 3, Intel Processor Trace, "Packet Definitions".

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packet {
    /// Nothing; fills space.
    Pad,
    /// Packet Stream Boundary: sixteen bytes that occur nowhere else, opens a PSB+.
    Psb,
    /// The end of a PSB+.
    PsbEnd,
    /// Packets were lost.
    Ovf,
    /// TraceStop: a TraceStop region was entered.
    TraceStop,
    /// Taken/Not-Taken, in one byte (1 to 6 outcomes).
    TntShort(Tnt),
    /// Taken/Not-Taken, in eight bytes (1 to 47 outcomes).
    TntLong(Tnt),
    /// Target IP of an indirect branch, an exception, an interrupt.
    Tip(Ip),
    /// Packet generation was enabled.
    TipPge(Ip),
    /// Packet generation was disabled.
    TipPgd(Ip),
    /// Flow Update: the source of an asynchronous event, or the IP of the packet before it.
    Fup(Ip),
    /// MODE.Exec: the execution mode.
    ModeExec(ModeExec),
    /// MODE.TSX: the transactional state.
    ModeTsx(ModeTsx),
    /// Paging Information: CR3 was written.
    Pip(Pip),
    /// The VMCS pointer changed.
    Vmcs(Vmcs),
    /// Time-Stamp Counter.
    Tsc(Tsc),
    /// Core:Bus Ratio.
    Cbr(Cbr),
    /// TSC/MTC Alignment.
    Tma(Tma),
    /// Mini Time Counter.
    Mtc(Mtc),
    /// Cycles since the last CYC.
    Cyc(Cyc),
    /// Maintenance: model-specific content.
    Mnt(Mnt),
    /// Execution stopped.
    Exstop(Exstop),
    /// MWAIT to a C-state deeper than C0.
    Mwait(Mwait),
    /// Power entry: a C-state was entered.
    Pwre(Pwre),
    /// Power exit: back in C0.
    Pwrx(Pwrx),
    /// PTWRITE's operand.
    Ptw(Ptw),
    /// Block Begin: a group of block items follows.
    Bbp(Bbp),
    /// Block Item; only between BBP and BEP.
    Bip(Bip),
    /// Block End.
    Bep(Bep),
    /// Control-Flow Event.
    Cfe(Cfe),
    /// Event Data.
    Evd(Evd),
    /// Trigger.
    Trig(Trig),
}

/// Outcomes of conditional branches and compressed returns, oldest in the highest bit of `bits` below `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tnt {
    /// The outcomes: bit `len - 1` is the oldest, bit 0 the youngest; 1 is taken. Zero above `len`.
    pub bits: u64,
    /// How many: 1 to 6 in a short packet, 1 to 47 in a long one.
    pub len: u8,
}

/// An IP as a packet carries it: `IPBytes` and the bytes that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ip {
    /// IPBytes 0: no payload, the IP is out of context.
    Suppressed,
    /// IPBytes 1: bits 15:0; the rest as in the last IP.
    Update16(u16),
    /// IPBytes 2: bits 31:0; the rest as in the last IP.
    Update32(u32),
    /// IPBytes 3: bits 47:0, to be sign-extended. Held as in the packet: below 2^48.
    SignExtend48(u64),
    /// IPBytes 4: bits 47:0; the rest as in the last IP. Below 2^48.
    Update48(u64),
    /// IPBytes 6: all 64 bits.
    Full(u64),
}

/// MODE leaf 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModeExec {
    /// CS.L, with IA32_EFER.LMA.
    pub cs_l: bool,
    /// CS.D.
    pub cs_d: bool,
    /// RFLAGS.IF; only where event trace is on.
    pub iflag: bool,
}

/// MODE leaf 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModeTsx {
    /// In a transaction.
    pub in_tx: bool,
    /// A transaction aborted.
    pub abort: bool,
}

/// CR3 and whether it was written in VMX non-root operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pip {
    /// CR3 with bits 4:0 zero (bits 51:5 are in the packet).
    pub cr3: u64,
    /// VMX non-root operation.
    pub non_root: bool,
}

/// The VMCS pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vmcs {
    /// The physical address, 4 KiB aligned, below 2^52.
    pub base: u64,
}

/// The TSC's low 56 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tsc {
    /// Below 2^56.
    pub tsc: u64,
}

/// The ratio of the core clock to the bus clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cbr {
    /// The ratio.
    pub ratio: u8,
    /// Byte 3 of the packet, reserved: kept so that a packet re-emits as it was.
    pub reserved: u8,
}

/// The crystal clock's counter and the core cycles since it last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tma {
    /// Bits 15:0 of the crystal clock counter.
    pub ctc: u16,
    /// Fast counter, 9 bits.
    pub fc: u16,
}

/// Bits `MTCFreq+7:MTCFreq` of the crystal clock counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mtc {
    /// The eight bits.
    pub ctc: u8,
}

/// Core cycles since the last CYC packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cyc {
    /// The count; 5 + 7n bits in n + 1 bytes.
    pub cycles: u64,
}

/// Eight bytes with a model-specific meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mnt {
    /// The payload.
    pub payload: u64,
}

/// Execution stopped (C-state, T-state, frequency change).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exstop {
    /// A FUP with the IP follows.
    pub ip: bool,
}

/// MWAIT's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mwait {
    /// EAX.
    pub hints: u32,
    /// ECX.
    pub ext: u32,
}

/// A C-state was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pwre {
    /// Resolved thread C-state, 4 bits.
    pub state: u8,
    /// Resolved thread sub C-state, 4 bits.
    pub sub_state: u8,
    /// Entered by hardware, not by MWAIT.
    pub hw: bool,
}

/// A C-state was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pwrx {
    /// Last core C-state, 4 bits.
    pub last: u8,
    /// Deepest core C-state, 4 bits.
    pub deepest: u8,
    /// Woken by an interrupt.
    pub interrupt: bool,
    /// Woken by a store to the monitored address.
    pub store: bool,
    /// Woken by hardware.
    pub autonomous: bool,
}

/// PTWRITE's operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ptw {
    /// The operand and its size.
    pub payload: PtwPayload,
    /// A FUP with PTWRITE's IP follows.
    pub ip: bool,
}

/// PTWRITE's operand by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PtwPayload {
    /// PayloadBytes 0.
    Four(u32),
    /// PayloadBytes 1.
    Eight(u64),
}

/// The begin of a group of block items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bbp {
    /// The items' size.
    pub size: BlockItemSize,
    /// What the group holds, 5 bits.
    pub kind: u8,
}

/// The size of a block item's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockItemSize {
    /// BBP.SZ = 1.
    Four,
    /// BBP.SZ = 0.
    Eight,
}

/// One item of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bip {
    /// Which item, 5 bits.
    pub id: u8,
    /// Its value, as wide as the BBP said.
    pub value: BipValue,
}

/// A block item's payload by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BipValue {
    /// Four bytes.
    Four(u32),
    /// Eight bytes.
    Eight(u64),
}

/// The end of all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bep {
    /// A FUP with the IP follows.
    pub ip: bool,
}

/// A control-flow event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cfe {
    /// What happened, 5 bits.
    pub kind: u8,
    /// The vector, where the kind has one.
    pub vector: u8,
    /// A FUP with the IP follows.
    pub ip: bool,
}

/// Data of a control-flow event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Evd {
    /// What `payload` is, 6 bits.
    pub kind: u8,
    /// The value.
    pub payload: u64,
}

/// A trigger fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Trig {
    /// Trigger bit vector.
    pub trbv: u8,
    /// Instructions since the last anchor, where the hardware says it is valid.
    pub icnt: Option<u16>,
    /// More than one trigger.
    pub mult: bool,
    /// A FUP with the IP follows.
    pub ip: bool,
}
