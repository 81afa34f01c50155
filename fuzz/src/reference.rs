//! A simple search for PSBs, to compare with the decoders' own search.

use pugmark_decoder_core::packet::PSB;

/// Returns the first PSB from `from` on; of consecutive PSBs the last one.
#[must_use]
pub fn psb_forward(trace: &[u8], from: usize) -> Option<usize> {
    (from..trace.len()).find(|&at| is_psb(trace, at))
}

/// Returns the last PSB that begins before `before`.
#[must_use]
pub fn psb_backward(trace: &[u8], before: usize) -> Option<usize> {
    (0..trace.len().min(before)).rev().find(|&at| is_psb(trace, at))
}

fn is_psb(trace: &[u8], at: usize) -> bool {
    let here = |at: usize| trace.get(at..).is_some_and(|rest| rest.starts_with(&PSB));
    here(at) && !here(at + 2)
}
