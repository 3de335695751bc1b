//! Where models come from, repositories of the hub and other servers, and what the paths there may look like.

use std::fmt;

/// Where models come from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Repository {
    /// A repository of the hub.
    Hub {
        /// Whose it is.
        owner: String,
        /// What it is called.
        name: String,
    },
    /// A server that is no hub: it has no listing, and no checksums.
    Server {
        /// `https` or `http`.
        scheme: String,
        /// Its name or number, and `:PORT` where that is not the scheme's own.
        host: String,
    },
}

/// A model of a repository.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    /// Where it is.
    pub repository: Repository,
    /// Which file: its path, or the end of its name; none where there is only one. Of a server always the path.
    pub file: Option<String>,
    /// What follows `?` in the address of a server's file: sent there, and neither kept nor shown, since it may be a key.
    pub query: Option<String>,
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

/// What stands behind a scheme in the store's name for it, and in a host's for the colons: neither the hub's names nor
/// hosts have it, and every file system does.
const MARK: char = '+';
/// The schemes of addresses.
pub(crate) const SCHEMES: [&str; 2] = ["https", "http"];

/// Does the store have servers of an address's scheme in a folder of that name?
pub(crate) fn is_scheme_folder(name: &str) -> bool {
    name.strip_suffix(MARK).is_some_and(|scheme| SCHEMES.contains(&scheme))
}

/// Is that a host, as an address has it, with its port: `models.example`, `127.0.0.1:8080`, `[::1]:80`?
pub(crate) fn is_host(host: &str) -> bool {
    let plain = host.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.:[]".contains(&b));
    plain && !host.is_empty() && host.len() <= PART_BYTES && !host.starts_with(['.', '-', ':'])
}

impl Repository {
    /// The two folders of the store that its files lie in.
    pub(crate) fn folders(&self) -> [String; 2] {
        match self {
            Repository::Hub { owner, name } => [owner.clone(), name.clone()],
            Repository::Server { scheme, host } => [format!("{scheme}{MARK}"), host.replace(':', &MARK.to_string())],
        }
    }
    /// That whose files lie in those folders; none if they are nobody's.
    pub(crate) fn of_folders(outer: &str, inner: &str) -> Option<Repository> {
        if is_scheme_folder(outer) {
            let host = inner.replace(MARK, ":");
            let scheme = outer.trim_end_matches(MARK).to_owned();
            return (is_host(&host) && !inner.contains(':')).then_some(Repository::Server { scheme, host });
        }
        let hub = is_repository_part(outer) && is_repository_part(inner);
        hub.then(|| Repository::Hub { owner: outer.into(), name: inner.into() })
    }
}

/// Part of a path as it stands in an address.
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

/// A path as it stands in an address.
pub(crate) fn escaped_path(path: &str) -> String {
    path.split('/').map(escaped).collect::<Vec<_>>().join("/")
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

/// What the files of models end in.
pub(crate) const ENDING: &str = ".gguf";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_one_repository() {
        let server = |scheme: &str, host: &str| Repository::Server { scheme: scheme.into(), host: host.into() };
        for (repository, folders) in [
            (Repository::Hub { owner: "https".into(), name: "a.b".into() }, ["https", "a.b"]),
            (server("https", "a.b"), ["https+", "a.b"]),
            (server("http", "127.0.0.1:80"), ["http+", "127.0.0.1+80"]),
            (server("http", "[::1]:8080"), ["http+", "[++1]+8080"]),
        ] {
            assert_eq!(repository.folders(), folders);
            assert_eq!(Repository::of_folders(folders[0], folders[1]), Some(repository));
        }
        for (outer, inner) in
            [("https+", ".."), ("ftp+", "a"), ("a", "b+80"), ("https+", "A"), ("https+", "+80"), ("http+", "a:80")]
        {
            assert_eq!(Repository::of_folders(outer, inner), None, "{outer} {inner}");
        }
    }

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
