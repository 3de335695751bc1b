//! Hyper-parameters: read from metadata, checked once, plain numbers from then on.

use super::super::{Error, Result, Tensors};
use crate::gguf::{Metadata, PerLayer};
use std::fmt::Display;

/// How router scores become probabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
    /// The scores themselves; softmax over the chosen ones afterwards.
    SoftmaxOfChosen,
    /// sqrt(log(1 + e^s)) of each.
    SqrtSoftplus,
}

/// Mixture of experts.
#[derive(Clone, PartialEq, Debug)]
pub struct Experts {
    /// Routed experts.
    pub count: usize,
    /// Of which each token uses that many.
    pub used: usize,
    /// Width of an expert.
    pub ff: usize,
    /// Width of the shared expert, 0 if there is none.
    pub shared_ff: usize,
    /// How scores become probabilities.
    pub gating: Gating,
    /// Are the weights of the chosen divided by their sum?
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f64,
    /// Groups and how many of them a token may use, where selection is limited.
    pub groups: Option<(usize, usize)>,
}

/// Change of the rope's frequencies for long contexts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scaling {
    /// None.
    None,
    /// Every frequency divided by a factor.
    Linear(f64),
    /// Low frequencies divided, high ones kept, a ramp between.
    Yarn {
        /// The factor.
        factor: f64,
        /// Context before scaling, in tokens.
        original: f64,
        /// Share of the kept frequencies.
        extrapolate: f64,
        /// Turns over the original context above which a frequency is kept.
        beta_fast: f64,
        /// Turns below which it is divided.
        beta_slow: f64,
    },
}

/// What a model is, in numbers.
#[derive(Clone, PartialEq, Debug)]
pub struct Hyper {
    /// Layers, without blocks for draft tokens.
    pub layers: usize,
    /// The first of them that are dense.
    pub dense: usize,
    /// Width of a hidden row.
    pub d: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of the query latent; `None` where queries are projected directly.
    pub q_rank: Option<usize>,
    /// Width of the key–value latent.
    pub kv_rank: usize,
    /// Width of a head's part without position.
    pub nope: usize,
    /// Width of its rotated part.
    pub rope: usize,
    /// Width of a head's value.
    pub value: usize,
    /// Are key and value matrices apart (`attn_k_b`, `attn_v_b`), rather than one `attn_kv_b`?
    pub split: bool,
    /// Width of a dense feed-forward, per layer.
    pub ff: Vec<usize>,
    /// Mixture of experts, if there is one.
    pub experts: Option<Experts>,
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// Context the model was made for, in tokens.
    pub context: usize,
    /// Added to the mean square in norms.
    pub eps: f64,
    /// The same in the norms of the latents. Equal to `eps` as in llama.cpp; transformers takes 1e-6 whatever the
    /// configuration says.
    pub latent_eps: f64,
    /// Rope base.
    pub base: f64,
    /// Rope scaling.
    pub scaling: Scaling,
    /// Factor on attention scores.
    pub score_scale: f64,
    /// Remarks that a user should see.
    pub warnings: Vec<String>,
}

/// Prefix of the metadata keys.
const PREFIX: &str = "deepseek2";
/// No width, count or context of a real model comes near.
const LIMIT: u32 = 1 << 24;

struct Reader<'a>(&'a Metadata);

impl Reader<'_> {
    fn key(name: &str) -> String {
        format!("{PREFIX}.{name}")
    }
    fn size_or(&self, name: &str, default: Option<u32>) -> Result<usize> {
        let key = Self::key(name);
        let v = match (self.0.u32(&key)?, default) {
            (Some(v), _) | (None, Some(v)) => v,
            (None, None) => self.0.need(&key, Metadata::u32)?,
        };
        check(name, v, v <= LIMIT, "at most 2^24")?;
        Ok(v as usize)
    }
    fn size(&self, name: &str) -> Result<usize> {
        let v = self.size_or(name, None)?;
        check(name, v, v > 0, "positive")?;
        Ok(v)
    }
    fn float(&self, name: &str) -> Result<Option<f64>> {
        // A metadata f32 stands for the decimal number it was written from: 0.0707 rather than 0.07069999724.
        let v = self.0.f32(&Self::key(name))?.map(|v| v.to_string().parse().unwrap_or(f64::from(v)));
        check(name, v.unwrap_or(0.0), v.is_none_or(f64::is_finite), "finite")?;
        Ok(v)
    }
    fn positive(&self, name: &str, default: f64) -> Result<f64> {
        let v = self.float(name)?.unwrap_or(default);
        check(name, v, v > 0.0, "positive")?;
        Ok(v)
    }
    fn each(&self, name: &str, layers: usize) -> Result<Vec<usize>> {
        let key = Self::key(name);
        let v = self.0.need(&key, |m, k| m.per_layer(k, layers))?;
        let v: Vec<u32> = match v {
            PerLayer::All(v) => vec![v; layers],
            PerLayer::Each(v) => v,
        };
        let largest = v.iter().copied().max().unwrap_or(0);
        check(name, largest, largest <= LIMIT, "at most 2^24")?;
        Ok(v.into_iter().map(|v| v as usize).collect())
    }
}

fn check(name: &str, found: impl Display, good: bool, expected: &'static str) -> Result<()> {
    if good {
        return Ok(());
    }
    Err(Error::Parameter { key: Reader::key(name), found: found.to_string(), expected })
}

fn unsupported<T>(name: &str, found: impl Display) -> Result<T> {
    Err(Error::Feature { key: Reader::key(name), found: found.to_string() })
}

impl Hyper {
    /// Reads and checks them. Tensors tell what metadata leaves open: how queries are projected, the vocabulary, and the
    /// gating of files that lack its key.
    ///
    /// # Errors
    /// When a key is missing, of the wrong type or out of bounds, or asks for something not implemented.
    pub fn read(metadata: &Metadata, tensors: &dyn Tensors) -> Result<Hyper> {
        let r = Reader(metadata);
        let mut warnings = Vec::new();
        let (blocks, drafts) = (r.size("block_count")?, r.size_or("nextn_predict_layers", Some(0))?);
        check("block_count", blocks, blocks <= 512 && drafts < blocks, "1 to 512, and more than nextn_predict_layers")?;
        let layers = blocks - drafts;
        let (d, context) = (r.size("embedding_length")?, r.size("context_length")?);
        let all_heads = r.each("attention.head_count", layers)?;
        let heads = all_heads[0];
        check("attention.head_count", heads, (1..=1024).contains(&heads), "1 to 1024")?;
        if all_heads.iter().any(|&h| h != heads) {
            return unsupported("attention.head_count", "different in each layer");
        }

        let lengths = |k: &str, v: &str| Ok::<_, Error>((r.size_or(k, Some(0))?, r.size_or(v, Some(0))?));
        let mla = lengths("attention.key_length_mla", "attention.value_length_mla")?;
        let split = mla.0 > 0 && mla.1 > 0;
        let (key, value) =
            if split { mla } else { (r.size("attention.key_length")?, r.size("attention.value_length")?) };
        let rope = r.size("rope.dimension_count")?;
        check("rope.dimension_count", rope, rope.is_multiple_of(2) && rope < key, "even and below the key length")?;
        let direct = tensors.find("blk.0.attn_q.weight").is_some();
        let q_rank = if direct { None } else { Some(r.size("attention.q_lora_rank")?) };

        let embedding = tensors.find("token_embd.weight").ok_or(Error::MissingTensor("token_embd.weight".into()))?;
        let vocabulary = embedding.0.get(1).map_or(0, |&n| n as usize);
        check("vocab_size", vocabulary, (1..=LIMIT as usize).contains(&vocabulary), "1 to 2^24 (rows of token_embd)")?;
        if let Some(v) = metadata.u32(&Reader::key("vocab_size"))? {
            check("vocab_size", v, v as usize == vocabulary, "the number of rows of token_embd")?;
        }
        if let Some(v) = r.float("attention.temperature_scale")?.filter(|&v| v != 0.0) {
            return unsupported("attention.temperature_scale", v);
        }
        let eps = r.positive("attention.layer_norm_rms_epsilon", 0.0)?;

        let count = r.size_or("expert_count", Some(0))?;
        let dense = match count {
            0 => layers,
            _ => r.size_or("leading_dense_block_count", Some(0))?.min(layers),
        };
        let ff = r.each("feed_forward_length", layers)?;
        check("feed_forward_length", 0, ff[..dense].iter().all(|&f| f > 0), "positive in dense layers")?;
        let experts = if count > 0 { Some(experts(&r, count, layers, vocabulary, tensors)?) } else { None };

        let base = r.positive("rope.freq_base", 10000.0)?;
        let scaling = scaling(&r, context, base)?;
        let mut score_scale = 1.0 / (key as f64).sqrt();
        if let Scaling::Yarn { factor, .. } = scaling {
            let multiplier = r.float("rope.scaling.yarn_log_multiplier")?;
            if multiplier.is_none() {
                warnings.push(format!(
                    "{PREFIX}.rope.scaling.yarn_log_multiplier is missing: if this is an old conversion of a DeepSeek \
                     model, its answers will be worse than they should be"
                ));
            }
            let m = 1.0 + multiplier.unwrap_or(0.0) * factor.ln();
            let user =
                r.positive("rope.scaling.attn_factor", 1.0)? * r.positive("rope.scaling.yarn_attn_factor", 1.0)?;
            score_scale *= (m * user).powi(2);
        }
        let hyper = Hyper {
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
            score_scale,
            warnings,
        };
        Ok(hyper)
    }
    /// Width of a row of the cache: the latent, then the rotated key.
    pub fn cached(&self) -> usize {
        self.kv_rank + self.rope
    }
}

fn experts(r: &Reader, count: usize, layers: usize, vocabulary: usize, tensors: &dyn Tensors) -> Result<Experts> {
    check("expert_count", count, count <= 512, "at most 512")?;
    let used = r.size("expert_used_count")?;
    check("expert_used_count", used, used <= count, "at most expert_count")?;
    let ff = r.size("expert_feed_forward_length")?;
    let shared = r.size_or("expert_shared_count", Some(0))?;
    check("expert_shared_count", shared, shared <= 512, "at most 512")?;
    let gating = match r.size_or("expert_gating_func", Some(0))? {
        1 => Gating::Softmax,
        2 => Gating::Sigmoid,
        3 => Gating::SoftmaxOfChosen,
        4 => Gating::SqrtSoftplus,
        0 => {
            // The first files of GLM-4.7-Flash lack the key; only sigmoid routers have a selection bias.
            let biased = (0..layers).any(|l| tensors.find(&format!("blk.{l}.exp_probs_b.bias")).is_some());
            let glm = matches!(layers, 47 | 48) && vocabulary == 154_880;
            if biased || glm { Gating::Sigmoid } else { Gating::Softmax }
        }
        other => return unsupported("expert_gating_func", other),
    };
    // 0 and 1 both say that there is none.
    let scale = r.float("expert_weights_scale")?.filter(|&s| s != 0.0).unwrap_or(1.0);
    let groups = match r.size_or("expert_group_count", Some(0))? {
        0 | 1 => None,
        g => {
            let kept = r.size("expert_group_used_count")?;
            check("expert_group_count", g, g < count && count.is_multiple_of(g), "a proper divisor of expert_count")?;
            let enough = kept <= g && used <= kept * (count / g);
            check("expert_group_used_count", kept, enough, "at most expert_group_count, with enough experts in them")?;
            Some((g, kept))
        }
    };
    let normalise = r.0.bool(&Reader::key("expert_weights_norm"))?.unwrap_or(false);
    Ok(Experts { count, used, ff, shared_ff: shared * ff, gating, normalise, scale, groups })
}

fn scaling(r: &Reader, context: usize, base: f64) -> Result<Scaling> {
    let factor = match r.float("rope.scaling.factor")?.or(r.float("rope.scale_linear")?) {
        None | Some(0.0) => 1.0,
        Some(f) => f,
    };
    check("rope.scaling.factor", factor, factor > 0.0, "positive")?;
    let kind = r.0.str(&Reader::key("rope.scaling.type"))?.unwrap_or("linear");
    Ok(match kind {
        "none" => Scaling::None,
        "linear" | "yarn" if factor == 1.0 => Scaling::None,
        "linear" => Scaling::Linear(factor),
        "yarn" => {
            check("rope.freq_base", base, base > 1.0, "above 1")?;
            Scaling::Yarn {
                factor,
                original: match r.size_or("rope.scaling.original_context_length", Some(0))? {
                    0 => context as f64,
                    n => n as f64,
                },
                extrapolate: r.float("rope.scaling.yarn_ext_factor")?.unwrap_or(1.0),
                beta_fast: r.positive("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: r.positive("rope.scaling.yarn_beta_slow", 1.0)?,
            }
        }
        other => return unsupported("rope.scaling.type", other),
    })
}
