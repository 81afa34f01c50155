//! The bytes of a PSB, which are searched for before packets are parsed.

/// A PSB packet's bytes.
pub const PSB: [u8; 16] = *b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
