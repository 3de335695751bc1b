//! Lines of training data as tokens.

use super::args::{LossOnName, TrainArgs};
use crate::failure::{Failure, Result};
use crate::model::{Model, warn};
use crate::progress;
use gristmill_llm::train::{Example, ExampleReader, Fingerprint, LossOn};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Tokens of a row without --ctx.
pub const ROW: usize = 512;

/// Lines of the data as tokens.
pub struct Data {
    pub examples: Vec<Example>,
    pub evaluation: Vec<Example>,
    /// Numbers of both at first.
    pub lines: usize,
    pub evaluation_lines: usize,
    /// Hash of all lines, which a checkpoint is bound to.
    pub hash: Fingerprint,
}

impl Data {
    pub fn read(options: &TrainArgs, model: &Model) -> Result<Data> {
        let tokenizer = model.tokenizer()?;
        let (template, why) = model.template(&tokenizer)?;
        warn(why.as_slice());
        let reader = ExampleReader {
            tokenizer: &tokenizer,
            template: &template,
            loss_on: match options.loss_on {
                LossOnName::Replies => LossOn::Replies,
                LossOnName::All => LossOn::All,
            },
        };
        let context = options.common.ctx().unwrap_or(ROW);
        let (mut examples, hash) = lines(&reader, &options.data, context)?;
        let lines_read = examples.len();
        let evaluation = match options.eval.as_deref().map(|text| (text, text.parse::<f64>())) {
            None => Vec::new(),
            Some((_, Ok(part))) if part > 0.0 && part < 1.0 => {
                let count = (lines_read as f64 * part).round().max(1.0) as usize;
                if count >= lines_read {
                    return Err(Failure::usage("no lines are left to train on", "give a smaller --eval"));
                }
                examples.split_off(lines_read - count)
            }
            Some((_, Ok(_))) => {
                return Err(Failure::usage("--eval takes a part between 0 and 1", "for example --eval 0.1"));
            }
            Some((path, Err(_))) => lines(&reader, Path::new(path), context)?.0,
        };
        Ok(Data {
            lines: examples.len(),
            evaluation_lines: evaluation.len(),
            examples,
            evaluation,
            hash,
        })
    }
    /// Takes the examples to train on out.
    pub fn take_examples(&mut self) -> Vec<Example> {
        std::mem::take(&mut self.examples)
    }
    /// Takes the examples to evaluate on out.
    pub fn take_evaluation(&mut self) -> Vec<Example> {
        std::mem::take(&mut self.evaluation)
    }
}

/// Reads all lines of a file, and their hash .
fn lines(reader: &ExampleReader, path: &Path, context: usize) -> Result<(Vec<Example>, Fingerprint)> {
    let failed = |error| Failure::file("read", path, error);
    let file = BufReader::new(File::open(path).map_err(failed)?);
    let (mut out, mut hash) = (Vec::new(), Fingerprint::default());
    let bar = progress::lines();
    for (number, line) in file.lines().enumerate() {
        let line = line.map_err(failed)?;
        let text = line.trim_start_matches('\u{feff}').trim();
        if text.is_empty() {
            continue;
        }
        hash.add(text.as_bytes());
        hash.add(b"\n");
        let example = reader.read(text, context).map_err(|error| {
            let at = format!("line {} of {}: {error}", number + 1, path.display());
            Failure::new(at, "mend or remove the line; --ctx N takes longer ones")
        })?;
        out.push(example);
        bar.inc(1);
    }
    bar.finish_and_clear();
    match out.is_empty() {
        true => Err(Failure::new(format_args!("{} has no lines", path.display()), "give a JSON object a line")),
        false => Ok((out, hash)),
    }
}

