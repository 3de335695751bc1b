//! Progress bars, on standard error when it is a terminal.

use crate::failure::printable;
use crate::size::size;
use gristmill_hub::Progress as Fetch;
use gristmill_llm::engine::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

// A line of 80 columns holds each: a longer one is drawn anew below the last, over and over.
const BYTES: &str = "{msg:>9} {bar:28} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
const COUNT: &str = "{msg:>9} {bar:28} {pos}/{len}";

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

/// What takes no longer than that was in the store.
const STORED: Duration = Duration::from_millis(700);

/// What is going on while a model is made ready: one bar at a time.
pub struct Bars {
    current: RefCell<Option<(&'static str, ProgressBar)>>,
    /// Nobody sees bars: a line shall say that kernels are compiled, once.
    lines: Cell<bool>,
    /// Since when they may be.
    compiling: Cell<Option<Instant>>,
}

impl Bars {
    /// None yet.
    pub fn new() -> Bars {
        Bars { current: RefCell::default(), lines: Cell::new(false), compiling: Cell::new(None) }
    }
    /// The same for a model of that name; where standard error is no terminal, the log of a service say, in lines.
    pub fn named(name: &str) -> Bars {
        let lines = !io::stderr().is_terminal();
        if lines {
            say!("loading {}", printable(name));
        }
        let bars = Bars::new();
        bars.lines.set(lines);
        bars
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
        if what == "compiling" && done < total && self.lines.get() {
            let since = self.compiling.get().unwrap_or_else(Instant::now);
            self.compiling.set(Some(since));
            if since.elapsed() > STORED {
                say!("compiling {total} kernels (the first start takes about half a minute)");
                self.lines.set(false);
            }
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
    /// Has it been said that a file will be read again? The parts of a split model are alike in that.
    unrecorded: Cell<bool>,
}

impl Fetching {
    /// Nothing yet.
    pub fn new() -> Fetching {
        Fetching { current: RefCell::default(), unrecorded: Cell::new(false) }
    }
    /// Moves the file's bar, or says what happened.
    pub fn show(&self, progress: Fetch) {
        match progress {
            Fetch::Fetched { file, done, total } => self.draw("fetching", file, done, total),
            Fetch::Checked { file, done, total } => self.checked(file, done, total),
            Fetch::Changed { file } => {
                self.line(&format!("warning: {} is not what was fetched: it is fetched again", file.display()));
            }
            Fetch::PassedOver { files } => {
                self.line(&format!("warning: {files} files of the hub are passed over: their names are no plain text"));
            }
            Fetch::Unrecorded { file, why } => {
                if !self.unrecorded.replace(true) {
                    self.line(&format!(
                        "warning: {} will be read again at the next start: its record cannot be written: {why}",
                        file.display()
                    ));
                }
            }
            Fetch::Again { why } => self.line(&format!("{why}: trying again")),
        }
    }
    /// Moves the bar of a file that is read again.
    pub fn checked(&self, file: &str, done: u64, total: u64) {
        self.draw("checking", file, done, total);
    }
    /// Above the bar, which stays where it is.
    fn line(&self, text: &str) {
        match self.current.borrow().as_ref() {
            Some((_, bar)) if !bar.is_hidden() => bar.println(printable(text)),
            _ => say!("{}", printable(text)),
        }
    }
    fn draw(&self, what: &'static str, file: &str, done: u64, total: u64) {
        let mut current = self.current.borrow_mut();
        let name = format!("{what} {file}");
        if current.as_ref().is_none_or(|(stage, _)| *stage != name) {
            if let Some((_, bar)) = current.take() {
                bar.finish_and_clear();
            }
            let bar = bytes(what, total);
            // A log shall not be silent for as long as that takes.
            if bar.is_hidden() {
                say!("{}, {}", printable(&name), size(total));
            }
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
