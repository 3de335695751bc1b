//! Downloads models by name from the Hugging Face Hub or plain HTTP servers, and keeps them in a
//! local store.
//!
//! Names are `hf:ORG/REPO:FILE`, `https://HOST/FILE` and some short ones.
//!
//! An interrupted download resumes where it stopped, within a run and in the next one. A file
//! gets its final name only once its SHA-256 equals the hub's, or, where no checksum is known,
//! once it has been parsed as a model. Below the root of the store no symbolic link is
//! followed, and files that were not downloaded are never removed. The client is written on
//! `ureq`: the hub's own crate needs an async runtime and some 280 crates, and neither resumes
//! a file nor verifies its checksum.

mod client;
mod error;
mod file_name;
mod folder;
mod http_source;
mod local;
mod name;
mod offer;
mod progress;
mod pull;
mod record;
mod remove;
mod repository;
mod running;
mod select;
mod size;
mod source;
mod store;

pub use client::{Client, Listing, RemoteFile};
pub use error::Error;
pub use local::{Local, file_stem, is_ollama_blob, models_in};
pub use name::{SHORT_NAMES, Short};
pub use offer::Offer;
pub use progress::Progress;
pub use pull::{FileFormat, Pulled, pull};
pub use remove::Removed;
pub use repository::{Name, Repository};
pub use running::{RunningError, running};
pub use size::size;
pub use store::{Contents, Store, StoredModel, Verdict};
