//! Ctrl-C: stops an answer, and ends the program only where there is none to stop.

use crate::failure::{Failure, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const ASKED: u8 = 2;

/// Exit code of a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// Whether there is an answer to stop, and whether that has been asked for.
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// Catches Ctrl-C from now on.
    pub fn install() -> Result<Interrupt> {
        let state = Arc::new(AtomicU8::new(IDLE));
        let seen = state.clone();
        let handler = move || {
            // At the prompt the line editor takes Ctrl-C; a second one means it.
            if seen.compare_exchange(ANSWERING, ASKED, Ordering::AcqRel, Ordering::Acquire).is_err() {
                std::process::exit(INTERRUPTED);
            }
        };
        match ctrlc::set_handler(handler) {
            Ok(()) => Ok(Interrupt(state)),
            Err(error) => Err(Failure::new(format_args!("Ctrl-C cannot be caught: {error}"), "try another terminal")),
        }
    }
    /// An answer begins.
    pub fn begin(&self) {
        self.0.store(ANSWERING, Ordering::Release);
    }
    /// It has ended.
    pub fn end(&self) {
        self.0.store(IDLE, Ordering::Release);
    }
    /// Is it to stop?
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire) == ASKED
    }
}
