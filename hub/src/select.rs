//! Which files a name means, among those that there are.

use crate::error::Error;
use crate::repository::ENDING;
use crate::repository::Name;

/// A model among the files of a repository: one file, or the parts of a split one in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice<'a> {
    /// Paths.
    pub files: Vec<&'a str>,
}

/// The model that `name` means among the files at `paths`.
///
/// # Errors
/// When there is none, or more than one.
pub fn select<'a>(name: &Name, paths: &[&'a str]) -> Result<Choice<'a>, Error> {
    let models = models(paths);
    let found: Vec<&Choice> = match &name.file {
        None => models.iter().collect(),
        Some(wanted) => {
            let exact: Vec<&Choice> = models.iter().filter(|m| m.files.contains(&wanted.as_str())).collect();
            if exact.is_empty() { models.iter().filter(|m| ends_in(m.files[0], wanted)).collect() } else { exact }
        }
    };
    let names = |models: &[&Choice]| models.iter().map(|m| m.files[0].to_owned()).collect::<Vec<_>>();
    let repository = name.repository.clone();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let wanted = name.file.clone().unwrap_or_else(|| format!("file that ends in {ENDING}"));
            Err(Error::NoFile { repository, wanted, files: names(&models.iter().collect::<Vec<_>>()) })
        }
        several => Err(Error::Several { repository, files: names(several) }),
    }
}

/// The models among files, sorted by path.
pub fn models<'a>(paths: &[&'a str]) -> Vec<Choice<'a>> {
    let mut sorted: Vec<&str> = paths.iter().copied().filter(|p| stem(p).is_some()).collect();
    sorted.sort_unstable();
    let mut out: Vec<Choice> = Vec::new();
    for path in &sorted {
        match part(path) {
            None => out.push(Choice { files: vec![*path] }),
            // A split model with a part missing is none.
            Some((stem, 1, count)) => {
                let files: Vec<&str> =
                    sorted.iter().copied().filter(|p| part(p).is_some_and(|q| q.0 == stem && q.2 == count)).collect();
                if files.len() == count {
                    out.push(Choice { files });
                }
            }
            Some(_) => {}
        }
    }
    out
}

/// A model's path without its ending.
fn stem(path: &str) -> Option<&str> {
    let at = path.len().checked_sub(ENDING.len())?;
    (path.is_char_boundary(at) && path[at..].eq_ignore_ascii_case(ENDING)).then(|| &path[..at])
}

/// Of a part of a split model, `NAME-00002-of-00003.gguf`: name, number, and how many there are.
fn part(path: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = stem(path)?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |s: &str| (s.len() == 5).then(|| s.parse().ok()).flatten();
    Some((stem, digits(number)?, digits(count)?))
}

/// A file's path without its ending and, of a part of a split model, its number.
pub fn model(path: &str) -> &str {
    part(path).map(|p| p.0).or(stem(path)).unwrap_or(path)
}

/// Is `wanted` the last word, or the last few, of the model's name?
pub fn ends_in(path: &str, wanted: &str) -> bool {
    let name = model(path).to_lowercase();
    let wanted = stem(wanted).unwrap_or(wanted).to_lowercase();
    name.strip_suffix(wanted.as_str()).is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_', '/']))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &[&str] = &[
        "README.md",
        "m-Q4_K_M.gguf",
        "m-Q4_K_S.gguf",
        "m.IQ4_K_M.gguf",
        "big/m-BF16-00002-of-00002.gguf",
        "big/m-BF16-00001-of-00002.gguf",
        "cut-00001-of-00003.gguf",
        "cut-00003-of-00003.gguf",
    ];

    fn found(file: Option<&str>, files: &[&'static str]) -> Result<Vec<&'static str>, Error> {
        let name = Name { file: file.map(str::to_owned), ..Name::parse("hf:a/b").unwrap().unwrap() };
        select(&name, files).map(|c| c.files)
    }

    #[test]
    fn the_end_of_a_name_will_do() {
        for wanted in ["m-Q4_K_M.gguf", "m-q4_k_m", "Q4_K_M", "q4_k_m.gguf"] {
            assert_eq!(found(Some(wanted), FILES).unwrap(), ["m-Q4_K_M.gguf"], "{wanted}");
        }
        let parts = ["big/m-BF16-00001-of-00002.gguf", "big/m-BF16-00002-of-00002.gguf"];
        for wanted in ["bf16", "m-bf16", parts[0], parts[1]] {
            assert_eq!(found(Some(wanted), FILES).unwrap(), parts, "{wanted}");
        }
    }

    #[test]
    fn what_is_not_there_and_what_is_there_twice() {
        for wanted in ["K_N", "4_K_M", "README.md", "cut", "Q4_K"] {
            let error = found(Some(wanted), FILES).unwrap_err();
            assert!(matches!(&error, Error::NoFile { files, .. } if files.len() == 4), "{wanted}: {error}");
        }
        assert!(matches!(found(None, FILES).unwrap_err(), Error::Several { files, .. } if files.len() == 4));
        assert!(matches!(found(Some("x"), &["a-x.gguf", "b-x.gguf"]).unwrap_err(), Error::Several { .. }));
        assert_eq!(found(None, &["one.GGUF", "x.txt"]).unwrap(), ["one.GGUF"]);
        assert!(found(None, &[]).unwrap_err().hint().unwrap().contains("no .gguf"));
    }
}
