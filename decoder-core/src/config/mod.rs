//! The configuration of decoders: how a trace was recorded, as far as the trace itself does not say, and what the
//! caller wants.
//!
//! One [`Config`] serves the encoder and every layer; each uses the fields it needs. Leave unknown values at their
//! default: then only a packet that cannot be decoded without the value is an error.
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
mod dialect;
mod filter;
pub(crate) mod unknown;

pub use clocks::Clocks;
pub use dialect::Dialect;
pub use filter::{AddressFilter, AddressRange, RangeKind};
pub use unknown::{Position, UnknownPackets};

use crate::errata::{Cpu, Errata, UnknownCpu};

/// How a trace was recorded, and what the caller wants.
///
/// The default: no errata, unknown clocks, no filters, packets as in the manual, and no flags.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// The traced processor; `None` if unknown.
    ///
    /// Layers: none. [`set_cpu`](Self::set_cpu) chooses the errata by it.
    pub cpu: Option<Cpu>,
    /// How the processor's traces differ from the manual.
    ///
    /// Layers: all. Each erratum says which.
    pub errata: Errata,
    /// The processor's clocks.
    ///
    /// Layers: time, and through it events, query, instructions and blocks. Each field says for which packets.
    pub clocks: Clocks,
    /// Which code was traced.
    ///
    /// Layers: instructions and blocks, for erratum SKL014.
    pub filter: AddressFilter,
    /// Whose reading of a trace to use.
    ///
    /// Layers: all, and the encoder.
    pub dialect: Dialect,
    /// Optional behaviour.
    ///
    /// Layers: each flag says which.
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
    /// The default.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            cpu: None,
            errata: Errata::NONE,
            clocks: Clocks::UNKNOWN,
            filter: AddressFilter::NONE,
            dialect: Dialect::Manual,
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
    /// Changes of RFLAGS.IF are [`Iflags`](crate::event::EventKind::Iflags) events. Useful only if event trace was on
    /// (IA32_RTIT_CTL.EventEn): without it every packet says that IF is clear.
    ///
    /// Layers: events, and through it query, instructions and blocks.
    pub iflags: bool,
    /// An overflow keeps the measured length of core cycles.
    ///
    /// Layers: time, and through it events, query, instructions and blocks.
    pub keep_calibration: bool,
    /// Emit a [`Tick`](crate::event::EventKind::Tick) event when time advances at a branch.
    ///
    /// Layers: instructions and blocks.
    pub ticks: bool,
    /// Report status updates (the state that a PSB+ repeats), too.
    ///
    /// Layers: instructions and blocks. Events and query always report them.
    pub statuses: bool,
    /// Blocks end after direct calls.
    ///
    /// Layers: blocks.
    pub end_on_call: bool,
    /// Blocks end after direct jumps.
    ///
    /// Layers: blocks.
    pub end_on_jump: bool,
}

impl Flags {
    /// Nothing.
    pub const NONE: Self = Self {
        iflags: false,
        keep_calibration: false,
        ticks: false,
        statuses: false,
        end_on_call: false,
        end_on_jump: false,
    };
}
