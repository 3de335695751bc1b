//! Choice between several models of one name: a question on a terminal, else an error.

use crate::failure::{Failure, Result, printable};
use crate::size::size;
use gristmill_hub::{Error, Name, Offer};
use std::io::{self, BufRead, IsTerminal, Write};

/// Calls `act` with a name; if it is ambiguous, again with the file that the user chooses.
pub fn among<T>(name: &Name, act: &dyn Fn(&Name) -> std::result::Result<T, Error>) -> Result<T> {
    match act(name) {
        Err(Error::Several { repository, models })
            if io::stdin().is_terminal() && io::stderr().is_terminal() =>
        {
            match ask(&repository.to_string(), &models, &mut io::stdin().lock())? {
                Some(file) => Ok(act(&Name {
                    file: Some(file.to_owned()),
                    ..name.clone()
                })?),
                None => Err(Error::Several { repository, models }.into()),
            }
        }
        done => Ok(done?),
    }
}

/// Asks on standard error for one of several models; `None` if there is no answer.
fn ask<'m>(
    repository: &str,
    models: &'m [Offer],
    input: &mut dyn BufRead,
) -> Result<Option<&'m str>> {
    let mut sorted: Vec<&Offer> = models.iter().collect();
    sorted.sort_by_key(|model| model.bytes);
    let width = sorted
        .iter()
        .map(|model| printable(&model.word).chars().count())
        .max()
        .unwrap_or_default();
    say!("{} has {} models:", printable(repository), sorted.len());
    for (number, model) in (1..).zip(&sorted) {
        say!(
            "  {number:>3}  {:width$}  {:>9}",
            printable(&model.word),
            size(model.bytes)
        );
    }
    loop {
        eprint!(
            "Which one (1 to {}, or its name; empty to cancel)? ",
            sorted.len()
        );
        io::stderr().flush()?;
        let mut line = String::new();
        let ended = input.read_line(&mut line).map_err(not_text)? == 0;
        let wanted = line.trim();
        if ended || wanted.is_empty() {
            return Ok(None);
        }
        match chosen(wanted, &sorted) {
            Some(model) => return Ok(Some(&model.file)),
            None => say!("there is no {}", printable(wanted)),
        }
    }
}

/// Finds the model by number or by name, ignoring case.
fn chosen<'m>(wanted: &str, models: &[&'m Offer]) -> Option<&'m Offer> {
    let number = wanted
        .parse::<usize>()
        .ok()
        .and_then(|number| models.get(number.checked_sub(1)?));
    let named = || {
        models
            .iter()
            .find(|model| model.word.eq_ignore_ascii_case(wanted) || model.file == wanted)
    };
    number.or_else(named).copied()
}

fn not_text(error: io::Error) -> Failure {
    Failure::new(
        format_args!("the answer cannot be read: {error}"),
        "name the model with its quantisation, ORG/REPO:QUANT",
    )
}
