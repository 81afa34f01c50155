//! Numbers given to the blocks that block caches hold, which have numbers of their own.

/// The numbers given to the blocks of several caches. 0 stands for none.
#[derive(Debug, Default)]
pub(crate) struct BlockNumbers {
    /// Those of the cache in use, and the number of that cache.
    now: CacheNumbers,
    cache: usize,
    /// Those of all caches; the place of the cache in use is empty.
    others: Vec<CacheNumbers>,
}

/// The numbers given to the blocks of a cache, by the cache's numbers, which are good for one generation.
#[derive(Debug, Default)]
struct CacheNumbers {
    generation: u64,
    given: Vec<u32>,
}

impl BlockNumbers {
    /// Turns to a cache.
    pub(crate) fn turn_to(&mut self, cache: usize) {
        if cache == self.cache {
            return;
        }
        let most = cache.max(self.cache);
        if self.others.len() <= most {
            self.others.resize_with(most + 1, CacheNumbers::default);
        }
        let next = std::mem::take(&mut self.others[cache]);
        let before = std::mem::replace(&mut self.now, next);
        self.others[std::mem::replace(&mut self.cache, cache)] = before;
    }

    /// Notes the generation of the cache in use: the numbers of any other are forgotten.
    pub(crate) fn numbered(&mut self, generation: u64) {
        if std::mem::replace(&mut self.now.generation, generation) != generation {
            self.now.given.clear();
        }
    }

    /// Returns the number given to a block of the cache in use.
    #[inline]
    pub(crate) fn given(&self, number: u32) -> u32 {
        self.now.given.get(number as usize).copied().unwrap_or(0)
    }

    /// Gives a number to a block of the cache in use. `number` is 0 if no cache holds the block.
    pub(crate) fn give(&mut self, number: u32, given: u32) {
        let place = number as usize;
        if place == 0 {
            return;
        }
        if self.now.given.len() <= place {
            self.now.given.resize((place + 1).next_power_of_two(), 0);
        }
        self.now.given[place] = given;
    }

    /// Forgets the numbers of all caches.
    pub(crate) fn clear(&mut self) {
        self.now.given.clear();
        self.others.iter_mut().for_each(|cache| cache.given.clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_a_cache_and_of_its_generation() {
        let mut numbers = BlockNumbers::default();
        let given = |numbers: &BlockNumbers| [0, 1, 5, 900].map(|number| numbers.given(number));
        numbers.numbered(1);
        [(0, 7), (1, 8), (5, 9)].into_iter().for_each(|(number, given)| numbers.give(number, given));
        assert_eq!(given(&numbers), [0, 8, 9, 0]);
        numbers.turn_to(2);
        numbers.numbered(1);
        assert_eq!(given(&numbers), [0; 4]);
        numbers.give(900, 3);
        numbers.turn_to(0);
        numbers.numbered(1);
        assert_eq!(given(&numbers), [0, 8, 9, 0]);
        numbers.numbered(2);
        assert_eq!(given(&numbers), [0; 4]);
        numbers.turn_to(2);
        assert_eq!(given(&numbers), [0, 0, 0, 3]);
        numbers.turn_to(0);
        numbers.give(1, 4);
        numbers.clear();
        assert_eq!(given(&numbers), [0; 4]);
        numbers.turn_to(2);
        assert_eq!(given(&numbers), [0; 4]);
    }
}
