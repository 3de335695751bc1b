//! The program's installation: the zig compiler and the Python packages that lie beside it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Folder of Python packages, if the program is a module of one.
static PACKAGES: OnceLock<PathBuf> = OnceLock::new();

/// Sets the folder of Python packages that contains the program.
///
/// A Python module calls it, as its executable is the interpreter. Only the first call counts.
pub fn set_packages(folder: impl Into<PathBuf>) {
    let _ = PACKAGES.set(folder.into());
}

/// Returns the first zig compiler of the installation.
///
/// An archive has one in `lib/gristmill/zig`, or beside the executable; a Python environment has
/// the package `ziglang`.
pub fn zig() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok();
    let places = zigs(executable.as_deref(), PACKAGES.get().map(PathBuf::as_path));
    places.into_iter().find(|zig| trusted(zig))
}

/// Returns the folders of the installation that may have NVIDIA's shared library `name`.
///
/// They are those of the packages `nvidia-cuda-nvrtc` (`nvidia/cu13`) and its predecessors
/// (`nvidia/cuda_nvrtc`).
pub fn nvidia_libraries() -> Vec<PathBuf> {
    let executable = std::env::current_exe().ok();
    let packages = packages(executable.as_deref(), PACKAGES.get().map(PathBuf::as_path));
    let folders = packages.iter().flat_map(|folder| {
        sorted(&folder.join("nvidia"), "cu")
            .into_iter()
            .rev()
            .map(|part| part.join("lib"))
    });
    folders.filter(|folder| trusted(folder)).collect()
}

/// Returns the places of a zig compiler, best first.
fn zigs(executable: Option<&Path>, module: Option<&Path>) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(folder) = executable.and_then(Path::parent) {
        places.push(folder.join("zig"));
        places.extend(folder.parent().map(|up| up.join("lib/gristmill/zig/zig")));
    }
    places.extend(
        packages(executable, module)
            .iter()
            .map(|folder| folder.join("ziglang/zig")),
    );
    places
}

/// Returns the folders of Python packages: the module's, then those of the environment whose `bin`
/// has the executable, newest Python first.
fn packages(executable: Option<&Path>, module: Option<&Path>) -> Vec<PathBuf> {
    let environment = executable.and_then(|file| file.parent()?.parent());
    let pythons = environment.into_iter().flat_map(|root| {
        ["lib", "lib64"]
            .into_iter()
            .flat_map(|lib| sorted(&root.join(lib), "python3").into_iter().rev())
    });
    let folders = pythons.flat_map(|python| {
        // Debian's Python has the latter.
        ["site-packages", "dist-packages"].map(|name| python.join(name))
    });
    module
        .map(Path::to_path_buf)
        .into_iter()
        .chain(folders)
        .collect()
}

/// Returns the entries of a folder that begin with `prefix`, with numbers in numerical order.
fn sorted(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    names.iter().map(|name| folder.join(name)).collect()
}

/// Returns whether a file exists and belongs to root or this user, as only those may decide what
/// the program runs.
fn trusted(file: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    std::fs::metadata(file).is_ok_and(|data| [0, user].contains(&data.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zig_is_looked_for_beside_the_program_and_then_in_its_environment() {
        let root = std::env::temp_dir().join(format!("gristmill-places-{}", std::process::id()));
        for python in ["python3.9", "python3.13"] {
            std::fs::create_dir_all(root.join("lib").join(python)).unwrap();
        }
        let found = zigs(
            Some(&root.join("bin/gristmill")),
            Some(Path::new("/module")),
        );
        let found: Vec<&str> = found
            .iter()
            .map(|path| path.strip_prefix(&root).unwrap_or(path).to_str().unwrap())
            .collect();
        assert_eq!(
            found,
            [
                "bin/zig",
                "lib/gristmill/zig/zig",
                "/module/ziglang/zig",
                "lib/python3.13/site-packages/ziglang/zig",
                "lib/python3.13/dist-packages/ziglang/zig",
                "lib/python3.9/site-packages/ziglang/zig",
                "lib/python3.9/dist-packages/ziglang/zig",
            ]
        );
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn files_of_other_users_are_not_run() {
        let file = std::env::temp_dir().join(format!("gristmill-owner-{}", std::process::id()));
        assert!(!trusted(&file));
        std::fs::write(&file, "").unwrap();
        assert!(trusted(&file));
        // Only root can give a file away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
            assert!(!trusted(&file));
        }
        std::fs::remove_file(file).unwrap();
    }
}
