//! PSBs as the format has them, looked for without skill: what the decoders' own search is held against.

use pugmark_decoder_core::packet::PSB;

/// The first PSB from `from` on. Of a run of them without a gap the last counts.
#[must_use]
pub fn psb_forward(trace: &[u8], from: usize) -> Option<usize> {
    (from..trace.len()).find(|&at| is_psb(trace, at))
}

/// The last PSB that begins before `before`.
#[must_use]
pub fn psb_backward(trace: &[u8], before: usize) -> Option<usize> {
    (0..trace.len().min(before)).rev().find(|&at| is_psb(trace, at))
}

fn is_psb(trace: &[u8], at: usize) -> bool {
    let here = |at: usize| trace.get(at..).is_some_and(|rest| rest.starts_with(&PSB));
    here(at) && !here(at + 2)
}
