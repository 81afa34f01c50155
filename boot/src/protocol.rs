//! The lines the kernel prints about a workload, one fact each.
//!
//! ```text
//! run NAME
//! session NAME N
//! filter NAME cpl=any|0|3 cr3=any|0x… range=any|SYMBOL..SYMBOL stop=none|SYMBOL..SYMBOL
//! stat NAME instructions=N bytes=N bpi=F pmis=N loss=N decode_us=N count=N hash=0x… [branches=N]
//! top NAME RANK SYMBOL COUNT
//! piece NAME INDEX count=N hash=0x… first=0x… last=0x… after=start|psb|ovf|stop|wrap|full|error|off
//! records NAME INDEX count=N hash=0x… after=…  (branch records without a break)
//! count NAME session=N event=0x… value=N   (what a performance counter counted)
//! samples NAME session=N of=instructions|branches|ops|cycles period=N taken=N lost=N skipped=N unplaced=N
//! sample NAME SESSION 0x… N           (a line for each address that was sampled, and how often)
//! precise NAME SESSION 0x…|none 0x…|none  (a sample: the address of the event's instruction, and where execution stood
//!                                     behind it; in order)
//! missing NAME SESSION                (samples are missing before the next one)
//! last NAME session=N stack=branches|calls entries=N
//! branch NAME SESSION 0x… 0x…         (one of the last branches: where from, where to; the newest first)
//! fault NAME address=0x… code=0x…     (a page fault of the debug store's own)
//! lost NAME ovf=N stop=N wrap=N full=N stray=N
//! dump NAME bytes=N                  (a line for each contiguous part of the trace)
//! section NAME base=0x… len=N from=0x… cr3=any|0x…
//! refuse NAME REASON
//! ok NAME
//! fail NAME: REASON
//! done PASSED FAILED
//! ```
//!
//! Counts are of instructions; a hash is FNV-1a 64 over their addresses as little-endian `u64`. Of branch records
//! both addresses are hashed, where from and where to. The types here
//! are what follows the name. The last line of all is `done`; a kernel that ends without it has failed.

use core::fmt;
use pugmark_decoder_core::hash::AddressHash;
use pugmark_decoder_core::image::Section;

/// Which instructions a workload has traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only at these privilege levels.
    pub level: Level,
    /// Only under this CR3.
    pub cr3: Option<u64>,
    /// Only from the first symbol to before the second.
    pub range: Option<SymbolRange>,
    /// Until an instruction from the first symbol to before the second would execute.
    pub stop: Option<SymbolRange>,
}

/// Privilege levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// All.
    #[default]
    Any,
    /// CPL 0.
    Os,
    /// CPL above 0.
    User,
}

/// The addresses from one symbol to before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolRange {
    /// Where it begins.
    pub from: &'static str,
    /// Before which it ends.
    pub to: &'static str,
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Any => "any",
            Level::Os => "0",
            Level::User => "3",
        };
        write!(f, "cpl={level} ")?;
        match self.cr3 {
            None => write!(f, "cr3=any ")?,
            Some(cr3) => write!(f, "cr3={cr3:#x} ")?,
        }
        match self.range {
            None => write!(f, "range=any ")?,
            Some(range) => write!(f, "range={range} ")?,
        }
        match self.stop {
            None => write!(f, "stop=none"),
            Some(range) => write!(f, "stop={range}"),
        }
    }
}

impl fmt::Display for SymbolRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.from, self.to)
    }
}

/// Code that a trace is of: where it is executed, and where in the image its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// The address at which it is executed.
    pub base: u64,
    /// Its bytes.
    pub len: usize,
    /// The address in the image.
    pub from: u64,
    /// In which address space; none: all.
    pub cr3: Option<u64>,
}

impl Code {
    /// What is in a section. Its bytes must be the image's.
    #[must_use]
    pub fn of(section: &Section<'_>) -> Self {
        let cr3 = section.space.cr3();
        Self { base: section.base, len: section.bytes.len(), from: section.bytes.as_ptr() as u64, cr3 }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base, len, from, cr3 } = self;
        write!(f, "base={base:#x} len={len} from={from:#x} ")?;
        match cr3 {
            None => write!(f, "cr3=any"),
            Some(cr3) => write!(f, "cr3={cr3:#x}"),
        }
    }
}

/// What was lost, by kind: how often, not how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// OVF packets.
    pub overflows: u64,
    /// Output that ran into a STOP.
    pub stops: u64,
    /// Rings that were written over.
    pub wraps: u64,
    /// Drains for which the archive had no room, and times the buffer had none.
    pub full: u64,
    /// Performance monitoring interrupts that found nobody who asks. Nothing is lost by one: a region that is full shortly
    /// before the trace stops asks for an interrupt that comes, by the skid or because interrupts are off, when the trace
    /// is stopped and has been taken out as a whole. `--monitor pmi-skid=300` has one in `circular`.
    pub strays: u64,
}

impl Lost {
    /// Losses of trace: strays are not.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.overflows + self.stops + self.wraps + self.full
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { overflows, stops, wraps, full, strays } = self;
        write!(f, "ovf={overflows} stop={stops} wrap={wraps} full={full} stray={strays}")
    }
}

/// What stands before a piece of the decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The trace's beginning.
    Start,
    /// The first PSB, with packets before it that need one.
    Psb,
    /// An OVF packet.
    Overflow,
    /// Output that ran into a STOP, or a TraceStop range.
    Stop,
    /// What the ring's writing over itself has left off.
    Wrap,
    /// A drain for which the archive had no room.
    Full,
    /// Bytes that could not be decoded.
    Error,
    /// A time in which the source was off, to be drained: nothing that was to be traced is lost.
    Off,
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            After::Start => "start",
            After::Psb => "psb",
            After::Overflow => "ovf",
            After::Stop => "stop",
            After::Wrap => "wrap",
            After::Full => "full",
            After::Error => "error",
            After::Off => "off",
        })
    }
}

/// Branch records without a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    /// What stands before them.
    pub after: After,
    /// How many.
    pub count: u64,
    /// Where from and where to, of each.
    pub hash: AddressHash,
}

impl fmt::Display for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, count, hash } = self;
        write!(f, "count={count} hash={:#018x} after={after}", hash.value())
    }
}

/// What a performance counter counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Its truth records carry this marker.
    pub session: u32,
    /// The event select: 12 bits.
    pub event: u16,
    /// How often it happened.
    pub value: u64,
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, event, value } = self;
        write!(f, "session={session} event={event:#x} value={value}")
    }
}

/// What a period counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Of {
    /// Retired instructions.
    #[default]
    Instructions,
    /// Dispatched ops.
    Ops,
    /// Clocks.
    Cycles,
    /// Retired branches, taken or not.
    Branches,
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Instructions => "instructions",
            Self::Ops => "ops",
            Self::Cycles => "cycles",
            Self::Branches => "branches",
        })
    }
}

/// What became of samples. All periods that were over are in one of the four numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// Its truth records carry this marker.
    pub session: u32,
    /// What the period counts.
    pub of: Of,
    /// A sample in so many of it.
    pub period: u32,
    /// Samples with an address.
    pub taken: u64,
    /// Samples that there was no room for.
    pub lost: u64,
    /// Periods that were over before somebody came for the one before, or when the source stopped.
    pub skipped: u64,
    /// Samples whose address is not known.
    pub unplaced: u64,
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, of, period, taken, lost, skipped, unplaced } = self;
        write!(
            f,
            "session={session} of={of} period={period} taken={taken} lost={lost} skipped={skipped} unplaced={unplaced}"
        )
    }
}

/// A contiguous part of the decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What stands before it.
    pub after: After,
    /// Count and hash.
    pub hash: AddressHash,
    /// The address of its first instruction.
    pub first: u64,
    /// The address of its last instruction.
    pub last: u64,
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, hash, first, last } = self;
        write!(
            f,
            "count={} hash={:#018x} first={first:#x} last={last:#x} after={after}",
            hash.count(),
            hash.value()
        )
    }
}

/// A workload's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Trace bytes, as drained.
    pub bytes: u64,
    /// Performance monitoring interrupts that the tracing unit raised.
    pub pmis: u64,
    /// Losses of trace.
    pub loss: u64,
    /// How long the decode took, in microseconds.
    pub decode_us: u64,
    /// Decoded instructions.
    pub hash: AddressHash,
    /// Branch records, where that is what was traced.
    pub branches: Option<u64>,
}

impl fmt::Display for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, pmis, loss, decode_us, hash, branches } = self;
        let (count, value) = (hash.count(), hash.value());
        let hundredths = (bytes * 800).checked_div(count).unwrap_or(0);
        let (whole, part) = (hundredths / 100, hundredths % 100);
        write!(
            f,
            "instructions={count} bytes={bytes} bpi={whole}.{part:02} pmis={pmis} loss={loss} \
             decode_us={decode_us} count={count} hash={value:#018x}"
        )?;
        match branches {
            Some(branches) => write!(f, " branches={branches}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use pugmark_decoder_core::image::AddressSpace;

    #[test]
    fn a_filter_names_levels_address_space_and_ranges() {
        let range = SymbolRange { from: "a", to: "b" };
        for (filter, text) in [
            (Filter::default(), "cpl=any cr3=any range=any stop=none"),
            (
                Filter { level: Level::Os, cr3: Some(0x5000), ..Filter::default() },
                "cpl=0 cr3=0x5000 range=any stop=none",
            ),
            (
                Filter { level: Level::User, cr3: None, range: Some(range), stop: Some(range) },
                "cpl=3 cr3=any range=a..b stop=a..b",
            ),
        ] {
            assert_eq!(format!("{filter}"), text);
        }
    }

    #[test]
    fn a_stat_has_bits_per_instruction() {
        let mut hash = AddressHash::new();
        (0..3).for_each(|address| hash.add(address));
        let value = hash.value();
        for (bytes, count, bpi) in [(0, 3, "0.00"), (1, 3, "2.66"), (3, 3, "8.00"), (9, 0, "0.00")] {
            let hash = if count == 0 { AddressHash::new() } else { hash };
            let stat = Stat { bytes, pmis: 4, loss: 5, decode_us: 6, hash, branches: None };
            let text = format!("{stat}");
            let value = if count == 0 { 0xcbf2_9ce4_8422_2325 } else { value };
            assert_eq!(
                text,
                format!(
                    "instructions={count} bytes={bytes} bpi={bpi} pmis=4 loss=5 decode_us=6 count={count} \
                     hash=0x{value:016x}"
                )
            );
            assert_eq!(format!("{}", Stat { branches: Some(7), ..stat }), format!("{text} branches=7"));
        }
    }

    #[test]
    fn a_piece_has_its_ends_and_its_hash() {
        let mut hash = AddressHash::new();
        [0x1000, 0x1003].into_iter().for_each(|address| hash.add(address));
        let piece = Piece { after: After::Stop, hash, first: 0x1000, last: 0x1003 };
        assert_eq!(format!("{piece}"), "count=2 hash=0xddeefc948dc41886 first=0x1000 last=0x1003 after=stop");
    }

    #[test]
    fn counts_and_samples_name_their_session() {
        let count = Count { session: 3, event: 0x1c0, value: 9 };
        assert_eq!(format!("{count}"), "session=3 event=0x1c0 value=9");
        let samples =
            Samples { session: 3, of: Of::Ops, period: 4, taken: 5, lost: 6, skipped: 7, unplaced: 8 };
        let text = "session=3 of=ops period=4 taken=5 lost=6 skipped=7 unplaced=8";
        assert_eq!(format!("{samples}"), text);
        let of = [Of::Instructions, Of::Ops, Of::Cycles, Of::Branches].map(|of| format!("{of}"));
        assert_eq!(of, ["instructions", "ops", "cycles", "branches"]);
    }

    #[test]
    fn what_stands_before_a_part_has_a_word_of_its_own() {
        use After::{Error, Full, Off, Overflow, Psb, Start, Stop, Wrap};
        let words = [Start, Psb, Overflow, Stop, Wrap, Full, Error, Off].map(|after| format!("{after}"));
        assert_eq!(words, ["start", "psb", "ovf", "stop", "wrap", "full", "error", "off"]);
    }

    #[test]
    fn code_has_two_addresses_and_an_address_space() {
        let bytes = [0x90; 3];
        let from = bytes.as_ptr() as u64;
        for (space, text) in [(AddressSpace::Any, "any"), (AddressSpace::Cr3(0x5000), "0x5000")] {
            let code = Code::of(&Section { base: 0x1000, bytes: &bytes, space });
            assert_eq!(format!("{code}"), format!("base=0x1000 len=3 from={from:#x} cr3={text}"));
        }
    }

    #[test]
    fn strays_are_no_loss() {
        let lost = Lost { overflows: 1, stops: 2, wraps: 3, full: 4, strays: 5 };
        assert_eq!(lost.total(), 10);
        assert_eq!(format!("{lost}"), "ovf=1 stop=2 wrap=3 full=4 stray=5");
    }
}
