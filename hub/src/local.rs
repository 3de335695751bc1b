//! Models in a folder of one's own, and what else a file is called.

use crate::file_name::{distinct, ends_in, is_projector, model};
use crate::name::SHORT_NAMES;
use crate::repository::{Name, Repository, SCHEME};
use crate::select::models;
use crate::store::Store;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A model in a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Local {
    /// Its file, or the first of them.
    pub path: PathBuf,
    /// Its name, which no other of the folder has.
    pub name: String,
}

/// Folders below one that are looked into: `PUBLISHER/REPOSITORY/FILE`, as programs keep what they fetch.
const MAX_DEPTH: usize = 3;
/// Most entries that are looked at: a folder with more is no folder of models.
const MAX_ENTRIES: usize = 20_000;

/// The models of a folder and of those in it, by name; of several files each counts once, and what reads pictures for another not at all. What is
/// hidden, and what is not whole, is left out.
///
/// # Errors
/// When the folder cannot be read, or holds too much.
pub fn models_in(folder: &Path) -> io::Result<Vec<Local>> {
    let mut paths = Vec::new();
    collect(folder, "", MAX_DEPTH, &mut 0, &mut paths)?;
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let found: Vec<String> =
        models(&paths).into_iter().map(|found| found.files[0].to_owned()).filter(|file| !is_projector(file)).collect();
    let mut short: BTreeMap<String, usize> = BTreeMap::new();
    for file in &found {
        *short.entry(file_stem(file).to_lowercase()).or_default() += 1;
    }
    let name = |file: &str| match short[&file_stem(file).to_lowercase()] {
        1 => file_stem(file).to_owned(),
        _ => model(file).to_owned(),
    };
    Ok(found.iter().map(|file| Local { path: folder.join(file), name: name(file) }).collect())
}

/// What a model's file is called without its folder, its ending and the number of a part.
pub fn file_stem(file: &str) -> &str {
    let name = model(file);
    name.rsplit('/').next().unwrap_or(name)
}

/// Paths of files below `folder`, from it.
fn collect(folder: &Path, under: &str, depth: usize, seen: &mut usize, out: &mut Vec<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder.join(under))? {
        *seen += 1;
        if *seen > MAX_ENTRIES {
            return Err(io::Error::other(format!("there are more than {MAX_ENTRIES} files in it")));
        }
        let entry = entry?;
        // What is no text cannot be asked for.
        let Some(name) = entry.file_name().to_str().filter(|name| !name.starts_with('.')).map(str::to_owned) else {
            continue;
        };
        let path = if under.is_empty() { name } else { format!("{under}/{name}") };
        // Files may be links, as some programs keep them; a link to a folder may lead back.
        let kind = entry.file_type()?;
        if kind.is_dir() && depth > 1 {
            // One that may not be read has nothing for us.
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
    /// What a file of this store is called by: `hf:ORG/REPO:FILE` and its shorter forms, or its address. Nothing where it is no file of the store.
    pub fn names_of(&self, path: &Path) -> Vec<String> {
        let parts = path.strip_prefix(self.root()).ok().and_then(Path::to_str).map(|path| path.splitn(3, '/'));
        let Some([outer, inner, file]) = parts.and_then(|parts| <[&str; 3]>::try_from(parts.collect::<Vec<_>>()).ok())
        else {
            return Vec::new();
        };
        let Some(repository) = Repository::of_folders(outer, inner) else { return Vec::new() };
        let named =
            |file: &str| Name { repository: repository.clone(), file: Some(file.to_owned()), query: None }.to_string();
        if let Repository::Server { .. } = repository {
            return vec![named(file)];
        }
        let word = distinct(&[file.to_owned()]).remove(0);
        let full = [file, &word].map(named);
        let bare = full.clone().map(|name| name.trim_start_matches(SCHEME).to_owned());
        let stands = |text: &str| {
            let Ok(Some(Name { repository: other, file: Some(wanted), .. })) = Name::parse(text) else { return false };
            other == repository && ends_in(file, &wanted)
        };
        let short = SHORT_NAMES.iter().filter(|row| stands(row.stands_for)).map(|row| row.name.to_owned());
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
            .map(|one| (one.name.as_str(), one.path.strip_prefix(folder.path()).unwrap().to_str().unwrap()))
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
        let names = store.names_of(Path::new("/models/unsloth/GLM-4.7-Flash-GGUF/GLM-4.7-Flash-Q4_K_M.gguf"));
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
                .names_of(Path::new("/models/unsloth/GLM-4.7-Flash-GGUF/GLM-Q8_0.gguf"))
                .contains(&"glm-4.7-flash".into())
        );
        assert_eq!(store.names_of(Path::new("/elsewhere/m.gguf")), [""; 0]);
        let address = "https://models.example:81/a/m.gguf";
        assert_eq!(store.names_of(Path::new("/models/https+/models.example+81/a/m.gguf")), [address]);
    }
}
