//! Synchronising backwards as libipt does.

use pugmark_decoder_core::packet::PSB;

/// libipt looks at words of this size, at multiples of it in memory.
const WORD: usize = 8;

/// Returns the offset of the PSB that libipt goes to from `at`, in a trace that begins at `address`.
///
/// libipt steps back to a word that is a part of a PSB, and from there forward to the last PSB of the run. So it can
/// find the PSB that contains `at` or ends there. The decoder's own [`backward`](pugmark_decoder_core::sync::backward)
/// finds every PSB that begins before `at`, and no other.
#[must_use]
pub fn backward(trace: &[u8], address: usize, at: usize) -> Option<usize> {
    let mut end = at.checked_sub(address.wrapping_add(at) % WORD)?;
    loop {
        let begin = end.checked_sub(WORD)?;
        let word = trace.get(begin..end)?;
        if (word == &PSB[..WORD] || word == &PSB[1..=WORD])
            && let Some(psb) = last_of_run(trace, end)
        {
            return Some(psb);
        }
        end = begin;
    }
}

/// Returns the last PSB of the run that continues or ends at `at`.
fn last_of_run(trace: &[u8], at: usize) -> Option<usize> {
    let (pairs, _) = PSB.as_chunks::<2>();
    // In the middle of a pair of bytes the next pair begins a byte later. libipt reads this byte even after the end of
    // the trace.
    let from = at + usize::from(trace.get(at).is_some_and(|&byte| byte != PSB[0]));
    let (rest, _) = trace.get(from..).unwrap_or_default().as_chunks::<2>();
    let end = from + 2 * rest.iter().take_while(|&pair| *pair == pairs[0]).count();
    let psb = end.checked_sub(PSB.len())?;
    (trace.get(psb..end)? == PSB).then_some(psb)
}
