//! Fuzz targets: what reads bytes from strangers, and what must compute the same in every way.
//!
//! A target takes any bytes and returns, quickly; a panic is a finding. `tests/replay.rs` runs each on its seeds, on `corpus/TARGET` and
//! on a few thousand mutations of these; the executable (`src/main.rs`, built by `fuzz/build`) runs one under libFuzzer for as long as it is told.

pub mod bytes;
pub mod mutate;
mod target;
pub mod targets;

pub use target::Target;

/// All targets.
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
];

/// The target of that name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
