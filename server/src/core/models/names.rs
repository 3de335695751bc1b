//! What models are called, and which one a client means.

/// A model's names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    /// What it is called in all interfaces.
    pub name: String,
    /// What else it answers to.
    pub aliases: Vec<String>,
}

/// Which model was meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameMatch {
    /// That one, by its place.
    One(usize),
    /// One of these.
    Several(Vec<usize>),
    /// None.
    None,
}

/// A name without its folder, and without what clients and files add to it.
fn plain(name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or(name);
    name.trim_end_matches(":latest").trim_end_matches(".gguf").to_lowercase()
}

impl Names {
    fn all(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }
}

/// The model that is called so: exactly, or give or take a folder, an ending, or how large its letters are.
pub fn find(asked: &str, models: &[&Names]) -> NameMatch {
    let asked = asked.trim();
    let ways: [&dyn Fn(&Names) -> bool; 4] = [
        &|names| names.name == asked,
        &|names| names.aliases.iter().any(|alias| alias == asked),
        &|names| {
            names
                .all()
                .any(|name| name.trim_end_matches(".gguf").eq_ignore_ascii_case(asked.trim_end_matches(":latest")))
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

/// A name that is less alike than this is no help.
const MIN_SIMILARITY: f64 = 0.4;

/// The model whose name is the most like that, if any is.
pub fn nearest(asked: &str, models: &[&Names]) -> Option<usize> {
    let asked = plain(asked);
    let like = |names: &Names| {
        let of = |name: &str| {
            let name = plain(name);
            // Half a name is what people type.
            let part = asked.len() > 2 && (name.contains(&asked) || asked.contains(&name));
            strsim::normalized_damerau_levenshtein(&name, &asked) + f64::from(u8::from(part))
        };
        names.all().map(of).fold(0.0, f64::max)
    };
    let best = models.iter().map(|names| like(names)).enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    best.filter(|best| best.1 >= MIN_SIMILARITY).map(|best| best.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str, aliases: &[&str]) -> Names {
        Names { name: name.into(), aliases: aliases.iter().map(|&alias| alias.into()).collect() }
    }

    #[test]
    fn a_name_is_found_as_clients_write_it() {
        let all = [
            names("GLM-4.7-Flash-Q4_K_M", &["glm-4.7-flash", "hf:a/GLM-GGUF:Q4_K_M"]),
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
        let all = [names("Qwen3-0.6B-Q8_0", &["qwen3"]), names("demo", &[]), names("Llama-3.2-1B-Q4_0", &[])];
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
