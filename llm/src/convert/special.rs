//! Special tokens, chat templates, and recommended sampling parameters.

use super::error::ConvertError;
use super::folder::{CheckpointFolder, Object};
use super::vocab::TokenizerFiles;
use crate::gguf::{Metadata, Strings, Value};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Roles of special tokens, and their keys.
const ROLES: [(&str, &str); 9] = [
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("eot", "eot_token_id"),
    ("eom", "eom_token_id"),
    ("unk", "unknown_token_id"),
    ("sep", "seperator_token_id"),
    ("pad", "padding_token_id"),
    ("cls", "cls_token_id"),
    ("mask", "mask_token_id"),
];
/// Roles of GLM's tokens, which its files do not name.
const GLM: [(&str, &str); 4] = [
    ("bos", "[gMASK]"),
    ("eot", "<|user|>"),
    ("unk", "<|endoftext|>"),
    ("eom", "<|observation|>"),
];
/// Classes of GLM models.
const GLM_CLASSES: [&str; 2] = ["Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM"];

/// Sampling parameters of `generation_config.json`, and their keys.
const SAMPLING: [(&str, &str); 5] = [
    ("temperature", "temp"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("repetition_penalty", "penalty_repeat"),
];

/// Special tokens of a tokenizer.
pub(super) struct SpecialTokens<'f> {
    files: &'f TokenizerFiles<'f>,
    ids: BTreeMap<String, u32>,
    /// Texts of tokens by role.
    texts: BTreeMap<&'static str, String>,
    /// Whether a token is added to texts, by role.
    added: BTreeMap<&'static str, bool>,
}

impl<'f> SpecialTokens<'f> {
    pub fn read(files: &'f TokenizerFiles<'f>) -> Result<SpecialTokens<'f>, ConvertError> {
        let mut special = SpecialTokens {
            ids: files.ids()?,
            files,
            texts: BTreeMap::new(),
            added: BTreeMap::new(),
        };
        let text = |role: &str| {
            let entry = files.settings.get(&format!("{role}_token"))?;
            let text = entry.as_str().or_else(|| entry.get("content")?.as_str());
            text.map(str::to_owned)
        };
        for (role, _) in ROLES {
            if let Some(text) = text(role) {
                special.texts.insert(role, text);
            }
        }
        for (role, instead) in [("bos", "cls"), ("eos", "sep")] {
            if let (None, Some(text)) = (special.texts.get(role), text(instead)) {
                special.texts.insert(role, text);
            }
        }
        special.processors();
        for (role, _) in ROLES {
            let flag = files.settings.get(&format!("add_{role}_token"));
            if let Some(flag) = flag.and_then(Json::as_bool) {
                special.added.entry(role).or_insert(flag);
            }
        }
        Ok(special)
    }
    /// Reads from the post-processor of `tokenizer.json` which tokens are added to texts.
    fn processors(&mut self) {
        let json = self.files.json.as_ref();
        let Some(post) = json.and_then(|json| json.get("post_processor")) else {
            return;
        };
        let list = post.get("processors").and_then(Json::as_array);
        let all: Vec<&Json> = list.map_or_else(|| vec![post], |list| list.iter().collect());
        for processor in all {
            match processor.get("type").and_then(Json::as_str) {
                Some("ByteLevel") => {
                    self.added.entry("bos").or_insert(false);
                    self.added.entry("eos").or_insert(false);
                }
                Some("TemplateProcessing") => self.template(processor),
                _ => {}
            }
        }
    }
    fn template(&mut self, processor: &Json) {
        let single = processor.get("single").and_then(Json::as_array);
        let single = single.map(Vec::as_slice).unwrap_or_default();
        if single.len() < 2 {
            return;
        }
        let special = |at: Option<&Json>| {
            let id = at?.get("SpecialToken")?.get("id")?.as_str();
            id.map(str::to_owned)
        };
        if let Some(first) = special(single.first()) {
            let bos = self.texts.entry("bos").or_insert_with(|| first.clone());
            let is_bos = *bos == first || self.texts.get("cls") == Some(&first);
            self.added.insert("bos", is_bos);
        }
        if let Some(last) = special(single.last()) {
            if let Some(eos) = self.texts.insert("eos", last.clone())
                && eos != last
            {
                self.texts.entry("eot").or_insert(eos);
            }
            self.added.insert("eos", true);
        }
    }
    /// Writes ids of roles and which tokens are added, as far as they are below `rows`.
    pub fn write(
        self,
        metadata: &mut Metadata,
        config: &Object,
        generation: &Object,
        class: &str,
        rows: usize,
    ) {
        let mut ids: BTreeMap<&str, u32> = BTreeMap::new();
        for (role, _) in ROLES {
            let named = self.texts.get(role).and_then(|text| self.ids.get(text));
            let id = named.copied().or_else(|| first_id(config, role));
            if let Some(id) = id.filter(|&id| (id as usize) < rows) {
                ids.insert(role, id);
            }
        }
        if GLM_CLASSES.contains(&class) {
            for (role, text) in GLM {
                if let Some(id) = self.ids.get(text).filter(|&&id| (id as usize) < rows) {
                    ids.entry(role).or_insert(*id);
                }
            }
        }
        // Further tokens at which generation stops.
        let stops = all_ids(generation.get("eos_token_id"));
        for id in stops.into_iter().filter(|&id| (id as usize) < rows) {
            let is_known = ids
                .iter()
                .any(|(role, of)| role.starts_with("eo") && *of == id);
            let free = ["eos", "eot", "eom"]
                .into_iter()
                .find(|role| !ids.contains_key(role));
            if let (false, Some(role)) = (is_known, free) {
                ids.insert(role, id);
            }
        }
        for (role, key) in ROLES {
            if let Some(id) = ids.get(role) {
                metadata.insert(format!("tokenizer.ggml.{key}"), *id);
            }
        }
        for (role, flag) in self.added {
            metadata.insert(format!("tokenizer.ggml.add_{role}_token"), flag);
        }
    }
}

fn all_ids(value: Option<&Json>) -> Vec<u32> {
    let id = |value: &Json| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Json::Array(list)) => list.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Id of a role in `config.json`, of the text model or of the whole.
fn first_id(config: &Object, role: &str) -> Option<u32> {
    let key = format!("{role}_token_id");
    let of_text = config.get("text_config").and_then(|text| text.get(&key));
    let own = config.get(&key).filter(|value| !value.is_null());
    all_ids(own.or(of_text)).first().copied()
}

/// Writes the chat templates.
pub(super) fn templates(
    folder: &CheckpointFolder,
    settings: &Object,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    let of_json = || {
        let json = folder.object("chat_template.json")?;
        Ok::<_, ConvertError>(json.and_then(|mut json| json.remove("chat_template")))
    };
    let template = match (
        settings.get("chat_template"),
        folder.text("chat_template.jinja")?,
    ) {
        (Some(template), _) if !template.is_null() => Some(template.clone()),
        (_, Some(text)) => Some(Json::String(text)),
        _ => of_json()?,
    };
    let mut names = Strings::default();
    match template {
        Some(Json::String(text)) => {
            metadata.insert("tokenizer.chat_template", text);
        }
        Some(Json::Array(list)) => {
            for entry in &list {
                let text = |field: &str| entry.get(field).and_then(Json::as_str);
                let (Some(name), Some(template)) = (text("name"), text("template")) else {
                    continue;
                };
                let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
                if name == "default" {
                    metadata.insert("tokenizer.chat_template", template);
                } else if !name.is_empty() && name.chars().all(plain) {
                    metadata.insert(format!("tokenizer.chat_template.{name}"), template);
                    names.push(name);
                }
            }
        }
        _ => {}
    }
    if !names.is_empty() {
        metadata.insert("tokenizer.chat_templates", names);
    }
    Ok(())
}

/// Writes the sampling parameters that `generation_config.json` recommends.
pub(super) fn sampling(generation: &Object, metadata: &mut Metadata) {
    for (name, key) in SAMPLING {
        let value = generation.get(name);
        let value: Option<Value> = match key {
            "top_k" => value
                .and_then(Json::as_i64)
                .and_then(|k| i32::try_from(k).ok())
                .map(Value::from),
            _ => value.and_then(Json::as_f64).map(|v| Value::from(v as f32)),
        };
        if let Some(value) = value {
            metadata.insert(format!("general.sampling.{key}"), value);
        }
    }
}
