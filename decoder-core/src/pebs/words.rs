//! Consecutive little-endian words.

/// A reader of words from the front of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WordReader<'a>(pub(super) &'a [u8]);

impl<'a> WordReader<'a> {
    pub(super) fn bytes<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(first)
    }

    pub(super) fn word(&mut self) -> Option<u64> {
        self.bytes().map(|bytes| u64::from_le_bytes(*bytes))
    }

    pub(super) fn words<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.word()?;
        }
        Some(words)
    }
}

/// A writer of words to the front of bytes.
#[derive(Debug)]
pub(super) struct WordWriter<'a>(pub(super) &'a mut [u8]);

impl WordWriter<'_> {
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        let (first, rest) = core::mem::take(&mut self.0).split_at_mut_checked(bytes.len())?;
        first.copy_from_slice(bytes);
        self.0 = rest;
        Some(())
    }

    pub(super) fn words(&mut self, words: &[u64]) -> Option<()> {
        words.iter().try_for_each(|word| self.bytes(&word.to_le_bytes()))
    }
}
