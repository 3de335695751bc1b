//! Local store of models: one folder with a subfolder for each repository or server.
//!
//! Files are stored at `OWNER/REPOSITORY/FILE`, or `https+/HOST+PORT/FILE` for a plain HTTP server.
//! They are plain files that any program may read, each with its checksum in a `sha256sum` file
//! next to it.
//!
//! Other programs may put files and links there. Links are skipped; files without a record are
//! listed but never removed.

use crate::error::Error;
use crate::folder::{EntryKind, Folder};
use crate::progress::Progress;
use crate::record::{CHECKSUM, Record, Stamp, finished, hash, hexadecimal};
use crate::repository::ENDING;
use crate::repository::{
    DEPTH, Name, Repository, is_repository_part, is_safe, is_scheme_folder, is_visible,
};
use crate::select;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A folder of models.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// A stored model, complete or partial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredModel {
    /// Name with the path of its file.
    pub name: Name,
    /// Paths of its files; the first one is to be opened.
    pub files: Vec<PathBuf>,
    /// Total size of its files in bytes.
    pub bytes: u64,
    /// Whether all files are complete.
    pub whole: bool,
    /// Whether all files were downloaded rather than put there by hand.
    pub fetched: bool,
}

/// Contents of the store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contents {
    /// Models, sorted by name.
    pub kept: Vec<StoredModel>,
    /// Entries that could be taken for models, but are neither read nor removed.
    ///
    /// They are links, special files, and names that are not displayed as they are.
    pub passed_over: Vec<PathBuf>,
}

/// Result of comparing a file with its record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The file is the downloaded one.
    Same,
    /// The file differs from its record.
    Changed,
    /// The file has no record: it was not downloaded.
    Unknown,
}

/// A file of a repository in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FoundFile {
    /// Size of the file in bytes.
    pub size: u64,
    /// Whether it has a record or the name of a partial file.
    pub ours: bool,
}

/// Files of a repository by path, without their records.
#[derive(Default)]
pub(crate) struct Files {
    pub found: BTreeMap<String, FoundFile>,
    /// Files with a record that do not exist.
    pub missing: Vec<String>,
    pub passed_over: Vec<String>,
}

impl Store {
    /// Creates a store at a folder, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Store {
        Store { root: root.into() }
    }
    /// Returns the user's store.
    ///
    /// It is `$GRISTMILL_MODELS`, else `$XDG_DATA_HOME/gristmill/models`, else
    /// `~/.local/share/gristmill/models`.
    ///
    /// # Errors
    /// [`Error::NoHome`] where none of the variables is an absolute path.
    pub fn user() -> Result<Store, Error> {
        let variable = |name| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|p| p.is_absolute())
        };
        let data = || {
            variable("XDG_DATA_HOME")
                .or_else(|| Some(variable("HOME")?.join(".local").join("share")))
        };
        let root =
            variable("GRISTMILL_MODELS").or_else(|| Some(data()?.join("gristmill").join("models")));
        root.map(Store::new).ok_or(Error::NoHome)
    }
    /// Returns the folder of the store.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// Returns the path of a file, for display and opening; writes go through descriptors.
    pub(crate) fn place(&self, repository: &Repository, file: &str) -> PathBuf {
        let [outer, inner] = repository.folders();
        self.root.join(outer).join(inner).join(file)
    }
    /// Returns the file to open of a complete model; None if nothing in its repository matches.
    ///
    /// Files are hashed if their size or date differs from the record, with progress events.
    ///
    /// # Errors
    /// When the name matches several models, or a file differs from the downloaded one.
    pub fn find(
        &self,
        name: &Name,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<PathBuf>, Error> {
        let files = self.files(&name.repository)?;
        let paths: Vec<&str> = files.found.keys().map(String::as_str).collect();
        let size = |file: &str| files.found.get(file).map_or(0, |found| found.size);
        let choice = match select::select(name, &paths, &size) {
            Ok(choice) => choice,
            Err(Error::NoFile { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        for file in &choice.files {
            if self.check(&name.repository, file, false, progress)? == Verdict::Changed {
                let name = Box::new(Name {
                    file: Some((*file).to_owned()),
                    ..name.clone()
                });
                return Err(Error::Changed {
                    path: self.place(&name.repository, file),
                    name,
                });
            }
        }
        Ok(Some(self.place(&name.repository, choice.files[0])))
    }
    /// Lists all models of the store.
    ///
    /// # Errors
    /// When a folder cannot be read.
    pub fn list(&self) -> Result<Contents, Error> {
        let mut out = Contents::default();
        let root = Folder::root(&self.root).or_else(|error| match error.kind() {
            // A file at the root's path counts as an empty store.
            io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(disk("read", &self.root)(error)),
        })?;
        let Some(root) = root else { return Ok(out) };
        let is_owner = |name: &str| is_repository_part(name) || is_scheme_folder(name);
        for outer in self.folders(&root, &self.root, &is_owner, &mut out.passed_over)? {
            let path = self.root.join(&outer);
            let Some(folder) = root.folder(&outer).map_err(disk("read", &path))? else {
                continue;
            };
            let repository = |inner: &str| Repository::from_folders(&outer, inner);
            let inner = self.folders(
                &folder,
                &path,
                &|name| repository(name).is_some(),
                &mut out.passed_over,
            )?;
            for repository in inner.iter().filter_map(|inner| repository(inner)) {
                let files = self.files(&repository)?;
                out.passed_over
                    .extend(files.passed_over.iter().map(|p| self.place(&repository, p)));
                out.kept.extend(self.models(&repository, &files));
            }
        }
        out.kept.sort_by_cached_key(|kept| kept.name.to_string());
        Ok(out)
    }
    /// Hashes all files of a model again, whatever their dates are.
    ///
    /// `progress` receives the file, the bytes hashed and the bytes to hash.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn verify(
        &self,
        kept: &StoredModel,
        progress: &mut dyn FnMut(&Path, u64, u64),
    ) -> Result<Verdict, Error> {
        let repository = &kept.name.repository;
        let folder = self.place(repository, "");
        let mut verdict = Verdict::Same;
        for path in &kept.files {
            let Some(file) = path.strip_prefix(&folder).ok().and_then(Path::to_str) else {
                continue;
            };
            let mut read = |p: Progress| {
                if let Progress::Checked { done, total, .. } = p {
                    progress(path, done, total);
                }
            };
            match self.check(repository, file, true, &mut read)? {
                Verdict::Same => {}
                Verdict::Unknown if verdict == Verdict::Same => verdict = Verdict::Unknown,
                Verdict::Unknown => {}
                Verdict::Changed => verdict = Verdict::Changed,
            }
        }
        Ok(verdict)
    }
    /// Compares a file with its record. It is hashed if its size or date differs, or if `always`.
    pub(crate) fn check(
        &self,
        repository: &Repository,
        file: &str,
        always: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Verdict, Error> {
        let path = self.place(repository, file);
        let failed = |error| disk("read", &path)(error);
        let Some((folder, name)) = self.enter(repository, file)? else {
            return Ok(Verdict::Unknown);
        };
        let Some(mut open) = folder.read(name).map_err(failed)? else {
            return Ok(Verdict::Unknown);
        };
        let Some(record) = Record::read(&folder, name).map_err(failed)? else {
            return Ok(Verdict::Unknown);
        };
        let stamp = Stamp::from_file(&open).map_err(failed)?;
        let recorded = record.stamp;
        let write = || {
            Record {
                stamp: Some(stamp),
                ..record.clone()
            }
            .write(&folder, name)
        };
        if !always && record.vouches(&folder, name, stamp).map_err(failed)? {
            if recorded.is_none() {
                // In a read-only store the two dates are simply compared again at the next use.
                let _ = write();
            }
            return Ok(Verdict::Same);
        }
        if recorded.is_some_and(|then| then.size != stamp.size) {
            return Ok(Verdict::Changed);
        }
        let (sum, _) = hash(&mut open, stamp.size, &mut |done| {
            progress(Progress::Checked {
                file,
                done,
                total: stamp.size,
            });
        })
        .map_err(failed)?;
        if hexadecimal(sum) != record.sha256 {
            return Ok(Verdict::Changed);
        }
        if recorded != Some(stamp)
            && let Err(why) = write()
        {
            progress(Progress::Unrecorded {
                file: &path,
                why: &why,
            });
        }
        Ok(Verdict::Same)
    }
    /// Opens the folder of a file; returns it with the file's name, or None if it does not exist.
    pub(crate) fn enter<'f>(
        &self,
        repository: &Repository,
        file: &'f str,
    ) -> Result<Option<(Folder, &'f str)>, Error> {
        let mut path = self.root.clone();
        let Some(mut folder) = Folder::root(&path).map_err(disk("read", &path))? else {
            return Ok(None);
        };
        let (inner, name) = file.rsplit_once('/').unwrap_or(("", file));
        let above = repository.folders();
        let parts = above.iter().map(String::as_str).chain(inner.split('/'));
        for part in parts.filter(|part| !part.is_empty()) {
            path.push(part);
            match folder.folder(part).map_err(disk("read", &path))? {
                Some(inner) => folder = inner,
                None => return Ok(None),
            }
        }
        Ok(Some((folder, name)))
    }
    /// Opens the folder of a file as [`Store::enter`] does, and creates missing folders.
    pub(crate) fn make<'f>(
        &self,
        repository: &Repository,
        file: &'f str,
    ) -> Result<(Folder, &'f str), Error> {
        let mut path = self.root.clone();
        let mut folder = Folder::make_root(&path).map_err(disk("make", &path))?;
        let (inner, name) = file.rsplit_once('/').unwrap_or(("", file));
        let above = repository.folders();
        let parts = above.iter().map(String::as_str).chain(inner.split('/'));
        for part in parts.filter(|part| !part.is_empty()) {
            path.push(part);
            folder = folder.make_folder(part).map_err(disk("make", &path))?;
        }
        Ok((folder, name))
    }
    /// Returns the names of the subfolders that are owners or repositories.
    ///
    /// Other entries belong to other programs (a README, `.DS_Store`, `lost+found`) and hold no
    /// models; only those that could be taken for one are reported as passed over.
    fn folders(
        &self,
        folder: &Folder,
        path: &Path,
        is_ours: &dyn Fn(&str) -> bool,
        passed_over: &mut Vec<PathBuf>,
    ) -> Result<Vec<String>, Error> {
        let mut out = Vec::new();
        for (name, kind) in folder.entries().map_err(disk("read", path))? {
            if kind == EntryKind::Folder && is_ours(&name) {
                out.push(name);
            } else if !is_visible(&name) || kind == EntryKind::Other && !name.starts_with('.') {
                passed_over.push(path.join(name));
            }
        }
        Ok(out)
    }
    /// Groups the files of a repository into models, complete and partial.
    pub(crate) fn models(&self, repository: &Repository, files: &Files) -> Vec<StoredModel> {
        let paths: Vec<&str> = files.found.keys().map(String::as_str).collect();
        let models = select::models(&paths);
        let whole: Vec<&str> = models
            .iter()
            .flat_map(|m| m.files.iter().copied())
            .collect();
        // Partial files and incomplete split models. Other files are not models.
        let rest = paths
            .iter()
            .copied()
            .filter(|p| !whole.contains(p) && (files.found[*p].ours || p.ends_with(ENDING)));
        let groups = models
            .iter()
            .map(|m| (m.files.clone(), true))
            .chain(rest.map(|p| (vec![p], false)));
        let kept = |(group, whole): (Vec<&str>, bool)| {
            let found = || group.iter().map(|f| files.found[*f]);
            let file = Some(finished(group[0]).unwrap_or(group[0]).to_owned());
            StoredModel {
                name: Name {
                    repository: repository.clone(),
                    file,
                    query: None,
                },
                files: group.iter().map(|f| self.place(repository, f)).collect(),
                bytes: found().map(|f| f.size).sum(),
                whole,
                fetched: found().all(|f| f.ours),
            }
        };
        groups.map(kept).collect()
    }
    /// Returns all files of a repository in the store.
    pub(crate) fn files(&self, repository: &Repository) -> Result<Files, Error> {
        let mut out = Files::default();
        if let Some((folder, _)) = self.enter(repository, "")? {
            self.walk(repository, &folder, "", &mut out)?;
        }
        Ok(out)
    }
    fn walk(
        &self,
        repository: &Repository,
        folder: &Folder,
        path: &str,
        out: &mut Files,
    ) -> Result<(), Error> {
        let here = self.place(repository, path);
        let failed = |error| disk("read", &here)(error);
        let entries = folder.entries().map_err(failed)?;
        let there = |name: &str| entries.binary_search_by(|e| e.0.as_str().cmp(name)).is_ok();
        for (name, kind) in &entries {
            let inner = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}/{name}")
            };
            // Files of the store have a safe name before their suffixes, which exceed
            // the limit of names.
            let bare = finished(name)
                .or(name.strip_suffix(CHECKSUM))
                .unwrap_or(name);
            if !is_safe(bare) || inner.split('/').count() > DEPTH {
                out.passed_over.push(inner);
                continue;
            }
            match kind {
                EntryKind::Other => out.passed_over.push(inner),
                EntryKind::Folder => {
                    // It was replaced by a link since the folder was read.
                    match folder.folder(name) {
                        Ok(Some(folder)) => self.walk(repository, &folder, &inner, out)?,
                        Ok(None) => {}
                        Err(_) => out.passed_over.push(inner),
                    }
                }
                EntryKind::File
                    if name.ends_with(CHECKSUM)
                        && Record::read(folder, bare).map_err(failed)?.is_some() =>
                {
                    if !there(bare) {
                        out.missing
                            .push(inner[..inner.len() - CHECKSUM.len()].to_owned());
                    }
                }
                EntryKind::File => {
                    let ours = finished(name).is_some()
                        || Record::read(folder, name).is_ok_and(|r| r.is_some());
                    // It was removed since the folder was read, or is no longer a file.
                    let Ok(Some(file)) = folder.read(name) else {
                        continue;
                    };
                    let size = file.metadata().map_err(failed)?.len();
                    out.found.insert(inner, FoundFile { size, ours });
                }
            }
        }
        Ok(())
    }
}

/// Returns a closure that turns an I/O error on `path` into [`Error::Disk`].
pub(crate) fn disk(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |error| Error::Disk { what, path, error }
}
