//! Bytes to packets.

use super::{
    Bbp, Bep, Bip, Cbr, Cfe, Context, Cyc, Evd, Exstop, Ip, Mnt, Mtc, Mwait, Packet, Parsed, Pip, Ptw, Pwre,
    Pwrx, Tma, Tnt, Trig, Tsc, Vmcs, ip, mode, ptw, stream, timing,
};
use crate::{
    config::{Config, Position},
    error::ErrorKind,
};

impl Packet {
    /// Parses the packet at the start of `bytes` outside any block, without errata or other knowledge of the processor.
    /// Returns the packet and its size in bytes.
    ///
    /// `Ok(None)`: the bytes end within the packet. That is the end of the trace, not an error. An unknown opcode or
    /// a reserved value is an error even if the bytes end directly after it.
    ///
    /// # Errors
    /// An unknown opcode, or a value that the packet cannot have.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ErrorKind> {
        Self::parse_with(bytes, &Config::new(), Context::OUTSIDE)
    }

    /// Parses like [`parse`](Self::parse), for the processor of `config`, after packets that left `context`.
    ///
    /// # Errors
    /// As in [`parse`](Self::parse), and the errors that [`Config::unknown`] returns.
    pub fn parse_with(
        bytes: &[u8],
        config: &Config<'_>,
        context: Context,
    ) -> Result<Option<(Self, usize)>, ErrorKind> {
        Self::parse_at(Position { trace: bytes, offset: 0 }, config, context)
    }

    /// Parses the packet at a place in a trace.
    #[inline]
    pub(super) fn parse_at(
        position: Position<'_>,
        config: &Config<'_>,
        context: Context,
    ) -> Result<Option<(Self, usize)>, ErrorKind> {
        let bytes = position.bytes();
        let Some(&first) = bytes.first() else { return Ok(None) };
        let in_block = context.block.filter(|_| first & 0b111 == Bip::OPCODE);
        if let Some(size) = in_block {
            return map(Bip::parse(bytes, size), Self::Bip);
        }
        match first {
            0x02 => Self::parse_extended(position, config, context),
            _ => Self::parse_short(first, position, config, context),
        }
    }

    // Each group of packets has a function of its own: in unoptimised code, each arm of a function has its own place on
    // the stack, and handlers have a small stack.

    /// Parses a packet outside any block that its first byte alone determines.
    fn parse_short(first: u8, position: Position<'_>, config: &Config<'_>, context: Context) -> Parsed<Self> {
        let bytes = position.bytes();
        match first {
            0x00 => Ok(Some((Self::Pad, 1))),
            _ if first & 1 == 0 => map(Tnt::parse_short(first).map(|tnt| Some((tnt, 1))), Self::TntShort),
            _ if config.errata.skd007 && timing::is_ovf_by_skd007(bytes) => Ok(Some((Self::Ovf, 3))),
            _ if first & 0b11 == 0b11 => map(Cyc::parse(bytes), Self::Cyc),
            0x19 | 0x59 | 0x99 | 0xd9 => Self::parse_fixed(first, bytes),
            _ if matches!(first & 0x1f, ip::TIP | ip::FUP | ip::TIP_PGE | ip::TIP_PGD) => {
                Self::parse_with_ip(first, bytes)
            }
            _ => Self::unknown(ErrorKind::UnknownOpcode(first), position, config, context),
        }
    }

    fn parse_fixed(first: u8, bytes: &[u8]) -> Parsed<Self> {
        match first {
            0x19 => map(Tsc::parse(bytes), Self::Tsc),
            0x59 => map(Mtc::parse(bytes), Self::Mtc),
            0x99 => mode::parse(bytes),
            _ => map(Trig::parse(bytes), Self::Trig),
        }
    }

    fn parse_with_ip(first: u8, bytes: &[u8]) -> Parsed<Self> {
        match first & 0x1f {
            ip::TIP => map(Ip::parse(bytes, "TIP"), Self::Tip),
            ip::FUP => map(Ip::parse(bytes, "FUP"), Self::Fup),
            ip::TIP_PGE => map(Ip::parse(bytes, "TIP.PGE"), Self::TipPge),
            _ => map(Ip::parse(bytes, "TIP.PGD"), Self::TipPgd),
        }
    }

    /// Parses a packet whose first byte is `02`.
    fn parse_extended(position: Position<'_>, config: &Config<'_>, context: Context) -> Parsed<Self> {
        let bytes = position.bytes();
        let Some(&second) = bytes.get(1) else { return Ok(None) };
        match second {
            0xa3 | 0x43 | 0xc8 | 0x03 | 0x73 => Self::parse_flow(second, bytes, config),
            0xc2 | 0x22 | 0xa2 | 0x13 | 0x53 => Self::parse_event(second, bytes),
            0x82 | 0xc3 | 0x63 => Self::parse_rest(second, position, config, context),
            _ if second & 0x1f == ptw::OPCODE => map(Ptw::parse(bytes), Self::Ptw),
            _ => match Self::without_payload(second) {
                Some(packet) => Ok(Some((packet, 2))),
                None => Self::unknown(ErrorKind::UnknownExtendedOpcode(second), position, config, context),
            },
        }
    }

    fn parse_rest(second: u8, position: Position<'_>, config: &Config<'_>, context: Context) -> Parsed<Self> {
        let bytes = position.bytes();
        match (second, bytes.get(2)) {
            (0x82, _) => map(stream::parse_psb(bytes), |()| Self::Psb),
            (0xc3, None) => Ok(None),
            (0xc3, Some(&Mnt::THIRD)) => map(Mnt::parse(bytes), Self::Mnt),
            (0xc3, Some(&third)) => {
                Self::unknown(ErrorKind::UnknownOpcodeAfterC3(third), position, config, context)
            }
            _ => map(Bbp::parse(bytes), Self::Bbp),
        }
    }

    /// Returns the packet that ends after this second byte.
    fn without_payload(second: u8) -> Option<Self> {
        let ip = second & 1 << 7 != 0;
        match second {
            0x23 => Some(Self::PsbEnd),
            0xf3 => Some(Self::Ovf),
            0x83 => Some(Self::TraceStop),
            0x62 | 0xe2 => Some(Self::Exstop(Exstop { ip })),
            0x33 | 0xb3 => Some(Self::Bep(Bep { ip })),
            _ => None,
        }
    }

    /// Parses a packet that concerns control flow or the clocks.
    fn parse_flow(second: u8, bytes: &[u8], config: &Config<'_>) -> Parsed<Self> {
        match second {
            0xa3 => map(Tnt::parse_long(bytes), Self::TntLong),
            0x43 => map(Pip::parse(bytes), Self::Pip),
            0xc8 => map(Vmcs::parse(bytes), Self::Vmcs),
            0x03 => map(Cbr::parse(bytes), Self::Cbr),
            _ if config.errata.skz84 && timing::is_damaged_tma(bytes) => {
                Ok(bytes.first_chunk().map(|bytes| (Self::DamagedTma(*bytes), bytes.len())))
            }
            _ => map(Tma::parse(bytes), Self::Tma),
        }
    }

    /// Parses a packet that concerns power or an event.
    fn parse_event(second: u8, bytes: &[u8]) -> Parsed<Self> {
        match second {
            0xc2 => map(Mwait::parse(bytes), Self::Mwait),
            0x22 => map(Pwre::parse(bytes), Self::Pwre),
            0xa2 => map(Pwrx::parse(bytes), Self::Pwrx),
            0x13 => map(Cfe::parse(bytes), Self::Cfe),
            _ => map(Evd::parse(bytes), Self::Evd),
        }
    }

    /// Fails with `error` for a packet that is not in the manual, unless the caller's reader knows it.
    #[cold]
    fn unknown(
        error: ErrorKind,
        position: Position<'_>,
        config: &Config<'_>,
        context: Context,
    ) -> Result<Option<(Self, usize)>, ErrorKind> {
        let Some(reader) = config.unknown else { return Err(error) };
        let unknown = reader.ask(config, position, context)?;
        let size = usize::from(unknown.size);
        match size {
            0 => Err(error),
            _ if size > position.bytes().len() => Ok(None),
            _ => Ok(Some((Self::Unknown(unknown), size))),
        }
    }
}

/// Converts a parsed payload to its packet.
#[inline]
fn map<T>(parsed: Parsed<T>, packet: impl FnOnce(T) -> Packet) -> Parsed<Packet> {
    Ok(parsed?.map(|(payload, size)| (packet(payload), size)))
}
