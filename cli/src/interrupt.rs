//! Ctrl-C stops the answer. Without an answer to stop it ends the program, except in a conversation
//! on a terminal, which /exit and Ctrl-D end.

use crate::failure::{Failure, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const ASKED: u8 = 2;

/// Exit code after SIGINT, by convention.
const INTERRUPTED: i32 = 130;

/// State of the answer: idle, answering, or asked to stop.
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// Installs the handler; with `stays`, Ctrl-C never ends the program.
    pub fn install(stays: bool) -> Result<Interrupt> {
        let state = Arc::new(AtomicU8::new(IDLE));
        let seen = state.clone();
        let handler = move || {
            // The line editor handles Ctrl-C at the input prompt.
            let asked =
                seen.compare_exchange(ANSWERING, ASKED, Ordering::AcqRel, Ordering::Acquire);
            if asked.is_err() && !stays {
                std::process::exit(INTERRUPTED);
            }
        };
        match ctrlc::set_handler(handler) {
            Ok(()) => Ok(Interrupt(state)),
            Err(error) => Err(Failure::new(
                format_args!("Ctrl-C cannot be caught: {error}"),
                "try another terminal",
            )),
        }
    }
    /// Marks the start of an answer.
    pub fn begin(&self) {
        self.0.store(ANSWERING, Ordering::Release);
    }
    /// Marks the end of an answer.
    pub fn end(&self) {
        self.0.store(IDLE, Ordering::Release);
    }
    /// Whether the answer should stop.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire) == ASKED
    }
}
