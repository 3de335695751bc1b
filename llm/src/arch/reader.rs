//! Hyper-parameters from metadata: typed, bounded, and refused with the key that is wrong.

use super::{Error, Result, Tensors};
use crate::gguf::{Metadata, PerLayer, Value};
use std::fmt::Display;

/// No width, count or context of a real model comes near.
pub(super) const LIMIT: u32 = 1 << 24;

/// The key of the soft cap of logits.
pub(super) const LOGIT_CAP: &str = "final_logit_softcapping";

/// Reads the keys of one architecture, whose names all begin with it.
pub(super) struct Reader<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl<'a> Reader<'a> {
    /// Of the keys `architecture.*`.
    pub fn new(metadata: &'a Metadata, architecture: &'a str) -> Reader<'a> {
        Reader { metadata, architecture }
    }
    /// The key of that name in full.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }
    /// Is the key there?
    pub fn has(&self, name: &str) -> bool {
        self.metadata.get(&self.key(name)).is_some()
    }
    /// A count, or what it is where the key is absent.
    pub fn size_or(&self, name: &str, default: Option<u32>) -> Result<usize> {
        let key = self.key(name);
        let v = match (self.metadata.u32(&key)?, default) {
            (Some(v), _) | (None, Some(v)) => v,
            (None, None) => self.metadata.need(&key, Metadata::u32)?,
        };
        self.check(name, v, v <= LIMIT, "at most 2^24")?;
        Ok(v as usize)
    }
    /// A count that must be there and positive.
    pub fn size(&self, name: &str) -> Result<usize> {
        let v = self.size_or(name, None)?;
        self.check(name, v, v > 0, "positive")?;
        Ok(v)
    }
    /// A finite number, if the key is there.
    pub fn float(&self, name: &str) -> Result<Option<f64>> {
        // A metadata f32 stands for the decimal number it was written from: 0.0707 rather than 0.07069999724.
        let v = self.metadata.f32(&self.key(name))?.map(|v| v.to_string().parse().unwrap_or(f64::from(v)));
        self.check(name, v.unwrap_or(0.0), v.is_none_or(f64::is_finite), "finite")?;
        Ok(v)
    }
    /// A positive number, or the default.
    pub fn positive(&self, name: &str, default: f64) -> Result<f64> {
        let v = self.float(name)?.unwrap_or(default);
        self.check(name, v, v > 0.0, "positive")?;
        Ok(v)
    }
    /// Yes or no, if the key is there.
    pub fn bool(&self, name: &str) -> Result<Option<bool>> {
        Ok(self.metadata.bool(&self.key(name))?)
    }
    /// Yes or no for each layer: an array, or of a number `n` no for the last of every `n` layers; `period` where the key is absent.
    pub fn pattern(&self, name: &str, layers: usize, period: usize) -> Result<Vec<bool>> {
        let key = self.key(name);
        let period = match self.metadata.get(&key) {
            Some(Value::Array(_)) => return self.bools(name, layers),
            Some(_) => self.size(name)?,
            None => period,
        };
        Ok((0..layers).map(|layer| layer % period != period - 1).collect())
    }
    /// Yes or no for each layer: an array that must be there.
    pub fn bools(&self, name: &str, layers: usize) -> Result<Vec<bool>> {
        let each = self.metadata.need(&self.key(name), Metadata::bools)?;
        self.check(name, each.len(), each.len() >= layers, "one for each layer")?;
        Ok(each[..layers].to_vec())
    }
    /// A positive number, or the default where the key is absent; 0 is none.
    pub fn positive_or_none(&self, name: &str, default: Option<f64>) -> Result<Option<f64>> {
        let v = self.float(name)?.or(default).filter(|&v| v != 0.0);
        self.check(name, v.unwrap_or(1.0), v.is_none_or(|v| v > 0.0), "positive")?;
        Ok(v)
    }
    /// A text, if the key is there.
    pub fn str(&self, name: &str) -> Result<Option<&'a str>> {
        Ok(self.metadata.str(&self.key(name))?)
    }
    /// A count for each layer: one for all, or an array.
    pub fn each(&self, name: &str, layers: usize) -> Result<Vec<usize>> {
        let v = self.metadata.need(&self.key(name), |m, k| m.per_layer(k, layers))?;
        let v: Vec<u32> = match v {
            PerLayer::All(v) => vec![v; layers],
            PerLayer::Each(v) => v,
        };
        let largest = v.iter().copied().max().unwrap_or(0);
        self.check(name, largest, largest <= LIMIT, "at most 2^24")?;
        Ok(v.into_iter().map(|v| v as usize).collect())
    }
    /// A count that is the same in all layers.
    pub fn uniform(&self, name: &str, layers: usize) -> Result<usize> {
        let all = self.each(name, layers)?;
        match all.iter().all(|&n| n == all[0]) {
            true => Ok(all[0]),
            false => self.unsupported(name, "different in each layer"),
        }
    }
    /// Layers of the trunk: blocks without those for draft tokens.
    pub fn layers(&self) -> Result<usize> {
        let (blocks, drafts) = (self.size("block_count")?, self.size_or("nextn_predict_layers", Some(0))?);
        let good = blocks <= 512 && drafts < blocks;
        self.check("block_count", blocks, good, "1 to 512, and more than nextn_predict_layers")?;
        Ok(blocks - drafts)
    }
    /// Attention heads, the same in all layers.
    pub fn heads(&self, layers: usize) -> Result<usize> {
        let heads = self.each("attention.head_count", layers)?[0];
        self.check("attention.head_count", heads, (1..=1024).contains(&heads), "1 to 1024")?;
        self.uniform("attention.head_count", layers)
    }
    /// Heads of keys and values, the same in all layers, of so many that attend.
    pub fn kv_heads(&self, layers: usize, heads: usize) -> Result<usize> {
        let kv_heads = self.uniform("attention.head_count_kv", layers)?;
        let shares = kv_heads > 0 && heads.is_multiple_of(kv_heads);
        self.check("attention.head_count_kv", kv_heads, shares, "a divisor of head_count")?;
        Ok(kv_heads)
    }
    /// Numbers of a key of that length which are rotated: all of them where the key of that name is absent.
    pub fn rotated(&self, name: &str, key: usize) -> Result<usize> {
        let rotated = self.size_or(name, Some(key as u32))?;
        let even = rotated > 0 && rotated.is_multiple_of(2) && rotated <= key;
        self.check(name, rotated, even, "even and at most the key length")?;
        Ok(rotated)
    }
    /// Rows of the embedding, which the metadata may repeat.
    pub fn vocabulary(&self, tensors: &dyn Tensors) -> Result<usize> {
        let embedding = tensors.find("token_embd.weight").ok_or(Error::MissingTensor("token_embd.weight".into()))?;
        let rows = embedding.0.get(1).map_or(0, |&n| n as usize);
        self.check("vocab_size", rows, (1..=LIMIT as usize).contains(&rows), "1 to 2^24 (rows of token_embd)")?;
        if let Some(v) = self.metadata.u32(&self.key("vocab_size"))? {
            self.check("vocab_size", v, v as usize == rows, "the number of rows of token_embd")?;
        }
        Ok(rows)
    }
    /// Refuses what is found unless it is good.
    pub fn check(&self, name: &str, found: impl Display, good: bool, expected: &'static str) -> Result<()> {
        if good {
            return Ok(());
        }
        Err(Error::Parameter { key: self.key(name), found: found.to_string(), expected })
    }
    /// Refuses what is valid and not implemented.
    pub fn unsupported<T>(&self, name: &str, found: impl Display) -> Result<T> {
        Err(Error::Feature { key: self.key(name), found: found.to_string() })
    }
}
