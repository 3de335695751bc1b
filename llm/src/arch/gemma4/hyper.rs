//! Hyper-parameters of `gemma4`: read from metadata and validated once.

use super::super::attention::Grouped;
use super::super::moe::{ExpertKind, Experts};
use super::super::reader::{LOGIT_CAP, Reader};
use super::super::rope::{RopeTable, Scaling, divisors, frequencies};
use super::super::{Result, Tensors};
use gristmill_tensor::nn::{Glu, Pairing};
use gristmill_uop::shape::Scoring;

/// Alignment in elements of a layer's per-token input, so that each layer's slice can
/// be read as vectors.
const INPUT_STEP: usize = 32;

/// Hyper-parameters of a `gemma4` model.
pub(super) struct Gemma4Hparams {
    /// Number of layers, without blocks for draft tokens.
    pub layers: usize,
    /// Width of a hidden row.
    pub d: usize,
    /// Attention of each layer.
    pub attention: Vec<Grouped>,
    /// Width of the dense feed-forward of each layer.
    pub ff: Vec<usize>,
    /// Experts added to the dense feed-forward in layers with a router.
    pub experts: Option<Experts>,
    /// Width of the per-layer token input; 0 if there is none.
    pub input: usize,
    /// Soft cap of logits: see [`super::super::embed_head::EmbedAndHead`].
    pub cap: Option<f64>,
    /// Number of rows of the embedding.
    pub vocabulary: usize,
    /// Training context length in tokens.
    pub context: usize,
    /// Epsilon of the RMS norms.
    pub eps: f64,
    /// Head sizes of full-attention layers and of windowed layers.
    kinds: [Heads; 2],
    /// RoPE scaling of full-attention layers.
    scaling: Scaling,
}

/// Head sizes and RoPE base of one kind of layer.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub key: usize,
    value: usize,
    pub rotated: usize,
    base: f64,
}

impl Heads {
    /// Reads the heads of full-attention layers and of windowed layers.
    pub fn read_kinds(r: &Reader) -> Result<[Heads; 2]> {
        Ok([
            Heads::read(r, "", 10_000.0)?,
            Heads::read(r, "_swa", 10_000.0)?,
        ])
    }
    /// Reads the keys with the suffix `ending`; `base` is the default RoPE base.
    fn read(r: &Reader, ending: &str, base: f64) -> Result<Heads> {
        let name = |name: &str| format!("{name}{ending}");
        let key = r.size(&name("attention.key_length"))?;
        r.check(&name("attention.key_length"), key, key <= 1024, "1 to 1024")?;
        let value = r.size_or(&name("attention.value_length"), Some(key as u32))?;
        r.check(
            &name("attention.value_length"),
            value,
            value == key,
            "the key length",
        )?;
        let rotated = r.rotated(&name("rope.dimension_count"), key)?;
        Ok(Heads {
            key,
            value,
            rotated,
            base: r.positive(&name("rope.freq_base"), base)?,
        })
    }
}

impl Gemma4Hparams {
    /// Reads and validates the hyper-parameters.
    ///
    /// # Errors
    /// Returns an error if a key is missing, has the wrong type, is out of bounds, or requests a
    /// feature that is not implemented.
    pub fn read(r: &Reader, tensors: &dyn Tensors) -> Result<Gemma4Hparams> {
        let layers = r.layers()?;
        let (d, context) = (r.size("embedding_length")?, r.size("context_length")?);
        let eps = r.positive("attention.layer_norm_rms_epsilon", 0.0)?;
        let kinds = Heads::read_kinds(r)?;
        let scaling = scaling(r, context, kinds)?;
        let attention = attention(r, layers, eps, kinds)?;
        let kind = ExpertKind {
            glu: Glu::Geglu,
            needs: &["ffn_down_exps.scale"],
            ..ExpertKind::SOFTMAX
        };
        let experts = Experts::read(r, &kind)?;
        let shared = experts.as_ref().map_or(0, |e| e.shared_ff);
        r.check("expert_shared_count", shared, shared == 0, "0")?;
        let ff = r.each("feed_forward_length", layers)?;
        r.check(
            "feed_forward_length",
            0,
            ff.iter().all(|&f| f > 0),
            "positive in every layer",
        )?;
        let input = r.size_or("embedding_length_per_layer_input", Some(0))?;
        let good = input.is_multiple_of(INPUT_STEP) && input <= d;
        r.check(
            "embedding_length_per_layer_input",
            input,
            good,
            "a multiple of 32, at most embedding_length",
        )?;
        let (cap, vocabulary) = (r.positive_or_none(LOGIT_CAP, None)?, r.vocabulary(tensors)?);
        Ok(Gemma4Hparams {
            layers,
            d,
            attention,
            ff,
            experts,
            input,
            cap,
            vocabulary,
            context,
            eps,
            kinds,
            scaling,
        })
    }
    /// Returns the number of rotated pairs in full-attention layers.
    pub fn pairs(&self) -> usize {
        self.kinds[0].rotated / 2
    }
    /// Returns the RoPE tables of full-attention layers and of windowed layers.
    pub fn rope_tables(&self, r: &Reader, tensors: &dyn Tensors) -> Result<[RopeTable; 2]> {
        rope_tables((self.kinds, self.scaling), r, tensors, "rope_freqs.weight")
    }
    /// Returns name and value of every hyper-parameter read from the file.
    pub fn summary(&self) -> Vec<(&'static str, String)> {
        let [all, window] = self.kinds;
        let within: Vec<usize> = self.attention.iter().filter_map(|a| a.window).collect();
        let heads = self.attention[0].heads;
        let of_kind = |windowed: bool| {
            let kv = self
                .attention
                .iter()
                .find(|a| a.window.is_some() == windowed)
                .map_or(0, |a| a.kv_heads);
            let h = if windowed { window } else { all };
            format!(
                "{heads} of {}, {kv} of keys and values, rope base {}",
                h.key, h.base
            )
        };
        let mut out = vec![
            ("layers", self.layers.to_string()),
            ("width", self.d.to_string()),
        ];
        if within.len() < self.layers {
            out.push(("heads", of_kind(false)));
        }
        if let Some(window) = within.first() {
            out.push(("heads in windows", of_kind(true)));
            out.push((
                "windows",
                format!(
                    "{window} positions in {} of {} layers",
                    within.len(),
                    self.layers
                ),
            ));
        }
        let reading = self.attention.iter().filter(|a| a.reads.is_some()).count();
        if reading > 0 {
            out.push((
                "shared caches",
                format!("the last {reading} layers read those of layers before"),
            ));
        }
        if self.input > 0 {
            out.push(("layer inputs", format!("{} of each token", self.input)));
        }
        out.push((
            "feed-forward",
            self.ff.iter().max().map_or(String::new(), usize::to_string),
        ));
        if let Some(experts) = &self.experts {
            out.extend(experts.summary());
        }
        out.push(("vocabulary", self.vocabulary.to_string()));
        out.push(("context", format!("{} tokens", self.context)));
        out.push(("norm epsilon", self.eps.to_string()));
        out.push(("rope scaling", self.scaling.description()));
        out
    }
}

/// Reads the RoPE scaling of full-attention layers.
pub(super) fn scaling(r: &Reader, context: usize, kinds: [Heads; 2]) -> Result<Scaling> {
    let scaling = Scaling::read(r, context, kinds[0].base)?;
    match scaling {
        Scaling::Yarn { .. } => r.unsupported("rope.scaling.type", "yarn"),
        scaling => Ok(scaling),
    }
}

/// Returns the RoPE tables of full-attention layers, with frequencies that the tensor `name` may
/// divide, and of windowed layers.
pub(super) fn rope_tables(
    ([all, window], scaling): ([Heads; 2], Scaling),
    r: &Reader,
    tensors: &dyn Tensors,
    name: &str,
) -> Result<[RopeTable; 2]> {
    let divisors = match tensors.find(name) {
        Some(_) => Some(divisors(r, tensors, name)?),
        None => None,
    };
    let divided = |(i, f): (usize, f64)| f / divisors.as_ref().map_or(1.0, |d| d[i]);
    let of_all = frequencies(all.rotated, all.base, scaling)
        .into_iter()
        .enumerate()
        .map(divided)
        .collect();
    let of_window = frequencies(window.rotated, window.base, Scaling::None);
    Ok([of_all, of_window].map(RopeTable::new))
}

/// Reads the attention of each layer; `kinds` holds the head sizes without and with a window.
fn attention(r: &Reader, layers: usize, eps: f64, kinds: [Heads; 2]) -> Result<Vec<Grouped>> {
    let heads = r.heads(layers)?;
    let kv_heads = r.each("attention.head_count_kv", layers)?;
    let shares = kv_heads
        .iter()
        .all(|&kv| kv > 0 && heads.is_multiple_of(kv));
    r.check(
        "attention.head_count_kv",
        kv_heads[0],
        shares,
        "a divisor of head_count in every layer",
    )?;
    let window = r.size("attention.sliding_window")?;
    let within = r.bools("attention.sliding_window_pattern", layers)?;
    let reading = r.size_or("attention.shared_kv_layers", Some(0))?;
    r.check(
        "attention.shared_kv_layers",
        reading,
        reading < layers,
        "less than block_count",
    )?;
    let first = layers - reading;
    let mut all = Vec::with_capacity(layers);
    for layer in 0..layers {
        let Heads {
            key,
            value,
            rotated,
            ..
        } = kinds[usize::from(within[layer])];
        // The last layer of the same kind that has its own KV cache.
        let source = (0..first)
            .rev()
            .find(|&l| within[l] == within[layer] && kv_heads[l] == kv_heads[layer]);
        let near = layer < first || source.is_some_and(|s| s + 2 >= first);
        let expected = "the last two layers before are of the kinds that follow";
        r.check("attention.shared_kv_layers", reading, near, expected)?;
        all.push(Grouped {
            heads,
            kv_heads: kv_heads[layer],
            key,
            value,
            rotated,
            pairing: Pairing::Halves,
            scores: Scoring::from(1.0),
            eps,
            tables: [usize::from(within[layer]); 2],
            window: within[layer].then_some(window),
            gated: false,
            normed_values: true,
            reads: source.filter(|_| layer >= first),
        });
    }
    Ok(all)
}
