//! States of a model that keeps some: where in the sequence the device's stand, and copies of earlier ones, since a state cannot be cut to a shorter
//! beginning.

/// Copies on the host: of two to three places of each of the last turns.
const MOST: usize = 16;
/// Bytes of copies, as long as there are more than two: those of Qwen3.5 35B are 66 MB each.
const MOST_BYTES: usize = 512 << 20;

/// What the states were after the first `len` tokens of a sequence.
#[derive(Clone, Debug)]
struct Copied {
    len: usize,
    states: Vec<u8>,
}

/// The states of a session.
#[derive(Clone, Default, Debug)]
pub(super) struct States {
    /// How many tokens the device's states have seen, of the sequence; none if they are of another one, or unknown.
    at: Option<usize>,
    /// By length, ascending.
    copies: Vec<Copied>,
}

impl States {
    /// The sequence is cut to so many tokens.
    pub fn cut(&mut self, len: usize) {
        self.at = self.at.filter(|&at| at <= len);
        self.copies.retain(|c| c.len <= len);
    }
    /// The device's states have seen so many tokens of the sequence.
    pub fn reached(&mut self, len: usize) {
        self.at = Some(len);
    }
    /// The device's states are of no use.
    pub fn lost(&mut self) {
        self.at = None;
    }
    /// The longest beginning of at most `len` tokens from which a step can go on.
    pub fn longest(&self, len: usize) -> usize {
        let copies = self.copies.iter().map(|c| c.len);
        copies.chain(self.at).filter(|&at| at <= len).max().unwrap_or(0)
    }
    /// Have the device's states seen so many tokens of the sequence?
    pub fn are_at(&self, len: usize) -> bool {
        self.at == Some(len)
    }
    /// The copy after so many tokens, if there is one.
    pub fn copied(&self, len: usize) -> Option<&[u8]> {
        self.copies().find(|c| c.0 == len).map(|c| c.1)
    }
    /// The copies that there are: their lengths and bytes.
    pub fn copies(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.copies.iter().map(|c| (c.len, &c.states[..]))
    }
    /// A copy of what they are now, after so many tokens.
    pub fn copy(&mut self, len: usize, states: Vec<u8>) {
        if let Err(place) = self.copies.binary_search_by_key(&len, |c| c.len) {
            self.copies.insert(place, Copied { len, states });
        }
        let bytes = |copies: &[Copied]| copies.iter().map(|c| c.states.len()).sum::<usize>();
        while self.copies.len() > MOST || self.copies.len() > 2 && bytes(&self.copies) > MOST_BYTES {
            self.copies.remove(0);
        }
    }
}
