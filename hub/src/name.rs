//! Names of models: `hf:ORG/REPO`, `hf:ORG/REPO:FILE`, and short ones.

use crate::error::Error;
use crate::repository::{Name, Repository, SCHEME, is_repository_part, is_safe};

/// A short name.
pub struct Short {
    /// What one types.
    pub name: &'static str,
    /// What it stands for.
    pub stands_for: &'static str,
}

/// The short names. They stand for the quantisation that most people want; `NAME:FILE` asks for another.
pub const SHORT: &[Short] = &[
    Short { name: "glm-4.7-flash", stands_for: "hf:unsloth/GLM-4.7-Flash-GGUF:Q4_K_M" },
    Short { name: "deepseek-v2-lite", stands_for: "hf:mradermacher/DeepSeek-V2-Lite-Chat-GGUF:Q4_K_M" },
    Short { name: "youtu-llm-2b", stands_for: "hf:tencent/Youtu-LLM-2B-GGUF:Q8_0" },
];

impl Name {
    /// What `text` names; none if it has neither the form of such a name nor is a short one.
    ///
    /// # Errors
    /// [`Error::Name`] when it begins like one and is not.
    pub fn parse(text: &str) -> Result<Option<Name>, Error> {
        if let Some(rest) = text.strip_prefix(SCHEME) {
            return Name::of(text, rest).map(Some);
        }
        let (short, file) = match text.split_once(':') {
            Some((short, file)) => (short, Some(file)),
            None => (text, None),
        };
        let Some(row) = SHORT.iter().find(|row| row.name.eq_ignore_ascii_case(short)) else { return Ok(None) };
        let mut name = Name::of(row.stands_for, row.stands_for.trim_start_matches(SCHEME))?;
        if let Some(file) = file {
            name.file = Some(checked(text, file)?);
        }
        Ok(Some(name))
    }

    fn of(text: &str, rest: &str) -> Result<Name, Error> {
        let wrong = |why| Error::Name(text.into(), why);
        let (repository, file) = match rest.split_once(':') {
            Some((repository, file)) => (repository, Some(checked(text, file)?)),
            None => (rest, None),
        };
        let (owner, name) = repository.split_once('/').ok_or(wrong("an owner and a repository are needed"))?;
        for part in [owner, name] {
            if !is_repository_part(part) {
                return Err(wrong("owners and repositories consist of letters, digits, - _ and ."));
            }
        }
        Ok(Name { repository: Repository { owner: owner.into(), name: name.into() }, file })
    }
}

/// A file's path that stays where it belongs.
fn checked(text: &str, file: &str) -> Result<String, Error> {
    if is_safe(file) {
        Ok(file.into())
    } else {
        Err(Error::Name(text.into(), "the file is not a path inside a repository"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in ["hf:a/b", "hf:a-1/b_2.c:d/e-00001-of-00002.gguf", "hf:a/b:Q4_K_M"] {
            assert_eq!(Name::parse(text).unwrap().unwrap().to_string(), text);
        }
        for text in ["a/b", "model.gguf", "synth:glm-4.7-flash:q4_0", "glm", ""] {
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
    fn short_names_stand_for_full_ones() {
        for row in SHORT {
            let name = Name::parse(row.name).unwrap().unwrap();
            assert_eq!((name.to_string().as_str(), name.file.is_some()), (row.stands_for, true));
            assert_eq!(Name::parse(&row.name.to_uppercase()).unwrap().unwrap(), name);
            let other = Name::parse(&format!("{}:OTHER", row.name)).unwrap().unwrap();
            assert_eq!((other.repository, other.file.as_deref()), (name.repository, Some("OTHER")));
        }
        assert!(Name::parse("glm-4.7-flash:../x").is_err());
    }
}
