//! Pages that are generated from the files of a folder, and committed with them.

use crate::shell;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// A generated page. Tidy checks that it is current.
pub struct GeneratedPage {
    /// Subcommand of xtask that writes it.
    pub command: &'static str,
    pub path: &'static str,
    /// Folder of the source files, with a slash at the end.
    pub folder: &'static str,
    /// Extension of the source files, with the dot.
    pub extension: &'static str,
    /// Formats the page from names and contents of the source files.
    pub format: fn(Vec<(&str, &str)>) -> Result<String>,
    /// Hint that says how to make a source file.
    pub source_hint: &'static str,
}

impl GeneratedPage {
    /// Whether a file name in the folder is one of its source files.
    pub fn is_source(&self, name: &str) -> bool {
        let page = self.path.strip_prefix(self.folder);
        name.ends_with(self.extension) && Some(name) != page
    }

    /// Returns true if the page is current; without `check`, a stale page is rewritten first.
    pub fn update(&self, check: bool) -> Result<bool> {
        let (root, command, path) = (shell::root()?, self.command, self.path);
        let files = self.sources(&root)?;
        let named = files
            .iter()
            .map(|(name, text)| (name.as_str(), text.as_str()));
        let text = (self.format)(named.collect())?;
        if fs::read_to_string(root.join(path)).is_ok_and(|old| old == text) {
            eprintln!("{command}: {path} is current, from {} files", files.len());
            return Ok(true);
        }
        if check {
            eprintln!("{command}: {path} is not current\nhint: `cargo xtask {command}` writes it");
            return Ok(false);
        }
        fs::write(root.join(path), text)?;
        eprintln!("{command}: {path} written from {} files", files.len());
        Ok(true)
    }

    fn sources(&self, root: &Path) -> Result<Vec<(String, String)>> {
        let folder = root.join(self.folder);
        let listed = fs::read_dir(&folder)
            .with_context(|| format!("cannot list {}\nhint: {}", self.folder, self.source_hint))?;
        let mut files = vec![];
        for entry in listed {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if self.is_source(&name) {
                let text = fs::read_to_string(folder.join(&name))?;
                files.push((name, text));
            }
        }
        Ok(files)
    }
}
