//! Key–value metadata of a GGUF file, with lenient typed access.

use super::error::{Error, Result};
use super::kind::{OtherKind, assistant_of};
use super::value::{Array, Strings, Value};

/// Architectures of text encoders, which have no causal attention.
const ENCODERS: &[&str] = &[
    "eurobert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "neo-bert",
    "nomic-bert-moe",
    "t5encoder",
];
use std::collections::HashMap;

/// Metadata entries in file order.
///
/// Getters return `Ok(None)` for an absent key and an error for a value of the wrong type. Any
/// integer type is accepted if its value fits, and either float type for a float, but never a bool
/// or string for a number.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    // The standard hasher has a random seed. Keys come from an untrusted file, and a fixed hash
    // function would allow quadratic collisions.
    index: HashMap<String, usize>,
}

/// A hyper-parameter with one number for all layers or one per layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerLayer {
    /// The same number for every layer.
    All(u32),
    /// One number per layer.
    Each(Vec<u32>),
}

impl PerLayer {
    /// Returns the value for `layer`; `None` beyond the end of an array.
    pub fn get(&self, layer: usize) -> Option<u32> {
        match self {
            PerLayer::All(v) => Some(*v),
            PerLayer::Each(v) => v.get(layer).copied(),
        }
    }
}

impl Metadata {
    /// Returns the kind that the file declares; `None` for models and where none is declared.
    ///
    /// # Errors
    /// When a key has the wrong type.
    pub fn other_kind(&self) -> Result<Option<OtherKind>> {
        let architecture = self.str("general.architecture")?;
        Ok(match (self.str("general.type")?, architecture) {
            (Some("mmproj"), _) | (_, Some("clip")) => Some(OtherKind::Projector),
            (Some("adapter"), _) => Some(OtherKind::Adapter),
            _ if self.str("adapter.type")?.is_some() => Some(OtherKind::Adapter),
            (Some("imatrix"), _) => Some(OtherKind::ImportanceMatrix),
            (Some("vocab"), _) => Some(OtherKind::Vocabulary),
            (_, Some(name)) if assistant_of(name).is_some() => Some(OtherKind::Assistant),
            (_, Some(name)) if ENCODERS.contains(&name) => Some(OtherKind::Encoder(name.into())),
            (None | Some("model"), _) => None,
            (Some(other), _) => Some(OtherKind::Other(other.into())),
        })
    }
    /// Creates metadata without entries.
    pub fn new() -> Self {
        Self::default()
    }
    /// Sets `key`; an existing key keeps its position.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        let (key, value) = (key.into(), value.into());
        match self.index.get(&key) {
            Some(&i) => self.entries[i].1 = value,
            None => {
                self.index.insert(key.clone(), self.entries.len());
                self.entries.push((key, value));
            }
        }
        self
    }
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    /// Iterates over all entries in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }
    /// Returns the raw value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }
    /// Returns true if `key` is present.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        f: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match f(value) {
            Some(v) => Ok(Some(v)),
            None => {
                let found = match value {
                    Value::Array(_) => value.type_name(),
                    _ => format!("{} {value}", value.type_name()),
                };
                Err(Error::WrongType {
                    key: key.into(),
                    expected,
                    found,
                })
            }
        }
    }

    /// Returns the value that `getter` reads for `key`, or [`Error::Missing`]:
    /// `md.need("a.b", Metadata::u32)?`.
    pub fn need<'a, T>(
        &'a self,
        key: &str,
        getter: impl FnOnce(&'a Self, &str) -> Result<Option<T>>,
    ) -> Result<T> {
        getter(self, key)?.ok_or_else(|| Error::Missing(key.into()))
    }
    /// Reads an integer that fits `u32`.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "an integer in 0..2³²", |v| {
            v.as_int()?.try_into().ok()
        })
    }
    /// Reads an integer that fits `u64`.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an integer in 0..2⁶⁴", |v| {
            v.as_int()?.try_into().ok()
        })
    }
    /// Reads an integer that fits `i64`.
    pub fn i64(&self, key: &str) -> Result<Option<i64>> {
        self.typed(key, "an integer", |v| v.as_int()?.try_into().ok())
    }
    /// Reads a float, rounded to `f32`. Not necessarily finite.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a float", |v| v.as_float().map(|x| x as f32))
    }
    /// Reads a value of type bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a bool", |v| {
            if let Value::Bool(b) = v {
                Some(*b)
            } else {
                None
            }
        })
    }
    /// Reads a UTF-8 string.
    pub fn str<'a>(&'a self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a UTF-8 string", |v| {
            if let Value::Str(s) = v {
                std::str::from_utf8(s).ok()
            } else {
                None
            }
        })
    }
    /// Reads an array of strings, as bytes.
    pub fn strings<'a>(&'a self, key: &str) -> Result<Option<&'a Strings>> {
        self.typed(key, "an array of strings", |v| {
            if let Value::Array(Array::Str(s)) = v {
                Some(s)
            } else {
                None
            }
        })
    }
    /// Reads an array of integers of any type.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.typed(key, "an array of integers", |v| convert(v, usize::MAX))
    }
    /// Reads an array of bools.
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>> {
        self.typed(key, "an array of bools", |v| {
            if let Value::Array(Array::Bool(b)) = v {
                Some(&b[..])
            } else {
                None
            }
        })
    }
    /// Reads an array of floats of either type.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.typed(key, "an array of floats", |v| {
            let Value::Array(a) = v else { return None };
            Some(a.as_floats()?.map(|x| x as f32).collect())
        })
    }
    /// Reads a number, or the first `layers` numbers of an array with at least that many.
    pub fn per_layer(&self, key: &str, layers: usize) -> Result<Option<PerLayer>> {
        self.typed(key, "an integer, or an array of one for each layer", |v| {
            if let Some(i) = v.as_int() {
                return i.try_into().ok().map(PerLayer::All);
            }
            convert(v, layers)
                .filter(|each: &Vec<u32>| each.len() >= layers)
                .map(PerLayer::Each)
        })
    }
}

/// Converts the first `limit` integers of an array; `None` if one does not fit `T`.
fn convert<T: TryFrom<i128>>(value: &Value, limit: usize) -> Option<Vec<T>> {
    let Value::Array(a) = value else { return None };
    a.as_ints()?
        .take(limit)
        .map(|i| i.try_into().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_beside_models_are_called_what_they_are() {
        let kind = |pairs: &[(&str, &str)]| {
            let mut metadata = Metadata::new();
            for &(key, value) in pairs {
                metadata.insert(key, value);
            }
            metadata.other_kind().unwrap()
        };
        let architecture = "general.architecture";
        for (pairs, named) in [
            (&[(architecture, "clip")][..], "mmproj"),
            (
                &[(architecture, "llama"), ("general.type", "mmproj")],
                "mmproj",
            ),
            (
                &[(architecture, "llama"), ("general.type", "adapter")],
                "LoRA adapter",
            ),
            (
                &[(architecture, "llama"), ("adapter.type", "lora")],
                "LoRA adapter",
            ),
            (&[(architecture, "neo-bert")], "embedding model"),
            (&[("general.type", "imatrix")], "importance matrix"),
            (
                &[(architecture, "llama"), ("general.type", "vocab")],
                "vocabulary",
            ),
            (
                &[(architecture, "llama"), ("general.type", "dataset")],
                "type dataset",
            ),
        ] {
            let kind = kind(pairs).expect(named);
            assert!(
                kind.to_string().contains(named) && !kind.hint().is_empty(),
                "{kind}"
            );
        }
        for pairs in [
            &[][..],
            &[(architecture, "llama")],
            &[(architecture, "qwen3"), ("general.type", "model")],
        ] {
            assert_eq!(kind(pairs), None, "{pairs:?}");
        }
    }
}
