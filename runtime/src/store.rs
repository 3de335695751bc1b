//! Compiled kernels on disk.
//!
//! One directory, private to the user, with one file an entry: `<key in hex>.kernel`, which holds
//! `blake3(key ‖ payload) ‖ payload`. An entry is written under a temporary name, synced and renamed, so that a process that
//! is killed leaves at most a temporary directory; and it is verified whenever it is read, so that a damaged, truncated or
//! renamed entry counts as absent. What a reader gets is bytes it has verified, never a path (see [`crate::image`]).
//!
//! The hash is no signature: whoever can write to the directory can make the user run code. So a directory that belongs to
//! someone else, or that others can write to, is refused. One that others can only read is closed to them (mode 0700) if
//! nothing but a cache lies in it, and refused otherwise: a user who names their home directory keeps its mode.

use crate::Error;
use std::fs::{DirBuilder, File, Metadata};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

const SUFFIX: &str = ".kernel";
const TEMPORARY: &str = "tmp-";
const DEFAULT_LIMIT: u64 = 512 << 20;
/// A temporary directory is locked by its maker, but only after it was made.
const GRACE: Duration = Duration::from_secs(5);

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
    /// As 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }
    fn seal(&self, payload: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(payload);
        hasher.finalize()
    }
}

/// A directory of entries.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    limit: u64,
}

impl Store {
    /// The user's store: `$GRISTMILL_CACHE`, else `$XDG_CACHE_HOME/gristmill`, else `~/.cache/gristmill`, with at most
    /// `$GRISTMILL_CACHE_LIMIT` MiB in it (512 unless said).
    pub fn user() -> Result<Store, Error> {
        let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let path = variable("GRISTMILL_CACHE")
            .or_else(|| variable("XDG_CACHE_HOME").filter(|p| p.is_absolute()).map(|p| p.join("gristmill")))
            .or_else(|| variable("HOME").map(|p| p.join(".cache").join("gristmill")))
            .ok_or_else(|| fault(Path::new("~/.cache/gristmill"), "there is no home directory: HOME is not set"))?;
        let limit = match std::env::var("GRISTMILL_CACHE_LIMIT").ok().filter(|v| !v.is_empty()) {
            None => DEFAULT_LIMIT,
            Some(text) => {
                text.trim().parse::<u64>().ok().and_then(|n| n.checked_mul(1 << 20)).ok_or_else(|| Error::Setting {
                    setting: format!("GRISTMILL_CACHE_LIMIT={text}"),
                    message: "not a number of MiB".into(),
                    hint: "for example GRISTMILL_CACHE_LIMIT=512".into(),
                })?
            }
        };
        Store::open(path, limit)
    }

    /// The store in `path`, made if it is not there, holding at most `limit` bytes. See the module's text for what is refused.
    pub fn open(path: impl Into<PathBuf>, limit: u64) -> Result<Store, Error> {
        let path = path.into();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|e| fault(&path, format!("cannot be made: {e}")))?;
        let here = std::path::absolute(&path).map_err(|e| fault(&path, e))?;
        let store = Store { path: here, limit };
        store.check_owner()?;
        // Is it writable? Modes do not tell (root, read-only mounts, quotas): try.
        drop(store.temporary()?);
        store.remove_stale();
        Ok(store)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The most it holds, bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }
    /// What it holds now, bytes.
    pub fn size(&self) -> u64 {
        self.entries().iter().map(|e| e.1.len()).sum()
    }

    fn check_owner(&self) -> Result<(), Error> {
        let path = &self.path;
        // SAFETY: no arguments, cannot fail.
        let me = unsafe { libc::geteuid() };
        let link = std::fs::symlink_metadata(path).map_err(|e| fault(path, e))?;
        if link.is_symlink() && link.uid() != me {
            return Err(fault(
                path,
                format!("is a symbolic link that belongs to user {}, not to you ({me})", link.uid()),
            ));
        }
        let meta = std::fs::metadata(path).map_err(|e| fault(path, e))?;
        if !meta.is_dir() {
            return Err(fault(path, "is not a directory"));
        }
        if meta.uid() != me {
            return Err(fault(path, format!("belongs to user {}, not to you ({me})", meta.uid())));
        }
        let mode = meta.mode() & 0o777;
        if mode & 0o022 != 0 {
            return Err(fault(
                path,
                format!(
                    "others can write to it (mode {mode:03o}), so what lies in it cannot be trusted; empty it and `chmod 700` it"
                ),
            ));
        }
        if mode & 0o055 != 0 {
            let foreign = std::fs::read_dir(path)
                .map_err(|e| fault(path, e))?
                .flatten()
                .find(|e| !is_ours(&e.file_name().to_string_lossy()));
            if let Some(foreign) = foreign {
                let name = foreign.file_name();
                return Err(fault(
                    path,
                    format!(
                        "others can read it (mode {mode:03o}), and it holds other things ({}); give the cache a directory of its own",
                        name.display()
                    ),
                ));
            }
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(|e| fault(path, e))?;
        }
        Ok(())
    }

    /// The payload of an entry, verified. A damaged entry is removed and counts as absent.
    pub fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        let path = self.file(key);
        let mut file = match File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            // A link, or a file whose mode was changed: no entry of ours.
            Err(_) => return self.discard(&path),
        };
        let mut bytes = Vec::new();
        if !file.metadata().is_ok_and(|m| m.is_file()) || file.read_to_end(&mut bytes).is_err() || bytes.len() < 32 {
            return self.discard(&path);
        }
        let payload = bytes.split_off(32);
        // Comparison of a `blake3::Hash` takes constant time.
        if key.seal(&payload) != <[u8; 32]>::try_from(&bytes[..]).expect("32 bytes") {
            return self.discard(&path);
        }
        let _ = file.set_modified(SystemTime::now()); // for the eviction order; failing to note a use harms nobody
        Ok(Some(payload))
    }

    fn discard(&self, path: &Path) -> Result<Option<Vec<u8>>, Error> {
        let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
        Ok(None)
    }

    /// Adds an entry, then removes the least recently used ones beyond the limit.
    pub fn put(&self, key: &Key, payload: &[u8]) -> Result<(), Error> {
        if payload.len() as u64 + 32 > self.limit {
            return Ok(());
        }
        let temporary = self.temporary()?;
        let draft = temporary.path().join("entry");
        let write = || {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&draft)?;
            file.write_all(key.seal(payload).as_bytes())?;
            file.write_all(payload)?;
            file.sync_all()?;
            std::fs::rename(&draft, self.file(key))
        };
        write().map_err(|e| fault(&self.path, e))?;
        self.evict(key);
        Ok(())
    }

    fn evict(&self, keep: &Key) {
        let keep = self.file(keep);
        let mut entries = self.entries();
        let mut total: u64 = entries.iter().map(|e| e.1.len()).sum();
        entries.sort_by_cached_key(|(path, meta)| (meta.modified().ok(), path.clone()));
        for (path, meta) in entries {
            if total <= self.limit {
                break;
            }
            // Another process may have removed it first, or used it since: it is only a cache.
            if path != keep && std::fs::remove_file(&path).is_ok() {
                total -= meta.len();
            }
        }
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.path.join(key.hex() + SUFFIX)
    }

    fn entries(&self) -> Vec<(PathBuf, Metadata)> {
        let files = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        files
            .filter(|f| is_entry(&f.file_name().to_string_lossy()))
            .filter_map(|f| Some((f.path(), f.metadata().ok()?)))
            .collect()
    }

    /// A private directory inside the store, for a compiler's files; removed when dropped.
    pub fn temporary(&self) -> Result<Temporary, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Another process may have this number: one in another container that shares the directory.
        for _ in 0..10_000 {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = self.path.join(format!("{TEMPORARY}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let lock = File::open(&path).map_err(|e| fault(&path, e))?;
                    let _ = lock.try_lock(); // a file system without locks keeps its leftovers longer
                    return Ok(Temporary { path, _lock: lock });
                }
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(fault(&self.path, format!("cannot be written to: {e}"))),
            }
        }
        Err(fault(&self.path, "is full of temporary directories"))
    }

    /// Removes the temporary directories of processes that are gone: those whose lock is free.
    fn remove_stale(&self) {
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            if !is_temporary(&entry.file_name().to_string_lossy()) {
                continue;
            }
            let old = |m: Metadata| m.modified().ok()?.elapsed().ok();
            if entry.metadata().ok().and_then(old).is_none_or(|age| age < GRACE) {
                continue;
            }
            if File::open(entry.path()).is_ok_and(|f| f.try_lock().is_ok()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// A private directory, removed when dropped.
pub struct Temporary {
    path: PathBuf,
    /// Says that its maker lives; the system frees it whatever ends the process.
    _lock: File,
}

impl Temporary {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn is_entry(name: &str) -> bool {
    name.strip_suffix(SUFFIX).is_some_and(|key| key.len() == 64 && key.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn is_temporary(name: &str) -> bool {
    name.strip_prefix(TEMPORARY).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit() || b == b'-'))
}

fn is_ours(name: &str) -> bool {
    is_entry(name) || is_temporary(name)
}

fn fault(path: &Path, message: impl ToString) -> Error {
    Error::Cache { path: path.into(), message: message.to_string() }
}

#[cfg(test)]
mod tests;
