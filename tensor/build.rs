//! Sets `GRISTMILL_COMPILER_BUILD` to a hash of all source that affects compiled functions. Outside
//! the workspace, in a package, it is the version, since the crates pin each other's exactly.

#[path = "src/build_id.rs"]
mod build_id;

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=src/build_id.rs");
    if build_id::FOLDERS
        .iter()
        .all(|folder| !Path::new(folder).exists())
    {
        println!(
            "cargo::rustc-env=GRISTMILL_COMPILER_BUILD={}",
            env!("CARGO_PKG_VERSION")
        );
        return;
    }
    for folder in build_id::FOLDERS {
        assert!(
            Path::new(folder).is_dir(),
            "{folder} is not there: its source is part of what compiled functions are kept by"
        );
        println!("cargo::rerun-if-changed={folder}");
    }
    println!(
        "cargo::rustc-env=GRISTMILL_COMPILER_BUILD={:016x}",
        build_id::hash_folders(&build_id::FOLDERS.map(Path::new))
    );
}
