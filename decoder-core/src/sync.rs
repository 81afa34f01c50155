//! Searches for PSB packets in bytes.
//!
//! A PSB (Packet Stream Boundary) is sixteen bytes that occur nowhere else in a trace, so a decoder can start there.
//! In a run of consecutive PSBs, the last one counts: nothing lies between them, and the bytes before a run may look
//! like a part of a PSB.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "Packet Stream Boundary (PSB) Packet".
//!
//! ```
//! use pugmark_decoder_core::{packet::PSB, sync};
//!
//! let trace = [&[0x00][..], &PSB, &PSB, &[0x02, 0x23]].concat();
//! assert_eq!(sync::forward(&trace, 0), Some(0x11));
//! assert_eq!(sync::forward(&trace, 0x12), None);
//! assert_eq!(sync::backward(&trace, trace.len()), Some(0x11));
//! ```

use crate::psb::PSB;

/// Every eight consecutive bytes in a run of PSBs are one of these two words.
const WORDS: [[u8; 8]; 2] = [*b"\x02\x82\x02\x82\x02\x82\x02\x82", *b"\x82\x02\x82\x02\x82\x02\x82\x02"];

/// Returns the offset of the first PSB that begins at or after `from`.
///
/// Checks one word in every eight bytes; takes time linear in the distance.
pub fn forward(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        // Sixteen bytes contain a whole word of eight at any alignment.
        at += bytes.get(at..)?.chunks_exact(8).position(is_psb_word)? * 8;
        let run = run_around(bytes, at);
        match last_of(&run) {
            Some(psb) if psb >= from => return Some(psb),
            _ => at = run.end.max(at + 8),
        }
    }
}

/// Returns the offset of the last PSB that begins before `before`.
///
/// Takes time linear in the distance.
pub fn backward(bytes: &[u8], before: usize) -> Option<usize> {
    // A PSB that begins before `before` can end up to fifteen bytes after it.
    let mut end = before.checked_add(PSB.len() - 1).map_or(bytes.len(), |end| end.min(bytes.len()));
    loop {
        end -= bytes.get(..end)?.rchunks_exact(8).position(is_psb_word)? * 8;
        let run = run_around(bytes, end - 8);
        match last_of(&run) {
            Some(psb) if psb < before => return Some(psb),
            _ => end = run.start.min(end - 8),
        }
    }
}

fn is_psb_word(word: &[u8]) -> bool {
    WORDS.iter().any(|psb| psb == word)
}

/// Returns the longest run of whole `02 82` pairs around a PSB word.
fn run_around(bytes: &[u8], word: usize) -> core::ops::Range<usize> {
    let pair = |at: usize| bytes.get(at..at + 2) == Some(&PSB[..2]);
    // In the second kind of word the first byte belongs to the previous pair.
    let mut start = if pair(word) { word } else { word + 1 };
    let mut end = start;
    while pair(end) {
        end += 2;
    }
    while start >= 2 && pair(start - 2) {
        start -= 2;
    }
    start..end
}

fn last_of(run: &core::ops::Range<usize>) -> Option<usize> {
    (run.len() >= PSB.len()).then(|| run.end - PSB.len())
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::{vec, vec::Vec};

    /// Returns the synchronisation points by definition: the last 16 bytes of each run of eight or more pairs.
    fn points(bytes: &[u8]) -> Vec<usize> {
        let pair = |at: usize| bytes.get(at..at + 2) == Some(&[0x02, 0x82]);
        let psb = |at: usize| (0..16).step_by(2).all(|pairs| pair(at + pairs));
        (0..bytes.len()).filter(|&at| psb(at) && !pair(at + 16)).collect()
    }

    fn check(bytes: &[u8]) {
        let points = points(bytes);
        for at in 0..=bytes.len() + 1 {
            let next = points.iter().copied().find(|&psb| psb >= at);
            assert_eq!(forward(bytes, at), next, "forward from {at} in {bytes:02x?}");
            let last = points.iter().copied().rfind(|&psb| psb < at);
            assert_eq!(backward(bytes, at), last, "backward from {at} in {bytes:02x?}");
        }
    }

    #[test]
    fn finds_each_run_of_pairs_at_each_alignment() {
        for before in 0..17 {
            for pairs in 0..26 {
                for (first, after) in
                    [(0x00, &[][..]), (0x82, &[0x02]), (0x02, &[0x02, 0x23]), (0xff, &[0x82, 0x02])]
                {
                    let mut bytes = vec![first; before];
                    bytes.extend([0x02, 0x82].repeat(pairs));
                    bytes.extend(after);
                    check(&bytes);
                    bytes.extend(PSB);
                    check(&bytes);
                }
            }
        }
    }

    #[test]
    fn finds_what_the_definition_says_in_bytes_that_are_nearly_psbs() {
        let mut state = 1_u32;
        for _ in 0..crate::rounds(2_000) {
            let mut bytes = [0x02, 0x82].repeat(40);
            for _ in 0..4 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (state >> 16) as usize % bytes.len();
                bytes[at] ^= 0x80;
            }
            check(&bytes);
        }
    }

    #[test]
    fn searches_after_the_end_find_nothing() {
        assert_eq!(
            (forward(&PSB, 17), forward(&[], usize::MAX), backward(&[], usize::MAX)),
            (None, None, None)
        );
        assert_eq!(backward(&PSB, usize::MAX), Some(0));
    }
}
