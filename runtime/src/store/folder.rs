//! A directory that only its user can change, held by descriptor: the checked directory is the one
//! used, even if its path changes.

use crate::Error;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

const TEMPORARY: &str = "tmp-";
/// Name prefix of temporary directories that are created outside the store, among those of others.
const FALLBACK_PREFIX: &str = "gristmill-";
/// Minimum age of a temporary directory before removal: it is locked shortly after it was created.
const GRACE: Duration = Duration::from_secs(5);
/// Free bytes required for a compiler's source, assembly and library: several times
/// the largest unit's.
#[cfg(target_os = "linux")]
const MIN_FREE_BYTES: u64 = 16 << 20;
/// Owner of files whose user is unknown in this user namespace, as seen on the parent directories
/// of a container's own.
const NOBODY_UID: u32 = 65534;

/// Returns the name of this user's store among the files of others. It does not begin as those of
/// temporary directories, which are removed.
pub(super) fn name_of_user() -> Option<String> {
    Some(format!("gristmill.{}", rustix::process::geteuid().as_raw()))
}

pub(super) fn fault(path: &Path, message: impl ToString) -> Error {
    Error::Cache {
        path: path.into(),
        message: message.to_string(),
    }
}

/// Returns whether the error means that this name can never be read as an entry: a link, socket or
/// FIFO, a directory, or a file that is too long.
pub(super) fn is_no_entry(error: Errno) -> bool {
    matches!(
        error,
        Errno::LOOP | Errno::NXIO | Errno::INVAL | Errno::FBIG | Errno::ISDIR
    )
}

/// Mode bits that let others write.
const OTHERS_WRITE: u32 = 0o022;
const GROUP_WRITE: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// An open directory that only its user can change.
#[derive(Debug)]
pub(super) struct Folder {
    directory: Arc<OwnedFd>,
    path: PathBuf,
}

/// A file of a directory.
pub(super) struct Entry {
    pub name: String,
    pub bytes: u64,
    pub modified: SystemTime,
}

impl Folder {
    /// Opens the directory at `path`, creating it if needed. `ours` recognises the file names
    /// permitted in a directory that others can read.
    pub fn open(path: &Path, ours: fn(&str) -> bool) -> Result<Folder, Error> {
        let me = rustix::process::geteuid().as_raw();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|e| fault(path, format!("cannot be created: {e}")))?;
        let link = std::fs::symlink_metadata(path).map_err(|e| fault(path, e))?;
        if link.is_symlink() && link.uid() != me {
            let owner = link.uid();
            return Err(fault(
                path,
                format!("is a symbolic link that belongs to user {owner}, not to you ({me})"),
            ));
        }
        let real = std::fs::canonicalize(path).map_err(|e| fault(path, e))?;
        // No other user can replace a directory on the path, so the directory opened below is the
        // one checked.
        for way in real.ancestors().skip(1) {
            check_way(way)
                .map_err(|why| fault(way, format!("is a parent of the cache and {why}")))?;
        }
        let directory = open_directory(CWD, &real).map_err(|e| fault(path, e))?;
        let folder = Folder {
            directory: Arc::new(directory),
            path: real,
        };
        folder.check_mode(me, ours)?;
        folder.remove_stale();
        Ok(folder)
    }

    fn check_mode(&self, me: u32, ours: fn(&str) -> bool) -> Result<(), Error> {
        let path = &self.path;
        let meta = self
            .directory
            .try_clone()
            .and_then(|open| File::from(open).metadata())
            .map_err(|e| fault(path, e))?;
        // A directory that only root can write to may be used by everyone: the cache of a container
        // image.
        if ![me, 0].contains(&meta.uid()) {
            return Err(fault(
                path,
                format!("belongs to user {}, not to you ({me})", meta.uid()),
            ));
        }
        let mode = meta.mode() & 0o777;
        if mode & OTHERS_WRITE != 0 {
            let why = "so its files are not trusted and not read; empty it and `chmod 700` it";
            return Err(fault(
                path,
                format!("other users can write to it (mode {mode:03o}), {why}"),
            ));
        }
        if mode & 0o055 != 0 && meta.uid() == me {
            if let Some(foreign) = self
                .names()
                .into_iter()
                .find(|name| !ours(name) && !is_temporary(name))
            {
                let what = format!(
                    "other users can read it (mode {mode:03o}), and it holds other files ({foreign})"
                );
                return Err(fault(
                    path,
                    format!("{what}; give the cache a directory of its own"),
                ));
            }
            // A read-only file system stays as it is.
            let closed = rustix::fs::fchmod(&self.directory, Mode::RWXU);
            closed.or_else(|e| {
                if e == Errno::ROFS {
                    Ok(())
                } else {
                    Err(fault(path, e))
                }
            })?;
        }
        Ok(())
    }

    /// Path of the directory when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a file of at most `most` bytes; `None` if the name does not exist.
    ///
    /// Anything but a regular file of this user or root is an error: a link, a FIFO (which would
    /// block), a file that is too long.
    pub fn read(&self, name: &str, most: u64) -> Result<Option<(File, Vec<u8>)>, Errno> {
        use std::io::Read;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = match rustix::fs::openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        let stat = rustix::fs::fstat(&file)?;
        // A file of another user in a directory of root's: that user can write to it.
        if ![rustix::process::geteuid().as_raw(), 0].contains(&stat.st_uid) {
            return Err(Errno::ACCESS);
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        if u64::try_from(stat.st_size).is_ok_and(|size| size > most) {
            return Err(Errno::FBIG);
        }
        let mut bytes = Vec::new();
        // The file may still grow, so the read itself is bounded.
        let read = file
            .by_ref()
            .take(most.saturating_add(1))
            .read_to_end(&mut bytes);
        match read {
            Ok(n) if n as u64 <= most => Ok(Some((file, bytes))),
            Ok(_) => Err(Errno::FBIG),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }

    /// Writes a file atomically from `parts`.
    pub fn write(&self, name: &str, parts: &[&[u8]]) -> Result<(), Error> {
        let temporary = Temporary::make(&self.directory, &self.path, TEMPORARY)?;
        let write = || -> std::io::Result<()> {
            use std::io::Write;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mut file = File::from(rustix::fs::openat(
                &temporary.directory,
                "entry",
                flags,
                Mode::RUSR | Mode::WUSR,
            )?);
            parts.iter().try_for_each(|part| file.write_all(part))?;
            file.sync_all()?;
            Ok(rustix::fs::renameat(
                &temporary.directory,
                "entry",
                &self.directory,
                name,
            )?)
        };
        write().map_err(|e| fault(&self.path, format!("cannot be written to: {e}")))
    }

    /// Removes the file or empty directory `name`.
    pub fn remove(&self, name: &str) -> bool {
        let remove = |flags| rustix::fs::unlinkat(&self.directory, name, flags);
        remove(AtFlags::empty())
            .or_else(|_| remove(AtFlags::REMOVEDIR))
            .is_ok()
    }

    fn names(&self) -> Vec<String> {
        names(self.directory.as_fd())
    }

    /// Lists the files with names that `ours` accepts.
    pub fn entries(&self, ours: fn(&str) -> bool) -> Vec<Entry> {
        let entry = |name: String| {
            let stat =
                rustix::fs::statat(&self.directory, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some(Entry {
                bytes: u64::try_from(stat.st_size).ok()?,
                modified: modified(&stat),
                name,
            })
        };
        self.names()
            .into_iter()
            .filter(|name| ours(name))
            .filter_map(entry)
            .collect()
    }

    /// Creates a temporary directory inside, removed on drop; fails if the disk has no room for
    /// a compiler's files.
    pub fn temporary(&self) -> Result<Temporary, Error> {
        let temporary = Temporary::make(&self.directory, &self.path, TEMPORARY)?;
        temporary
            .check_room()
            .map_err(|e| fault(&self.path, format!("has too little free space: {e}")))?;
        Ok(temporary)
    }

    fn remove_stale(&self) {
        remove_stale(self.directory.as_fd(), TEMPORARY);
    }
}

/// Removes this user's temporary directories in `parent` whose processes have ended: those
/// with a free lock.
fn remove_stale(parent: BorrowedFd, prefix: &str) {
    let me = rustix::process::geteuid().as_raw();
    for name in names(parent)
        .into_iter()
        .filter(|name| has_numbers(name, prefix))
    {
        let Ok(directory) = open_directory(parent, Path::new(&name)) else {
            continue;
        };
        let Ok(stat) = rustix::fs::fstat(&directory) else {
            continue;
        };
        let age = modified(&stat).elapsed().ok();
        let directory = File::from(directory);
        if stat.st_uid == me && age.is_some_and(|age| age >= GRACE) && directory.try_lock().is_ok()
        {
            remove_tree(parent, &name, directory.as_fd());
        }
    }
}

/// Checks that no other user can replace entries of this directory, an ancestor of another.
fn check_way(way: &Path) -> Result<(), String> {
    let me = rustix::process::geteuid().as_raw();
    let meta = std::fs::metadata(way).map_err(|e| e.to_string())?;
    if ![0, me, NOBODY_UID].contains(&meta.uid()) {
        return Err(format!("belongs to user {}, not to you ({me})", meta.uid()));
    }
    let mode = meta.mode() & 0o7777;
    // Many systems give every user a private group with the same number and make new files writable
    // for that group.
    let own_group = meta.gid() == meta.uid();
    let others_write = if own_group {
        OTHERS_WRITE & !GROUP_WRITE
    } else {
        OTHERS_WRITE
    };
    if mode & others_write != 0 && mode & STICKY == 0 {
        let why = "so its files are not trusted and not read";
        let remedy = if meta.uid() == me {
            format!("; `chmod go-w {}`", way.display())
        } else {
            String::new()
        };
        return Err(format!(
            "other users can write to it (mode {mode:03o}), {why}{remedy}"
        ));
    }
    Ok(())
}

fn open_directory(at: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, path, flags, Mode::empty())
}

fn modified(stat: &Stat) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(stat.st_mtime.max(0) as u64, stat.st_mtime_nsec as u32)
}

/// Lists the names in a directory that are valid UTF-8.
fn names(directory: BorrowedFd) -> Vec<String> {
    let listed = Dir::read_from(directory).into_iter().flatten().flatten();
    let name = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok().map(String::from);
    listed
        .filter_map(name)
        .filter(|name| name != "." && name != "..")
        .collect()
}

/// Removes an open directory recursively. Links are removed, not followed.
fn remove_tree(parent: BorrowedFd, name: &str, directory: BorrowedFd) {
    for inside in names(directory) {
        if rustix::fs::unlinkat(directory, &inside, AtFlags::empty()).is_err()
            && let Ok(below) = open_directory(directory, Path::new(&inside))
        {
            remove_tree(directory, &inside, below.as_fd());
        }
    }
    let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
}

pub(super) fn is_temporary(name: &str) -> bool {
    has_numbers(name, TEMPORARY)
}

/// Returns whether `name` is a temporary directory's name: `prefix`, a number, `-`, a number.
fn has_numbers(name: &str, prefix: &str) -> bool {
    let numbers = name
        .strip_prefix(prefix)
        .and_then(|rest| rest.split_once('-'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    numbers.is_some_and(|(process, count)| is_number(process) && is_number(count))
}

/// A private directory, removed on drop.
pub struct Temporary {
    parent: Arc<OwnedFd>,
    name: String,
    path: PathBuf,
    /// Locked while its process lives; the system releases the lock however the process ends.
    directory: File,
}

impl Temporary {
    /// Creates a directory in `parent`, which is at path `at`.
    fn make(parent: &Arc<OwnedFd>, at: &Path, prefix: &str) -> Result<Temporary, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Another process may have the same id, in another container that shares the directory.
        for _ in 0..10_000 {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{prefix}{}-{number}", std::process::id());
            match rustix::fs::mkdirat(parent, &name, Mode::RWXU) {
                Ok(()) => {
                    let directory = File::from(
                        open_directory(parent, Path::new(&name)).map_err(|e| fault(at, e))?,
                    );
                    // a file system without locks keeps leftovers longer
                    let _ = directory.try_lock();
                    return Ok(Temporary {
                        parent: parent.clone(),
                        path: at.join(&name),
                        name,
                        directory,
                    });
                }
                Err(Errno::EXIST) => {}
                Err(e) => return Err(fault(at, format!("cannot be written to: {e}"))),
            }
        }
        Err(fault(at, "is full of temporary directories"))
    }

    /// Creates one in the system's directories for temporary files, when the store has none.
    pub(super) fn elsewhere() -> Result<Temporary, Error> {
        Temporary::in_one_of(&[std::env::temp_dir(), "/dev/shm".into(), "/var/tmp".into()])
    }

    /// Creates one in the first usable directory; one without enough room is used only if
    /// no other is usable.
    pub(super) fn in_one_of(places: &[PathBuf]) -> Result<Temporary, Error> {
        let (mut small, mut refused) = (None, Vec::new());
        for place in places {
            match Temporary::within(place) {
                Ok(temporary) if temporary.check_room().is_ok() => return Ok(temporary),
                Ok(temporary) => small = small.or(Some(temporary)),
                Err(why) => refused.push(why),
            }
        }
        small.ok_or_else(|| Error::NoTemporary(refused.join("; ")))
    }

    /// Creates one in `place`, or returns the reason that it is unusable.
    fn within(place: &Path) -> Result<Temporary, String> {
        let of = |path: &Path, why: String| format!("{}: {why}", path.display());
        let real = std::fs::canonicalize(place).map_err(|e| of(place, e.to_string()))?;
        // A compiler's output must not be replaced before it is loaded.
        real.ancestors()
            .try_for_each(|way| check_way(way).map_err(|why| of(way, why)))?;
        let directory = open_directory(CWD, &real).map_err(|e| of(place, e.to_string()))?;
        // Leftovers of an interrupted start; without a store, nothing else removes them.
        remove_stale(directory.as_fd(), FALLBACK_PREFIX);
        Temporary::make(&Arc::new(directory), &real, FALLBACK_PREFIX).map_err(|e| match e {
            Error::Cache { path, message } => of(&path, message),
            other => other.to_string(),
        })
    }

    /// Checks that the disk has room for a compiler's files. Only the system knows quotas and
    /// reserves, so this allocates a probe file.
    fn check_room(&self) -> Result<(), Errno> {
        #[cfg(target_os = "linux")]
        {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let probe =
                rustix::fs::openat(&self.directory, "room", flags, Mode::RUSR | Mode::WUSR)?;
            let found = rustix::fs::fallocate(
                &probe,
                rustix::fs::FallocateFlags::empty(),
                0,
                MIN_FREE_BYTES,
            );
            rustix::fs::unlinkat(&self.directory, "room", AtFlags::empty())?;
            // A file system that does not support the call may have room.
            found.or_else(|e| {
                if matches!(e, Errno::NOSPC | Errno::DQUOT) {
                    Err(e)
                } else {
                    Ok(())
                }
            })
        }
        #[cfg(not(target_os = "linux"))]
        Ok(())
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        remove_tree(self.parent.as_fd(), &self.name, self.directory.as_fd());
    }
}
