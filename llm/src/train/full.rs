//! Training of all weights of a small model: reading them, and writing the trained model.

use super::parameters::Places;
use crate::gguf::{self, Gguf, TensorDecl, TensorInfo, Writer};
use gristmill_tensor::evaluate;
use gristmill_uop::encoding::EncodingRef;
use half::{bf16, f16};
use std::io::Write;

/// An error of training all weights.
#[derive(Debug, thiserror::Error)]
pub enum FullError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// A weight is quantised.
    #[error("{name} is {encoding}; all weights can be trained in f32, f16 and bf16 files alone")]
    Quantised {
        /// Name of the tensor.
        name: String,
        /// Name of its encoding.
        encoding: &'static str,
    },
}

/// How a plain float type is written.
fn writes(encoding: EncodingRef) -> Option<fn(f32, &mut Vec<u8>)> {
    let of = |other: EncodingRef| encoding == other;
    if of(&gristmill_encodings::F32) {
        Some(|x, out| out.extend(x.to_le_bytes()))
    } else if of(&gristmill_encodings::F16) {
        Some(|x, out| out.extend(f16::from_f32(x).to_le_bytes()))
    } else if of(&gristmill_encodings::BF16) {
        Some(|x, out| out.extend(bf16::from_f32(x).to_le_bytes()))
    } else {
        None
    }
}

fn found<'a>(file: &'a Gguf, name: &str) -> Result<&'a TensorInfo, FullError> {
    let info = file
        .tensor(name)
        .ok_or_else(|| gguf::Error::Missing(name.into()))?;
    match writes(info.encoding) {
        Some(_) => Ok(info),
        None => Err(FullError::Quantised {
            name: name.into(),
            encoding: info.encoding.name,
        }),
    }
}

/// Calls `each` with the name and the values of every trained weight.
///
/// # Errors
/// When a weight is quantised, the file cannot be read, or `each` fails.
pub fn initial_weights<E: From<FullError>>(
    file: &Gguf,
    places: &Places,
    mut each: impl FnMut(&str, &[f32]) -> Result<(), E>,
) -> Result<(), E> {
    for (name, _) in places.iter() {
        let info = found(file, name)?;
        let mut bytes = vec![0; info.bytes as usize];
        file.read_tensor(info, &mut bytes)
            .map_err(FullError::File)?;
        let values: Vec<f32> = evaluate::decode(info.encoding, &bytes)
            .into_iter()
            .map(|v| v as f32)
            .collect();
        each(name, &values)?;
    }
    Ok(())
}

/// Writes the tensors of a model that `keeps`, trained weights in the type that they had.
///
/// # Errors
/// When a file fails.
pub fn write_model(
    file: &Gguf,
    places: &Places,
    values: &[f32],
    keeps: &dyn Fn(&str) -> bool,
    out: impl Write,
) -> Result<(), FullError> {
    let kept = || file.tensors().iter().filter(|info| keeps(&info.name));
    let declared: Vec<TensorDecl<'_>> = kept()
        .map(|t| TensorDecl {
            name: &t.name,
            dims: &t.dims,
            encoding: t.encoding,
        })
        .collect();
    let mut writer = Writer::new(out, file.metadata(), &declared)?;
    let mut bytes = Vec::new();
    for info in kept() {
        bytes.clear();
        match (places.get(&info.name), writes(info.encoding)) {
            (Some(place), Some(write)) => {
                let own = &values[place.range.clone()];
                own.iter().for_each(|&x| write(x, &mut bytes));
            }
            _ => {
                bytes.resize(info.bytes as usize, 0);
                file.read_tensor(info, &mut bytes)?;
            }
        }
        writer.data(&bytes)?;
    }
    writer.finish()?;
    Ok(())
}
