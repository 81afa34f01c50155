//! The result of the decoder under test for a trace.

use pugmark_decoder_core::{
    Error,
    config::{Config, Dialect},
    event::{Event, EventKind},
    flow::{FlowItem, InsnDecoder},
    image::{Image, Section},
};
use pugmark_ipt::Code;

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

/// The manual's reading of packets, without errata and clocks.
pub(crate) const MANUAL: Config<'static> = Config { dialect: Dialect::Manual, ..Config::new() };

/// libipt's reading of packets, likewise.
pub(crate) const LIBIPT: Config<'static> = Config { dialect: Dialect::Libipt, ..Config::new() };

impl OwnResult {
    pub(crate) fn of(trace: &[u8], sections: &[Section<'_>], config: Config<'static>) -> Self {
        let mut decoder = InsnDecoder::with_config(trace, Image::new(sections), config);
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
