//! Selects the files of a model by name.

use crate::error::Error;
use crate::file_name::{ends_in, is_projector, split_part, stem};
use crate::offer::Offer;
use crate::repository::{ENDING, Name, Repository};
use std::collections::HashMap;

/// Files of one model: one file, or the parts of a split model in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SelectedFiles<'a> {
    /// Paths in the repository.
    pub files: Vec<&'a str>,
}

/// Selects the model that `name` means among the files at `paths`; `size` returns bytes by path.
///
/// # Errors
/// When no model or more than one matches.
pub fn select<'a>(
    name: &Name,
    paths: &[&'a str],
    size: &dyn Fn(&str) -> u64,
) -> Result<SelectedFiles<'a>, Error> {
    let all = models(paths);
    let exact = |wanted: &String| all.iter().find(|m| m.files.contains(&wanted.as_str()));
    if let Some(exact) = name.file.as_ref().and_then(exact) {
        return Ok(exact.clone());
    }
    let models: Vec<SelectedFiles> = all
        .into_iter()
        .filter(|m| !is_projector(m.files[0]))
        .collect();
    // The path of a URL is matched exactly, never as a suffix.
    let is_whole = matches!(name.repository, Repository::Server { .. });
    let wanted = |m: &&SelectedFiles| {
        name.file
            .as_ref()
            .is_none_or(|wanted| !is_whole && ends_in(m.files[0], wanted))
    };
    let found: Vec<&SelectedFiles> = models.iter().filter(wanted).collect();
    let names = |models: &[&SelectedFiles]| {
        models
            .iter()
            .map(|m| m.files[0].to_owned())
            .collect::<Vec<_>>()
    };
    let repository = name.repository.clone();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let wanted = name
                .file
                .clone()
                .unwrap_or_else(|| format!("file that ends in {ENDING}"));
            Err(Error::NoFile {
                repository,
                wanted,
                files: names(&models.iter().collect::<Vec<_>>()),
            })
        }
        several => {
            let bytes = |m: &&SelectedFiles| {
                (
                    m.files[0].to_owned(),
                    m.files.iter().map(|file| size(file)).sum(),
                )
            };
            Err(Error::Several {
                repository,
                models: Offer::all(several.iter().map(bytes).collect()),
            })
        }
    }
}

/// Groups paths into models, sorted by path; incomplete split models are left out.
pub fn models<'a>(paths: &[&'a str]) -> Vec<SelectedFiles<'a>> {
    let mut sorted: Vec<&str> = paths
        .iter()
        .copied()
        .filter(|p| stem(p).is_some())
        .collect();
    sorted.sort_unstable();
    let mut split: HashMap<(&str, usize), Vec<&str>> = HashMap::new();
    for &path in &sorted {
        if let Some((stem, _, count)) = split_part(path) {
            split.entry((stem, count)).or_default().push(path);
        }
    }
    let mut out: Vec<SelectedFiles> = Vec::new();
    for &path in &sorted {
        match split_part(path) {
            None => out.push(SelectedFiles { files: vec![path] }),
            // A split model with a missing part is left out.
            Some((stem, 1, count)) => {
                let files = split.remove(&(stem, count)).unwrap_or_default();
                if files.len() == count {
                    out.push(SelectedFiles { files });
                }
            }
            Some(_) => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_name::distinct;

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
        let name = Name {
            file: file.map(str::to_owned),
            ..Name::parse("hf:a/b").unwrap().unwrap()
        };
        select(&name, files, &|_| 0).map(|c| c.files)
    }

    #[test]
    fn the_end_of_a_name_will_do() {
        for wanted in ["m-Q4_K_M.gguf", "m-q4_k_m", "Q4_K_M", "q4_k_m.gguf"] {
            assert_eq!(
                found(Some(wanted), FILES).unwrap(),
                ["m-Q4_K_M.gguf"],
                "{wanted}"
            );
        }
        let parts = [
            "big/m-BF16-00001-of-00002.gguf",
            "big/m-BF16-00002-of-00002.gguf",
        ];
        for wanted in ["bf16", "m-bf16", parts[0], parts[1]] {
            assert_eq!(found(Some(wanted), FILES).unwrap(), parts, "{wanted}");
        }
    }

    /// Each part searched among all paths would take minutes.
    #[test]
    fn many_split_models_are_grouped_at_once() {
        let parts = |model| (1..=2).map(move |part| format!("m{model}-{part:05}-of-00002.gguf"));
        let paths: Vec<String> = (0..60_000).flat_map(parts).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        assert_eq!(models(&paths).len(), 60_000);
    }

    #[test]
    fn a_choice_is_of_quantisations() {
        let files = [
            "m-2b-Q4_K_M.gguf",
            "m-2b.Q8_0.gguf",
            "m-2b-UD-Q4_K_M.gguf",
            "big/m-BF16-00001-of-00002.gguf",
        ];
        let files = files.map(str::to_owned);
        let words = distinct(&files);
        assert_eq!(words, ["2b-Q4_K_M", "Q8_0", "UD-Q4_K_M", "BF16"]);
        let repository = Name::parse("hf:a/b").unwrap().unwrap().repository;
        let sized = files
            .iter()
            .zip([1_234_000_000, 2_000_000, 5, 7])
            .map(|(file, bytes)| (file.clone(), bytes));
        let error = Error::Several {
            repository,
            models: Offer::all(sized.collect()),
        };
        let hint = error.hint().unwrap();
        assert!(
            hint.contains("hf:a/b:UD-Q4_K_M for example, of 2b-Q4_K_M (1.23 GB), Q8_0 (2.0 MB), "),
            "{hint}"
        );
        // Each suffix selects its file.
        for (file, word) in files.iter().zip(&words) {
            let name = Name {
                file: Some(word.clone()),
                ..Name::parse("hf:a/b").unwrap().unwrap()
            };
            let paths = ["big/m-BF16-00002-of-00002.gguf"]
                .into_iter()
                .chain(files.iter().map(String::as_str));
            assert_eq!(
                select(&name, &paths.collect::<Vec<_>>(), &|_| 0)
                    .unwrap()
                    .files[0],
                file
            );
        }
    }

    #[test]
    fn missing_and_ambiguous_files_are_errors() {
        for wanted in ["K_N", "4_K_M", "README.md", "cut", "Q4_K"] {
            let error = found(Some(wanted), FILES).unwrap_err();
            assert!(
                matches!(&error, Error::NoFile { files, .. } if files.len() == 4),
                "{wanted}: {error}"
            );
        }
        assert!(
            matches!(found(None, FILES).unwrap_err(), Error::Several { models, .. } if models.len() == 4)
        );
        assert!(matches!(
            found(Some("x"), &["a-x.gguf", "b-x.gguf"]).unwrap_err(),
            Error::Several { .. }
        ));
        assert_eq!(found(None, &["one.GGUF", "x.txt"]).unwrap(), ["one.GGUF"]);
        // A multimodal projector is selected only by its whole name.
        let files = &["m-Q4_0.gguf", "mmproj-F16.gguf", "x/MMPROJ-m-Q4_0.gguf"];
        assert_eq!(found(None, files).unwrap(), ["m-Q4_0.gguf"]);
        assert_eq!(found(Some("q4_0"), files).unwrap(), ["m-Q4_0.gguf"]);
        assert!(found(Some("F16"), files).is_err());
        assert_eq!(
            found(Some("mmproj-F16.gguf"), files).unwrap(),
            ["mmproj-F16.gguf"]
        );
        assert!(
            found(None, &[])
                .unwrap_err()
                .hint()
                .unwrap()
                .contains("no .gguf")
        );
    }
}
