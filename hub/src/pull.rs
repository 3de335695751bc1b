//! Fetching: each file under a name of its own until it is whole and its checksum right.

use crate::client::{Client, RemoteFile};
use crate::error::Error;
use crate::name::{Name, Repository, is_safe};
use crate::select;
use crate::store::{PART, Store, disk};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Tries in a row that may bring nothing new.
const TRIES: u32 = 5;
/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// What is going on.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Bytes of a file that are there, of how many.
    Fetched {
        /// Its path.
        file: &'a str,
        /// Bytes there are.
        done: u64,
        /// Bytes there will be.
        total: u64,
    },
    /// Bytes that were there before are being read for the checksum.
    Checked {
        /// The file's path.
        file: &'a str,
        /// Bytes read.
        done: u64,
        /// Bytes to read.
        total: u64,
    },
    /// The connection broke; it is tried again.
    Again {
        /// What broke.
        why: &'a Error,
    },
}

/// A model that has been fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pulled {
    /// Its full name.
    pub name: Name,
    /// The file to open.
    pub file: PathBuf,
    /// Bytes that came over the network.
    pub fetched: u64,
    /// Files whose checksum the hub did not know.
    pub unchecked: Vec<String>,
}

/// Fetches what `name` means, unless it is kept already as the hub has it.
///
/// # Errors
/// When there is nothing of that name or several, the hub fails for good, the disk does, or a checksum is wrong.
pub fn pull(client: &Client, store: &Store, name: &Name, progress: &mut dyn FnMut(Progress)) -> Result<Pulled, Error> {
    let listing = client.listing(&name.repository)?;
    // Its paths become ours.
    let paths: Vec<&str> = listing.files.iter().map(|f| f.path.as_str()).filter(|p| is_safe(p)).collect();
    let choice = select::select(name, &paths)?;
    let full = Name { file: Some(choice.files[0].to_owned()), ..name.clone() };
    let file = store.place(&name.repository, choice.files[0]);
    let mut pulled = Pulled { name: full, file, fetched: 0, unchecked: vec![] };
    for remote in choice.files.iter().filter_map(|path| listing.files.iter().find(|f| f.path == *path)) {
        let fetch = Fetch { client, store, repository: &name.repository, commit: &listing.commit, remote };
        pulled.fetched += fetch.run(progress)?;
        if remote.sha256.is_none() {
            pulled.unchecked.push(remote.path.clone());
        }
    }
    Ok(pulled)
}

/// One file on its way.
struct Fetch<'a> {
    client: &'a Client,
    store: &'a Store,
    repository: &'a Repository,
    commit: &'a str,
    remote: &'a RemoteFile,
}

/// What there is of it.
struct Partial {
    path: PathBuf,
    file: File,
    /// Of its first `done` bytes.
    hash: Sha256,
    done: u64,
}

impl Fetch<'_> {
    /// Returns how many bytes came.
    fn run(&self, progress: &mut dyn FnMut(Progress)) -> Result<u64, Error> {
        let place = self.store.place(self.repository, &self.remote.path);
        if self.is_kept(&place) {
            return Ok(0);
        }
        if let Some(folder) = place.parent() {
            fs::create_dir_all(folder).map_err(disk("make", folder))?;
        }
        let mut partial = self.open(&place)?;
        self.read_again(&mut partial, progress)?;
        let mut fetched = 0;
        let mut tries = 0;
        while partial.done < self.remote.size {
            let before = partial.done;
            match self.stream(&mut partial, progress) {
                Ok(bytes) => fetched += bytes,
                Err(error @ Error::Transport { .. }) => {
                    tries = if partial.done > before { 1 } else { tries + 1 };
                    fetched += partial.done.saturating_sub(before);
                    if tries >= TRIES {
                        return Err(error);
                    }
                    progress(Progress::Again { why: &error });
                    std::thread::sleep(self.client.pause * tries);
                }
                Err(error) => return Err(error),
            }
        }
        self.finish(partial, &place)?;
        Ok(fetched)
    }

    /// Is it there as the hub has it?
    fn is_kept(&self, place: &Path) -> bool {
        let size = fs::metadata(place).is_ok_and(|m| m.is_file() && m.len() == self.remote.size);
        // Where either side knows no checksum, the size must do.
        let same = |expected: &String| self.store.checksum(place).is_none_or(|found| found == *expected);
        size && self.remote.sha256.as_ref().is_none_or(same)
    }

    /// The file that what comes is written to: another one if the hub has another file by now.
    fn open(&self, place: &Path) -> Result<Partial, Error> {
        let mark = self.remote.sha256.as_deref().unwrap_or(self.commit);
        let mut path = place.as_os_str().to_owned();
        path.push(format!(".{}{PART}", &mark[..mark.len().min(12)]));
        let path = PathBuf::from(path);
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let file = options.open(&path).map_err(disk("write", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Partial { path, file, hash: Sha256::new(), done: 0 }),
            Err(TryLockError::WouldBlock) => Err(Error::Busy(self.remote.path.clone())),
            Err(TryLockError::Error(error)) => Err(disk("lock", &path)(error)),
        }
    }

    /// Hashes what an earlier run has left.
    fn read_again(&self, partial: &mut Partial, progress: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        let there = partial.file.metadata().map_err(disk("read", &partial.path))?.len();
        let total = there.min(self.remote.size);
        let mut piece = vec![0; PIECE];
        while partial.done < total {
            let most = piece.len().min((total - partial.done) as usize);
            match partial.file.read(&mut piece[..most]).map_err(disk("read", &partial.path))? {
                0 => break,
                n => {
                    partial.hash.update(&piece[..n]);
                    partial.done += n as u64;
                    progress(Progress::Checked { file: &self.remote.path, done: partial.done, total });
                }
            }
        }
        partial.file.set_len(partial.done).map_err(disk("write", &partial.path))
    }

    /// One connection: what it brings is in the file, also where it breaks. Returns how many bytes.
    fn stream(&self, partial: &mut Partial, progress: &mut dyn FnMut(Progress)) -> Result<u64, Error> {
        let mut bytes = self.client.bytes(self.repository, self.commit, &self.remote.path, partial.done)?;
        if bytes.from != partial.done {
            // A server that knows no ranges, or another one than was asked for.
            if bytes.from != 0 {
                return Err(self.client.transport("sends another range than it was asked for"));
            }
            (partial.done, partial.hash) = (0, Sha256::new());
            partial.file.set_len(0).map_err(disk("write", &partial.path))?;
        }
        partial.file.seek(SeekFrom::Start(partial.done)).map_err(disk("write", &partial.path))?;
        let start = partial.done;
        let mut piece = vec![0; PIECE];
        loop {
            progress(Progress::Fetched { file: &self.remote.path, done: partial.done, total: self.remote.size });
            let n = match bytes.reader.read(&mut piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.map_err(|e| self.client.transport(e))?,
            };
            if n == 0 {
                break;
            }
            if n as u64 > self.remote.size - partial.done {
                return Err(self.client.transport("sends more than the file has"));
            }
            partial.file.write_all(&piece[..n]).map_err(disk("write", &partial.path))?;
            partial.hash.update(&piece[..n]);
            partial.done += n as u64;
        }
        if partial.done < self.remote.size {
            return Err(self.client.transport("the connection ended before the file did"));
        }
        Ok(partial.done - start)
    }

    fn finish(&self, partial: Partial, place: &Path) -> Result<(), Error> {
        let found: String = partial.hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        if let Some(expected) = self.remote.sha256.clone().filter(|expected| *expected != found) {
            fs::remove_file(&partial.path).map_err(disk("remove", &partial.path))?;
            return Err(Error::Checksum { file: self.remote.path.clone(), expected, found });
        }
        partial.file.sync_all().map_err(disk("write", &partial.path))?;
        self.store.record(place, &found)?;
        fs::rename(&partial.path, place).map_err(disk("rename", &partial.path))
    }
}
