//! Hyper-parameters of text encoders.

use super::super::attention::Grouped;
use super::super::reader::Reader;
use super::super::rope::Scaling;
use super::super::{Result, Tensors};
use super::family::{Encoder, FeedForward, TYPES};
use crate::gguf::{Metadata, Value};
use gristmill_tensor::nn::{Glu, Pairing};
use gristmill_uop::shape::Scoring;

/// RoPE base of files without one.
const BASE: f64 = 10_000.0;
/// Every third block of ModernBERT attends to the whole text, the first one included.
const PERIOD: usize = 3;

/// Hyper-parameters of an encoder.
#[derive(Debug)]
pub(super) struct EncoderHparams {
    pub layers: usize,
    pub d: usize,
    pub ff: usize,
    pub context: usize,
    pub vocabulary: usize,
    /// Rows of the table of token types.
    pub types: usize,
    pub eps: f64,
    pub glu: Glu,
    /// Attention of a block without a window.
    pub attention: Grouped,
    /// Distance of the farthest tokens that see each other, of each block with a window.
    pub windows: Vec<Option<usize>>,
    /// RoPE bases of blocks without a window and with one; empty without RoPE.
    pub bases: Vec<f64>,
}

impl EncoderHparams {
    /// Reads and checks the hyper-parameters.
    pub fn read(
        family: &Encoder,
        metadata: &Metadata,
        tensors: &dyn Tensors,
    ) -> Result<EncoderHparams> {
        let r = Reader::new(metadata, family.name);
        if r.bool("attention.causal")? == Some(true) {
            return r.unsupported("attention.causal", true);
        }
        for name in ["expert_count", "moe_every_n_layers", "decision.block_count"] {
            let count = r.size_or(name, Some(0))?;
            if count > 0 {
                return r.unsupported(name, count);
            }
        }
        let (layers, d) = (r.layers()?, r.size("embedding_length")?);
        let context = r.size("context_length")?;
        let eps = r.positive("attention.layer_norm_epsilon", 1e-12)?;
        let windows = windows(family, &r, layers)?;
        let bases = bases(family, &r, windows.iter().any(Option::is_some))?;
        let types = tensors.find(TYPES);
        Ok(EncoderHparams {
            layers,
            d,
            ff: r.uniform("feed_forward_length", layers)?,
            context,
            vocabulary: r.vocabulary(tensors)?,
            types: types.map_or(1, |(dims, _)| dims.get(1).map_or(1, |&n| n as usize)),
            eps,
            glu: glu(family, &r)?,
            attention: attention(&r, [layers, d], eps, !bases.is_empty())?,
            windows,
            bases,
        })
    }
    /// Returns the attention of a block.
    pub fn attention_of(&self, layer: usize) -> Grouped {
        let window = self.windows[layer];
        let table = usize::from(window.is_some()).min(self.bases.len().saturating_sub(1));
        Grouped {
            window,
            tables: [table, table],
            ..self.attention.clone()
        }
    }
    /// Returns name and value of each hyper-parameter, for display.
    pub fn summary(&self) -> Vec<(&'static str, String)> {
        let a = &self.attention;
        let mut all = vec![
            ("layers", self.layers.to_string()),
            ("width", self.d.to_string()),
            ("feed-forward", self.ff.to_string()),
            ("heads", format!("{} of {}", a.heads, a.key)),
            ("context", self.context.to_string()),
            ("vocabulary", self.vocabulary.to_string()),
            ("attention", "bidirectional".into()),
        ];
        let windowed: Vec<usize> = self.windows.iter().flatten().copied().collect();
        if let Some(reach) = windowed.first() {
            let count = windowed.len();
            let text = format!("{reach} tokens to each side, in {count} layers");
            all.push(("window", text));
        }
        if !self.bases.is_empty() {
            let bases: Vec<String> = self.bases.iter().map(f64::to_string).collect();
            all.push(("rope base", bases.join(", ")));
        }
        all
    }
}

/// Reads the shape of attention.
fn attention(r: &Reader, [layers, d]: [usize; 2], eps: f64, rotates: bool) -> Result<Grouped> {
    let heads = r.heads(layers)?;
    let kv_heads = match r.has("attention.head_count_kv") {
        true => r.kv_heads(layers, heads)?,
        false => heads,
    };
    let key = r.size_or("attention.key_length", Some((d / heads) as u32))?;
    r.check(
        "attention.head_count",
        heads,
        key > 0 && (key * heads == d || r.has("attention.key_length")),
        "a divisor of embedding_length",
    )?;
    let rotated = match rotates {
        true => r.rotated("rope.dimension_count", key)?,
        false => 0,
    };
    Ok(Grouped {
        heads,
        kv_heads,
        key,
        value: r.size_or("attention.value_length", Some(key as u32))?,
        rotated,
        pairing: Pairing::Halves,
        scores: Scoring {
            scale: 1.0 / (key as f64).sqrt(),
            cap: None,
        },
        eps,
        tables: [0, 0],
        window: None,
        gated: false,
        normed_values: false,
        reads: None,
    })
}

/// Reads the windows of blocks: an array of bools, or a number `n` that means no window in the
/// first of every `n` blocks.
fn windows(family: &Encoder, r: &Reader, layers: usize) -> Result<Vec<Option<usize>>> {
    let window = match family.pre_norms {
        true => r.size_or("attention.sliding_window", Some(0))?,
        false => 0,
    };
    if window == 0 {
        return Ok(vec![None; layers]);
    }
    let name = "attention.sliding_window_pattern";
    let within = match r.value(name) {
        Some(Value::Array(_)) => r.bools(name, layers)?,
        _ => {
            let period = r.size_or(name, Some(PERIOD as u32))?;
            r.check(name, period, period > 0, "positive")?;
            (0..layers).map(|layer| layer % period != 0).collect()
        }
    };
    let of_layer = |within: bool| within.then_some(window / 2);
    Ok(within.into_iter().map(of_layer).collect())
}

/// Reads the RoPE bases.
fn bases(family: &Encoder, r: &Reader, has_windows: bool) -> Result<Vec<f64>> {
    if family.learned_positions {
        return Ok(Vec::new());
    }
    if let kind @ ("linear" | "yarn" | "longrope") = r.str("rope.scaling.type")?.unwrap_or("none")
        && Scaling::read(r, r.size("context_length")?, BASE)? != Scaling::None
    {
        return r.unsupported("rope.scaling.type", kind);
    }
    let all = r.positive("rope.freq_base", BASE)?;
    Ok(match has_windows {
        true => vec![all, r.positive("rope.freq_base_swa", all)?],
        false => vec![all],
    })
}

/// Reads the unit of a fused feed-forward.
fn glu(family: &Encoder, r: &Reader) -> Result<Glu> {
    match r.str("hidden_activation")? {
        _ if family.feed_forward != FeedForward::Fused => Ok(Glu::Swiglu),
        None | Some("gelu") => Ok(Glu::GegluErf),
        Some("silu") => Ok(Glu::Swiglu),
        Some(other) => r.unsupported("hidden_activation", other),
    }
}
