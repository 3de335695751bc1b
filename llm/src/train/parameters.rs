//! Places of parameters in one flat array.

use super::optimizer::SQUARES;
use std::collections::BTreeMap;
use std::ops::Range;

/// Parameters begin at multiples of this many elements, so that vectors and copies are aligned.
const ALIGNMENT: usize = 64;

/// Place of one parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Row-major dims, the contiguous one last.
    pub dims: Vec<usize>,
    /// Elements in the flat array.
    pub range: Range<usize>,
}

/// Places of all parameters: first those with weight decay, then the others.
///
/// Tensors of two and more axes decay; vectors (norms, biases) do not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Places {
    by_name: BTreeMap<String, Place>,
    /// Elements with weight decay, and of the whole array.
    decayed: usize,
    length: usize,
}

impl Places {
    /// Places parameters of these dims, by name.
    pub fn new(parameters: BTreeMap<String, Vec<usize>>) -> Places {
        let (decayed, others): (Vec<_>, Vec<_>) =
            parameters.into_iter().partition(|(_, dims)| dims.len() > 1);
        let mut places = Places::default();
        for (name, dims) in decayed {
            places.add(name, dims);
        }
        places.decayed = places.length;
        for (name, dims) in others {
            places.add(name, dims);
        }
        places.length = places.length.next_multiple_of(SQUARES);
        places
    }
    fn add(&mut self, name: String, dims: Vec<usize>) {
        let begin = self.length;
        let range = begin..begin + dims.iter().product::<usize>();
        self.length = range.end.next_multiple_of(ALIGNMENT);
        self.by_name.insert(name, Place { dims, range });
    }
    /// Place of a parameter.
    pub fn get(&self, name: &str) -> Option<&Place> {
        self.by_name.get(name)
    }
    /// All parameters by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Place)> {
        self.by_name
            .iter()
            .map(|(name, place)| (name.as_str(), place))
    }
    /// Elements of the flat array, with padding.
    pub fn len(&self) -> usize {
        self.length
    }
    /// Returns true if there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
    /// Number of trained numbers, without padding.
    pub fn count(&self) -> usize {
        self.by_name.values().map(|p| p.range.len()).sum()
    }
    /// Ranges with and without weight decay; either may be empty.
    pub fn ranges(&self) -> [Range<usize>; 2] {
        [0..self.decayed, self.decayed..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_come_before_vectors_and_places_are_aligned() {
        let dims = [("a", vec![5]), ("b", vec![3, 7]), ("c", vec![2, 2, 2])];
        let places = Places::new(dims.map(|(n, d)| (n.to_owned(), d)).into_iter().collect());
        assert_eq!(places.ranges(), [0..128, 128..SQUARES]);
        assert_eq!(places.get("b").unwrap().range, 0..21);
        assert_eq!(places.get("c").unwrap().range, 64..72);
        assert_eq!(places.get("a").unwrap().range, 128..133);
        assert_eq!((places.len(), places.count()), (SQUARES, 5 + 21 + 8));
    }
}
