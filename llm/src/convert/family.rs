//! Families of models: their classes in transformers, and what their conversion does.

use super::config::CheckpointConfig;
use super::encoders;
use super::error::ConvertError;
use super::hyper::{self, Keys};

/// Norms whose weights are stored as their difference from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ShiftedNorms {
    No,
    All,
    /// All but the gated norm of linear attention.
    ButGated,
}

/// Conversion of a family.
pub(super) struct ConvertFamily {
    /// Classes in transformers: values of `architectures`.
    pub classes: &'static [&'static str],
    /// Value of `general.architecture`.
    pub architecture: &'static str,
    pub norms: ShiftedNorms,
    /// Whether blocks for draft tokens are converted.
    pub drafts: bool,
    /// Keys in addition to those of all families, and checks.
    pub keys: fn(&CheckpointConfig, &mut Keys<'_>) -> Result<(), ConvertError>,
}

const fn family(
    architecture: &'static str,
    classes: &'static [&'static str],
    keys: fn(&CheckpointConfig, &mut Keys<'_>) -> Result<(), ConvertError>,
) -> ConvertFamily {
    ConvertFamily {
        classes,
        architecture,
        norms: ShiftedNorms::No,
        drafts: false,
        keys,
    }
}

const fn with(of: ConvertFamily, norms: ShiftedNorms, drafts: bool) -> ConvertFamily {
    ConvertFamily {
        norms,
        drafts,
        ..of
    }
}

/// All families; the names of architectures are those of `arch::TABLE`, and those of assistants.
static FAMILIES: [ConvertFamily; 22] = [
    family("bert", &["BertModel", "BertForMaskedLM"], encoders::bert),
    family(
        "nomic-bert",
        &["NomicBertModel", "NomicBertForMaskedLM"],
        encoders::nomic_bert,
    ),
    family(
        "modern-bert",
        &["ModernBertModel", "ModernBertForMaskedLM"],
        encoders::modern_bert,
    ),
    family(
        "llama",
        &[
            "LlamaForCausalLM",
            "LLaMAForCausalLM",
            "MistralForCausalLM",
            "MixtralForCausalLM",
        ],
        hyper::llama,
    ),
    family(
        "mistral3",
        &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
        hyper::mistral3,
    ),
    family("granite", &["GraniteForCausalLM"], hyper::granite),
    family("qwen2", &["Qwen2ForCausalLM"], hyper::plain),
    family("qwen3", &["Qwen3ForCausalLM"], hyper::plain),
    family("qwen3moe", &["Qwen3MoeForCausalLM"], hyper::qwen3moe),
    with(
        family(
            "qwen35",
            &["Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"],
            hyper::qwen35,
        ),
        ShiftedNorms::ButGated,
        true,
    ),
    with(
        family(
            "qwen35moe",
            &[
                "Qwen3_5MoeForConditionalGeneration",
                "Qwen3_5MoeForCausalLM",
            ],
            hyper::qwen35,
        ),
        ShiftedNorms::ButGated,
        true,
    ),
    with(
        family("gemma2", &["Gemma2ForCausalLM"], hyper::gemma2),
        ShiftedNorms::All,
        false,
    ),
    with(
        family(
            "gemma3",
            &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
            hyper::gemma3,
        ),
        ShiftedNorms::All,
        false,
    ),
    family(
        "gemma4",
        &["Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"],
        hyper::gemma4,
    ),
    family(
        "gemma4-assistant",
        &["Gemma4AssistantForCausalLM"],
        hyper::gemma4_assistant,
    ),
    family("phi3", &["Phi3ForCausalLM"], hyper::phi3),
    family(
        "olmo2",
        &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
        hyper::olmo2,
    ),
    family("gpt-oss", &["GptOssForCausalLM"], hyper::gpt_oss),
    with(
        family("glm4moe", &["Glm4MoeForCausalLM"], hyper::glm4moe),
        ShiftedNorms::No,
        true,
    ),
    family("minimax-m2", &["MiniMaxM2ForCausalLM"], hyper::minimax_m2),
    family(
        "deepseek2",
        &[
            "DeepseekV2ForCausalLM",
            "DeepseekV3ForCausalLM",
            "YoutuForCausalLM",
        ],
        hyper::deepseek2,
    ),
    with(
        family("deepseek2", &["Glm4MoeLiteForCausalLM"], hyper::deepseek2),
        ShiftedNorms::No,
        true,
    ),
];

/// Finds the family of a configuration.
pub(super) fn find(config: &CheckpointConfig) -> Result<&'static ConvertFamily, ConvertError> {
    let class = config.class.as_str();
    let found = FAMILIES
        .iter()
        .find(|family| family.classes.contains(&class));
    found.ok_or_else(|| {
        let classes: Vec<_> = FAMILIES.iter().flat_map(|f| f.classes).copied().collect();
        ConvertError::unsupported(
            format!("a model of class {class}"),
            format!("these are converted: {}", classes.join(", ")),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch;
    use crate::gguf::assistant_of;

    #[test]
    fn every_architecture_has_a_conversion() {
        for architecture in arch::TABLE {
            let is_it = |family: &&ConvertFamily| family.architecture == architecture.name;
            assert!(FAMILIES.iter().any(|f| is_it(&f)), "{}", architecture.name);
        }
        for family in &FAMILIES {
            let model = assistant_of(family.architecture).unwrap_or(family.architecture);
            assert!(arch::TABLE.iter().any(|a| a.name == model));
        }
    }
}
