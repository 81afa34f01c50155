//! Says of a file without a trace what it is.

use pugmark_decoder_core::packet::Packets;

/// The first bytes, by which a text is told from other data.
const FIRST: usize = 4096;

/// Returns true if nothing in these bytes can be decoded: an Intel PT trace is decoded from its first PSB on.
pub fn has_no_psb(trace: &[u8]) -> bool {
    Packets::new(trace).sync_forward().is_none()
}

/// Names the kind of a file that begins with these bytes, if it is a known one.
pub fn kind_of(bytes: &[u8]) -> Option<&'static str> {
    let first = &bytes[..bytes.len().min(FIRST)];
    if let Some(kind) = infer::get(first) {
        return Some(kind.mime_type());
    }
    // A character may be cut where the first bytes end.
    let whole = match std::str::from_utf8(first) {
        Ok(_) => first.len(),
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => 0,
    };
    let is_text = whole > 0 && !first[..whole].iter().any(|byte| *byte < b' ' && !byte.is_ascii_whitespace());
    is_text.then_some("text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::packet::PSB;

    #[test]
    fn files_that_are_given_by_mistake_are_named() {
        let cut = [&[b'a'; FIRST - 1][..], "ä".as_bytes()].concat();
        for (bytes, kind) in [
            (&[&b"\x7fELF\x02\x01\x01"[..], &[0; 57]].concat()[..], Some("application/x-executable")),
            (b"\x1f\x8b\x08\0", Some("application/gzip")),
            (b"\x28\xb5\x2f\xfd\0", Some("application/zstd")),
            (b"<html>", Some("text/html")),
            (b"{\"count\": 1}\n", Some("text")),
            (&cut, Some("text")),
            (b"a\0b", None),
            (b"\xff\xfe\x01", None),
            (b"", None),
        ] {
            assert_eq!(kind_of(bytes), kind, "{bytes:?}");
        }
    }

    #[test]
    fn a_psb_is_found_at_any_place() {
        assert!(!has_no_psb(&[b"x", &PSB[..]].concat()));
        assert!(has_no_psb(&PSB[..15]));
    }
}
