//! Models to choose among.

use crate::file_name::distinct;

/// One of several models that a name fits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The fewest last words of its name that name no other: its quantisation, as a rule.
    pub word: String,
    /// Its file, or the first of them.
    pub file: String,
    /// Bytes of its files together.
    pub bytes: u64,
}

impl Offer {
    /// Those models, each with its bytes.
    pub(crate) fn all(models: Vec<(String, u64)>) -> Vec<Offer> {
        let files: Vec<String> = models.iter().map(|(file, _)| file.clone()).collect();
        let words = distinct(&files).into_iter();
        words.zip(models).map(|(word, (file, bytes))| Offer { word, file, bytes }).collect()
    }
}
