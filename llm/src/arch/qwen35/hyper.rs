//! Hyper-parameters of `qwen35`: read from metadata and validated once.

use super::super::attention::Grouped;
use super::super::cache::{CacheSpec, Component};
use super::super::moe::{ExpertKind, Experts};
use super::super::reader::Reader;
use super::super::rope::{Scaling, frequencies};
use super::super::{Result, Tensors};
use crate::gguf::Metadata;
use gristmill_tensor::nn::Pairing;
use gristmill_uop::shape::Scoring;

/// Shape of a gated delta net layer.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct DeltaNet {
    /// Length of the causal convolution in tokens, including the current one.
    pub kernel: usize,
    /// Width of a head; its recurrent state is a `width × width` matrix.
    pub width: usize,
    /// Number of query and key heads.
    pub key_heads: usize,
    /// Number of value heads, a multiple of `key_heads`. Head `h` uses queries and keys of
    /// head `h mod key_heads`.
    pub heads: usize,
}

impl DeltaNet {
    fn read(r: &Reader) -> Result<DeltaNet> {
        let kernel = r.size("ssm.conv_kernel")?;
        r.check(
            "ssm.conv_kernel",
            kernel,
            (2..=16).contains(&kernel),
            "2 to 16",
        )?;
        let width = r.size("ssm.state_size")?;
        r.check("ssm.state_size", width, width <= 1024, "at most 1024")?;
        let key_heads = r.size("ssm.group_count")?;
        let heads = r.size("ssm.time_step_rank")?;
        let good = heads <= 1024 && heads.is_multiple_of(key_heads);
        r.check(
            "ssm.time_step_rank",
            heads,
            good,
            "a multiple of ssm.group_count, at most 1024",
        )?;
        let inner = r.size("ssm.inner_size")?;
        r.check(
            "ssm.inner_size",
            inner,
            inner == heads * width,
            "ssm.time_step_rank times ssm.state_size",
        )?;
        Ok(DeltaNet {
            kernel,
            width,
            key_heads,
            heads,
        })
    }
    /// Returns the widths of one token's queries (equal to keys) and values over all heads.
    pub fn widths(&self) -> [usize; 2] {
        [self.key_heads * self.width, self.heads * self.width]
    }
    /// Returns the channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        let [keys, values] = self.widths();
        2 * keys + values
    }
    /// Returns the layer's recurrent states: convolution inputs and delta-net state.
    pub fn cache(&self) -> CacheSpec {
        let rows = Component::new("conv", (self.kernel - 1) * self.channels());
        let state = Component::new("state", self.heads * self.width * self.width);
        CacheSpec::from_states(vec![rows, state])
    }
}

/// Hyper-parameters of a `qwen35` model.
pub(super) struct Qwen35Hparams {
    /// Number of layers, without blocks for draft tokens.
    pub layers: usize,
    /// The last layer of every `interval` uses attention.
    pub interval: usize,
    /// Width of a hidden row.
    pub d: usize,
    /// Attention of attention layers.
    pub attention: Grouped,
    /// Delta net of the other layers.
    pub delta: DeltaNet,
    /// Width of the dense feed-forward.
    pub ff: usize,
    /// Mixture of experts that replaces the dense feed-forward.
    pub experts: Option<Experts>,
    /// Number of rows of the embedding.
    pub vocabulary: usize,
    /// Training context length in tokens.
    pub context: usize,
    /// Epsilon of the RMS norms.
    pub eps: f64,
    /// RoPE frequency of each rotated pair.
    pub frequencies: Vec<f64>,
    base: f64,
}

/// Refuses a list of recurrent layers other than all but the last of every `interval`.
fn check_recurrent(r: &Reader, metadata: &Metadata, layers: usize, interval: usize) -> Result<()> {
    let key = "attention.recurrent_layers";
    let Some(recurrent) = metadata.bools(&r.key(key))? else {
        return Ok(());
    };
    let is_usual =
        |(layer, &recurrent): (usize, &bool)| recurrent != (layer + 1).is_multiple_of(interval);
    let listed = recurrent.get(..layers);
    match listed.is_some_and(|listed| listed.iter().enumerate().all(is_usual)) {
        true => Ok(()),
        false => r.unsupported(key, "another pattern than full_attention_interval"),
    }
}

impl Qwen35Hparams {
    /// Reads and validates the hyper-parameters; `experts` selects the mixture-of-experts family.
    ///
    /// # Errors
    /// Returns an error if a key is missing, has the wrong type, is out of bounds, or requests a
    /// feature that is not implemented.
    pub fn read(
        name: &str,
        experts: bool,
        metadata: &Metadata,
        tensors: &dyn Tensors,
    ) -> Result<Qwen35Hparams> {
        let r = Reader::new(metadata, name);
        let layers = r.layers()?;
        let interval = r.size_or("full_attention_interval", Some(4))?;
        r.check(
            "full_attention_interval",
            interval,
            interval > 0,
            "positive",
        )?;
        check_recurrent(&r, metadata, layers, interval)?;
        let (d, context) = (r.size("embedding_length")?, r.size("context_length")?);
        let eps = r.positive("attention.layer_norm_rms_epsilon", 0.0)?;
        let base = r.positive("rope.freq_base", 10000.0)?;
        if Scaling::read(&r, context, base)? != Scaling::None {
            return r.unsupported("rope.scaling.type", "anything but none");
        }
        let attention = attention(&r, layers, d, eps)?;
        let mut frequencies = frequencies(attention.rotated, base, Scaling::None);
        if let Some(sections) = metadata.ints(&r.key("rope.dimension_sections"))? {
            let still = frequencies
                .iter_mut()
                .enumerate()
                .filter(|(pair, _)| !turns(&sections, *pair));
            still.for_each(|(_, frequency)| *frequency = 0.0);
        }
        let kind = ExpertKind {
            needs: &["ffn_gate_inp_shexp.weight"],
            ..ExpertKind::SOFTMAX
        };
        let found = if experts {
            Experts::read(&r, &kind)?
        } else {
            None
        };
        r.check("expert_count", 0, found.is_some() == experts, "positive")?;
        let shared = found.as_ref().is_none_or(|e| e.shared_ff > 0);
        r.check("expert_shared_feed_forward_length", 0, shared, "positive")?;
        let ff = if experts {
            0
        } else {
            r.size("feed_forward_length")?
        };
        let (delta, vocabulary) = (DeltaNet::read(&r)?, r.vocabulary(tensors)?);
        let hyper = Qwen35Hparams {
            layers,
            interval,
            d,
            attention,
            delta,
            ff,
            experts: found,
            vocabulary,
            context,
            eps,
            frequencies,
            base,
        };
        Ok(hyper)
    }
    /// Returns true if the layer uses attention, as a draft block does.
    pub fn attends(&self, layer: usize) -> bool {
        layer >= self.layers || (layer + 1).is_multiple_of(self.interval)
    }
    /// Returns name and value of every hyper-parameter read from the file.
    pub fn summary(&self) -> Vec<(&'static str, String)> {
        let (a, n) = (&self.attention, &self.delta);
        let attend = (0..self.layers).filter(|&l| self.attends(l)).count();
        let mut out = vec![
            (
                "layers",
                format!(
                    "{}, of which {attend} attend and the others have states",
                    self.layers
                ),
            ),
            ("width", self.d.to_string()),
            (
                "heads",
                format!(
                    "{} of {}, of which {} rotated, gated",
                    a.heads, a.key, a.rotated
                ),
            ),
            (
                "key-value heads",
                format!(
                    "{}, {} cached numbers a token",
                    a.kv_heads,
                    2 * a.kv_heads * a.key
                ),
            ),
            (
                "delta net",
                format!(
                    "{} heads of {} for {} of keys",
                    n.heads, n.width, n.key_heads
                ),
            ),
            ("convolution", format!("of {} tokens", n.kernel)),
        ];
        match &self.experts {
            Some(experts) => out.extend(experts.summary()),
            None => out.push(("feed-forward", self.ff.to_string())),
        }
        out.push(("vocabulary", self.vocabulary.to_string()));
        out.push(("context", format!("{} tokens", self.context)));
        out.push(("norm epsilon", self.eps.to_string()));
        out.push(("rope", format!("base {}", self.base)));
        out
    }
}

/// Reads the attention of attention layers.
fn attention(r: &Reader, layers: usize, d: usize, eps: f64) -> Result<Grouped> {
    let heads = r.heads(layers)?;
    let kv_heads = r.kv_heads(layers, heads)?;
    let key = r.size_or("attention.key_length", Some((d / heads) as u32))?;
    r.check(
        "attention.key_length",
        key,
        (1..=1024).contains(&key),
        "1 to 1024",
    )?;
    let value = r.size_or("attention.value_length", Some(key as u32))?;
    r.check(
        "attention.value_length",
        value,
        value == key,
        "the key length",
    )?;
    let rotated = r.rotated("rope.dimension_count", key)?;
    let (pairing, scale) = (Pairing::Halves, 1.0 / (key as f64).sqrt());
    Ok(Grouped {
        heads,
        kv_heads,
        key,
        value,
        rotated,
        pairing,
        scores: Scoring::from(scale),
        eps,
        tables: [0, 0],
        window: None,
        gated: true,
        normed_values: false,
        reads: None,
    })
}

/// Returns true if a pair rotates with the position of a text token.
///
/// Three interleaved sections of pairs rotate with time, height and width, which are equal for
/// text. Pairs outside all sections belong to a fourth axis, which is 0 for text.
fn turns(sections: &[i64], pair: usize) -> bool {
    let last = |section: usize| {
        sections
            .get(section)
            .copied()
            .unwrap_or(0)
            .saturating_mul(3)
    };
    (pair as i64) < last(pair % 3)
}
