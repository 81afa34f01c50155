//! A callback for packets that this library does not know but its caller does.
//!
//! ```
//! use pugmark_decoder_core::config::{Config, UnknownPackets};
//! use pugmark_decoder_core::ErrorKind;
//! use pugmark_decoder_core::packet::{Packet, Packets, Unknown};
//!
//! // The packet is 05 and a byte, which must be below 10.
//! let sizes = UnknownPackets::new(&|_, position, _| match *position.bytes() {
//!     [0x05, value, ..] if value < 0x10 => Ok(Unknown { size: 2, value: value.into() }),
//!     [0x05, value, ..] => Err(ErrorKind::Refused(value.into())),
//!     [opcode, ..] => Err(ErrorKind::UnknownOpcode(opcode)),
//!     [] => Err(ErrorKind::Refused(0)),
//! });
//! let config = Config { unknown: Some(sizes), ..Config::default() };
//! let mut packets = Packets::with_config(&[0x00, 0x05, 0x07, 0x00, 0x05, 0x17], config).skip(1);
//! assert_eq!(packets.next(), Some(Ok((1, Packet::Unknown(Unknown { size: 2, value: 7 })))));
//! assert_eq!(packets.next(), Some(Ok((3, Packet::Pad))));
//! assert_eq!(packets.next().unwrap().unwrap_err().to_string(), "0x4: unknown packet refused with code 0x17");
//! ```

use super::Config;
use crate::error::ErrorKind;
use core::fmt;

/// The state, set by earlier packets, that affects how a packet is parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Context {
    /// The items' size between BBP and BEP. Bytes with bits 2:0 = 100 begin a BIP there.
    pub block: Option<BlockItemSize>,
}

/// The size of a block item's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockItemSize {
    /// BBP.SZ = 1.
    Four,
    /// BBP.SZ = 0.
    Eight,
}

/// A packet whose opcode this library does not know, but [`Config::unknown`](crate::config::Config::unknown) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unknown {
    /// The packet's size in bytes, including its opcode; not zero.
    pub size: u8,
    /// A value of the callback's choice. This library does not use it.
    pub value: u64,
}

/// A reader of packets whose opcode is unknown, which returns their size and meaning.
///
/// The callback gets the configuration, the packet's position and the context, and returns the packet's size and a
/// value of its choice. An error that it returns becomes the packet's error. A size of zero is the error "unknown
/// opcode". A packet that extends past the end of the trace ends the trace, as every packet does.
///
/// The closure can capture whatever it needs to look up packets and to interpret the values.
#[derive(Clone, Copy)]
pub struct UnknownPackets<'a>(&'a UnknownCallback<'a>);

type UnknownCallback<'a> =
    dyn Fn(&Config<'_>, Position<'_>, Context) -> Result<Unknown, ErrorKind> + Sync + 'a;

impl<'a> UnknownPackets<'a> {
    /// Creates a reader that calls `callback`.
    pub const fn new(
        callback: &'a (impl Fn(&Config<'_>, Position<'_>, Context) -> Result<Unknown, ErrorKind> + Sync),
    ) -> Self {
        Self(callback)
    }

    pub(crate) fn ask(
        self,
        config: &Config<'_>,
        position: Position<'_>,
        context: Context,
    ) -> Result<Unknown, ErrorKind> {
        self.0(config, position, context)
    }
}

impl fmt::Debug for UnknownPackets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnknownPackets(..)")
    }
}

/// A place in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position<'a> {
    /// The whole trace; for a packet that is parsed alone, the bytes that were passed in; for a trace that comes in
    /// slices, the bytes at hand, with at least 16 bytes from the packet on unless the trace ends there.
    pub trace: &'a [u8],
    /// The packet's offset in these bytes.
    pub offset: usize,
}

impl<'a> Position<'a> {
    /// Returns the bytes from there on.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.trace.get(self.offset..).unwrap_or_default()
    }
}
