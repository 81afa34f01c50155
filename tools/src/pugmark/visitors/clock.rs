//! The clock of a trace.

use crate::mapped::MappedFile;
use crate::perf_clock::PerfClock;
use crate::session::MAPPED_CHUNK;
use pugmark_decoder_core::{
    config::{Clocks, Config},
    last_ip::LastIp,
    packet::{Ip, IpPacket, Packet, PacketSink, Packets, Tnt, Tsc},
    time::{Span, Timeline, TscFrequency},
};

/// The unit of a [`Time`](super::Time).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pugmark) enum Unit {
    Nanoseconds,
    Ticks,
    Instructions,
}

impl Unit {
    /// Returns its name, as it follows a number.
    pub(in crate::pugmark) const fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Ticks => "ticks",
            Self::Instructions => "instructions",
        }
    }
}

/// The clock of a trace.
#[derive(Clone, Copy, Debug)]
pub(in crate::pugmark) struct TraceClock {
    pub(in crate::pugmark) unit: Unit,
    frequency: Option<TscFrequency>,
    /// Linux' own clock, if its relation to the TSC is known.
    perf: Option<PerfClock>,
    /// True if only TSC packets have times.
    pub(in crate::pugmark) is_coarse: bool,
}

impl TraceClock {
    /// A clock that counts instructions, whatever the trace has.
    pub(in crate::pugmark) const INSTRUCTIONS: Self =
        Self { unit: Unit::Instructions, frequency: None, perf: None, is_coarse: false };

    /// Finds the clock of a trace, whose memory is given back if it is a file that is mapped.
    pub(in crate::pugmark) fn of(trace: &[u8], mapped: Option<&MappedFile>, config: Config<'_>) -> Self {
        let mut packets = Packets::with_config(trace, config);
        let mut times = TimePackets { seen: false, mapped, forgotten: 0 };
        let mut is_coarse = false;
        while !times.seen && packets.sync_forward().is_some() {
            // If there are times, one of the first packets mostly is one, and the rest need not be read.
            let mut good = packets.by_ref().take(FIRST_PACKETS).map_while(Result::ok);
            times.seen = good.any(|(_, packet)| matches!(packet, Packet::Tsc(_)));
            if times.seen {
                let mut after = packets.clone().take(PACKETS_OF_TIME).map_while(Result::ok);
                is_coarse = !after.any(|(_, packet)| matches!(packet, Packet::Mtc(_) | Packet::Cyc(_)));
            }
            if !times.seen {
                // An error is found again, and then the next PSB.
                let _ = packets.visit(&mut LastIp::new(), &mut times);
            }
        }
        if let Some(mapped) = mapped {
            mapped.forget(times.forgotten..trace.len());
        }
        let (timed, frequency) = (times.seen, frequency(&config.clocks));
        let unit = match (timed, frequency) {
            (false, _) => Unit::Instructions,
            (true, None) => Unit::Ticks,
            (true, Some(_)) => Unit::Nanoseconds,
        };
        Self { unit, frequency, perf: None, is_coarse }
    }

    /// Converts it to the clock of perf if that is known.
    pub(in crate::pugmark) const fn in_clock_of_perf(self, perf: Option<PerfClock>) -> Self {
        match (self.unit, perf) {
            (Unit::Ticks | Unit::Nanoseconds, Some(_)) => Self { unit: Unit::Nanoseconds, perf, ..self },
            _ => self,
        }
    }

    /// Returns true if the trace has timestamps.
    pub(in crate::pugmark) fn is_timed(&self) -> bool {
        self.unit != Unit::Instructions
    }

    /// Returns the time of a part of the trace, which is the instruction's number without TSC packets, and the TSC.
    /// `None` if the trace has no time for it.
    pub(in crate::pugmark) fn time(
        &self,
        timeline: &mut Timeline<'_>,
        span: Span,
        insns: u64,
    ) -> Option<(u64, Option<u64>)> {
        match self.unit {
            Unit::Instructions => Some((insns, None)),
            _ => timeline.moment(span).map(|moment| (self.convert(moment.tsc()), Some(moment.tsc()))),
        }
    }

    fn convert(&self, tsc: u64) -> u64 {
        match (self.perf, self.frequency) {
            (Some(perf), _) => perf.nanoseconds(tsc),
            (None, Some(frequency)) => frequency.nanoseconds(tsc) as u64,
            (None, None) => tsc,
        }
    }
}

/// The number of packets after a PSB that are looked at one by one.
const FIRST_PACKETS: usize = 1 << 10;

/// The number of packets after a TSC packet among which an MTC or CYC packet is, if the trace has them.
const PACKETS_OF_TIME: usize = 1 << 14;

/// A sink that looks for times, and gives back the memory of a file that is mapped.
struct TimePackets<'m> {
    seen: bool,
    mapped: Option<&'m MappedFile>,
    forgotten: usize,
}

impl PacketSink for TimePackets<'_> {
    fn packet(&mut self, offset: u64, _: Packet) {
        let offset = offset as usize;
        if let Some(mapped) = self.mapped.filter(|_| offset.saturating_sub(self.forgotten) >= MAPPED_CHUNK) {
            mapped.forget(self.forgotten..offset);
            self.forgotten = offset;
        }
    }

    #[inline]
    fn tnt(&mut self, _: u64, _: Tnt) {}

    #[inline]
    fn ip(&mut self, _: u64, _: IpPacket, _: Ip, _: Option<u64>) {}

    fn tsc(&mut self, _: u64, _: Tsc) {
        self.seen = true;
    }
}

/// Returns the TSC's frequency: as CPUID says, or by its ratio to a bus clock of 100 MHz.
///
/// Source: SDM vol. 4, "MSR_PLATFORM_INFO": the ratio times 100 MHz is the frequency of the invariant TSC.
fn frequency(clocks: &Clocks) -> Option<TscFrequency> {
    let ratio = || TscFrequency::new(u64::from(clocks.nom_freq) * 100_000_000, 1);
    TscFrequency::enumerated(clocks).or_else(ratio)
}
