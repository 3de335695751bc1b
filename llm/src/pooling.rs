//! Pooling: one vector or one score of a text from the hidden rows of its tokens.
//!
//! The kind is that of the file's metadata (`ARCH.pooling_type`), where models made for embeddings
//! or for ranking have it. Rows pass the final norm first, as in sentence-transformers. All
//! arithmetic here is in f64.

use crate::arch::{self, Error, Result};
use crate::gguf::{Gguf, Metadata, TensorInfo};
use gristmill_tensor::evaluate;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Way from the hidden rows of a text to its values: llama.cpp's `pooling_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolingKind {
    /// The rows of all tokens, without pooling.
    None,
    /// Mean of the rows.
    Mean,
    /// Row of the first token.
    Cls,
    /// Row of the last token.
    Last,
    /// Score of the last token's row by a classifier.
    Rank,
}

impl PoolingKind {
    /// All kinds, in the order of their numbers in files.
    pub const ALL: [PoolingKind; 5] = [
        PoolingKind::None,
        PoolingKind::Mean,
        PoolingKind::Cls,
        PoolingKind::Last,
        PoolingKind::Rank,
    ];
    /// Returns the name, as llama.cpp spells it.
    pub fn name(self) -> &'static str {
        match self {
            PoolingKind::None => "none",
            PoolingKind::Mean => "mean",
            PoolingKind::Cls => "cls",
            PoolingKind::Last => "last",
            PoolingKind::Rank => "rank",
        }
    }
    /// Reads the kind of a file; `None` for files of generative models, which name none.
    ///
    /// # Errors
    /// When it is no number of a kind.
    pub fn read(metadata: &Metadata) -> Result<Option<PoolingKind>> {
        let key = metadata_key(metadata, "pooling_type")?;
        let Some(number) = metadata.i64(&key)? else {
            return Ok(None);
        };
        // llama.cpp's number for a kind that is not given.
        if number == -1 {
            return Ok(None);
        }
        let kind = usize::try_from(number).ok();
        let kind = kind.and_then(|number| PoolingKind::ALL.get(number).copied());
        kind.map(Some).ok_or_else(|| Error::Feature {
            key,
            found: number.to_string(),
        })
    }
}

impl fmt::Display for PoolingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PoolingKind {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<PoolingKind, String> {
        let all = PoolingKind::ALL;
        let found = all.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("the kinds are {}", all.map(PoolingKind::name).join(", ")))
    }
}

/// Hidden rows that a pooling reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PooledRows {
    /// The rows of all tokens.
    All,
    /// That of the first token.
    First,
    /// That of the last token.
    Last,
}

/// Pooling of one model.
#[derive(Clone, Default, Debug)]
pub struct Pooling(Option<Arc<NormedPooling>>);

/// Pooling of rows behind the final norm.
#[derive(Debug)]
struct NormedPooling {
    kind: PoolingKind,
    norm: FinalNorm,
    /// The rows are those of a text encoder.
    of_encoder: bool,
    /// Present for [`PoolingKind::Rank`].
    classifier: Option<Classifier>,
}

/// Norm of the rows after the last layer.
#[derive(Debug)]
enum FinalNorm {
    /// The last layer ends with its own.
    None,
    Rms {
        weights: Vec<f64>,
        eps: f64,
    },
    /// Subtracts the mean, too.
    Layer {
        weights: Vec<f64>,
        eps: f64,
    },
}

/// Linear classifier of a normed row, with one label or two.
#[derive(Debug)]
struct Classifier {
    /// Layer before it, with tanh: rows of weights, and biases.
    dense: Option<(Vec<Vec<f64>>, Vec<f64>)>,
    /// A row of weights for each label.
    weights: Vec<Vec<f64>>,
    /// A number for each label.
    biases: Vec<f64>,
    /// Index of the label whose probability is the score.
    label: usize,
}

impl Pooling {
    /// Reads the pooling of a file; `kind` overrides that of its metadata.
    ///
    /// # Errors
    /// When metadata or tensors that the kind needs are missing, malformed or not supported.
    pub fn read(file: &Gguf, kind: Option<PoolingKind>) -> Result<Pooling> {
        let metadata = file.metadata();
        let of_encoder = arch::is_encoder(metadata)?;
        let kind = match kind {
            Some(kind) => Some(kind),
            None => PoolingKind::read(metadata)?,
        };
        let Some(kind) = kind.or(of_encoder.then_some(PoolingKind::Mean)) else {
            return Ok(Pooling::default());
        };
        let key = metadata_key(metadata, "embedding_length")?;
        let width = metadata.need(&key, Metadata::u32)? as usize;
        let classifier = match kind {
            PoolingKind::Rank => Some(Classifier::read(file, width)?),
            _ => None,
        };
        Ok(Pooling(Some(Arc::new(NormedPooling {
            kind,
            norm: FinalNorm::read(file, of_encoder)?,
            of_encoder,
            classifier,
        }))))
    }
    /// Returns whether the rows are those of a text encoder.
    pub fn is_of_encoder(&self) -> bool {
        self.0.as_ref().is_some_and(|of| of.of_encoder)
    }
    /// Returns the kind; `None` for generative models: the mean of rows before the final norm,
    /// each scaled to length 1.
    pub fn kind(&self) -> Option<PoolingKind> {
        self.0.as_ref().map(|of| of.kind)
    }
    /// Returns the rows that it reads.
    pub fn rows(&self) -> PooledRows {
        match self.kind() {
            None | Some(PoolingKind::None | PoolingKind::Mean) => PooledRows::All,
            Some(PoolingKind::Cls) => PooledRows::First,
            Some(PoolingKind::Rank) if self.is_of_encoder() => PooledRows::First,
            Some(PoolingKind::Last | PoolingKind::Rank) => PooledRows::Last,
        }
    }
    /// Pools the hidden rows of a whole text, row-major `[n, width]`.
    pub fn values(&self, rows: &[f32], width: usize) -> Vec<f32> {
        let mut text = self.start(width);
        text.add(match self.rows() {
            PooledRows::All => rows,
            PooledRows::First => &rows[..width],
            PooledRows::Last => &rows[rows.len() - width..],
        });
        text.values()
    }
    /// Starts the pooling of a text, whose rows have `width` elements.
    pub fn start(&self, width: usize) -> PooledText<'_> {
        PooledText {
            pooling: self.0.as_deref(),
            sum: vec![0.0; width],
        }
    }
}

/// Pooling of one text, to which its rows are added.
pub struct PooledText<'p> {
    pooling: Option<&'p NormedPooling>,
    sum: Vec<f64>,
}

impl PooledText<'_> {
    /// Adds hidden rows before the final norm, row-major `[n, width]`.
    pub fn add(&mut self, rows: &[f32]) {
        for row in rows.chunks(self.sum.len()) {
            let row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
            // A few elements of rows before the norm are a thousand times larger than the others.
            let row = self
                .pooling
                .map_or_else(|| unit(&row), |of| of.norm.apply(&row));
            self.sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
    }
    /// Returns the vector of length 1, `[width]`; a classifier's score from 0 to 1, `[1]`.
    pub fn values(self) -> Vec<f32> {
        match self.pooling.and_then(|of| of.classifier.as_ref()) {
            Some(classifier) => vec![classifier.score(&self.sum) as f32],
            None => unit(&self.sum).into_iter().map(|x| x as f32).collect(),
        }
    }
}

impl FinalNorm {
    fn read(file: &Gguf, of_encoder: bool) -> Result<FinalNorm> {
        const WEIGHT: &str = "output_norm.weight";
        if of_encoder && file.tensor(WEIGHT).is_none() {
            return Ok(FinalNorm::None);
        }
        let metadata = file.metadata();
        let key = match of_encoder {
            true => "attention.layer_norm_epsilon",
            false => "attention.layer_norm_rms_epsilon",
        };
        let eps = metadata.need(&metadata_key(metadata, key)?, Metadata::f32)?;
        let (weights, eps) = (tensor(file, WEIGHT)?, f64::from(eps));
        Ok(match of_encoder {
            true => FinalNorm::Layer { weights, eps },
            false => FinalNorm::Rms { weights, eps },
        })
    }
    /// Applies the norm to a row.
    fn apply(&self, row: &[f64]) -> Vec<f64> {
        let (mean, weights, eps) = match self {
            FinalNorm::None => return row.to_vec(),
            FinalNorm::Rms { weights, eps } => (0.0, weights, eps),
            FinalNorm::Layer { weights, eps } => {
                (row.iter().sum::<f64>() / row.len() as f64, weights, eps)
            }
        };
        let squares: f64 = row.iter().map(|x| (x - mean).powi(2)).sum();
        let scale = (squares / row.len() as f64 + eps).sqrt().recip();
        let both = row.iter().zip(weights);
        both.map(|(x, w)| (x - mean) * scale * w).collect()
    }
}

impl Classifier {
    fn read(file: &Gguf, width: usize) -> Result<Classifier> {
        const WEIGHT: &str = "cls.output.weight";
        const DENSE: &str = "cls.weight";
        let refused = |found: &str| Error::Feature {
            key: "pooling".into(),
            found: found.into(),
        };
        if file.tensor(WEIGHT).is_none() {
            return Err(refused("rank, without a classifier (cls.output.weight),"));
        }
        let is_bert = file.metadata().str("general.architecture")? == Some("bert");
        let dense = match file.tensor(DENSE) {
            None => None,
            Some(_) if is_bert => Some(dense(file, width)?),
            Some(_) => {
                return Err(refused("rank, with a dense layer before the classifier,"));
            }
        };
        let names = metadata_key(file.metadata(), "classifier.output_labels")?;
        let names = file.metadata().strings(&names)?;
        let names: Vec<&[u8]> = names.into_iter().flat_map(|names| names.iter()).collect();
        let yes = names
            .iter()
            .position(|name| name.eq_ignore_ascii_case(b"yes"));
        let all = tensor(file, WEIGHT)?;
        let labels = all.len() / width;
        if all.len() != labels * width || !(1..=2).contains(&labels) {
            let found = file.tensor(WEIGHT).map(|info| info.dims.clone());
            return Err(Error::Shape {
                tensor: WEIGHT.into(),
                found: found.unwrap_or_default(),
                expected: vec![width as u64, names.len().clamp(1, 2) as u64],
            });
        }
        let biases = match file.tensor("cls.output.bias") {
            Some(_) => tensor(file, "cls.output.bias")?,
            None => Vec::new(),
        };
        Ok(Classifier {
            dense,
            weights: all.chunks(width).map(<[f64]>::to_vec).collect(),
            biases: biases.into_iter().chain([0.0; 2]).take(labels).collect(),
            label: yes.filter(|&yes| yes < labels).unwrap_or(0),
        })
    }
    /// Returns the probability of the label: softmax of two, the logistic function of one.
    fn score(&self, row: &[f64]) -> f64 {
        let inner = self.dense.as_ref().map(|(weights, biases)| {
            let sums = affine(weights, biases, row);
            sums.into_iter().map(f64::tanh).collect::<Vec<f64>>()
        });
        let logits = affine(&self.weights, &self.biases, inner.as_deref().unwrap_or(row));
        let other = logits.get(1 - self.label).copied().unwrap_or(0.0);
        1.0 / (1.0 + (other - logits[self.label]).exp())
    }
}

/// Reads the dense layer before a classifier: rows of weights, and biases.
fn dense(file: &Gguf, width: usize) -> Result<(Vec<Vec<f64>>, Vec<f64>)> {
    const NAME: &str = "cls.weight";
    let weights = tensor(file, NAME)?;
    let biases = match file.tensor("cls.bias") {
        Some(_) => tensor(file, "cls.bias")?,
        None => vec![0.0; width],
    };
    if weights.len() != width * width || biases.len() != width {
        let found = file.tensor(NAME).map(|info| info.dims.clone());
        return Err(Error::Shape {
            tensor: NAME.into(),
            found: found.unwrap_or_default(),
            expected: vec![width as u64; 2],
        });
    }
    let weights = weights.chunks(width).map(<[f64]>::to_vec).collect();
    Ok((weights, biases))
}

/// Returns the products of a row with rows of weights, plus biases.
fn affine(weights: &[Vec<f64>], biases: &[f64], row: &[f64]) -> Vec<f64> {
    let product = |weights: &[f64]| weights.iter().zip(row).map(|(w, x)| w * x).sum::<f64>();
    let sums = weights.iter().zip(biases);
    sums.map(|(w, bias)| product(w) + bias).collect()
}

/// Returns an architecture's metadata key.
fn metadata_key(metadata: &Metadata, name: &str) -> Result<String> {
    let architecture = metadata.need("general.architecture", Metadata::str)?;
    Ok(format!("{architecture}.{name}"))
}

/// Reads a tensor of any encoding.
fn tensor(file: &Gguf, name: &str) -> Result<Vec<f64>> {
    let missing = || Error::MissingTensor(name.into());
    let info: &TensorInfo = file.tensor(name).ok_or_else(missing)?;
    let mut bytes = vec![0; info.bytes as usize];
    file.read_tensor(info, &mut bytes)?;
    Ok(evaluate::decode(info.encoding, &bytes))
}

/// Scales a vector to Euclidean length 1; zeros stay zeros.
pub fn unit(vector: &[f64]) -> Vec<f64> {
    let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    let scale = length.max(f64::MIN_POSITIVE).recip();
    vector.iter().map(|x| x * scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooling(kind: PoolingKind, classifier: Option<Classifier>) -> Pooling {
        let (weights, eps) = (vec![1.0, 2.0], 0.0);
        Pooling(Some(Arc::new(NormedPooling {
            kind,
            norm: FinalNorm::Rms { weights, eps },
            of_encoder: false,
            classifier,
        })))
    }

    #[test]
    fn a_kind_is_read_by_its_number_and_by_its_name() {
        let mut metadata = Metadata::new();
        metadata.insert("general.architecture", "qwen3");
        assert_eq!(PoolingKind::read(&metadata).unwrap(), None);
        for (number, kind) in PoolingKind::ALL.into_iter().enumerate() {
            metadata.insert("qwen3.pooling_type", number as u32);
            assert_eq!(PoolingKind::read(&metadata).unwrap(), Some(kind));
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        metadata.insert("qwen3.pooling_type", 5u32);
        let error = PoolingKind::read(&metadata).unwrap_err();
        assert!(
            error.to_string().contains("qwen3.pooling_type = 5"),
            "{error}"
        );
        assert!("max".parse::<PoolingKind>().unwrap_err().contains("mean"));
    }

    #[test]
    fn rows_are_normed_before_they_are_pooled() {
        // Norms of (3, 4) and (5, 0): scales of 1/sqrt(12.5), weights of 1 and 2.
        let rows = [3.0, 4.0, 5.0, 0.0];
        let pooled = |pooling: &Pooling, rows: &[f32]| {
            let mut text = pooling.start(2);
            text.add(rows);
            text.values()
        };
        let near = |a: &[f32], b: [f32; 2]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        let last = pooled(&pooling(PoolingKind::Last, None), &rows[..2]);
        let length = (9.0f32 + 64.0).sqrt();
        assert!(near(&last, [3.0 / length, 8.0 / length]), "{last:?}");
        let mean = pooled(&pooling(PoolingKind::Mean, None), &rows);
        let length = (64.0f32 + 64.0).sqrt();
        assert!(near(&mean, [8.0 / length, 8.0 / length]), "{mean:?}");
        // Without a kind: units (0.6, 0.8) and (1, 0).
        let plain = pooled(&Pooling::default(), &rows);
        let length = (1.6f32 * 1.6 + 0.8 * 0.8).sqrt();
        assert!(near(&plain, [1.6 / length, 0.8 / length]), "{plain:?}");
    }

    #[test]
    fn a_score_is_the_probability_of_yes() {
        let score = |weights: Vec<Vec<f64>>, label| {
            let biases = vec![0.25; weights.len()];
            let pooling = pooling(
                PoolingKind::Rank,
                Some(Classifier {
                    weights,
                    biases,
                    label,
                    dense: None,
                }),
            );
            let mut text = pooling.start(2);
            // Normed to (sqrt(2), 0).
            text.add(&[7.0, 0.0]);
            text.values()
        };
        let [no, yes] = [vec![1.0, 9.0], vec![2.0, 9.0]];
        let root = 2f64.sqrt();
        let logistic = |x: f64| (1.0 / (1.0 + (-x).exp())) as f32;
        assert_eq!(score(vec![yes.clone(), no.clone()], 0), [logistic(root)]);
        assert_eq!(score(vec![no, yes.clone()], 1), [logistic(root)]);
        assert_eq!(score(vec![yes], 0), [logistic(2.0 * root + 0.25)]);
    }
}
