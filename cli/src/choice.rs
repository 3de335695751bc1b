//! Which of several models is meant: a question on a terminal, an error elsewhere.

use crate::failure::{Failure, Result, printable};
use crate::size::size;
use gristmill_hub::{Error, Name, Offer};
use std::io::{self, BufRead, IsTerminal, Write};

/// Does something with what is named; where that fits several, with the one that the user chooses.
pub fn among<T>(name: &Name, act: &dyn Fn(&Name) -> std::result::Result<T, Error>) -> Result<T> {
    match act(name) {
        Err(Error::Several { repository, models }) if io::stdin().is_terminal() && io::stderr().is_terminal() => {
            match ask(&repository.to_string(), &models, &mut io::stdin().lock())? {
                Some(file) => Ok(act(&Name { file: Some(file.to_owned()), ..name.clone() })?),
                None => Err(Error::Several { repository, models }.into()),
            }
        }
        done => Ok(done?),
    }
}

/// The file of the one chosen; none if the question is not answered. On standard error, since answers and paths go to
/// standard output.
fn ask<'m>(repository: &str, models: &'m [Offer], input: &mut dyn BufRead) -> Result<Option<&'m str>> {
    let mut sorted: Vec<&Offer> = models.iter().collect();
    sorted.sort_by_key(|model| model.bytes);
    let width = sorted.iter().map(|model| printable(&model.word).chars().count()).max().unwrap_or_default();
    say!("{} has {} models:", printable(repository), sorted.len());
    for (number, model) in (1..).zip(&sorted) {
        say!("  {number:>3}  {:width$}  {:>9}", printable(&model.word), size(model.bytes));
    }
    loop {
        eprint!("Which one (1 to {}, or its name; nothing to leave)? ", sorted.len());
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

/// The model that an answer means: by its number, or by its name in letters of any size.
fn chosen<'m>(wanted: &str, models: &[&'m Offer]) -> Option<&'m Offer> {
    let number = wanted.parse::<usize>().ok().and_then(|number| models.get(number.checked_sub(1)?));
    let named = || models.iter().find(|model| model.word.eq_ignore_ascii_case(wanted) || model.file == wanted);
    number.or_else(named).copied()
}

fn not_text(error: io::Error) -> Failure {
    Failure::new(
        format_args!("the answer cannot be read: {error}"),
        "name the model with its quantisation, ORG/REPO:QUANT",
    )
}
