//! Compiled kernels on disk.
//!
//! One directory, private to the user, with one file an entry: `<key in hex>.kernel`, which holds
//! `blake3(key ‖ payload) ‖ payload`. An entry is written under a temporary name, synced and renamed, so that a process that
//! is killed leaves at most a temporary directory; and it is verified whenever it is read, so that a damaged, truncated or
//! renamed entry counts as absent. What a reader gets is bytes it has verified, never a path (see [`crate::image`]).
//!
//! The hash is no signature: whoever can write to the directory can make the user run code. So a directory that belongs to
//! someone else (but for root, who can do that anyway), or that others can write to or exchange, is not used. One that others can only read is closed to them (mode 0700) if
//! nothing but a cache lies in it, and not used otherwise: a user who names their home directory keeps its mode.
//!
//! A store never makes what works fail. [`Store::user`] goes on without a directory that cannot be used, and [`Store::keep`] without an
//! entry that cannot be written; [`Store::warnings`] tells why, once.

mod folder;

use crate::Error;
pub use folder::Temporary;
use folder::{Entry, Folder, fault};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

const SUFFIX: &str = ".kernel";
/// Bytes that the user's store holds unless said. GLM's kernels and their texts take 9 MB, those of every usual model for one device about 60.
const DEFAULT_LIMIT: u64 = 512 * MB;
/// What people are told sizes in, and say them in.
const MB: u64 = 1_000_000;
/// Bytes of the hash before a payload.
const SEAL: usize = 32;

/// Name of an entry: the hash of everything it depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of these parts; `["ab", "c"]` and `["a", "bc"]` differ.
    pub fn of<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> Key {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            let part = part.as_ref();
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Key(*hasher.finalize().as_bytes())
    }
    /// The hash.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
    /// As 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }
    /// Name of its file.
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

/// A directory of entries, or none: then nothing is kept.
#[derive(Debug)]
pub struct Store {
    folder: Option<Folder>,
    limit: u64,
    /// What was not said yet.
    warnings: Mutex<Vec<Error>>,
    /// Was it said that entries are not kept?
    told: AtomicBool,
}

impl Store {
    /// The user's store: `$GRISTMILL_CACHE`, else `$CACHE_DIRECTORY`, which systemd sets for a service with a cache, else
    /// `$XDG_CACHE_HOME/gristmill`, else `~/.cache/gristmill`, with at most `$GRISTMILL_CACHE_LIMIT` MB in it (512 unless said). Without a directory, and a warning that says why, where that cannot be used.
    ///
    /// # Errors
    /// [`Error::Setting`] when the limit is no number.
    pub fn user() -> Result<Store, Error> {
        let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        // A service may have several; the first will do.
        let first = |list: PathBuf| Some(PathBuf::from(list.to_str()?.split(':').next()?));
        let of_service = || variable("CACHE_DIRECTORY").and_then(first).filter(|p| p.is_absolute());
        let path = variable("GRISTMILL_CACHE")
            .or_else(of_service)
            .or_else(|| variable("XDG_CACHE_HOME").filter(|p| p.is_absolute()).map(|p| p.join("gristmill")))
            .or_else(|| variable("HOME").map(|p| p.join(".cache").join("gristmill")));
        let limit = match std::env::var("GRISTMILL_CACHE_LIMIT").ok().filter(|v| !v.is_empty()) {
            None => DEFAULT_LIMIT,
            Some(text) => {
                text.trim().parse::<u64>().ok().and_then(|n| n.checked_mul(MB)).ok_or_else(|| Error::Setting {
                    setting: format!("GRISTMILL_CACHE_LIMIT={text}"),
                    message: "not a number of MB".into(),
                    hint: "for example GRISTMILL_CACHE_LIMIT=512".into(),
                })?
            }
        };
        Ok(match path {
            Some(path) => Store::open_or_without(path, limit),
            None => {
                let why = "there is no home directory: HOME is not set";
                Store::without(fault(Path::new("~/.cache/gristmill"), why))
            }
        })
    }

    /// The store in `path`, made if it is not there, holding at most `limit` bytes.
    ///
    /// # Errors
    /// [`Error::Cache`] for what the module's text says is not used.
    pub fn open(path: impl Into<PathBuf>, limit: u64) -> Result<Store, Error> {
        let folder = Folder::open(&path.into(), is_entry)?;
        Ok(Store { folder: Some(folder), limit, warnings: Mutex::default(), told: AtomicBool::new(false) })
    }
    /// As [`Store::open`]; without a directory where that is an error, which becomes a warning.
    pub fn open_or_without(path: impl Into<PathBuf>, limit: u64) -> Store {
        Store::open(path, limit).unwrap_or_else(Store::without)
    }
    /// One that keeps nothing, for that reason.
    pub fn without(why: Error) -> Store {
        let warnings = Mutex::new(vec![Error::NotKept(Box::new(why))]);
        Store { folder: None, limit: 0, warnings, told: AtomicBool::new(true) }
    }

    /// Where it is, unless it keeps nothing.
    pub fn path(&self) -> Option<&Path> {
        self.folder.as_ref().map(Folder::path)
    }
    /// The most it holds, bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }
    /// What it holds now, bytes.
    pub fn size(&self) -> u64 {
        self.entries().iter().map(|e| e.bytes).sum()
    }
    /// A line for people: where it is and how full.
    pub fn describe(&self) -> String {
        match self.path() {
            Some(path) => format!("{}, {} of {} MB", path.display(), self.size() / MB, self.limit / MB),
            None => "none: kernels are compiled whenever they are needed".into(),
        }
    }
    /// What kept it from keeping entries and was not told before.
    pub fn warnings(&self) -> Vec<Error> {
        std::mem::take(&mut self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The payload of an entry, verified. A damaged entry is removed and counts as absent, and so does whatever else has its name. What cannot be
    /// read now counts as absent, too, and stays.
    pub fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        self.get_within(key, self.limit)
    }
    /// As [`Store::get`], of an entry whose payload has at most so many bytes: whatever is longer is none.
    pub fn get_within(&self, key: &Key, most: u64) -> Result<Option<Vec<u8>>, Error> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let found = match folder.read(&key.file(), most.saturating_add(SEAL as u64).min(self.limit)) {
            Ok(None) => return Ok(None),
            Ok(found) => found.filter(|(_, bytes)| bytes.len() >= SEAL),
            Err(error) if is_no_entry(error) => None,
            // The system has no room for it now (descriptors, memory), or its disk fails: the entry may be sound the next time.
            Err(_) => return Ok(None),
        };
        let payload = found.and_then(|(file, mut bytes)| {
            let payload = bytes.split_off(SEAL);
            // Comparison of a `blake3::Hash` takes constant time.
            let whole = key.seal(&payload) == <[u8; SEAL]>::try_from(&bytes[..]).ok()?;
            let _ = whole.then(|| file.set_modified(SystemTime::now())); // for the eviction order; failing to note a use harms nobody
            whole.then_some(payload)
        });
        if payload.is_none() {
            folder.remove(&key.file());
        }
        Ok(payload)
    }

    /// Adds an entry, then removes the least recently used ones beyond the limit.
    ///
    /// # Errors
    /// [`Error::Cache`] when it cannot be written, or there is no directory: for callers to whom keeping is the point.
    pub fn put(&self, key: &Key, payload: &[u8]) -> Result<(), Error> {
        let Some(folder) = &self.folder else {
            return Err(fault(Path::new("none"), "there is no directory that can be used"));
        };
        if payload.len() as u64 + SEAL as u64 > self.limit {
            return Ok(());
        }
        folder.write(&key.file(), &[key.seal(payload).as_bytes(), payload])?;
        self.evict(folder, key);
        Ok(())
    }

    /// As [`Store::put`], for what is as good unkept: that it cannot be written becomes a warning, the first time.
    pub fn keep(&self, key: &Key, payload: &[u8]) {
        if self.folder.is_none() {
            return;
        }
        if let Err(error) = self.put(key, payload)
            && !self.told.swap(true, Ordering::Relaxed)
        {
            self.warn(Error::NotKept(Box::new(error)));
        }
    }

    /// Adds a warning about what is kept here.
    pub fn warn(&self, warning: Error) {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(warning);
    }

    /// Removes an entry: one whose payload was verified and is of no use here.
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
            // Another process may have removed it first, or used it since: it is only a cache.
            if entry.name != keep && folder.remove(&entry.name) {
                total -= entry.bytes;
            }
        }
    }

    fn entries(&self) -> Vec<Entry> {
        self.folder.as_ref().map_or_else(Vec::new, |folder| folder.entries(is_entry))
    }

    /// A private directory for a compiler's files, removed when dropped: inside the store, or in the system's place for such where the store
    /// has no room, cannot be written to, or is none.
    pub fn temporary(&self) -> Result<Temporary, Error> {
        match self.folder.as_ref().map(Folder::temporary) {
            Some(Ok(temporary)) => Ok(temporary),
            _ => Temporary::elsewhere(),
        }
    }
}

/// Does this error say that what has an entry's name is none, whenever it is asked? A link, a socket, a FIFO, too long, a directory.
fn is_no_entry(error: Errno) -> bool {
    matches!(error, Errno::LOOP | Errno::NXIO | Errno::INVAL | Errno::FBIG | Errno::ISDIR)
}

fn is_entry(name: &str) -> bool {
    name.strip_suffix(SUFFIX).is_some_and(|key| key.len() == 64 && key.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests;
