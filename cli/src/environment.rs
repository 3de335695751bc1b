//! The variables of the environment that users may set: what `--help` and the manual say of them.

/// Each, and what it is for.
pub const VARIABLES: &[(&str, &str)] = &[
    (
        "GRISTMILL_CACHE",
        "folder of compiled kernels and of what `tune` found [default: gristmill in $XDG_CACHE_HOME or ~/.cache]",
    ),
    ("GRISTMILL_CACHE_LIMIT", "most MB of that folder [default: 512]"),
    ("GRISTMILL_MODELS", "folder of fetched models [default: gristmill/models in $XDG_DATA_HOME or ~/.local/share]"),
    ("GRISTMILL_API_KEY", "what clients of `serve` must send, unless --api-key says"),
    ("GRISTMILL_PIN", "1 keeps each worker of the cpu device on a core of its own"),
    ("CC", "the C compiler of the cpu device [default: cc]"),
    ("HF_ENDPOINT", "another hub that models are fetched from"),
    ("GRISTMILL_ALLOW_HTTP", "1 fetches models from http:// addresses of other machines too"),
    ("HF_TOKEN", "a token for private and gated repositories of the hub"),
];

/// What that part of the help begins with.
pub const HEADING: &str = "Environment:";

/// It, as text.
pub fn text() -> String {
    let lines = VARIABLES.iter().map(|(name, about)| format!("\n  {name:<22} {about}"));
    std::iter::once(HEADING.to_owned()).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_has_all_of_them() {
        let page = include_str!("../../docs/environment.md");
        let missing: Vec<_> =
            super::VARIABLES.iter().filter(|row| !page.contains(&format!("| `{}` |", row.0))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
