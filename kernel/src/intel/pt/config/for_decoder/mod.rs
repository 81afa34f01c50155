//! The driver's configuration in the form that a decoder needs.

#[cfg(test)]
mod tests;

use super::{Checked, PtConfig, PtConfigRefusal};
use crate::intel::pt::PtCapabilities;
use crate::msr::RtitCtl;
use pugmark_decoder_core::config::{AddressFilter, Clocks, Config};
use pugmark_decoder_core::errata::Errata;

impl PtConfig {
    /// Returns the configuration of a decoder for the trace of a unit with these capabilities and this configuration:
    /// the processor and its errata, its clocks with MTCFreq, and the filters.
    ///
    /// A processor that the decoder does not know has no errata. The clocks are those of CPUID: on a processor without
    /// CPUID leaf 16H, `clocks.nom_freq` is unknown (bits 15:8 of MSR_PLATFORM_INFO have it), and `clocks.tsc_adjust`
    /// is 0 (IA32_TSC_ADJUST has it); the caller may set both. Flags and the callback for unknown packets are left to
    /// the caller, too.
    ///
    /// ```
    /// use pugmark_decoder_core::config::Config;
    /// use pugmark_kernel::cpuid::CpuIdResult;
    /// use pugmark_kernel::intel::pt::{PtCapabilities, PtConfig};
    ///
    /// // A Skylake with MTC packets; a kernel takes `PtCapabilities::of_this_processor()`.
    /// let cpuid = |leaf, subleaf| match (leaf, subleaf) {
    ///     (0, _) => CpuIdResult { eax: 0x16, ebx: 0x756e_6547, ecx: 0x6c65_746e, edx: 0x4965_6e69 },
    ///     (1, _) => CpuIdResult { eax: 0x506e3, ebx: 0, ecx: 0, edx: 0 },
    ///     (7, 0) => CpuIdResult { eax: 0, ebx: 1 << 25, ecx: 0, edx: 0 },
    ///     (0x14, 0) => CpuIdResult { eax: 1, ebx: 0xf, ecx: 3, edx: 0 },
    ///     (0x14, 1) => CpuIdResult { eax: 0x0249_0002, ebx: 0x003f_3fff, ecx: 0, edx: 0 },
    ///     (0x15, _) => CpuIdResult { eax: 2, ebx: 284, ecx: 24_000_000, edx: 0 },
    ///     (0x16, _) => CpuIdResult { eax: 3400, ebx: 3900, ecx: 100, edx: 0 },
    ///     _ => CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 },
    /// };
    /// let capabilities = PtCapabilities::read(cpuid)?;
    /// let traced = PtConfig::new().os(true).tsc(true).mtc(3).filter(0x1000, 0x1fff);
    /// let decoder: Config<'_> = traced.for_decoder(&capabilities)?;
    /// assert_eq!((decoder.clocks.mtc_freq, decoder.clocks.nom_freq, decoder.clocks.cpuid_15h_ebx), (3, 34, 284));
    /// assert!(decoder.errata.skl014 && decoder.filter.contains(0x1fff) && !decoder.filter.contains(0x2000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PtConfig::check`] refuses the configuration.
    pub fn for_decoder(&self, capabilities: &PtCapabilities) -> Result<Config<'static>, PtConfigRefusal> {
        self.checked(capabilities).map(|checked| checked.for_decoder(capabilities))
    }
}

impl Checked {
    /// Returns the configuration of a decoder for a trace with these values.
    pub(crate) fn for_decoder(&self, capabilities: &PtCapabilities) -> Config<'static> {
        let limits = self.ranges.map(|range| range.map_or([0; 2], |range| [range.first, range.last]));
        let ratio = capabilities.tsc_ratio;
        let clocks = Clocks {
            mtc_freq: self.ctl.field(RtitCtl::MTC_FREQ),
            nom_freq: bus_ratio(capabilities).unwrap_or(0),
            cpuid_15h_eax: ratio.map_or(0, |ratio| ratio.denominator),
            cpuid_15h_ebx: ratio.map_or(0, |ratio| ratio.numerator),
            cpuid_15h_ecx: ratio.and_then(|ratio| ratio.crystal_hz).unwrap_or(0),
            cpuid_16h_eax: capabilities.base_mhz.unwrap_or(0),
            tsc_adjust: 0,
            tsc_varies: !capabilities.invariant_tsc,
        };
        Config {
            cpu: Some(capabilities.cpu),
            errata: Errata::of(capabilities.cpu).unwrap_or(Errata::NONE),
            clocks,
            filter: AddressFilter::new(self.ctl.bits(), limits),
            ..Config::new()
        }
    }
}

/// Returns the base frequency as a multiple of the bus clock, rounded, if CPUID enumerates both.
fn bus_ratio(capabilities: &PtCapabilities) -> Option<u8> {
    let (base, bus) = (capabilities.base_mhz?, capabilities.bus_mhz?);
    u8::try_from((u32::from(base) + u32::from(bus) / 2) / u32::from(bus)).ok()
}
