//! A directory that only its user can change, held by its descriptor: what was checked is what is used, whatever happens to its path.

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
/// What such a directory's name begins with where others have theirs, too.
const ELSEWHERE: &str = "gristmill-";
/// A temporary directory is locked by its maker, but only after it was made.
const GRACE: Duration = Duration::from_secs(5);
/// Bytes that must be free where a compiler is to work: its source, its assembly and its library, several times the largest unit's.
#[cfg(target_os = "linux")]
const ROOM: u64 = 16 << 20;
/// The user of files whose owner this user namespace does not know: seen of the directories around a container's own.
const NOBODY: u32 = 65534;

pub(super) fn fault(path: &Path, message: impl ToString) -> Error {
    Error::Cache { path: path.into(), message: message.to_string() }
}

/// Bits of a mode that let others write.
const OTHERS_WRITE: u32 = 0o022;
const GROUP_WRITE: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// A directory, open.
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
    /// The directory at that path, made if it is not there. `ours` tells the names that may lie in one that others could read.
    pub fn open(path: &Path, ours: fn(&str) -> bool) -> Result<Folder, Error> {
        let me = rustix::process::geteuid().as_raw();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|e| fault(path, format!("cannot be made: {e}")))?;
        let link = std::fs::symlink_metadata(path).map_err(|e| fault(path, e))?;
        if link.is_symlink() && link.uid() != me {
            let owner = link.uid();
            return Err(fault(path, format!("is a symbolic link that belongs to user {owner}, not to you ({me})")));
        }
        let real = std::fs::canonicalize(path).map_err(|e| fault(path, e))?;
        // Nobody else can exchange what lies on the way to it, so that it is still there when it is opened.
        for way in real.ancestors().skip(1) {
            check_way(way).map_err(|why| fault(way, format!("leads to the cache, and {why}")))?;
        }
        let directory = open_directory(CWD, &real).map_err(|e| fault(path, e))?;
        let folder = Folder { directory: Arc::new(directory), path: real };
        folder.check_mode(me, ours)?;
        folder.remove_stale();
        Ok(folder)
    }

    fn check_mode(&self, me: u32, ours: fn(&str) -> bool) -> Result<(), Error> {
        let path = &self.path;
        let meta =
            self.directory.try_clone().and_then(|open| File::from(open).metadata()).map_err(|e| fault(path, e))?;
        // What root alone can write to is read by everybody who may: the cache in an image of a container.
        if ![me, 0].contains(&meta.uid()) {
            return Err(fault(path, format!("belongs to user {}, not to you ({me})", meta.uid())));
        }
        let mode = meta.mode() & 0o777;
        if mode & OTHERS_WRITE != 0 {
            let why = "so what lies in it cannot be trusted and is not read; empty it and `chmod 700` it";
            return Err(fault(path, format!("others can write to it (mode {mode:03o}), {why}")));
        }
        if mode & 0o055 != 0 && meta.uid() == me {
            if let Some(foreign) = self.names().into_iter().find(|name| !ours(name) && !is_temporary(name)) {
                let what = format!("others can read it (mode {mode:03o}), and it holds other things ({foreign})");
                return Err(fault(path, format!("{what}; give the cache a directory of its own")));
            }
            // A file system that nobody can write to stays as it is.
            let closed = rustix::fs::fchmod(&self.directory, Mode::RWXU);
            closed.or_else(|e| if e == Errno::ROFS { Ok(()) } else { Err(fault(path, e)) })?;
        }
        Ok(())
    }

    /// Where it was when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of a file of at most so many; `None` if there is nothing of that name. Anything but a file of ours is an error: a link, what
    /// would have to be waited for (a FIFO), what is too long.
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
        // It may still grow: what is read is bounded, not what was promised.
        let read = file.by_ref().take(most.saturating_add(1)).read_to_end(&mut bytes);
        match read {
            Ok(n) if n as u64 <= most => Ok(Some((file, bytes))),
            Ok(_) => Err(Errno::FBIG),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }

    /// Makes a file of these bytes, whole or not at all.
    pub fn write(&self, name: &str, parts: &[&[u8]]) -> Result<(), Error> {
        let temporary = Temporary::make(&self.directory, &self.path, TEMPORARY)?;
        let write = || -> std::io::Result<()> {
            use std::io::Write;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mut file =
                File::from(rustix::fs::openat(&temporary.directory, "entry", flags, Mode::RUSR | Mode::WUSR)?);
            parts.iter().try_for_each(|part| file.write_all(part))?;
            file.sync_all()?;
            Ok(rustix::fs::renameat(&temporary.directory, "entry", &self.directory, name)?)
        };
        write().map_err(|e| fault(&self.path, format!("cannot be written to: {e}")))
    }

    /// Removes what has that name: a file, or an empty directory.
    pub fn remove(&self, name: &str) -> bool {
        let remove = |flags| rustix::fs::unlinkat(&self.directory, name, flags);
        remove(AtFlags::empty()).or_else(|_| remove(AtFlags::REMOVEDIR)).is_ok()
    }

    fn names(&self) -> Vec<String> {
        names(self.directory.as_fd())
    }

    /// Its files whose names `ours` knows.
    pub fn entries(&self, ours: fn(&str) -> bool) -> Vec<Entry> {
        let entry = |name: String| {
            let stat = rustix::fs::statat(&self.directory, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some(Entry { bytes: u64::try_from(stat.st_size).ok()?, modified: modified(&stat), name })
        };
        self.names().into_iter().filter(|name| ours(name)).filter_map(entry).collect()
    }

    /// A directory in it that goes when it is dropped, on a disk that has room for a compiler's files.
    pub fn temporary(&self) -> Result<Temporary, Error> {
        let temporary = Temporary::make(&self.directory, &self.path, TEMPORARY)?;
        temporary.check_room().map_err(|e| fault(&self.path, format!("has no room: {e}")))?;
        Ok(temporary)
    }

    fn remove_stale(&self) {
        remove_stale(self.directory.as_fd(), TEMPORARY);
    }
}

/// Removes this user's temporary directories of processes that are gone from `parent`: those whose lock is free.
fn remove_stale(parent: BorrowedFd, prefix: &str) {
    let me = rustix::process::geteuid().as_raw();
    for name in names(parent).into_iter().filter(|name| has_numbers(name, prefix)) {
        let Ok(directory) = open_directory(parent, Path::new(&name)) else { continue };
        let Ok(stat) = rustix::fs::fstat(&directory) else { continue };
        let age = modified(&stat).elapsed().ok();
        let directory = File::from(directory);
        if stat.st_uid == me && age.is_some_and(|age| age >= GRACE) && directory.try_lock().is_ok() {
            remove_tree(parent, &name, directory.as_fd());
        }
    }
}

/// May nobody else exchange what lies in this directory, which leads to another?
fn check_way(way: &Path) -> Result<(), String> {
    let me = rustix::process::geteuid().as_raw();
    let meta = std::fs::metadata(way).map_err(|e| e.to_string())?;
    if ![0, me, NOBODY].contains(&meta.uid()) {
        return Err(format!("belongs to user {}, not to you ({me})", meta.uid()));
    }
    let mode = meta.mode() & 0o7777;
    // Many systems give every user a group of the user's own number, with nobody else in it, and let that group write to what the user makes.
    let own_group = meta.gid() == meta.uid();
    let others_write = if own_group { OTHERS_WRITE & !GROUP_WRITE } else { OTHERS_WRITE };
    if mode & others_write != 0 && mode & STICKY == 0 {
        let why = "so what lies in it cannot be trusted and is not read";
        let remedy = if meta.uid() == me { format!("; `chmod go-w {}`", way.display()) } else { String::new() };
        return Err(format!("others can write to it (mode {mode:03o}), {why}{remedy}"));
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

/// Names in a directory, of those that are text.
fn names(directory: BorrowedFd) -> Vec<String> {
    let listed = Dir::read_from(directory).into_iter().flatten().flatten();
    let name = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok().map(String::from);
    listed.filter_map(name).filter(|name| name != "." && name != "..").collect()
}

/// Removes a directory, which is open, with all that is in it. Links are removed, not followed.
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

/// Is it a temporary directory's name that begins so: with two numbers after it?
fn has_numbers(name: &str, prefix: &str) -> bool {
    let numbers = name.strip_prefix(prefix).and_then(|rest| rest.split_once('-'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    numbers.is_some_and(|(process, count)| is_number(process) && is_number(count))
}

/// A private directory, removed when dropped.
pub struct Temporary {
    parent: Arc<OwnedFd>,
    name: String,
    path: PathBuf,
    /// Locked: says that its maker lives; the system frees it whatever ends the process.
    directory: File,
}

impl Temporary {
    /// In a directory whose path is this.
    fn make(parent: &Arc<OwnedFd>, at: &Path, prefix: &str) -> Result<Temporary, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Another process may have this number: one in another container that shares the directory.
        for _ in 0..10_000 {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{prefix}{}-{number}", std::process::id());
            match rustix::fs::mkdirat(parent, &name, Mode::RWXU) {
                Ok(()) => {
                    let directory = File::from(open_directory(parent, Path::new(&name)).map_err(|e| fault(at, e))?);
                    let _ = directory.try_lock(); // a file system without locks keeps its leftovers longer
                    return Ok(Temporary { parent: parent.clone(), path: at.join(&name), name, directory });
                }
                Err(Errno::EXIST) => {}
                Err(e) => return Err(fault(at, format!("cannot be written to: {e}"))),
            }
        }
        Err(fault(at, "is full of temporary directories"))
    }

    /// In the system's places for such: where the store has none.
    pub(super) fn elsewhere() -> Result<Temporary, Error> {
        Temporary::in_one_of(&[std::env::temp_dir(), "/dev/shm".into(), "/var/tmp".into()])
    }

    /// In the first of these directories that will do; one without much room only where no other will.
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

    /// In that directory, or why not.
    fn within(place: &Path) -> Result<Temporary, String> {
        let of = |path: &Path, why: String| format!("{}: {why}", path.display());
        let real = std::fs::canonicalize(place).map_err(|e| of(place, e.to_string()))?;
        // A compiler's output must be what is loaded.
        real.ancestors().try_for_each(|way| check_way(way).map_err(|why| of(way, why)))?;
        let directory = open_directory(CWD, &real).map_err(|e| of(place, e.to_string()))?;
        // What a start that was interrupted left there; nothing else does, as there may be no store.
        remove_stale(directory.as_fd(), ELSEWHERE);
        Temporary::make(&Arc::new(directory), &real, ELSEWHERE).map_err(|e| match e {
            Error::Cache { path, message } => of(&path, message),
            other => other.to_string(),
        })
    }

    /// Has the disk room for a compiler's files? Quotas and reserves are known to the system alone, so it is asked for them.
    fn check_room(&self) -> Result<(), Errno> {
        #[cfg(target_os = "linux")]
        {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let probe = rustix::fs::openat(&self.directory, "room", flags, Mode::RUSR | Mode::WUSR)?;
            let found = rustix::fs::fallocate(&probe, rustix::fs::FallocateFlags::empty(), 0, ROOM);
            rustix::fs::unlinkat(&self.directory, "room", AtFlags::empty())?;
            // A file system that cannot be asked may have it.
            found.or_else(|e| if matches!(e, Errno::NOSPC | Errno::DQUOT) { Err(e) } else { Ok(()) })
        }
        #[cfg(not(target_os = "linux"))]
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        remove_tree(self.parent.as_fd(), &self.name, self.directory.as_fd());
    }
}
