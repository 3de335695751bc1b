//! On-disk store of compiled kernels.
//!
//! One directory, private to the user, with one file per entry: `<key in hex>.kernel`, which
//! contains `blake3(key ‖ payload) ‖ payload`. An entry is written under a temporary name, synced
//! and renamed, so that a killed process leaves at most a temporary directory. Every read verifies
//! the hash, so that a damaged, truncated or renamed entry counts as absent. Readers receive
//! verified bytes, never a path (see [`crate::image`]).
//!
//! The hash is not a signature: anyone with write access to the directory can make the user run
//! code. So a directory is not used if it belongs to another user (other than root, which has that
//! power anyway) or if others can write to it or replace it. A directory that others can only read
//! is restricted to mode 0700 if it contains nothing but cache entries, and is otherwise not used:
//! a home directory given by mistake keeps its mode.
//!
//! A store never turns a working run into a failure. [`Store::user`] continues without a directory
//! that cannot be used, and [`Store::put`] without an entry that cannot be written;
//! [`Store::warnings`] reports the reason once.

#[cfg(not(target_family = "wasm"))]
mod folder;
// Files cannot be kept: a store is always without a directory.
#[cfg(target_family = "wasm")]
#[path = "store/no_folder.rs"]
mod folder;

use crate::Error;
#[cfg(target_family = "wasm")]
pub use folder::NoTemporary as Temporary;
#[cfg(not(target_family = "wasm"))]
pub use folder::Temporary;
#[cfg(not(target_family = "wasm"))]
use folder::{Entry, Folder};
#[cfg(target_family = "wasm")]
use folder::{NoEntry as Entry, NoFolder as Folder};
use folder::{fault, is_no_entry};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

const SUFFIX: &str = ".kernel";
/// Default size limit of the user's store, bytes. The kernels and their texts take about 10 MB for
/// a model, and 60 MB for all common ones on one device.
const DEFAULT_LIMIT: u64 = 512 * MB;
/// Unit of sizes in messages and settings.
const MB: u64 = 1_000_000;
/// Length of the hash before a payload, bytes.
const SEAL: usize = 32;

/// Key of an entry: the hash of all its inputs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key([u8; 32]);

impl Key {
    /// Hashes the parts with their lengths, so that `["ab", "c"]` and `["a", "bc"]` differ.
    pub fn from_parts<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> Key {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            let part = part.as_ref();
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Key(*hasher.finalize().as_bytes())
    }
    /// The raw 32-byte hash.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
    /// Formats the hash as 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }
    /// File name of the entry.
    fn file(&self) -> String {
        self.hex() + SUFFIX
    }
    fn seal(&self, payload: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(payload);
        hasher.finalize()
    }
}

impl From<[u8; 32]> for Key {
    fn from(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }
}

/// A directory of entries, or a store without a directory that keeps nothing.
#[derive(Debug)]
pub struct Store {
    folder: Option<Folder>,
    limit: u64,
    /// Warnings that were not reported yet.
    warnings: Mutex<Vec<Error>>,
    /// Whether a failure to keep an entry was already reported.
    told: AtomicBool,
}

impl Store {
    /// Opens the user's store, or one without a directory and with a warning if
    /// that is not possible.
    ///
    /// The directory is `$GRISTMILL_CACHE`, else `$CACHE_DIRECTORY` (set by systemd for a service
    /// with a cache), else `$XDG_CACHE_HOME/gristmill`, else `~/.cache/gristmill`. Where that
    /// cannot be created, as for a user without a home directory, it is `gristmill.UID` in
    /// `$TMPDIR`, `/var/tmp` or `/tmp`. Its limit is `$GRISTMILL_CACHE_LIMIT` MB (default 512).
    ///
    /// # Errors
    /// [`Error::Setting`] when the limit is not a number.
    pub fn user() -> Result<Store, Error> {
        let variable = |name| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        // A service may have several directories; the first is used.
        let first = |list: PathBuf| Some(PathBuf::from(list.to_str()?.split(':').next()?));
        let of_service = || {
            variable("CACHE_DIRECTORY")
                .and_then(first)
                .filter(|p| p.is_absolute())
        };
        let limit = limit_setting()?;
        if let Some(path) = variable("GRISTMILL_CACHE").or_else(of_service) {
            return Ok(Store::open_or_without(path, limit));
        }
        let of_user = variable("XDG_CACHE_HOME")
            .filter(|p| p.is_absolute())
            .or_else(|| variable("HOME").map(|p| p.join(".cache")))
            .map(|p| p.join("gristmill"));
        let why = match of_user.map(|path| (Store::open(&path, limit), path)) {
            Some((Ok(store), _)) => return Ok(store),
            // A directory that was refused is the user's to mend.
            Some((Err(why), path)) if path.exists() => return Ok(Store::without(why)),
            Some((Err(why), _)) => why,
            None => {
                let why = "there is no home directory: HOME is not set";
                fault(Path::new("~/.cache/gristmill"), why)
            }
        };
        let places = [
            variable("TMPDIR"),
            Some("/var/tmp".into()),
            Some("/tmp".into()),
        ];
        let found = Store::in_one_of(places.into_iter().flatten(), limit);
        Ok(found.unwrap_or_else(|| Store::without(why)))
    }

    /// Opens the store of this user in the first usable directory for temporary files.
    fn in_one_of(places: impl IntoIterator<Item = PathBuf>, limit: u64) -> Option<Store> {
        let name = folder::name_of_user()?;
        // A directory that is missing is not made: it would have the wrong mode.
        let mut there = places.into_iter().filter(|place| place.is_dir());
        there.find_map(|place| Store::open(place.join(&name), limit).ok())
    }

    /// Opens the store in `path` with at most `limit` bytes, creating the directory if needed.
    ///
    /// # Errors
    /// [`Error::Cache`] for the directories that the module documentation excludes.
    pub fn open(path: impl Into<PathBuf>, limit: u64) -> Result<Store, Error> {
        let folder = Folder::open(&path.into(), is_entry)?;
        Ok(Store {
            folder: Some(folder),
            limit,
            warnings: Mutex::default(),
            told: AtomicBool::new(false),
        })
    }
    /// Like [`Store::open`], but an error becomes a warning of a store without a directory.
    pub fn open_or_without(path: impl Into<PathBuf>, limit: u64) -> Store {
        Store::open(path, limit).unwrap_or_else(Store::without)
    }
    /// Returns a store that keeps nothing, with `why` as its warning.
    pub fn without(why: Error) -> Store {
        let warnings = Mutex::new(vec![Error::NotKept(Box::new(why))]);
        Store {
            folder: None,
            limit: 0,
            warnings,
            told: AtomicBool::new(true),
        }
    }

    /// Directory of the store; `None` if it keeps nothing.
    pub fn path(&self) -> Option<&Path> {
        self.folder.as_ref().map(Folder::path)
    }
    /// Size limit of the entries, bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }
    /// Current size of all entries, bytes.
    pub fn size(&self) -> u64 {
        self.entries().iter().map(|e| e.bytes).sum()
    }
    /// Returns a user-visible line with its path and size.
    pub fn describe(&self) -> String {
        match self.path() {
            Some(path) => format!(
                "{}, {} of {} MB",
                path.display(),
                self.size() / MB,
                self.limit / MB
            ),
            None => "none: kernels are compiled whenever they are needed".into(),
        }
    }
    /// Takes the warnings that were not reported before.
    pub fn warnings(&self) -> Vec<Error> {
        std::mem::take(&mut self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the verified payload of an entry, or `None` if it is absent.
    ///
    /// A damaged entry, or anything else under its name, is removed and counts as absent. An entry
    /// that cannot be read at the moment counts as absent and is kept.
    pub fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        self.get_within(key, self.limit)
    }
    /// Like [`Store::get`], with a limit of `most` bytes on the payload; a longer entry is removed
    /// and counts as absent.
    pub fn get_within(&self, key: &Key, most: u64) -> Result<Option<Vec<u8>>, Error> {
        let Some(folder) = &self.folder else {
            return Ok(None);
        };
        let found = match folder.read(
            &key.file(),
            most.saturating_add(SEAL as u64).min(self.limit),
        ) {
            Ok(None) => return Ok(None),
            Ok(found) => found.filter(|(_, bytes)| bytes.len() >= SEAL),
            Err(error) if is_no_entry(error) => None,
            // The system is out of descriptors or memory, or the disk fails: the entry may be
            // intact the next time.
            Err(_) => return Ok(None),
        };
        let payload = found.and_then(|(file, mut bytes)| {
            let payload = bytes.split_off(SEAL);
            // Comparison of a `blake3::Hash` takes constant time.
            let whole = key.seal(&payload) == <[u8; SEAL]>::try_from(&bytes[..]).ok()?;
            // for the eviction order; a failure is harmless
            let _ = whole.then(|| file.set_modified(SystemTime::now()));
            whole.then_some(payload)
        });
        if payload.is_none() {
            folder.remove(&key.file());
        }
        Ok(payload)
    }

    /// Adds an entry, then evicts the least recently used ones beyond the limit.
    ///
    /// # Errors
    /// [`Error::Cache`] when it cannot be written or there is no directory, for callers that
    /// require it to be kept.
    pub fn put(&self, key: &Key, payload: &[u8]) -> Result<(), Error> {
        let Some(folder) = &self.folder else {
            return Err(fault(
                Path::new("none"),
                "there is no directory that can be used",
            ));
        };
        if payload.len() as u64 + SEAL as u64 > self.limit {
            return Ok(());
        }
        folder.write(&key.file(), &[key.seal(payload).as_bytes(), payload])?;
        self.evict(folder, key);
        Ok(())
    }

    /// Like [`Store::put`] for optional entries: a failure becomes a warning, the first time only.
    pub fn put_or_warn(&self, key: &Key, payload: &[u8]) {
        if self.folder.is_none() {
            return;
        }
        if let Err(error) = self.put(key, payload)
            && !self.told.swap(true, Ordering::Relaxed)
        {
            self.warn(Error::NotKept(Box::new(error)));
        }
    }

    /// Adds a warning to be reported by [`Store::warnings`].
    pub fn warn(&self, warning: Error) {
        self.warnings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(warning);
    }

    /// Removes an entry, for example a verified payload that is not usable here.
    pub fn remove(&self, key: &Key) {
        if let Some(folder) = &self.folder {
            folder.remove(&key.file());
        }
    }

    fn evict(&self, folder: &Folder, keep: &Key) {
        let keep = keep.file();
        let mut entries = self.entries();
        let mut total: u64 = entries.iter().map(|e| e.bytes).sum();
        entries.sort_by(|a, b| (a.modified, &a.name).cmp(&(b.modified, &b.name)));
        for entry in entries {
            if total <= self.limit {
                break;
            }
            // Another process may have removed or used it in the meantime, which is harmless for a
            // cache.
            if entry.name != keep && folder.remove(&entry.name) {
                total -= entry.bytes;
            }
        }
    }

    fn entries(&self) -> Vec<Entry> {
        self.folder
            .as_ref()
            .map_or_else(Vec::new, |folder| folder.entries(is_entry))
    }

    /// Creates a private directory for a compiler's files, removed on drop.
    ///
    /// It lies inside the store, or in a system directory for temporary files if the store is full,
    /// not writable or absent.
    pub fn temporary(&self) -> Result<Temporary, Error> {
        match self.folder.as_ref().map(Folder::temporary) {
            Some(Ok(temporary)) => Ok(temporary),
            _ => Temporary::elsewhere(),
        }
    }
}

/// Returns `$GRISTMILL_CACHE_LIMIT` in bytes, or the default.
fn limit_setting() -> Result<u64, Error> {
    let setting = std::env::var("GRISTMILL_CACHE_LIMIT").ok();
    let Some(text) = setting.filter(|v| !v.is_empty()) else {
        return Ok(DEFAULT_LIMIT);
    };
    let megabytes = text.trim().parse::<u64>().ok();
    megabytes
        .and_then(|n| n.checked_mul(MB))
        .ok_or_else(|| Error::Setting {
            setting: format!("GRISTMILL_CACHE_LIMIT={text}"),
            message: "not a number of MB".into(),
            hint: "for example GRISTMILL_CACHE_LIMIT=512".into(),
        })
}

fn is_entry(name: &str) -> bool {
    name.strip_suffix(SUFFIX)
        .is_some_and(|key| key.len() == 64 && key.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests;
