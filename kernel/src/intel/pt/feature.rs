//! The named bits of CPUID leaf 14H, sub-leaf 0.

use core::fmt;

/// One capability of the PT unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// CTL.CR3Filter and IA32_RTIT_CR3_MATCH.
    Cr3Filtering,
    /// CTL.CYCEn, CycThresh and PSBFreq.
    CycleAccurate,
    /// CTL.ADDRn_CFG with their registers; TraceStop; registers preserved across a warm reset.
    IpFiltering,
    /// CTL.MTCEn and MTCFreq; CTL.BranchEn may be 0.
    Mtc,
    /// CTL.PTWEn and FUPonPTW.
    Ptwrite,
    /// CTL.PwrEvtEn.
    PowerEventTrace,
    /// CTL.InjectPsbPmiOnEnable; STATUS.PendPSB and PendToPAPMI.
    PsbPmiPreservation,
    /// CTL.EventEn.
    EventTrace,
    /// CTL.DisTNT.
    TntDisable,
    /// Trigger tracing: TRIG packets.
    TriggerTracing,
    /// CTL.ToPA may be 1.
    Topa,
    /// A ToPA table may have many entries; otherwise it has one, and an END entry that points back to the table.
    TopaMultipleEntries,
    /// CTL.ToPA may be 0: single-range output.
    SingleRange,
    /// CTL.FabricEn.
    TraceTransport,
    /// IP payloads are linear addresses, with the CS base included; otherwise they are RIP.
    LipPayloads,
}

impl Feature {
    /// All features, in the order of their bits.
    pub const ALL: [Self; 15] = [
        Self::Cr3Filtering,
        Self::CycleAccurate,
        Self::IpFiltering,
        Self::Mtc,
        Self::Ptwrite,
        Self::PowerEventTrace,
        Self::PsbPmiPreservation,
        Self::EventTrace,
        Self::TntDisable,
        Self::TriggerTracing,
        Self::Topa,
        Self::TopaMultipleEntries,
        Self::SingleRange,
        Self::TraceTransport,
        Self::LipPayloads,
    ];

    /// Returns the CPUID bit that enumerates the feature.
    #[must_use]
    pub const fn field(self) -> CpuidField {
        match self {
            Self::Cr3Filtering => ebx(0, "CR3 filtering"),
            Self::CycleAccurate => ebx(1, "cycle-accurate mode"),
            Self::IpFiltering => ebx(2, "IP filtering"),
            Self::Mtc => ebx(3, "MTC"),
            Self::Ptwrite => ebx(4, "PTWRITE"),
            Self::PowerEventTrace => ebx(5, "power event trace"),
            Self::PsbPmiPreservation => ebx(6, "PSB and PMI preservation"),
            Self::EventTrace => ebx(7, "event trace"),
            Self::TntDisable => ebx(8, "TNT disable"),
            Self::TriggerTracing => ebx(9, "trigger tracing"),
            Self::Topa => ecx(0, "ToPA output"),
            Self::TopaMultipleEntries => ecx(1, "ToPA tables with multiple output entries"),
            Self::SingleRange => ecx(2, "single-range output"),
            Self::TraceTransport => ecx(3, "output to trace transport subsystem"),
            Self::LipPayloads => ecx(31, "LIP payloads"),
        }
    }
}

/// A field of a CPUID leaf, and its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuidField {
    /// The leaf: EAX at the CPUID instruction.
    pub(crate) leaf: u32,
    /// The sub-leaf: ECX at the CPUID instruction.
    pub(crate) subleaf: u32,
    /// The output register that contains the field.
    pub(crate) register: CpuidRegister,
    /// The field's lowest bit.
    pub(crate) low: u8,
    /// The field's highest bit.
    pub(crate) high: u8,
    /// The meaning of the field.
    pub(crate) name: &'static str,
}

/// An output register of CPUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CpuidRegister {
    /// EAX.
    Eax,
    /// EBX.
    Ebx,
    /// ECX.
    Ecx,
}

impl CpuidField {
    /// `CPUID.14H.1:EAX[2:0]`.
    pub const ADDRESS_RANGES: Self = sub(CpuidRegister::Eax, 0, 2, "address ranges");
    /// `CPUID.14H.1:EAX[31:16]`.
    pub const MTC_FREQS: Self = sub(CpuidRegister::Eax, 16, 31, "MTC frequencies");
    /// `CPUID.14H.1:EBX[15:0]`.
    pub const CYC_THRESHOLDS: Self = sub(CpuidRegister::Ebx, 0, 15, "cycle thresholds");
    /// `CPUID.14H.1:EBX[31:16]`.
    pub const PSB_FREQS: Self = sub(CpuidRegister::Ebx, 16, 31, "PSB frequencies");
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.field().fmt(f)
    }
}

impl fmt::Display for CpuidField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { leaf, subleaf, register, low, high, name } = self;
        let register = match register {
            CpuidRegister::Eax => "EAX",
            CpuidRegister::Ebx => "EBX",
            CpuidRegister::Ecx => "ECX",
        };
        write!(f, "CPUID.{leaf:X}H.{subleaf}:{register}")?;
        match low == high {
            true => write!(f, "[{low}]")?,
            false => write!(f, "[{high}:{low}]")?,
        }
        write!(f, " ({name})")
    }
}

const fn ebx(bit: u8, name: &'static str) -> CpuidField {
    CpuidField { leaf: 0x14, subleaf: 0, register: CpuidRegister::Ebx, low: bit, high: bit, name }
}

const fn ecx(bit: u8, name: &'static str) -> CpuidField {
    CpuidField { leaf: 0x14, subleaf: 0, register: CpuidRegister::Ecx, low: bit, high: bit, name }
}

const fn sub(register: CpuidRegister, low: u8, high: u8, name: &'static str) -> CpuidField {
    CpuidField { leaf: 0x14, subleaf: 1, register, low, high, name }
}
