//! What a target is.

/// A target.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// What it feeds.
    pub about: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
    /// Valid inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// What valid inputs are made of: words for a mutator to insert.
    pub words: &'static [&'static str],
    /// Longest input, in bytes: enough for the structures that it reads, short enough for thousands a second.
    pub longest: usize,
    /// Mutations that `cargo test` tries: some seconds in a development build.
    pub tries: usize,
}
