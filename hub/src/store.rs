//! Where models are kept: `OWNER/REPOSITORY/FILE` in one folder, plain files that any program may read, each with its
//! checksum beside it in the form of `sha256sum`.

use crate::client::is_sha256;
use crate::error::Error;
use crate::name::{Name, Repository};
use crate::select;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What a checksum's file ends in.
const CHECKSUM: &str = ".sha256";
/// What a file ends in that is not whole.
pub(crate) const PART: &str = ".part";

/// The folder.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// A model that is kept, or a part of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Its full name.
    pub name: Name,
    /// Its files; the first is the one to open.
    pub files: Vec<PathBuf>,
    /// Bytes of them together.
    pub bytes: u64,
    /// Is it all there?
    pub whole: bool,
}

impl Store {
    /// That folder, which need not be there yet.
    pub fn new(root: impl Into<PathBuf>) -> Store {
        Store { root: root.into() }
    }
    /// The user's: `$GRISTMILL_MODELS`, else `$XDG_DATA_HOME/gristmill/models`, else `~/.local/share/gristmill/models`.
    ///
    /// # Errors
    /// [`Error::NoHome`] where none of them is set.
    pub fn user() -> Result<Store, Error> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let data = || variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local").join("share")));
        let root = variable("GRISTMILL_MODELS").or_else(|| Some(data()?.join("gristmill").join("models")));
        root.map(Store::new).ok_or(Error::NoHome)
    }
    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// Where a file is, or would be, kept.
    pub(crate) fn place(&self, repository: &Repository, file: &str) -> PathBuf {
        self.root.join(&repository.owner).join(&repository.name).join(file)
    }
    /// The file to open of a model that is kept whole; none if nothing of its repository fits.
    ///
    /// # Errors
    /// When the name fits several.
    pub fn find(&self, name: &Name) -> Result<Option<PathBuf>, Error> {
        let files = self.files(&name.repository)?;
        let paths: Vec<&str> = files.iter().map(String::as_str).collect();
        match select::select(name, &paths) {
            Ok(choice) => Ok(Some(self.place(&name.repository, choice.files[0]))),
            Err(Error::NoFile { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
    /// All that is kept, by name.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn list(&self) -> Result<Vec<Kept>, Error> {
        let mut out = Vec::new();
        for owner in names(&self.root)? {
            for name in names(&self.root.join(&owner))? {
                let repository = Repository { owner: owner.clone(), name };
                let files = self.files(&repository)?;
                let paths: Vec<&str> = files.iter().map(String::as_str).collect();
                let models = select::models(&paths);
                let whole: Vec<&str> = models.iter().flat_map(|m| m.files.iter().copied()).collect();
                // Fetched in part: of a file, or of the files of a split model.
                let rest = paths.iter().copied().filter(|p| !whole.contains(p) && !p.ends_with(CHECKSUM));
                let groups = models.iter().map(|m| (m.files.clone(), true)).chain(rest.map(|p| (vec![p], false)));
                for (group, whole) in groups {
                    let files: Vec<PathBuf> = group.iter().map(|f| self.place(&repository, f)).collect();
                    let bytes = files.iter().filter_map(|f| fs::metadata(f).ok()).map(|m| m.len()).sum();
                    let file = Some(finished(group[0]).to_owned());
                    out.push(Kept { name: Name { repository: repository.clone(), file }, files, bytes, whole });
                }
            }
        }
        out.sort_by_cached_key(|kept| kept.name.to_string());
        Ok(out)
    }
    /// Removes what `name` means, also where it is not whole; without a file, all of its repository. Returns what is gone.
    ///
    /// # Errors
    /// When there is nothing of that name, or it cannot be removed.
    pub fn remove(&self, name: &Name) -> Result<Vec<Kept>, Error> {
        let same = |kept: &Kept| kept.name.repository == name.repository;
        let all: Vec<Kept> = self.list()?.into_iter().filter(same).collect();
        let gone: Vec<Kept> = match &name.file {
            None => all,
            Some(wanted) => {
                // What has come in part has the name of what it would have been.
                let file = |kept: &Kept| kept.name.file.clone().unwrap_or_default();
                let exact = all.iter().any(|k| select::model(&file(k)) == select::model(wanted));
                let fits = |kept: &Kept| match exact {
                    true => select::model(&file(kept)) == select::model(wanted),
                    false => select::ends_in(&file(kept), wanted),
                };
                let gone: Vec<Kept> = all.into_iter().filter(fits).collect();
                let mut models: Vec<String> = gone.iter().map(|k| select::model(&file(k)).to_owned()).collect();
                models.dedup();
                if models.len() > 1 {
                    return Err(Error::Several { repository: name.repository.clone(), files: models });
                }
                gone
            }
        };
        if gone.is_empty() {
            return Err(Error::NotKept(name.clone()));
        }
        for file in gone.iter().flat_map(|k| &k.files) {
            fs::remove_file(file).map_err(disk("remove", file))?;
            match fs::remove_file(beside(file)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(disk("remove", &beside(file))(error));
                }
                _ => {}
            }
            // Folders go with the last file in them.
            let folders = file.ancestors().skip(1).take_while(|folder| *folder != self.root);
            for folder in folders {
                if fs::remove_dir(folder).is_err() {
                    break;
                }
            }
        }
        Ok(gone)
    }
    /// The checksum that was recorded when a file was fetched.
    pub(crate) fn checksum(&self, file: &Path) -> Option<String> {
        let text = fs::read_to_string(beside(file)).ok()?;
        text.split_whitespace().next().filter(|s| is_sha256(s)).map(str::to_owned)
    }
    /// Records a file's checksum.
    pub(crate) fn record(&self, file: &Path, sha256: &str) -> Result<(), Error> {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let to = beside(file);
        fs::write(&to, format!("{sha256}  {name}\n")).map_err(disk("write", &to))
    }
    /// Paths of all files of a repository that are kept, in it.
    fn files(&self, repository: &Repository) -> Result<Vec<String>, Error> {
        let root = self.place(repository, "");
        let mut out = Vec::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for name in names(&root.join(&folder))? {
                let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                if root.join(&path).is_dir() { folders.push(path) } else { out.push(path) }
            }
        }
        out.sort_unstable();
        Ok(out)
    }
}

/// The name that a file has when it is whole.
fn finished(path: &str) -> &str {
    match path.strip_suffix(PART) {
        Some(rest) => rest.rsplit_once('.').map_or(rest, |r| r.0),
        None => path,
    }
}

fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(CHECKSUM);
    name.into()
}

/// Names in a folder; none if it is not there.
fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(vec![]);
        }
        entries => entries.map_err(disk("read", folder))?,
    };
    // What is no text was not put there by us.
    let mut out: Vec<String> = entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    out.sort_unstable();
    Ok(out)
}

/// An error of the disk with that file.
pub(crate) fn disk(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |error| Error::Disk { what, path, error }
}
