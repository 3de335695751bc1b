//! Parses model names: `hf:ORG/REPO[:FILE]`, forms of other programs, URLs and short names.

use crate::error::Error;
use crate::file_name::stem;
use crate::repository::{
    ENDING, Name, Repository, SCHEME, SCHEMES, is_host, is_repository_part, is_safe,
};
use ureq::http::Uri;

/// A short name of a model.
pub struct Short {
    /// Name as typed by the user.
    pub name: &'static str,
    /// Full name, with its quantisation.
    pub stands_for: &'static str,
}

/// Short names, each with a common quantisation; `NAME:FILE` selects another one. Models of at most
/// 2B parameters, which run anywhere, come first.
pub const SHORT_NAMES: &[Short] = &[
    Short {
        name: "smollm2-135m",
        stands_for: "hf:bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M",
    },
    Short {
        name: "smollm2-360m",
        stands_for: "hf:HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:Q8_0",
    },
    Short {
        name: "qwen2.5-0.5b",
        stands_for: "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M",
    },
    Short {
        name: "qwen2.5-coder-0.5b",
        stands_for: "hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M",
    },
    Short {
        name: "qwen3-0.6b",
        stands_for: "hf:Qwen/Qwen3-0.6B-GGUF:Q8_0",
    },
    Short {
        name: "gemma-3-1b",
        stands_for: "hf:ggml-org/gemma-3-1b-it-GGUF:Q4_K_M",
    },
    Short {
        name: "llama-3.2-1b",
        stands_for: "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
    },
    Short {
        name: "smollm2-1.7b",
        stands_for: "hf:HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M",
    },
    Short {
        name: "qwen3-1.7b",
        stands_for: "hf:Qwen/Qwen3-1.7B-GGUF:Q8_0",
    },
    Short {
        name: "youtu-llm-2b",
        stands_for: "hf:tencent/Youtu-LLM-2B-GGUF:Q8_0",
    },
    Short {
        name: "glm-4.7-flash",
        stands_for: "hf:unsloth/GLM-4.7-Flash-GGUF:Q4_K_M",
    },
    Short {
        name: "deepseek-v2-lite",
        stands_for: "hf:mradermacher/DeepSeek-V2-Lite-Chat-GGUF:Q4_K_M",
    },
    Short {
        name: "llama-3.1-8b",
        stands_for: "hf:bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M",
    },
    Short {
        name: "mistral-7b",
        stands_for: "hf:bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M",
    },
    Short {
        name: "ministral-3-8b",
        stands_for: "hf:mistralai/Ministral-3-8B-Instruct-2512-GGUF:Q4_K_M",
    },
    Short {
        name: "phi-4-mini",
        stands_for: "hf:unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M",
    },
    Short {
        name: "qwen2.5-7b",
        stands_for: "hf:bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M",
    },
    Short {
        name: "qwen3-8b",
        stands_for: "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M",
    },
    Short {
        name: "qwen3-30b-a3b",
        stands_for: "hf:Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M",
    },
    Short {
        name: "qwen3.5-9b",
        stands_for: "hf:unsloth/Qwen3.5-9B-GGUF:Q4_K_M",
    },
    Short {
        name: "qwen3.5-35b-a3b",
        stands_for: "hf:unsloth/Qwen3.5-35B-A3B-GGUF:Q4_K_M",
    },
    Short {
        name: "granite-3.3-8b",
        stands_for: "hf:ibm-granite/granite-3.3-8b-instruct-GGUF:Q4_K_M",
    },
    Short {
        name: "olmo-2-7b",
        stands_for: "hf:allenai/OLMo-2-1124-7B-Instruct-GGUF:Q4_K_M",
    },
    Short {
        name: "gemma-2-9b",
        stands_for: "hf:bartowski/gemma-2-9b-it-GGUF:Q4_K_M",
    },
    Short {
        name: "gemma-3-4b",
        stands_for: "hf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M",
    },
    Short {
        name: "gemma-3-12b",
        stands_for: "hf:ggml-org/gemma-3-12b-it-GGUF:Q4_K_M",
    },
    Short {
        name: "gemma-4-e4b",
        stands_for: "hf:ggml-org/gemma-4-E4B-it-GGUF:Q4_K_M",
    },
    Short {
        name: "gemma-4-26b-a4b",
        stands_for: "hf:ggml-org/gemma-4-26B-A4B-it-GGUF:Q4_K_M",
    },
    Short {
        name: "gpt-oss-20b",
        stands_for: "hf:ggml-org/gpt-oss-20b-GGUF:mxfp4",
    },
    Short {
        name: "glm-4.5-air",
        stands_for: "hf:unsloth/GLM-4.5-Air-GGUF:Q4_K_M",
    },
    Short {
        name: "minimax-m2",
        stands_for: "hf:unsloth/MiniMax-M2-GGUF:Q4_K_M",
    },
    Short {
        name: "deepseek-v3.1",
        stands_for: "hf:unsloth/DeepSeek-V3.1-GGUF:Q4_K_M",
    },
    Short {
        name: "kimi-k2",
        stands_for: "hf:unsloth/Kimi-K2-Instruct-GGUF:Q4_K_M",
    },
];

/// Host names of the hub in URLs.
const HOSTS: [&str; 3] = ["huggingface.co", "www.huggingface.co", "hf.co"];
/// Only branch that can be fetched.
const BRANCH: &str = "main";

impl Name {
    /// Parses a name; None if the text has none of the forms.
    ///
    /// The forms are `hf:ORG/REPO[:FILE]`, `ORG/REPO[:FILE]`, `hf.co/ORG/REPO[:FILE]`, the URL of a
    /// page or file of the hub, the URL of a file on another server, and a short name.
    ///
    /// # Errors
    /// [`Error::Name`] for a malformed name, [`Error::Address`] for a URL that does not address
    /// a model's file.
    pub fn parse(text: &str) -> Result<Option<Name>, Error> {
        if let Some(rest) = text.strip_prefix(SCHEME) {
            return Name::parse_hub(text, rest).map(Some);
        }
        let address = SCHEMES
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme)?.strip_prefix("://"));
        let place = address.unwrap_or(text);
        if let Some((host, path)) = place.split_once('/')
            && HOSTS.iter().any(|known| known.eq_ignore_ascii_case(host))
        {
            return Name::at(text, path).map(Some);
        }
        if address.is_some() {
            return Name::parse_address(text).map(Some);
        }
        if is_bare(text) {
            return Name::parse_hub(text, text).map(Some);
        }
        let (short, file) = match text.split_once(':') {
            Some((short, file)) => (short, Some(file)),
            None => (text, None),
        };
        let Some(row) = SHORT_NAMES
            .iter()
            .find(|row| row.name.eq_ignore_ascii_case(short))
        else {
            return Ok(None);
        };
        let mut name = Name::parse_hub(row.stands_for, row.stands_for.trim_start_matches(SCHEME))?;
        if let Some(file) = file {
            name.file = Some(checked(text, file)?);
        }
        Ok(Some(name))
    }

    /// Parses a path of the hub: a repository, or with `resolve` or `blob` a file
    /// of its main branch.
    fn at(text: &str, path: &str) -> Result<Name, Error> {
        let path = path
            .split(['?', '#'])
            .next()
            .unwrap_or_default()
            .trim_end_matches('/');
        let mut parts = path.splitn(5, '/');
        let (owner, name) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        let repository = format!("{owner}/{name}");
        match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => Name::parse_hub(text, &repository),
            (Some("tree"), Some(BRANCH), None) => Name::parse_hub(text, &repository),
            (Some("resolve" | "blob"), Some(BRANCH), Some(file)) => {
                let file = unescaped(file)
                    .ok_or(Error::Name(text.into(), "its file's name is no text"))?;
                Name::parse_hub(text, &format!("{repository}:{file}"))
            }
            (Some("resolve" | "blob" | "tree"), Some(branch), _) if branch != BRANCH => {
                Err(Error::Name(text.into(), "only the branch main is fetched"))
            }
            _ => Err(Error::Name(
                text.into(),
                "it is the address of no repository and of no file",
            )),
        }
    }

    fn parse_hub(text: &str, rest: &str) -> Result<Name, Error> {
        let wrong = |why| Error::Name(text.into(), why);
        let (repository, file) = match rest.split_once(':') {
            Some((repository, file)) => (repository, Some(checked(text, file)?)),
            None => (rest, None),
        };
        let (owner, name) = repository
            .split_once('/')
            .ok_or(wrong("an owner and a repository are needed"))?;
        for part in [owner, name] {
            if !is_repository_part(part) {
                return Err(wrong(
                    "owners and repositories consist of letters, digits, - _ and .",
                ));
            }
        }
        Ok(Name {
            repository: Repository::Hub {
                owner: owner.into(),
                name: name.into(),
            },
            file,
            query: None,
        })
    }

    /// Parses the URL of a file on a plain HTTP server.
    fn parse_address(text: &str) -> Result<Name, Error> {
        let wrong = |why| Error::Address(text.into(), why);
        // The fragment is not part of the request.
        let address = text.split('#').next().unwrap_or_default();
        let address: Uri = address
            .parse()
            .map_err(|_| wrong("other characters than an address has"))?;
        let (Some(scheme), Some(authority)) = (address.scheme_str(), address.authority()) else {
            return Err(wrong("it has no host"));
        };
        if authority.as_str().contains('@') {
            return Err(wrong(
                "a user's name and password do not belong into an address",
            ));
        }
        let usual = if scheme == SCHEMES[0] { 443 } else { 80 };
        let port = authority
            .port_u16()
            .filter(|&port| port != usual)
            .map(|port| format!(":{port}"));
        let host = format!(
            "{}{}",
            authority.host().to_ascii_lowercase(),
            port.unwrap_or_default()
        );
        let is_odd = authority.port_u16().is_none() && authority.as_str() != authority.host();
        if is_odd || !is_host(&host) {
            return Err(wrong("it has no host, or no port, that there can be"));
        }
        // Unescaped by component: an escaped `/` does not separate components.
        let parts: Option<Vec<String>> = address
            .path()
            .trim_start_matches('/')
            .split('/')
            .map(unescaped)
            .collect();
        let parts = parts.filter(|parts| {
            parts
                .iter()
                .all(|part| is_safe(part) && !part.contains('/'))
        });
        let file = parts
            .map(|parts| parts.join("/"))
            .filter(|file| is_safe(file));
        let file = file.ok_or(wrong("its path is not one that a file can have here"))?;
        if stem(&file).is_none() {
            return Err(wrong("its path does not end in .gguf"));
        }
        let repository = Repository::Server {
            scheme: scheme.to_ascii_lowercase(),
            host,
        };
        Ok(Name {
            repository,
            file: Some(file),
            query: address.query().map(str::to_owned),
        })
    }
}

/// Returns whether the text is `ORG/REPO` or `ORG/REPO:FILE` rather than the path of a file.
fn is_bare(text: &str) -> bool {
    let repository = text.split(':').next().unwrap_or_default();
    let is_path = repository.len() == text.len() && text.to_lowercase().ends_with(ENDING);
    let parts = repository.split_once('/');
    !is_path
        && parts.is_some_and(|(owner, name)| is_repository_part(owner) && is_repository_part(name))
}

/// Decodes percent escapes; None if an escape or the UTF-8 is invalid.
fn unescaped(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((&b, tail)) = rest.split_first() {
        if b == b'%' {
            let hex = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(b);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

/// Returns the path if it is relative and stays inside the repository.
fn checked(text: &str, file: &str) -> Result<String, Error> {
    if is_safe(file) {
        Ok(file.into())
    } else {
        Err(Error::Name(
            text.into(),
            "the file is not a path inside a repository",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for text in [
            "hf:a/b",
            "hf:a-1/b_2.c:d/e-00001-of-00002.gguf",
            "hf:a/b:Q4_K_M",
        ] {
            assert_eq!(Name::parse(text).unwrap().unwrap().to_string(), text);
        }
        let none = [
            "model.gguf",
            "synth:glm-4.7-flash:q4_0",
            "glm",
            "",
            "models/m.gguf",
            "./a/b",
            "/a/b",
            "~/b",
            "a/b/c",
            "../b",
            "a/",
            "/",
        ];
        for text in none {
            assert_eq!(Name::parse(text).unwrap(), None, "{text}");
        }
        for text in [
            "hf:",
            "hf:a",
            "hf:a/",
            "hf:/b",
            "hf:a/b/c",
            "hf:../b",
            "hf:a/b:",
            "hf:a/b:../c",
            "hf:a/b:c//d",
            "hf:a b/c",
            "hf:-a/b",
        ] {
            assert!(matches!(Name::parse(text), Err(Error::Name(..))), "{text}");
        }
    }

    #[test]
    fn names_are_taken_as_others_write_them() {
        for (text, name) in [
            ("a/b", "hf:a/b"),
            ("a/b:Q4_K_M", "hf:a/b:Q4_K_M"),
            ("a/b:d/e.gguf", "hf:a/b:d/e.gguf"),
            ("hf.co/a/b", "hf:a/b"),
            ("hf.co/a/b:Q4_K_M", "hf:a/b:Q4_K_M"),
            ("huggingface.co/a/b/", "hf:a/b"),
            ("https://huggingface.co/a/b", "hf:a/b"),
            ("https://HuggingFace.co/a/b/tree/main", "hf:a/b"),
            (
                "https://huggingface.co/a/b/resolve/main/d/e%20f-Q4_0.gguf?download=true",
                "hf:a/b:d/e f-Q4_0.gguf",
            ),
            ("https://hf.co/a/b/blob/main/e.gguf#x", "hf:a/b:e.gguf"),
        ] {
            assert_eq!(
                Name::parse(text).unwrap().unwrap().to_string(),
                name,
                "{text}"
            );
        }
        for text in [
            "hf.co/",
            "hf.co/a",
            "hf.co/../b",
            "https://huggingface.co/a/b/resolve/v2/e.gguf",
            "https://huggingface.co/a/b/resolve/main",
            "https://huggingface.co/a/b/resolve/main/../e.gguf",
            "https://huggingface.co/a/b/resolve/main/%2e%2e/e.gguf",
            "https://huggingface.co/a/b/resolve/main/%ff.gguf",
            "https://huggingface.co/a/b/discussions/1",
        ] {
            assert!(matches!(Name::parse(text), Err(Error::Name(..))), "{text}");
        }
    }

    #[test]
    fn addresses_of_files_elsewhere() {
        for (text, name, query) in [
            (
                "https://Models.example/a/b/resolve/main/e.gguf",
                "https://models.example/a/b/resolve/main/e.gguf",
                None,
            ),
            (
                "https://models.example:443/e%20f.gguf?key=a/b#x",
                "https://models.example/e%20f.gguf",
                Some("key=a/b"),
            ),
            (
                "http://127.0.0.1:8080/m.GGUF",
                "http://127.0.0.1:8080/m.GGUF",
                None,
            ),
            (
                "http://[::1]:80/%e6%a8%a1.gguf?",
                "http://[::1]/%E6%A8%A1.gguf",
                Some(""),
            ),
            (
                "https://huggingface.co.example/b.gguf",
                "https://huggingface.co.example/b.gguf",
                None,
            ),
        ] {
            let found = Name::parse(text).unwrap().unwrap();
            assert_eq!(
                (found.to_string().as_str(), found.query.as_deref()),
                (name, query),
                "{text}"
            );
            let Repository::Server { .. } = &found.repository else {
                panic!("{text}")
            };
            // The displayed name parses to the same file.
            let again = Name::parse(&found.to_string()).unwrap().unwrap();
            assert_eq!(
                (again.repository, again.file),
                (found.repository, found.file)
            );
        }
        for text in [
            "http://e.gguf",
            "https://huggingface.co.example/a/b",
            "https://",
            "https:///m.gguf",
            "https://user:secret@models.example/m.gguf",
            "https://models.example/m.gguf.txt",
            "https://models.example/a/../m.gguf",
            "https://models.example/a/%2e%2e/m.gguf",
            "https://models.example/a%2Fm.gguf",
            "https://models.example/%00m.gguf",
            "https://models.example/.gguf",
            "https://models.example//m.gguf/",
            "https://../m.gguf",
            "https://models.example:99999/m.gguf",
            "https://models.example/a b.gguf",
        ] {
            let error = Name::parse(text).unwrap_err();
            assert!(
                matches!(error, Error::Address(..))
                    && error.hint().unwrap().contains("https://HOST"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn short_names_stand_for_full_ones() {
        for row in SHORT_NAMES {
            let name = Name::parse(row.name).unwrap().unwrap();
            assert_eq!(
                (name.to_string().as_str(), name.file.is_some()),
                (row.stands_for, true)
            );
            assert_eq!(
                Name::parse(&row.name.to_uppercase()).unwrap().unwrap(),
                name
            );
            let other = Name::parse(&format!("{}:OTHER", row.name))
                .unwrap()
                .unwrap();
            assert_eq!(
                (other.repository, other.file.as_deref()),
                (name.repository, Some("OTHER"))
            );
        }
        assert!(Name::parse("glm-4.7-flash:../x").is_err());
    }
}
