//! What the decoder under test makes of a trace.

use pugmark_decoder_core::{
    Error,
    config::{Config, Dialect},
    event::{Event, EventKind},
    flow::{InsnDecoder, Item},
    image::{Image, Section},
};

/// What it makes of a trace, from the first PSB to the first error.
#[derive(Debug, Default)]
pub(crate) struct Own {
    pub(crate) addresses: Vec<u64>,
    pub(crate) error: Option<Error>,
    /// Behind how many instructions each event had its place.
    pub(crate) events: Vec<usize>,
    /// A TIP.PGD with IP had its place behind no branch.
    pub(crate) fell: bool,
}

/// The manual's reading of packets, without errata and clocks.
pub(crate) const MANUAL: Config<'static> = Config { dialect: Dialect::Manual, ..Config::new() };

/// libipt's reading, likewise.
pub(crate) const LIBIPT: Config<'static> = Config { dialect: Dialect::Libipt, ..Config::new() };

impl Own {
    pub(crate) fn of(trace: &[u8], sections: &[Section<'_>], config: Config<'static>) -> Self {
        let mut decoder = InsnDecoder::with_config(trace, Image::new(sections), config);
        let mut own = Self::default();
        if decoder.sync_forward().is_none() {
            return own;
        }
        let mut behind_branch = false;
        loop {
            match decoder.next() {
                Ok(Some(Item::Insn(insn))) => {
                    own.addresses.push(insn.ip);
                    behind_branch = insn.class.is_branch();
                }
                Ok(Some(Item::Event(Event { kind, ip, .. }))) => {
                    own.events.push(own.addresses.len());
                    own.fell |= matches!(kind, EventKind::Disabled) && ip.is_some() && !behind_branch;
                    behind_branch = false;
                }
                Ok(None) => return own,
                Err(error) => {
                    own.error = Some(error);
                    return own;
                }
            }
        }
    }

    /// The error in libipt's words, and where.
    pub(crate) fn said(&self) -> Option<(&'static str, u64)> {
        self.error.map(|error| (error.kind.libipt_text(), error.offset))
    }
}
