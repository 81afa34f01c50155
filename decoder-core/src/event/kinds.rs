//! Classes of packets, by their meaning for the packets around them.

use crate::packet::Packet;

/// Returns true if the packet does not concern control flow: padding, time, maintenance, and packets that only the
/// caller's reader knows.
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

/// Returns true if the packet gives state of the code's environment, which a PSB+ repeats.
pub(crate) const fn is_state(packet: &Packet) -> bool {
    matches!(packet, Packet::ModeExec(_) | Packet::ModeTsx(_) | Packet::Pip(_) | Packet::Vmcs(_))
}
