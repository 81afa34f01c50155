//! The result of the decoders under test for a trace: by the manual, and as libipt 2.3 walks.

use pugmark_decoder_core::{
    Error, ErrorKind,
    config::{AddressFilter, Clocks},
    errata::Errata,
    event::{Event, EventKind},
    flow::{FlowItem, InsnDecoder},
    image::{Image, Section},
    packet::Packet,
};
use pugmark_ipt::{
    Block, BlockDecoder, BlockOptions, Code, EventOptions, FlowStatus, Release,
    event::{PtEvent, flag, kind},
};

/// The result, from the first PSB to the first error.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnResult {
    pub(crate) addresses: Vec<u64>,
    pub(crate) error: Option<Error>,
    pub(crate) events: Vec<Placed>,
}

/// An event at its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// Number of instructions before it.
    pub(crate) after: usize,
    pub(crate) kind: EventKind,
    /// The event's address, if it has one.
    pub(crate) ip: Option<u64>,
    /// The last instruction before it, with no event in between, is a branch.
    pub(crate) at_branch: bool,
}

/// No errata, clocks or filters.
const OPTIONS: BlockOptions = BlockOptions {
    events: EventOptions {
        errata: Errata::NONE,
        clocks: Clocks::UNKNOWN,
        keep_calibration: false,
        iflags: false,
        release: Release::V2_3,
    },
    filter: AddressFilter::NONE,
    ticks: false,
    end_on_call: false,
    end_on_jump: false,
};

impl OwnResult {
    /// Returns the result as libipt 2.3 walks, and that by the manual.
    pub(crate) fn both(trace: &[u8], sections: &[Section<'_>]) -> [Self; 2] {
        [Self::as_libipt(trace, sections), Self::by_the_manual(trace, sections)]
    }

    /// Walks as libipt 2.3 does, up to the first error.
    pub(crate) fn as_libipt(trace: &[u8], sections: &[Section<'_>]) -> Self {
        let mut decoder = BlockDecoder::new(trace, Image::new(sections), OPTIONS);
        let (mut own, mut block) = (Self::default(), Block::default());
        let (mut last, mut after_branch) = ((0, 0), false);
        let mut answer = decoder.sync_forward();
        loop {
            answer = match answer {
                Ok(FlowStatus { event_pending: true, .. }) => decoder.event().map(|(event, status)| {
                    if !event.has(flag::STATUS_UPDATE) {
                        let (after, kind) = (own.addresses.len(), kind_of(&event));
                        own.events.push(Placed { after, kind, ip: event.ip(), at_branch: after_branch });
                        after_branch = false;
                    }
                    status
                }),
                Ok(FlowStatus { end: true, .. }) => return own,
                Ok(_) => {
                    let answer = decoder.next(&mut block);
                    own.addresses.extend(block.insns.iter().map(|insn| insn.ip));
                    last = (block.ip, block.ip);
                    if let Some(insn) = block.last() {
                        after_branch = insn.insn.class.is_branch();
                        let next = insn.insn.target.unwrap_or(insn.insn.next(insn.ip));
                        last = (insn.ip, next);
                    }
                    answer
                }
                Err(status) if status == Code::EndOfStream.status() => return own,
                Err(status) => {
                    let offset = decoder.unused_offset().unwrap_or(0);
                    own.error = Some(error_of(status, offset, trace, last));
                    return own;
                }
            };
        }
    }

    /// Walks by the manual, up to the first error.
    pub(crate) fn by_the_manual(trace: &[u8], sections: &[Section<'_>]) -> Self {
        let mut decoder = InsnDecoder::new(trace, Image::new(sections));
        let mut own = Self::default();
        if decoder.sync_forward().is_none() {
            return own;
        }
        let mut after_branch = false;
        loop {
            match decoder.next() {
                Ok(Some(FlowItem::Insn(insn))) => {
                    own.addresses.push(insn.ip);
                    after_branch = insn.class.is_branch();
                }
                Ok(Some(FlowItem::Event(Event { kind, ip, .. }))) => {
                    own.events.push(Placed { after: own.addresses.len(), kind, ip, at_branch: after_branch });
                    after_branch = false;
                }
                Ok(None) => return own,
                Err(error) => {
                    own.error = Some(error);
                    return own;
                }
            }
        }
    }

    /// Returns the error in libipt's words, and its offset.
    pub(crate) fn said(&self) -> Option<(&'static str, u64)> {
        self.error.map(|error| (Code::from(error.kind).text(), error.offset))
    }
}

/// Returns the kind of an event, as far as the judge asks for it.
fn kind_of(event: &PtEvent) -> EventKind {
    if event.kind == kind::DISABLED { EventKind::Disabled } else { EventKind::Overflow }
}

/// Returns the decoder's error that has the words of libipt's status. `last` is the address of the last instruction,
/// and that after it.
fn error_of(status: i32, offset: u64, trace: &[u8], (last, next): (u64, u64)) -> Error {
    let is = |code: Code| code.status() == status;
    let bytes = usize::try_from(offset).ok().and_then(|at| trace.get(at..)).unwrap_or_default();
    let name = Packet::parse(bytes).ok().flatten().map_or("", |(packet, _)| packet.name());
    let kind = match () {
        () if is(Code::BadOpcode) => ErrorKind::UnknownOpcode(0),
        () if is(Code::BadPacket) => ErrorKind::MalformedPacket { packet: name, value: 0 },
        () if is(Code::NoSync) => ErrorKind::OutOfSync,
        () if is(Code::BadQuery) => ErrorKind::TraceMismatch { ip: last },
        () if is(Code::NoMemory) => ErrorKind::TooManyWaiting(name),
        () if is(Code::NoIp) || is(Code::IpSuppressed) => ErrorKind::IpSuppressed(name),
        () if is(Code::NotMapped) => ErrorKind::NoMemory { ip: next },
        () if is(Code::BadInstruction) => ErrorKind::UnknownInstruction { ip: next },
        () if is(Code::ReturnWithoutCall) => ErrorKind::ReturnWithoutCall { ip: last },
        () if is(Code::BadReturn) => ErrorKind::BadReturnCompression { ip: last },
        () if is(Code::BadStatusUpdate) => ErrorKind::StateMismatch { ip: next },
        () => ErrorKind::UnexpectedPacket(name),
    };
    Error { offset, kind }
}
