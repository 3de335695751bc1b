//! What goes wrong between a name and its file.

use crate::offer::Offer;
use crate::repository::{Name, Repository};
use crate::size::size;
use std::io;
use std::path::PathBuf;

/// Why a model could not be named, fetched or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that is none.
    #[error("{0} does not name a model: {1}")]
    Name(String, &'static str),
    /// An address that is none of a model's file.
    #[error("{0} is not the address of a model: {1}")]
    Address(String, &'static str),
    /// What would come could be read and changed on the way.
    #[error("{0} is not fetched: the connection would not be encrypted")]
    Plain(String),
    /// What lies at an address is no model, or does not come.
    #[error("{name}: {message}")]
    Elsewhere {
        /// What was asked for.
        name: String,
        /// What came instead.
        message: String,
    },
    /// What came is no model.
    #[error("{name} is no model: {why}; it is thrown away")]
    NoModel {
        /// What was fetched.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The hub knows no such repository, or does not say.
    #[error("the hub has no repository {0}, or shows it only to some")]
    NoRepository(Repository),
    /// The hub does not let this user in.
    #[error("the hub refuses {0}")]
    Refused(Repository),
    /// No file of the repository is the one asked for.
    #[error("{repository} has no model {wanted}")]
    NoFile {
        /// Where it was looked for.
        repository: Repository,
        /// What was looked for.
        wanted: String,
        /// What there is.
        files: Vec<String>,
    },
    /// The name fits several files.
    #[error("{repository} has {} models", .models.len())]
    Several {
        /// Where.
        repository: Repository,
        /// Which.
        models: Vec<Offer>,
    },
    /// Nothing of that name is kept here.
    #[error("{0} is not among the models that are kept here")]
    NotKept(Name),
    /// What is meant lies here, and was not fetched.
    #[error("{name} was not fetched: {} is left where it is", .path.display())]
    NotFetched {
        /// What was to be removed.
        name: Box<Name>,
        /// A file of it.
        path: PathBuf,
    },
    /// A file is not what was fetched.
    #[error("{} is not what was fetched: its SHA-256 has changed", .path.display())]
    Changed {
        /// What it was fetched as.
        name: Box<Name>,
        /// Where it is.
        path: PathBuf,
    },
    /// A file that somebody put here stands where one is to be fetched to.
    #[error("{} was not fetched, and is not the hub's file", .path.display())]
    InTheWay {
        /// Where it is.
        path: PathBuf,
    },
    /// A token may not be sent where everybody on the way can read it.
    #[error("HF_TOKEN is not sent to {0}: the connection would not be encrypted")]
    PlainToken(String),
    /// The hub cannot be reached, or breaks off.
    #[error("{endpoint}: {message}")]
    Transport {
        /// Who was asked.
        endpoint: String,
        /// What the connection came to.
        message: String,
        /// Is that the hub, and not another server?
        is_hub: bool,
    },
    /// The hub answers, but not with what was asked for.
    #[error("{endpoint} answers {answer}")]
    Answer {
        /// Who was asked.
        endpoint: String,
        /// What came instead.
        answer: String,
    },
    /// What was fetched is not what the hub has.
    #[error("{file} has the SHA-256 {found} and should have {expected}: what was fetched is thrown away")]
    Checksum {
        /// Which.
        file: String,
        /// Of the hub's.
        expected: String,
        /// Of what came.
        found: String,
    },
    /// Another process is at it.
    #[error("{0} is being fetched by another process")]
    Busy(String),
    /// The disk is too small.
    #[error("{} needs {} more, and its disk has room for {}", .path.display(), size(*.needed), size(*.free))]
    NoRoom {
        /// What was to be written.
        path: PathBuf,
        /// Bytes that are to come.
        needed: u64,
        /// Bytes that there is room for.
        free: u64,
    },
    /// The disk.
    #[error("cannot {what} {}: {error}", .path.display())]
    Disk {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// What came of it.
        error: io::Error,
    },
    /// Nowhere to keep models.
    #[error("there is no folder to keep models in")]
    NoHome,
}

/// Where the disk is full.
const NO_ROOM: &str = "make room, or keep models elsewhere: GRISTMILL_MODELS names a folder";
/// Names in a hint before it says how many more there are.
const MAX_SHOWN: usize = 40;

impl Error {
    /// A way out, for the user.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::Name(..) => "write hf:ORG/REPO, or hf:ORG/REPO:FILE where there are several".into(),
            Error::Address(..) => {
                "give that of the file itself, https://HOST/…/NAME.gguf, or the path of a file that you have fetched"
                    .into()
            }
            Error::Plain(_) => "use an address with https; GRISTMILL_ALLOW_HTTP=1 fetches it all the same".into(),
            Error::Elsewhere { .. } => {
                "open the address in a browser: is it that of the file itself, and may everybody fetch it?".into()
            }
            Error::NoModel { .. } => "check the address; the file may be damaged where it lies".into(),
            Error::NoRepository(_) => {
                "check the name; for a private or gated one, set HF_TOKEN to a token that may read it".into()
            }
            Error::Refused(_) => {
                "accept the model's terms on its page, and set HF_TOKEN to a token that may read it".into()
            }
            Error::NoFile { files, .. } if files.is_empty() => {
                "the repository holds no .gguf files: try another".into()
            }
            Error::NoFile { files, .. } => format!("there are {}", list(files)),
            Error::Several { repository, models } => {
                let sized = |model: &Offer| format!("{} ({})", model.word, size(model.bytes));
                format!(
                    "choose a quantisation, hf:{repository}:{} for example, of {}",
                    models[models.len() / 2].word,
                    list(&models.iter().map(sized).collect::<Vec<_>>())
                )
            }
            Error::NotKept(_) => "`gristmill list` shows what is".into(),
            Error::NotFetched { .. } => "it has no record beside it; remove it by hand if it is not needed".into(),
            Error::Changed { name, .. } => {
                format!("`gristmill pull {name}` fetches it again; what you changed yourself belongs elsewhere")
            }
            Error::InTheWay { .. } => "move it elsewhere and try again, or use it by its path".into(),
            Error::PlainToken(_) => "use an address with https, or unset HF_TOKEN".into(),
            Error::Transport { is_hub, .. } => {
                let other = if *is_hub { ". HF_ENDPOINT names another hub" } else { "" };
                format!("check the connection and try again: what was fetched is kept{other}")
            }
            Error::Answer { .. } => "try again later, or name another hub with HF_ENDPOINT".into(),
            Error::Checksum { .. } => "try again; if it happens twice, the hub or the way to it is at fault".into(),
            Error::Busy(_) => "wait for it, or end it".into(),
            Error::NoRoom { .. } => NO_ROOM.into(),
            Error::Disk { error, .. } => match error.kind() {
                io::ErrorKind::StorageFull => NO_ROOM.into(),
                io::ErrorKind::InvalidInput => {
                    "no link in the folder of models is followed: remove it. GRISTMILL_MODELS names another folder"
                        .into()
                }
                _ => "check the folder and its permissions; GRISTMILL_MODELS names another".into(),
            },
            Error::NoHome => "set GRISTMILL_MODELS to a folder, or HOME".into(),
        })
    }
}

fn list(files: &[String]) -> String {
    let mut text = files.iter().take(MAX_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if files.len() > MAX_SHOWN {
        text.push_str(&format!(" and {} more", files.len() - MAX_SHOWN));
    }
    text
}
