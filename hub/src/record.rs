//! What is written down beside a fetched file: its checksum, in the form of `sha256sum`, and in a comment, which
//! `sha256sum -c` passes over, the size and the date that the file had then.
//!
//! A file with the size and the date of its record is taken for what was fetched; any other is read again. Whoever sets
//! the date back on purpose could write another checksum as well, so nothing finer is recorded: the time of a file's last
//! change of status differs after every copy of a disk's image, and 18 GB would be read at each start.
//!
//! Earlier versions wrote no comment. They wrote the record once the file was whole, so such a record vouches for a file
//! that is not younger than it.

use crate::client::is_sha256;
use crate::folder::Folder;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;

/// What a checksum's file ends in.
pub(crate) const CHECKSUM: &str = ".sha256";
/// What a file ends in that is not whole.
pub(crate) const PART: &str = ".part";
/// Characters of a checksum that tell one partial file from another.
const MARK: usize = 12;
/// Most bytes of a record: a line of 64 and a name, and the comment.
const RECORD_BYTES: u64 = 4096;
/// What a comment begins with.
const COMMENT: &str = "# gristmill:";
/// What a comment with a version begins with behind that.
const VERSION: &str = "version ";
/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// The size and the date of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    pub size: u64,
    /// Seconds and nanoseconds of its last change.
    changed: (i64, i64),
}

/// What was written down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub sha256: String,
    /// None in records of other programs and of versions that had no comment.
    pub stamp: Option<Stamp>,
    /// Which version of a server's file it was, where the server is no hub and says so by no checksum.
    pub version: Option<String>,
}

impl Stamp {
    /// That of a file now.
    pub fn from_file(file: &File) -> io::Result<Stamp> {
        let about = file.metadata()?;
        Ok(Stamp { size: about.len(), changed: (about.mtime(), about.mtime_nsec()) })
    }
    fn parse(comment: &str) -> Option<Stamp> {
        let (size, changed) = comment.strip_prefix("size ")?.split_once(" changed ")?;
        let (seconds, nanoseconds) = changed.split_once('.')?;
        Some(Stamp { size: size.parse().ok()?, changed: (seconds.parse().ok()?, nanoseconds.parse().ok()?) })
    }
}

impl Record {
    /// That of a file in a folder; none if there is none, or not of that file.
    ///
    /// # Errors
    /// When it is a link or no regular file.
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
        let comments: Vec<&str> = lines.filter_map(|line| line.strip_prefix(COMMENT)).map(str::trim).collect();
        let stamp = comments.iter().find_map(|comment| Stamp::parse(comment));
        let version = comments.iter().find_map(|comment| comment.strip_prefix(VERSION)).map(str::to_owned);
        Ok(sum.map(|(sha256, _)| Record { sha256: sha256.to_ascii_lowercase(), stamp, version }))
    }
    /// Is that still the file that it was written of, by their dates alone?
    pub fn vouches(&self, folder: &Folder, file: &str, stamp: Stamp) -> io::Result<bool> {
        match self.stamp {
            Some(recorded) => Ok(recorded == stamp),
            None => match folder.read(&record_name(file))? {
                Some(record) => Ok(stamp.changed <= Stamp::from_file(&record)?.changed),
                None => Ok(false),
            },
        }
    }
    /// Writes it beside a file, in one step.
    pub fn write(&self, folder: &Folder, file: &str) -> io::Result<()> {
        let to = record_name(file);
        // Named as something of ours, lest one that is left behind is nobody's.
        let by = format!("{to}{PART}");
        let mut text = format!("{}  {file}\n", self.sha256);
        if let Some(Stamp { size, changed: (seconds, nanoseconds) }) = self.stamp {
            text.push_str(&format!("{COMMENT} size {size} changed {seconds}.{nanoseconds:09}\n"));
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

/// The name of a file's record.
pub(crate) fn record_name(file: &str) -> String {
    format!("{file}{CHECKSUM}")
}

/// The name of a file until it is whole; `mark` tells versions of it apart.
pub(crate) fn part(file: &str, mark: &str) -> String {
    let mark: String = mark.chars().filter(char::is_ascii_hexdigit).take(MARK).collect();
    format!("{file}.{mark:0<MARK$}{PART}")
}

/// The name that a file will have when it is whole, if it is named as partial files are.
pub(crate) fn finished(name: &str) -> Option<&str> {
    let name = name.strip_suffix(PART)?;
    // A record that is being written.
    if let Some(file) = name.strip_suffix(CHECKSUM) {
        return Some(file);
    }
    let (file, mark) = name.rsplit_once('.')?;
    let ours = mark.len() == MARK && mark.bytes().all(|b| b.is_ascii_hexdigit());
    (ours && !file.is_empty()).then_some(file)
}

/// The SHA-256 of a file's first `bytes` bytes, which `progress` is told of; and how many there were.
pub(crate) fn hash(file: &mut impl Read, bytes: u64, progress: &mut dyn FnMut(u64)) -> io::Result<(Sha256, u64)> {
    let (mut hash, mut done) = (Sha256::new(), 0);
    let mut piece = vec![0; READ_BYTES];
    while done < bytes {
        let most = piece.len().min(usize::try_from(bytes - done).unwrap_or(usize::MAX));
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

/// A checksum as text.
pub(crate) fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_files_are_told_by_their_names() {
        assert_eq!(part("m.gguf", "0123456789abcdef"), "m.gguf.0123456789ab.part");
        assert_eq!(part("m.gguf", "01/2"), "m.gguf.012000000000.part");
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
    fn records_are_read_as_they_are_written() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::root(place.path()).unwrap().unwrap();
        for version in [None, Some("ab".repeat(32))] {
            let record = Record { sha256: "0a".repeat(32), stamp: Some(Stamp { size: 7, changed: (-3, 12) }), version };
            record.write(&folder, "m").unwrap();
            assert_eq!(Record::read(&folder, "m").unwrap(), Some(record));
        }
        for (text, found) in [
            (format!("{}  m\n", "0A".repeat(32)), Some(Record { sha256: "0a".repeat(32), stamp: None, version: None })),
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
