//! The packet decoder: `pt_pkt_*`.

use crate::{
    config::{PtConfig, PtErrata},
    error::Code,
    fast_packets,
    out::{write_offset, write_out},
    packet::{PtPacket, field, kind},
};
use pugmark_decoder_core::{
    ErrorKind,
    packet::{PSB, Packets},
    sync,
};
use pugmark_ipt::packets::as_libipt;
use std::{ffi::c_int, ptr};

/// `struct pt_packet_decoder`.
#[derive(Clone, Debug)]
pub struct PacketDecoder {
    config: PtConfig,
    packets: Packets<'static>,
    /// The offset of the next packet; `None` before the first synchronisation. Erratum SKZ84 can lead one byte past the
    /// end.
    position: Option<u64>,
    sync: Option<u64>,
}

/// A packet and its size, or the function's error status.
type Decoded = Result<(PtPacket, u64), c_int>;

impl PacketDecoder {
    /// # Safety
    /// As in [`pt_pkt_alloc_decoder`].
    pub(crate) unsafe fn new(config: PtConfig) -> Self {
        // SAFETY: the buffer does not change while the decoder exists, except in `unknown`.
        let packets = Self::packets(unsafe { config.trace() });
        Self { config, packets, position: None, sync: None }
    }

    /// Makes the reader without errata: `next` handles those as libipt 2.0.5 does.
    fn packets(trace: &'static [u8]) -> Packets<'static> {
        Packets::new(trace)
    }

    fn set(&mut self, offset: u64) {
        self.packets.set_offset(offset);
        self.position = Some(offset);
    }

    fn synced(&mut self, offset: u64) -> c_int {
        self.set(offset);
        self.sync = Some(offset);
        0
    }

    pub(crate) fn sync_forward(&mut self) -> c_int {
        let psb = PSB.len() as u64;
        let position = match self.position {
            // The current PSB is not the next one.
            Some(position) if self.sync == Some(position) => position + psb,
            position => position.unwrap_or(0),
        };
        // The packet before may have swallowed the first bytes of a PSB.
        let from = position - position.min(psb - 1);
        if from > self.config.len() {
            return Code::Internal.status();
        }
        // A position in the buffer fits.
        match sync::forward(self.packets.bytes(), from as usize) {
            Some(psb) => self.synced(psb as u64),
            None => Code::EndOfStream.status(),
        }
    }

    pub(crate) fn sync_backward(&mut self) -> c_int {
        let end = self.config.len();
        let before = self.position.unwrap_or(end);
        if before > end {
            return Code::Internal.status();
        }
        // A position in the buffer fits.
        match crate::sync::backward(self.packets.bytes(), self.config.begin.addr(), before as usize) {
            Some(psb) => self.synced(psb as u64),
            None => Code::EndOfStream.status(),
        }
    }

    /// Goes to an offset, without looking for a PSB.
    pub(crate) fn sync_set(&mut self, offset: u64) -> c_int {
        match self.config.checked(offset) {
            Some(offset) => self.synced(offset),
            None => Code::EndOfStream.status(),
        }
    }

    /// Returns the offset of the next packet.
    pub(crate) fn position(&self) -> Option<u64> {
        self.position
    }

    /// Returns the next packet, if it is a common one.
    #[inline(always)]
    fn next_common(&mut self) -> Option<PtPacket> {
        let position = self.position?;
        // A position fits.
        let packet = self.packets.bytes().get(position as usize..).and_then(fast_packets::packet)?;
        self.position = Some(position + u64::from(packet.size));
        Some(packet)
    }

    pub(crate) fn next(&mut self) -> Decoded {
        let Some(position) = self.position.filter(|&position| position <= self.config.len()) else {
            return Err(Code::NoSync.status());
        };
        self.packets.set_offset(position);
        let (packet, size) = match self.packets.next() {
            Some(Ok((_, packet))) => match PtPacket::from_packet(as_libipt(packet, self.rest(position))) {
                // The longest packet has 16 bytes.
                Some(packet) => {
                    let size = self.packets.offset() - position;
                    (PtPacket { size: size as u32, ..packet }, size)
                }
                None => self.unknown(position)?,
            },
            Some(Err(error)) => self.failed(position, error.kind)?,
            None if self.is_newer(position) => self.unknown(position)?,
            None => return Err(Code::EndOfStream.status()),
        };
        self.position = Some(position + size);
        Ok((packet, size))
    }

    /// Handles an error of the decoder in `next`.
    #[cold]
    fn failed(&mut self, position: u64, kind: ErrorKind) -> Decoded {
        self.packets.set_offset(position);
        match kind {
            ErrorKind::MalformedPacket { packet: "TMA", .. } if self.config.errata.has(PtErrata::SKZ84) => {
                let size = 8;
                self.packets.set_offset(position + size);
                Ok((PtPacket { size: 8, ..PtPacket::new(kind::INVALID) }, size))
            }
            _ => match Code::from(kind) {
                Code::BadOpcode => self.unknown(position),
                code => Err(code.status()),
            },
        }
    }

    /// Returns the offset of the last synchronisation.
    pub(crate) fn sync_position(&self) -> Option<u64> {
        self.sync
    }

    /// Returns true if the configuration has an erratum.
    pub(crate) fn has(&self, erratum: u32) -> bool {
        self.config.errata.has(erratum)
    }

    /// Returns true if erratum SKZ84 led past the end of the buffer.
    pub(crate) fn is_after_end(&self) -> bool {
        self.position.is_some_and(|position| position > self.config.len())
    }

    /// Skips bytes without reading them.
    pub(crate) fn skip(&mut self, bytes: u64) {
        self.position = self.position.map(|position| position + bytes);
    }

    /// Handles erratum SKD007: an OVF follows a CYC that was cut off after its first byte. If that is true of this CYC,
    /// which was just read, skips to the OVF and returns true.
    pub(crate) fn skip_cut_off_cyc(&mut self, cyc: &PtPacket) -> bool {
        let next = self.position.and_then(|position| self.packets.bytes().get(position as usize));
        // The field of a CYC of two bytes has twelve bits.
        let is_cut_off = cyc.size == 2 && cyc.get(field::CYC_VALUE) & !0x1f == 0x20 && next == Some(&0xf3);
        if is_cut_off {
            self.skip(1);
        }
        is_cut_off
    }

    /// Returns the bytes from a position on.
    fn rest(&self, position: u64) -> &'static [u8] {
        // A position in the buffer fits.
        self.packets.bytes().get(position as usize..).unwrap_or_default()
    }

    /// Returns true if a packet begins here that the decoder knows but libipt 2.1.2 does not: TRIG or BBP.
    #[cold]
    fn is_newer(&self, position: u64) -> bool {
        matches!(self.rest(position), [0xd9, ..] | [0x02, 0x63, ..])
    }

    /// Asks the caller's reader of unknown packets.
    #[cold]
    fn unknown(&mut self, position: u64) -> Decoded {
        // The callback may write to the buffer, so nothing borrows the buffer meanwhile.
        self.packets = Self::packets(&[]);
        let answer = ask(&self.config, position);
        // SAFETY: as in `new`.
        self.packets = Self::packets(unsafe { self.config.trace() });
        self.packets.set_offset(position);
        let (length, packet) = answer?;
        self.packets.set_offset(position + length);
        Ok((packet, length))
    }
}

/// Asks the caller's reader of unknown packets about the packet at a position in the buffer. Returns its size and the
/// packet. The callback may write to the buffer, so no slice of it may exist.
#[cold]
pub(crate) fn ask(config: &PtConfig, position: u64) -> Result<(u64, PtPacket), c_int> {
    let Some(callback) = config.callback else { return Err(Code::BadOpcode.status()) };
    // A position in the buffer fits.
    let at = config.begin.wrapping_add(position as usize).cast_const();
    let mut packet = PtPacket::new(kind::UNKNOWN).with(field::UNKNOWN_PACKET, at.addr() as u64);
    // SAFETY: the caller that made the decoder promised a function of this type; the payload has room for the two
    // pointers of `struct pt_packet_unknown`.
    let size = unsafe { callback((&raw mut packet.payload).cast(), config, at, config.context) };
    let Ok(length) = u64::try_from(size) else { return Err(size) };
    packet.size = u8::try_from(length).map_err(|_| Code::Invalid.status())?.into();
    if position + length > config.len() {
        return Err(Code::EndOfStream.status());
    }
    Ok((length, packet))
}

/// Makes a packet decoder for the buffer of the configuration; null if the configuration is too short or has no buffer.
///
/// # Safety
/// `config` is null or points to a `struct pt_config` with as many bytes as it says. Until the decoder is freed, its
/// buffer is readable, nobody but its callback writes to it, and its callback is null or a function of the header's
/// type, which does not use the decoder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_alloc_decoder(config: *const PtConfig) -> *mut PacketDecoder {
    // SAFETY: by contract.
    let Some(config) = (unsafe { PtConfig::from_user(config) }) else { return ptr::null_mut() };
    // SAFETY: by contract.
    Box::into_raw(Box::new(unsafe { PacketDecoder::new(config) }))
}

/// Frees the decoder.
///
/// # Safety
/// `decoder` is null or from [`pt_pkt_alloc_decoder`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_free_decoder(decoder: *mut PacketDecoder) {
    if !decoder.is_null() {
        // SAFETY: `pt_pkt_alloc_decoder` made it from a box.
        drop(unsafe { Box::from_raw(decoder) });
    }
}

/// Goes to the next PSB.
///
/// # Safety
/// `decoder` is null or from [`pt_pkt_alloc_decoder`], and nobody else uses it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_sync_forward(decoder: *mut PacketDecoder) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_mut() };
    decoder.map_or(Code::Invalid.status(), PacketDecoder::sync_forward)
}

/// Goes to the last PSB before the current packet.
///
/// # Safety
/// As for [`pt_pkt_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_sync_backward(decoder: *mut PacketDecoder) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_mut() };
    decoder.map_or(Code::Invalid.status(), PacketDecoder::sync_backward)
}

/// Goes to `offset`, without looking for a PSB.
///
/// # Safety
/// As for [`pt_pkt_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_sync_set(decoder: *mut PacketDecoder, offset: u64) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    decoder.sync_set(offset)
}

/// Writes the offset of the next packet.
///
/// # Safety
/// As for [`pt_pkt_sync_forward`]; `offset` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_get_offset(decoder: *const PacketDecoder, offset: *mut u64) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_offset(decoder.map(|decoder| decoder.position), offset) }
}

/// Writes the offset of the last synchronisation.
///
/// # Safety
/// As for [`pt_pkt_get_offset`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_get_sync_offset(decoder: *const PacketDecoder, offset: *mut u64) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    // SAFETY: by contract.
    unsafe { write_offset(decoder.map(|decoder| decoder.sync), offset) }
}

/// Returns the decoder's copy of its configuration, which lives as long as the decoder.
///
/// # Safety
/// As for [`pt_pkt_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_get_config(decoder: *const PacketDecoder) -> *const PtConfig {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_ref() };
    decoder.map_or(ptr::null(), |decoder| &raw const decoder.config)
}

/// Reads the next packet, writes as much of it as the caller's structure has, and returns its size in the trace.
///
/// # Safety
/// As for [`pt_pkt_sync_forward`]; `packet` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_next(
    decoder: *mut PacketDecoder,
    packet: *mut PtPacket,
    size: usize,
) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    if packet.is_null() {
        return Code::Invalid.status();
    }
    if size == size_of::<PtPacket>()
        && let Some(next) = decoder.next_common()
    {
        let parts = packet.cast::<u64>();
        // Word by word: reading a whole structure just after writing its fields would stall.
        for (at, part) in next.words().into_iter().enumerate() {
            // SAFETY: the caller's structure has three words.
            let place = unsafe { parts.add(at) };
            // SAFETY: it is one of the three words, and writable.
            unsafe { place.write_unaligned(part) };
        }
        // A packet has at most 255 bytes.
        return next.size as c_int;
    }
    match decoder.next() {
        Ok((decoded, length)) => {
            // SAFETY: the caller's structure has that many bytes.
            unsafe { write_out(&decoded, packet, size) };
            // A packet has at most 255 bytes.
            length as c_int
        }
        Err(status) => status,
    }
}
