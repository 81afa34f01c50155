//! Checks that the encoder and the packet layer undo each other.

use crate::{
    decoder_config,
    wire::{self, Places},
};
use arbitrary::{Result, Unstructured};
use pugmark_decoder_core::{
    config::Config,
    last_ip::LastIp,
    packet::{Context, EmitError, Encoder, Packet, Packets},
};

/// Checks that a packet that is emitted parses to an equal packet: alone, cut, and in a row. A packet that is refused
/// must leave the memory unchanged.
///
/// # Panics
/// If a packet differs, or memory has changed.
pub fn check(data: &[u8]) {
    // Running out of input bytes is not an error.
    let _ = write(&mut Unstructured::new(data));
}

fn write(u: &mut Unstructured<'_>) -> Result<()> {
    let config = decoder_config::config(u)?;
    let mut memory = vec![FREE; u.arbitrary::<u16>()?.min(4096).into()];
    let mut encoder = Encoder::with_config(&mut memory, config);
    let mut written = vec![];
    let mut context = Context::OUTSIDE;
    let mut last_ip = LastIp::new();
    let places = Places { base: 0xffff_ffff_8000_0000, len: 0x4000 };
    while !u.is_empty() {
        let packet = wire::packet(u, places)?;
        let offset = encoder.offset();
        let packet = match (packet, u.arbitrary()) {
            (Packet::Tip(_), Ok(true)) => {
                let ip = places.ip(u)?;
                let packet = Packet::Tip(last_ip.clone().compress(ip));
                assert_eq!(encoder.emit_ip(Packet::Tip, ip).is_ok(), encoder.offset() > offset);
                packet
            }
            _ => {
                match encoder.emit(&packet) {
                    Ok(size) => assert_eq!(encoder.offset(), offset + size as u64),
                    Err(EmitError::Full { size, room }) => assert!(room == encoder.room() && room < size),
                    Err(EmitError::Unreadable(_)) => {}
                    Err(error) => panic!("{packet:x?}: {error}"),
                }
                packet
            }
        };
        if encoder.offset() > offset {
            let bytes = &encoder.trace()[usize::try_from(offset).expect("an offset in memory")..];
            alone(&packet, bytes, &config, context);
            written.push((offset, packet));
            context = context.after(&packet);
            match packet {
                Packet::Psb => last_ip.reset(),
                Packet::Tip(ip) | Packet::TipPge(ip) | Packet::TipPgd(ip) | Packet::Fup(ip) => {
                    last_ip.update(ip);
                }
                _ => {}
            }
        }
    }
    let trace = encoder.trace().to_vec();
    assert!(memory[trace.len()..].iter().all(|&byte| byte == FREE), "writes after its end");
    let read: Vec<_> = Packets::with_config(&trace, config).map(core::result::Result::unwrap).collect();
    assert_eq!(read, written);
    Ok(())
}

/// The value of memory that was not written.
const FREE: u8 = 0xa5;

fn alone(packet: &Packet, bytes: &[u8], config: &Config<'_>, context: Context) {
    let read = Packet::parse_with(bytes, config, context);
    assert_eq!(read, Ok(Some((*packet, bytes.len()))), "{bytes:02x?}");
    for cut in 0..bytes.len() {
        let read = Packet::parse_with(&bytes[..cut], config, context);
        assert_eq!(read, Ok(None), "{packet:x?} cut to {cut} bytes");
        let mut small = vec![FREE; cut];
        let room = EmitError::Full { size: packet.len(), room: cut };
        assert_eq!(packet.emit(&mut small), Err(room), "{packet:x?}");
        assert_eq!(small, vec![FREE; cut], "{packet:x?} is half written");
    }
}
