//! Errors from parsing a name to opening its file.

use crate::offer::Offer;
use crate::repository::{Name, Repository};
use crate::size::size;
use std::io;
use std::path::PathBuf;

/// Reason why a model could not be named, fetched or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text that is not a valid model name, with the reason.
    #[error("{0} does not name a model: {1}")]
    Name(String, &'static str),
    /// A URL that does not address a model's file, with the reason.
    #[error("{0} is not the address of a model: {1}")]
    Address(String, &'static str),
    /// The connection would not be encrypted.
    #[error("{0} is not fetched: the connection would not be encrypted")]
    Plain(String),
    /// A plain HTTP server returns something other than a model, or an error.
    #[error("{name}: {message}")]
    Elsewhere {
        /// Name that was requested.
        name: String,
        /// Response or error instead of the file.
        message: String,
    },
    /// A downloaded file without a checksum does not parse as a model.
    #[error("{name} is not a model: {why}; the download is discarded")]
    NoModel {
        /// Name of the downloaded file.
        name: String,
        /// Defect that the parser found.
        why: String,
    },
    /// The hub does not know the repository, or hides it from this user.
    #[error("the hub has no repository {0}, or access to it is restricted")]
    NoRepository(Repository),
    /// The hub denies this user access.
    #[error("the hub denies access to {0}")]
    Refused(Repository),
    /// No file of the repository matches the name.
    #[error("{repository} has no model {wanted}")]
    NoFile {
        /// Repository that was searched.
        repository: Repository,
        /// File or suffix that was requested.
        wanted: String,
        /// Models that the repository has.
        files: Vec<String>,
    },
    /// The name matches several models.
    #[error("{repository} has {} models", .models.len())]
    Several {
        /// Repository that was searched.
        repository: Repository,
        /// Matching models, with the shortest suffix that selects each.
        models: Vec<Offer>,
    },
    /// The store has no model with this name.
    #[error("{0} is not a fetched model")]
    NotKept(Name),
    /// The name matches files in the store that were not downloaded.
    #[error("{name} was not fetched: {} is not removed", .path.display())]
    NotFetched {
        /// Name that should be removed.
        name: Box<Name>,
        /// One of the matching files.
        path: PathBuf,
    },
    /// A file in the store is no longer the one that was downloaded.
    #[error("{} differs from the fetched file: its SHA-256 has changed", .path.display())]
    Changed {
        /// Name under which it was downloaded.
        name: Box<Name>,
        /// Path in the store.
        path: PathBuf,
    },
    /// A file that was not downloaded stands at the path of a download.
    #[error("{} exists and was not fetched from the hub", .path.display())]
    InTheWay {
        /// Path of that file.
        path: PathBuf,
    },
    /// A token would be sent over an unencrypted connection.
    #[error("HF_TOKEN is not sent to {0}: the connection would not be encrypted")]
    PlainToken(String),
    /// A server cannot be reached, breaks the connection, or fails temporarily.
    #[error("{endpoint}: {message}")]
    Transport {
        /// Address of the server.
        endpoint: String,
        /// Error of the connection.
        message: String,
        /// Whether the server is the hub.
        is_hub: bool,
    },
    /// The hub answers with an unexpected status or body.
    #[error("{endpoint} answers {answer}")]
    Answer {
        /// Address of the hub.
        endpoint: String,
        /// Status or description of the answer.
        answer: String,
    },
    /// The SHA-256 of a downloaded file differs from the hub's.
    #[error("{file} has the SHA-256 {found} and should have {expected}: the download is discarded")]
    Checksum {
        /// Path in the repository.
        file: String,
        /// SHA-256 that the hub lists.
        expected: String,
        /// SHA-256 of the received bytes.
        found: String,
    },
    /// Another process holds the lock on the partial file.
    #[error("{0} is being fetched by another process")]
    Busy(String),
    /// The file system has too little free space.
    #[error("{} needs {} more, and its disk has room for {}", .path.display(), size(*.needed), size(*.free))]
    NoRoom {
        /// Partial file that cannot be completed.
        path: PathBuf,
        /// Bytes that are still missing.
        needed: u64,
        /// Bytes that the file system has free.
        free: u64,
    },
    /// A file operation failed.
    #[error("cannot {what} {}: {error}", .path.display())]
    Disk {
        /// Verb of the operation, for the message.
        what: &'static str,
        /// File of the operation.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// No variable of the environment names a folder for models.
    #[error("there is no folder for models")]
    NoHome,
}

/// Hint where the disk is full.
const NO_ROOM: &str = "free disk space, or set GRISTMILL_MODELS to a folder on another disk";
/// Maximum number of names in a hint; the rest are counted.
const MAX_SHOWN: usize = 40;

impl Error {
    /// Returns advice for the user, if there is any.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::Name(..) => "write hf:ORG/REPO, or hf:ORG/REPO:FILE if the repository has several models".into(),
            Error::Address(..) => {
                "give the address of the file itself, https://HOST/…/NAME.gguf, or the path of a local file"
                    .into()
            }
            Error::Plain(_) => "use an https address; GRISTMILL_ALLOW_HTTP=1 allows plain HTTP".into(),
            Error::Elsewhere { .. } => {
                "open the address in a browser: it must return the file itself, without a login".into()
            }
            Error::NoModel { .. } => "check the address; the file on the server may be damaged".into(),
            Error::NoRepository(_) => {
                "check the name; for a private or gated one, set HF_TOKEN to a token that may read it".into()
            }
            Error::Refused(_) => {
                "accept the model's terms on its page, and set HF_TOKEN to a token that may read it".into()
            }
            Error::NoFile { files, .. } if files.is_empty() => {
                "the repository holds no .gguf files: try another".into()
            }
            Error::NoFile { files, .. } => format!("the repository has {}", list(files)),
            Error::Several { repository, models } => {
                let sized = |model: &Offer| format!("{} ({})", model.word, size(model.bytes));
                format!(
                    "choose a quantisation, hf:{repository}:{} for example, of {}",
                    models[models.len() / 2].word,
                    list(&models.iter().map(sized).collect::<Vec<_>>())
                )
            }
            Error::NotKept(_) => "`gristmill list` shows the fetched models".into(),
            Error::NotFetched { .. } => "the file has no download record; remove it by hand if it is not needed".into(),
            Error::Changed { name, .. } => {
                format!("`gristmill pull {name}` fetches it again; keep modified files in another folder")
            }
            Error::InTheWay { .. } => "move it elsewhere and try again, or use it by its path".into(),
            Error::PlainToken(_) => "use an https address, or unset HF_TOKEN".into(),
            Error::Transport { is_hub, .. } => {
                let other = if *is_hub { ". HF_ENDPOINT names another hub" } else { "" };
                format!("check the connection and try again: the partial download is kept{other}")
            }
            Error::Answer { .. } => "try again later, or name another hub with HF_ENDPOINT".into(),
            Error::Checksum { .. } => "try again; if it happens again, the hub or a proxy returns a wrong file".into(),
            Error::Busy(_) => "wait for that process, or end it".into(),
            Error::NoRoom { .. } => NO_ROOM.into(),
            Error::Disk { error, .. } => match error.kind() {
                io::ErrorKind::StorageFull => NO_ROOM.into(),
                io::ErrorKind::InvalidInput => {
                    "symbolic links in the model folder are not followed: remove it, or set GRISTMILL_MODELS to another folder"
                        .into()
                }
                _ => "check the folder and its permissions, or set GRISTMILL_MODELS to another".into(),
            },
            Error::NoHome => "set GRISTMILL_MODELS to a folder, or HOME".into(),
        })
    }
}

fn list(files: &[String]) -> String {
    let mut text = files
        .iter()
        .take(MAX_SHOWN)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if files.len() > MAX_SHOWN {
        text.push_str(&format!(" and {} more", files.len() - MAX_SHOWN));
    }
    text
}
