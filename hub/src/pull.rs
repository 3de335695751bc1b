//! Fetching: each file under a name of its own until it is whole and its checksum right.

use crate::client::{Client, RemoteFile};
use crate::error::Error;
use crate::folder::{Folder, Kind, planted};
use crate::progress::Progress;
use crate::record::{Record, Stamp, beside, hash, hexadecimal, part};
use crate::repository::{Name, Repository};
use crate::select;
use crate::store::{Store, Verdict, disk};
use sha2::{Digest, Sha256};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// Tries in a row that may bring nothing new.
const TRIES: u32 = 5;
/// Bytes read at a time.
const PIECE: usize = 1 << 20;

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
    if listing.passed_over > 0 {
        progress(Progress::PassedOver { files: listing.passed_over });
    }
    let paths: Vec<&str> = listing.files.iter().map(|f| f.path.as_str()).collect();
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
    folder: Folder,
    /// Its name there, and the one that it will have.
    name: String,
    becomes: String,
    /// For messages.
    path: PathBuf,
    file: File,
    /// Of its first `done` bytes.
    hash: Sha256,
    done: u64,
}

impl Fetch<'_> {
    /// Returns how many bytes came.
    fn run(&self, progress: &mut dyn FnMut(Progress)) -> Result<u64, Error> {
        if self.is_kept(progress)? {
            return Ok(0);
        }
        let mut partial = self.open()?;
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
        self.finish(partial)?;
        Ok(fetched)
    }

    /// Is it there as the hub has it? What was fetched and has changed is not; what somebody put there and is another
    /// file is an error, since it would be lost.
    fn is_kept(&self, progress: &mut dyn FnMut(Progress)) -> Result<bool, Error> {
        let (repository, file) = (self.repository, self.remote.path.as_str());
        let path = self.store.place(repository, file);
        let failed = |error| disk("read", &path)(error);
        let Some((folder, name)) = self.store.enter(repository, file)? else { return Ok(false) };
        let Some(mut open) = folder.read(name).map_err(failed)? else { return Ok(false) };
        let size = open.metadata().map_err(failed)?.len();
        let Some(record) = Record::read(&folder, name).map_err(failed)? else {
            // Where the hub knows no checksum, the size must do.
            let same = size == self.remote.size
                && match &self.remote.sha256 {
                    None => true,
                    Some(expected) => {
                        let (sum, _) =
                            hash(&mut open, size, &mut |done| progress(Progress::Checked { file, done, total: size }))
                                .map_err(failed)?;
                        hexadecimal(sum) == *expected
                    }
                };
            return if same { Ok(true) } else { Err(Error::InTheWay { path }) };
        };
        let is_hubs = self.remote.sha256.as_ref().is_none_or(|expected| *expected == record.sha256);
        if !is_hubs || size != self.remote.size && self.remote.sha256.is_none() {
            return Ok(false);
        }
        // A record without a size does not say that the file is as long as the hub's.
        let same = size == self.remote.size && self.store.check(repository, file, false, progress)? == Verdict::Same;
        if !same {
            progress(Progress::Changed { file: &path });
        }
        Ok(same)
    }

    /// The file that what comes is written to: another one if the hub has another file by now.
    fn open(&self) -> Result<Partial, Error> {
        let (folder, becomes) = self.store.make(self.repository, &self.remote.path)?;
        let place = self.store.place(self.repository, &self.remote.path);
        // Said before 18 GB have come.
        for name in [becomes.to_owned(), beside(becomes)] {
            let path = place.with_file_name(&name);
            if !matches!(folder.kind(&name).map_err(disk("read", &path))?, None | Some(Kind::File)) {
                return Err(disk("replace", &path)(planted("it is no regular file")));
            }
        }
        let name = part(becomes, self.remote.sha256.as_deref().unwrap_or(self.commit));
        let path = place.with_file_name(&name);
        let file = folder.write(&name).map_err(disk("write", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Partial { folder, name, becomes: becomes.into(), path, file, hash: Sha256::new(), done: 0 }),
            Err(TryLockError::WouldBlock) => Err(Error::Busy(self.remote.path.clone())),
            Err(TryLockError::Error(error)) => Err(disk("lock", &path)(error)),
        }
    }

    /// Hashes what an earlier run has left.
    fn read_again(&self, partial: &mut Partial, progress: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        let there = partial.file.metadata().map_err(disk("read", &partial.path))?.len();
        let total = there.min(self.remote.size);
        let mut checked = |done| progress(Progress::Checked { file: &self.remote.path, done, total });
        let read = hash(&mut partial.file, total, &mut checked).map_err(disk("read", &partial.path))?;
        (partial.hash, partial.done) = read;
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

    fn finish(&self, partial: Partial) -> Result<(), Error> {
        let Partial { folder, name, becomes, path, file, hash, .. } = partial;
        let found = hexadecimal(hash);
        if let Some(expected) = self.remote.sha256.clone().filter(|expected| *expected != found) {
            folder.remove(&name).map_err(disk("remove", &path))?;
            return Err(Error::Checksum { file: self.remote.path.clone(), expected, found });
        }
        file.sync_all().map_err(disk("write", &path))?;
        let stamp = Stamp::of(&file).map_err(disk("read", &path))?;
        let record = Record { sha256: found, stamp: Some(stamp) };
        record.write(&folder, &becomes).map_err(disk("write", &path.with_file_name(beside(&becomes))))?;
        folder.rename(&name, &becomes).map_err(disk("rename", &path))
    }
}
