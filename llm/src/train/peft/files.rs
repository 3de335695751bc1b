//! Files of PEFT adapters: where they are, tensors of a safetensors file, and writing.
//!
//! Files are untrusted; a tensor is read only when its shape is known to fit.

use super::super::adapter::{AdapterError, AdapterTensor};
use crate::safetensors_file::{self, SafetensorsError, SafetensorsFile};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value as Json;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// Extension of the second kind of files.
const EXTENSION: &str = "safetensors";

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

/// The open safetensors file of an adapter.
pub(super) struct TensorFile {
    file: SafetensorsFile,
    path: PathBuf,
}

impl TensorFile {
    pub fn open(path: &Path) -> Result<TensorFile, AdapterError> {
        let opened = SafetensorsFile::open(path).map_err(|error| match error {
            SafetensorsError::Io(_) if path.with_extension("bin").exists() => AdapterError::Peft(
                "adapter_model.bin is a pickle, which may run code: save the adapter with \
                 safe_serialization=True"
                    .into(),
            ),
            SafetensorsError::Io(error) => io_error("read", path)(error),
            SafetensorsError::Malformed(problem) => {
                AdapterError::Peft(format!("the safetensors file is malformed: {problem}"))
            }
        });
        Ok(TensorFile {
            file: opened?,
            path: path.to_owned(),
        })
    }
    pub fn names(&self) -> Vec<String> {
        self.file.names()
    }
    /// Row-major dims; empty for an unknown name.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        let info = self.file.info(name);
        info.map_or(Vec::new(), |info| info.shape.clone())
    }
    /// Reads a tensor as f32.
    pub fn read(&mut self, name: &str) -> Result<Vec<f32>, AdapterError> {
        let failed = |problem: String| AdapterError::Tensor {
            name: name.into(),
            problem,
        };
        let info = self.file.info(name);
        let info = info.ok_or_else(|| failed("it is missing".into()))?;
        let (from, to) = info.data_offsets;
        let is_read = matches!(info.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let unread = || {
            let other = info.dtype;
            failed(format!("it is {other:?}; F32, F16 and BF16 are read"))
        };
        if !is_read {
            return Err(unread());
        }
        let mut bytes = vec![0; to - from];
        self.file
            .read_at(info, 0, &mut bytes)
            .map_err(io_error("read", &self.path))?;
        safetensors_file::decode(info.dtype, &bytes).ok_or_else(unread)
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
