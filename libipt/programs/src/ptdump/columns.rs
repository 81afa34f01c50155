//! Formats the columns of a packet's line that depend on the packet alone.

use super::line::Line;
use pugmark_decoder_core::packet::{Cfe, Ip, ModeExec, Packet, Pwrx, Tnt};
use pugmark_decoder_core::packet::{Ptw, PtwPayload, Trig};

/// Fills in the columns that depend only on the packet.
pub(super) fn describe(packet: &Packet, exec_mode: bool, line: &mut Line) {
    let (opcode, payload) = opcode_and_payload(packet);
    line.opcode = opcode;
    line.payload = payload;
    line.tracking = match packet {
        Packet::ModeExec(mode) if exec_mode => Some(("em", mode_name(mode).into())),
        Packet::Pip(pip) => Some(("cr3", format!("{:016x}", pip.cr3))),
        Packet::Vmcs(vmcs) => Some(("vmcs", format!("{:016x}", vmcs.base))),
        Packet::Cfe(cfe) => Some(("type", cfe_name(cfe.kind).into())),
        Packet::Evd(evd) => Some(("type", evd_name(evd.kind).into())),
        _ => None,
    };
}

fn opcode_and_payload(packet: &Packet) -> (&'static str, String) {
    let none = String::new();
    match *packet {
        Packet::Pad => ("pad", none),
        Packet::Psb => ("psb", none),
        Packet::PsbEnd => ("psbend", none),
        Packet::Ovf => ("ovf", none),
        Packet::TraceStop => ("stop", none),
        Packet::TntShort(tnt) => ("tnt.8", outcomes(tnt)),
        Packet::TntLong(tnt) => ("tnt.64", outcomes(tnt)),
        Packet::Tip(ip) => ("tip", address(ip)),
        Packet::TipPge(ip) => ("tip.pge", address(ip)),
        Packet::TipPgd(ip) => ("tip.pgd", address(ip)),
        Packet::Fup(ip) => ("fup", address(ip)),
        Packet::ModeExec(mode) => {
            ("mode.exec", flags("", [(mode.cs_d, "cs.d"), (mode.cs_l, "cs.l"), (mode.iflag, "if")]))
        }
        Packet::ModeTsx(mode) => ("mode.tsx", flags("", [(mode.in_tx, "intx"), (mode.abort, "abrt")])),
        Packet::Pip(pip) => ("pip", flags(&format!("{:x}", pip.cr3), [(pip.non_root, "nr")])),
        Packet::Vmcs(vmcs) => ("vmcs", format!("{:x}", vmcs.base)),
        Packet::Tsc(tsc) => ("tsc", format!("{:x}", tsc.tsc)),
        Packet::Cbr(cbr) => ("cbr", format!("{:x}", cbr.ratio)),
        Packet::Tma(tma) => ("tma", format!("{:x}, {:x}", tma.ctc, tma.fc)),
        Packet::DamagedTma(_) => ("<invalid>", none),
        Packet::Mtc(mtc) => ("mtc", format!("{:x}", mtc.ctc)),
        Packet::Cyc(cyc) => ("cyc", format!("{:x}", cyc.cycles)),
        Packet::Mnt(mnt) => ("mnt", format!("{:x}", mnt.payload)),
        Packet::Exstop(exstop) => ("exstop", flags("", [(exstop.ip, "ip")])),
        Packet::Mwait(mwait) => ("mwait", format!("{:08x}, {:08x}", mwait.hints, mwait.ext)),
        Packet::Pwre(pwre) => {
            let state = format!("c{}.{}", c_state(pwre.state), c_state(pwre.sub_state));
            ("pwre", flags(&state, [(pwre.hw, "hw")]))
        }
        Packet::Pwrx(pwrx) => {
            ("pwrx", format!("{}: c{}, c{}", wake(&pwrx), c_state(pwrx.last), c_state(pwrx.deepest)))
        }
        Packet::Ptw(ptw) => ("ptw", ptwrite(ptw)),
        Packet::Cfe(cfe) => ("cfe", event(cfe)),
        Packet::Evd(evd) => ("evd", format!("{}: {:x}", evd.kind, evd.payload)),
        Packet::Trig(trig) => ("trig", trigger(trig)),
        // libipt does not read these packets; the names are the manual's.
        Packet::Bbp(bbp) => ("bbp", format!("{:x}", bbp.kind)),
        Packet::Bip(bip) => ("bip", format!("{:x}", bip.id)),
        Packet::Bep(bep) => ("bep", flags("", [(bep.ip, "ip")])),
        Packet::Unknown(_) => ("unknown", none),
    }
}

/// Returns `first` and the names whose flag is set, separated by commas.
fn flags<const N: usize>(first: &str, names: [(bool, &str); N]) -> String {
    let set = names.iter().filter(|(set, _)| *set).map(|(_, name)| *name);
    let first = (!first.is_empty()).then_some(first);
    first.into_iter().chain(set).collect::<Vec<_>>().join(", ")
}

/// Formats the branch outcomes of a TNT packet, the oldest first.
fn outcomes(tnt: Tnt) -> String {
    tnt.outcomes().map(|taken| if taken { '!' } else { '.' }).collect()
}

/// Formats the IP bytes of a packet. Digits that the packet does not hold are question marks.
fn address(ip: Ip) -> String {
    let known = match ip {
        Ip::Suppressed => String::new(),
        Ip::Update16(low) => format!("{low:04x}"),
        Ip::Update32(low) => format!("{low:08x}"),
        Ip::Update48(low) => format!("{low:012x}"),
        Ip::SignExtend48(low) => format!("{:016x}", (low << 16).cast_signed() >> 16),
        Ip::Full(ip) => format!("{ip:016x}"),
    };
    format!("{:x}: {known:?>16}", ip.ip_bytes())
}

/// Returns the number of a C-state, which packets encode as 0 for C1 and so on, and as 15 for C0.
fn c_state(state: u8) -> u8 {
    (state + 1) & 15
}

fn wake(pwrx: &Pwrx) -> &'static str {
    match (pwrx.interrupt, pwrx.store, pwrx.autonomous) {
        (true, false, false) => "int",
        (false, true, false) => " st",
        (false, false, true) => " hw",
        _ => "bad",
    }
}

fn ptwrite(ptw: Ptw) -> String {
    let operand = match ptw.payload {
        PtwPayload::Four(operand) => format!("0: {operand:x}"),
        PtwPayload::Eight(operand) => format!("1: {operand:x}"),
    };
    flags(&operand, [(ptw.ip, "ip")])
}

fn event(cfe: Cfe) -> String {
    let event = match cfe.kind {
        1 | 9 | 12 | 14 => format!("{}: {}", cfe.kind, cfe.vector),
        5 => format!("{}: {:x}", cfe.kind, cfe.vector),
        kind => kind.to_string(),
    };
    flags(&event, [(cfe.ip, "ip")])
}

fn trigger(trig: Trig) -> String {
    let icnt = trig.icnt.map(|icnt| format!("icnt: {icnt}"));
    let icnt = (icnt.is_some(), icnt.as_deref().unwrap_or_default());
    flags(&format!("{:02x}", trig.trbv), [(trig.ip, "ip"), (trig.mult, "mult"), icnt])
}

fn mode_name(mode: &ModeExec) -> &'static str {
    match (mode.cs_l, mode.cs_d) {
        (true, false) => "64-bit",
        (false, true) => "32-bit",
        (false, false) => "16-bit",
        (true, true) => "unknown",
    }
}

fn cfe_name(kind: u8) -> &'static str {
    match kind {
        1 => "intr",
        2 => "iret",
        3 => "smi",
        4 => "rsm",
        5 => "sipi",
        6 => "init",
        7 => "vmentry",
        8 => "vmexit",
        9 => "vmexit_intr",
        10 => "shutdown",
        12 => "uintr",
        13 => "uiret",
        14 => "swintr",
        15 => "syscall",
        _ => "unknown",
    }
}

fn evd_name(kind: u8) -> &'static str {
    match kind {
        0 => "cr2",
        1 => "vmxq",
        2 => "vmxr",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::packet::{Evd, Pwre};

    fn shown(packet: Packet) -> (String, Option<(&'static str, String)>) {
        let mut line = Line::default();
        describe(&packet, true, &mut line);
        (line.payload, line.tracking)
    }

    #[test]
    fn shows_what_test_vectors_have_few_of() {
        let pwrx = |interrupt, store, autonomous| Pwrx { last: 15, deepest: 0, interrupt, store, autonomous };
        let cfe = |kind, ip| Packet::Cfe(Cfe { kind, vector: 0x20, ip });
        let ty = |name: &str| Some(("type", name.to_string()));
        for (packet, payload, tracking) in [
            (Packet::Pwrx(pwrx(false, false, false)), "bad: c0, c1", None),
            (Packet::Pwrx(pwrx(true, true, false)), "bad: c0, c1", None),
            (Packet::Pwrx(pwrx(false, true, false)), " st: c0, c1", None),
            (Packet::Pwre(Pwre { state: 14, sub_state: 3, hw: true }), "c15.4, hw", None),
            (cfe(5, true), "5: 20, ip", ty("sipi")),
            (cfe(9, false), "9: 32", ty("vmexit_intr")),
            (cfe(14, true), "14: 32, ip", ty("swintr")),
            (cfe(11, false), "11", ty("unknown")),
            (cfe(15, false), "15", ty("syscall")),
            (Packet::Evd(Evd { kind: 0, payload: 0xabc }), "0: abc", ty("cr2")),
            (Packet::Evd(Evd { kind: 31, payload: 0 }), "31: 0", ty("unknown")),
            (
                Packet::ModeExec(ModeExec { cs_l: true, cs_d: true, iflag: false }),
                "cs.d, cs.l",
                Some(("em", "unknown".into())),
            ),
        ] {
            assert_eq!(shown(packet), (payload.into(), tracking), "{packet:?}");
        }
    }
}
