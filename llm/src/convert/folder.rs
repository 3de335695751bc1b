//! Small files of a checkpoint's folder.

use super::error::ConvertError;
use serde_json::{Map, Value as Json};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest file in bytes: `tokenizer.json` of Gemma 3 has 33 MB.
const LONGEST: u64 = 256 << 20;

/// Fields of a JSON object.
pub(super) type Object = Map<String, Json>;

/// CheckpointFolder of a checkpoint.
pub(super) struct CheckpointFolder(pub PathBuf);

impl CheckpointFolder {
    /// Path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// Reads a file; `None` if there is none.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, ConvertError> {
        let path = self.path(name);
        let failed = ConvertError::io(&path);
        // Checked before opening, because opening a pipe blocks until it has a writer.
        match fs::metadata(&path) {
            Ok(data) if data.is_file() && data.len() <= LONGEST => {}
            Ok(data) if data.is_file() => {
                let problem = format!("it has {} bytes, more than {LONGEST}", data.len());
                return Err(ConvertError::malformed(name, problem));
            }
            Ok(_) => return Err(ConvertError::malformed(name, "it is no regular file")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let mut bytes = Vec::new();
        let mut file = File::open(&path).map_err(&failed)?.take(LONGEST);
        file.read_to_end(&mut bytes).map_err(&failed)?;
        Ok(Some(bytes))
    }
    /// Reads a text; `None` if there is no such file.
    pub fn text(&self, name: &str) -> Result<Option<String>, ConvertError> {
        let text = self.bytes(name)?.map(String::from_utf8).transpose();
        text.map_err(|error| ConvertError::malformed(name, error))
    }
    /// Reads a JSON object; `None` if there is no such file.
    pub fn object(&self, name: &str) -> Result<Option<Object>, ConvertError> {
        let Some(bytes) = self.bytes(name)? else {
            return Ok(None);
        };
        let object = serde_json::from_slice(&bytes);
        let failed = |error| ConvertError::malformed(name, format!("not a JSON object: {error}"));
        object.map(Some).map_err(failed)
    }
    /// Reads a JSON object that every checkpoint has.
    pub fn need(&self, name: &'static str, hint: &'static str) -> Result<Object, ConvertError> {
        self.object(name)?.ok_or_else(|| ConvertError::Missing {
            folder: self.0.display().to_string(),
            file: name,
            hint,
        })
    }
}

/// Whether a path is a folder of a checkpoint.
pub fn is_checkpoint(path: &Path) -> bool {
    path.join("config.json").is_file()
}
