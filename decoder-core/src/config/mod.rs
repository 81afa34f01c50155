//! What a trace does not say about how it was taken, and how its reader wants it.
//!
//! One [`Config`] serves the encoder and every layer; each takes from it what it needs. What a reader does not know it
//! leaves at its default: a packet that cannot be understood without it is an error then, everything else is not.
//!
//! ```
//! use pugmark_decoder_core::config::{Clocks, Config, Flags};
//! use pugmark_decoder_core::errata::Cpu;
//!
//! // A Skylake, recorded with MTCFreq 3; blocks shall end at calls.
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
mod unknown;

pub use clocks::Clocks;
pub use filter::{AddressFilter, AddressRange, RangeKind};
pub use unknown::{Position, UnknownPackets};

use crate::errata::{Cpu, Errata, UnknownCpu};

/// How a trace was taken, and how its reader wants it.
///
/// The default is a processor without errata, clocks and filters of which nothing is known, the manual's reading of
/// packets, and no wishes.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// The processor that the trace is of; `None` when it is not known.
    ///
    /// Layers: none. [`set_cpu`](Self::set_cpu) chooses the errata by it.
    pub cpu: Option<Cpu>,
    /// In what the processor's traces differ from the manual.
    ///
    /// Layers: all. Each erratum says which.
    pub errata: Errata,
    /// What is known of the processor's clocks.
    ///
    /// Layers: time, and through it events, query, instructions and blocks. Each field says for which packets.
    pub clocks: Clocks,
    /// Which code was traced.
    ///
    /// Layers: instructions and blocks, for erratum SKL014.
    pub filter: AddressFilter,
    /// Whose reading of packets counts.
    ///
    /// Layers: all, the encoder too.
    pub dialect: Dialect,
    /// The reader's wishes.
    ///
    /// Layers: each flag says which.
    pub flags: Flags,
    /// Who sizes and names packets whose opcode is not known. Without it they are errors.
    ///
    /// Layers: packets, which gives them out as [`Packet::Unknown`](crate::Packet::Unknown), and through it all
    /// others, which skip them.
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

    /// Sets the processor and its errata, instead of those that were set.
    ///
    /// # Errors
    /// [`UnknownCpu`] when the processor is not in the table of [`Errata::of`]; no errata are set then. What is known
    /// of them from elsewhere goes into [`errata`](Self::errata).
    pub fn set_cpu(&mut self, cpu: Cpu) -> Result<(), UnknownCpu> {
        self.cpu = Some(cpu);
        self.errata = Errata::NONE;
        self.errata = Errata::of(cpu)?;
        Ok(())
    }
}

/// What a decoder is asked for beyond the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    /// Changes of RFLAGS.IF are [`Iflags`](crate::event::EventKind::Iflags) events. Of use only where event trace was
    /// on (IA32_RTIT_CTL.EventEn): without it every packet says that IF is clear.
    ///
    /// Layers: events, and through it query, instructions and blocks.
    pub iflags: bool,
    /// An overflow keeps what was found out about the length of core cycles.
    ///
    /// Layers: time, and through it events, query, instructions and blocks.
    pub keep_calibration: bool,
    /// Time going on at a branch is a [`Tick`](crate::event::EventKind::Tick) event.
    ///
    /// Layers: instructions and blocks.
    pub ticks: bool,
    /// Status updates, the state that PSB+ packets repeat, are given out too.
    ///
    /// Layers: instructions and blocks. Events and query always give them out.
    pub statuses: bool,
    /// Blocks end behind direct calls.
    ///
    /// Layers: blocks.
    pub end_on_call: bool,
    /// Blocks end behind direct jumps.
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

/// Whose reading of packets' bytes counts, where readings differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The SDM's.
    #[default]
    Manual,
    /// libipt 2.3's: no block packets (their opcodes are unknown), PWRE.HW is bit 3 of byte 2 instead of bit 7,
    /// EVD.Type has five bits instead of six.
    Libipt,
}
