//! Iterator over the pieces of a text that is being generated.

use crate::error::Result;
use crate::model_thread::ended;
use gristmill_llm::generation::Finish;
use pyo3::{PyRef, PyResult, Python, pyclass, pymethods};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A part of a generation.
pub enum Piece {
    Text(String),
    Reasoning(String),
    End(Finish),
}

/// Time between two looks for Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(100);

/// Pieces of a text, in order, as an iterator.
#[pyclass(module = "gristmill")]
pub struct TextStream(Mutex<State>);

struct State {
    /// None once the generation has ended; a dropped receiver stops it.
    pieces: Option<Receiver<Result<Piece>>>,
    reasoning: String,
    finish: Option<Finish>,
}

impl TextStream {
    /// Creates the iterator over the pieces that a model's thread sends.
    pub fn new(pieces: Receiver<Result<Piece>>) -> TextStream {
        TextStream(Mutex::new(State {
            pieces: Some(pieces),
            reasoning: String::new(),
            finish: None,
        }))
    }
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Waits a little for the next piece of content. `Ok(None)` if none came in that time; an empty
    /// text at the end.
    fn wait(&self) -> Result<Option<String>> {
        let mut state = self.state();
        let Some(pieces) = &state.pieces else {
            return Ok(Some(String::new()));
        };
        let next = match pieces.recv_timeout(SIGNALS) {
            Ok(next) => next,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
        };
        match next {
            Ok(Piece::Text(text)) => return Ok(Some(text).filter(|text| !text.is_empty())),
            Ok(Piece::Reasoning(text)) => {
                state.reasoning.push_str(&text);
                return Ok(None);
            }
            Ok(Piece::End(finish)) => state.finish = Some(finish),
            Err(error) => {
                state.pieces = None;
                return Err(error);
            }
        }
        state.pieces = None;
        Ok(Some(String::new()))
    }
}

#[pymethods]
impl TextStream {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        loop {
            if let Some(text) = py.detach(|| self.wait())? {
                return Ok(Some(text).filter(|text| !text.is_empty()));
            }
            py.check_signals()?;
        }
    }
    /// Returns the rest of the text.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        let mut all = String::new();
        while let Some(piece) = self.__next__(py)? {
            all.push_str(&piece);
        }
        Ok(all)
    }
    /// Ends the stream, and with it the generation at its next token.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.state().pieces = None);
    }
    /// Reasoning so far, which is not part of the text.
    #[getter]
    fn reasoning(&self, py: Python<'_>) -> String {
        py.detach(|| self.state().reasoning.clone())
    }
    /// Reason for the end, once it has come.
    #[getter]
    fn finish_reason(&self, py: Python<'_>) -> Option<&'static str> {
        py.detach(|| self.state().finish.map(Finish::describe))
    }
}
