//! Adapters of a served model, and those that a request chooses.

use crate::core::error::RequestError;
use gristmill_llm::arch::AdapterScales;
use serde::Deserialize;

/// An adapter that requests may choose.
#[derive(Clone, PartialEq, Debug)]
pub struct NamedAdapter {
    /// Name that a request joins to the model's, or gives in its field `lora`.
    pub name: String,
    /// Factor where a request gives none.
    pub scale: f32,
}

/// An adapter in the field `lora` of a request, by its name or its number.
#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(expecting = "an object with a name, or an id, and a scale")]
pub struct AdapterChoice {
    name: Option<String>,
    id: Option<usize>,
    scale: Option<f64>,
}

/// Largest factor of an adapter in a request.
const MAX_SCALE: f64 = 100.0;

/// Separates a model's name from an adapter's.
const JOINED: char = '+';

/// Names of a model with each of its adapters, such as `base+adapter`.
pub fn joined_names(model: &str, adapters: &[NamedAdapter]) -> impl Iterator<Item = String> {
    adapters
        .iter()
        .map(move |adapter| format!("{model}{JOINED}{}", adapter.name))
}

/// Returns the factors of a model's adapters for a request that names the model `asked`: those of
/// its field `lora` if it has one, else the adapter in the name.
///
/// # Errors
/// When an adapter is unknown, or a factor out of range.
pub fn chosen(
    adapters: &[NamedAdapter],
    asked: Option<&str>,
    lora: Option<&[AdapterChoice]>,
) -> Result<AdapterScales, RequestError> {
    let mut scales = AdapterScales::default();
    let Some(lora) = lora else {
        let named = asked.and_then(|asked| asked.rsplit_once(JOINED));
        let is_named = |adapter: &NamedAdapter| {
            // As names of models are compared.
            named.is_some_and(|(_, name)| {
                let name = name.trim().trim_end_matches(":latest");
                let name = name.trim_end_matches(".gguf");
                name.eq_ignore_ascii_case(&adapter.name)
            })
        };
        if let Some(at) = adapters.iter().position(is_named) {
            scales.0[at] = adapters[at].scale;
        }
        return Ok(scales);
    };
    for choice in lora {
        let at = place(adapters, choice)?;
        let scale = choice.scale.unwrap_or(f64::from(adapters[at].scale));
        if !(-MAX_SCALE..=MAX_SCALE).contains(&scale) {
            let message =
                format!("the scale of an adapter must be from −{MAX_SCALE} to {MAX_SCALE}");
            return Err(RequestError::parameter("lora", message));
        }
        scales.0[at] = scale as f32;
    }
    Ok(scales)
}

fn place(adapters: &[NamedAdapter], choice: &AdapterChoice) -> Result<usize, RequestError> {
    let known: Vec<&str> = adapters.iter().map(|a| a.name.as_str()).collect();
    let found = match (&choice.name, choice.id) {
        (Some(name), _) => known.iter().position(|known| known == name),
        (None, Some(id)) => Some(id).filter(|&id| id < known.len()),
        (None, None) => None,
    };
    found.ok_or_else(|| {
        let there = match known.as_slice() {
            [] => "the server has none; start it with --lora FILE".into(),
            known => format!("this model has {}", known.join(", ")),
        };
        let asked = match (&choice.name, choice.id) {
            (Some(name), _) => format!("there is no adapter {name}"),
            (None, Some(id)) => format!("there is no adapter {id}"),
            (None, None) => "an adapter needs a name or an id".into(),
        };
        RequestError::parameter("lora", format!("{asked}: {there}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapters() -> Vec<NamedAdapter> {
        [("sql", 1.0), ("poems", 0.5)]
            .map(|(name, scale)| NamedAdapter {
                name: name.into(),
                scale,
            })
            .into()
    }

    fn scales(asked: &str, lora: Option<&str>) -> Result<[f32; 2], String> {
        let lora: Option<Vec<AdapterChoice>> =
            lora.map(|text| serde_json::from_str(text).expect("choices"));
        let chosen = chosen(&adapters(), Some(asked), lora.as_deref());
        chosen
            .map(|scales| [scales.0[0], scales.0[1]])
            .map_err(|error| error.message)
    }

    #[test]
    fn a_name_or_a_list_chooses() {
        assert_eq!(scales("base", None), Ok([0.0, 0.0]));
        assert_eq!(scales("base+poems", None), Ok([0.0, 0.5]));
        assert_eq!(scales("Base+Poems:latest", None), Ok([0.0, 0.5]));
        assert_eq!(scales("base+poems", Some("[]")), Ok([0.0, 0.0]));
        let both = r#"[{"name": "poems"}, {"id": 0, "scale": 0.25}]"#;
        assert_eq!(scales("base", Some(both)), Ok([0.25, 0.5]));
    }

    #[test]
    fn unknown_adapters_and_huge_scales_are_refused() {
        let message = scales("base", Some(r#"[{"name": "odes"}]"#)).expect_err("unknown");
        assert!(
            message.contains("odes") && message.contains("sql, poems"),
            "{message}"
        );
        assert!(scales("base", Some(r#"[{"id": 2}]"#)).is_err());
        assert!(scales("base", Some(r#"[{"id": 0, "scale": 1e9}]"#)).is_err());
        assert!(scales("base", Some("[{}]")).is_err());
    }
}
