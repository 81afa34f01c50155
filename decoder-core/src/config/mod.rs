//! The configuration of decoders: parameters of the recording that the trace does not contain, and options of the
//! caller.
//!
//! One [`Config`] serves the encoder and every layer; each uses the fields it needs. Leave unknown values at their
//! default: then a packet is an error only if it cannot be decoded without the value.
//!
//! ```
//! use pugmark_decoder_core::config::{Clocks, Config, Flags};
//! use pugmark_decoder_core::errata::Cpu;
//!
//! // A Skylake, recorded with MTCFreq 3; blocks are to end at calls.
//! let clocks = Clocks { mtc_freq: 3, nom_freq: 34, cpuid_15h_eax: 2, cpuid_15h_ebx: 284, ..Clocks::default() };
//! let flags = Flags { end_on_call: true, ..Flags::default() };
//! let mut config = Config { clocks, flags, ..Config::default() };
//! config.set_cpu(Cpu::intel(6, 0x5e, 3))?;
//! assert!(config.errata.skl168);
//!
//! // A processor that is not in the table is an error, and no guess is made about it.
//! assert!(config.set_cpu(Cpu::intel(6, 0x3c, 3)).is_err());
//! assert!(!config.errata.skl168);
//! # Ok::<(), pugmark_decoder_core::errata::UnknownCpu>(())
//! ```

mod clocks;
mod filter;
pub(crate) mod unknown;

pub use clocks::Clocks;
pub use filter::{AddressFilter, AddressRange, RangeKind};
pub use unknown::{Position, UnknownPackets};

use crate::errata::{Cpu, Errata, UnknownCpu};

/// Parameters of the recording, and options of the caller.
///
/// The default: no errata, unknown clocks, no filters, packets as in the manual, and no flags.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// The traced processor; `None` if unknown.
    ///
    /// Layers: none. [`set_cpu`](Self::set_cpu) chooses the errata by it.
    pub cpu: Option<Cpu>,
    /// The deviations of the processor's traces from the manual.
    ///
    /// Layers: all. Each erratum names its own.
    pub errata: Errata,
    /// The processor's clocks.
    ///
    /// Layers: time, and through it events, query, instructions and blocks. Each field names its packets.
    pub clocks: Clocks,
    /// The ranges of code that were traced.
    ///
    /// Layers: instructions and blocks, for erratum SKL014.
    pub filter: AddressFilter,
    /// Optional behaviour.
    ///
    /// Layers: each flag names its own.
    pub flags: Flags,
    /// A callback for packets whose opcode is unknown. Without it they are errors.
    ///
    /// Layers: packets, which reports them as [`Packet::Unknown`](crate::packet::Packet::Unknown), and all others,
    /// which skip them.
    pub unknown: Option<UnknownPackets<'a>>,
}

impl Default for Config<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl Config<'_> {
    /// Returns the default.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            cpu: None,
            errata: Errata::NONE,
            clocks: Clocks::UNKNOWN,
            filter: AddressFilter::NONE,
            flags: Flags::NONE,
            unknown: None,
        }
    }

    /// Sets the processor and replaces the errata with the processor's.
    ///
    /// # Errors
    /// [`UnknownCpu`] when the processor is not in the table of [`Errata::of`]; then no errata are set. Errata known
    /// from elsewhere can be set in [`errata`](Self::errata).
    pub fn set_cpu(&mut self, cpu: Cpu) -> Result<(), UnknownCpu> {
        self.cpu = Some(cpu);
        self.errata = Errata::NONE;
        self.errata = Errata::of(cpu)?;
        Ok(())
    }
}

/// Optional behaviour of decoders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    /// True to report changes of RFLAGS.IF as [`Iflags`](crate::event::EventKind::Iflags) events. Useful only if event
    /// trace was on (IA32_RTIT_CTL.EventEn): otherwise every packet says that IF is clear.
    ///
    /// Layers: events, and through it query, instructions and blocks.
    pub iflags: bool,
    /// True to keep the measured length of core cycles at an overflow.
    ///
    /// Layers: time, and through it events, query, instructions and blocks.
    pub keep_calibration: bool,
    /// True to report a [`Tick`](crate::event::EventKind::Tick) event when time advances at a branch.
    ///
    /// Layers: instructions and blocks.
    pub ticks: bool,
    /// True to report status updates (the state that a PSB+ repeats) too.
    ///
    /// Layers: instructions and blocks. Events and query always report them.
    pub statuses: bool,
    /// True to end blocks after direct calls.
    ///
    /// Layers: blocks.
    pub end_on_call: bool,
    /// True to end blocks after direct jumps.
    ///
    /// Layers: blocks.
    pub end_on_jump: bool,
}

impl Flags {
    /// No flags.
    pub const NONE: Self = Self {
        iflags: false,
        keep_calibration: false,
        ticks: false,
        statuses: false,
        end_on_call: false,
        end_on_jump: false,
    };
}
