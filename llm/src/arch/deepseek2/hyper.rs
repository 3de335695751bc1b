//! Hyper-parameters of `deepseek2`: read from metadata and validated once.

use super::super::cache::Component;
use super::super::moe::{ExpertKind, Experts, Gating};
use super::super::reader::Reader;
use super::super::rope::Scaling;
use super::super::{Error, Result, Tensors};
use crate::gguf::Metadata;

/// Value of `general.architecture`.
pub(super) const NAME: &str = "deepseek2";

/// Hyper-parameters of a `deepseek2` model.
#[derive(Clone, PartialEq, Debug)]
pub struct DeepseekHparams {
    /// Number of layers, without blocks for draft tokens.
    pub layers: usize,
    /// Number of leading layers with a dense feed-forward.
    pub dense: usize,
    /// Width of a hidden row.
    pub d: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Width of the query latent; `None` where queries are projected directly.
    pub q_rank: Option<usize>,
    /// Width of the key–value latent.
    pub kv_rank: usize,
    /// Width of a head's part without RoPE.
    pub nope: usize,
    /// Width of a head's part with RoPE.
    pub rope: usize,
    /// Width of a value head.
    pub value: usize,
    /// True if key and value matrices are separate (`attn_k_b`, `attn_v_b`),
    /// false for one `attn_kv_b`.
    pub split: bool,
    /// Width of the dense feed-forward of each layer.
    pub ff: Vec<usize>,
    /// Mixture of experts, if there is one.
    pub experts: Option<Experts>,
    /// Number of rows of the embedding.
    pub vocabulary: usize,
    /// Training context length in tokens.
    pub context: usize,
    /// Epsilon of the RMS norms.
    pub eps: f64,
    /// Epsilon of the RMS norms of latents. Equal to `eps`, as in llama.cpp; transformers
    /// always uses 1e-6.
    pub latent_eps: f64,
    /// Base of the RoPE frequencies.
    pub base: f64,
    /// RoPE scaling for long contexts.
    pub scaling: Scaling,
    /// Factor on every cosine and sine of the RoPE table.
    pub magnitude: f64,
    /// Factor on attention scores.
    pub score_scale: f64,
    /// Warnings about the file, to be shown to the user.
    pub warnings: Vec<String>,
}

impl DeepseekHparams {
    /// Reads and validates the hyper-parameters.
    ///
    /// Tensors supply what metadata lacks: the form of the query projection, the vocabulary, and
    /// the gating of files without that key.
    ///
    /// # Errors
    /// Returns an error if a key is missing, has the wrong type, is out of bounds, or requests a
    /// feature that is not implemented.
    pub fn read(metadata: &Metadata, tensors: &dyn Tensors) -> Result<DeepseekHparams> {
        let r = Reader::new(metadata, NAME);
        let layers = r.layers()?;
        let (d, context) = (r.size("embedding_length")?, r.size("context_length")?);
        let heads = r.heads(layers)?;

        let HeadWidths { key, value, split } = HeadWidths::read(&r)?;
        let rope = r.size("rope.dimension_count")?;
        r.check(
            "rope.dimension_count",
            rope,
            rope.is_multiple_of(2) && rope < key,
            "even and below the key length",
        )?;
        let direct = tensors.find("blk.0.attn_q.weight").is_some();
        let q_rank = if direct {
            None
        } else {
            Some(r.size("attention.q_lora_rank")?)
        };

        let vocabulary = r.vocabulary(tensors)?;
        if let Some(v) = r
            .float("attention.temperature_scale")?
            .filter(|&v| v != 0.0)
        {
            return r.unsupported("attention.temperature_scale", v);
        }
        let eps = r.positive("attention.layer_norm_rms_epsilon", 0.0)?;

        let experts = experts(&r, usual_gating(layers, vocabulary, tensors))?;
        let dense = match experts {
            None => layers,
            Some(_) => r.size_or("leading_dense_block_count", Some(0))?.min(layers),
        };
        let ff = r.each("feed_forward_length", layers)?;
        r.check(
            "feed_forward_length",
            0,
            ff[..dense].iter().all(|&f| f > 0),
            "positive in dense layers",
        )?;

        let base = r.positive("rope.freq_base", 10000.0)?;
        let scaling = Scaling::read(&r, context, base)?;
        let stretch = Stretch::read(&r, &scaling)?;
        Ok(DeepseekHparams {
            layers,
            dense,
            d,
            heads,
            q_rank,
            kv_rank: r.size("attention.kv_lora_rank")?,
            nope: key - rope,
            rope,
            value,
            split,
            ff,
            experts,
            vocabulary,
            context,
            eps,
            latent_eps: eps,
            base,
            scaling,
            magnitude: stretch.magnitude,
            score_scale: 1.0 / (key as f64).sqrt() * stretch.scores,
            warnings: stretch.warning.into_iter().collect(),
        })
    }
    /// Returns the width of a row of the latent KV cache: the latent, then the rotated key.
    pub fn cached(&self) -> usize {
        self.kv_rank + self.rope
    }
    /// Returns the component of the latent KV cache.
    pub(super) fn cache(&self) -> Component {
        Component::new("cache", self.cached())
    }
}

/// Widths of the keys and values of a head.
struct HeadWidths {
    key: usize,
    value: usize,
    /// As in [`DeepseekHparams::split`].
    split: bool,
}

impl HeadWidths {
    /// Reads the widths of MLA, or, in files without these, the plain ones.
    fn read(r: &Reader) -> Result<HeadWidths> {
        let lengths =
            |k: &str, v: &str| Ok::<_, Error>((r.size_or(k, Some(0))?, r.size_or(v, Some(0))?));
        let mla = lengths("attention.key_length_mla", "attention.value_length_mla")?;
        let split = mla.0 > 0 && mla.1 > 0;
        let (key, value) = if split {
            mla
        } else {
            (
                r.size("attention.key_length")?,
                r.size("attention.value_length")?,
            )
        };
        Ok(HeadWidths { key, value, split })
    }
}

/// Factors that YaRN applies to attention.
struct Stretch {
    /// Factor on every cosine and sine.
    magnitude: f64,
    /// Factor on scores, in addition to that of the key width.
    scores: f64,
    /// Warning for files without the multiplier's key.
    warning: Option<String>,
}

impl Stretch {
    /// Reads the factors. Without `yarn_log_multiplier` cosine and sine grow, and scores with them,
    /// as in llama.cpp; with it their magnitude is 1.
    fn read(r: &Reader, scaling: &Scaling) -> Result<Stretch> {
        let &Scaling::Yarn { factor, .. } = scaling else {
            return Ok(Stretch {
                magnitude: 1.0,
                scores: 1.0,
                warning: None,
            });
        };
        let multiplier = r.float("rope.scaling.yarn_log_multiplier")?;
        let warning = multiplier.is_none().then(|| {
            format!(
                "{NAME}.rope.scaling.yarn_log_multiplier is missing: if this is an old conversion of a DeepSeek model, \
                 its answers will be worse than they should be"
            )
        });
        let magnitude = if multiplier.is_none() {
            1.0 + 0.1 * factor.ln()
        } else {
            1.0
        };
        let m = 1.0 + multiplier.unwrap_or(0.1) * factor.ln();
        let user = r.positive("rope.scaling.attn_factor", 1.0)?
            * r.positive("rope.scaling.yarn_attn_factor", 1.0)?;
        Ok(Stretch {
            magnitude,
            scores: (m * user).powi(2),
            warning,
        })
    }
}

/// Reads the mixture of experts, if there is one; `gating` is the default.
fn experts(r: &Reader, gating: Gating) -> Result<Option<Experts>> {
    Experts::read(
        r,
        &ExpertKind {
            gating,
            weighting: None,
            ..ExpertKind::SOFTMAX
        },
    )
}

/// Returns the gating of files without that key, such as the first files of GLM-4.7-Flash. Only
/// sigmoid routers have a selection bias.
fn usual_gating(layers: usize, vocabulary: usize, tensors: &dyn Tensors) -> Gating {
    let biased = (0..layers).any(|l| tensors.find(&format!("blk.{l}.exp_probs_b.bias")).is_some());
    let glm = matches!(layers, 47 | 48) && vocabulary == 154_880;
    if biased || glm {
        Gating::Sigmoid
    } else {
        Gating::Softmax
    }
}
