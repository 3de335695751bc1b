//! Downloads models: each file has a partial name until it is complete and verified.

use crate::client::{Client, Commit, RemoteFile};
use crate::error::Error;
use crate::folder::{EntryKind, Folder, planted};
use crate::http_source::{self, Elsewhere, is_elsewhere};
use crate::progress::Progress;
use crate::record::{Record, Stamp, hash, hexadecimal, part_name, record_name};
use crate::repository::{Name, Repository};
use crate::select;
use crate::source::FileSource;
use crate::store::{Store, Verdict, disk};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Consecutive failed attempts with little progress after which a download gives up.
const MAX_TRIES: u32 = 5;
/// Bytes that a connection must bring to count as progress; of smaller files, this part. A server
/// that ends each connection after a few bytes would be asked for ever.
const PROGRESS: (u64, u64) = (4 << 20, 16);
/// Bytes that a connection must bring within the client's patience, a minute.
const LEAST_BYTES: u64 = 64 << 10;
/// Bytes of the read buffer.
const READ_BYTES: usize = 1 << 20;

/// Result of downloading a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pulled {
    /// Name with the path of the file, without a query.
    pub name: Name,
    /// Path to open: the file, or the first part of a split model.
    pub file: PathBuf,
    /// Bytes that came over the network.
    pub fetched: u64,
    /// Downloaded files for which no checksum is known.
    pub unchecked: Vec<String>,
}

/// Recognises model files, since this crate does not parse them.
#[derive(Clone, Copy)]
pub struct FileFormat<'a> {
    /// First bytes of every model file.
    pub begins: [u8; 4],
    /// Returns the defect of a file, or of a part of a split model, that is not a valid model.
    pub check: &'a dyn Fn(File) -> Result<(), String>,
}

/// Downloads the model that `name` means, unless the store has the server's current version.
///
/// A file without a checksum must pass `form.check` before it gets its final name.
///
/// # Errors
/// When no model or several match, the server or the disk fails, a checksum differs, or a file
/// without a checksum is not a model.
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
        progress(Progress::PassedOver {
            files: listing.passed_over,
        });
    }
    let paths: Vec<&str> = listing.files.iter().map(|f| f.path.as_str()).collect();
    let by_path: HashMap<&str, &RemoteFile> = listing
        .files
        .iter()
        .map(|file| (file.path.as_str(), file))
        .collect();
    let find = |path: &str| by_path.get(path).copied();
    let choice = select::select(name, &paths, &|path| find(path).map_or(0, |f| f.size))?;
    let mut pulled = Pulled::nothing(store, name, choice.files[0]);
    let source = Commit {
        client,
        repository: &name.repository,
        commit: &listing.commit,
    };
    for remote in choice.files.iter().filter_map(|path| find(path)) {
        let version = Version {
            mark: remote.sha256.as_deref().unwrap_or(&listing.commit),
            resumes: true,
            kept: None,
        };
        Fetch {
            source: &source,
            store,
            name: &pulled.name.clone(),
            remote,
            version,
            form,
        }
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
        let remote = RemoteFile {
            path,
            size: source.size(),
            sha256: None,
        };
        let mark = source.version();
        let version = Version {
            mark: &mark,
            resumes: source.is_marked(),
            kept: Some(&mark),
        };
        Fetch {
            source: &source,
            store,
            name,
            remote: &remote,
            version,
            form,
        }
        .add(&mut pulled, progress)?;
    }
    Ok(pulled)
}

impl Pulled {
    /// Result before any file is fetched.
    fn nothing(store: &Store, name: &Name, file: &str) -> Pulled {
        let name = Name {
            file: Some(file.to_owned()),
            query: None,
            ..name.clone()
        };
        Pulled {
            file: store.place(&name.repository, file),
            name,
            fetched: 0,
            unchecked: vec![],
        }
    }
}

/// Version of a remote file.
struct Version<'a> {
    /// Hexadecimal text that distinguishes its partial file from those of other versions.
    mark: &'a str,
    /// Whether a partial file of an earlier connection may be resumed.
    resumes: bool,
    /// Version to record where no checksum identifies it; None for files of the hub.
    kept: Option<&'a str>,
}

/// Download of one file.
struct Fetch<'a> {
    source: &'a dyn FileSource,
    store: &'a Store,
    name: &'a Name,
    remote: &'a RemoteFile,
    version: Version<'a>,
    form: FileFormat<'a>,
}

/// Partial file of a download, open and locked.
struct Partial {
    folder: Folder,
    /// Name of the partial file in `folder`, followed by its final name.
    name: String,
    becomes: String,
    /// Path of the partial file, for messages.
    path: PathBuf,
    file: File,
    /// Hash of the first `done` bytes.
    hash: Sha256,
    done: u64,
}

/// Bytes of a connection by periods. A server that sends a byte now and then never reaches the
/// timeout of a read.
struct Pace {
    period: Duration,
    began: Instant,
    bytes: u64,
}

impl Pace {
    fn new(period: Duration) -> Pace {
        Pace {
            period,
            began: Instant::now(),
            bytes: 0,
        }
    }
    /// Adds received bytes. Returns false at the end of a period with less than [`LEAST_BYTES`].
    fn suffices(&mut self, received: u64) -> bool {
        self.bytes += received;
        if self.bytes >= LEAST_BYTES {
            *self = Pace::new(self.period);
        }
        self.began.elapsed() < self.period
    }
}

impl Fetch<'_> {
    fn add(&self, pulled: &mut Pulled, progress: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        let Some(fetched) = self.run(progress)? else {
            return Ok(());
        };
        pulled.fetched += fetched;
        if self.remote.sha256.is_none() {
            pulled.unchecked.push(self.remote.path.clone());
        }
        Ok(())
    }
    fn repository(&self) -> &Repository {
        &self.name.repository
    }

    /// Returns the number of bytes received; None if the store has the file already.
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
                    let enough = PROGRESS.0.min(self.remote.size.div_ceil(PROGRESS.1));
                    let gained = partial.done.saturating_sub(before);
                    tries = if gained >= enough { 1 } else { tries + 1 };
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

    /// Returns whether the store has the server's current version of the file.
    ///
    /// A downloaded file that has changed does not count. A file that was not downloaded and
    /// differs is an error, since the download would overwrite it.
    fn is_kept(&self, progress: &mut dyn FnMut(Progress)) -> Result<bool, Error> {
        let (repository, file) = (self.repository(), self.remote.path.as_str());
        let path = self.store.place(repository, file);
        let failed = |error| disk("read", &path)(error);
        let Some((folder, name)) = self.store.enter(repository, file)? else {
            return Ok(false);
        };
        let Some(mut open) = folder.read(name).map_err(failed)? else {
            return Ok(false);
        };
        let size = open.metadata().map_err(failed)?.len();
        let Some(record) = Record::read(&folder, name).map_err(failed)? else {
            // Without a checksum only the size is compared.
            let same = size == self.remote.size
                && match &self.remote.sha256 {
                    None => true,
                    Some(expected) => {
                        let (sum, _) = hash(&mut open, size, &mut |done| {
                            progress(Progress::Checked {
                                file,
                                done,
                                total: size,
                            })
                        })
                        .map_err(failed)?;
                        hexadecimal(sum) == *expected
                    }
                };
            return if same {
                Ok(true)
            } else {
                Err(Error::InTheWay { path })
            };
        };
        let is_hubs = self
            .remote
            .sha256
            .as_ref()
            .is_none_or(|expected| *expected == record.sha256);
        let is_other = self
            .version
            .kept
            .is_some_and(|version| record.version.as_deref() != Some(version));
        if !is_hubs || is_other || size != self.remote.size && self.remote.sha256.is_none() {
            return Ok(false);
        }
        // A record without a size does not prove that the file has the hub's size.
        let same = size == self.remote.size
            && self.store.check(repository, file, false, progress)? == Verdict::Same;
        if !same {
            progress(Progress::Changed { file: &path });
        }
        Ok(same)
    }

    /// Opens and locks the partial file; a different version has a different name.
    fn open(&self) -> Result<Partial, Error> {
        let (folder, becomes) = self.store.make(self.repository(), &self.remote.path)?;
        let place = self.store.place(self.repository(), &self.remote.path);
        // Checked before gigabytes are downloaded.
        for name in [becomes.to_owned(), record_name(becomes)] {
            let path = place.with_file_name(&name);
            if !matches!(
                folder.kind(&name).map_err(disk("read", &path))?,
                None | Some(EntryKind::File)
            ) {
                return Err(disk("replace", &path)(planted("it is no regular file")));
            }
        }
        let name = part_name(becomes, self.version.mark);
        let path = place.with_file_name(&name);
        let file = folder.write(&name).map_err(disk("write", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Partial {
                folder,
                name,
                becomes: becomes.into(),
                path,
                file,
                hash: Sha256::new(),
                done: 0,
            }),
            Err(TryLockError::WouldBlock) => Err(Error::Busy(self.remote.path.clone())),
            Err(TryLockError::Error(error)) => Err(disk("lock", &path)(error)),
        }
    }

    /// Hashes the bytes that an earlier run left, or discards them if they cannot be resumed.
    fn read_again(
        &self,
        partial: &mut Partial,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), Error> {
        let there = partial
            .file
            .metadata()
            .map_err(disk("read", &partial.path))?
            .len();
        let total = if self.version.resumes {
            there.min(self.remote.size)
        } else {
            0
        };
        let mut checked = |done| {
            progress(Progress::Checked {
                file: &self.remote.path,
                done,
                total,
            })
        };
        let read =
            hash(&mut partial.file, total, &mut checked).map_err(disk("read", &partial.path))?;
        (partial.hash, partial.done) = read;
        partial
            .file
            .set_len(partial.done)
            .map_err(disk("write", &partial.path))
    }

    /// Checks the free disk space before the download.
    fn find_room(&self, partial: &Partial) -> Result<(), Error> {
        let needed = self.remote.size - partial.done;
        match partial.folder.room().map_err(disk("read", &partial.path))? {
            Some(free) if free < needed => Err(Error::NoRoom {
                path: partial.path.clone(),
                needed,
                free,
            }),
            _ => Ok(()),
        }
    }

    /// Receives the bytes of one connection and writes them even if it
    /// breaks. Returns their number.
    fn stream(
        &self,
        partial: &mut Partial,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<u64, Error> {
        let mut bytes = self.source.bytes(&self.remote.path, partial.done)?;
        if bytes.from != partial.done {
            // The server does not support ranges, or sent a different one.
            if bytes.from != 0 {
                return Err(self
                    .source
                    .broken("sends another range than it was asked for".into()));
            }
            (partial.done, partial.hash) = (0, Sha256::new());
            partial
                .file
                .set_len(0)
                .map_err(disk("write", &partial.path))?;
        }
        partial
            .file
            .seek(SeekFrom::Start(partial.done))
            .map_err(disk("write", &partial.path))?;
        let start = partial.done;
        let mut piece = vec![0; READ_BYTES];
        let mut pace = Pace::new(self.source.patience());
        loop {
            progress(Progress::Fetched {
                file: &self.remote.path,
                done: partial.done,
                total: self.remote.size,
            });
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
            partial
                .file
                .write_all(&piece[..n])
                .map_err(disk("write", &partial.path))?;
            partial.hash.update(&piece[..n]);
            partial.done += n as u64;
            if !pace.suffices(n as u64) && partial.done < self.remote.size {
                return Err(self.source.broken("sends too slowly".into()));
            }
        }
        if partial.done < self.remote.size {
            return Err(self
                .source
                .broken("the connection ended before the file did".into()));
        }
        Ok(partial.done - start)
    }

    fn finish(&self, partial: Partial) -> Result<(), Error> {
        let Partial {
            folder,
            name,
            becomes,
            path,
            file,
            hash,
            ..
        } = partial;
        let found = hexadecimal(hash);
        if let Some(expected) = self
            .remote
            .sha256
            .clone()
            .filter(|expected| *expected != found)
        {
            folder.remove(&name).map_err(disk("remove", &path))?;
            return Err(Error::Checksum {
                file: self.remote.path.clone(),
                expected,
                found,
            });
        }
        if self.remote.sha256.is_none() {
            let seen = file.try_clone().map_err(disk("read", &path))?;
            if let Err(why) = (self.form.check)(seen) {
                folder.remove(&name).map_err(disk("remove", &path))?;
                let name = Name {
                    file: Some(self.remote.path.clone()),
                    ..self.name.clone()
                };
                return Err(Error::NoModel {
                    name: name.to_string(),
                    why,
                });
            }
        }
        file.sync_all().map_err(disk("write", &path))?;
        let stamp = Stamp::from_file(&file).map_err(disk("read", &path))?;
        let version = self.version.kept.map(str::to_owned);
        let record = Record {
            sha256: found,
            stamp: Some(stamp),
            version,
        };
        record
            .write(&folder, &becomes)
            .map_err(disk("write", &path.with_file_name(record_name(&becomes))))?;
        folder
            .rename(&name, &becomes)
            .map_err(disk("rename", &path))
    }
}
