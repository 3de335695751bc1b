//! Checkpoints: parameters, moments and the number of steps, as one GGUF file.
//!
//! A checkpoint is written beside the old one and takes its place only when it is complete, so that
//! a full disk or a lost process costs no more than the steps since the last one.

use super::parameters::Places;
use crate::gguf::{self, Gguf, Metadata, TensorDecl, Writer};
use gristmill_uop::encoding::EncodingRef;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
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

/// Separates the parts of a run's description.
const SEPARATOR: &str = ", ";

/// Bytes of each tensor in the hash of a model.
const FIRST_BYTES: u64 = 256;

/// 64-bit FNV-1a hash of bytes that are written to it.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// Hash of a model's metadata, of the names, shapes and encodings of its tensors, and of the
    /// first bytes of each; not of all data.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of_model(file: &Gguf) -> gguf::Result<Fingerprint> {
        let declared: Vec<TensorDecl<'_>> = file
            .tensors()
            .iter()
            .map(|t| TensorDecl {
                name: &t.name,
                dims: &t.dims,
                encoding: t.encoding,
            })
            .collect();
        let mut hash = Fingerprint::default();
        Writer::new(&mut hash, file.metadata(), &declared)?;
        for info in file.tensors() {
            let mut first = vec![0; info.bytes.min(FIRST_BYTES) as usize];
            file.read_range(info, 0, &mut first)?;
            hash.add(&first);
        }
        Ok(hash)
    }
    /// Hash of the names and the dims of parameters.
    pub fn of_places(places: &Places) -> Fingerprint {
        let mut hash = Fingerprint::default();
        for (name, place) in places.iter() {
            hash.add(name.as_bytes());
            hash.add(format!("{:?}", place.dims).as_bytes());
        }
        hash
    }
    /// Continues the hash with these bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let next = |h: u64, &b: &u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, next);
    }
}

impl Write for Fingerprint {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Returns how the description of a checkpoint's run differs from that of this run.
fn differences(found: &str, run: &str) -> String {
    let [theirs, ours] = [found, run].map(|text| text.split(SEPARATOR).collect::<Vec<_>>());
    if theirs.len() != ours.len() {
        return format!("it has {found}; this one has {run}");
    }
    let pairs = theirs.iter().zip(&ours).filter(|(a, b)| a != b);
    let pairs: Vec<String> = pairs
        .map(|(a, b)| format!("{a} there and {b} here"))
        .collect();
    pairs.join(SEPARATOR)
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
    /// flags, in parts with `, ` between them; only an equal run may continue.
    ///
    /// # Errors
    /// When the file cannot be written; the older one is then unchanged.
    pub fn write(&self, path: &Path, run: &str) -> Result<(), CheckpointError> {
        let beside = path.with_extension("gguf.tmp");
        let failed = |what, path: &Path| {
            let path = path.display().to_string();
            move |error| CheckpointError::Io(what, path, error)
        };
        let rename = |()| fs::rename(&beside, path).map_err(failed("rename", &beside));
        let written = self.write_to(&beside, run).and_then(rename);
        match written {
            // The new name lasts only once the folder is stored too; not every file system can.
            Ok(()) => _ = path.parent().map(|folder| File::open(folder)?.sync_all()),
            // An incomplete file would only take space.
            Err(_) => _ = fs::remove_file(&beside),
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
        let fill = || -> gguf::Result<()> {
            let mut writer = Writer::new(BufWriter::new(&file), &metadata, &declared)?;
            for values in &self.state {
                writer.data(bytemuck::cast_slice(values))?;
            }
            writer.finish().map(drop)
        };
        fill().map_err(|error| match error {
            gguf::Error::Io { source, .. } => failed("write")(source),
            error => error.into(),
        })?;
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
                let differ = differences(found.unwrap_or_default(), run);
                return Err(other(&format!("of another run: {differ}")));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn checkpoint(steps: u64) -> Checkpoint {
        let values = |first: f32| (0..5000).map(|i| first + i as f32).collect();
        Checkpoint {
            steps,
            length: 5000,
            state: [0.0, 1.0, 2.0].map(values),
        }
    }

    #[test]
    fn only_the_same_run_continues() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.gguf");
        checkpoint(7).write(&path, "lr 1, seed 2").unwrap();
        assert_eq!(
            Checkpoint::read(&path, "lr 1, seed 2").unwrap(),
            checkpoint(7)
        );
        let error = Checkpoint::read(&path, "lr 1, seed 3").unwrap_err();
        let expected = "of another run: seed 2 there and seed 3 here";
        assert!(error.to_string().ends_with(expected), "{error}");
    }

    #[test]
    fn a_full_disk_leaves_the_older_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.gguf");
        checkpoint(1).write(&path, "run").unwrap();
        let beside = path.with_extension("gguf.tmp");
        symlink("/dev/full", &beside).unwrap();
        let error = checkpoint(2).write(&path, "run").unwrap_err().to_string();
        assert!(error.starts_with("cannot write "), "{error}");
        assert!(error.contains("No space left on device"), "{error}");
        assert!(!beside.exists());
        assert_eq!(Checkpoint::read(&path, "run").unwrap(), checkpoint(1));
        checkpoint(2).write(&path, "run").unwrap();
        assert_eq!(Checkpoint::read(&path, "run").unwrap(), checkpoint(2));
    }

    #[test]
    fn a_cut_checkpoint_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint.gguf");
        checkpoint(1).write(&path, "run").unwrap();
        let bytes = fs::read(&path).unwrap();
        for length in [0, 30, bytes.len() / 2, bytes.len() - 1] {
            fs::write(&path, &bytes[..length]).unwrap();
            assert!(Checkpoint::read(&path, "run").is_err(), "{length} bytes");
        }
    }
}
