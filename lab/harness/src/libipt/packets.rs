//! Runs libipt's packet decoder.

use super::{
    DecodeError,
    binding::{ERROR_END_OF_STREAM, Library, Packet},
};

pub(super) fn packets(libipt: &Library, trace: &[u8]) -> Option<(usize, Option<DecodeError>)> {
    let config = libipt.config(None, trace);
    // SAFETY: libipt copies the configuration and only reads the trace, which outlives the decoder.
    let decoder = unsafe { (libipt.pt_pkt_alloc_decoder)(&raw const config) };
    if decoder.is_null() {
        return None;
    }
    let mut packet = Packet::default();
    let mut count = 0;
    // SAFETY: the decoder is allocated.
    let mut status = unsafe { (libipt.pt_pkt_sync_forward)(decoder) };
    while status >= 0 {
        // SAFETY: the decoder is allocated, and the packet has the given size.
        status = unsafe { (libipt.pt_pkt_next)(decoder, &raw mut packet, size_of::<Packet>()) };
        count += usize::from(status >= 0);
    }
    let mut offset = 0;
    // SAFETY: the decoder is allocated; it writes one number.
    unsafe { (libipt.pt_pkt_get_offset)(decoder, &raw mut offset) };
    // SAFETY: the decoder was allocated and is not used any more.
    unsafe { (libipt.pt_pkt_free_decoder)(decoder) };
    let error = DecodeError { offset, after: count, text: libipt.error_text(status) };
    Some((count, (status != -ERROR_END_OF_STREAM).then_some(error)))
}
