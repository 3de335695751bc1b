//! What build of the compiler this is: two that could compile a function differently have different numbers.
//!
//! Also a module of the build script, so nothing but the standard library.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The crates between a function and its kernels' text: the IR, the formats, the compiler, the dialects. From this crate's folder.
pub const FOLDERS: [&str; 4] = ["../uop/src", "../encodings/src", "../compiler/src", "../backend/src"];

/// A hash of the names and contents of all files in these folders.
///
/// # Panics
/// When one of them cannot be read.
pub fn hash_folders(folders: &[&Path]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for folder in folders {
        let mut files = Vec::new();
        list(folder, &mut files);
        files.sort();
        for file in files {
            file.strip_prefix(folder).expect("listed there").hash(&mut hasher);
            std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())).hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() { list(&path, files) } else { files.push(path) }
    }
}
