//! Classes of packets, by what they mean for the packets around them.

use crate::packet::Packet;

/// Whether the packet says nothing about the flow: padding, time, maintenance, and packets that only the caller's
/// reader knows.
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

/// Whether the packet gives state that the code runs in, which a PSB+ repeats.
pub(crate) const fn is_state(packet: &Packet) -> bool {
    matches!(packet, Packet::ModeExec(_) | Packet::ModeTsx(_) | Packet::Pip(_) | Packet::Vmcs(_))
}
