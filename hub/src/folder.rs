//! Folders as file descriptors, so that no path below the store's root follows a link.
//!
//! A path is resolved again at each use, so checking it says nothing about the next use: another
//! process with write access could replace a folder by a link in between. Here each component is
//! opened relative to the descriptor of its parent and refused if it is a link; later operations
//! then act on the folder that was checked.

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, fstatvfs, mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// File descriptor of an open folder.
pub(crate) struct Folder(OwnedFd);

/// Type of a folder's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryKind {
    Folder,
    File,
    /// A symbolic link, a pipe, a socket or a device.
    Other,
}

/// Flags for opening a folder; refuses symbolic links.
const FOLDER: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Flags for opening a file. Without `NONBLOCK`, opening a pipe waits for its other end.
const FILE: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);
/// Permissions before the process's umask applies.
const FILE_MODE: Mode = Mode::from_bits_retain(0o666);
const FOLDER_MODE: Mode = Mode::from_bits_retain(0o777);

/// Maps "not found" to `Ok(None)`.
fn if_there<T>(result: Result<T, Errno>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the error for an existing entry that must not be used.
pub(crate) fn planted(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_owned())
}

impl Folder {
    /// Opens the folder at a path chosen by the user, following links; None if it does not exist.
    pub fn root(path: &Path) -> io::Result<Option<Folder>> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        if_there(openat(rustix::fs::CWD, path, flags, Mode::empty())).map(|fd| fd.map(Folder))
    }
    /// Opens it as [`Folder::root`] does, and creates it if it does not exist.
    pub fn make_root(path: &Path) -> io::Result<Folder> {
        fs::create_dir_all(path)?;
        Folder::root(path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    /// Opens a subfolder; None if it does not exist. A link is an error.
    pub fn folder(&self, name: &str) -> io::Result<Option<Folder>> {
        match openat(&self.0, name, FOLDER, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => {
                Err(planted("it is no folder, or a symbolic link to one"))
            }
            found => if_there(found).map(|fd| fd.map(Folder)),
        }
    }
    /// Opens a subfolder and creates it if it does not exist.
    pub fn make_folder(&self, name: &str) -> io::Result<Folder> {
        match mkdirat(&self.0, name, FOLDER_MODE) {
            Ok(()) | Err(Errno::EXIST) => self
                .folder(name)?
                .ok_or_else(|| io::ErrorKind::NotFound.into()),
            Err(error) => Err(error.into()),
        }
    }
    /// Returns the names and types of the entries, sorted by name.
    ///
    /// An entry with a name that is not UTF-8 is [`EntryKind::Other`], so it is never opened.
    pub fn entries(&self) -> io::Result<Vec<(String, EntryKind)>> {
        let mut out = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok("." | "..") => {}
                // An entry removed since the folder was read is skipped.
                Ok(name) => out.extend(self.kind(name)?.map(|kind| (name.to_owned(), kind))),
                Err(_) => out.push((
                    entry.file_name().to_string_lossy().into_owned(),
                    EntryKind::Other,
                )),
            }
        }
        out.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(out)
    }
    /// Returns the type of the entry with that name, if there is one.
    pub fn kind(&self, name: &str) -> io::Result<Option<EntryKind>> {
        let stat = if_there(statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW))?;
        Ok(
            stat.map(|stat| match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => EntryKind::Folder,
                FileType::RegularFile => EntryKind::File,
                _ => EntryKind::Other,
            }),
        )
    }
    /// Opens a file for reading; None if it does not exist. Anything but a regular
    /// file is an error.
    pub fn read(&self, name: &str) -> io::Result<Option<File>> {
        self.open(name, OFlags::RDONLY)
    }
    /// Opens a file for reading and writing, and creates it if it does not exist.
    ///
    /// Anything but a regular file is an error. So is a file with several hard links: writing to it
    /// would change the other names' content.
    pub fn write(&self, name: &str) -> io::Result<File> {
        let made = openat(
            &self.0,
            name,
            FILE | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            FILE_MODE,
        );
        match made {
            Ok(fd) => Ok(fd.into()),
            Err(Errno::EXIST) => {
                let file = self
                    .open(name, OFlags::RDWR)?
                    .ok_or(io::ErrorKind::NotFound)?;
                if file.metadata()?.nlink() != 1 {
                    return Err(planted("it is a hard link to another file"));
                }
                Ok(file)
            }
            Err(error) => Err(error.into()),
        }
    }
    fn open(&self, name: &str, how: OFlags) -> io::Result<Option<File>> {
        let wrong = || planted("it is no regular file, or a symbolic link to one");
        let found = match openat(&self.0, name, FILE | how, Mode::empty()) {
            Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => return Err(wrong()),
            found => if_there(found)?,
        };
        let file = found.map(File::from);
        match &file {
            Some(file) if !file.metadata()?.is_file() => Err(wrong()),
            _ => Ok(file),
        }
    }
    /// Returns the bytes that the user may still write; None where the file system does not say.
    pub fn room(&self) -> io::Result<Option<u64>> {
        let disk = fstatvfs(&self.0)?;
        Ok((disk.f_blocks > 0).then(|| disk.f_bavail.saturating_mul(disk.f_frsize)))
    }
    /// Renames a file within this folder and replaces an existing one.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.0, from, &self.0, to)?)
    }
    /// Removes a file, or a link itself. Returns whether it existed.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        if_there(unlinkat(&self.0, name, AtFlags::empty())).map(|gone| gone.is_some())
    }
    /// Removes a folder if it is empty. Returns whether it is gone.
    pub fn remove_empty(&self, name: &str) -> bool {
        unlinkat(&self.0, name, AtFlags::REMOVEDIR).is_ok()
    }
}
