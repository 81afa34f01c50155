//! The packet decoder: `pt_pkt_*`.

use crate::{
    config::PtConfig,
    error::Code,
    fast_packets,
    out::{write_offset, write_out},
    packet::{PtPacket, field, kind},
};
use pugmark_ipt::{Answer, Release, TraceBytes};
use std::{ffi::c_int, ptr};

/// A decoder's packets.
pub(crate) type CallerPackets = pugmark_ipt::PacketDecoder<CallerTrace>;

/// The caller's buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerTrace(PtConfig);

impl CallerTrace {
    /// # Safety
    /// As in [`pt_pkt_alloc_decoder`], as long as the value or a copy of it exists.
    pub(crate) unsafe fn new(config: PtConfig) -> Self {
        Self(config)
    }
}

impl TraceBytes for CallerTrace {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        // SAFETY: by the contract of `new` the buffer is readable, and only the caller's reader of unknown packets
        // writes to it. While that reader runs, no slice exists.
        unsafe { self.0.trace() }
    }

    fn address(&self) -> usize {
        self.0.begin.addr()
    }

    #[cold]
    fn unknown(&self, offset: u64) -> Answer<(PtPacket, u64)> {
        ask(&self.0, offset).map(|(size, packet)| (packet, size))
    }
}

/// `struct pt_packet_decoder`.
#[derive(Debug)]
pub struct PacketDecoder {
    config: PtConfig,
    packets: CallerPackets,
}

impl PacketDecoder {
    /// # Safety
    /// As in [`pt_pkt_alloc_decoder`].
    unsafe fn new(config: PtConfig) -> Self {
        // SAFETY: by contract.
        Self { config, packets: unsafe { packets(config) } }
    }

    /// Returns the next packet, if it is a common one.
    #[inline(always)]
    fn next_common(&mut self) -> Option<PtPacket> {
        let position = self.packets.position()?;
        // A position fits.
        let rest = self.packets.trace().bytes().get(position as usize..);
        let packet = rest.and_then(fast_packets::packet)?;
        self.packets.skip(packet.size.into());
        Some(packet)
    }
}

/// Returns a reader of the buffer's packets, without a position.
///
/// # Safety
/// As in [`pt_pkt_alloc_decoder`], as long as the reader exists.
pub(crate) unsafe fn packets(config: PtConfig) -> CallerPackets {
    // SAFETY: by contract.
    let trace = unsafe { CallerTrace::new(config) };
    CallerPackets::new(trace, config.errata.into(), Release::V2_1)
}

/// Returns the status of a function that answers nothing else.
pub(crate) fn status(answer: Answer<()>) -> c_int {
    answer.err().unwrap_or(0)
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
    decoder.map_or(Code::Invalid.status(), |decoder| status(decoder.packets.sync_forward()))
}

/// Goes to the last PSB before the current packet.
///
/// # Safety
/// As for [`pt_pkt_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_sync_backward(decoder: *mut PacketDecoder) -> c_int {
    // SAFETY: by contract.
    let decoder = unsafe { decoder.as_mut() };
    decoder.map_or(Code::Invalid.status(), |decoder| status(decoder.packets.sync_backward()))
}

/// Goes to `offset`, without looking for a PSB.
///
/// # Safety
/// As for [`pt_pkt_sync_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_pkt_sync_set(decoder: *mut PacketDecoder, offset: u64) -> c_int {
    // SAFETY: by contract.
    let Some(decoder) = (unsafe { decoder.as_mut() }) else { return Code::Invalid.status() };
    status(decoder.packets.sync_set(offset))
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
    unsafe { write_offset(decoder.map(|decoder| decoder.packets.position()), offset) }
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
    unsafe { write_offset(decoder.map(|decoder| decoder.packets.sync_position()), offset) }
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
    match decoder.packets.next() {
        Ok((decoded, length)) => {
            // SAFETY: the caller's structure has that many bytes.
            unsafe { write_out(&decoded, packet, size) };
            // A packet has at most 255 bytes.
            length as c_int
        }
        Err(status) => status,
    }
}
