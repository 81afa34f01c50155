//! The packet layer, on bytes as they are.

use crate::{asked, reference};
use arbitrary::Unstructured;
use pugmark_decoder_core::{
    config::{Config, Dialect},
    packet::{Context, Packet, Packets},
};

/// Packets follow each other without a gap, parse again from what they emit, and errors leave the next PSB in reach.
///
/// # Panics
/// When it does not hold.
pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    if let Ok(config) = asked::config(&mut u) {
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
        // A PSB may lie in what a bad packet seemed to hold, but is not found a second time.
        let from = sync.map_or(0, |sync: usize| sync + 1).max(here.saturating_sub(15));
        let expected = reference::psb_forward(trace, from);
        assert_eq!(packets.sync_forward(), expected.map(|psb| psb as u64), "from {from:#x}");
        let Some(psb) = expected.filter(|_| failed) else { return };
        assert!(sync < Some(psb), "{psb:#x} again");
        sync = Some(psb);
    }
}

/// Whether an error came.
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
                assert_eq!(packets.next(), None, "goes on behind {error}");
                return true;
            }
            None => {
                assert_eq!(packets.offset(), before);
                return false;
            }
        }
    }
}

/// What was parsed emits bytes that parse to the same. Emission follows the manual.
fn again(packet: &Packet, config: &Config<'_>, context: Context) {
    let mut bytes = [0; Packet::MAX_LEN];
    match packet.emit(&mut bytes) {
        Ok(size) => {
            let config = Config { dialect: Dialect::Manual, ..*config };
            let read = Packet::parse_with(&bytes[..size], &config, context);
            assert_eq!(read, Ok(Some((*packet, size))), "{:02x?}", &bytes[..size]);
        }
        Err(error) => assert!(matches!(packet, Packet::Unknown(_)), "{packet:x?}: {error}"),
    }
}
