//! Decodes choices from fuzz input: every byte string is valid, and an
//! exhausted input yields zeros.

/// Unread remainder of a fuzz input.
#[derive(Clone)]
pub struct FuzzInput<'a>(&'a [u8]);

impl<'a> FuzzInput<'a> {
    /// Starts reading at the first byte of `input`.
    pub fn new(input: &'a [u8]) -> FuzzInput<'a> {
        FuzzInput(input)
    }
    /// Returns whether the input is exhausted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Reads a byte; 0 if exhausted.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }
    /// Reads a byte as a number below `n`, which is at least 1 and at most 256.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }
    /// Picks an element of `of`, which has 1 to 256 elements.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
    /// Reads up to `n` bytes.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }
    /// Reads up to the byte `end`, which is consumed and not returned.
    pub fn until(&mut self, end: u8) -> &'a [u8] {
        let at = self.0.iter().position(|&b| b == end);
        let taken = self.take(at.unwrap_or(self.0.len()));
        self.take(1);
        taken
    }
    /// Reads all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }
}
