//! Typed and bounded access to hyper-parameters in metadata. Errors name the wrong key.

use super::{Error, Result, Tensors};
use crate::gguf::{Metadata, PerLayer, Value};
use std::fmt::Display;

/// Upper bound of any width, count or context length; far above those of real models.
pub(super) const LIMIT: u32 = 1 << 24;

/// Key of the soft cap of logits.
pub(super) const LOGIT_CAP: &str = "final_logit_softcapping";

/// Reads the metadata keys with the prefix of one architecture.
pub(super) struct Reader<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl<'a> Reader<'a> {
    /// Creates a reader of the keys `architecture.*`.
    pub fn new(metadata: &'a Metadata, architecture: &'a str) -> Reader<'a> {
        Reader {
            metadata,
            architecture,
        }
    }
    /// Returns the full key of `name`.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }
    /// Returns true if the key is present.
    pub fn has(&self, name: &str) -> bool {
        self.metadata.get(&self.key(name)).is_some()
    }
    /// Returns the value of the key, if it is present.
    pub fn value(&self, name: &str) -> Option<&'a Value> {
        self.metadata.get(&self.key(name))
    }
    /// Reads a count of at most [`LIMIT`]; `default` replaces an absent key.
    pub fn size_or(&self, name: &str, default: Option<u32>) -> Result<usize> {
        let key = self.key(name);
        let v = match (self.metadata.u32(&key)?, default) {
            (Some(v), _) | (None, Some(v)) => v,
            (None, None) => self.metadata.need(&key, Metadata::u32)?,
        };
        self.check(name, v, v <= LIMIT, "at most 2^24")?;
        Ok(v as usize)
    }
    /// Reads a required, positive count.
    pub fn size(&self, name: &str) -> Result<usize> {
        let v = self.size_or(name, None)?;
        self.check(name, v, v > 0, "positive")?;
        Ok(v)
    }
    /// Reads a finite number, if the key is present.
    pub fn float(&self, name: &str) -> Result<Option<f64>> {
        // Uses the shortest decimal form of the f32: 0.0707 rather than 0.07069999724.
        let v = self
            .metadata
            .f32(&self.key(name))?
            .map(|v| v.to_string().parse().unwrap_or(f64::from(v)));
        self.check(
            name,
            v.unwrap_or(0.0),
            v.is_none_or(f64::is_finite),
            "finite",
        )?;
        Ok(v)
    }
    /// Reads a positive number; `default` replaces an absent key.
    pub fn positive(&self, name: &str, default: f64) -> Result<f64> {
        let v = self.float(name)?.unwrap_or(default);
        self.check(name, v, v > 0.0, "positive")?;
        Ok(v)
    }
    /// Reads a bool, if the key is present.
    pub fn bool(&self, name: &str) -> Result<Option<bool>> {
        Ok(self.metadata.bool(&self.key(name))?)
    }
    /// Reads one bool per layer: an array, or a number `n` that means false for the last of every
    /// `n` layers. `period` replaces an absent key.
    pub fn pattern(&self, name: &str, layers: usize, period: usize) -> Result<Vec<bool>> {
        let key = self.key(name);
        let period = match self.metadata.get(&key) {
            Some(Value::Array(_)) => return self.bools(name, layers),
            Some(_) => self.size(name)?,
            None => period,
        };
        Ok((0..layers)
            .map(|layer| layer % period != period - 1)
            .collect())
    }
    /// Reads a required array with one bool per layer.
    pub fn bools(&self, name: &str, layers: usize) -> Result<Vec<bool>> {
        let each = self.metadata.need(&self.key(name), Metadata::bools)?;
        self.check(name, each.len(), each.len() >= layers, "one for each layer")?;
        Ok(each[..layers].to_vec())
    }
    /// Reads a positive number; 0 means `None`, and `default` replaces an absent key.
    pub fn positive_or_none(&self, name: &str, default: Option<f64>) -> Result<Option<f64>> {
        let v = self.float(name)?.or(default).filter(|&v| v != 0.0);
        self.check(
            name,
            v.unwrap_or(1.0),
            v.is_none_or(|v| v > 0.0),
            "positive",
        )?;
        Ok(v)
    }
    /// Reads a string, if the key is present.
    pub fn str(&self, name: &str) -> Result<Option<&'a str>> {
        Ok(self.metadata.str(&self.key(name))?)
    }
    /// Reads one count per layer: one number for all, or an array.
    pub fn each(&self, name: &str, layers: usize) -> Result<Vec<usize>> {
        let v = self
            .metadata
            .need(&self.key(name), |m, k| m.per_layer(k, layers))?;
        let v: Vec<u32> = match v {
            PerLayer::All(v) => vec![v; layers],
            PerLayer::Each(v) => v,
        };
        let largest = v.iter().copied().max().unwrap_or(0);
        self.check(name, largest, largest <= LIMIT, "at most 2^24")?;
        Ok(v.into_iter().map(|v| v as usize).collect())
    }
    /// Reads a count that must be the same in all layers.
    pub fn uniform(&self, name: &str, layers: usize) -> Result<usize> {
        let all = self.each(name, layers)?;
        match all.iter().all(|&n| n == all[0]) {
            true => Ok(all[0]),
            false => self.unsupported(name, "different in each layer"),
        }
    }
    /// Returns the number of layers without blocks for draft tokens.
    pub fn layers(&self) -> Result<usize> {
        let (blocks, drafts) = (
            self.size("block_count")?,
            self.size_or("nextn_predict_layers", Some(0))?,
        );
        let good = blocks <= 512 && drafts < blocks;
        self.check(
            "block_count",
            blocks,
            good,
            "1 to 512, and more than nextn_predict_layers",
        )?;
        Ok(blocks - drafts)
    }
    /// Reads the number of attention heads, the same in all layers.
    pub fn heads(&self, layers: usize) -> Result<usize> {
        let heads = self.each("attention.head_count", layers)?[0];
        self.check(
            "attention.head_count",
            heads,
            (1..=1024).contains(&heads),
            "1 to 1024",
        )?;
        self.uniform("attention.head_count", layers)
    }
    /// Reads the number of key-value heads, a divisor of `heads` and the same in all layers.
    pub fn kv_heads(&self, layers: usize, heads: usize) -> Result<usize> {
        let kv_heads = self.uniform("attention.head_count_kv", layers)?;
        let shares = kv_heads > 0 && heads.is_multiple_of(kv_heads);
        self.check(
            "attention.head_count_kv",
            kv_heads,
            shares,
            "a divisor of head_count",
        )?;
        Ok(kv_heads)
    }
    /// Reads the number of rotated elements of a key head; absent means all `key` elements.
    pub fn rotated(&self, name: &str, key: usize) -> Result<usize> {
        let rotated = self.size_or(name, Some(key as u32))?;
        let even = rotated > 0 && rotated.is_multiple_of(2) && rotated <= key;
        self.check(name, rotated, even, "even and at most the key length")?;
        Ok(rotated)
    }
    /// Returns the number of embedding rows, which must match `vocab_size` if present.
    pub fn vocabulary(&self, tensors: &dyn Tensors) -> Result<usize> {
        let embedding = tensors
            .find("token_embd.weight")
            .ok_or(Error::MissingTensor("token_embd.weight".into()))?;
        let rows = embedding.0.get(1).map_or(0, |&n| n as usize);
        self.check(
            "vocab_size",
            rows,
            (1..=LIMIT as usize).contains(&rows),
            "1 to 2^24 (rows of token_embd)",
        )?;
        if let Some(v) = self.metadata.u32(&self.key("vocab_size"))? {
            self.check(
                "vocab_size",
                v,
                v as usize == rows,
                "the number of rows of token_embd",
            )?;
        }
        Ok(rows)
    }
    /// Returns an error for the key unless `good`.
    pub fn check(
        &self,
        name: &str,
        found: impl Display,
        good: bool,
        expected: &'static str,
    ) -> Result<()> {
        if good {
            return Ok(());
        }
        Err(Error::Parameter {
            key: self.key(name),
            found: found.to_string(),
            expected,
        })
    }
    /// Returns the error for a valid value that is not implemented.
    pub fn unsupported<T>(&self, name: &str, found: impl Display) -> Result<T> {
        Err(Error::Feature {
            key: self.key(name),
            found: found.to_string(),
        })
    }
}
