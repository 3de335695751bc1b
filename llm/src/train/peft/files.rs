//! Files of PEFT adapters: where they are, tensors of a safetensors file, and writing.
//!
//! Files are untrusted. The header is bounded and checked by the crate `safetensors`, its data
//! length against the file; a tensor is read only when its shape is known to fit.

use super::super::adapter::{AdapterError, AdapterTensor};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorView};
use serde_json::Value as Json;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// Extension of the second kind of files.
const EXTENSION: &str = "safetensors";
/// Bytes of the header's length, and the longest header: an adapter of every linear layer of a
/// hundred blocks has about 200 KB.
const LENGTH: u64 = 8;
const LONGEST_HEADER: u64 = 16 << 20;

/// Whether a path means an adapter in the layout of PEFT: a folder, a name that ends with `/`, or a
/// `.safetensors` file.
pub fn is_peft(path: &Path) -> bool {
    let of_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    of_folder || path.is_dir() || path.extension().is_some_and(|e| e == EXTENSION)
}

/// Paths of configuration and weights.
pub(super) fn paths(path: &Path) -> [PathBuf; 2] {
    match path.extension().is_some_and(|e| e == EXTENSION) && !path.is_dir() {
        true => [path.with_file_name(CONFIG), path.to_owned()],
        false => [path.join(CONFIG), path.join(WEIGHTS)],
    }
}

fn io_error(what: &'static str, path: &Path) -> impl Fn(io::Error) -> AdapterError {
    let path = path.display().to_string();
    move |error| AdapterError::Io(what, path.clone(), error)
}

/// An open safetensors file.
pub(super) struct TensorFile {
    file: File,
    path: PathBuf,
    /// Offset of the data.
    begin: u64,
    metadata: Metadata,
}

impl TensorFile {
    pub fn open(path: &Path) -> Result<TensorFile, AdapterError> {
        let failed = |problem: String| {
            AdapterError::Peft(format!("the safetensors file is malformed: {problem}"))
        };
        let read = io_error("read", path);
        // Checked before opening, because opening a pipe blocks until it has a writer.
        let size = match fs::metadata(path) {
            Ok(data) if data.is_file() => data.len(),
            Ok(_) => return Err(failed("not a regular file".into())),
            Err(_) if path.with_extension("bin").exists() => {
                let problem = "adapter_model.bin is a pickle, which may run code: save the adapter \
                               with safe_serialization=True";
                return Err(AdapterError::Peft(problem.into()));
            }
            Err(error) => return Err(read(error)),
        };
        let file = File::open(path).map_err(&read)?;
        let mut length = [0; LENGTH as usize];
        if size < LENGTH {
            return Err(failed("it is too short".into()));
        }
        file.read_exact_at(&mut length, 0).map_err(&read)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_HEADER.min(size - LENGTH) {
            return Err(failed(format!("a header of {length} bytes")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, LENGTH).map_err(&read)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| failed(error.to_string()))?;
        let begin = LENGTH + length;
        let (found, declared) = (size - begin, metadata.data_len() as u64);
        if found != declared {
            return Err(failed(format!(
                "{found} bytes of data, and {declared} declared"
            )));
        }
        Ok(TensorFile {
            file,
            path: path.to_owned(),
            begin,
            metadata,
        })
    }
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }
    /// Row-major dims; empty for an unknown name.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        let info = self.metadata.info(name);
        info.map_or(Vec::new(), |info| info.shape.clone())
    }
    /// Reads a tensor as f32.
    pub fn read(&mut self, name: &str) -> Result<Vec<f32>, AdapterError> {
        let failed = |problem: String| AdapterError::Tensor {
            name: name.into(),
            problem,
        };
        let info = self.metadata.info(name);
        let info = info.ok_or_else(|| failed("it is missing".into()))?;
        let (from, to) = info.data_offsets;
        let mut bytes = vec![0; to - from];
        self.file
            .read_exact_at(&mut bytes, self.begin + from as u64)
            .map_err(io_error("read", &self.path))?;
        let half = |convert: fn([u8; 2]) -> f32| {
            let pairs = bytes.as_chunks::<2>().0.iter();
            pairs.map(|&pair| convert(pair)).collect()
        };
        match info.dtype {
            Dtype::F32 => {
                let words = bytes.as_chunks::<4>().0.iter();
                Ok(words.map(|&word| f32::from_le_bytes(word)).collect())
            }
            Dtype::F16 => Ok(half(|pair| f16::from_le_bytes(pair).to_f32())),
            Dtype::BF16 => Ok(half(|pair| bf16::from_le_bytes(pair).to_f32())),
            other => Err(failed(format!(
                "it is {other:?}; F32, F16 and BF16 are read"
            ))),
        }
    }
}

/// Writes configuration and weights; each file takes its place only when it is complete.
pub(super) fn write(
    path: &Path,
    config: &Json,
    tensors: Vec<(String, AdapterTensor)>,
) -> Result<(), AdapterError> {
    let [config_path, weights_path] = paths(path);
    if let Some(folder) = weights_path.parent() {
        fs::create_dir_all(folder).map_err(io_error("create", folder))?;
    }
    let malformed = |error: safetensors::SafeTensorError| AdapterError::Peft(error.to_string());
    let mut views = Vec::new();
    for (name, tensor) in &tensors {
        let bytes = bytemuck::cast_slice(&tensor.values);
        let view = TensorView::new(Dtype::F32, tensor.dims.clone(), bytes).map_err(malformed)?;
        views.push((name, view));
    }
    // Hugging Face's loaders refuse files without a format.
    let format = [("format".to_owned(), "pt".to_owned())];
    let bytes = safetensors::serialize(views, Some(format.into())).map_err(malformed)?;
    replace(&weights_path, &bytes)?;
    replace(&config_path, format!("{config:#}\n").as_bytes())
}

fn replace(path: &Path, bytes: &[u8]) -> Result<(), AdapterError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    let beside = PathBuf::from(beside);
    let fill = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    fill().map_err(|error| {
        // An incomplete file would only take space.
        let _ = fs::remove_file(&beside);
        io_error("write", path)(error)
    })
}
