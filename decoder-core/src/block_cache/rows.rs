//! Memory in rows of a fixed number of words.

/// Rows of `N` words, one after the other in memory of the caller.
#[derive(Debug)]
pub(super) struct Rows<'m, const N: usize>(&'m mut [u32]);

impl<'m, const N: usize> Rows<'m, N> {
    /// Returns the whole rows of `words`.
    pub(super) fn new(words: &'m mut [u32]) -> Self {
        let whole = words.len() - words.len() % N;
        Self(words.split_at_mut(whole).0)
    }

    /// Returns the number of rows.
    pub(super) const fn len(&self) -> usize {
        self.0.len() / N
    }

    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the words of all rows.
    #[inline(always)]
    pub(super) const fn words(&self) -> &[u32] {
        self.0
    }

    #[inline(always)]
    pub(super) fn get(&self, row: usize) -> Option<&[u32; N]> {
        self.0.get(row.checked_mul(N)?..)?.first_chunk()
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, row: usize) -> Option<&mut [u32; N]> {
        self.0.get_mut(row.checked_mul(N)?..)?.first_chunk_mut()
    }

    /// Sets all words to zero.
    pub(super) fn clear(&mut self) {
        self.0.fill(0);
    }
}
