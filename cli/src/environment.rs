//! Environment variables, for `--help` and the manual pages.

/// Name and description of each variable.
pub const VARIABLES: &[(&str, &str)] = &[
    (
        "GRISTMILL_CACHE",
        "kernel cache folder [default: gristmill in $XDG_CACHE_HOME or ~/.cache]",
    ),
    (
        "GRISTMILL_CACHE_LIMIT",
        "maximum size of that folder in MB [default: 512]",
    ),
    (
        "GRISTMILL_MODELS",
        "models [default: gristmill/models in $XDG_DATA_HOME or ~/.local/share]",
    ),
    (
        "GRISTMILL_API_KEY",
        "API key of `serve`, unless --api-key is given",
    ),
    ("GRISTMILL_PIN", "1 pins each CPU thread to a core"),
    ("CC", "the C compiler of the cpu device [default: cc]"),
    (
        "HF_ENDPOINT",
        "URL of another hub [default: https://huggingface.co]",
    ),
    (
        "GRISTMILL_ALLOW_HTTP",
        "1 allows downloads over http:// from other machines",
    ),
    (
        "HF_TOKEN",
        "access token for private and gated hub repositories",
    ),
];

/// Heading of the section in the help.
pub const HEADING: &str = "Environment:";

/// The section of the help.
pub fn text() -> String {
    let lines = VARIABLES
        .iter()
        .map(|(name, about)| format!("\n  {name:<22} {about}"));
    std::iter::once(HEADING.to_owned()).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_has_all_of_them() {
        let page = include_str!("../../docs/environment.md");
        let missing: Vec<_> = super::VARIABLES
            .iter()
            .filter(|row| !page.contains(&format!("| `{}` |", row.0)))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
