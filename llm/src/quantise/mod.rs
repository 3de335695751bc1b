//! Quantising a model: every matrix in the type that a file type gives it.

mod calibrate;
mod error;
mod importance;
mod mixes;
mod part;

pub use crate::rewrite::{writable_type, writable_types};
/// Type of a tensor.
pub type TensorType = EncodingRef;
pub use calibrate::Calibration;
pub use error::QuantiseError;
pub use importance::{Entry, Importance, ImportanceError};
pub use mixes::Mix;

use crate::gguf::{Gguf, Metadata, TensorDecl, TensorInfo};
use crate::rewrite::{self, Quantisers, Rows, read_rows, row_shape};
use fancy_regex::Regex;
use gristmill_uop::encoding::EncodingRef;
use mixes::{Place, fitting};
use part::{EMBEDDING, LAYER_EMBEDDING, OUTPUT, Part};
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;

/// Version of the layouts of quantised blocks, which files declare.
const QUANTISATION_VERSION: u32 = 2;

/// What decides the types of tensors.
pub struct QuantiseOptions<'i> {
    /// Types of all tensors, apart from what follows.
    pub file_type: &'static Mix,
    /// All matrices get the same type.
    pub pure: bool,
    /// Type of the output head, and of an embedding that is the output too.
    pub output: Option<EncodingRef>,
    /// Type of the token embedding.
    pub embedding: Option<EncodingRef>,
    /// Types of the tensors whose names match regular expressions; the first one decides.
    pub tensors: Vec<(String, EncodingRef)>,
    /// The output head keeps its type.
    pub keep_output: bool,
    /// Quantised tensors may be quantised again.
    pub requantise: bool,
    /// Quantised tensors keep their types.
    pub keep_quantised: bool,
    /// Weights of squared errors.
    pub importance: Option<&'i Importance>,
    /// Path of the importance matrix, for the file's metadata.
    pub importance_path: Option<String>,
    /// Threads that read and encode tensors.
    pub threads: usize,
}

impl QuantiseOptions<'_> {
    /// Options that give every tensor the type of the mix.
    pub fn new(file_type: &'static Mix, threads: usize) -> Self {
        QuantiseOptions {
            file_type,
            pure: false,
            output: None,
            embedding: None,
            tensors: Vec::new(),
            keep_output: false,
            requantise: false,
            keep_quantised: false,
            importance: None,
            importance_path: None,
            threads,
        }
    }
}

/// A tensor of the output.
pub struct QuantisedTensor<'f> {
    info: &'f TensorInfo,
    encoding: EncodingRef,
    /// Type that rows of another length would have had.
    instead_of: Option<EncodingRef>,
    /// Weights of squared errors, by column: `[matrices, in]`.
    weights: Option<Vec<f32>>,
    needs_importance: bool,
}

impl QuantisedTensor<'_> {
    /// Name of the tensor.
    pub fn name(&self) -> &str {
        &self.info.name
    }
    /// Sizes, the contiguous one first.
    pub fn dims(&self) -> &[u64] {
        &self.info.dims
    }
    /// Types in the model and in the output.
    pub fn types(&self) -> [&'static str; 2] {
        [self.info.encoding.name, self.encoding.name]
    }
    /// Sizes in the model and in the output, in bytes.
    pub fn bytes(&self) -> [u64; 2] {
        let blocks = self.info.elements() / self.encoding.elements as u64;
        [self.info.bytes, blocks * self.encoding.bytes as u64]
    }
    /// Type that rows of another length would have had.
    pub fn instead_of(&self) -> Option<&'static str> {
        self.instead_of.map(|encoding| encoding.name)
    }
    fn is_copied(&self) -> bool {
        self.encoding == self.info.encoding
    }
    /// Whether the tensor is quantised, and without an importance matrix.
    pub fn is_unweighted(&self) -> bool {
        self.weights.is_none() && !self.is_copied() && self.encoding.elements > 1
    }
    /// Whether the tensor loses too much without the importance matrix that it lacks.
    pub fn lacks_importance(&self) -> bool {
        self.needs_importance && self.is_unweighted()
    }
    fn decl(&self) -> TensorDecl<'_> {
        TensorDecl {
            name: &self.info.name,
            dims: &self.info.dims,
            encoding: self.encoding,
        }
    }
}

/// A model whose tensors have their types, before it is written.
pub struct Quantise<'f> {
    file: &'f Gguf,
    metadata: Metadata,
    tensors: Vec<QuantisedTensor<'f>>,
    requantise: bool,
    threads: usize,
}

impl<'f> Quantise<'f> {
    /// Chooses the types of the tensors of a model or an assistant.
    ///
    /// # Errors
    /// When the file is no model, a pattern is malformed, or the importance matrix is another
    /// model's.
    pub fn new(file: &'f Gguf, options: &QuantiseOptions<'_>) -> Result<Self, QuantiseError> {
        if !file.is_assistant() {
            file.check_weights()?;
        }
        let chooser = Chooser::new(file, options)?;
        let planned = file.tensors().iter().map(|info| chooser.plan(info));
        Ok(Quantise {
            file,
            metadata: metadata(file, options),
            tensors: planned.collect::<Result<_, _>>()?,
            requantise: options.requantise,
            threads: options.threads.max(1),
        })
    }
    /// The tensors of the output.
    pub fn tensors(&self) -> &[QuantisedTensor<'f>] {
        &self.tensors
    }
    /// Sizes of all tensors in the model and in the output, in bytes.
    pub fn bytes(&self) -> [u64; 2] {
        let add = |a: [u64; 2], b: [u64; 2]| [a[0] + b[0], a[1] + b[1]];
        self.tensors
            .iter()
            .map(QuantisedTensor::bytes)
            .fold([0; 2], add)
    }
    /// Number of elements of all tensors.
    pub fn elements(&self) -> u64 {
        self.tensors
            .iter()
            .map(|tensor| tensor.info.elements())
            .sum()
    }
    /// Checks that the model may be quantised so: its tensors are not quantised yet, and those that
    /// need an importance matrix have one.
    ///
    /// # Errors
    /// When they are, unless that was allowed, or have none.
    pub fn check(&self) -> Result<(), QuantiseError> {
        for tensor in &self.tensors {
            let [from, to] = tensor.types();
            let name = tensor.info.name.clone();
            let is_again = !tensor.is_copied() && tensor.info.encoding.elements > 1;
            if tensor.lacks_importance() {
                return Err(QuantiseError::NeedsImportance { tensor: name, to });
            }
            if is_again && !self.requantise {
                return Err(QuantiseError::Requantised {
                    tensor: name,
                    from,
                    to,
                });
            }
        }
        Ok(())
    }
    /// Writes the quantised model. `goes_on` gets the number of tensor bytes written so far, and
    /// stops by returning false.
    ///
    /// # Errors
    /// The errors of [`Quantise::check`]; when a file fails, a weight is not finite, or it was
    /// stopped.
    pub fn write(
        &self,
        out: impl Write,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), QuantiseError> {
        self.check()?;
        let mut quantisers = Quantisers::default();
        for tensor in self.tensors.iter().filter(|tensor| !tensor.is_copied()) {
            quantisers.add(tensor.info.encoding);
            if !quantisers.add(tensor.encoding) {
                return Err(QuantiseError::Unwritable {
                    tensor: tensor.info.name.clone(),
                    encoding: tensor.encoding.name,
                });
            }
        }
        let declared: Vec<TensorDecl<'_>> = self.tensors.iter().map(|t| t.decl()).collect();
        let open = |number: usize| {
            Ok(TensorRows {
                file: self.file,
                quantisers: &quantisers,
                tensor: &self.tensors[number],
            })
        };
        let stop = (goes_on, QuantiseError::Stopped);
        rewrite::write(out, &self.metadata, &declared, self.threads, open, stop)
    }
}

/// Metadata of the quantised model.
fn metadata(file: &Gguf, options: &QuantiseOptions<'_>) -> Metadata {
    // A file of floats and kept blocks is named by the blocks.
    let is_of_floats = options
        .file_type
        .base()
        .is_some_and(|base| base.elements == 1);
    let packed = file
        .tensors()
        .iter()
        .find(|info| info.encoding.elements > 1);
    let packed = packed.filter(|_| options.keep_quantised && is_of_floats);
    let of_packed = packed.and_then(|info| {
        let is_it = |mix: &&Mix| mix.base() == Some(info.encoding);
        Mix::all().iter().find(is_it)
    });
    let id = of_packed.unwrap_or(options.file_type).id();
    let mut out = rewrite::metadata(file, id.map(Some));
    if id.is_some() {
        out.insert("general.quantization_version", QUANTISATION_VERSION);
    }
    if let Some(importance) = options.importance {
        let path = options.importance_path.clone().unwrap_or_default();
        out.insert("quantize.imatrix.file", path);
        if let Some(dataset) = importance.datasets.first() {
            out.insert("quantize.imatrix.dataset", dataset.clone());
        }
        let entries = importance.entries.len() as u32;
        out.insert("quantize.imatrix.entries_count", entries);
        out.insert("quantize.imatrix.chunks_count", importance.chunks);
    }
    out
}

/// Chooses the types of tensors.
struct Chooser<'o> {
    options: &'o QuantiseOptions<'o>,
    patterns: Vec<(Regex, EncodingRef)>,
    is_tied: bool,
    /// Facts of the model that are the same for all tensors.
    place: Place,
    layers: usize,
    /// Number of each tensor among those of its part, by layer.
    numbers: HashMap<String, usize>,
    /// Number of value projections.
    values: usize,
}

impl<'o> Chooser<'o> {
    fn new(file: &Gguf, options: &'o QuantiseOptions<'o>) -> Result<Self, QuantiseError> {
        let pattern = |(text, encoding): &(String, EncodingRef)| {
            let malformed = |error: fancy_regex::Error| QuantiseError::Pattern {
                pattern: text.clone(),
                reason: error.to_string(),
            };
            Ok((Regex::new(text).map_err(malformed)?, *encoding))
        };
        let patterns = options
            .tensors
            .iter()
            .map(pattern)
            .collect::<Result<_, QuantiseError>>()?;
        let is_tied = file.tensor(OUTPUT).is_none();
        let metadata = file.metadata();
        let architecture = metadata.need("general.architecture", Metadata::str)?;
        let number = |key: &str| metadata.u32(&format!("{architecture}.{key}"));
        let layers = number("block_count")?.unwrap_or(0) as usize;
        let heads = |key: &str| {
            let key = format!("{architecture}.attention.{key}");
            let of_layers = metadata.per_layer(&key, layers)?;
            Ok::<_, QuantiseError>(of_layers.and_then(|of| of.get(0)).unwrap_or(0) as usize)
        };
        let (queries, keys) = (heads("head_count")?, heads("head_count_kv")?);
        let keys = if keys == 0 { queries } else { keys };
        let numbers = numbers(file, is_tied);
        let is_value = |info: &&TensorInfo| Part::new(&info.name, is_tied) == Part::V;
        Ok(Chooser {
            options,
            patterns,
            is_tied,
            place: Place {
                index: 0,
                count: 0,
                shared_heads: queries / keys.max(1),
                experts: number("expert_count")?.unwrap_or(0) as usize,
                has_importance: options.importance.is_some(),
                is_stacked: false,
                has_small_values: architecture == "llama" && layers == 80 && queries != keys,
            },
            layers,
            numbers,
            values: file.tensors().iter().filter(is_value).count(),
        })
    }
    fn plan<'f>(&self, info: &'f TensorInfo) -> Result<QuantisedTensor<'f>, QuantiseError> {
        let part = Part::new(&info.name, self.is_tied);
        let is_kept = self.options.keep_quantised && info.encoding.elements > 1;
        let chosen = self.choose(info, part).filter(|_| !is_kept);
        let encoding = chosen.map_or(info.encoding, |chosen| fitting(chosen, info.dims[0]));
        let mut planned = QuantisedTensor {
            info,
            encoding,
            instead_of: chosen.filter(|chosen| *chosen != encoding),
            weights: None,
            needs_importance: self.options.file_type.needs_importance(part, encoding),
        };
        let Some(importance) = self.options.importance.filter(|_| planned.is_unweighted()) else {
            return Ok(planned);
        };
        let expected = info.dims[0] * info.dims.get(2).copied().unwrap_or(1);
        let weights = importance.means(&info.name);
        match weights {
            Some(weights) if weights.len() as u64 == expected => planned.weights = Some(weights),
            // An embedding is looked up, not multiplied.
            Some(weights) if !matches!(info.name.as_str(), EMBEDDING | LAYER_EMBEDDING) => {
                return Err(QuantiseError::ImportanceSize {
                    tensor: info.name.clone(),
                    expected,
                    found: weights.len(),
                });
            }
            _ => {}
        }
        Ok(planned)
    }
    /// Type of a tensor whose rows are whole blocks; `None` for one that keeps its type.
    fn choose(&self, info: &TensorInfo, part: Part) -> Option<EncodingRef> {
        let options = self.options;
        let base = options.file_type.base()?;
        let rank = info
            .dims
            .iter()
            .rposition(|&n| n > 1)
            .map_or(1, |last| last + 1);
        let is_kept = options.keep_output && info.name == OUTPUT;
        if !part::is_quantised(&info.name, rank) || is_kept {
            return None;
        }
        let is_named =
            |(pattern, _): &&(Regex, EncodingRef)| pattern.is_match(&info.name).unwrap_or(false);
        let named = self.patterns.iter().find(is_named).map(|row| row.1);
        let is_embedding = matches!(info.name.as_str(), EMBEDDING | LAYER_EMBEDDING);
        let by_part = match info.name.as_str() {
            // A pattern may name this table alone.
            LAYER_EMBEDDING if named.is_some() => None,
            _ if is_embedding => options.embedding,
            OUTPUT => options.output,
            _ => None,
        };
        let tied = options
            .output
            .filter(|_| part == Part::Output && !options.pure);
        // Files of floats have one type.
        let named = named.filter(|_| base.elements > 1);
        by_part
            .or(named)
            .or(tied)
            .or_else(|| match options.pure || base.elements == 1 {
                true => Some(base),
                false => options
                    .file_type
                    .choose(part, &self.place_of(info, part), info.dims[0]),
            })
    }
    fn place_of(&self, info: &TensorInfo, part: Part) -> Place {
        let number = self.numbers.get(&info.name).copied().unwrap_or(0);
        let is_of_layers = matches!(part, Part::Down | Part::Gate | Part::Up);
        // Experts of a layer may be several tensors.
        let is_by_layer = is_of_layers && self.place.experts > 1;
        let is_by_layer = is_by_layer && !self.options.file_type.counts_tensors();
        let of_layer = part::layer(&info.name).filter(|_| is_by_layer);
        Place {
            index: of_layer.unwrap_or(number),
            count: if is_of_layers {
                self.layers
            } else {
                self.values
            },
            is_stacked: info.dims.get(2).is_some_and(|&n| n > 1),
            ..self.place
        }
    }
}

/// Numbers tensors among those of their part, in the order of layers.
fn numbers(file: &Gguf, is_tied: bool) -> HashMap<String, usize> {
    let mut names: Vec<&String> = file.tensors().iter().map(|info| &info.name).collect();
    names.sort_by_key(|name| (part::layer(name), *name));
    let mut counts: HashMap<Part, usize> = HashMap::new();
    let number = |name: &String| {
        let count = counts.entry(Part::new(name, is_tied)).or_default();
        *count += 1;
        (name.clone(), *count - 1)
    };
    names.into_iter().map(number).collect()
}

/// Rows of a tensor that are quantised or copied.
struct TensorRows<'q> {
    file: &'q Gguf,
    quantisers: &'q Quantisers,
    tensor: &'q QuantisedTensor<'q>,
}

impl Rows for TensorRows<'_> {
    type Error = QuantiseError;

    fn shape(&self) -> [usize; 2] {
        let [width, _, rows] = row_shape(self.tensor.info);
        [width, rows]
    }
    fn encoded(&self, rows: Range<usize>) -> Result<Vec<u8>, QuantiseError> {
        let QuantisedTensor { info, encoding, .. } = *self.tensor;
        let bytes = read_rows(self.file, info, rows.clone())?;
        if self.tensor.is_copied() {
            return Ok(bytes);
        }
        let values = self.quantisers.decode(info.encoding, &bytes);
        if !values.iter().all(|v| v.is_finite()) {
            return Err(QuantiseError::NotFinite(info.name.clone()));
        }
        let quantiser = self.quantisers.get(encoding);
        let mut out = vec![0; values.len() / encoding.elements * encoding.bytes];
        let Some(weights) = &self.tensor.weights else {
            quantiser.encode(&values, &mut out);
            return Ok(out);
        };
        let [width, height, _] = row_shape(info);
        let row_bytes = width / encoding.elements * encoding.bytes;
        let encoded = values
            .chunks_exact(width)
            .zip(out.chunks_exact_mut(row_bytes));
        for (row, (values, out)) in rows.zip(encoded) {
            let matrix = (row / height * width) % weights.len();
            quantiser.encode_weighted(values, &weights[matrix..matrix + width], out);
        }
        Ok(out)
    }
}
