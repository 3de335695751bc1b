//! Kernel texts independent of names, and the libraries compiled from them.

use gristmill_runtime::Error;
use gristmill_runtime::store::Key;
use gristmill_uop::program::Program;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A kernel's text with its name factored out.
///
/// Programs of different schedules may have equal text under different names, or different text
/// under the same name.
pub struct KernelText {
    /// Hash of the text without the name.
    pub key: Key,
    /// Name of its function, derived from the hash.
    pub symbol: String,
    /// Text that uses `symbol` as the name.
    pub source: String,
    /// Name in one of the programs, for messages.
    pub name: String,
}

impl KernelText {
    /// Creates the text of a program.
    pub fn from_program(program: &Program) -> KernelText {
        let key = Key::from_parts([rename(&program.source, &program.name, "KERNEL")]);
        let symbol = format!("k_{}", &key.hex()[..24]);
        KernelText {
            source: rename(&program.source, &program.name, &symbol),
            key,
            symbol,
            name: program.name.clone(),
        }
    }
    /// Creates the texts of all programs; a program without source text is an error.
    pub fn all(programs: &[Program]) -> Result<Vec<KernelText>, Error> {
        match programs.iter().find(|p| p.source.is_empty()) {
            Some(empty) => Err(Error::invalid(&empty.name, "has no source text")),
            None => Ok(programs.iter().map(KernelText::from_program).collect()),
        }
    }
    /// Replaces the symbol in a compiler's message by the kernel's name.
    pub fn with_name(&self, error: Error) -> Error {
        match error {
            Error::Compile { message, .. } => Error::Compile {
                kernel: self.name.clone(),
                message: message.replace(&self.symbol, &self.name),
            },
            other => other,
        }
    }
}

/// Libraries in use, by kernel, so that schedules share compiled kernels.
pub struct Libraries<L>(Mutex<HashMap<Key, Weak<L>>>);

impl<L> Default for Libraries<L> {
    fn default() -> Libraries<L> {
        Libraries(Mutex::default())
    }
}

impl<L> Libraries<L> {
    /// Returns the loaded libraries of these texts, and the texts without one, unique and by key.
    pub fn find<'a>(&self, texts: &'a [KernelText]) -> (HashMap<Key, Arc<L>>, Vec<&'a KernelText>) {
        let loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = HashMap::new();
        let mut missing: Vec<&KernelText> = Vec::new();
        for text in texts {
            match loaded.get(&text.key).and_then(Weak::upgrade) {
                Some(library) => drop(found.insert(text.key, library)),
                None => missing.push(text),
            }
        }
        missing.sort_by_key(|t| t.key);
        missing.dedup_by_key(|t| t.key);
        (found, missing)
    }
    /// Registers libraries; they are kept as weak references.
    pub fn remember(&self, libraries: &HashMap<Key, Arc<L>>) {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|_, library| library.strong_count() > 0);
        loaded.extend(
            libraries
                .iter()
                .map(|(key, library)| (*key, Arc::downgrade(library))),
        );
    }
}

/// Replaces the identifier `name` by `to`, also as a prefix followed by `__`.
///
/// Other definitions of a kernel at file scope have that prefix.
fn rename(source: &str, name: &str, to: &str) -> String {
    let mut out = String::with_capacity(source.len() + 64);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut copied = 0;
    // Texts are megabytes: testing each word took an eighth of a warm start's CPU time.
    for (at, _) in source.match_indices(name).filter(|_| !name.is_empty()) {
        let end = &source[at + name.len()..];
        let begins = !source[..at].ends_with(is_word);
        if begins && (!end.starts_with(is_word) || end.starts_with("__")) {
            out.push_str(&source[copied..at]);
            out.push_str(to);
            copied = at + name.len();
        }
    }
    out.push_str(&source[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernels_own_names_change() {
        let source =
            "static int e_1__t; void e_1(int e_10, int xe_1, float e_1x) { e_1__t = e_10; } // e_1";
        let renamed = rename(source, "e_1", "K");
        assert_eq!(
            renamed,
            "static int K__t; void K(int e_10, int xe_1, float e_1x) { K__t = e_10; } // K"
        );
        assert_eq!(rename("é(x)", "", "K"), "é(x)");
    }
}
