//! Time of events, from TSC, TMA, MTC, CYC and CBR packets.
//!
//! # Three clocks
//!
//! A processor has three clocks, and a trace can show all of them:
//!
//! | clock | its pace | packets | content |
//! |---|---|---|---|
//! | timestamp counter | constant, the P1 frequency | TSC | its low 56 bits, as RDTSC has them |
//! | core crystal clock | constant, slower by P | MTC | eight bits of its counter, each time they change |
//! | core clock | changes with load and heat, stops in sleep | CYC | its cycles since the last CYC |
//!
//! The result is a time of the timestamp counter (TSC), which is the crystal clock's time with a finer resolution:
//!
//! > TimeStampValue = CoreCrystalClockValue · P + AdjustedProcessorCycles + Software_Offset
//!
//! P is CPUID.15H:EBX / EAX. AdjustedProcessorCycles are the TSC ticks since the crystal's last edge, less than P.
//! Software_Offset is the value that software has added, IA32_TSC_ADJUST. [`Clocks::timestamp`] and [`Clocks::crystal`]
//! are this formula in both directions, [`Clocks::adjusted_cycles`] converts core cycles to TSC ticks, and
//! [`TscFrequency`] converts TSC ticks to seconds.
//!
//! - A **TSC** packet is exact, and rare: it is in each PSB+ (the status packets after a synchronization packet, PSB),
//!   and wherever a clock had stopped or tracing was off.
//! - The **TMA** packet after it relates the crystal to the TSC: the low 16 bits of the crystal's counter (CTC) at
//!   that moment, and the AdjustedProcessorCycles (FastCounter, nine bits). Without one,
//!   [`tsc_adjust`](Clocks::tsc_adjust) can do the same: [`Timeline::with_known_adjust`].
//! - An **MTC** packet comes every 2^MTCFreq ticks of the crystal with bits MTCFreq + 7 to MTCFreq of its counter.
//!   The lower bits are zero at that time, and the higher ones follow from the packets before, as long as fewer than
//!   256 MTCs are missing in a row. The manual expects no more to be lost, except when a clock stops, which a TSC
//!   packet reports. If a TMA's 16 bits do not cover all bits of an MTC (MTCFreq above 8), fewer may be missing before
//!   the first MTC. MTCFreq itself is in no packet; a [`ClockChange`] reports where it changes.
//! - A **CYC** packet is the finest, and its unit is not constant. The **CBR** packet gives the ratio of core clock to
//!   bus clock, in which P1 is [`nom_freq`](Clocks::nom_freq): a cycle is nom_freq / CBR ticks, nearly. The cycles
//!   between two MTCs or TSCs measure it.
//!
//! Processors without leaf 15H have no MTCs, and processors older than CYC packets have only TSCs. A TSC that is not
//! invariant (CPUID.80000007H:EDX\[8\] = 0, [`tsc_varies`](Clocks::tsc_varies)) stands still in deep C-states while the
//! crystal continues: after such a state, MTCs give the time but not the TSC, see [`Doubt::TscStopped`].
//!
//! # Two results
//!
//! **An estimate, computed as in libipt.** [`Estimate`] follows the packets: a TSC sets the time, an MTC advances it by
//! ticks · P, and a CYC by cycles · ratio, where [`Calibration`] takes the ratio from the last CBR or from the cycles
//! between the last two MTCs or TSCs. It uses only earlier packets and costs almost nothing. Every decoder returns it
//! from `time()`: the time of the last packet that the decoder used. It has no error bound, and an MTC may move it
//! back.
//!
//! **Bounds, and a guess between them.** A [`Timeline`] reads the trace on both sides of a place, so it can report the
//! TSC values between which something happened. The caller supplies a [`Span`]: the packets before and after the place.
//! Decoders of [instructions](crate::flow::InsnDecoder::span) and [blocks](crate::block::BlockDecoder::span) return
//! spans, and for an event or a packet the span is [`Span::at`] its offset. A timeline costs nothing unless it is used.
//!
//! ```
//! use pugmark_decoder_core::config::{Clocks, Config};
//! use pugmark_decoder_core::flow::{FlowItem, InsnDecoder};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//! use pugmark_decoder_core::packet::{Encoder, Ip, ModeExec, Mtc, Packet, Tma, Tnt, Tsc};
//! use pugmark_decoder_core::time::{Timeline, TscFrequency};
//!
//! // A crystal of 24 MHz and a TSC 125 times as fast; an MTC every 8 ticks of the crystal, which are 1000 of the TSC.
//! let clocks = Clocks { mtc_freq: 3, cpuid_15h_eax: 2, cpuid_15h_ebx: 250, cpuid_15h_ecx: 24_000_000,
//!     ..Clocks::default() };
//! let mut memory = [0; 128];
//! let mut trace = Encoder::new(&mut memory);
//! for packet in [
//!     Packet::Psb,
//!     // The crystal's counter became 0x5000 at that TSC.
//!     Packet::Tsc(Tsc { tsc: 7_000_000 }),
//!     Packet::Tma(Tma { ctc: 0x5000, fc: 0 }),
//!     Packet::ModeExec(ModeExec { cs_l: true, cs_d: false, iflag: false }),
//!     Packet::Fup(Ip::SignExtend48(0x1000)),
//!     Packet::PsbEnd,
//!     Packet::Mtc(Mtc { ctc: 0x01 }),
//!     Packet::TntShort(Tnt { bits: 0b1, len: 1 }),
//!     Packet::Mtc(Mtc { ctc: 0x02 }),
//!     Packet::TntShort(Tnt { bits: 0b1, len: 1 }),
//!     Packet::Mtc(Mtc { ctc: 0x03 }),
//! ] {
//!     trace.emit(&packet)?;
//! }
//! let trace = trace.trace();
//!
//! // 1000: nop; 1001: jz 1000
//! let sections = [Section { base: 0x1000, bytes: &[0x90, 0x74, 0xfd], space: AddressSpace::Any }];
//! let mut flow = InsnDecoder::new(trace, Image::new(&sections));
//! let mut timeline = Timeline::new(trace, Config { clocks, ..Config::default() });
//! let mut seen = vec![];
//! flow.sync_forward();
//! while let Some(item) = flow.next()? {
//!     if let FlowItem::Insn(insn) = item {
//!         let moment = timeline.moment(flow.span()).ok_or("no TSC packet")?;
//!         seen.push((insn.ip, moment.tsc(), moment.error()));
//!     }
//! }
//! assert_eq!(seen, [
//!     // After the TSC packet, and before the second MTC, because the branch is before it.
//!     (0x1000, 7_001_333, Some(1333)),
//!     (0x1001, 7_001_333, Some(1333)),
//!     // After the first MTC. Its two bytes and the branch's one share the time up to the next.
//!     (0x1000, 7_002_166, Some(1291)),
//!     (0x1001, 7_002_166, Some(1291)),
//! ]);
//!
//! let frequency = TscFrequency::enumerated(&clocks).ok_or("no frequency")?;
//! assert_eq!(frequency.nanoseconds(1000), 333);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Several processors.** [`Merge`] sorts the items of several processors into one order, by these times.
//!
//! # Proof of the bounds
//!
//! [`Moment::earliest`] and [`Moment::latest`] follow from guarantees of the manual:
//!
//! 1. All packets before a TSC packet belong to instructions that executed before its time, all packets after it to
//!    instructions that executed later. The same holds for an MTC packet and the time of the crystal clock's edge that
//!    it stands for.
//! 2. Between two edges are whole ticks of the crystal clock, and P ticks of the TSC in each. By rule 1, the last TSC
//!    or MTC packet before a place gives the earliest time and the next one after it the latest. The edge is where the
//!    TMA packet puts it, or up to one crystal tick earlier, because on some processors FastCounter is always zero. So
//!    the bounds are an MTC period and a crystal tick apart or, without MTC packets, as far as two TSC packets.
//! 3. With a known [`CoreSpeed`], a number of cycles takes between two known numbers of ticks, and CYC packets narrow
//!    the bounds by that. Anything before a CYC packet happened before its time, anything after it happened at that
//!    time or later, and the TNT or TIP packet right after it exactly at that time. If the core clock stops, a CYC and
//!    a TSC packet come together, so no CYC packet hides a stop in its cycles.
//!
//! An instruction without a packet of its own lies between two that have one: its earliest time is that of the first
//! and its latest that of the second. At the end of the trace, there may be no latest time after the last TSC or MTC
//! packet. The next TSC packet also checks all this: it must agree with the crystal, and must not be later than lost
//! MTCs explain. A failed check is a [`Doubt`]. Without that packet, a moment is not [confirmed](Moment::confirmed).
//!
//! # Basis of the guess
//!
//! [`Moment::tsc`] is a guess within the bounds, and never goes back while the TSC does not. Between two packets with a
//! known time, it divides the time in proportion to the cycles of the CYC packets, which is right if the core clock's
//! frequency was constant between them. Without cycles it divides the time in proportion to the bytes between them, as
//! if each byte of the trace had taken equally long: most of them are branches, and those are executed all the time.
//! Where MTC packets are missing the clock may have stood still, and the guess is the middle of the first period. All
//! instructions of one span have the same guess.
//!
//! [`Moment::interpolated`] returns a separate guess for each instruction, linear in the number of instructions. No
//! packet supports it: of ten instructions, one may have missed the cache and taken all the time. It shows the order of
//! the instructions and their total duration, and nothing about any single one. The error of each is that of the span.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Tracking Time", "Cycle-Accurate Mode" and the packets' sections; vol. 3,
//! "Invariant Time-Keeping". The arithmetic of the estimate is libipt's, so that both show the same time.

mod calibrate;
mod estimate;
mod frequency;
mod merge;
mod relation;
#[cfg(test)]
mod tests;
mod timeline;

pub use calibrate::Calibration;
pub use estimate::Estimate;
pub(crate) use estimate::{CycSums, Cycs};
pub use frequency::TscFrequency;
pub use merge::{Merge, Merged, ProcessorItems};
pub use timeline::{ClockChange, CoreSpeed, Doubt, Moment, Span, Timeline};

use crate::config::Clocks;
use core::fmt;

impl Clocks {
    /// Converts crystal clock ticks to TSC ticks.
    fn tsc_of(&self, crystal: u64) -> Result<u64, TimeError> {
        match (self.cpuid_15h_eax, self.cpuid_15h_ebx) {
            (0, _) | (_, 0) => Err(TimeError::UnknownRatio),
            (eax, ebx) => Ok(crystal.wrapping_mul(u64::from(ebx)) / u64::from(eax)),
        }
    }

    /// Converts an MTC's payload to a count of the crystal clock.
    fn crystal_of(&self, ctc: u8) -> u64 {
        u64::from(ctc).wrapping_shl(self.mtc_freq.into())
    }

    /// Returns the number of crystal clock ticks after which MTC payloads wrap around.
    fn mtc_period(&self) -> u64 {
        1_u64.wrapping_shl(u32::from(self.mtc_freq) + 8)
    }

    /// Returns crystal clock ticks from `old` to `new`, between which the payload wrapped around at most once.
    fn ticks_between(&self, old: u64, new: u64) -> Result<u64, TimeError> {
        let new = if new < old { new.wrapping_add(self.mtc_period()) } else { new };
        new.checked_sub(old).ok_or(TimeError::OutOfRange)
    }
}

/// The reason why a packet gives no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeError {
    /// The ratio of TSC to crystal clock is needed, but not in [`Clocks`].
    UnknownRatio,
    /// The packet's value is impossible: a CBR of zero, or a clock that advanced too far.
    OutOfRange,
    /// A TMA without a TSC, or a second one.
    UnexpectedTma,
    /// There was no TSC yet.
    NoTsc,
    /// The ratio of core cycles to TSC ticks is not known yet.
    NotCalibrated,
}

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownRatio => "the TSC to crystal clock ratio is not known",
            Self::OutOfRange => "a timing packet has a value that cannot be",
            Self::UnexpectedTma => "a TMA packet does not follow a TSC packet",
            Self::NoTsc => "no TSC packet so far",
            Self::NotCalibrated => "the core cycle to TSC ratio is not known yet",
        })
    }
}

impl core::error::Error for TimeError {}
