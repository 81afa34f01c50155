//! The parameters of a processor's clocks that are needed to convert packets to time.

/// The clocks of the traced processor. A value of zero means unknown.
///
/// Source: SDM vol. 3, Intel Processor Trace, "Tracing Post-Processing"; vol. 2, CPUID; vol. 3, "Time-Stamp Counter".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Clocks {
    /// IA32_RTIT_CTL.MTCFreq: an MTC comes every `2^mtc_freq` ticks of the crystal clock.
    ///
    /// For MTC and TMA packets. Here zero is a valid frequency.
    pub mtc_freq: u8,
    /// The TSC's frequency as a multiple of the bus clock: bits 15:8 of MSR_PLATFORM_INFO.
    ///
    /// For CBR packets; if it is zero they do not calibrate, and CYC packets count only after two MTCs.
    pub nom_freq: u8,
    /// CPUID.15H:EAX, the denominator of the ratio of TSC to crystal clock.
    ///
    /// For MTC packets, and CYC packets between them; these are errors of the time layer if this value or the numerator
    /// is zero.
    pub cpuid_15h_eax: u32,
    /// CPUID.15H:EBX, the numerator of that ratio.
    pub cpuid_15h_ebx: u32,
    /// CPUID.15H:ECX, the crystal clock's frequency in Hz.
    ///
    /// For no packet: it is needed to convert the TSC to nanoseconds.
    pub cpuid_15h_ecx: u32,
    /// CPUID.16H:EAX, the base frequency in MHz, which is nearly the TSC's.
    ///
    /// For no packet: it is needed to convert the TSC to nanoseconds if the crystal clock's frequency is unknown.
    pub cpuid_16h_eax: u16,
    /// IA32_TSC_ADJUST, the value that software has added to the TSC since reset: the Software_Offset between the TSC
    /// and the crystal clock.
    ///
    /// For no packet, unless a [timeline](crate::time::Timeline::with_known_adjust) uses it in place of TMA packets.
    pub tsc_adjust: i64,
    /// True if the TSC is not invariant (CPUID.80000007H:EDX\[8\] is 0): it may stop in deep C-states.
    ///
    /// For TSC packets after a sleep: a [timeline](crate::time::Timeline) marks TSC ticks that [may not be
    /// time](crate::time::Doubt::TscStopped).
    pub tsc_varies: bool,
}

impl Clocks {
    /// All values are unknown.
    pub const UNKNOWN: Self = Self {
        mtc_freq: 0,
        nom_freq: 0,
        cpuid_15h_eax: 0,
        cpuid_15h_ebx: 0,
        cpuid_15h_ecx: 0,
        cpuid_16h_eax: 0,
        tsc_adjust: 0,
        tsc_varies: false,
    };
}
