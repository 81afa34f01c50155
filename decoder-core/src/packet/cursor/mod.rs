//! A cursor over the packets of a trace.
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

use super::{
    Context, PSB, Packet, fast,
    input::{Input, LONGEST, before_psb},
};
use crate::{
    config::{Config, Position},
    error::{Error, ErrorKind},
    sync,
};

/// The packets of a trace, in order.
///
/// The iterator returns each packet with its offset. It ends at the end of the trace, even within a packet. After an
/// error it returns nothing more until [`sync_forward`](Self::sync_forward), [`sync_backward`](Self::sync_backward) or
/// [`set_offset`](Self::set_offset) set where to continue.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    pub(super) input: Input<'a>,
    /// The next packet's place in the input.
    pub(super) at: usize,
    /// The limit in the input after which no packet may be read, because it is too far from the one that needs it.
    fence: usize,
    /// The PSB that was synchronised onto last.
    sync: Option<u64>,
    failed: bool,
    /// True outside any block and without a fence: the fast parser may be used. It never returns an error.
    pub(super) plain: bool,
    context: Context,
    config: Config<'a>,
}

impl<'a> Packets<'a> {
    /// Creates a cursor at the first byte of the trace, with the default configuration.
    #[must_use]
    pub fn new(trace: &'a [u8]) -> Self {
        Self::with_config(trace, Config::new())
    }

    /// Creates a cursor at the first byte of the trace.
    #[must_use]
    pub fn with_config(trace: &'a [u8], config: Config<'a>) -> Self {
        Self {
            input: Input::whole(trace),
            at: 0,
            fence: usize::MAX,
            sync: None,
            failed: false,
            plain: true,
            context: Context::OUTSIDE,
            config,
        }
    }

    /// Returns the configuration that the trace is read with.
    #[must_use]
    pub fn config(&self) -> &Config<'a> {
        &self.config
    }

    /// Returns the trace.
    pub fn bytes(&self) -> &'a [u8] {
        self.input.bytes
    }

    /// Returns the offset of the next packet, or of the packet that failed, or the end of the trace.
    pub fn offset(&self) -> u64 {
        self.input.base + self.at as u64
    }

    /// Returns the context of the next packet.
    pub fn context(&self) -> Context {
        self.context
    }

    /// Goes to a packet that is known to begin at `offset`, outside any block.
    pub fn set_offset(&mut self, offset: u64) {
        self.at = self.place_of(offset).min(self.input.bytes.len());
        self.failed = false;
        self.plain = self.fence == usize::MAX;
        self.context = Context::OUTSIDE;
    }

    /// Goes to the next PSB and returns its offset, or stays and returns `None` if none follows.
    ///
    /// The search begins 15 bytes before the current packet, to find a PSB whose first bytes were read as the tail of a
    /// damaged packet. It never finds the PSB that was synchronised onto last.
    pub fn sync_forward(&mut self) -> Option<u64> {
        let offset = self.offset();
        let look_back = before_psb(offset);
        let from = match self.sync {
            Some(sync) if offset >= sync => look_back.max(sync + 1),
            _ => look_back,
        };
        // While more bytes follow, those after a PSB must be at hand, because they may be one more PSB.
        let known = self.input.bytes.len() - if self.input.more { 2.min(self.input.bytes.len()) } else { 0 };
        let psb = sync::forward(self.input.bytes, self.place_of(from));
        match psb.filter(|psb| psb + PSB.len() <= known) {
            Some(psb) => Some(self.synced(psb)),
            None => {
                // The next search begins at the first place that this one could not check.
                if self.input.more {
                    self.at = self.at.max(known);
                }
                None
            }
        }
    }

    /// Goes to the last PSB before the current position and returns its offset, or stays and returns `None`.
    pub fn sync_backward(&mut self) -> Option<u64> {
        let psb = sync::backward(self.input.bytes, self.at)?;
        Some(self.synced(psb))
    }

    /// Goes to the PSB at `offset`, even if the cursor was there before. Returns `false` and stays if there is none.
    ///
    /// In a run of PSBs without a gap, goes to the last one, as all synchronisation does.
    pub fn sync_at(&mut self, offset: u64) -> bool {
        let from = self.place_of(offset);
        let is_psb = self.input.bytes.get(from..).is_some_and(|rest| rest.starts_with(&PSB));
        let Some(psb) = sync::forward(self.input.bytes, from).filter(|_| is_psb) else { return false };
        self.synced(psb);
        true
    }

    /// Returns the offset of the PSB that was synchronised onto last.
    pub fn sync_offset(&self) -> Option<u64> {
        self.sync
    }

    fn synced(&mut self, psb: usize) -> u64 {
        let psb = self.input.base + psb as u64;
        self.set_offset(psb);
        self.sync = Some(psb);
        psb
    }

    /// Returns the place of this offset in the input.
    pub(super) fn place_of(&self, offset: u64) -> usize {
        usize::try_from(offset.saturating_sub(self.input.base)).unwrap_or(usize::MAX)
    }

    /// Forgets everything, and continues at `offset`.
    pub(crate) fn restart(&mut self, offset: u64) {
        self.input = Input { bytes: &[], base: offset, ..self.input };
        self.sync = None;
        self.set_offset(offset);
    }

    /// Returns the part of the trace at hand.
    #[inline(always)]
    pub(crate) fn input(&self) -> Input<'a> {
        self.input
    }

    /// Returns a cursor that continues in another part of the trace.
    #[inline(never)]
    pub(crate) fn resumed<'b>(&self, input: Input<'b>, config: Config<'b>) -> Packets<'b> {
        let Self { fence, sync, failed, plain, context, .. } = *self;
        let at = usize::try_from(self.offset().saturating_sub(input.base)).unwrap_or(usize::MAX);
        Packets { input, at, fence, sync, failed, plain, context, config }
    }
}

impl Packets<'_> {
    /// Continues at the place of `read` in the same trace. The bytes of `read` are not kept; those from the offset
    /// `keep` on must be supplied again.
    pub(crate) fn continue_after(&mut self, read: &Packets<'_>, keep: u64) {
        let Packets { fence, sync, failed, plain, context, .. } = *read;
        let Input { more, reach, .. } = read.input;
        self.at = usize::try_from(read.offset().saturating_sub(keep)).unwrap_or(usize::MAX);
        self.input = Input { bytes: &[], base: keep, more, reach };
        (self.fence, self.sync, self.failed, self.plain, self.context) =
            (fence, sync, failed, plain, context);
    }

    /// Returns the first byte of the next packet, if it is outside any block and not near the end of the trace.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn peek_plain(&self) -> Option<u8> {
        self.plain_window().map(|window| window[0])
    }

    /// Returns the next packet, if the fast parser can read it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn next_plain(&mut self) -> Option<(u64, Packet)> {
        let window = self.plain_window()?;
        let tnt = fast::tnt(window[0]).map(|tnt| (tnt, 1));
        let (packet, size) = tnt.or_else(|| fast::parse(window))?;
        let offset = self.offset();
        self.at += size;
        Some((offset, packet))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn plain_window(&self) -> Option<&[u8; fast::WINDOW]> {
        let rest = self.input.bytes.get(self.at..)?;
        rest.first_chunk().filter(|_| self.plain)
    }

    /// Returns true if the slice may end before the bytes that the packet at `offset` depends on.
    pub(crate) fn may_end(&self, offset: u64) -> bool {
        let left = self.input.bytes.len() - self.place_of(offset).min(self.input.bytes.len());
        self.input.more && left <= self.input.reach.saturating_add(LONGEST + usize::from(u8::MAX))
    }

    /// Limits reading to the packets within the input's reach from `offset`.
    pub(crate) fn set_fence(&mut self, offset: u64) {
        if self.input.is_sliced() {
            self.fence = self.place_of(offset).saturating_add(self.input.reach);
            self.plain = false;
        }
    }

    pub(crate) fn clear_fence(&mut self) {
        self.fence = usize::MAX;
        self.plain = self.context.block.is_none();
    }

    #[inline(never)]
    pub(super) fn next_slowly(&mut self) -> Option<Result<(u64, Packet), Error>> {
        let offset = self.offset();
        match self.parse_next() {
            Ok(packet) => packet.map(|packet| Ok((offset, packet))),
            Err(kind) => Some(Err(Error { offset, kind })),
        }
    }

    /// Reads the next packet; `None` at the end of the trace.
    fn parse_next(&mut self) -> Result<Option<Packet>, ErrorKind> {
        let Self { at, config, context, .. } = self;
        if self.failed {
            return Ok(None);
        }
        if *at > self.fence {
            return Err(ErrorKind::LooksTooFar);
        }
        let trace = self.input.bytes;
        if self.input.more && trace.len().saturating_sub(*at) < LONGEST {
            return Err(ErrorKind::EndOfSlice);
        }
        match Packet::parse_at(Position { trace, offset: *at }, config, *context) {
            Ok(Some((packet, size))) => {
                *at += size;
                *context = context.after(&packet);
                self.plain = context.block.is_none() && self.fence == usize::MAX;
                Ok(Some(packet))
            }
            Ok(None) if self.input.more => Err(ErrorKind::EndOfSlice),
            Ok(None) => Ok(None),
            Err(kind) => {
                self.failed = true;
                Err(kind)
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
