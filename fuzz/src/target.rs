//! Definition of a fuzz target.

/// A fuzz target: an entry point with its seeds, dictionary and limits.
pub struct Target {
    /// Name on the command line, of the corpus folder and of the replay test.
    pub name: &'static str,
    /// Description of the code that it exercises.
    pub about: &'static str,
    /// Runs one input; a panic is a finding.
    pub run: fn(&[u8]),
    /// Returns valid inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Dictionary of fragments of valid inputs, for the mutator to insert.
    pub words: &'static [&'static str],
    /// Maximum input length, bytes: long enough for the structures, short enough for thousands
    /// of runs per second.
    pub longest: usize,
    /// Mutations that `cargo test` tries: some seconds in a development build.
    pub tries: usize,
}
