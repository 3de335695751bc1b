//! Built-in chat templates, for files with no template or a broken one.
//!
//! To add one, add a file to `templates/` and a row to the table.

/// Name, pre-tokenisers that use the template by default, and source.
const BUILTIN: &[(&str, &[&str], &str)] = &[
    ("glm4.7", &["glm4"], include_str!("templates/glm4.7.jinja")),
    (
        "deepseek2",
        &["deepseek-llm"],
        include_str!("templates/deepseek2.jinja"),
    ),
    ("youtu", &["youtu"], include_str!("templates/youtu.jinja")),
    ("chatml", &[], include_str!("templates/chatml.jinja")),
];

/// Returns the names of all built-in templates.
pub fn names() -> Vec<&'static str> {
    BUILTIN.iter().map(|(name, ..)| *name).collect()
}

/// Returns the source of the template `name`; `None` if there is none.
pub fn source(name: &str) -> Option<&'static str> {
    BUILTIN
        .iter()
        .find(|(n, ..)| *n == name)
        .map(|(.., source)| *source)
}

/// Returns the name of the default template for the pre-tokeniser `pre`; "chatml" if no
/// other template is known.
pub fn for_pre(pre: &str) -> &'static str {
    BUILTIN
        .iter()
        .find(|(_, pres, _)| pres.contains(&pre))
        .map_or("chatml", |(name, ..)| name)
}
