//! Ctrl-C: stops an answer. Where a person holds a conversation it never ends the program, however often: /exit and Ctrl-D do. Elsewhere it
//! does where there is no answer to stop.

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
    /// Catches Ctrl-C from now on; `stays` where a person would lose a conversation.
    pub fn install(stays: bool) -> Result<Interrupt> {
        let state = Arc::new(AtomicU8::new(IDLE));
        let seen = state.clone();
        let handler = move || {
            // At the prompt the line editor takes Ctrl-C. One that comes while an answer is being stopped was meant for that.
            let asked = seen.compare_exchange(ANSWERING, ASKED, Ordering::AcqRel, Ordering::Acquire);
            if asked.is_err() && !stays {
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
