//! Runs libipt's packet decoder.

use super::{
    DecodeError,
    library::{ERROR_END_OF_STREAM, Library, Packet},
};

pub(super) fn packets(libipt: &Library, trace: &[u8]) -> Option<(usize, Option<DecodeError>)> {
    let config = libipt.config(None, trace);
    // SAFETY: libipt copies the configuration and only reads the trace, which outlives the decoder.
    let decoder = unsafe { (libipt.packets_alloc)(&raw const config) }?;
    let mut packet = Packet::default();
    let mut count = 0;
    // SAFETY: the decoder is allocated.
    let mut status = unsafe { (libipt.packets_sync_forward)(decoder) };
    while status >= 0 {
        // SAFETY: the decoder is allocated, and the packet has the given size.
        status = unsafe { (libipt.packets_next)(decoder, &raw mut packet, size_of::<Packet>()) };
        count += usize::from(status >= 0);
    }
    let mut offset = 0;
    // SAFETY: the decoder is allocated; it writes one number.
    unsafe { (libipt.packets_get_offset)(decoder, &raw mut offset) };
    // SAFETY: the decoder was allocated and is not used any more.
    unsafe { (libipt.packets_free)(decoder) };
    let error = DecodeError { offset, after: count, text: libipt.error_text(status) };
    Some((count, (status != -ERROR_END_OF_STREAM).then_some(error)))
}
