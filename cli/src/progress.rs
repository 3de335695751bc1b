//! Progress bars, on standard error when it is a terminal.

use gristmill_hub::Progress as Fetch;
use gristmill_llm::engine::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::RefCell;

const BYTES: &str = "{msg:>9} {bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const COUNT: &str = "{msg:>9} {bar:40} {pos}/{len}";

/// A bar that measures bytes.
pub fn bytes(what: &'static str, total: u64) -> ProgressBar {
    bar(what, BYTES, total)
}

/// A bar that counts.
pub fn count(what: &'static str, total: u64) -> ProgressBar {
    bar(what, COUNT, total)
}

// indicatif draws nothing where standard error is no terminal.
fn bar(what: &'static str, style: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style.progress_chars("=> ")).with_message(what)
}

/// What is going on while a model is made ready: one bar at a time.
pub struct Bars {
    current: RefCell<Option<(&'static str, ProgressBar)>>,
}

impl Bars {
    /// None yet.
    pub fn new() -> Bars {
        Bars { current: RefCell::default() }
    }
    /// Moves the bar of that stage; a new stage begins where the last one has ended.
    pub fn show(&self, progress: Progress) {
        let (what, done, total) = match progress {
            Progress::Loading(done, total) => ("loading", done, total),
            Progress::Compiling(done, total) => ("compiling", done as u64, total as u64),
        };
        // All was in the store.
        if total == 0 {
            return;
        }
        let mut current = self.current.borrow_mut();
        if current.as_ref().is_none_or(|(stage, _)| *stage != what) {
            if let Some((_, bar)) = current.take() {
                bar.finish_and_clear();
            }
            let bar = if what == "loading" { bytes(what, total) } else { count(what, total) };
            *current = Some((what, bar));
        }
        if let Some((_, bar)) = current.as_ref() {
            bar.set_length(total);
            bar.set_position(done);
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        if let Some((_, bar)) = self.current.get_mut() {
            bar.finish_and_clear();
        }
    }
}

/// What is going on while a model is fetched: a bar for each of its files.
pub struct Fetching {
    current: RefCell<Option<(String, ProgressBar)>>,
}

impl Fetching {
    /// Nothing yet.
    pub fn new() -> Fetching {
        Fetching { current: RefCell::default() }
    }
    /// Moves the file's bar, or says what broke.
    pub fn show(&self, progress: Fetch) {
        let (what, file, done, total) = match progress {
            Fetch::Fetched { file, done, total } => ("fetching", file, done, total),
            Fetch::Checked { file, done, total } => ("checking", file, done, total),
            Fetch::Again { why } => {
                // Above the bar, which stays where it is.
                match self.current.borrow().as_ref() {
                    Some((_, bar)) if !bar.is_hidden() => bar.println(format!("{why}: trying again")),
                    _ => say!("{why}: trying again"),
                }
                return;
            }
        };
        let mut current = self.current.borrow_mut();
        let name = format!("{what} {file}");
        if current.as_ref().is_none_or(|(stage, _)| *stage != name) {
            if let Some((_, bar)) = current.take() {
                bar.finish_and_clear();
            }
            let bar = bytes(what, total);
            // What is there already took no time.
            bar.set_position(done);
            bar.reset_eta();
            *current = Some((name, bar));
        }
        if let Some((_, bar)) = current.as_ref() {
            bar.set_position(done);
        }
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        if let Some((_, bar)) = self.current.get_mut() {
            bar.finish_and_clear();
        }
    }
}
