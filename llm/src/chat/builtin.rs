//! Built-in templates, for files that have none or a broken one.
//!
//! A new one is a file in `templates/` and a line here.

/// Name, the pre-tokenisers it is the default of, and source.
const BUILTIN: &[(&str, &[&str], &str)] = &[
    ("glm4.7", &["glm4"], include_str!("templates/glm4.7.jinja")),
    ("deepseek2", &["deepseek-llm"], include_str!("templates/deepseek2.jinja")),
    ("youtu", &["youtu"], include_str!("templates/youtu.jinja")),
    ("chatml", &[], include_str!("templates/chatml.jinja")),
];

/// All names.
pub fn names() -> Vec<&'static str> {
    BUILTIN.iter().map(|(name, ..)| *name).collect()
}

/// The source of the template called `name`.
pub fn source(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(n, ..)| *n == name).map(|(.., source)| *source)
}

/// The name of the template for models with the pre-tokeniser `pre`: "chatml" where no better one is known.
pub fn for_pre(pre: &str) -> &'static str {
    BUILTIN.iter().find(|(_, pres, _)| pres.contains(&pre)).map_or("chatml", |(name, ..)| name)
}
