//! Hashes the compiler's source, so that builds that may compile differently have different ids.
//!
//! This file is also a module of the build script, so it uses only the standard library.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Source folders that determine the kernels of a function, relative to this crate: the IR, the
/// formats, the compiler, the dialects.
pub const FOLDERS: [&str; 4] = [
    "../uop/src",
    "../encodings/src",
    "../compiler/src",
    "../backend/src",
];

/// Hashes the names and contents of all files in these folders.
///
/// # Panics
/// If a folder or file cannot be read.
pub fn hash_folders(folders: &[&Path]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for folder in folders {
        let mut files = Vec::new();
        list(folder, &mut files);
        files.sort();
        for file in files {
            file.strip_prefix(folder)
                .expect("listed there")
                .hash(&mut hasher);
            std::fs::read(&file)
                .unwrap_or_else(|e| panic!("{}: {e}", file.display()))
                .hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            list(&path, files)
        } else {
            files.push(path)
        }
    }
}
