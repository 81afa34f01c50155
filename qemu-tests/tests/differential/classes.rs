//! In what libipt 2.0.5 differs on damaged traces.

use crate::{own::Own, stream::Stream, subject::Code};
use pugmark_decoder_core::{Error, ErrorKind};
use pugmark_qemu_tests::libipt::Decoded;

/// Why the two say different things of a damaged trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// libipt stands a packet ahead of the walk, or behind it, and in a PSB+ at its PSB. So the same error has another
    /// place, and an error of a packet that the walk has not come to is said before those of the walk.
    ReadsAhead,
    /// libipt acts on a packet's opcode before it reads the packet. So of one that is malformed, or that the trace
    /// ends in, it says what is wrong with the walk there, and walks on where the packets say nothing more.
    OpcodeOnly,
    /// Another opinion, or other words, of packets where no processor sends them. libipt lets some pass (TIP and TNT
    /// while tracing is off, PSBEND without PSB) and refuses others (TraceStop while tracing is on; TIP and TNT between
    /// a MODE.Exec and its TIP, or when more are left; returns compressed against a call that left the filter; more
    /// than eight status updates in a PSB+).
    Context,
    /// libipt places events elsewhere: it goes on past one whose place does not come, with the packets behind it. For
    /// it a TIP.PGD with IP belongs to a branch to it, one without IP only to far branches and MOV to CR3, a MODE.Exec
    /// without a TIP's IP to where it stands.
    EventPlace,
    /// libipt takes bytes for another instruction: prefix D5 for AAD in 64-bit mode, 62 never for BOUND, and some that
    /// no processor executes. And it goes on to addresses that are wider than the mode has them.
    Instruction,
}

/// The class of a difference; `None` where it is not known.
pub(crate) fn explain(trace: &[u8], code: &Code<'_>, own: &Own, theirs: &Decoded) -> Option<Class> {
    let stream = Stream::of(trace);
    let difference = Difference { stream: &stream, code, own, theirs };
    let is = |class: &Class| match class {
        Class::ReadsAhead => difference.reads_ahead(),
        Class::OpcodeOnly => difference.opcode_only(),
        Class::Context => difference.context(),
        Class::EventPlace => difference.event_place(),
        Class::Instruction => difference.instruction(),
    };
    Class::ALL.into_iter().find(is)
}

impl Class {
    pub(crate) const ALL: [Self; 5] =
        [Self::ReadsAhead, Self::OpcodeOnly, Self::Context, Self::EventPlace, Self::Instruction];
}

struct Difference<'a> {
    stream: &'a Stream,
    code: &'a Code<'a>,
    own: &'a Own,
    theirs: &'a Decoded,
}

impl Difference<'_> {
    /// libipt's error and its place.
    fn their_error(&self) -> Option<(&'static str, u64)> {
        self.theirs.errors.first().map(|error| (error.text, error.offset))
    }

    /// libipt has all instructions that this decoder has, and its error, if any, is not before this one's.
    fn goes_on(&self) -> bool {
        let behind = |error: (&str, u64)| self.own.said().is_none_or(|(_, own)| own <= error.1);
        self.theirs.addresses.starts_with(&self.own.addresses) && self.their_error().is_none_or(behind)
    }

    /// How many instructions are the same.
    fn same(&self) -> usize {
        let both = self.own.addresses.iter().zip(&self.theirs.addresses);
        both.take_while(|(own, theirs)| own == theirs).count()
    }

    fn reads_ahead(&self) -> bool {
        let Some((text, offset)) = self.their_error() else { return false };
        if self.own.addresses.starts_with(&self.theirs.addresses) && self.stream.error == Some((text, offset))
        {
            return true;
        }
        let Some((_, own_offset)) = self.own.said().filter(|(own, _)| *own == text) else { return false };
        let near = self.own.addresses == self.theirs.addresses
            && self.stream.branches_between(own_offset, offset) <= 1;
        near || self.stream.open_psb(own_offset) == Some(offset)
    }

    fn opcode_only(&self) -> bool {
        let (Some((_, offset)), Some(unreadable)) = (self.their_error(), self.stream.unreadable) else {
            return false;
        };
        offset == unreadable || self.stream.open_psb(unreadable) == Some(offset)
    }

    fn context(&self) -> bool {
        let refused = self.own.error.filter(|error| {
            matches!(
                error.kind,
                ErrorKind::UnexpectedPacket(_)
                    | ErrorKind::IpSuppressed(_)
                    | ErrorKind::NoIp(_)
                    | ErrorKind::ModeMismatch { .. }
                    | ErrorKind::StateMismatch { .. }
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
                    self.stream.waits(offset) || !self.stream.is_branch_at(offset)
                }
                Some(("compressed return without call", offset)) => {
                    self.own.addresses.starts_with(&self.theirs.addresses) && self.stream.was_off(offset)
                }
                Some(("out of memory", _)) => true,
                _ => false,
            }
    }

    fn event_place(&self) -> bool {
        let passes = matches!(self.own.error.map(|error| error.kind), Some(ErrorKind::TraceMismatch { .. }));
        let same = self.same();
        let last = same.checked_sub(1).map(|last| self.code.at(self.own.addresses[last]));
        let behind_mov_cr3 = last.is_some_and(|code| code.starts_with(&[0x0f, 0x22, 0xd8]));
        passes && self.goes_on()
            || self.own.events.contains(&same)
            || self.own.fell
            || self.stream.has_odd_mode()
            || behind_mov_cr3 && self.own.events.iter().any(|&event| event > same)
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
        // Outside of 64-bit mode addresses have 32 bits; a far transfer may lead there.
        let wraps = wide(last) && !wide(own) && theirs.is_none_or(wide) && !is_far(code);
        // 62 is BOUND with an operand in memory, where it is not EVEX.
        let bound = !wide(last) && matches!(code, [0x62, 0..0xc0, ..]);
        let unknown =
            matches!(self.own.error.map(|error| error.kind), Some(ErrorKind::UnknownInstruction { .. }));
        let rex2 = matches!(code, [0xd5, ..]);
        wraps || bound || rex2 || unknown && theirs == own_error && same == self.own.addresses.len()
    }
}

fn is_far(code: &[u8]) -> bool {
    let code = code.strip_prefix(&[0x48]).unwrap_or(code);
    matches!(code, [0xca | 0xcb | 0xcf, ..] | [0xff, ..])
}
