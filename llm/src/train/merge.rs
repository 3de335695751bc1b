//! Adding adapters to the weights of a model: `W + factor · B A`, in the weights' encodings.
//!
//! Tensors are read, changed and written in pieces of rows, on all cores. What an adapter does not
//! change is copied: metadata, other tensors, and blocks of adapted tensors whose numbers stay, or
//! for which the old bytes are at least as near to the sum as new ones.

use crate::arch::{self, LowRank, LowRankShape, Model, Tensors, scale_under_adapters};
use crate::gguf::{self, Gguf, Metadata, Role, TensorDecl, TensorInfo, types};
use crate::rewrite::{self, Quantisers, Rows, read_rows, row_shape, writable_types};
use gristmill_backend::parallel::cores;
use gristmill_encodings::Quantiser;
use gristmill_uop::encoding::EncodingRef;
use std::io::Write;
use std::ops::Range;

/// An error of merging adapters into a model.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The model is of an unknown architecture or malformed.
    #[error(transparent)]
    Model(#[from] arch::Error),
    /// A weight has an encoding that cannot be written.
    #[error("{tensor} is {encoding}, which can be read but not written")]
    Unwritable {
        /// Name of the weight.
        tensor: String,
        /// Name of its encoding.
        encoding: &'static str,
    },
    /// The encoding that was asked for cannot be written.
    #[error("{0} can be read but not written")]
    UnwritableType(&'static str),
    /// A merged weight is not finite.
    #[error("{0} has numbers that are infinite or no numbers once the adapters are added")]
    NotFinite(String),
    /// The scale of a weight, by which adapters are divided, is zero.
    #[error("{0} is zero, so no weight can stand for the adapter")]
    ZeroScale(String),
    /// The caller stopped it.
    #[error("the merge was stopped")]
    Stopped,
}

impl MergeError {
    /// Returns advice for the user, if there is any.
    pub fn hint(&self) -> Option<String> {
        let written = || writable_types().join(", ");
        Some(match self {
            MergeError::File(error) => return error.hint(),
            MergeError::Model(error) => return error.hint(),
            MergeError::Unwritable { .. } => {
                format!(
                    "--quant TYPE writes all matrices in another type: {}",
                    written()
                )
            }
            MergeError::UnwritableType(_) => format!("choose one of: {}", written()),
            MergeError::NotFinite(_) => {
                "the adapter or the model is damaged, or the adapter's SCALE is too large".into()
            }
            MergeError::ZeroScale(_) => "apply the adapter at run time, with --lora".into(),
            MergeError::Stopped => return None,
        })
    }
}

/// The matrices of an adapter of one weight.
#[derive(Clone, Copy)]
struct Pair<'f> {
    /// `A [.., rank, in]` and `B [.., out, rank]`.
    matrices: [&'f TensorInfo; 2],
    shape: LowRankShape,
}

/// A tensor of the output.
struct Planned<'f> {
    info: &'f TensorInfo,
    encoding: EncodingRef,
    pairs: Vec<Pair<'f>>,
    /// Tensor whose numbers multiply the product before adapters are added: one, or one per
    /// expert.
    scale: Option<&'f TensorInfo>,
}

impl Planned<'_> {
    fn is_copied(&self) -> bool {
        self.pairs.is_empty() && self.encoding == self.info.encoding
    }
    fn decl(&self) -> TensorDecl<'_> {
        TensorDecl {
            name: &self.info.name,
            dims: &self.info.dims,
            encoding: self.encoding,
        }
    }
}

/// A model file and its attached adapters as one model, before it is written.
pub struct Merge<'f> {
    file: &'f Gguf,
    metadata: Metadata,
    tensors: Vec<Planned<'f>>,
    quantisers: Quantisers,
}

impl<'f> Merge<'f> {
    /// Plans to merge the adapters that are attached to `file`; with `quant`, all matrices are
    /// written in that type, or in the next wider one that fits their rows.
    ///
    /// # Errors
    /// When an encoding cannot be written, or a file cannot be read.
    pub fn new(file: &'f Gguf, quant: Option<EncodingRef>) -> Result<Merge<'f>, MergeError> {
        let model = arch::load(file.metadata(), file)?;
        if let Some(quant) = quant.filter(|quant| Quantiser::new(quant).is_none()) {
            return Err(MergeError::UnwritableType(quant.name));
        }
        let is_attached = |t: &TensorInfo| {
            file.attached()
                .iter()
                .any(|of| t.name.starts_with(&of.prefix))
        };
        let mut merge = Merge {
            file,
            metadata: rewrite::metadata(file, quant.map(types::file_type)),
            tensors: Vec::new(),
            quantisers: Quantisers::default(),
        };
        for info in file.tensors().iter().filter(|t| !is_attached(t)) {
            let planned = plan(file, model.as_ref(), info, quant)?;
            merge.prepare(&planned)?;
            merge.tensors.push(planned);
        }
        Ok(merge)
    }
    /// Derives the quantisers of a tensor.
    fn prepare(&mut self, planned: &Planned<'_>) -> Result<(), MergeError> {
        if planned.is_copied() {
            return Ok(());
        }
        let matrices = planned.pairs.iter().flat_map(|pair| pair.matrices);
        for info in matrices.chain([planned.info]) {
            self.quantisers.add(info.encoding);
        }
        match self.quantisers.add(planned.encoding) {
            true => Ok(()),
            false => Err(MergeError::Unwritable {
                tensor: planned.info.name.clone(),
                encoding: planned.encoding.name,
            }),
        }
    }
    /// Size of the written tensors in bytes.
    pub fn bytes(&self) -> u64 {
        let size = |t: &Planned<'_>| {
            let blocks = t.info.elements() / t.encoding.elements as u64;
            blocks * t.encoding.bytes as u64
        };
        self.tensors.iter().map(size).sum()
    }
    /// Number of tensors of the model, adapters apart.
    pub fn tensors(&self) -> usize {
        self.tensors.len()
    }
    /// Number of tensors to which an adapter is added.
    pub fn adapted(&self) -> usize {
        self.tensors.iter().filter(|t| !t.pairs.is_empty()).count()
    }
    /// Writes the merged model. `goes_on` gets the number of tensor bytes written so far, and
    /// stops the merge by returning false.
    ///
    /// # Errors
    /// When a file fails, a merged weight is not finite, or the merge was stopped.
    pub fn write(
        &self,
        out: impl Write,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), MergeError> {
        let declared: Vec<TensorDecl<'_>> = self.tensors.iter().map(Planned::decl).collect();
        rewrite::write(
            out,
            &self.metadata,
            &declared,
            cores(),
            |number| AdaptedTensor::read(self, &self.tensors[number]),
            (goes_on, MergeError::Stopped),
        )
    }
    fn values(&self, info: &TensorInfo) -> Result<Vec<f32>, MergeError> {
        let mut bytes = vec![0; info.bytes as usize];
        self.file.read_tensor(info, &mut bytes)?;
        Ok(self.quantisers.decode(info.encoding, &bytes))
    }
}

/// Plans a tensor: its encoding, and the adapters that change it.
fn plan<'f>(
    file: &'f Gguf,
    model: &dyn Model,
    info: &'f TensorInfo,
    quant: Option<EncodingRef>,
) -> Result<Planned<'f>, MergeError> {
    let spec = model.tensors().iter().find(|spec| spec.name == info.name);
    let is_matrix = spec.is_some_and(|spec| {
        let is_factor = matches!(spec.role, Role::Norm | Role::Bias | Role::Router);
        !is_factor && spec.dims.len() > 1
    });
    let quant = quant.filter(|_| is_matrix);
    let fitting = quant.and_then(|quant| types::fitting(quant.name, info.dims[0]));
    let [a, b] = LowRank::matrices(&info.name);
    let mut pairs = Vec::new();
    for (of, applied) in file.attached().iter().zip(file.adapters()) {
        let Some(&shape) = applied.low_rank.shapes.get(&info.name) else {
            continue;
        };
        let matrix = |side: &str| {
            let name = of.prefix.clone() + side;
            file.tensor(&name).ok_or(gguf::Error::Missing(name))
        };
        let pair = Pair {
            matrices: [matrix(&a)?, matrix(&b)?],
            shape,
        };
        if !is_zero(file, pair)? {
            pairs.push(pair);
        }
    }
    let scale = spec.filter(|_| !pairs.is_empty());
    let scale = scale.and_then(|spec| scale_under_adapters(model.tensors(), spec));
    let scale = scale.map(|name| file.tensor(&name).ok_or(gguf::Error::Missing(name)));
    Ok(Planned {
        info,
        encoding: fitting.unwrap_or(info.encoding),
        pairs,
        scale: scale.transpose()?,
    })
}

/// Whether an adapter changes nothing: its factor or its `B` is zero.
fn is_zero(file: &Gguf, pair: Pair<'_>) -> Result<bool, MergeError> {
    if pair.shape.scale == 0.0 {
        return Ok(true);
    }
    let b = pair.matrices[1];
    let mut bytes = vec![0; b.bytes as usize];
    file.read_tensor(b, &mut bytes)?;
    Ok(bytes.iter().all(|&byte| byte == 0))
}

/// An adapter of one weight in memory.
struct Delta {
    a: Vec<f32>,
    b: Vec<f32>,
    rank: usize,
    factor: f32,
}

/// A tensor whose rows are read, changed and encoded.
struct AdaptedTensor<'m> {
    merge: &'m Merge<'m>,
    planned: &'m Planned<'m>,
    deltas: Vec<Delta>,
    /// One number, or one per expert.
    scales: Vec<f32>,
    /// Elements of a row, rows of an expert or of the matrix, and rows of all.
    width: usize,
    height: usize,
    rows: usize,
}

impl<'m> AdaptedTensor<'m> {
    fn read(merge: &'m Merge<'m>, planned: &'m Planned<'m>) -> Result<Self, MergeError> {
        let [width, height, rows] = row_shape(planned.info);
        let delta = |pair: &Pair<'_>| {
            Ok::<_, MergeError>(Delta {
                a: merge.values(pair.matrices[0])?,
                b: merge.values(pair.matrices[1])?,
                rank: pair.shape.rank,
                factor: pair.shape.scale,
            })
        };
        let scales = match planned.scale {
            Some(scale) => merge.values(scale)?,
            None => vec![1.0],
        };
        if let Some(scale) = planned.scale.filter(|_| scales.contains(&0.0)) {
            return Err(MergeError::ZeroScale(scale.name.clone()));
        }
        Ok(AdaptedTensor {
            merge,
            planned,
            deltas: planned.pairs.iter().map(delta).collect::<Result<_, _>>()?,
            scales,
            width,
            height,
            rows,
        })
    }
    /// Adds what the adapters add to a row of the weight.
    fn add_changes(&self, row: usize, out: &mut [f32]) {
        let expert = row / self.height;
        let scale = self.scales[if self.scales.len() > 1 { expert } else { 0 }];
        for delta in &self.deltas {
            let b = &delta.b[row * delta.rank..][..delta.rank];
            let a = &delta.a[expert * delta.rank * self.width..];
            for (&b, a) in b.iter().zip(a.chunks_exact(self.width)) {
                let factor = b * delta.factor / scale;
                if factor != 0.0 {
                    out.iter_mut()
                        .zip(a)
                        .for_each(|(out, a)| *out += factor * a);
                }
            }
        }
    }
}

impl Rows for AdaptedTensor<'_> {
    type Error = MergeError;

    fn shape(&self) -> [usize; 2] {
        [self.width, self.rows]
    }
    fn encoded(&self, rows: Range<usize>) -> Result<Vec<u8>, MergeError> {
        let info = self.planned.info;
        let old = read_rows(self.merge.file, info, rows.clone())?;
        if self.planned.is_copied() {
            return Ok(old);
        }
        let mut values = self.merge.quantisers.decode(info.encoding, &old);
        let mut changes = vec![0.0; values.len()];
        for (row, change) in rows.zip(changes.chunks_exact_mut(self.width)) {
            self.add_changes(row, change);
        }
        let is_kept = self.planned.encoding == info.encoding;
        if is_kept && changes.iter().all(|&change| change == 0.0) {
            return Ok(old);
        }
        values
            .iter_mut()
            .zip(&changes)
            .for_each(|(value, change)| *value += change);
        let is_changed = |change: &f32| !is_kept || *change != 0.0;
        let mut pairs = values.iter().zip(&changes);
        if pairs.any(|(value, change)| is_changed(change) && !value.is_finite()) {
            return Err(MergeError::NotFinite(info.name.clone()));
        }
        let quantiser = self.merge.quantisers.get(self.planned.encoding);
        Ok(match is_kept {
            true => encoded_where_changed(quantiser, old, &values, &changes),
            false => {
                let blocks = values.len() / self.planned.encoding.elements;
                let mut out = vec![0; blocks * self.planned.encoding.bytes];
                quantiser.encode(&values, &mut out);
                out
            }
        })
    }
}

/// Encodes the blocks that change, and keeps an old block where it is as near to the new values.
fn encoded_where_changed(
    quantiser: &Quantiser,
    mut bytes: Vec<u8>,
    values: &[f32],
    changes: &[f32],
) -> Vec<u8> {
    let encoding = quantiser.encoding();
    let (mut block, mut again) = (vec![0; encoding.bytes], vec![0.0; encoding.elements]);
    let blocks = values.chunks_exact(encoding.elements);
    let pairs = blocks.zip(changes.chunks_exact(encoding.elements));
    for ((values, changes), old) in pairs.zip(bytes.chunks_exact_mut(encoding.bytes)) {
        let squares = |x: f32| f64::from(x) * f64::from(x);
        let before: f64 = changes.iter().map(|&change| squares(change)).sum();
        if before == 0.0 {
            continue;
        }
        quantiser.encode(values, &mut block);
        quantiser.decode(&block, &mut again);
        let after: f64 = values
            .iter()
            .zip(&again)
            .map(|(&v, &w)| squares(v - w))
            .sum();
        if after < before {
            old.copy_from_slice(&block);
        }
    }
    bytes
}
