//! Sets of token ids as bit masks.

/// Bits of a mask word.
const WORD: usize = u32::BITS as usize;

/// A set of tokens of a vocabulary: one bit for each, from the lowest of every word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenSet(Vec<u32>);

impl TokenSet {
    /// Returns the set of all ids below `vocabulary`.
    pub fn all(vocabulary: usize) -> TokenSet {
        let mut words = vec![u32::MAX; vocabulary / WORD];
        let rest = vocabulary % WORD;
        words.extend((rest > 0).then_some((1u32 << rest) - 1));
        TokenSet(words)
    }
    /// Returns whether the set contains `id`.
    pub fn contains(&self, id: u32) -> bool {
        self.0
            .get(id as usize / WORD)
            .is_some_and(|word| word >> (id as usize % WORD) & 1 == 1)
    }
    /// Iterates over the ids in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0..(self.0.len() * WORD) as u32).filter(|&id| self.contains(id))
    }
    /// Removes an id from the set.
    pub fn remove(&mut self, id: u32) {
        if let Some(word) = self.0.get_mut(id as usize / WORD) {
            *word &= !(1 << (id as usize % WORD));
        }
    }
    /// Intersects the set with these words; ids past the last word are removed.
    pub fn keep(&mut self, words: &[u32]) {
        self.0
            .iter_mut()
            .zip(words.iter().chain(std::iter::repeat(&0)))
            .for_each(|(word, kept)| *word &= kept);
    }
    /// The mask words of the set.
    pub fn words(&self) -> &[u32] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::TokenSet;

    #[test]
    fn tokens_are_left_out() {
        for vocabulary in [1, 31, 32, 70] {
            let mut set = TokenSet::all(vocabulary);
            assert!(set.iter().eq(0..vocabulary as u32) && !set.contains(vocabulary as u32));
            set.remove(vocabulary as u32 - 1);
            set.remove(1000);
            assert!(set.iter().eq(0..vocabulary as u32 - 1));
            set.keep(&[0b101]);
            assert!(
                set.iter()
                    .eq([0, 2].into_iter().filter(|&id| id + 1 < vocabulary as u32))
            );
        }
    }
}
