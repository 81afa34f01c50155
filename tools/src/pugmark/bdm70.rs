//! Recognises errors that erratum BDM70 explains, which nearly every trace of a real processor has.

use super::totals::TraceError;
use pugmark_decoder_core::{
    config::Config,
    packet::{Packet, Packets},
    sync,
};

/// The name of the erratum.
pub(super) const NAME: &str = "BDM70";

/// The advice to the user about such an error.
pub(super) const ADVICE: &str = "\
    erratum BDM70 (also called SKD024, SKL021, KBL021) explains errors of this kind: name the traced processor with \
    --cpu (--cpu list prints the names), or use --errata bdm70";

/// Marks the errors that BDM70 explains, unless the configuration already works around the erratum.
pub(super) fn mark(trace: &[u8], config: Config<'_>, problems: &mut [TraceError]) {
    if config.errata.bdm70 {
        return;
    }
    for problem in problems.iter_mut() {
        if explains(trace, config, problem.offset) {
            (problem.erratum, problem.advice) = (Some(NAME), ADVICE);
        }
    }
}

/// Returns true if BDM70 explains the error at this offset: a PSB+ (the packets from PSB to PSBEND) has a FUP with the
/// current IP, although the TIP.PGE after it shows that tracing was off. The error must be between that PSB and that
/// TIP.PGE.
fn explains(trace: &[u8], config: Config<'_>, offset: u64) -> bool {
    let Some(psb) = usize::try_from(offset).ok().and_then(|at| sync::backward(trace, at.saturating_add(1)))
    else {
        return false;
    };
    let rest = &trace[psb..];
    let (mut inside, mut has_ip) = (true, false);
    let mut packets = Packets::with_config(rest, config);
    while let Some(Ok((at, packet))) = packets.next() {
        match packet {
            Packet::Psb if at == 0 => {}
            Packet::PsbEnd if inside => inside = false,
            Packet::Fup(_) if inside => has_ip = true,
            Packet::TipPge(_) => return !inside && has_ip && psb as u64 + at >= offset,
            Packet::Pad
            | Packet::Tsc(_)
            | Packet::Cbr(_)
            | Packet::Tma(_)
            | Packet::DamagedTma(_)
            | Packet::Mtc(_)
            | Packet::Cyc(_)
            | Packet::Mnt(_)
            | Packet::Unknown(_)
            | Packet::ModeExec(_)
            | Packet::ModeTsx(_)
            | Packet::Pip(_)
            | Packet::Vmcs(_) => {}
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const PSB: &[u8] = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
    /// MODE.Exec (64 bit), FUP (1000).
    const STATE: &[u8] = b"\x99\x01\x7d\0\x10\0\0\0\0";
    const PSBEND: &[u8] = b"\x02\x23";
    /// CBR, PAD.
    const ASIDE: &[u8] = b"\x02\x03\x0f\0\0";
    /// TIP.PGE (2000).
    const PGE: &[u8] = b"\x71\0\x20\0\0\0\0";
    const TNT: &[u8] = b"\x0e";

    #[test]
    fn an_ip_in_a_psb_plus_that_an_enable_follows_is_the_pattern() {
        for (packets, offset, is_it) in [
            (&[PSB, STATE, PSBEND, ASIDE, PGE][..], 32, true),
            (&[PSB, STATE, PSBEND, PGE], 27, true),
            // The error may have the offset of the PSB.
            (&[PSB, STATE, PSBEND, PGE], 0, true),
            // An error after the TIP.PGE has another cause.
            (&[PSB, STATE, PSBEND, PGE, TNT], 34, false),
            // A PSB+ without an IP correctly shows that tracing is off.
            (&[PSB, PSBEND, PGE], 18, false),
            (&[PSB, STATE, PSBEND, TNT, PGE], 28, false),
            (&[PSB, STATE, PSBEND], 25, false),
            (&[PSB, STATE, PGE], 25, false),
            (&[STATE, PGE], 9, false),
        ] {
            let trace = packets.concat();
            assert_eq!(explains(&trace, Config::new(), offset), is_it, "{packets:x?} {offset}");
        }
    }

    #[test]
    fn what_is_allowed_for_is_not_marked() {
        let trace = [PSB, STATE, PSBEND, PGE].concat();
        let problem =
            || TraceError { offset: 27, address: None, text: String::new(), erratum: None, advice: "" };
        let mut problems = [problem()];
        let mut config = Config::new();
        config.errata.bdm70 = true;
        mark(&trace, config, &mut problems);
        assert_eq!(problems, [problem()]);
        mark(&trace, Config::new(), &mut problems);
        assert_eq!((problems[0].erratum, problems[0].advice), (Some(NAME), ADVICE));
    }
}
