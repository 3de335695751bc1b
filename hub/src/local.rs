//! Models in any local folder, and the names of a file of the store.

use crate::file_name::{distinct, ends_in, is_projector, model};
use crate::name::SHORT_NAMES;
use crate::repository::{Name, Repository, SCHEME};
use crate::select::models;
use crate::store::Store;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A model in a local folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Local {
    /// Path of its file, or of the first part of a split model.
    pub path: PathBuf,
    /// Name that is unique in the folder.
    pub name: String,
}

/// Levels of folders that are searched: `PUBLISHER/REPOSITORY/FILE`, the layout of other programs.
const MAX_DEPTH: usize = 3;
/// Maximum number of entries visited; a larger folder is not one of models.
const MAX_ENTRIES: usize = 20_000;

/// Finds the models in a folder and its subfolders, sorted by path.
///
/// A split model counts once. Multimodal projectors, hidden files and incomplete split
/// models are left out.
///
/// # Errors
/// When the folder cannot be read or has more than 20 000 entries.
pub fn models_in(folder: &Path) -> io::Result<Vec<Local>> {
    let mut paths = Vec::new();
    collect(folder, "", MAX_DEPTH, &mut 0, &mut paths)?;
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let found: Vec<String> = models(&paths)
        .into_iter()
        .map(|found| found.files[0].to_owned())
        .filter(|file| !is_projector(file))
        .collect();
    let mut short: BTreeMap<String, usize> = BTreeMap::new();
    for file in &found {
        *short.entry(file_stem(file).to_lowercase()).or_default() += 1;
    }
    let name = |file: &str| match short[&file_stem(file).to_lowercase()] {
        1 => file_stem(file).to_owned(),
        _ => model(file).to_owned(),
    };
    Ok(found
        .iter()
        .map(|file| Local {
            path: folder.join(file),
            name: name(file),
        })
        .collect())
}

/// Returns a model's file name without its folder, its ending and its part number.
pub fn file_stem(file: &str) -> &str {
    let name = model(file);
    name.rsplit('/').next().unwrap_or(name)
}

/// Returns whether a file's name is that of a blob in Ollama's store: `sha256-` and 64 hexadecimal
/// digits.
pub fn is_ollama_blob(file: &str) -> bool {
    let sum = file
        .strip_prefix("sha256-")
        .or(file.strip_prefix("sha256:"));
    sum.is_some_and(|sum| sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Appends the paths of the files below `folder/under`, relative to `folder`.
fn collect(
    folder: &Path,
    under: &str,
    depth: usize,
    seen: &mut usize,
    out: &mut Vec<String>,
) -> io::Result<()> {
    for entry in std::fs::read_dir(folder.join(under))? {
        *seen += 1;
        if *seen > MAX_ENTRIES {
            return Err(io::Error::other(format!(
                "there are more than {MAX_ENTRIES} files in it"
            )));
        }
        let entry = entry?;
        // A name that is not UTF-8 cannot be requested.
        let Some(name) = entry
            .file_name()
            .to_str()
            .filter(|name| !name.starts_with('.'))
            .map(str::to_owned)
        else {
            continue;
        };
        let path = if under.is_empty() {
            name
        } else {
            format!("{under}/{name}")
        };
        // Links to files are followed, as some programs store files so; links to
        // folders may be cyclic.
        let kind = entry.file_type()?;
        if kind.is_dir() && depth > 1 {
            // An unreadable subfolder is skipped.
            match collect(folder, &path, depth - 1, seen, out) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                other => other?,
            }
        } else if kind.is_file() || kind.is_symlink() && entry.path().is_file() {
            out.push(path);
        }
    }
    Ok(())
}

impl Store {
    /// Returns the names of a file of this store; empty if it is not in the store.
    ///
    /// They are `hf:ORG/REPO:FILE` and its shorter forms, or the URL of a server's file.
    pub fn names_of(&self, path: &Path) -> Vec<String> {
        let parts = path
            .strip_prefix(self.root())
            .ok()
            .and_then(Path::to_str)
            .map(|path| path.splitn(3, '/'));
        let Some([outer, inner, file]) =
            parts.and_then(|parts| <[&str; 3]>::try_from(parts.collect::<Vec<_>>()).ok())
        else {
            return Vec::new();
        };
        let Some(repository) = Repository::from_folders(outer, inner) else {
            return Vec::new();
        };
        let named = |file: &str| {
            Name {
                repository: repository.clone(),
                file: Some(file.to_owned()),
                query: None,
            }
            .to_string()
        };
        if let Repository::Server { .. } = repository {
            return vec![named(file)];
        }
        let word = distinct(&[file.to_owned()]).remove(0);
        let full = [file, &word].map(named);
        let bare = full
            .clone()
            .map(|name| name.trim_start_matches(SCHEME).to_owned());
        let stands = |text: &str| {
            let Ok(Some(Name {
                repository: other,
                file: Some(wanted),
                ..
            })) = Name::parse(text)
            else {
                return false;
            };
            other == repository && ends_in(file, &wanted)
        };
        let short = SHORT_NAMES
            .iter()
            .filter(|row| stands(row.stands_for))
            .map(|row| row.name.to_owned());
        full.into_iter().chain(bare).chain(short).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_of_a_folder_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        for file in [
            "a-Q4_0.gguf",
            "mmproj-a-f16.gguf",
            "notes.txt",
            ".hidden.gguf",
            "big-00001-of-00002.gguf",
            "big-00002-of-00002.gguf",
            "cut-00001-of-00002.gguf",
            "one/x/m.GGUF",
            "two/x/m.gguf",
            "two/x/other.gguf",
            "too/far/down/here.gguf",
        ] {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(folder.path(), folder.path().join("loop")).unwrap();
        let found = models_in(folder.path()).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|one| {
                (
                    one.name.as_str(),
                    one.path
                        .strip_prefix(folder.path())
                        .unwrap()
                        .to_str()
                        .unwrap(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("a-Q4_0", "a-Q4_0.gguf"),
                ("big", "big-00001-of-00002.gguf"),
                ("one/x/m", "one/x/m.GGUF"),
                ("two/x/m", "two/x/m.gguf"),
                ("other", "two/x/other.gguf"),
            ]
        );
        assert!(models_in(&folder.path().join("nowhere")).is_err());
    }

    #[test]
    fn a_file_of_the_store_has_the_names_that_fetched_it() {
        let store = Store::new("/models");
        let names = store.names_of(Path::new(
            "/models/unsloth/GLM-4.7-Flash-GGUF/GLM-4.7-Flash-Q4_K_M.gguf",
        ));
        for name in [
            "hf:unsloth/GLM-4.7-Flash-GGUF:GLM-4.7-Flash-Q4_K_M.gguf",
            "hf:unsloth/GLM-4.7-Flash-GGUF:Q4_K_M",
            "unsloth/GLM-4.7-Flash-GGUF:Q4_K_M",
            "glm-4.7-flash",
        ] {
            assert!(names.contains(&name.to_owned()), "{name}: {names:?}");
        }
        assert!(
            !store
                .names_of(Path::new(
                    "/models/unsloth/GLM-4.7-Flash-GGUF/GLM-Q8_0.gguf"
                ))
                .contains(&"glm-4.7-flash".into())
        );
        assert_eq!(store.names_of(Path::new("/elsewhere/m.gguf")), [""; 0]);
        let address = "https://models.example:81/a/m.gguf";
        assert_eq!(
            store.names_of(Path::new("/models/https+/models.example+81/a/m.gguf")),
            [address]
        );
    }
}
