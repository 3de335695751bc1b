//! Text settings of a model file: tokenizer, chat template, and sampling parameters.
//!
//! Reads metadata only, no tensor data.

use crate::arch;
use crate::chat::{ChatError, ChatTemplate, Isolation, SpecialTexts};
use crate::gguf::{self, Metadata, Strings};
use crate::sampling::SamplingParams;
use crate::tokenizer::{Tokenizer, TokenizerError, TokenizerSpec};

/// Reason why a file's text settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A metadata key is absent or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] gguf::Error),
    /// The tokenizer was refused.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template was refused.
    #[error(transparent)]
    Chat(#[from] ChatError),
}

impl Error {
    /// Returns advice for the user, if there is any.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Metadata(gguf::Error::Missing(_)) => {
                Some("the file carries no tokenizer; use the original model file".into())
            }
            Error::Metadata(error) => error.hint(),
            Error::Tokenizer(error) => error.hint(),
            Error::Chat(error) => error.hint(),
        }
    }
}

/// Creates the tokenizer of a file.
///
/// # Errors
/// Returns an error if keys are absent or malformed, or if the kind of tokenizer is not supported.
pub fn tokenizer(metadata: &Metadata) -> Result<Tokenizer, Error> {
    Ok(Tokenizer::new(tokenizer_spec(metadata)?)?)
}

/// Reads the tokenizer specification of a file.
///
/// # Errors
/// Returns an error if keys are absent or have the wrong type.
pub fn tokenizer_spec(metadata: &Metadata) -> Result<TokenizerSpec, Error> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let text = |name: &str| metadata.str(&key(name)).map(|t| t.map(str::to_owned));
    let id = |name: &str| match metadata.i64(&key(name))? {
        // Files write "none" as −1, or as the same bits in an unsigned type.
        Some(id) => Ok::<_, Error>(u32::try_from(id).ok().filter(|&id| id != u32::MAX)),
        None => Ok(None),
    };
    let tokens = metadata.need(&key("tokens"), Metadata::strings)?;
    let merges = metadata.strings(&key("merges"))?;
    // Checked before the texts are copied: a text of three bytes then takes forty.
    Tokenizer::admit(tokens.len(), merges.map_or(0, Strings::len))?;
    let types = token_types(metadata)?;
    let model = metadata.need(&key("model"), Metadata::str)?.to_owned();
    let architecture = metadata.str("general.architecture")?.unwrap_or_default();
    let pre = text("pre")?;
    let is_bert = model == "bert";
    let or_of_bert = |id: Option<u32>, default: u32| id.or(is_bert.then_some(default));
    let adds_sep = metadata
        .bool(&key("add_sep_token"))?
        .or(is_bert.then_some(true));
    // Texts of encoders end with a separator; the key is misspelt in all files.
    let sep = or_of_bert(id("seperator_token_id")?, SEP).filter(|_| adds_sep == Some(true));
    let eos = id("eos_token_id")?;
    Ok(TokenizerSpec {
        strips: strips(
            architecture,
            &model,
            tokens,
            types.as_deref().unwrap_or_default(),
        ),
        model,
        guessed_pre: pre.is_none(),
        // Old files have no name; llama.cpp uses this one.
        pre: pre.unwrap_or_else(|| "default".to_owned()),
        tokens: tokens.iter().map(<[u8]>::to_vec).collect(),
        token_types: types,
        merges: merges
            .into_iter()
            .flat_map(|m| m.iter())
            .map(|m| String::from_utf8_lossy(m).into_owned())
            .collect(),
        scores: metadata.floats(&key("scores"))?.unwrap_or_default(),
        add_space_prefix: metadata.bool(&key("add_space_prefix"))?,
        lowercase: metadata.bool(&key("normalizer.lowercase"))?,
        strip_accents: metadata.bool(&key("normalizer.strip_accents"))?,
        bos: or_of_bert(id("bos_token_id")?.or(id("cls_token_id")?), CLS),
        eos: if is_bert { sep } else { eos.or(sep) },
        eot: id("eot_token_id")?,
        eom: id("eom_token_id")?,
        unk: or_of_bert(id("unknown_token_id")?, UNKNOWN),
        pad: id("padding_token_id")?,
        add_bos: metadata.bool(&key("add_bos_token"))?,
        add_eos: match is_bert {
            true => adds_sep,
            false => metadata.bool(&key("add_eos_token"))?.or(adds_sep),
        },
    })
}

/// Reads the types of tokens.
fn token_types(metadata: &Metadata) -> Result<Option<Vec<i32>>, Error> {
    let types = metadata.ints("tokenizer.ggml.token_type")?;
    // A type beyond 32 bits becomes 0, which is not a known type either.
    let number = |number| i32::try_from(number).unwrap_or(0);
    Ok(types.map(|types| types.into_iter().map(number).collect()))
}

/// Ids of BERT's special tokens in files that do not name them, as in llama.cpp.
const UNKNOWN: u32 = 100;
const CLS: u32 = 101;
const SEP: u32 = 102;

/// Returns the special tokens that absorb the white space after them, which only a
/// `tokenizer.json` lists: all of Phi-3's except these. (Its successors with byte-level BPE keep
/// the space, as in llama.cpp.)
fn strips(architecture: &str, model: &str, tokens: &Strings, types: &[i32]) -> Vec<Vec<u8>> {
    const KEEP: [&[u8]; 3] = [b"<unk>", b"<s>", b"<|endoftext|>"];
    const CONTROL_AND_USER_DEFINED: [i32; 2] = [3, 4];
    if (architecture, model) != ("phi3", "llama") {
        return Vec::new();
    }
    let special = |&(text, kind): &(&[u8], &i32)| {
        CONTROL_AND_USER_DEFINED.contains(kind) && !KEEP.contains(&text)
    };
    tokens
        .iter()
        .zip(types)
        .filter(special)
        .map(|(text, _)| text.to_vec())
        .collect()
}

/// Returns the file's chat template, or a built-in one with the reason for it, if the model
/// generates text.
///
/// # Errors
/// Returns an error if the process to compile it cannot be started: see [`ChatTemplate::select`].
pub fn template(
    metadata: &Metadata,
    tokenizer: &Tokenizer,
    isolation: &Isolation,
) -> Result<(ChatTemplate, Option<String>), Error> {
    let (template, why) = ChatTemplate::select(
        source(metadata),
        tokenizer.pre(),
        &SpecialTexts::from(tokenizer),
        isolation,
    )?;
    // Text encoders have no conversations.
    let why = why.filter(|_| !arch::is_encoder(metadata).unwrap_or(false));
    Ok(match named(metadata, TOOL_USE) {
        Some(tool_use) if why.is_none() => (template.with_tool_use(tool_use), why),
        _ => (template, why),
    })
}

/// Returns true if the file has its own chat template, which is untrusted code.
pub fn has_template(metadata: &Metadata) -> bool {
    source(metadata).is_some()
}

/// Name of the template for conversations with tools, as in transformers.
const TOOL_USE: &str = "tool_use";

/// Name of a reranker's template, which is for no conversations: see [`RerankPrompt`].
///
/// [`RerankPrompt`]: crate::rerank::RerankPrompt
const RERANK: &str = "rerank";

/// Returns the template source: the file's only or default one, else the first of its named ones.
/// A template that is not text counts as absent.
fn source(metadata: &Metadata) -> Option<&str> {
    let only = metadata.str("tokenizer.chat_template").unwrap_or(None);
    only.filter(|source| !source.trim().is_empty()).or_else(|| {
        let names = metadata.strings("tokenizer.chat_templates").ok()??;
        let listed = names
            .iter()
            .filter_map(|name| std::str::from_utf8(name).ok())
            .filter(|&name| name != RERANK);
        ["default"]
            .into_iter()
            .chain(listed)
            .chain([TOOL_USE])
            .find_map(|name| named(metadata, name))
    })
}

/// Returns the source of a named template.
fn named<'m>(metadata: &'m Metadata, name: &str) -> Option<&'m str> {
    let key = format!("tokenizer.chat_template.{name}");
    metadata.str(&key).unwrap_or(None)
}

/// Returns the sampling parameters that the file recommends (`general.sampling.*`), with defaults
/// for the rest. The second value lists settings that were ignored because they are invalid.
pub fn sampling(metadata: &Metadata) -> (SamplingParams, Vec<String>) {
    type Set = fn(&mut SamplingParams, f64);
    const KEYS: &[(&str, Set)] = &[
        ("temp", |p, v| p.temperature = v as f32),
        ("top_k", |p, v| p.top_k = v.max(0.0) as usize),
        ("top_p", |p, v| p.top_p = v as f32),
        ("min_p", |p, v| p.min_p = v as f32),
        ("penalty_repeat", |p, v| p.repeat_penalty = v as f32),
        // −1 means the whole context.
        ("penalty_last_n", |p, v| {
            p.penalty_last_n = if v < 0.0 { usize::MAX } else { v as usize }
        }),
    ];
    let (mut params, mut ignored) = (SamplingParams::default(), Vec::new());
    for (name, set) in KEYS {
        let key = format!("general.sampling.{name}");
        let Some(value) = metadata.get(&key) else {
            continue;
        };
        let number = value
            .as_float()
            .or_else(|| value.as_int().map(|i| i as f64));
        let changed = number.filter(|v| v.is_finite()).map(|v| {
            let mut changed = params.clone();
            set(&mut changed, v);
            changed
        });
        match changed.filter(|p| p.validate().is_ok()) {
            Some(changed) => params = changed,
            None => ignored.push(format!("{key} = {value} is out of range and ignored")),
        }
    }
    (params, ignored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_accepts_valid_parameters() {
        let mut metadata = Metadata::new();
        metadata
            .insert("general.sampling.temp", 1.0f32)
            .insert("general.sampling.top_k", 20u32);
        metadata
            .insert("general.sampling.top_p", 7.0f32)
            .insert("general.sampling.min_p", "much");
        let (params, ignored) = sampling(&metadata);
        assert_eq!(
            params,
            SamplingParams {
                temperature: 1.0,
                top_k: 20,
                ..SamplingParams::default()
            }
        );
        assert_eq!(ignored.len(), 2, "{ignored:?}");
    }

    #[test]
    fn a_file_without_a_tokenizer_says_so() {
        let error = tokenizer(&Metadata::new()).unwrap_err();
        assert!(
            error.to_string().contains("tokenizer.ggml.tokens"),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("no tokenizer"));
    }
}
