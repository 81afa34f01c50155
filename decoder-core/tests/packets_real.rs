//! Traces of real processors: every byte after the first PSB belongs to a packet, and emitting the packets reproduces
//! the bytes.

use pugmark_decoder_core::last_ip::{LastIp, NoIp};
use pugmark_decoder_core::packet::{Packet, Packets};
use std::fs;
use std::path::Path;

/// The paths of the traces in the folder of real traces, and true if the processor compresses IPs.
const TRACES: &[(&str, bool)] = &[
    ("intelpt-trace/3842849.trace", false),
    ("intelpt-trace-multi-file/multi-file.trace", false),
    ("intelpt-multi-core-trace/cores/45.intelpt_trace", true),
    ("intelpt-multi-core-trace/cores/51.intelpt_trace", true),
    ("dynamorio/pt.bin", true),
];

#[test]
fn traces_parse_without_error_and_re_emit_to_the_same_bytes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/real");
    for (name, _) in TRACES {
        let trace = fs::read(folder.join(name)).unwrap();
        let mut packets = Packets::new(&trace);
        let start = packets.sync_forward().unwrap_or_else(|| panic!("{name}: no PSB")) as usize;
        let mut emitted = Vec::new();
        let mut count = 0;
        for packet in &mut packets {
            let (offset, packet) = packet.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(offset as usize, start + emitted.len(), "{name}");
            let mut bytes = [0; Packet::MAX_LEN];
            let size = packet.emit(&mut bytes).unwrap();
            emitted.extend_from_slice(&bytes[..size]);
            count += 1;
        }
        let end = packets.offset() as usize;
        println!("{name}: {count} packets from {start:#x} to {end:#x} of {:#x}", trace.len());
        assert!(trace.len() - end < Packet::MAX_LEN, "{name}: stops at {end:#x}");
        assert_eq!(emitted, trace[start..end], "{name}");
    }
}

/// Checks IPs: model 6/85 compresses those of TIP, TIP.PGE and TIP.PGD except the first one after a PSB; model 6/79
/// sends every IP whole.
#[test]
fn ips_have_the_forms_that_last_ip_gives_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/real");
    for &(name, compresses) in TRACES {
        let trace = fs::read(folder.join(name)).unwrap();
        let mut packets = Packets::new(&trace);
        packets.sync_forward();
        let (mut decoder, mut processor, mut count) = (LastIp::new(), LastIp::new(), [0, 0]);
        for packet in packets {
            let (offset, packet) = packet.unwrap();
            let (ip, is_fup) = match packet {
                Packet::Psb => {
                    (decoder, processor) = (LastIp::new(), LastIp::new());
                    continue;
                }
                Packet::Fup(ip) => (ip, true),
                Packet::Tip(ip) | Packet::TipPge(ip) | Packet::TipPgd(ip) => (ip, false),
                _ => continue,
            };
            let is_first = decoder.get() == Err(NoIp::Never);
            let Some(address) = decoder.update(ip) else { continue };
            let whole = !compresses || is_fup || is_first;
            let form = if whole { processor.whole(address) } else { processor.compress(address) };
            assert_eq!(form, ip, "{name}: {address:#x} at {offset:#x}");
            count[usize::from(whole)] += 1;
        }
        println!("{name}: {} compressed and {} whole IPs", count[0], count[1]);
        assert!(count[1] > 0, "{name}");
    }
}
