//! Parses names of model files: parts of a split model, suffixes, quantisations.

use crate::repository::ENDING;
use std::collections::HashMap;

/// Returns whether a file is a multimodal projector, which shares the ending of language models.
pub(crate) fn is_projector(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.get(..6)
        .is_some_and(|begins| begins.eq_ignore_ascii_case("mmproj"))
}

/// Maximum files for which unique suffixes are searched; a name that means more of them is not
/// precise enough to be completed.
const MAX_DISTINCT: usize = 1_000;

/// Returns for each file the shortest suffix of its name that is unique, normally the
/// quantisation. Returns the paths if there are too many files.
pub(crate) fn distinct(files: &[String]) -> Vec<String> {
    if files.len() > MAX_DISTINCT {
        return files.to_vec();
    }
    let names: Vec<String> = files
        .iter()
        .map(|file| model(file).to_lowercase())
        .collect();
    // Number of names by suffix, as `ends_in` matches them.
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for name in &names {
        let starts = name.match_indices(['-', '.', '_', '/']);
        for at in starts.map(|(at, _)| at + 1).chain([0]) {
            *counts.entry(&name[at..]).or_default() += 1;
        }
    }
    let distinct = |file: &String| {
        let name = model(file);
        // `_` is no separator: it occurs inside names of quantisations.
        let starts = name
            .rmatch_indices(['-', '.', '/'])
            .map(|(at, _)| at + 1)
            .chain([0]);
        let is_one = |word: &&str| {
            let word = stem(word).unwrap_or(word).to_lowercase();
            counts.get(word.as_str()) == Some(&1)
        };
        starts
            .map(|at| &name[at..])
            .find(is_one)
            .unwrap_or(file)
            .to_owned()
    };
    files.iter().map(distinct).collect()
}

/// Returns a model's path without its `.gguf` ending.
pub(crate) fn stem(path: &str) -> Option<&str> {
    let at = path.len().checked_sub(ENDING.len())?;
    (path.is_char_boundary(at) && path[at..].eq_ignore_ascii_case(ENDING)).then(|| &path[..at])
}

/// Parses the path of a part of a split model, `NAME-00002-of-00003.gguf`.
///
/// Returns the name, the number of the part and the count of parts.
pub(crate) fn split_part(path: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = stem(path)?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |s: &str| (s.len() == 5).then(|| s.parse().ok()).flatten();
    Some((stem, digits(number)?, digits(count)?))
}

/// Returns a path without its ending and, for a part of a split model, without its number.
pub(crate) fn model(path: &str) -> &str {
    split_part(path).map(|p| p.0).or(stem(path)).unwrap_or(path)
}

/// Returns whether `wanted` is a suffix of the model's name that begins at a separator.
pub(crate) fn ends_in(path: &str, wanted: &str) -> bool {
    let name = model(path).to_lowercase();
    let wanted = stem(wanted).unwrap_or(wanted).to_lowercase();
    name.strip_suffix(wanted.as_str())
        .is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_', '/']))
}
