//! Models by name: what `hf:ORG/REPO:FILE` and `https://HOST/FILE` mean, where they are kept, how they are fetched.
//!
//! A fetch that breaks off goes on where it stopped, within a run and in the next one; a file has its name only once its
//! SHA-256 is the one that the hub gives for it, or, where none is given, once it has been read as a model. Nothing below the
//! store's root is reached through a link, and what was not fetched is not removed. The client is our own, over `ureq`:
//! the hub's own crate brings a runtime and some 280 crates with it, and neither resumes a file nor compares its checksum.

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
mod select;
mod size;
mod source;
mod store;

pub use client::{Client, Listing, RemoteFile};
pub use error::Error;
pub use local::{Local, file_stem, models_in};
pub use name::{SHORT_NAMES, Short};
pub use offer::Offer;
pub use progress::Progress;
pub use pull::{FileFormat, Pulled, pull};
pub use remove::Removed;
pub use repository::{Name, Repository};
pub use size::size;
pub use store::{Contents, Store, StoredModel, Verdict};
