//! Fuzz targets: parsers of untrusted input, and differential tests of computations.
//!
//! A target accepts any bytes and returns quickly; a panic is a finding. `tests/replay.rs`
//! runs each target on its seeds, on `corpus/TARGET` and on some thousand mutations of these.
//! The executable (`src/main.rs`, built by `fuzz/build`) runs one target under libFuzzer
//! until it is stopped.

pub mod bytes;
pub mod mutate;
mod target;
pub mod targets;

pub use target::Target;

/// All fuzz targets, in the order of the replay tests.
pub const TARGETS: &[Target] = &[
    targets::model_file::FILE,
    targets::model_file::SPLIT,
    targets::template::TARGET,
    targets::tokenizer::TARGET,
    targets::request::TARGET,
    targets::schema::TARGET,
    targets::reply::TARGET,
    targets::ir::TARGET,
    targets::graphs::TARGET,
    targets::placements::TARGET,
];

/// Looks up a target by name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
