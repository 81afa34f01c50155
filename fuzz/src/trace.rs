//! Traces made of packets, with arbitrary bytes between some of them.

use crate::wire::{self, Places};
use arbitrary::{Result, Unstructured};
use pugmark_decoder_core::packet::{Ip, ModeExec, Packet};

/// Maximum length of a trace; longer ones only take more time.
const LONGEST: usize = 1024;

/// Makes a trace, usually with a PSB+ in front that lets a decoder start in the code.
///
/// # Errors
/// If there are not enough bytes to choose with.
pub fn made(u: &mut Unstructured<'_>, places: Places) -> Result<Vec<u8>> {
    let mut trace = vec![];
    if !u.ratio(1, 16)? {
        start(&mut trace, places.base);
    }
    // Running out of input bytes ends the trace.
    while !u.is_empty() && trace.len() < LONGEST && piece(u, &mut trace, places).is_ok() {}
    Ok(trace)
}

fn piece(u: &mut Unstructured<'_>, trace: &mut Vec<u8>, places: Places) -> Result<()> {
    match u.int_in_range(0..=31)? {
        0 => trace.extend(u.arbitrary::<[u8; 4]>()?),
        1 => start(trace, places.ip(u)?),
        // The most frequent packets of a trace.
        2..=8 => put(trace, &Packet::Tip(Ip::Update16(places.ip(u)? & 0xffff))),
        9..=11 => {
            put(trace, &Packet::Fup(Ip::Update16(places.ip(u)? & 0xffff)));
            let to = Ip::Update16(places.ip(u)? & 0xffff);
            put(trace, &if u.arbitrary()? { Packet::Tip(to) } else { Packet::TipPgd(to) });
        }
        12 => trace.truncate(trace.len() - u.int_in_range(0..=trace.len().min(8))?),
        _ => put(trace, &wire::packet(u, places)?),
    }
    Ok(())
}

/// Writes a PSB+ with 64-bit mode and an address.
fn start(trace: &mut Vec<u8>, ip: u64) {
    let long = ModeExec { cs_l: true, cs_d: false, iflag: false };
    for packet in [Packet::Psb, Packet::ModeExec(long), Packet::Fup(Ip::Full(ip)), Packet::PsbEnd] {
        put(trace, &packet);
    }
}

fn put(trace: &mut Vec<u8>, packet: &Packet) {
    let mut bytes = [0; Packet::MAX_LEN];
    let size = packet.emit(&mut bytes).expect("a packet fits");
    trace.extend(&bytes[..size]);
}

/// Changes, drops, repeats and reorders bytes by the input, until the input ends.
///
/// # Errors
/// Only at the end of the input, which callers can ignore.
pub fn damage(u: &mut Unstructured<'_>, trace: &mut Vec<u8>, places: Places) -> Result<()> {
    while !u.is_empty() && !trace.is_empty() {
        let at = u.int_in_range(0..=trace.len() - 1)?;
        let end = trace.len().min(at + usize::from(u.int_in_range(1_u8..=32)?));
        match u.int_in_range(0..=6)? {
            0 => trace[at] ^= 1 << u.int_in_range(0..=7)?,
            1 => trace[at] = u.arbitrary()?,
            2 => drop(trace.drain(at..end)),
            3 => trace.extend_from_within(at..end),
            4 => trace.truncate(end),
            5 => {
                let mut packet = vec![];
                put(&mut packet, &wire::packet(u, places)?);
                trace.splice(at..at, packet);
            }
            _ => trace[at..end].reverse(),
        }
    }
    Ok(())
}
