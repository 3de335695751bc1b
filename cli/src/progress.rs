//! Progress bars on standard error; log lines where it is not a terminal.

use crate::failure::printable;
use crate::size::size;
use gristmill_hub::Progress as Fetch;
use gristmill_llm::engine::Progress;
use gristmill_runtime::store::Store;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

// At most 80 columns: a wrapped bar would be redrawn on new lines.
const BYTES: &str =
    "{msg:>11} {bar:26} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
const KERNELS: &str = "{msg:>11} {bar:26} {pos}/{len} kernels, {prefix}";
const FUNCTIONS: &str = "{msg:>11} {bar:26} {pos}/{len} functions";
const STEPS: &str = "{bar:20} {pos}/{len} {msg}, {eta} left";
const LINES: &str = "{msg:>11} {pos} lines";
const COUNT: &str = "{msg:>11} {bar:26} {pos}/{len}";

/// A progress bar in bytes.
pub fn bytes(what: &'static str, total: u64) -> ProgressBar {
    bar(what, BYTES, total)
}

/// A progress bar with a counter.
pub fn count(what: &'static str, total: u64) -> ProgressBar {
    bar(what, COUNT, total)
}

/// A progress bar of training steps, with time left and the last loss as message.
pub fn steps(total: u64) -> ProgressBar {
    bar("training", STEPS, total)
}

/// A counter of lines that are read.
pub fn lines() -> ProgressBar {
    bar("reading", LINES, 0)
}

// indicatif draws nothing unless standard error is a terminal.
fn bar(what: &'static str, style: &str, total: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total)
        .with_style(style.progress_chars("=> "))
        .with_message(what)
}

/// Returns what becomes of compiled kernels: without a home directory none are kept.
fn kept() -> &'static str {
    if Store::user().is_ok_and(|store| store.path().is_some()) {
        "kept for the next start"
    } else {
        "not kept"
    }
}

/// Compilation that takes longer is reported in the log; stored kernels load faster.
const STORED: Duration = Duration::from_millis(700);

/// Progress of loading and compiling a model, one bar at a time.
pub struct Bars {
    current: RefCell<Option<(&'static str, ProgressBar)>>,
    /// Whether a line still has to report that kernels are compiled, since no bar is visible.
    lines: Cell<bool>,
    /// Start of the compilation.
    compiling: Cell<Option<Instant>>,
}

impl Bars {
    /// Progress without log lines.
    pub fn new() -> Bars {
        Bars {
            current: RefCell::default(),
            lines: Cell::new(false),
            compiling: Cell::new(None),
        }
    }
    /// Progress of a named model; log lines if standard error is not a terminal.
    pub fn named(name: &str) -> Bars {
        let lines = !io::stderr().is_terminal();
        if lines {
            say!("loading {}", printable(name));
        }
        let bars = Bars::new();
        bars.lines.set(lines);
        bars
    }
    /// Advances the bar of a stage; a new stage replaces the bar.
    pub fn show(&self, progress: Progress) {
        let (what, done, total) = match progress {
            Progress::Loading(done, total) => ("loading", done, total),
            Progress::Planning(done, total) => ("planning", done as u64, total as u64),
            Progress::Compiling(done, total) => ("compiling", done as u64, total as u64),
        };
        // Nothing to do in this stage.
        if total == 0 {
            return;
        }
        if what == "compiling" && done < total && self.lines.get() {
            let since = self.compiling.get().unwrap_or_else(Instant::now);
            self.compiling.set(Some(since));
            if since.elapsed() > STORED {
                let left = total - done;
                say!(
                    "compiling {left} of {total} kernels with the C compiler; they are {}",
                    kept()
                );
                self.lines.set(false);
            }
        }
        let mut current = self.current.borrow_mut();
        if current.as_ref().is_none_or(|(stage, _)| *stage != what) {
            if let Some((_, bar)) = current.take() {
                bar.finish_and_clear();
            }
            let bar = match what {
                "loading" => bytes(what, total),
                "compiling" => bar(what, KERNELS, total).with_prefix(kept()),
                _ => bar(what, FUNCTIONS, total),
            };
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

/// Progress of a download, one bar per file.
pub struct Fetching {
    current: RefCell<Option<(String, ProgressBar)>>,
    /// Whether the warning about an unwritable record was printed; once is enough for all shards.
    unrecorded: Cell<bool>,
}

impl Fetching {
    pub fn new() -> Fetching {
        Fetching {
            current: RefCell::default(),
            unrecorded: Cell::new(false),
        }
    }
    /// Advances the bar of a file, or prints an event.
    pub fn show(&self, progress: Fetch) {
        match progress {
            Fetch::Fetched { file, done, total } => self.draw("downloading", file, done, total),
            Fetch::Checked { file, done, total } => self.checked(file, done, total),
            Fetch::Changed { file } => {
                self.line(&format!(
                    "warning: {} has changed since it was downloaded: downloading it again",
                    file.display()
                ));
            }
            Fetch::PassedOver { files } => {
                self.line(&format!(
                    "warning: {files} files of the repository are skipped: their names are not plain text"
                ));
            }
            Fetch::Unrecorded { file, why } => {
                if !self.unrecorded.replace(true) {
                    self.line(&format!(
                        "warning: the checksum of {} will be checked again at the next start: its record cannot be written: {why}",
                        file.display()
                    ));
                }
            }
            Fetch::Again { why } => self.line(&format!("{why}: retrying")),
        }
    }
    /// Advances the bar of a checksum verification.
    pub fn checked(&self, file: &str, done: u64, total: u64) {
        self.draw("checking", file, done, total);
    }
    /// Prints a line above the bar.
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
            // Without a bar, a log line marks the start.
            if bar.is_hidden() {
                say!("{}, {}", printable(&name), size(total));
            }
            // Bytes of an earlier attempt do not count for the rate.
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
