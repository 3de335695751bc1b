//! Model names, and the lookup of a client's name for a model.

/// Name and aliases of a model.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    /// Name of the model in all interfaces.
    pub name: String,
    /// Further names by which clients may request the model.
    pub aliases: Vec<String>,
}

/// Result of looking up a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameMatch {
    /// Index of the model that matches.
    One(usize),
    /// Indices of the models that match equally well.
    Several(Vec<usize>),
    /// No model has such a name.
    None,
}

/// Reduces a name to lower case, without its folder, `:latest` and `.gguf`.
fn plain(name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or(name);
    name.trim_end_matches(":latest")
        .trim_end_matches(".gguf")
        .to_lowercase()
}

impl Names {
    fn all(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }
}

/// Finds a model by its exact name or an alias, then without regard to case, suffix and folder.
pub fn find(asked: &str, models: &[&Names]) -> NameMatch {
    let asked = asked.trim();
    let ways: [&dyn Fn(&Names) -> bool; 4] = [
        &|names| names.name == asked,
        &|names| names.aliases.iter().any(|alias| alias == asked),
        &|names| {
            names.all().any(|name| {
                name.trim_end_matches(".gguf")
                    .eq_ignore_ascii_case(asked.trim_end_matches(":latest"))
            })
        },
        &|names| names.all().any(|name| plain(name) == plain(asked)),
    ];
    for way in ways {
        let found: Vec<usize> = (0..models.len()).filter(|&at| way(models[at])).collect();
        match found.as_slice() {
            [] => {}
            [one] => return NameMatch::One(*one),
            _ => return NameMatch::Several(found),
        }
    }
    NameMatch::None
}

/// Minimum similarity of a name that is worth suggesting.
const MIN_SIMILARITY: f64 = 0.4;

/// Returns the model with the most similar name, if one is similar enough.
pub fn nearest(asked: &str, models: &[&Names]) -> Option<usize> {
    let asked = plain(asked);
    let like = |names: &Names| {
        let of = |name: &str| {
            let name = plain(name);
            // A part of a name, as users often abbreviate names.
            let part = asked.len() > 2 && (name.contains(&asked) || asked.contains(&name));
            strsim::normalized_damerau_levenshtein(&name, &asked) + f64::from(u8::from(part))
        };
        names.all().map(of).fold(0.0, f64::max)
    };
    let best = models
        .iter()
        .map(|names| like(names))
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(&b.1));
    best.filter(|best| best.1 >= MIN_SIMILARITY)
        .map(|best| best.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str, aliases: &[&str]) -> Names {
        Names {
            name: name.into(),
            aliases: aliases.iter().map(|&alias| alias.into()).collect(),
        }
    }

    #[test]
    fn a_name_is_found_as_clients_write_it() {
        let all = [
            names(
                "GLM-4.7-Flash-Q4_K_M",
                &["glm-4.7-flash", "hf:a/GLM-GGUF:Q4_K_M"],
            ),
            names("demo", &[]),
            names("one/tiny", &[]),
            names("two/tiny", &[]),
            names("tiny-Q8", &[]),
        ];
        let all: Vec<&Names> = all.iter().collect();
        for (asked, found) in [
            ("demo", NameMatch::One(1)),
            ("DEMO", NameMatch::One(1)),
            ("demo:latest", NameMatch::One(1)),
            (" demo.gguf ", NameMatch::One(1)),
            ("models/demo.gguf", NameMatch::One(1)),
            ("glm-4.7-flash", NameMatch::One(0)),
            ("GLM-4.7-Flash:latest", NameMatch::One(0)),
            ("glm-4.7-flash-q4_k_m", NameMatch::One(0)),
            ("hf:a/GLM-GGUF:Q4_K_M", NameMatch::One(0)),
            ("one/tiny", NameMatch::One(2)),
            ("Two/Tiny", NameMatch::One(3)),
            ("tiny", NameMatch::Several(vec![2, 3])),
            ("tiny-q8", NameMatch::One(4)),
            ("gpt-4", NameMatch::None),
            ("", NameMatch::None),
        ] {
            assert_eq!(find(asked, &all), found, "{asked}");
        }
    }

    #[test]
    fn the_nearest_is_named_where_one_is_near() {
        let all = [
            names("Qwen3-0.6B-Q8_0", &["qwen3"]),
            names("demo", &[]),
            names("Llama-3.2-1B-Q4_0", &[]),
        ];
        let all: Vec<&Names> = all.iter().collect();
        for (asked, near) in [
            ("qwen3-0.6b", Some(0)),
            ("llama-3.2", Some(2)),
            ("dmeo", Some(1)),
            ("Qwen3:latest-8B", Some(0)),
            ("zzzzzzzzzz", None),
            ("", None),
        ] {
            assert_eq!(nearest(asked, &all), near, "{asked}");
        }
    }
}
