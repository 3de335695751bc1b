//! Compiles a client's grammar in a helper process with limits first, as the compiler cannot be
//! interrupted and some grammars would take it minutes and gigabytes.

use super::start::{TOO_SLOW, factory, start_here};
use crate::core::admission;
use gristmill_llm::chat::{Helper, HelperFailure, HelperLimits, run_confined};
use llguidance::api::TopLevelGrammar;
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// First argument of the program with which it calls [`helper`].
pub const ARGUMENT: &str = "check-grammar";

/// Limits of the compilation of a grammar. The largest schemas within the bounds take half a
/// second and 40 MB.
const LIMITS: HelperLimits = HelperLimits {
    cpu_seconds: 2,
    memory: 512 << 20,
    memory_per_byte: 0,
    stack: super::bounds::STACK,
};
/// Maximum bytes of the answer, which is an error message at most.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Maximum helper processes that compile at a time.
const MAX_PROCESSES: usize = 2;

/// Vocabulary of the helper: single bytes, and the special tokens that a grammar may name.
#[derive(Serialize, Deserialize, Clone)]
struct Vocabulary {
    tokens: usize,
    end: u32,
    specials: Vec<(u32, Vec<u8>)>,
}

#[derive(Serialize, Deserialize)]
struct CheckRequest {
    vocabulary: Vocabulary,
    grammar: TopLevelGrammar,
}

type Answer = Result<(), String>;

/// Compiles grammars of one vocabulary in helper processes.
pub struct Checker {
    helper: Helper,
    vocabulary: Vocabulary,
}

impl Checker {
    /// Checker for a vocabulary with these tokens.
    pub fn new(helper: Helper, words: &[Vec<u8>], end: u32) -> Checker {
        let special = |(_, word): &(usize, &Vec<u8>)| word.first() == Some(&SPECIAL);
        let specials = words.iter().enumerate().filter(special);
        Checker {
            helper,
            vocabulary: Vocabulary {
                tokens: words.len(),
                end,
                specials: specials
                    .map(|(id, word)| (id as u32, word.clone()))
                    .collect(),
            },
        }
    }
    /// Checks that a grammar compiles within the limits of the helper process.
    ///
    /// # Errors
    /// A description of what is wrong with the grammar.
    pub fn check(&self, grammar: TopLevelGrammar) -> Result<(), String> {
        let request = CheckRequest {
            vocabulary: self.vocabulary.clone(),
            grammar,
        };
        let request = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
        let answer: Result<Answer, HelperFailure> = admission::aside(|left| {
            let _process = Process::begin();
            self.helper.ask(&request, MAX_ANSWER_BYTES, left)
        });
        answer.map_err(|failure| match failure {
            HelperFailure::OutOfTime => TOO_SLOW.to_owned(),
            HelperFailure::OutOfMemory | HelperFailure::OutOfStack => {
                "it takes too much memory; use fewer intersections, counted repeats and nested rules"
                    .into()
            }
            failure => format!("the process that checks grammars {failure}"),
        })?
    }
}

/// First byte of special tokens' texts in grammars.
const SPECIAL: u8 = llguidance::toktrie::TokTrie::SPECIAL_TOKEN_MARKER;

/// Permit for one helper process.
struct Process;

static PROCESSES: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());
/// Maximum wait for a process; then one more runs.
const MAX_WAIT: Duration = Duration::from_secs(10);

impl Process {
    fn begin() -> Process {
        let (count, freed) = &PROCESSES;
        let count = count.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |count: &mut usize| *count >= MAX_PROCESSES;
        let waited = freed.wait_timeout_while(count, MAX_WAIT, full);
        let (mut count, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        Process
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        *PROCESSES.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        PROCESSES.1.notify_one();
    }
}

/// Runs the helper process: compiles one grammar within limits. Must be called first, by a process
/// that does nothing else.
pub fn helper() -> ExitCode {
    run_confined(LIMITS, answer, &Err("it cannot be compiled".into()))
}

fn answer(request: &[u8]) -> Answer {
    let CheckRequest {
        vocabulary,
        grammar,
    } = serde_json::from_slice(request).map_err(|error| error.to_string())?;
    let mut words = vec![Vec::new(); vocabulary.tokens];
    for (id, word) in vocabulary.specials {
        if let Some(place) = words.get_mut(id as usize) {
            *place = word;
        }
    }
    let mut bytes = (0..SPECIAL).map(|byte| vec![byte]);
    for (id, word) in words.iter_mut().enumerate() {
        if word.is_empty() && id != vocabulary.end as usize {
            let Some(byte) = bytes.next() else { break };
            *word = byte;
        }
    }
    words.extend(bytes);
    let factory =
        factory(&words, vocabulary.end).ok_or("grammars are not possible with this vocabulary")?;
    // The process may start no threads; this one has the compiler's stack.
    start_here(&factory, grammar)
}
