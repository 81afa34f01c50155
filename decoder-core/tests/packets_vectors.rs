//! libipt's test vectors: each packet of each trace against ptdump's line for it.

use pugmark_decoder_core::config::{Config, Dialect};
use pugmark_decoder_core::errata::{Cpu, Errata};
use pugmark_decoder_core::packet::{Cfe, Ip, ModeExec, ModeTsx, Packet, Packets, Ptw, PtwPayload, Pwrx, Tnt};
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn packets_are_those_that_ptdump_shows() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/ptt/examples");
    let mut checked = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.to_str().is_some_and(|path| path.ends_with(".cmd.json")) {
            checked += check(&path);
        }
    }
    println!("{checked} packets compared");
    assert!(checked > 500, "only {checked} packets compared");
}

/// Compares one vector and returns the number of its packets.
fn check(command: &Path) -> usize {
    let vector: serde_json::Value = serde_json::from_slice(&fs::read(command).unwrap()).unwrap();
    let name = vector["name"].as_str().unwrap();
    let ptdump = &vector["tools"]["ptdump"];
    if ptdump.is_null() {
        return 0;
    }
    let options: Vec<&str> =
        ptdump["options"].as_array().unwrap().iter().map(|o| o.as_str().unwrap()).collect();
    let file = |field: &serde_json::Value| -> PathBuf { command.with_file_name(field.as_str().unwrap()) };
    let trace = fs::read(file(&vector["pt"])).unwrap();
    let expected = String::from_utf8_lossy(&fs::read(file(&ptdump["expect"])).unwrap()).into_owned();

    // The expected output of a vector is the same for all of its processors.
    let cpu = vector["cpus"].as_array().and_then(|cpus| cpus.first()).and_then(|cpu| cpu.as_str());
    let errata = cpu.and_then(|cpu| Errata::of(parse_cpu(cpu)).ok()).unwrap_or_default();

    let mut lines = expected.lines().filter(|line| is_packet_line(line, &options)).map(str::trim_end);
    let mut count = 0;
    for (offset, bytes, packet) in packets(&trace, errata, options.contains(&"--no-sync")) {
        if is_hidden(&packet, &options) {
            continue;
        }
        let mut columns = Vec::new();
        if !options.contains(&"--no-offset") {
            columns.push(format!("{offset:016x}"));
        }
        if options.contains(&"--raw") {
            columns.push(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        let (opcode, payload) = describe(&packet);
        columns.extend([opcode.to_string(), payload]);
        let expected = normal(lines.next().unwrap_or_else(|| panic!("{name}: no line for {packet:?}")));
        let have = normal(&columns.join(" "));
        let rest =
            expected.strip_prefix(&have).unwrap_or_else(|| panic!("{name}: {have:?}, not {expected:?}"));
        assert!(rest.is_empty() || rest.starts_with(' '), "{name}: {have:?}, not {expected:?}");
        let tracked = ["ip ", "em ", "cr3 ", "vmcs ", "tsc ", "fcr ", "type "];
        let rest = rest.trim();
        assert!(rest.is_empty() || tracked.iter().any(|id| rest.starts_with(id)), "{name}: {rest:?}");
        count += 1;
    }
    assert_eq!(lines.next(), None, "{name}: a line without its packet");
    count
}

/// Returns all packets of a trace that is read from PSB to PSB, with their offsets and bytes.
fn packets(trace: &[u8], errata: Errata, at_once: bool) -> Vec<(u64, &[u8], Packet)> {
    let mut packets =
        Packets::with_config(trace, Config { errata, dialect: Dialect::Libipt, ..Config::new() });
    let mut found = Vec::new();
    let mut synced = at_once || packets.sync_forward().is_some();
    while synced {
        while let Some(Ok((offset, packet))) = packets.next() {
            found.push((offset, &trace[offset as usize..packets.offset() as usize], packet));
        }
        // At an error or at the end; there is no further PSB after the end.
        synced = packets.sync_forward().is_some();
    }
    found
}

fn parse_cpu(cpu: &str) -> Cpu {
    let mut numbers = cpu.split('/').map(|number| number.parse().unwrap());
    let mut next = || numbers.next().unwrap_or(0);
    Cpu::intel(next(), next() as u8, next() as u8)
}

/// Returns true if a line of the output is a packet; others are diagnostics and side-band records.
fn is_packet_line(line: &str, options: &[&str]) -> bool {
    let first = line.split_whitespace().next().unwrap_or("");
    let is_offset = first.len() == 16 && first.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_record = line.contains("PERF_RECORD") || line.starts_with("UNKNOWN") || line.starts_with('[');
    !is_record && !first.is_empty() && (is_offset || options.contains(&"--no-offset"))
}

fn is_hidden(packet: &Packet, options: &[&str]) -> bool {
    let hides = |option| options.contains(&option);
    match packet {
        Packet::Pad => hides("--no-pad"),
        Packet::Cyc(_) => hides("--no-cyc") || hides("--no-timing"),
        Packet::Tsc(_) | Packet::Cbr(_) | Packet::Tma(_) | Packet::Mtc(_) => hides("--no-timing"),
        _ => hides("--quiet"),
    }
}

fn normal(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn joined(parts: &[(bool, &str)]) -> String {
    parts.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

fn describe(packet: &Packet) -> (&'static str, String) {
    let plain = String::new();
    match *packet {
        Packet::Pad => ("pad", plain),
        Packet::Psb => ("psb", plain),
        Packet::PsbEnd => ("psbend", plain),
        Packet::Ovf => ("ovf", plain),
        Packet::TraceStop => ("stop", plain),
        Packet::TntShort(tnt) => ("tnt.8", outcomes(tnt)),
        Packet::TntLong(tnt) => ("tnt.64", outcomes(tnt)),
        Packet::Tip(ip) => ("tip", address(ip)),
        Packet::TipPge(ip) => ("tip.pge", address(ip)),
        Packet::TipPgd(ip) => ("tip.pgd", address(ip)),
        Packet::Fup(ip) => ("fup", address(ip)),
        Packet::ModeExec(ModeExec { cs_l, cs_d, iflag }) => {
            ("mode.exec", joined(&[(cs_d, "cs.d"), (cs_l, "cs.l"), (iflag, "if")]))
        }
        Packet::ModeTsx(ModeTsx { in_tx, abort }) => {
            ("mode.tsx", joined(&[(in_tx, "intx"), (abort, "abrt")]))
        }
        Packet::Pip(pip) => ("pip", format!("{:x}{}", pip.cr3, if pip.non_root { ", nr" } else { "" })),
        Packet::Vmcs(vmcs) => ("vmcs", format!("{:x}", vmcs.base)),
        Packet::Tsc(tsc) => ("tsc", format!("{:x}", tsc.tsc)),
        Packet::Cbr(cbr) => ("cbr", format!("{:x}", cbr.ratio)),
        Packet::Tma(tma) => ("tma", format!("{:x}, {:x}", tma.ctc, tma.fc)),
        Packet::DamagedTma(_) => ("<invalid>", plain),
        Packet::Mtc(mtc) => ("mtc", format!("{:x}", mtc.ctc)),
        Packet::Cyc(cyc) => ("cyc", format!("{:x}", cyc.cycles)),
        Packet::Mnt(mnt) => ("mnt", format!("{:x}", mnt.payload)),
        Packet::Exstop(exstop) => ("exstop", joined(&[(exstop.ip, "ip")])),
        Packet::Mwait(mwait) => ("mwait", format!("{:08x}, {:08x}", mwait.hints, mwait.ext)),
        Packet::Pwre(pwre) => {
            let hw = if pwre.hw { ", hw" } else { "" };
            ("pwre", format!("c{}.{}{hw}", (pwre.state + 1) & 15, (pwre.sub_state + 1) & 15))
        }
        Packet::Pwrx(Pwrx { last, deepest, interrupt, store, autonomous }) => {
            let reason = match (interrupt, store, autonomous) {
                (true, false, false) => "int",
                (false, true, false) => "st",
                (false, false, true) => "hw",
                _ => "bad",
            };
            ("pwrx", format!("{reason}: c{}, c{}", (last + 1) & 15, (deepest + 1) & 15))
        }
        Packet::Ptw(Ptw { payload, ip }) => {
            let (size, operand) = match payload {
                PtwPayload::Four(operand) => (0, u64::from(operand)),
                PtwPayload::Eight(operand) => (1, operand),
            };
            ("ptw", format!("{size:x}: {operand:x}{}", if ip { ", ip" } else { "" }))
        }
        Packet::Cfe(Cfe { kind, vector, ip }) => {
            let vector = match kind {
                1 | 9 | 12 | 14 => format!(": {vector}"),
                5 => format!(": {vector:x}"),
                _ => String::new(),
            };
            ("cfe", format!("{kind}{vector}{}", if ip { ", ip" } else { "" }))
        }
        Packet::Evd(evd) => ("evd", format!("{}: {:x}", evd.kind, evd.payload)),
        Packet::Trig(trig) => {
            let icnt = trig.icnt.map(|icnt| format!("icnt: {icnt}"));
            let trbv = format!("{:02x}", trig.trbv);
            let parts = [
                (true, trbv.as_str()),
                (trig.ip, "ip"),
                (trig.mult, "mult"),
                (icnt.is_some(), icnt.as_deref().unwrap_or("")),
            ];
            ("trig", joined(&parts))
        }
        Packet::Bbp(_) | Packet::Bip(_) | Packet::Bep(_) | Packet::Unknown(_) => {
            panic!("libipt has no {packet:?}")
        }
    }
}

fn outcomes(tnt: Tnt) -> String {
    tnt.outcomes().map(|taken| if taken { '!' } else { '.' }).collect()
}

fn address(ip: Ip) -> String {
    let known = match ip {
        Ip::Suppressed => String::new(),
        Ip::Update16(low) => format!("{low:04x}"),
        Ip::Update32(low) => format!("{low:08x}"),
        Ip::Update48(low) => format!("{low:012x}"),
        Ip::SignExtend48(low) => format!("{:016x}", (low << 16) as i64 >> 16),
        Ip::Full(ip) => format!("{ip:016x}"),
    };
    format!("{}: {known:?>16}", ip.ip_bytes())
}
