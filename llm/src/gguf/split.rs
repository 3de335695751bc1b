//! Models split into several files: `PREFIX-00001-of-00003.gguf` and the other shards.

use super::error::{Error, Result};
use super::metadata::Metadata;
use std::path::{Path, PathBuf};

const MAX_SHARDS: u32 = 1024;

/// Returns the number of shards in the metadata of the first file.
///
/// Zero, which tools that merge shards leave in the file, means one, as does an absent key.
pub(super) fn count(metadata: &Metadata) -> Result<u32> {
    let count = metadata.u32("split.count")?.unwrap_or(1).max(1);
    if count > MAX_SHARDS {
        return Err(Error::Split(format!(
            "{count} shards announced (limit {MAX_SHARDS})"
        )));
    }
    if count > 1 {
        check(metadata, 0, count)?;
    }
    Ok(count)
}

/// Checks that `metadata` belongs to shard `no` (from 0) of `count`.
pub(super) fn check(metadata: &Metadata, no: u32, count: u32) -> Result<()> {
    let found = (
        metadata.need("split.no", Metadata::u32)?,
        metadata.need("split.count", Metadata::u32)?,
    );
    if found == (no, count) {
        return Ok(());
    }
    let found = format!("shard {} of {}", u64::from(found.0) + 1, found.1);
    Err(Error::Split(format!(
        "this file says that it is {found}, not {} of {count}",
        no + 1
    )))
}

/// Names shard `no` (from 0) of `count` in the error of a file that does not exist.
pub(super) fn named_missing(error: Error, no: u32, count: u32) -> Error {
    match error {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Error::Split(format!("part {} of {count} is missing", no + 1))
        }
        error => error,
    }
}

/// Returns the paths of all `count` shards, from that of the first. Only the numbers in the file
/// name change, so metadata cannot refer to other files.
pub(super) fn siblings(first: &Path, count: u32) -> Result<Vec<PathBuf>> {
    let name = first
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    let prefix = name.strip_suffix(&format!("-00001-of-{count:05}.gguf"));
    let prefix = prefix.ok_or_else(|| {
        Error::Split(format!(
            "the first of {count} files should be named PREFIX-00001-of-{count:05}.gguf"
        ))
    })?;
    Ok((1..=count)
        .map(|i| first.with_file_name(format!("{prefix}-{i:05}-of-{count:05}.gguf")))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_part_is_named() {
        let io = |kind: std::io::ErrorKind| Error::Io {
            what: "cannot open",
            source: kind.into(),
        };
        let error = named_missing(io(std::io::ErrorKind::NotFound), 1, 3);
        assert!(
            error.to_string().contains("part 2 of 3 is missing"),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("same folder"));
        let error = named_missing(io(std::io::ErrorKind::PermissionDenied), 1, 3);
        assert!(error.hint().unwrap().contains("permissions"), "{error}");
    }
}
