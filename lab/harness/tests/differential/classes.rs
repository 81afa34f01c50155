//! Names the differences between this decoder and libipt 2.0.5 on damaged traces.
//!
//! A decoder walks the code and takes a packet where an instruction needs one: a TNT for conditional branches, a TIP
//! for indirect ones. "The walk" below is that.

use crate::{
    own_decoder::{OwnResult, Placed},
    releases::Reading,
    stream::Stream,
    subject::Code,
};
use pugmark_decoder_core::{Error, ErrorKind, event::EventKind, packet::Packet};
use pugmark_harness::libipt::Decoded;

/// The reason why the two decoders report different things for a damaged trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// libipt reads some packets ahead of the walk, or is one packet late, and in a PSB+ (the state that follows a PSB)
    /// it is at the PSB. So it reports the same error at another place. It also reports an error in a packet that the
    /// walk has not reached before it reports the errors of the walk.
    ReadsAhead,
    /// libipt acts on a packet's opcode before it reads the packet. So if that packet is malformed or cut off by the
    /// end of the trace, it reports the walk's error there, and walks on where the packets say nothing more.
    OpcodeOnly,
    /// For a packet that no processor would send there, libipt judges or words the error differently. It accepts some
    /// (TIP and TNT while tracing is off, PSBEND without PSB) and refuses others (TraceStop while tracing is on; TIP
    /// and TNT between a MODE.Exec and its TIP, or when more are left; compressed returns from a call that left the
    /// filter; more than eight status updates in a PSB+). It continues if tracing begins in an unknown mode.
    Context,
    /// libipt places events differently: if the place of an event is not reached, it skips the event and the packets
    /// after it. To libipt, a TIP.PGD with an IP belongs to a branch to that IP, one without an IP only to far branches
    /// and MOV to CR3, and a MODE.Exec without a TIP's IP to the current place.
    EventPlace,
    /// libipt decodes bytes as another instruction: in 64-bit mode prefix D5 as AAD, 62 never as BOUND, and some bytes
    /// that no processor executes. It also continues to addresses that are wider than the mode allows.
    Instruction,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// One of the two walks (by index) reports the same, and so does the other or its difference belongs to a class.
    Same(usize),
    /// The walk as libipt's reports the same, and no known class explains the difference of the manual's.
    OnlyAsLibipt,
    /// The difference belongs to a known class.
    Differs(Class),
    /// No known class explains the difference.
    Unexplained,
}

/// Compares the reports of the two walks with libipt's report.
pub(crate) fn judge(
    reading: &Reading,
    trace: &[u8],
    code: &Code<'_>,
    own: &[OwnResult; 2],
    theirs: &Decoded,
) -> Verdict {
    let said = theirs.errors.first().map(|error| (error.text, error.offset));
    let same = own.each_ref().map(|own| own.said() == said && own.addresses == theirs.addresses);
    match same {
        [true, true] => return Verdict::Same(0),
        [false, true] => return Verdict::Same(1),
        [true, false] if explain(reading, trace, code, &own[1], theirs).is_some() => return Verdict::Same(0),
        [true, false] => return Verdict::OnlyAsLibipt,
        [false, false] => {}
    }
    match own.iter().rev().find_map(|own| explain(reading, trace, code, own, theirs)) {
        Some(class) => Verdict::Differs(class),
        None => Verdict::Unexplained,
    }
}

/// Returns the class of a difference; `None` if it is unknown, or if nothing at its place shows that this decoder is
/// right.
pub(crate) fn explain(
    reading: &Reading,
    trace: &[u8],
    code: &Code<'_>,
    own: &OwnResult,
    theirs: &Decoded,
) -> Option<Class> {
    let stream = Stream::of(trace);
    let difference = Difference { reading, stream: &stream, code, own, theirs };
    let is = |class: &Class| match class {
        Class::ReadsAhead => difference.reads_ahead(),
        Class::OpcodeOnly => difference.opcode_only(),
        Class::Context => difference.context(),
        Class::EventPlace => difference.event_place(),
        Class::Instruction => difference.instruction(),
    };
    if difference.is_founded() { Class::ALL.into_iter().find(is) } else { None }
}

impl Class {
    pub(crate) const ALL: [Self; 5] =
        [Self::ReadsAhead, Self::OpcodeOnly, Self::Context, Self::EventPlace, Self::Instruction];
}

struct Difference<'a> {
    reading: &'a Reading,
    stream: &'a Stream,
    code: &'a Code<'a>,
    own: &'a OwnResult,
    theirs: &'a Decoded,
}

impl Difference<'_> {
    /// Returns libipt's error and its offset.
    fn their_error(&self) -> Option<(&'static str, u64)> {
        self.theirs.errors.first().map(|error| (error.text, error.offset))
    }

    /// Returns true if libipt has all instructions of this decoder, and no earlier error.
    fn goes_on(&self) -> bool {
        let not_later = |error: (&str, u64)| self.own.said().is_none_or(|(_, own)| own <= error.1);
        self.theirs.addresses.starts_with(&self.own.addresses) && self.their_error().is_none_or(not_later)
    }

    /// Returns true if one of the two lists of instructions begins with the other.
    fn is_prefix(&self) -> bool {
        let (own, theirs) = (&self.own.addresses, &self.theirs.addresses);
        own.starts_with(theirs) || theirs.starts_with(own)
    }

    /// Returns the offset in the trace up to which the two can agree at most.
    fn place(&self) -> u64 {
        let errors = [self.own.said(), self.their_error()];
        errors.into_iter().flatten().map(|(_, offset)| offset).min().unwrap_or(u64::MAX)
    }

    /// Returns the number of instructions that agree.
    fn same(&self) -> usize {
        let both = self.own.addresses.iter().zip(&self.theirs.addresses);
        both.take_while(|(own, theirs)| own == theirs).count()
    }

    /// Returns true if something at the place of this decoder's error shows that the error is real.
    fn is_founded(&self) -> bool {
        let (stream, own) = (self.stream, self.own);
        let Some(Error { offset, kind }) = own.error.filter(|_| own.said() != self.their_error()) else {
            return true;
        };
        let packet = stream.at(offset);
        let stands = packet.is_some() || stream.is_end(offset);
        match kind {
            // An error after an OVF has the offset of the OVF.
            ErrorKind::UnexpectedPacket(_) if packet == Some(&Packet::Ovf) => true,
            ErrorKind::UnexpectedPacket(name) => {
                stream.is_odd(offset) && packet.is_some_and(|packet| packet.name() == name)
            }
            ErrorKind::TraceMismatch { ip } => Needs::of(self.code.at(ip)).is_some_and(|needs| {
                // Outcomes of the previous TNT packet may be left.
                let left = matches!(needs, Needs::Tip | Needs::Far) && stream.is_after_tnt(offset);
                let is_its =
                    |packet| needs.is(packet) && !stream.is_asynchronous(offset) && !stream.waits(offset);
                stands && (left || !packet.is_some_and(|packet| is_aside(packet) || is_its(packet)))
            }),
            ErrorKind::NoMemory { ip } => stands && self.code.at(ip).len() < LONGEST,
            _ if kind.ip().is_some() => stands,
            _ => packet.is_some() || stream.unreadable == Some(offset),
        }
    }

    fn reads_ahead(&self) -> bool {
        let Some((text, offset)) = self.their_error() else { return false };
        let Some((own_text, own_offset)) = self.own.said() else { return false };
        // libipt reports it before the walk gets there.
        let broken = self.stream.unreadable.map(|at| self.stream.open_psb(at).unwrap_or(at));
        if self.own.addresses.starts_with(&self.theirs.addresses)
            && (self.stream.error == Some((text, offset)) || broken == Some(offset) && !self.stream.cut_off)
            && (own_offset == offset || own_text != text && own_offset < offset)
        {
            return true;
        }
        if own_text != text {
            return false;
        }
        let near = if own_offset > offset {
            // libipt is still at the TNT packet whose last outcome the walk has used, or since 2.1 at the TIP at which
            // a change of mode takes effect, or at the OVF after which the packet cannot be.
            let late = self.reading.tip_comes_before_mode;
            let at_mode = late && self.stream.mode_waits(offset);
            let at_overflow = late && self.stream.at(offset) == Some(&Packet::Ovf);
            let is_code = matches!(text, "no memory mapped at this address" | "unknown instruction");
            (is_code && (self.stream.is_tnt(offset) || at_mode) || at_overflow)
                && self.stream.next(offset) == own_offset
        } else {
            self.stream.branches_between(own_offset, offset) <= self.reading.ahead
        };
        let near = near && self.own.addresses == self.theirs.addresses;
        let at_start = self.reading.starts_with_event
            && self.theirs.addresses.is_empty()
            && self.stream.starts_silently(offset, own_offset);
        near || at_start || self.stream.open_psb(own_offset) == Some(offset)
    }

    fn opcode_only(&self) -> bool {
        let Some(unreadable) = self.stream.unreadable else { return false };
        if !self.is_prefix() {
            return false;
        }
        // This decoder also reaches that packet, or the end of the trace, where the packet is cut off.
        if self.own.error.map_or(!self.stream.cut_off, |error| error.offset != unreadable) {
            return false;
        }
        match self.their_error() {
            Some((_, offset)) => offset == unreadable || self.stream.open_psb(unreadable) == Some(offset),
            // libipt continues to the place where the packet would be needed.
            None => self.theirs.addresses.get(self.own.addresses.len()..).is_some_and(|on| {
                on.iter().rev().skip(1).all(|&address| Needs::of(self.code.at(address)).is_none())
            }),
        }
    }

    fn context(&self) -> bool {
        if !self.is_prefix() {
            return false;
        }
        let refused = self.own.error.filter(|error| {
            matches!(
                error.kind,
                ErrorKind::UnexpectedPacket(_)
                    | ErrorKind::IpSuppressed(_)
                    | ErrorKind::ModeMismatch { .. }
                    | ErrorKind::StateMismatch { .. }
                    | ErrorKind::UnknownMode { .. }
                    | ErrorKind::TooManyWaiting(_)
            )
        });
        let other_words = |error: Error| {
            let at_it = |offset| offset == error.offset || self.stream.open_psb(error.offset) == Some(offset);
            self.their_error().is_some_and(|(_, offset)| at_it(offset))
                && self.own.addresses.starts_with(&self.theirs.addresses)
        };
        refused.is_some_and(|error| self.goes_on() || other_words(error))
            || match self.their_error() {
                Some(("unexpected packet context", offset)) => self.stream.stopped(offset),
                Some(("trace stream does not match query", offset)) => {
                    // Outcomes are left, or a MODE.Exec waits for its TIP.
                    let left = self.stream.is_after_tnt(offset) && !self.stream.is_branch_at(offset);
                    left || self.stream.waits(offset)
                }
                Some(("compressed return without call", offset)) => {
                    self.own.addresses.starts_with(&self.theirs.addresses) && self.stream.was_off(offset)
                }
                Some(("out of memory", offset)) => self.stream.updates(offset) > MOST_UPDATES,
                _ => false,
            }
    }

    fn event_place(&self) -> bool {
        let same = self.same();
        let OwnResult { error, events, addresses } = self.own;
        let passes = matches!(error.map(|error| error.kind), Some(ErrorKind::TraceMismatch { .. }));
        let at = |after: usize| after.checked_sub(1).map_or(&[][..], |last| self.code.at(addresses[last]));
        let elsewhere = |event: &Placed| match event.kind {
            EventKind::Disabled if event.ip.is_some() => {
                let again = event.after == same && self.theirs.addresses.get(same).copied() == event.ip;
                event.after <= same && !event.at_branch || again
            }
            EventKind::Disabled => event.after == same && Needs::of(at(event.after)) != Some(Needs::Far),
            _ => false,
        };
        let after_mov_cr3 = at(same).starts_with(&[0x0f, 0x22, 0xd8]);
        passes && self.goes_on()
            || events.iter().any(elsewhere)
            || self.stream.has_odd_mode(self.place())
            || after_mov_cr3 && events.iter().any(|event| event.after > same)
    }

    fn instruction(&self) -> bool {
        let same = self.same();
        let own_error = self.own.error.and_then(|error| error.kind.ip());
        let own = self.own.addresses.get(same).copied().or(own_error);
        let Some(own) = own else { return false };
        let last = same.checked_sub(1).map_or(own, |last| self.own.addresses[last]);
        let theirs = self.theirs.addresses.get(same).copied();
        let wide = |address: u64| address > u64::from(u32::MAX);
        let code = self.code.at(last);
        // Outside 64-bit mode addresses have 32 bits and wrap around. A far transfer may lead there without that.
        let wraps = wide(last) && !wide(own) && theirs.is_none_or(wide) && !is_far(code);
        // 62 is BOUND if its operand is in memory; otherwise it is EVEX.
        let bound = !wide(last) && matches!(code, [0x62, 0..0xc0, ..]);
        let unknown =
            matches!(self.own.error.map(|error| error.kind), Some(ErrorKind::UnknownInstruction { .. }));
        let rex2 = matches!(code, [0xd5, ..]);
        wraps || bound || rex2 || unknown && theirs == own_error && same == self.own.addresses.len()
    }
}

/// Returns true if the walk ignores this packet.
fn is_aside(packet: &Packet) -> bool {
    use Packet::{Cyc, Mnt, Mtc, Pad, Tma, Tsc};
    matches!(packet, Cyc(_) | Mnt(_) | Mtc(_) | Pad | Tma(_) | Tsc(_))
}

/// Maximum number of events of a PSB+ in libipt.
const MOST_UPDATES: usize = 8;
/// The length in bytes of the longest instruction.
const LONGEST: usize = 15;

/// The packet that an instruction needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Tnt,
    /// A return: a TIP, or a TNT if it is compressed (predicted by its call).
    Either,
    Tip,
    /// A far transfer: a TIP.
    Far,
}

impl Needs {
    /// Returns the packet that these bytes of an instruction need.
    fn of(code: &[u8]) -> Option<Self> {
        let is_segment = |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65);
        let is_other = |byte: &u8| matches!(byte, 0x40..=0x4f | 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3);
        let is_prefix = |byte: &u8| is_segment(byte) || is_other(byte);
        let opcode = code.iter().position(|byte| !is_prefix(byte))?;
        match code[opcode..] {
            [0x70..=0x7f | 0xe0..=0xe3, ..] | [0x0f, 0x80..=0x8f, ..] => Some(Self::Tnt),
            [0xc2 | 0xc3, ..] => Some(Self::Either),
            [0x9a | 0xca..=0xcf | 0xea | 0xf1, ..] | [0x0f, 0x01 | 0x05 | 0x07 | 0x34 | 0x35 | 0xaa, ..] => {
                Some(Self::Far)
            }
            [0xff, modrm, ..] => match modrm >> 3 & 7 {
                2 | 4 => Some(Self::Tip),
                3 | 5 => Some(Self::Far),
                _ => None,
            },
            _ => None,
        }
    }

    fn is(self, packet: &Packet) -> bool {
        match packet {
            Packet::TntShort(_) | Packet::TntLong(_) => matches!(self, Self::Tnt | Self::Either),
            Packet::Tip(_) => self != Self::Tnt,
            _ => false,
        }
    }
}

fn is_far(code: &[u8]) -> bool {
    let code = code.strip_prefix(&[0x48]).unwrap_or(code);
    matches!(code, [0xca | 0xcb | 0xcf, ..] | [0xff, ..])
}
