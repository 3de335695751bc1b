//! Removes downloaded files, and only those.

use crate::error::Error;
use crate::file_name;
use crate::folder::{EntryKind, Folder};
use crate::offer::Offer;
use crate::record::{Record, finished, record_name};
use crate::repository::{Name, Repository};
use crate::store::{Files, Store, StoredModel, disk};
use std::path::{Path, PathBuf};

/// Result of removing a model.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Removed {
    /// Models of which files were removed, with those files and their bytes.
    pub gone: Vec<StoredModel>,
    /// Files that were left in place because they were not downloaded.
    pub left: Vec<PathBuf>,
}

impl Store {
    /// Removes the downloaded files that `name` matches, including partial ones.
    ///
    /// A name without a file means the whole repository. Files without a record, links, and folders
    /// that do not become empty are left.
    ///
    /// # Errors
    /// When nothing matches, nothing that matches was downloaded, or a file cannot be removed.
    pub fn remove(&self, name: &Name) -> Result<Removed, Error> {
        let repository = &name.repository;
        let files = self.files(repository)?;
        let meant = meant(name, self.models(repository, &files))?;
        let mut removed = Removed::default();
        let folder = self.place(repository, "");
        for mut kept in meant {
            (kept.files, kept.bytes) =
                self.unlink_all(&folder, &kept, &files, &mut removed.left)?;
            if !kept.files.is_empty() {
                removed.gone.push(kept);
            }
        }
        if name.file.is_none() {
            for file in &files.missing {
                self.unlink(repository, file)?;
            }
            let others = files
                .found
                .iter()
                .filter(|(_, found)| !found.ours)
                .map(|(path, _)| path);
            removed.left = others
                .chain(&files.passed_over)
                .map(|path| self.place(repository, path))
                .collect();
        }
        match removed.gone.is_empty() {
            true if removed.left.is_empty() => Err(Error::NotKept(name.clone())),
            true => Err(Error::NotFetched {
                name: name.clone().into(),
                path: removed.left.swap_remove(0),
            }),
            false => Ok(removed),
        }
    }

    /// Removes the downloaded files of a model. Returns them and their total bytes.
    fn unlink_all(
        &self,
        folder: &Path,
        kept: &StoredModel,
        files: &Files,
        left: &mut Vec<PathBuf>,
    ) -> Result<(Vec<PathBuf>, u64), Error> {
        let (mut gone, mut bytes) = (Vec::new(), 0);
        for path in &kept.files {
            let file = path
                .strip_prefix(folder)
                .ok()
                .and_then(Path::to_str)
                .unwrap_or_default();
            if self.unlink(&kept.name.repository, file)? {
                bytes += files.found.get(file).map_or(0, |found| found.size);
                gone.push(path.clone());
            } else {
                left.push(path.clone());
            }
        }
        Ok((gone, bytes))
    }

    /// Removes a downloaded file, its record and the folders that become empty.
    /// Returns whether it did.
    fn unlink(&self, repository: &Repository, file: &str) -> Result<bool, Error> {
        let path = self.place(repository, file);
        let failed = |error| disk("remove", &path)(error);
        let Some((folder, name)) = self.enter(repository, file)? else {
            return Ok(false);
        };
        let recorded = Record::read(&folder, name).map_err(failed)?.is_some();
        let plain = matches!(
            folder.kind(name).map_err(failed)?,
            None | Some(EntryKind::File)
        );
        if !plain || !recorded && finished(name).is_none() {
            return Ok(false);
        }
        folder.remove(name).map_err(failed)?;
        if recorded {
            folder.remove(&record_name(name)).map_err(failed)?;
        }
        self.remove_folders(repository, file)?;
        Ok(true)
    }

    /// Removes the folders above a file, innermost first, until one is not empty.
    fn remove_folders(&self, repository: &Repository, file: &str) -> Result<(), Error> {
        let mut inner = file;
        while let Some((above, _)) = inner.rsplit_once('/') {
            match self.enter(repository, above)? {
                Some((folder, name)) if folder.remove_empty(name) => inner = above,
                _ => return Ok(()),
            }
        }
        let Some(root) = Folder::root(self.root()).map_err(disk("read", self.root()))? else {
            return Ok(());
        };
        let [outer, inner] = repository.folders();
        let above = root
            .folder(&outer)
            .map_err(disk("read", &self.root().join(&outer)))?;
        if above.is_some_and(|above| above.remove_empty(&inner)) {
            root.remove_empty(&outer);
        }
        Ok(())
    }
}

/// Returns the models of a repository that a name matches.
fn meant(name: &Name, all: Vec<StoredModel>) -> Result<Vec<StoredModel>, Error> {
    let Some(wanted) = &name.file else {
        return Ok(all);
    };
    // A partial file carries the name of the complete one.
    let file = |kept: &StoredModel| kept.name.file.clone().unwrap_or_default();
    // The path of a URL is matched exactly, never as a suffix.
    let exact = matches!(name.repository, Repository::Server { .. })
        || all
            .iter()
            .any(|k| file_name::model(&file(k)) == file_name::model(wanted));
    let fits = |kept: &StoredModel| match exact {
        true => file_name::model(&file(kept)) == file_name::model(wanted),
        false => file_name::ends_in(&file(kept), wanted),
    };
    let meant: Vec<StoredModel> = all.into_iter().filter(fits).collect();
    let mut models: Vec<(String, u64)> = Vec::new();
    for kept in &meant {
        let model = file_name::model(&file(kept)).to_owned();
        match models.last_mut().filter(|(last, _)| *last == model) {
            Some((_, bytes)) => *bytes += kept.bytes,
            None => models.push((model, kept.bytes)),
        }
    }
    match models.len() {
        0 | 1 => Ok(meant),
        _ => Err(Error::Several {
            repository: name.repository.clone(),
            models: Offer::all(models),
        }),
    }
}
