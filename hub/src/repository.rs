//! Repositories of the hub and their models, and what the paths in them may look like.

use std::fmt;

/// A repository of the hub.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Repository {
    /// Whose it is.
    pub owner: String,
    /// What it is called.
    pub name: String,
}

/// A model of a repository.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    /// Where it is.
    pub repository: Repository,
    /// Which file: its path, or the end of its name; none where there is only one.
    pub file: Option<String>,
}

/// What names of the hub begin with.
pub(crate) const SCHEME: &str = "hf:";

/// Most bytes of a path in a repository. The hub's own are below 200; a listing of 64 MiB may hold one of any length.
const PATH_BYTES: usize = 1024;
/// Most bytes of a part of a path: file systems allow 255, and the suffixes of [`crate::record`] take 18 of them.
const PART_BYTES: usize = 200;
/// Most parts of a path: each is a folder that is held open on the way down.
pub(crate) const DEPTH: usize = 16;

/// Is that path, which may come from the hub or from the disk, one inside a folder, and does it look like what it is?
pub(crate) fn is_safe(path: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty() && part.len() <= PART_BYTES && !part.starts_with(['.', '-']) && !part.ends_with([' ', '.'])
    };
    path.len() <= PATH_BYTES && path.split('/').count() <= DEPTH && path.split('/').all(|p| plain(p) && is_visible(p))
}

/// Does a text show all its characters, in their order, and none that a path or an address could stumble over?
pub(crate) fn is_visible(text: &str) -> bool {
    // Letters and marks that are printable by their category and draw nothing: fillers, joiners, variation selectors.
    let blank = |c: char| {
        matches!(c, '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}')
            || matches!(c, '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}')
    };
    // `escape_debug` escapes control and format characters, private and unassigned ones, and spaces other than U+0020;
    // quotes too, with nothing but a backslash.
    let printable = || text.escape_debug().filter(|&c| c != '\\').eq(text.chars());
    !text.contains(|c| matches!(c, '\\' | ':' | '/') || blank(c)) && printable()
}

/// Is that what an owner or a repository is called: what the hub allows, and nothing that a path or an address could
/// stumble over?
pub(crate) fn is_repository_part(part: &str) -> bool {
    let plain = part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    plain && !part.is_empty() && part.len() <= PART_BYTES && !part.starts_with(['.', '-'])
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.repository)?;
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

/// What the files of models end in.
pub(crate) const ENDING: &str = ".gguf";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_show_what_they_are() {
        for path in ["m-Q4_K_M.gguf", "big/m (1), v2+x.gguf", "模型-é.gguf", "it's.gguf", "मॉडल.gguf"] {
            assert!(is_safe(path), "{path}");
        }
        for path in [
            "a\u{202e}fugg.b",
            "a\u{2066}b",
            "a\u{200b}b",
            "a\u{200f}b",
            "a\u{feff}b",
            "a\u{ad}b",
            "a\u{3164}b",
            "a\u{e0041}b",
            "a\u{e000}b",
            "a\u{2028}b",
            "a\u{a0}b",
            "a\u{1b}[2Jb",
            "a\u{9b}b",
            "a\nb",
            "a\\b",
            "c:b",
            ".hidden",
            "x/.hidden",
            "-rf",
            "x/..",
            "x//y",
            "x.",
            "",
        ] {
            assert!(!is_safe(path), "{path:?}");
        }
        assert!(is_safe(&"x".repeat(PART_BYTES)) && !is_safe(&"x".repeat(PART_BYTES + 1)));
        assert!(is_safe(&["x"; DEPTH].join("/")) && !is_safe(&["x"; DEPTH + 1].join("/")));
        assert!(!is_safe(&["xxxxxxxxx"; 120].join("/")));
    }
}
