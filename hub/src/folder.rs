//! Folders as descriptors: nothing below the store's root is reached through a link.
//!
//! A path is looked up anew at each use, so a check of it says nothing about the next use: who may write to the store
//! could swap a folder for a link in between. Here each part is opened relative to the descriptor of the one before,
//! and refused if it is a link; what is done then is done in the folder that was checked.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstatvfs, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// An open folder.
pub(crate) struct Folder(OwnedFd);

/// What a folder holds under a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryKind {
    Folder,
    File,
    /// A symbolic link, a pipe, a socket, a device.
    Other,
}

/// How folders and files are opened.
const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Without `NONBLOCK` opening a pipe waits until somebody opens its other end.
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// The user's mask takes away what it should.
const FILE_MODE: Mode = Mode::from_bits_retain(0o666);
const FOLDER_MODE: Mode = Mode::from_bits_retain(0o777);

/// `Ok(None)` where nothing is there.
fn if_there<T>(result: Result<T, Errno>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The error of what is there and may not be used.
pub(crate) fn planted(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_owned())
}

impl Folder {
    /// The folder at a path that the user chose, links in it and all; none if it is not there.
    pub fn root(path: &Path) -> io::Result<Option<Folder>> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        if_there(openat(rustix::fs::CWD, path, flags, Mode::empty())).map(|fd| fd.map(Folder))
    }
    /// The same, made if it is not there.
    pub fn make_root(path: &Path) -> io::Result<Folder> {
        fs::create_dir_all(path)?;
        Folder::root(path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    /// A folder in this one; none if it is not there. A link is an error.
    pub fn folder(&self, name: &str) -> io::Result<Option<Folder>> {
        match openat(&self.0, name, FOLDER, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => Err(planted("it is no folder, or a symbolic link to one")),
            found => if_there(found).map(|fd| fd.map(Folder)),
        }
    }
    /// The same, made if it is not there.
    pub fn make_folder(&self, name: &str) -> io::Result<Folder> {
        match mkdirat(&self.0, name, FOLDER_MODE) {
            Ok(()) | Err(Errno::EXIST) => self.folder(name)?.ok_or_else(|| io::ErrorKind::NotFound.into()),
            Err(error) => Err(error.into()),
        }
    }
    /// Names in it and what they are, sorted. What has a name that is no text is nothing that is opened.
    pub fn entries(&self) -> io::Result<Vec<(String, EntryKind)>> {
        let mut out = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok("." | "..") => {}
                // Gone since the folder was read: no entry.
                Ok(name) => out.extend(self.kind(name)?.map(|kind| (name.to_owned(), kind))),
                Err(_) => out.push((entry.file_name().to_string_lossy().into_owned(), EntryKind::Other)),
            }
        }
        out.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(out)
    }
    /// What is there under a name.
    pub fn kind(&self, name: &str) -> io::Result<Option<EntryKind>> {
        let stat = if_there(statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW))?;
        Ok(stat.map(|stat| match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => EntryKind::Folder,
            FileType::RegularFile => EntryKind::File,
            _ => EntryKind::Other,
        }))
    }
    /// A file, to be read; none if it is not there. What is no regular file is an error.
    pub fn read(&self, name: &str) -> io::Result<Option<File>> {
        self.open(name, OFlags::RDONLY)
    }
    /// A file, to be read and written, made if it is not there. What is no regular file is an error, and so is one that
    /// has other names: to write to it would change what they name.
    pub fn write(&self, name: &str) -> io::Result<File> {
        let made = openat(&self.0, name, FILE | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, FILE_MODE);
        match made {
            Ok(fd) => Ok(fd.into()),
            Err(Errno::EXIST) => {
                let file = self.open(name, OFlags::RDWR)?.ok_or(io::ErrorKind::NotFound)?;
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
    /// Bytes that the user may still write to its disk; none where the file system does not say.
    pub fn room(&self) -> io::Result<Option<u64>> {
        let disk = fstatvfs(&self.0)?;
        Ok((disk.f_blocks > 0).then(|| disk.f_bavail.saturating_mul(disk.f_frsize)))
    }
    /// Gives a file another name in this folder, in place of what has it.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.0, from, &self.0, to)?)
    }
    /// Removes a file, or a link itself. Is it gone: was it there?
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        if_there(unlinkat(&self.0, name, AtFlags::empty())).map(|gone| gone.is_some())
    }
    /// Removes a folder if nothing is in it. Is it gone?
    pub fn remove_empty(&self, name: &str) -> bool {
        unlinkat(&self.0, name, AtFlags::REMOVEDIR).is_ok()
    }
}
