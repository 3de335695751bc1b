//! Fetching: each file under a name of its own until it is whole and its checksum right.

use crate::client::{Client, Commit, RemoteFile};
use crate::error::Error;
use crate::folder::{EntryKind, Folder, planted};
use crate::http_source::{self, Elsewhere, is_elsewhere};
use crate::progress::Progress;
use crate::record::{Record, Stamp, hash, hexadecimal, part, record_name};
use crate::repository::{Name, Repository};
use crate::select;
use crate::source::FileSource;
use crate::store::{Store, Verdict, disk};
use sha2::{Digest, Sha256};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// Tries in a row that may bring nothing new.
const MAX_TRIES: u32 = 5;
/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// A model that has been fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pulled {
    /// Its full name.
    pub name: Name,
    /// The file to open.
    pub file: PathBuf,
    /// Bytes that came over the network.
    pub fetched: u64,
    /// Files that came and whose checksum nobody knows.
    pub unchecked: Vec<String>,
}

/// What files of models look like: who reads them is above this crate.
#[derive(Clone, Copy)]
pub struct FileFormat<'a> {
    /// Their first bytes.
    pub begins: [u8; 4],
    /// What is wrong with a file, or a part of a split one, that is no model.
    pub check: &'a dyn Fn(File) -> Result<(), String>,
}

/// Fetches what `name` means, unless it is kept already as the hub or the server has it. What has no checksum
/// has to have that form before it counts.
///
/// # Errors
/// When there is nothing of that name or several, the hub fails for good, the disk does, a checksum is wrong, or what has
/// none is no model.
pub fn pull(
    client: &Client,
    store: &Store,
    name: &Name,
    form: FileFormat,
    progress: &mut dyn FnMut(Progress),
) -> Result<Pulled, Error> {
    match is_elsewhere(name) {
        true => from_server(client, store, name, form, progress),
        false => from_hub(client, store, name, form, progress),
    }
}

fn from_hub(
    client: &Client,
    store: &Store,
    name: &Name,
    form: FileFormat,
    progress: &mut dyn FnMut(Progress),
) -> Result<Pulled, Error> {
    let listing = client.listing(&name.repository)?;
    if listing.passed_over > 0 {
        progress(Progress::PassedOver { files: listing.passed_over });
    }
    let paths: Vec<&str> = listing.files.iter().map(|f| f.path.as_str()).collect();
    let find = |path: &str| listing.files.iter().find(|f| f.path == path);
    let choice = select::select(name, &paths, &|path| find(path).map_or(0, |f| f.size))?;
    let mut pulled = Pulled::nothing(store, name, choice.files[0]);
    let source = Commit { client, repository: &name.repository, commit: &listing.commit };
    for remote in choice.files.iter().filter_map(|path| find(path)) {
        let version = Version { mark: remote.sha256.as_deref().unwrap_or(&listing.commit), resumes: true, kept: None };
        Fetch { source: &source, store, name: &pulled.name.clone(), remote, version, form }
            .add(&mut pulled, progress)?;
    }
    Ok(pulled)
}

fn from_server(
    client: &Client,
    store: &Store,
    name: &Name,
    form: FileFormat,
    progress: &mut dyn FnMut(Progress),
) -> Result<Pulled, Error> {
    let names = http_source::files(name);
    let mut pulled = Pulled::nothing(store, name, names[0].file.as_deref().unwrap_or_default());
    for name in &names {
        let source = Elsewhere::open(client, name, form.begins)?;
        let path = name.file.clone().unwrap_or_default();
        let remote = RemoteFile { path, size: source.size(), sha256: None };
        let mark = source.version();
        let version = Version { mark: &mark, resumes: source.is_marked(), kept: Some(&mark) };
        Fetch { source: &source, store, name, remote: &remote, version, form }.add(&mut pulled, progress)?;
    }
    Ok(pulled)
}

impl Pulled {
    /// Nothing of that model yet.
    fn nothing(store: &Store, name: &Name, file: &str) -> Pulled {
        let name = Name { file: Some(file.to_owned()), query: None, ..name.clone() };
        Pulled { file: store.place(&name.repository, file), name, fetched: 0, unchecked: vec![] }
    }
}

/// Which version of a file is fetched.
struct Version<'a> {
    /// What tells its partial file from another version's, in hexadecimal.
    mark: &'a str,
    /// Is a part that an earlier connection has left one of the same version?
    resumes: bool,
    /// What is recorded of it, where no checksum says which version it is.
    kept: Option<&'a str>,
}

/// One file on its way.
struct Fetch<'a> {
    source: &'a dyn FileSource,
    store: &'a Store,
    name: &'a Name,
    remote: &'a RemoteFile,
    version: Version<'a>,
    form: FileFormat<'a>,
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
    fn add(&self, pulled: &mut Pulled, progress: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        let Some(fetched) = self.run(progress)? else { return Ok(()) };
        pulled.fetched += fetched;
        if self.remote.sha256.is_none() {
            pulled.unchecked.push(self.remote.path.clone());
        }
        Ok(())
    }
    fn repository(&self) -> &Repository {
        &self.name.repository
    }

    /// Returns how many bytes came; none if it is kept already.
    fn run(&self, progress: &mut dyn FnMut(Progress)) -> Result<Option<u64>, Error> {
        if self.is_kept(progress)? {
            return Ok(None);
        }
        let mut partial = self.open()?;
        self.read_again(&mut partial, progress)?;
        self.find_room(&partial)?;
        let mut fetched = 0;
        let mut tries = 0;
        while partial.done < self.remote.size {
            let before = partial.done;
            match self.stream(&mut partial, progress) {
                Ok(bytes) => fetched += bytes,
                Err(error @ Error::Transport { .. }) => {
                    tries = if partial.done > before { 1 } else { tries + 1 };
                    fetched += partial.done.saturating_sub(before);
                    if tries >= MAX_TRIES {
                        return Err(error);
                    }
                    progress(Progress::Again { why: &error });
                    std::thread::sleep(self.source.pause() * tries);
                }
                Err(error) => return Err(error),
            }
        }
        self.finish(partial)?;
        Ok(Some(fetched))
    }

    /// Is it there as the hub has it? What was fetched and has changed is not; what somebody put there and is another
    /// file is an error, since it would be lost.
    fn is_kept(&self, progress: &mut dyn FnMut(Progress)) -> Result<bool, Error> {
        let (repository, file) = (self.repository(), self.remote.path.as_str());
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
        let is_other = self.version.kept.is_some_and(|version| record.version.as_deref() != Some(version));
        if !is_hubs || is_other || size != self.remote.size && self.remote.sha256.is_none() {
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
        let (folder, becomes) = self.store.make(self.repository(), &self.remote.path)?;
        let place = self.store.place(self.repository(), &self.remote.path);
        // Said before 18 GB have come.
        for name in [becomes.to_owned(), record_name(becomes)] {
            let path = place.with_file_name(&name);
            if !matches!(folder.kind(&name).map_err(disk("read", &path))?, None | Some(EntryKind::File)) {
                return Err(disk("replace", &path)(planted("it is no regular file")));
            }
        }
        let name = part(becomes, self.version.mark);
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
        let total = if self.version.resumes { there.min(self.remote.size) } else { 0 };
        let mut checked = |done| progress(Progress::Checked { file: &self.remote.path, done, total });
        let read = hash(&mut partial.file, total, &mut checked).map_err(disk("read", &partial.path))?;
        (partial.hash, partial.done) = read;
        partial.file.set_len(partial.done).map_err(disk("write", &partial.path))
    }

    /// Said before 18 GB have come, too.
    fn find_room(&self, partial: &Partial) -> Result<(), Error> {
        let needed = self.remote.size - partial.done;
        match partial.folder.room().map_err(disk("read", &partial.path))? {
            Some(free) if free < needed => Err(Error::NoRoom { path: partial.path.clone(), needed, free }),
            _ => Ok(()),
        }
    }

    /// One connection: what it brings is in the file, also where it breaks. Returns how many bytes.
    fn stream(&self, partial: &mut Partial, progress: &mut dyn FnMut(Progress)) -> Result<u64, Error> {
        let mut bytes = self.source.bytes(&self.remote.path, partial.done)?;
        if bytes.from != partial.done {
            // A server that knows no ranges, or another one than was asked for.
            if bytes.from != 0 {
                return Err(self.source.broken("sends another range than it was asked for".into()));
            }
            (partial.done, partial.hash) = (0, Sha256::new());
            partial.file.set_len(0).map_err(disk("write", &partial.path))?;
        }
        partial.file.seek(SeekFrom::Start(partial.done)).map_err(disk("write", &partial.path))?;
        let start = partial.done;
        let mut piece = vec![0; READ_BYTES];
        loop {
            progress(Progress::Fetched { file: &self.remote.path, done: partial.done, total: self.remote.size });
            let n = match bytes.reader.read(&mut piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.map_err(|e| self.source.broken(e.to_string()))?,
            };
            if n == 0 {
                break;
            }
            if n as u64 > self.remote.size - partial.done {
                return Err(self.source.broken("sends more than the file has".into()));
            }
            partial.file.write_all(&piece[..n]).map_err(disk("write", &partial.path))?;
            partial.hash.update(&piece[..n]);
            partial.done += n as u64;
        }
        if partial.done < self.remote.size {
            return Err(self.source.broken("the connection ended before the file did".into()));
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
        if self.remote.sha256.is_none() {
            let seen = file.try_clone().map_err(disk("read", &path))?;
            if let Err(why) = (self.form.check)(seen) {
                folder.remove(&name).map_err(disk("remove", &path))?;
                let name = Name { file: Some(self.remote.path.clone()), ..self.name.clone() };
                return Err(Error::NoModel { name: name.to_string(), why });
            }
        }
        file.sync_all().map_err(disk("write", &path))?;
        let stamp = Stamp::from_file(&file).map_err(disk("read", &path))?;
        let version = self.version.kept.map(str::to_owned);
        let record = Record { sha256: found, stamp: Some(stamp), version };
        record.write(&folder, &becomes).map_err(disk("write", &path.with_file_name(record_name(&becomes))))?;
        folder.rename(&name, &becomes).map_err(disk("rename", &path))
    }
}
