//! Checkpoints: parameters, moments and the number of steps, as one GGUF file.
//!
//! A checkpoint is written beside the old one and takes its place only when it is complete, so that
//! a full disk or a lost process costs no more than the steps since the last one.

use super::parameters::Places;
use crate::gguf::{self, Gguf, Metadata, TensorDecl, Writer};
use gristmill_uop::encoding::EncodingRef;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;

const KIND: &str = "general.type";
const IS_CHECKPOINT: &str = "gristmill.training";
const STEPS: &str = "training.steps";
/// What the run's flags and data amount to: see [`Checkpoint::write`].
const RUN: &str = "training.run";
const ARRAYS: [&str; 3] = ["parameters", "first_moments", "second_moments"];

/// An error of a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// A file operation failed.
    #[error("cannot {0} {1}: {2}")]
    Io(&'static str, String, std::io::Error),
    /// The file is no checkpoint of this run.
    #[error("{0}")]
    Other(String),
}

/// State of a run after some steps.
#[derive(Clone, PartialEq, Debug)]
pub struct Checkpoint {
    /// Updates of the parameters so far.
    pub steps: u64,
    /// Elements of each array.
    pub length: usize,
    /// Parameters, first and second moments.
    pub state: [Vec<f32>; 3],
}

impl Checkpoint {
    /// Checks that the arrays are those of these parameters.
    pub(super) fn check(&self, places: &Places) -> Result<(), CheckpointError> {
        match self.length == places.len() {
            true => Ok(()),
            false => Err(CheckpointError::Other(format!(
                "the checkpoint has {} parameters, and the run trains {}",
                self.length,
                places.len()
            ))),
        }
    }
    /// Writes the checkpoint to `path`, in place of an older one. `run` describes model, data and
    /// flags; only such a run may continue.
    ///
    /// # Errors
    /// When the file cannot be written; the older one is then unchanged.
    pub fn write(&self, path: &Path, run: &str) -> Result<(), CheckpointError> {
        let beside = path.with_extension("gguf.tmp");
        let failed = |what, path: &Path| {
            let path = path.display().to_string();
            move |error| CheckpointError::Io(what, path, error)
        };
        let written = self
            .write_to(&beside, run)
            .and_then(|()| fs::rename(&beside, path).map_err(failed("rename", &beside)));
        if written.is_err() {
            // What is incomplete would only take space.
            let _ = fs::remove_file(&beside);
        }
        written
    }
    fn write_to(&self, path: &Path, run: &str) -> Result<(), CheckpointError> {
        let failed = |what| {
            let path = path.display().to_string();
            move |error| CheckpointError::Io(what, path, error)
        };
        let file = File::create(path).map_err(failed("create"))?;
        let mut metadata = Metadata::new();
        metadata
            .insert(KIND, IS_CHECKPOINT)
            .insert(STEPS, self.steps)
            .insert(RUN, run);
        let dims = [self.length as u64];
        let encoding: EncodingRef = &gristmill_encodings::F32;
        let declared = ARRAYS.map(|name| TensorDecl {
            name,
            dims: &dims,
            encoding,
        });
        let mut writer = Writer::new(BufWriter::new(&file), &metadata, &declared)?;
        for values in &self.state {
            writer.data(bytemuck::cast_slice(values))?;
        }
        writer.finish()?;
        file.sync_all().map_err(failed("write"))
    }
    /// Reads the checkpoint of a run.
    ///
    /// # Errors
    /// When the file is malformed or of another run.
    pub fn read(path: &Path, run: &str) -> Result<Checkpoint, CheckpointError> {
        let file = Gguf::open(path)?;
        let metadata = file.metadata();
        let other =
            |problem: &str| CheckpointError::Other(format!("{}: {problem}", path.display()));
        if metadata.str(KIND)? != Some(IS_CHECKPOINT) {
            return Err(other("not a checkpoint of training"));
        }
        match metadata.str(RUN)? {
            Some(found) if found == run => {}
            found => {
                let found = found.unwrap_or("unknown");
                return Err(other(&format!(
                    "of another run: {found}; this one is {run}"
                )));
            }
        }
        let steps = metadata
            .u64(STEPS)?
            .ok_or_else(|| other("no number of steps"))?;
        let mut state: [Vec<f32>; 3] = Default::default();
        for (name, values) in ARRAYS.into_iter().zip(&mut state) {
            let info = file
                .tensor(name)
                .ok_or_else(|| other("an array is missing"))?;
            if info.bytes != info.elements() * size_of::<f32>() as u64 {
                return Err(other("an array is not of f32"));
            }
            *values = vec![0.0; info.elements() as usize];
            file.read_tensor(info, bytemuck::cast_slice_mut(values))?;
        }
        let length = state[0].len();
        if state.iter().any(|values| values.len() != length) {
            return Err(other("arrays of different lengths"));
        }
        Ok(Checkpoint {
            steps,
            length,
            state,
        })
    }
}
