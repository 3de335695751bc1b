//! What the name of a model's file says: whether it is a part, its last words, its quantisation.

use crate::repository::ENDING;

/// Is it what makes words of pictures, beside a model of language? It has the ending of models, and the endings of their names.
pub(crate) fn is_projector(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.get(..6).is_some_and(|begins| begins.eq_ignore_ascii_case("mmproj"))
}

/// Of each of these files the fewest last words of its name that name no other: its quantisation, as a rule.
pub(crate) fn distinct(files: &[String]) -> Vec<String> {
    let distinct = |file: &String| {
        let name = model(file);
        // `_` stands within the names of quantisations.
        let starts = name.rmatch_indices(['-', '.', '/']).map(|(at, _)| at + 1).chain([0]);
        let is_one = |word: &&str| files.iter().filter(|other| ends_in(other, word)).count() == 1;
        starts.map(|at| &name[at..]).find(is_one).unwrap_or(file).to_owned()
    };
    files.iter().map(distinct).collect()
}

/// A model's path without its ending.
pub(crate) fn stem(path: &str) -> Option<&str> {
    let at = path.len().checked_sub(ENDING.len())?;
    (path.is_char_boundary(at) && path[at..].eq_ignore_ascii_case(ENDING)).then(|| &path[..at])
}

/// Of a part of a split model, `NAME-00002-of-00003.gguf`: name, number, and how many there are.
pub(crate) fn part(path: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = stem(path)?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |s: &str| (s.len() == 5).then(|| s.parse().ok()).flatten();
    Some((stem, digits(number)?, digits(count)?))
}

/// A file's path without its ending and, of a part of a split model, its number.
pub(crate) fn model(path: &str) -> &str {
    part(path).map(|p| p.0).or(stem(path)).unwrap_or(path)
}

/// Is `wanted` the last word, or the last few, of the model's name?
pub(crate) fn ends_in(path: &str, wanted: &str) -> bool {
    let name = model(path).to_lowercase();
    let wanted = stem(wanted).unwrap_or(wanted).to_lowercase();
    name.strip_suffix(wanted.as_str()).is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_', '/']))
}
