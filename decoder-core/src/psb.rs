//! The bytes of a PSB, which are looked for before there are packets.

/// A PSB packet's bytes.
pub const PSB: [u8; 16] = *b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
