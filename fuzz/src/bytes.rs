//! Choices drawn from an input: whatever the bytes are, they mean something, and an input that has ended goes on with zeros.

/// What is left of an input.
#[derive(Clone)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// All of it.
    pub fn new(input: &'a [u8]) -> Bytes<'a> {
        Bytes(input)
    }
    /// Is there nothing left?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
    /// A number below `n`, which is at least 1 and at most 256.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }
    /// One of them.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
    /// So many bytes, or what is left.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }
    /// Everything up to that byte, which is left out.
    pub fn until(&mut self, end: u8) -> &'a [u8] {
        let at = self.0.iter().position(|&b| b == end);
        let taken = self.take(at.unwrap_or(self.0.len()));
        self.take(1);
        taken
    }
    /// The rest.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }
}
