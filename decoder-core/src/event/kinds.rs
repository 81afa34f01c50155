//! Kinds of packets, by what they mean for those around them.

use crate::packet::Packet;

/// Says nothing about the flow: padding, time, maintenance, and what only its reader understands.
pub(crate) const fn is_aside(packet: &Packet) -> bool {
    matches!(
        packet,
        Packet::Pad
            | Packet::Tsc(_)
            | Packet::Cbr(_)
            | Packet::Tma(_)
            | Packet::DamagedTma(_)
            | Packet::Mtc(_)
            | Packet::Cyc(_)
            | Packet::Mnt(_)
            | Packet::Unknown(_)
    )
}

/// Says in what state the code runs, which a PSB+ repeats.
pub(crate) const fn is_state(packet: &Packet) -> bool {
    matches!(packet, Packet::ModeExec(_) | Packet::ModeTsx(_) | Packet::Pip(_) | Packet::Vmcs(_))
}
