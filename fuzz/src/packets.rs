//! Checks the packet layer on arbitrary bytes.

use crate::{decoder_config, reference};
use arbitrary::Unstructured;
use pugmark_decoder_core::{
    config::Config,
    packet::{Context, Packet, Packets},
};

/// Checks that packets follow each other without a gap, that the bytes they emit parse to equal packets, and that after
/// an error the next PSB can be reached.
///
/// # Panics
/// If any of this is wrong.
pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    if let Ok(config) = decoder_config::config(&mut u) {
        walk(u.take_rest(), config);
    }
}

fn walk(trace: &[u8], config: Config<'_>) {
    let mut packets = Packets::with_config(trace, config);
    let mut sync = None;
    loop {
        let failed = until_error(trace, &mut packets);
        let here = usize::try_from(packets.offset()).expect("an offset in the trace");
        let before = packets.clone().sync_backward();
        assert_eq!(before, reference::psb_backward(trace, here).map(|psb| psb as u64));
        // A PSB may be inside the bytes of a bad packet, but it must not be found twice.
        let from = sync.map_or(0, |sync: usize| sync + 1).max(here.saturating_sub(15));
        let expected = reference::psb_forward(trace, from);
        assert_eq!(packets.sync_forward(), expected.map(|psb| psb as u64), "from {from:#x}");
        let Some(psb) = expected.filter(|_| failed) else { return };
        assert!(sync < Some(psb), "{psb:#x} again");
        sync = Some(psb);
    }
}

/// Reads packets up to an error or the end; returns true after an error.
fn until_error(trace: &[u8], packets: &mut Packets<'_>) -> bool {
    let mut steps = 0;
    loop {
        let (before, context) = (packets.offset(), packets.context());
        steps += 1;
        assert!(steps <= trace.len() + 1, "more packets than bytes");
        match packets.next() {
            Some(Ok((offset, packet))) => {
                assert!(offset == before && packets.offset() > before, "{packet:x?} at {offset:#x}");
                again(&packet, packets.config(), context);
            }
            Some(Err(error)) => {
                assert_eq!((error.offset, packets.offset()), (before, before), "{error}");
                assert_eq!(packets.next(), None, "goes on after {error}");
                return true;
            }
            None => {
                assert_eq!(packets.offset(), before);
                return false;
            }
        }
    }
}

/// Checks that a parsed packet emits bytes that parse to an equal packet.
fn again(packet: &Packet, config: &Config<'_>, context: Context) {
    let mut bytes = [0; Packet::MAX_LEN];
    match packet.emit(&mut bytes) {
        Ok(size) => {
            let read = Packet::parse_with(&bytes[..size], config, context);
            assert_eq!(read, Ok(Some((*packet, size))), "{:02x?}", &bytes[..size]);
        }
        Err(error) => assert!(matches!(packet, Packet::Unknown(_)), "{packet:x?}: {error}"),
    }
}
