//! Log and checkpoint of a run.

use super::args::TrainArgs;
use super::data::Data;
use super::errors::failure;
use super::setup::Start;
use crate::failure::{Failure, Result};
use crate::model::Model;
use gristmill_llm::arch::TrainingShape;
use gristmill_llm::train::{
    Checkpoint, CheckpointError, Fingerprint, Places, Run, StepReport, TrainError,
};
use gristmill_profile::training::StepRecord;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// File of the checkpoint in its folder.
const CHECKPOINT: &str = "checkpoint.gguf";

/// Steps and evaluations of a run, those before a checkpoint too where a log has them.
#[derive(Default)]
pub struct History {
    pub steps: Vec<StepRecord>,
    /// Number of the step, and loss.
    pub evaluations: Vec<(u64, f64)>,
    /// Tokens and seconds of each step of this process.
    pub speeds: Vec<(usize, f64)>,
}

impl History {
    pub fn add(&mut self, report: &StepReport, seconds: f64) {
        self.speeds.push((report.tokens, seconds));
        self.steps.push(StepRecord {
            step: report.step,
            loss: report.loss.into(),
            gradient_norm: report.gradient_norm.into(),
            rate: report.rate,
        });
    }
    /// Adds a line of a log; returns whether it is one of a step up to `last`.
    fn add_line(&mut self, line: &str, last: u64) -> bool {
        let value: Value = serde_json::from_str(line).unwrap_or_default();
        let number = |name: &str| value[name].as_f64();
        let Some(step) = value["step"].as_u64().filter(|&step| step <= last) else {
            return false;
        };
        if let Some(loss) = number("eval_loss") {
            self.evaluations.push((step, loss));
            return true;
        }
        let Some(loss) = number("loss") else {
            return false;
        };
        self.steps.push(StepRecord {
            step,
            loss,
            gradient_norm: number("grad_norm").unwrap_or(f64::NAN),
            rate: number("lr").unwrap_or(f64::NAN),
        });
        true
    }
}

pub struct Files {
    log: Option<(File, PathBuf)>,
    checkpoint: Option<PathBuf>,
    /// What a checkpoint is bound to.
    run: String,
}

impl Files {
    /// Opens the log and creates the folder of the checkpoint; `run` is what checkpoints are bound
    /// to.
    pub fn open(options: &TrainArgs, run: String) -> Result<Files> {
        let open = |path: &PathBuf| {
            let mut how = File::options();
            how.create(true).write(true);
            how.append(options.resume).truncate(!options.resume);
            let file = how.open(path);
            let file = file.map_err(|error| Failure::file("write", path, error))?;
            Ok::<_, Failure>((file, path.clone()))
        };
        let checkpoint = options.checkpoint.as_ref().map(|folder| {
            fs::create_dir_all(folder).map_err(|error| Failure::file("create", folder, error))?;
            Ok::<_, Failure>(folder.join(CHECKPOINT))
        });
        Ok(Files {
            log: options.log.as_ref().map(open).transpose()?,
            checkpoint: checkpoint.transpose()?,
            run,
        })
    }
    /// Reads the checkpoint, which must be of this run.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let path = self.checkpoint.as_deref().unwrap_or(Path::new(CHECKPOINT));
        Checkpoint::read(path, &self.run)
            .map_err(|error| failure(TrainError::Checkpoint(error)))
    }
    /// Removes the steps after a checkpoint from the log, since they are taken again, and returns
    /// the others. A log that is no regular file stays as it is.
    pub fn continue_log(&mut self, last: u64) -> Result<History> {
        let mut history = History::default();
        let Some((file, path)) = &mut self.log else {
            return Ok(history);
        };
        if !fs::metadata(&*path).is_ok_and(|data| data.is_file()) {
            return Ok(history);
        }
        let text = fs::read(&*path).map_err(|error| Failure::file("read", path, error))?;
        let text = String::from_utf8_lossy(&text);
        let kept: Vec<&str> = text.lines().filter(|line| history.add_line(line, last)).collect();
        let mut beside = path.clone().into_os_string();
        beside.push(".tmp");
        let replace = || {
            let mut new = File::create(&beside)?;
            kept.iter().try_for_each(|line| writeln!(new, "{line}"))?;
            fs::rename(&beside, &*path)?;
            File::options().append(true).open(&*path)
        };
        *file = replace().map_err(|error| Failure::file("write", path, error))?;
        Ok(history)
    }
    /// Writes the state of a run in place of the older checkpoint; without --checkpoint, nothing.
    pub fn save(&self, run: &Run) -> Result {
        let Some(path) = &self.checkpoint else {
            return Ok(());
        };
        let checkpoint = run.checkpoint().map_err(failure)?;
        checkpoint.write(path, &self.run).map_err(|error: CheckpointError| {
            let hint = match path.exists() {
                true => "free disk space; the checkpoint before this one is unchanged: --resume continues there",
                false => "free disk space, or choose another folder for --checkpoint",
            };
            Failure::new(error, hint)
        })
    }
    /// Adds a step to the log.
    pub fn log(&mut self, report: &StepReport, seconds: f64) -> Result {
        self.line(&json!({
            "step": report.step,
            "loss": report.loss,
            "grad_norm": report.gradient_norm,
            "lr": report.rate,
            "tokens_per_second": report.tokens as f64 / seconds,
        }))
    }
    /// Adds an evaluation to the log.
    pub fn log_evaluation(&mut self, step: u64, loss: f64) -> Result {
        self.line(&json!({ "step": step, "eval_loss": loss }))
    }
    fn line(&mut self, value: &Value) -> Result {
        match &mut self.log {
            None => Ok(()),
            Some((file, path)) => file
                .write_all(format!("{value}\n").as_bytes())
                .map_err(|error| Failure::file("write", path, error)),
        }
    }
}

impl TrainArgs {
    /// What decides the losses of a run, so that another run does not continue its checkpoint:
    /// names and values, with `, ` between them.
    pub fn description(
        &self,
        model: &Model,
        data: &Data,
        start: &Start,
        places: &Places,
        shape: TrainingShape,
    ) -> Result<String> {
        let of_model = Fingerprint::of_model(&model.file)?;
        let alpha = match start {
            Start::Full => String::from("none"),
            Start::DraftBlock(block) => format!("block {block}"),
            Start::Adapter(adapter) => adapter.alpha.to_string(),
        };
        let TrainArgs { lr, warmup, accumulate, clip, weight_decay, seed, .. } = self;
        let trained = match start {
            Start::Full => "all weights",
            Start::DraftBlock(_) => "the block for draft tokens",
            Start::Adapter(_) => "adapters",
        };
        let parts = [
            format!("model {} bytes {of_model}", model.file.size()),
            format!("data {}", data.hash),
            format!("lines {}", data.lines),
            format!("training of {trained}"),
            format!("parameters {} {}", places.count(), Fingerprint::of_places(places)),
            format!("alpha {alpha}"),
            format!("lr {lr}"),
            format!("warmup {warmup}"),
            format!("schedule {}", self.schedule.name()),
            format!("rows {}x{accumulate} of {}", shape.sequences, shape.length),
            format!("clip {clip}"),
            format!("weight decay {weight_decay}"),
            format!("loss on {}", self.loss_on.name()),
            format!("seed {seed}"),
            format!("shuffled {}", !self.no_shuffle),
            format!("packed {}", shape.packed),
        ];
        Ok(parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_after_a_checkpoint_are_left_out() {
        let mut history = History::default();
        let lines = [
            ("{\"step\":1,\"loss\":2.5,\"grad_norm\":1,\"lr\":0.1}", true),
            ("{\"step\":1,\"eval_loss\":3}", true),
            ("{\"step\":2,\"loss\":2.25,\"grad_norm\":null}", true),
            ("{\"step\":3,\"loss\":2}", false),
            ("{\"step\":2,\"lo", false),
            ("", false),
        ];
        for (line, kept) in lines {
            assert_eq!(history.add_line(line, 2), kept, "{line}");
        }
        let losses: Vec<f64> = history.steps.iter().map(|s| s.loss).collect();
        assert_eq!((losses, history.evaluations), (vec![2.5, 2.25], vec![(1, 3.0)]));
        assert!(history.steps[1].gradient_norm.is_nan());
    }
}
