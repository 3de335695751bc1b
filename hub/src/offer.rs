//! Candidates of an ambiguous name.

use crate::file_name::distinct;

/// One of several models that a name matches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Shortest unique suffix of its name, normally the quantisation.
    pub word: String,
    /// Path of its file, or of the first part of a split model.
    pub file: String,
    /// Total size of its files in bytes.
    pub bytes: u64,
}

impl Offer {
    /// Creates the candidates from paths and sizes.
    pub(crate) fn all(models: Vec<(String, u64)>) -> Vec<Offer> {
        let files: Vec<String> = models.iter().map(|(file, _)| file.clone()).collect();
        let words = distinct(&files).into_iter();
        words
            .zip(models)
            .map(|(word, (file, bytes))| Offer { word, file, bytes })
            .collect()
    }
}
