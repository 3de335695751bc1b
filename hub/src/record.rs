//! Records of downloaded files: the checksum in the format of `sha256sum`, size and date.
//!
//! Size and modification date at the time of the download follow in a comment, which `sha256sum -c`
//! skips. A file with the recorded size and date counts as unchanged; any other is hashed again. A
//! process that can set the date back could also replace the record, so nothing finer is recorded:
//! the inode change time differs after each copy of a disk image, and would cause 18 GB to be
//! hashed at each start.
//!
//! Earlier versions wrote no comment. They wrote the record once the file was complete, so such a
//! record is valid for a file that is not younger than it.

use crate::client::is_sha256;
use crate::folder::Folder;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;

/// Suffix of a record's file name.
pub(crate) const CHECKSUM: &str = ".sha256";
/// Suffix of a partial file's name.
pub(crate) const PART: &str = ".part";
/// Hexadecimal digits in a partial file's name that identify the version.
const MARK: usize = 12;
/// Maximum bytes read of a record: 64 digits, a name and the comments.
const RECORD_BYTES: u64 = 4096;
/// Prefix of the comments that this crate writes.
const COMMENT: &str = "# gristmill:";
/// Prefix of the version inside a comment.
const VERSION: &str = "version ";
/// Bytes of the read buffer.
const READ_BYTES: usize = 1 << 20;

/// Size and modification date of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    pub size: u64,
    /// Modification date: seconds and nanoseconds since 1970.
    changed: (i64, i64),
}

/// Contents of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub sha256: String,
    /// None in records of other programs and of earlier versions.
    pub stamp: Option<Stamp>,
    /// Version of a file of a server without checksums, see `Elsewhere::version`.
    pub version: Option<String>,
}

impl Stamp {
    /// Returns the stamp of an open file.
    pub fn from_file(file: &File) -> io::Result<Stamp> {
        let about = file.metadata()?;
        Ok(Stamp {
            size: about.len(),
            changed: (about.mtime(), about.mtime_nsec()),
        })
    }
    fn parse(comment: &str) -> Option<Stamp> {
        let (size, changed) = comment.strip_prefix("size ")?.split_once(" changed ")?;
        let (seconds, nanoseconds) = changed.split_once('.')?;
        Some(Stamp {
            size: size.parse().ok()?,
            changed: (seconds.parse().ok()?, nanoseconds.parse().ok()?),
        })
    }
}

impl Record {
    /// Reads the record of a file; None if there is none, or it names another file.
    ///
    /// # Errors
    /// When the record is a link or not a regular file.
    pub fn read(folder: &Folder, file: &str) -> io::Result<Option<Record>> {
        let mut text = String::new();
        match folder.read(&record_name(file))? {
            None => return Ok(None),
            Some(record) => match record.take(RECORD_BYTES).read_to_string(&mut text) {
                Err(error) if error.kind() == ErrorKind::InvalidData => return Ok(None),
                read => read?,
            },
        };
        let mut lines = text.lines();
        let sum = lines.next().and_then(|line| line.split_once("  "));
        let sum = sum.filter(|(sha256, name)| is_sha256(sha256) && *name == file);
        let comments: Vec<&str> = lines
            .filter_map(|line| line.strip_prefix(COMMENT))
            .map(str::trim)
            .collect();
        let stamp = comments.iter().find_map(|comment| Stamp::parse(comment));
        let version = comments
            .iter()
            .find_map(|comment| comment.strip_prefix(VERSION))
            .map(str::to_owned);
        Ok(sum.map(|(sha256, _)| Record {
            sha256: sha256.to_ascii_lowercase(),
            stamp,
            version,
        }))
    }
    /// Returns whether the file is unchanged by size and date alone, without reading it.
    pub fn vouches(&self, folder: &Folder, file: &str, stamp: Stamp) -> io::Result<bool> {
        match self.stamp {
            Some(recorded) => Ok(recorded == stamp),
            None => match folder.read(&record_name(file))? {
                Some(record) => Ok(stamp.changed <= Stamp::from_file(&record)?.changed),
                None => Ok(false),
            },
        }
    }
    /// Writes the record of a file and replaces the old one atomically.
    pub fn write(&self, folder: &Folder, file: &str) -> io::Result<()> {
        let to = record_name(file);
        // The suffix marks it as a partial file of the store, so that an abandoned one is removed.
        let by = format!("{to}{PART}");
        let mut text = format!("{}  {file}\n", self.sha256);
        if let Some(Stamp {
            size,
            changed: (seconds, nanoseconds),
        }) = self.stamp
        {
            text.push_str(&format!(
                "{COMMENT} size {size} changed {seconds}.{nanoseconds:09}\n"
            ));
        }
        if let Some(version) = &self.version {
            text.push_str(&format!("{COMMENT} {VERSION}{version}\n"));
        }
        let mut out = folder.write(&by)?;
        out.set_len(0)?;
        out.write_all(text.as_bytes())?;
        folder.rename(&by, &to)
    }
}

/// Returns the file name of a file's record.
pub(crate) fn record_name(file: &str) -> String {
    format!("{file}{CHECKSUM}")
}

/// Returns the name of a partial file; the digits of `mark` distinguish versions.
pub(crate) fn part_name(file: &str, mark: &str) -> String {
    let mark: String = mark
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(MARK)
        .collect();
    format!("{file}.{mark:0<MARK$}{PART}")
}

/// Returns the final name of a partial file, or None if the name is not a partial file's.
pub(crate) fn finished(name: &str) -> Option<&str> {
    let name = name.strip_suffix(PART)?;
    // A record that was not renamed yet.
    if let Some(file) = name.strip_suffix(CHECKSUM) {
        return Some(file);
    }
    let (file, mark) = name.rsplit_once('.')?;
    let ours = mark.len() == MARK && mark.bytes().all(|b| b.is_ascii_hexdigit());
    (ours && !file.is_empty()).then_some(file)
}

/// Hashes up to `bytes` bytes of a file, with progress. Returns the hash and the bytes read.
pub(crate) fn hash(
    file: &mut impl Read,
    bytes: u64,
    progress: &mut dyn FnMut(u64),
) -> io::Result<(Sha256, u64)> {
    let (mut hash, mut done) = (Sha256::new(), 0);
    let mut piece = vec![0; READ_BYTES];
    while done < bytes {
        let most = piece
            .len()
            .min(usize::try_from(bytes - done).unwrap_or(usize::MAX));
        match file.read(&mut piece[..most]) {
            Ok(0) => break,
            Ok(n) => {
                hash.update(&piece[..n]);
                done += n as u64;
                progress(done);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((hash, done))
}

/// Formats a checksum in hexadecimal.
pub(crate) fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_files_are_told_by_their_names() {
        assert_eq!(
            part_name("m.gguf", "0123456789abcdef"),
            "m.gguf.0123456789ab.part"
        );
        assert_eq!(part_name("m.gguf", "01/2"), "m.gguf.012000000000.part");
        for (name, file) in [
            ("m.gguf.0123456789ab.part", Some("m.gguf")),
            ("m.gguf.sha256.part", Some("m.gguf")),
            ("m.gguf.part", None),
            ("m.gguf.0123456789abc.part", None),
            ("m..part", None),
            (".a.part", None),
            ("part", None),
            ("m.gguf.0123456789ax.part", None),
        ] {
            assert_eq!(finished(name), file, "{name}");
        }
    }

    #[test]
    fn records_round_trip() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::root(place.path()).unwrap().unwrap();
        for version in [None, Some("ab".repeat(32))] {
            let record = Record {
                sha256: "0a".repeat(32),
                stamp: Some(Stamp {
                    size: 7,
                    changed: (-3, 12),
                }),
                version,
            };
            record.write(&folder, "m").unwrap();
            assert_eq!(Record::read(&folder, "m").unwrap(), Some(record));
        }
        for (text, found) in [
            (
                format!("{}  m\n", "0A".repeat(32)),
                Some(Record {
                    sha256: "0a".repeat(32),
                    stamp: None,
                    version: None,
                }),
            ),
            (format!("{}  n\n", "0a".repeat(32)), None),
            ("0a  m\n".into(), None),
            (String::new(), None),
        ] {
            std::fs::write(place.path().join("m.sha256"), text).unwrap();
            assert_eq!(Record::read(&folder, "m").unwrap(), found);
        }
        std::fs::write(place.path().join("m.sha256"), [0xff; 9000]).unwrap();
        assert_eq!(Record::read(&folder, "m").unwrap(), None);
    }
}
