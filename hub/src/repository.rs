//! Origins of models (hub repositories and HTTP servers) and the check of their paths.

use std::fmt;

/// Origin of a model.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Repository {
    /// A repository of the hub.
    Hub {
        /// User or organisation that owns it.
        owner: String,
        /// Name of the repository, without the owner.
        name: String,
    },
    /// A plain HTTP server: it has neither listings nor checksums.
    Server {
        /// `https` or `http`, in lower case.
        scheme: String,
        /// Host name or address in lower case, with `:PORT` unless it is the scheme's default.
        host: String,
    },
}

/// Name of a model: a repository and usually a file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    /// Origin of the model.
    pub repository: Repository,
    /// Path of the file or a suffix of its name; None if the repository has one model.
    ///
    /// For an HTTP server it is always the path.
    pub file: Option<String>,
    /// Query of a server's URL: sent in requests, but neither stored nor shown, as it
    /// may hold a key.
    pub query: Option<String>,
}

/// Prefix of hub names.
pub(crate) const SCHEME: &str = "hf:";

/// Maximum bytes of a path in a repository.
///
/// The hub's own paths are below 200; a listing of 64 MiB could hold a path of any length.
const PATH_BYTES: usize = 1024;
/// Maximum bytes of a path component: file systems allow 255, suffixes of
/// [`crate::record`] take 18.
const PART_BYTES: usize = 200;
/// Maximum components of a path: each is a folder held open during the descent.
pub(crate) const DEPTH: usize = 16;

/// Returns whether an untrusted path stays inside its folder and is displayed as it is.
pub(crate) fn is_safe(path: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && part.len() <= PART_BYTES
            && !part.starts_with(['.', '-'])
            && !part.ends_with([' ', '.'])
    };
    path.len() <= PATH_BYTES
        && path.split('/').count() <= DEPTH
        && path.split('/').all(|p| plain(p) && is_visible(p))
}

/// Marks the folder of a scheme in the store, and replaces colons of hosts.
///
/// It occurs neither in names of the hub nor in hosts, and every file system allows it.
const MARK: char = '+';
/// Schemes of URLs that are accepted.
pub(crate) const SCHEMES: [&str; 2] = ["https", "http"];

/// Returns whether the name is that of a folder of servers in the store.
pub(crate) fn is_scheme_folder(name: &str) -> bool {
    name.strip_suffix(MARK)
        .is_some_and(|scheme| SCHEMES.contains(&scheme))
}

/// Returns whether the text is a host with an optional port: `models.example`, `[::1]:80`.
pub(crate) fn is_host(host: &str) -> bool {
    let plain = host
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.:[]".contains(&b));
    plain && !host.is_empty() && host.len() <= PART_BYTES && !host.starts_with(['.', '-', ':'])
}

impl Repository {
    /// Returns the two nested folders of the store that contain its files.
    pub(crate) fn folders(&self) -> [String; 2] {
        match self {
            Repository::Hub { owner, name } => [owner.clone(), name.clone()],
            Repository::Server { scheme, host } => [
                format!("{scheme}{MARK}"),
                host.replace(':', &MARK.to_string()),
            ],
        }
    }
    /// Returns the repository of two nested folders; None if they are not a repository's.
    pub(crate) fn from_folders(outer: &str, inner: &str) -> Option<Repository> {
        if is_scheme_folder(outer) {
            let host = inner.replace(MARK, ":");
            let scheme = outer.trim_end_matches(MARK).to_owned();
            return (is_host(&host) && !inner.contains(':'))
                .then_some(Repository::Server { scheme, host });
        }
        let hub = is_repository_part(outer) && is_repository_part(inner);
        hub.then(|| Repository::Hub {
            owner: outer.into(),
            name: inner.into(),
        })
    }
}

/// Percent-encodes a component of a path.
pub(crate) fn escaped(part: &str) -> String {
    let mut out = String::new();
    for b in part.bytes() {
        match b {
            b if b.is_ascii_alphanumeric() || b"-_.~".contains(&b) => out.push(b as char),
            b => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

/// Percent-encodes a path, without its slashes.
pub(crate) fn escaped_path(path: &str) -> String {
    path.split('/').map(escaped).collect::<Vec<_>>().join("/")
}

/// Returns whether all characters of a text are visible, in order, and safe in paths and URLs.
pub(crate) fn is_visible(text: &str) -> bool {
    // Printable by category, but without a glyph: fillers, joiners, variation selectors.
    let blank = |c: char| {
        matches!(
            c,
            '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        ) || matches!(c, '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}')
    };
    // `escape_debug` escapes control and format characters, private and unassigned ones, and spaces
    // other than U+0020; also quotes, for which it only adds a backslash.
    let printable = || text.escape_debug().filter(|&c| c != '\\').eq(text.chars());
    !text.contains(|c| matches!(c, '\\' | ':' | '/') || blank(c)) && printable()
}

/// Returns whether the text is a valid name of an owner or repository of the hub.
///
/// The check is as strict as the hub's and excludes names that are special in paths or URLs.
pub(crate) fn is_repository_part(part: &str) -> bool {
    let plain = part
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    plain && !part.is_empty() && part.len() <= PART_BYTES && !part.starts_with(['.', '-'])
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Repository::Hub { owner, name } => write!(f, "{owner}/{name}"),
            Repository::Server { scheme, host } => write!(f, "{scheme}://{host}"),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut file = self.file.iter();
        match &self.repository {
            Repository::Hub { .. } => {
                write!(f, "{SCHEME}{}", self.repository)?;
                file.try_for_each(|file| write!(f, ":{file}"))
            }
            Repository::Server { .. } => {
                write!(f, "{}", self.repository)?;
                file.try_for_each(|file| write!(f, "/{}", escaped_path(file)))
            }
        }
    }
}

/// File name extension of models.
pub(crate) const ENDING: &str = ".gguf";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_one_repository() {
        let server = |scheme: &str, host: &str| Repository::Server {
            scheme: scheme.into(),
            host: host.into(),
        };
        for (repository, folders) in [
            (
                Repository::Hub {
                    owner: "https".into(),
                    name: "a.b".into(),
                },
                ["https", "a.b"],
            ),
            (server("https", "a.b"), ["https+", "a.b"]),
            (server("http", "127.0.0.1:80"), ["http+", "127.0.0.1+80"]),
            (server("http", "[::1]:8080"), ["http+", "[++1]+8080"]),
        ] {
            assert_eq!(repository.folders(), folders);
            assert_eq!(
                Repository::from_folders(folders[0], folders[1]),
                Some(repository)
            );
        }
        for (outer, inner) in [
            ("https+", ".."),
            ("ftp+", "a"),
            ("a", "b+80"),
            ("https+", "A"),
            ("https+", "+80"),
            ("http+", "a:80"),
        ] {
            assert_eq!(
                Repository::from_folders(outer, inner),
                None,
                "{outer} {inner}"
            );
        }
    }

    #[test]
    fn names_show_what_they_are() {
        for path in [
            "m-Q4_K_M.gguf",
            "big/m (1), v2+x.gguf",
            "模型-é.gguf",
            "it's.gguf",
            "मॉडल.gguf",
        ] {
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
