//! A cache of texts, so that the text of repeatedly executed code is formatted only once.

use std::ops::Range;

/// The binary logarithm of the number of cached texts, which exceeds the number of blocks in a large program's hot
/// code.
const PLACES: u32 = 16;

/// The size of the cached text, in bytes, from which on a new text drops all others.
const MOST_BYTES: usize = 32 << 20;

/// Texts by their subjects. A new text replaces the one in the same slot.
pub(super) struct KnownText<K> {
    text: String,
    places: Vec<Option<(K, u32, u32)>>,
}

/// The subject of a text.
pub(super) trait TextKey: Copy + Eq {
    /// Returns a number that differs from that of most other subjects.
    fn number(self) -> u64;
}

/// The subject of a text, in a lane of a session.
impl<K: TextKey> TextKey for (usize, K) {
    fn number(self) -> u64 {
        self.1.number().wrapping_add((self.0 as u64) << 48)
    }
}

impl<K: TextKey> KnownText<K> {
    pub(super) fn new() -> Self {
        Self { text: String::new(), places: vec![] }
    }

    /// Returns the text of a key; `put` writes a text that is not cached.
    #[inline]
    pub(super) fn get(&mut self, key: K, put: impl FnOnce(&mut String)) -> &str {
        // The highest bits of a product depend on all bits of the number.
        let place = (key.number().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES)) as usize;
        let range = match self.places.get(place) {
            Some(Some((known, from, to))) if *known == key => *from as usize..*to as usize,
            _ => self.add(key, place, put),
        };
        &self.text[range]
    }

    #[cold]
    fn add(&mut self, key: K, place: usize, put: impl FnOnce(&mut String)) -> Range<usize> {
        if self.text.len() >= MOST_BYTES || self.places.is_empty() {
            self.text.clear();
            self.places.clear();
            self.places.resize(1 << PLACES, None);
        }
        let from = self.text.len();
        put(&mut self.text);
        if let (Ok(first), Ok(last)) = (u32::try_from(from), u32::try_from(self.text.len())) {
            self.places[place] = Some((key, first, last));
        }
        from..self.text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_put_into_words_once() {
        let (mut known, mut found, mut puts) = (KnownText::new(), String::new(), 0);
        for key in [1_u64, 2, 1, 1, 2, 3] {
            let text = known.get(key, |text| {
                puts += 1;
                *text += &format!("<{key}>");
            });
            found += text;
        }
        assert_eq!((&*found, puts), ("<1><2><1><1><2><3>", 3));
    }

    #[test]
    fn one_that_has_the_place_of_another_takes_it_and_much_text_is_forgotten() {
        // Keys without a number all have the same slot.
        #[derive(Clone, Copy, PartialEq, Eq)]
        struct Nameless(u8);
        impl TextKey for Nameless {
            fn number(self) -> u64 {
                0
            }
        }
        let (mut known, mut puts) = (KnownText::new(), 0);
        for (key, put_again) in [(1, true), (1, false), (2, true), (1, true), (1, false)] {
            let before = puts;
            let text = known.get(Nameless(key), |text| {
                puts += 1;
                text.push(char::from(b'a' + key));
            });
            assert_eq!((text, puts > before), (["b", "c"][usize::from(key) - 1], put_again));
        }
        let (mut known, mut most) = (KnownText::new(), 0);
        for key in 0..100_u64 {
            let expected = char::from(key as u8).to_string().repeat(1 << 20);
            assert!(known.get(key, |text| *text += &expected) == expected);
            most = most.max(known.text.len());
        }
        assert_eq!(most, MOST_BYTES);
    }
}
