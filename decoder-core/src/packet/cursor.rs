//! Walking over the packets of a trace.
//!
//! ```
//! use pugmark_decoder_core::packet::{Packet, Packets};
//!
//! let trace = [0xff, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82,
//!     0x02, 0x23];
//! let mut packets = Packets::new(&trace);
//! assert_eq!(packets.sync_forward(), Some(1));
//! assert_eq!(packets.next(), Some(Ok((1, Packet::Psb))));
//! assert_eq!(packets.next(), Some(Ok((17, Packet::PsbEnd))));
//! assert_eq!(packets.next(), None);
//! ```

use super::{Context, PSB, Packet, fast};
use crate::{
    config::{Config, Position},
    error::Error,
    sync,
};

/// The packets of a trace, one after the other.
///
/// As an iterator it gives each packet with its offset. It ends at the end of the trace, also if the trace ends
/// within a packet. After an error it gives nothing more until [`sync_forward`](Self::sync_forward),
/// [`sync_backward`](Self::sync_backward) or [`set_offset`](Self::set_offset) say where to continue.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) offset: usize,
    /// The PSB last synchronised onto.
    sync: Option<usize>,
    failed: bool,
    /// Outside any block: the fast parser may be used. It never returns an error.
    pub(super) plain: bool,
    pub(super) sizes: &'static [u8; 256],
    context: Context,
    config: Config<'a>,
}

impl<'a> Packets<'a> {
    /// A cursor at the first byte of the trace, with the default configuration.
    #[must_use]
    pub fn new(trace: &'a [u8]) -> Self {
        Self::with_config(trace, Config::new())
    }

    /// A cursor at the first byte of the trace.
    #[must_use]
    pub fn with_config(trace: &'a [u8], config: Config<'a>) -> Self {
        let sizes = if config.errata.skd007 { &fast::SIZES_SKD007 } else { &fast::SIZES };
        Self {
            bytes: trace,
            sizes,
            offset: 0,
            sync: None,
            failed: false,
            plain: true,
            context: Context::OUTSIDE,
            config,
        }
    }

    /// The configuration that the trace is read with.
    #[must_use]
    pub fn config(&self) -> &Config<'a> {
        &self.config
    }

    /// The trace.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The offset of the next packet, or of the packet that failed, or where the trace ends.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// The context of the next packet.
    pub fn context(&self) -> Context {
        self.context
    }

    /// Goes to a packet that is known to begin at `offset`, outside any block.
    pub fn set_offset(&mut self, offset: u64) {
        self.offset = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        self.failed = false;
        self.plain = true;
        self.context = Context::OUTSIDE;
    }

    /// Goes to the next PSB and returns its offset, or stays and returns `None` when none follows.
    ///
    /// The search begins 15 bytes before the current packet, so that it finds a PSB whose first bytes were read as
    /// the tail of a damaged packet. It never finds the PSB that it synchronised onto last.
    pub fn sync_forward(&mut self) -> Option<u64> {
        let look_back = self.offset.saturating_sub(PSB.len() - 1);
        let from = match self.sync {
            Some(sync) if self.offset >= sync => look_back.max(sync + 1),
            _ => look_back,
        };
        let psb = sync::forward(self.bytes, from)?;
        Some(self.synced(psb))
    }

    /// Goes to the last PSB before the current position and returns its offset, or stays and returns `None`.
    pub fn sync_backward(&mut self) -> Option<u64> {
        let psb = sync::backward(self.bytes, self.offset)?;
        Some(self.synced(psb))
    }

    /// Goes to the PSB at `offset`, even if it was there before. Returns `false` and does not move when there is
    /// none.
    ///
    /// In a run of PSBs without a gap it goes to the last one, as all synchronisation does.
    pub fn sync_at(&mut self, offset: u64) -> bool {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let is_psb = self.bytes.get(from..).is_some_and(|rest| rest.starts_with(&PSB));
        let Some(psb) = sync::forward(self.bytes, from).filter(|_| is_psb) else { return false };
        self.synced(psb);
        true
    }

    /// The offset of the PSB that was synchronised onto last.
    pub fn sync_offset(&self) -> Option<u64> {
        self.sync.map(|sync| sync as u64)
    }

    fn synced(&mut self, psb: usize) -> u64 {
        self.set_offset(psb as u64);
        self.sync = Some(psb);
        psb as u64
    }
}

impl Packets<'_> {
    /// The first byte of the next packet, outside any block and not near the end of the trace.
    #[inline(always)]
    pub(crate) fn peek_plain(&self) -> Option<u8> {
        self.plain_window().map(|window| window[0])
    }

    /// The next packet, if the fast parser can read it.
    #[inline(always)]
    pub(crate) fn next_plain(&mut self) -> Option<(u64, Packet)> {
        let window = self.plain_window()?;
        let tnt = fast::tnt(window[0]).map(|tnt| (tnt, 1));
        let (packet, size) = tnt.or_else(|| fast::parse(window, self.sizes))?;
        let offset = self.offset as u64;
        self.offset += size;
        Some((offset, packet))
    }

    /// The IPBytes field, the payload and the size of the packet at `offset`, if it is a TIP with an IP that the fast
    /// parser can read.
    #[inline(always)]
    pub(crate) fn target_at(&self, offset: usize) -> Option<(u8, u64, usize)> {
        fast::target(self.bytes.get(offset..)?.first_chunk()?)
    }

    #[inline(always)]
    fn plain_window(&self) -> Option<&[u8; fast::WINDOW]> {
        let rest = self.bytes.get(self.offset..)?;
        rest.first_chunk().filter(|_| self.plain)
    }

    #[inline(never)]
    pub(super) fn next_slowly(&mut self) -> Option<Result<(u64, Packet), Error>> {
        if self.failed {
            return None;
        }
        let offset = self.offset as u64;
        let position = Position { trace: self.bytes, offset: self.offset };
        match Packet::parse_at(position, &self.config, self.context) {
            Ok(Some((packet, size))) => {
                self.offset += size;
                self.context = self.context.after(&packet);
                self.plain = self.context.block.is_none();
                Some(Ok((offset, packet)))
            }
            Ok(None) => None,
            Err(kind) => {
                self.failed = true;
                Some(Err(Error { offset, kind }))
            }
        }
    }
}

impl Iterator for Packets<'_> {
    type Item = Result<(u64, Packet), Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self.next_plain() {
            Some(packet) => Some(Ok(packet)),
            None => self.next_slowly(),
        }
    }
}

#[cfg(test)]
mod tests;
