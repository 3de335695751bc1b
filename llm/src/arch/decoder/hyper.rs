//! Hyper-parameters of plain decoders: read from metadata and validated once.

use super::super::attention::Grouped;
use super::super::moe::Experts;
use super::super::reader::{LOGIT_CAP, Reader};
use super::super::rope::{RopeTable, Scaling, Temperature, divisors, frequencies};
use super::super::{Result, Tensors};
use super::family::Family;
use crate::gguf::Metadata;
use gristmill_uop::shape::Scoring;

/// Default of `rope.freq_base`.
const BASE: f64 = 10_000.0;

/// Hyper-parameters of a plain decoder.
pub(super) struct DecoderHparams {
    /// Number of layers, without blocks for draft tokens.
    pub layers: usize,
    /// Number of leading layers with a dense feed-forward.
    pub dense: usize,
    /// Width of a hidden row.
    pub d: usize,
    /// Attention of full-attention layers; windowed layers differ in the window and in RoPE tables.
    pub attention: Grouped,
    /// Window length of each layer in positions; `None` for full attention.
    windows: Vec<Option<usize>>,
    /// RoPE of windowed layers, if it differs from that of the other layers.
    window_turns: Option<Turns>,
    /// Soft cap of logits: see [`super::super::embed_head::EmbedAndHead`].
    pub cap: Option<f64>,
    /// Scale factors of embedding, residual additions and logits.
    pub factors: Factors,
    /// Width of the dense feed-forward of each layer.
    pub ff: Vec<usize>,
    /// Mixture of experts of the layers after the dense ones.
    pub experts: Option<Experts>,
    /// Number of rows of the embedding.
    pub vocabulary: usize,
    /// Training context length in tokens.
    pub context: usize,
    /// Epsilon of the RMS norms.
    pub eps: f64,
    base: f64,
    scaling: Scaling,
    /// Position-dependent query scale, if the model has one.
    temperature: Option<Temperature>,
}

/// Scale factors of a decoder; 1 where the family has none.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    /// Multiplies rows of the embedding.
    pub embedding: f64,
    /// Multiplies the outputs of attention and feed-forward before the residual addition.
    pub residual: f64,
    pub logits: f64,
}

impl Factors {
    /// Reads the factors; `d` is the width of a hidden row.
    fn read(family: &Family, r: &Reader, d: usize) -> Result<Factors> {
        let embedding = if family.scaled_embedding {
            (d as f64).sqrt()
        } else {
            1.0
        };
        if !family.factors {
            return Ok(Factors {
                embedding,
                residual: 1.0,
                logits: 1.0,
            });
        }
        let factor = |name, default| {
            r.positive_or_none(name, Some(default))
                .map(|v| v.unwrap_or(1.0))
        };
        Ok(Factors {
            embedding: factor("embedding_scale", embedding)?,
            residual: factor("residual_scale", 1.0)?,
            logits: 1.0 / r.positive("logit_scale", 1.0)?,
        })
    }
}

/// RoPE parameters of windowed layers.
#[derive(Clone, Copy)]
struct Turns {
    base: f64,
    /// Applies the scaling and magnitude of the other layers; otherwise frequencies are unscaled.
    scaled: bool,
}

impl DecoderHparams {
    /// Reads and validates the hyper-parameters.
    ///
    /// # Errors
    /// Returns an error if a key is missing, has the wrong type, is out of bounds, or requests a
    /// feature that is not implemented.
    pub fn read(
        family: &Family,
        metadata: &Metadata,
        tensors: &dyn Tensors,
    ) -> Result<DecoderHparams> {
        let r = Reader::new(metadata, family.name);
        let layers = r.layers()?;
        let (d, context) = (r.size("embedding_length")?, r.size("context_length")?);
        let eps = r.positive("attention.layer_norm_rms_epsilon", 0.0)?;
        if r.has("rope.dimension_sections") {
            return r.unsupported("rope.dimension_sections", "positions of several kinds");
        }
        if family.factors && r.bool("rope.scaling.finetuned")? == Some(false) {
            return r.unsupported("rope.scaling.finetuned", "layers that do not rotate");
        }
        let base = r.positive("rope.freq_base", BASE)?;
        let scaling = Scaling::read(&r, context, base)?;
        let temperature = temperature(&r, context)?;
        let attention = Grouped {
            tables: [0, usize::from(temperature.is_some())],
            ..attention(family, &r, layers, d, eps)?
        };
        if temperature.is_some() && attention.rotated < attention.key {
            return r.unsupported(
                "attention.temperature_scale",
                "of a head that rotates in part",
            );
        }
        let experts = experts(family, &r)?;
        let dense = match experts {
            None => layers,
            Some(_) => r.size_or("leading_dense_block_count", Some(0))?.min(layers),
        };
        let ff = if dense > 0 {
            r.each("feed_forward_length", layers)?
        } else {
            vec![0; layers]
        };
        r.check(
            "feed_forward_length",
            0,
            ff[..dense].iter().all(|&f| f > 0),
            "positive in dense layers",
        )?;
        let vocabulary = r.vocabulary(tensors)?;
        let (windows, window_turns) = windows(family, &r, layers)?;
        let cap = r.positive_or_none(LOGIT_CAP, family.logit_cap)?;
        Ok(DecoderHparams {
            layers,
            dense,
            d,
            attention,
            windows,
            window_turns,
            cap,
            factors: Factors::read(family, &r, d)?,
            ff,
            experts,
            vocabulary,
            context,
            eps,
            base,
            scaling,
            temperature,
        })
    }
    /// Returns the window of a layer; a draft block has none.
    fn window_of(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }
    /// Returns the attention of one layer.
    pub fn attention_of(&self, layer: usize) -> Grouped {
        let (mut a, window) = (self.attention.clone(), self.window_of(layer));
        if window.is_some() && self.window_turns.is_some() {
            // The tables of windowed layers come after those of the other layers.
            a.tables = [1 + usize::from(self.temperature.is_some()); 2];
        }
        a.window = window;
        a
    }
    /// Returns name and value of every hyper-parameter read from the file.
    pub fn summary(&self) -> Vec<(&'static str, String)> {
        let a = &self.attention;
        let mut out = vec![
            ("layers", self.layers.to_string()),
            ("width", self.d.to_string()),
            (
                "heads",
                format!(
                    "{} of {}, of which {} rotated; values of {}",
                    a.heads, a.key, a.rotated, a.value
                ),
            ),
            (
                "key-value heads",
                format!(
                    "{}, {} cached numbers a token and layer",
                    a.kv_heads,
                    a.kv_heads * (a.key + a.value)
                ),
            ),
        ];
        if self.experts.is_some() && self.dense > 0 {
            out[0].1 = format!(
                "{}, of which the first {} are dense",
                self.layers, self.dense
            );
        }
        if let Some(ff) = self.ff[..self.dense].first() {
            out.push(("feed-forward", ff.to_string()));
        }
        if let Some(experts) = &self.experts {
            out.extend(experts.summary());
        }
        let within: Vec<usize> = self.windows.iter().copied().flatten().collect();
        if let Some(window) = within.first() {
            let base = self
                .window_turns
                .map_or(String::new(), |turns| format!(", rope base {}", turns.base));
            out.push((
                "windows",
                format!(
                    "{window} positions in {} of {} layers{base}",
                    within.len(),
                    self.layers
                ),
            ));
        }
        if let Some(cap) = a.scores.cap {
            out.push(("score cap", cap.to_string()));
        }
        out.push(("vocabulary", self.vocabulary.to_string()));
        out.push(("context", format!("{} tokens", self.context)));
        out.push(("norm epsilon", self.eps.to_string()));
        out.push((
            "rope",
            format!("base {}, scaling {}", self.base, self.scaling.description()),
        ));
        out
    }
}

/// Reads the attention of full-attention layers.
fn attention(family: &Family, r: &Reader, layers: usize, d: usize, eps: f64) -> Result<Grouped> {
    let heads = r.heads(layers)?;
    let kv_heads = if r.has("attention.head_count_kv") {
        r.kv_heads(layers, heads)?
    } else {
        heads
    };
    let usual = (d / heads) as u32;
    let key = r.size_or("attention.key_length", Some(usual))?;
    let value = r.size_or("attention.value_length", Some(usual))?;
    r.check(
        "attention.key_length",
        key,
        (1..=1024).contains(&key),
        "1 to 1024",
    )?;
    r.check(
        "attention.value_length",
        value,
        (1..=1024).contains(&value),
        "1 to 1024",
    )?;
    let rotated = r.rotated("rope.dimension_count", key)?;
    let by = if family.divided_by_rows == Some(layers) {
        d as f64 / heads as f64
    } else {
        key as f64
    };
    let cap = match family.score_cap {
        Some(usual) => r.positive_or_none("attn_logit_softcapping", Some(usual))?,
        None => None,
    };
    let own = if family.factors {
        r.positive_or_none("attention.scale", None)?
    } else {
        None
    };
    let (pairing, scores) = (
        family.pairing,
        Scoring {
            scale: own.unwrap_or(1.0 / by.sqrt()),
            cap,
        },
    );
    Ok(Grouped {
        heads,
        kv_heads,
        key,
        value,
        rotated,
        pairing,
        scores,
        eps,
        tables: [0, 0],
        window: None,
        gated: false,
        normed_values: false,
        reads: None,
    })
}

/// Reads the mixture of experts, if the family has one.
fn experts(family: &Family, r: &Reader) -> Result<Option<Experts>> {
    let experts = match &family.experts {
        Some(kind) => Experts::read(r, kind)?,
        None => None,
    };
    r.check(
        "expert_count",
        0,
        experts.is_some() == family.experts.is_some(),
        "positive",
    )?;
    Ok(experts)
}

/// Reads the window length of each layer and the RoPE of windowed layers, if that differs.
fn windows(
    family: &Family,
    r: &Reader,
    layers: usize,
) -> Result<(Vec<Option<usize>>, Option<Turns>)> {
    let Some(kind) = family.windows else {
        return Ok((vec![None; layers], None));
    };
    let window = r.size_or("attention.sliding_window", Some(kind.size))?;
    let within = r.pattern("attention.sliding_window_pattern", layers, kind.period)?;
    let of_layer = |within: bool| (within && window > 0).then_some(window);
    let all = r.positive("rope.freq_base", BASE)?;
    let base = r.positive("rope.freq_base_swa", kind.base.unwrap_or(all))?;
    let turns = (window > 0 && (!kind.scaled || base != all)).then_some(Turns {
        base,
        scaled: kind.scaled,
    });
    Ok((within.into_iter().map(of_layer).collect(), turns))
}

/// Reads the position-dependent query scale, if there is one.
fn temperature(r: &Reader, context: usize) -> Result<Option<Temperature>> {
    let scale = r
        .float("attention.temperature_scale")?
        .filter(|&s| s != 0.0);
    let original = r.size_or("rope.scaling.original_context_length", Some(context as u32))?;
    r.check(
        "rope.scaling.original_context_length",
        original,
        original > 0,
        "positive",
    )?;
    Ok(scale.map(|scale| Temperature {
        scale,
        original: original as f64,
    }))
}

/// RoPE of a decoder: frequencies, their divisors, and the table of windowed layers.
pub(super) struct Rope {
    frequencies: Vec<f64>,
    magnitude: f64,
    temperature: Option<Temperature>,
    divisors: Divisors,
    /// Table of windowed layers, if they have their own.
    windows: Option<RopeTable>,
}

/// Divisors of the RoPE frequencies.
enum Divisors {
    None,
    Always(Vec<f64>),
    /// Divisors for a short and for a long context, and the longest short context in tokens.
    ByContext(Vec<f64>, Vec<f64>, usize),
}

impl Rope {
    /// Reads RoPE parameters from metadata and divisors from tensors.
    pub fn read(
        family: &Family,
        metadata: &Metadata,
        h: &DecoderHparams,
        tensors: &dyn Tensors,
    ) -> Result<Rope> {
        let r = Reader::new(metadata, family.name);
        let mut magnitude = r.positive("rope.scaling.attn_factor", 1.0)?;
        if let Scaling::Yarn { factor, .. } = h.scaling {
            let multiplier = r.float("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
            magnitude *= (1.0 + 0.1 * factor.ln()) / (1.0 + 0.1 * multiplier * factor.ln());
        }
        let has = |name: &str| tensors.find(name).is_some();
        let numbers = |name: &str| divisors(&r, tensors, name);
        let divisors = match () {
            () if has("rope_factors_long.weight") => Divisors::ByContext(
                numbers("rope_factors_short.weight")?,
                numbers("rope_factors_long.weight")?,
                r.size("rope.scaling.original_context_length")?,
            ),
            () if has("rope_freqs.weight") => Divisors::Always(numbers("rope_freqs.weight")?),
            () => Divisors::None,
        };
        let windows = h.window_turns.map(|Turns { base, scaled }| {
            let (scaling, magnitude) = if scaled {
                (h.scaling, magnitude)
            } else {
                (Scaling::None, 1.0)
            };
            RopeTable {
                magnitude,
                ..RopeTable::new(frequencies(h.attention.rotated, base, scaling))
            }
        });
        let frequencies = frequencies(h.attention.rotated, h.base, h.scaling);
        Ok(Rope {
            frequencies,
            magnitude,
            temperature: h.temperature,
            divisors,
            windows,
        })
    }
    /// Returns the tables for a context of `context` tokens: keys, then queries and windowed
    /// layers if they differ.
    pub fn tables(&self, context: usize) -> Vec<RopeTable> {
        let divisors = match &self.divisors {
            Divisors::None => None,
            Divisors::Always(all) => Some(all),
            Divisors::ByContext(short, long, original) => {
                Some(if context > *original { long } else { short })
            }
        };
        let divided = |(i, f): (usize, &f64)| f / divisors.map_or(1.0, |d| d[i]);
        let frequencies = self.frequencies.iter().enumerate().map(divided).collect();
        let keys = RopeTable {
            frequencies,
            magnitude: self.magnitude,
            temperature: None,
        };
        let mut tables = match self.temperature {
            None => vec![keys],
            Some(_) => vec![
                keys.clone(),
                RopeTable {
                    temperature: self.temperature,
                    ..keys
                },
            ],
        };
        tables.extend(self.windows.clone());
        tables
    }
}

#[cfg(test)]
mod tests {
    use crate::arch::{
        self, Bind, CacheType, Functions, Logits, Model, Options, Pools, RopeTable, StepKind,
    };
    use crate::gguf::Gguf;

    /// Loads gpt-oss-20b with additional metadata keys.
    fn model(keys: &[(&str, f32)]) -> Box<dyn Model> {
        let file = Gguf::synth("gpt-oss-20b", "mxfp4_moe").unwrap();
        let mut metadata = file.metadata().clone();
        for &(key, value) in keys {
            metadata.insert(format!("gpt-oss.{key}"), value);
        }
        arch::load(&metadata, &file).unwrap()
    }

    /// Returns the index of the RoPE table that each layer reads.
    fn read(model: &dyn Model) -> Vec<usize> {
        let (logits, tile) = (Logits::Last, Options::TILE);
        let options = Options {
            tokens: StepKind::Decode,
            rows: 64,
            pools: Pools::from_pages(1),
            contiguous: true,
            depth: 64,
            cache: CacheType::F16,
            logits,
            tile,
            cached: None,
            draft: None,
        };
        let plan = model.plan(&options, &mut Functions::new());
        let table = |bind: &Bind| {
            if let Bind::Rope(table) = bind {
                Some(*table)
            } else {
                None
            }
        };
        plan.calls
            .iter()
            .flat_map(|call| call.binds.iter().filter_map(table))
            .collect()
    }

    #[test]
    fn windows_may_turn_faster_and_are_scaled_as_other_layers() {
        let tables = |keys: &[(&str, f32)]| -> Vec<RopeTable> { model(keys).rope_tables(4096) };
        let (usual, fast) = (tables(&[]), tables(&[("rope.freq_base", 1e4)]));
        assert!(usual.len() == 1 && fast.len() == 1 && usual != fast && usual[0].magnitude > 1.3);
        let windows = [("rope.freq_base_swa", 1e4f32)];
        assert_eq!(tables(&windows), [usual[0].clone(), fast[0].clone()]);
        let of_layers: Vec<usize> = (0..24).map(|layer| (layer + 1) % 2).collect();
        assert_eq!(read(model(&windows).as_ref()), of_layers);
        // A key that repeats the default changes nothing.
        assert_eq!(tables(&[("rope.freq_base_swa", 150_000.0)]), usual);
    }
}
