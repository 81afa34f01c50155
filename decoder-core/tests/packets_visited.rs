//! Packets passed to a sink against packets read one by one: on traces of real processors, on libipt's test vectors,
//! and on damaged copies of both. `PUGMARK_LONG=1` damages ten million.

use pugmark_decoder_core::{
    Error,
    config::Config,
    errata::Errata,
    last_ip::LastIp,
    packet::{Context, Cyc, Ip, IpPacket, Mtc, PSB, Packet, PacketSink, Packets, Tnt, Tsc},
};
use std::{fs, path::Path};

/// A packet with its offset and, if it has an IP, the last IP after it and the address that it stands for.
type Item = (u64, Packet, Option<Option<u64>>);

/// Everything up to the end or an error, the last IP there, and the offset of the next packet.
type Outcome = (Vec<Item>, Option<Error>, LastIp, u64);

/// Reads packets one by one with the parser alone.
fn one_by_one(trace: &[u8], from: usize, config: &Config<'_>, mut last_ip: LastIp) -> Outcome {
    let (mut offset, mut context, mut items) = (from, Context::OUTSIDE, vec![]);
    let error = loop {
        match Packet::parse_with(&trace[offset..], config, context) {
            Ok(Some((packet, size))) => {
                let address = match packet {
                    Packet::Tip(ip) | Packet::TipPge(ip) | Packet::TipPgd(ip) | Packet::Fup(ip) => {
                        Some(last_ip.update(ip))
                    }
                    Packet::Psb => {
                        last_ip = LastIp::new();
                        None
                    }
                    _ => None,
                };
                items.push((offset as u64, packet, address));
                offset += size;
                context = context.after(&packet);
            }
            Ok(None) => break None,
            Err(kind) => break Some(Error { offset: offset as u64, kind }),
        }
    };
    (items, error, last_ip, offset as u64)
}

/// A sink that overrides every method.
#[derive(Default)]
struct Each(Vec<Item>);

impl PacketSink for Each {
    fn packet(&mut self, offset: u64, packet: Packet) {
        let own_method = matches!(
            packet,
            Packet::TntShort(_)
                | Packet::Tip(_)
                | Packet::TipPge(_)
                | Packet::TipPgd(_)
                | Packet::Fup(_)
                | Packet::Cyc(_)
                | Packet::Mtc(_)
                | Packet::Tsc(_)
        );
        assert!(!own_method, "{packet:?} has a method of its own");
        self.0.push((offset, packet, None));
    }

    fn tnt(&mut self, offset: u64, tnt: Tnt) {
        self.0.push((offset, Packet::TntShort(tnt), None));
    }

    fn ip(&mut self, offset: u64, packet: IpPacket, ip: Ip, address: Option<u64>) {
        self.0.push((offset, packet.with(ip), Some(address)));
    }

    fn cyc(&mut self, offset: u64, cyc: Cyc) {
        self.0.push((offset, Packet::Cyc(cyc), None));
    }

    fn mtc(&mut self, offset: u64, mtc: Mtc) {
        self.0.push((offset, Packet::Mtc(mtc), None));
    }

    fn tsc(&mut self, offset: u64, tsc: Tsc) {
        self.0.push((offset, Packet::Tsc(tsc), None));
    }
}

/// A sink that overrides no optional method.
#[derive(Default)]
struct Whole(Vec<(u64, Packet)>);

impl PacketSink for Whole {
    fn packet(&mut self, offset: u64, packet: Packet) {
        self.0.push((offset, packet));
    }
}

/// Compares from `from` on, and after each error from the next PSB on. Returns the numbers of packets and errors.
fn compare(trace: &[u8], from: usize, config: Config<'_>) -> (usize, usize) {
    let at = |offset: usize| {
        let mut packets = Packets::with_config(trace, config);
        packets.set_offset(offset as u64);
        packets
    };
    // As if earlier packets had been read.
    let mut last_ip = LastIp::new();
    last_ip.update(Ip::Full(0x1122_3344_5566_7788));
    let (mut packets, mut simple, mut start, mut counts) = (at(from), at(from), from, (0, 0));
    loop {
        let expected = one_by_one(trace, start, &config, last_ip);
        let mut each = Each::default();
        let error = packets.visit(&mut last_ip, &mut each).err();
        let visited = (each.0, error, last_ip, packets.offset());
        assert_eq!(visited, expected, "{config:?} {trace:02x?}");
        let mut whole = Whole::default();
        assert_eq!(simple.visit(&mut LastIp::new(), &mut whole).err(), error);
        assert!(whole.0.iter().copied().eq(expected.0.iter().map(|(offset, packet, _)| (*offset, *packet))));
        counts.0 += expected.0.len();
        counts.1 += usize::from(error.is_some());
        assert_eq!(packets.visit(&mut last_ip, &mut Whole::default()), Ok(()), "goes on after an error");
        let Some(psb) = packets.sync_forward() else { return counts };
        simple.sync_at(psb);
        start = psb as usize;
    }
}

/// Returns the traces below `folder`, by their files' extensions.
fn traces() -> Vec<Vec<u8>> {
    let mut traces = vec![];
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors")];
    while let Some(folder) = folders.pop() {
        let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some("pt" | "trace" | "intelpt_trace") => traces.push(fs::read(path).unwrap()),
                _ if path.file_name().is_some_and(|name| name == "pt.bin") => {
                    traces.push(fs::read(path).unwrap());
                }
                _ => {}
            }
        }
    }
    traces
}

fn configs() -> [Config<'static>; 2] {
    let errata = Errata { skd007: true, skz84: true, ..Errata::NONE };
    [Config::new(), Config { errata, ..Config::new() }]
}

#[test]
fn a_sink_gets_the_packets_of_all_traces_as_they_are_read_one_by_one() {
    let (mut packets, mut errors, traces) = (0, 0, traces());
    for trace in &traces {
        for config in configs() {
            let counts = compare(trace, 0, config);
            (packets, errors) = (packets + counts.0, errors + counts.1);
        }
    }
    println!("{} traces, {packets} packets, {errors} errors", traces.len());
    assert!(traces.len() > 50 && packets > 30_000, "{} traces, {packets} packets", traces.len());
}

#[test]
fn a_sink_gets_the_packets_of_damaged_traces_as_they_are_read_one_by_one() {
    let long = std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1");
    let rounds = if long { 10_000_000 } else { 250_000 };
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below
    };
    /// The beginnings of packets that are rare in traces, or affect how later bytes are read.
    const RARE: [&[u8]; 10] = [
        &PSB,
        &[0x02, 0x63, 0x04],
        &[0x02, 0x63, 0x84],
        &[0x02, 0x33],
        &[0x07, 0x02, 0xf3],
        &[0x02, 0xf3],
        &[0x02, 0xa3],
        &[0x0d],
        &[0xad],
        &[0x02, 0x73, 0xff, 0xff, 0xff],
    ];
    let (traces, configs, mut totals) = (traces(), configs(), (0, 0));
    for _ in 0..rounds {
        let trace = &traces[random(traces.len())];
        let begin = random(trace.len().max(1));
        let mut damaged = trace[begin..trace.len().min(begin + 16 + random(150))].to_vec();
        for _ in 0..random(4) {
            if damaged.is_empty() {
                break;
            }
            let place = random(damaged.len());
            match random(3) {
                0 => damaged[place] = random(256) as u8,
                1 => drop(damaged.splice(place..place, RARE[random(RARE.len())].iter().copied())),
                _ => drop(damaged.splice(place..place + random(damaged.len() - place + 1), [])),
            }
        }
        let from = random(damaged.len() + 1).min(random(8));
        let counts = compare(&damaged, from, configs[random(configs.len())]);
        totals = (totals.0 + counts.0, totals.1 + counts.1);
    }
    println!("{rounds} damaged traces, {} packets, {} errors", totals.0, totals.1);
    assert!(totals.0 > 5 * rounds && totals.1 > rounds / 20, "{totals:?}");
}
