//! `gristmill train`: trains an adapter, or a small model, on chats.

use crate::failure::{Failure, Result};
use crate::flags::Common;
use crate::interrupt::Interrupt;
use crate::model::{Model, warn};
use crate::model_arg::ModelArg;
use crate::progress::{self, Bars};
use crate::size::size;
use clap::{Args, ValueEnum, ValueHint};
use gristmill_llm::arch::{self, Trained, TrainingShape};
use gristmill_llm::file::ModelFile;
use gristmill_llm::train::{
    Adapter, Checkpoint, Course, Example, ExampleReader, LossOn, Run, Schedule, StepReport, Stream,
    FullError, StreamOptions, Targets, PlannedTraining, Trainer, TrainerOptions, TrainingBatch, ignored_elsewhere,
    initial_adapter, initial_weights, write_model,
};
use serde_json::json;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

const NOTES: &str = "\
A line of FILE is {\"messages\": [...]}, {\"prompt\": \"...\", \"completion\": \"...\"} or {\"text\": \"...\"}.
Arithmetic is in f32 on the weights as they are packed; the adapter is f32.

Examples:
  gristmill train MODEL.gguf --data chats.jsonl -o adapter.gguf
  gristmill train MODEL.gguf --data chats.jsonl -o adapter.gguf --targets portable   for llama.cpp too
  gristmill train MODEL.gguf --data chats.jsonl -o adapter.gguf --eval 0.1 --checkpoint run
  gristmill train MODEL.gguf --data chats.jsonl -o adapter.gguf --checkpoint run --resume
  gristmill run MODEL.gguf --lora adapter.gguf -p 'Hello'";

#[derive(Args)]
#[command(after_help = NOTES, override_usage = "gristmill train [OPTIONS] <MODEL> --data <FILE.jsonl> -o <ADAPTER.gguf>")]
pub struct TrainArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Training data: a JSON object a line
    #[arg(long, value_name = "FILE.jsonl", value_hint = ValueHint::FilePath, help_heading = "Data")]
    data: PathBuf,
    /// Adapter to write
    #[arg(short, long, value_name = "ADAPTER.gguf", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    /// Rank of the adapters [default: 16, or that of --init]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Adapter")]
    rank: Option<u16>,
    /// Adapters are scaled by ALPHA / rank [default: twice the rank, or that of --init]
    #[arg(long, value_name = "ALPHA", help_heading = "Adapter")]
    alpha: Option<f32>,
    /// Adapted weights: all linear layers of blocks, portable (those that llama.cpp applies), or
    /// parts of names, such as attn_q,ffn_down
    #[arg(long, value_name = "NAMES|all|portable", default_value = "all", help_heading = "Adapter")]
    targets: String,
    /// Begin with this adapter
    #[arg(long, value_name = "ADAPTER.gguf", value_hint = ValueHint::FilePath, help_heading = "Adapter")]
    init: Option<PathBuf>,
    /// Train all weights of a model in f32, f16 or bf16, and write the model to -o
    #[arg(long, conflicts_with_all = ["rank", "alpha", "targets", "init"], help_heading = "Adapter")]
    full: bool,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 2e-4, help_heading = "Optimiser")]
    lr: f64,
    /// Steps of linear growth of the learning rate
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Optimiser")]
    warmup: u64,
    /// Course of the learning rate after the warm-up; cosine ends at a tenth
    #[arg(long, value_enum, value_name = "COURSE", default_value_t, help_heading = "Optimiser")]
    schedule: CourseName,
    /// Updates of the parameters [default: three epochs]
    #[arg(long, value_name = "N", conflicts_with = "epochs", help_heading = "Optimiser")]
    steps: Option<u64>,
    /// Passes over the data
    #[arg(long, value_name = "N", help_heading = "Optimiser")]
    epochs: Option<f64>,
    /// Rows of a pass
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Optimiser")]
    batch: u16,
    /// Passes whose gradients are added before an update
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Optimiser")]
    accumulate: u16,
    /// Largest norm of the gradients; larger ones are scaled down
    #[arg(long, value_name = "NORM", default_value_t = 1.0, help_heading = "Optimiser")]
    clip: f64,
    /// Weight decay of matrices
    #[arg(long, value_name = "DECAY", default_value_t = 0.01, help_heading = "Optimiser")]
    weight_decay: f64,
    /// Tokens whose prediction counts
    #[arg(long, value_enum, value_name = "TOKENS", default_value_t, help_heading = "Data")]
    loss_on: LossOnName,
    /// Seed of the order of the data and of new adapters
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Data")]
    seed: u64,
    /// Take the lines in order
    #[arg(long, help_heading = "Data")]
    no_shuffle: bool,
    /// Give every line a row of its own; by default short ones share rows
    #[arg(long, help_heading = "Data")]
    no_pack: bool,
    /// Lines to measure the loss on and not to train on: a file, or a part of the data
    #[arg(long, value_name = "FILE|FRACTION", help_heading = "Data")]
    eval: Option<String>,
    /// Folder of the checkpoint, written every --save-every steps, at the end and at Ctrl-C
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath, help_heading = "Run")]
    checkpoint: Option<PathBuf>,
    /// Steps between checkpoints and between evaluations
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Run")]
    save_every: u64,
    /// Continue after the checkpoint
    #[arg(long, requires = "checkpoint", help_heading = "Run")]
    resume: bool,
    /// Write a JSON object a step: step, loss, grad_norm, lr, tokens_per_second
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Run")]
    log: Option<PathBuf>,
    /// Time the kernels of a pass instead of training
    #[arg(long, help_heading = "Run")]
    profile: bool,
    #[command(flatten)]
    common: Common,
}

/// How the learning rate goes on after the warm-up.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum CourseName {
    #[default]
    Cosine,
    Constant,
}

/// Value of --loss-on.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum LossOnName {
    /// replies of the assistant, and completions
    #[default]
    Replies,
    /// all tokens
    All,
}

/// Tokens of a row without --ctx.
const ROW: usize = 512;
/// Rank of the adapters without --rank and --init.
const RANK: usize = 16;
/// Default number of epochs.
const EPOCHS: f64 = 3.0;
/// Logits computed at a time, in bytes.
const LOSS_BYTES: usize = 256 << 20;
/// File of the checkpoint in its folder.
const CHECKPOINT: &str = "checkpoint.gguf";

pub fn run(options: TrainArgs) -> Result {
    options.common.check()?;
    options.common.check_computes()?;
    if !options.common.lora.is_empty() {
        return Err(Failure::usage(
            "training does not apply other adapters",
            "--init ADAPTER.gguf continues with an adapter",
        ));
    }
    let model = Model::open(options.model.name())?;
    let described = model.describe()?;
    let data = Data::read(&options, &model)?;
    let start = match options.full {
        true => Start::Full,
        false => Start::Adapter(options.adapter(described.as_ref())?),
    };
    let shape = options.shape(described.as_ref());
    let stream = Stream::new(data.examples, options.stream(&model, shape)?);
    let evaluation = match data.evaluation.is_empty() {
        true => Vec::new(),
        false => Stream::new(data.evaluation, options.stream(&model, shape)?).all_once(),
    };
    let schedule = options.schedule(stream.rows_of_epoch());
    let trainer = options.trainer(&model, &start, shape)?;
    let mut run = Run::new(trainer, stream, schedule);
    let files = Files::open(&options, data.hash)?;
    if options.resume {
        run.resume(&files.checkpoint()?).map_err(failure)?;
    }
    say!(
        "training {} numbers on {} lines: {} steps of {} tokens",
        run.trainer().places().count(),
        data.lines,
        schedule.steps,
        shape.tokens() * usize::from(options.accumulate)
    );
    if options.profile {
        return profile(&mut run);
    }
    train(&options, &mut run, files, &evaluation, schedule.steps)?;
    options.write(&model, &start, &run)
}

/// Prints the kernels of a pass by time: share, milliseconds, launches, function and work.
fn profile(run: &mut Run) -> Result {
    run.profile().map_err(failure)?;
    let mut kernels: Vec<(String, f64, usize)> = Vec::new();
    for (name, seconds) in run.profile().map_err(failure)? {
        match kernels.iter_mut().find(|k| k.0 == name) {
            Some(kernel) => (kernel.1, kernel.2) = (kernel.1 + seconds, kernel.2 + 1),
            None => kernels.push((name, seconds, 1)),
        }
    }
    kernels.sort_by(|a, b| b.1.total_cmp(&a.1));
    let all: f64 = kernels.iter().map(|k| k.1).sum();
    let mut out = io::stdout().lock();
    for (name, seconds, launches) in kernels {
        let (share, ms) = (100.0 * seconds / all, 1e3 * seconds);
        writeln!(out, "{share:5.1} %  {ms:9.2} ms  {launches:5}  {name}")?;
    }
    Ok(())
}

/// What is trained, with its first values.
enum Start {
    /// All weights, as the file has them.
    Full,
    /// Low-rank adapters with these matrices.
    Adapter(Adapter),
}

/// Takes the steps that are left.
fn train(
    options: &TrainArgs,
    run: &mut Run,
    mut files: Files,
    evaluation: &[(TrainingBatch, usize)],
    steps: u64,
) -> Result {
    let interrupt = Interrupt::install(false)?;
    let bar = progress::steps(steps);
    let mut evaluated = None;
    while !run.is_done() {
        interrupt.begin();
        let began = Instant::now();
        let report = run.step().map_err(failure)?;
        files.log(&report, began.elapsed().as_secs_f64())?;
        bar.set_position(report.step);
        let of_evaluation = evaluated.map_or(String::new(), |loss: f64| format!(", eval {loss:.4}"));
        bar.set_message(format!("loss {:.4}{of_evaluation}", report.loss));
        let is_due = report.step % options.save_every == 0 || run.is_done();
        if is_due && !evaluation.is_empty() {
            let loss = run.evaluate(evaluation).map_err(failure)?;
            files.log_evaluation(report.step, loss)?;
            evaluated = Some(loss);
        }
        if is_due || interrupt.is_asked() {
            files.save(run)?;
        }
        if interrupt.is_asked() {
            bar.finish_and_clear();
            let hint = match &options.checkpoint {
                Some(folder) => format!("--checkpoint {} --resume continues", folder.display()),
                None => "with --checkpoint FOLDER a run can continue".into(),
            };
            return Err(Failure::new(format_args!("stopped after step {}", report.step), hint));
        }
    }
    interrupt.end();
    bar.finish_and_clear();
    if let Some(loss) = evaluated {
        say!("loss on the lines of --eval: {loss:.4}");
    }
    Ok(())
}

fn failure(error: gristmill_llm::train::TrainError) -> Failure {
    use gristmill_llm::train::TrainError::{Checkpoint, Engine, NotFinite};
    match error {
        Engine(error) => error.into(),
        NotFinite { .. } => Failure::new(error, "lower --lr, or lengthen --warmup; --checkpoint keeps the last good state"),
        Checkpoint(_) => Failure::new(error, "begin again without --resume, or give the flags of the first run"),
    }
}

impl From<FullError> for Failure {
    fn from(error: FullError) -> Failure {
        match error {
            FullError::File(error) => error.into(),
            FullError::Quantised { .. } => {
                Failure::new(error, "leave --full out to train an adapter of it")
            }
        }
    }
}

/// Lines of the data as tokens.
struct Data {
    examples: Vec<Example>,
    evaluation: Vec<Example>,
    lines: usize,
    /// Hash of all lines, which a checkpoint is bound to.
    hash: u64,
}

impl Data {
    fn read(options: &TrainArgs, model: &Model) -> Result<Data> {
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
            examples,
            evaluation,
            hash,
        })
    }
}

/// Reads all lines of a file, and their hash (FNV-1a).
fn lines(reader: &ExampleReader, path: &Path, context: usize) -> Result<(Vec<Example>, u64)> {
    let failed = |error| Failure::file("read", path, error);
    let file = BufReader::new(File::open(path).map_err(failed)?);
    let (mut out, mut hash) = (Vec::new(), 0xcbf2_9ce4_8422_2325u64);
    let bar = progress::lines();
    for (number, line) in file.lines().enumerate() {
        let line = line.map_err(failed)?;
        let text = line.trim_start_matches('\u{feff}').trim();
        if text.is_empty() {
            continue;
        }
        hash = text.bytes().fold(hash, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
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

impl TrainArgs {
    /// The adapter that training begins with.
    fn adapter(&self, model: &dyn arch::Model) -> Result<Adapter> {
        if let Some(path) = &self.init {
            let file = ModelFile::open(path)?;
            let adapter = Adapter::read(&file, model).map_err(|error| {
                Failure::new(format_args!("{}: {error}", path.display()), "--init takes a LoRA adapter of this model")
            })?;
            let rank = adapter.low_rank().shapes.values().next().map(|shape| shape.rank);
            let differs = |flag: Option<f32>, own: f32| flag.is_some_and(|flag| flag != own);
            if differs(self.rank.map(f32::from), rank.unwrap_or_default() as f32) || differs(self.alpha, adapter.alpha) {
                return Err(Failure::usage(
                    format_args!("the adapter of --init has rank {} and alpha {}", rank.unwrap_or_default(), adapter.alpha),
                    "leave --rank and --alpha out",
                ));
            }
            return Ok(adapter);
        }
        let targets = match self.targets.as_str() {
            "all" => Targets::All,
            "portable" => Targets::Portable,
            names => Targets::Names(names.split(',').map(|name| name.trim().to_owned()).collect()),
        };
        let weights = targets.choose(model);
        if weights.is_empty() {
            return Err(Failure::usage(
                format_args!("no linear layer of the model has a name with {}", self.targets),
                "--targets takes all, portable, or parts of tensor names; `gristmill inspect --tensors` lists them",
            ));
        }
        let ignored = ignored_elsewhere(model, &weights);
        if let Some(first) = ignored.first() {
            say!("warning: llama.cpp loads adapters of {first} and {} like it, and ignores them; --targets portable leaves them out", ignored.len() - 1);
        }
        let rank = self.rank.map_or(RANK, usize::from);
        let alpha = self.alpha.unwrap_or(2.0 * rank as f32);
        Ok(initial_adapter(model, &weights, rank, alpha, self.seed))
    }
    fn shape(&self, model: &dyn arch::Model) -> TrainingShape {
        let length = self.common.ctx().unwrap_or(ROW.min(model.context()));
        let sequences = usize::from(self.batch);
        let most = (LOSS_BYTES / size_of::<f32>() / model.vocabulary()).max(1);
        let tokens = sequences * length;
        let loss_rows = (1..=most.min(tokens)).rev().find(|&rows| tokens.is_multiple_of(rows));
        TrainingShape {
            sequences,
            length,
            packed: !self.no_pack,
            loss_rows: loss_rows.unwrap_or(1),
        }
    }
    fn stream(&self, model: &Model, shape: TrainingShape) -> Result<StreamOptions> {
        let tokenizer = model.tokenizer()?;
        Ok(StreamOptions {
            length: shape.length,
            sequences: shape.sequences,
            accumulate: self.accumulate.into(),
            seed: (!self.no_shuffle).then_some(self.seed),
            pack: shape.packed,
            padding: tokenizer.pad().or(tokenizer.eos()).unwrap_or(0),
        })
    }
    fn schedule(&self, rows: usize) -> Schedule {
        let of_step = usize::from(self.batch) * usize::from(self.accumulate);
        let by_epochs = || {
            let rows = rows as f64 * self.epochs.unwrap_or(EPOCHS);
            (rows / of_step as f64).ceil().max(1.0) as u64
        };
        Schedule {
            rate: self.lr,
            warmup: self.warmup,
            steps: self.steps.unwrap_or_else(by_epochs),
            course: match self.schedule {
                CourseName::Cosine => Course::Cosine,
                CourseName::Constant => Course::Constant,
            },
        }
    }
    fn trainer(&self, model: &Model, start: &Start, shape: TrainingShape) -> Result<Trainer> {
        let opened = self.common.open()?;
        let options = TrainerOptions {
            shape,
            trained: match start {
                Start::Full => Trained::Full,
                Start::Adapter(adapter) => Trained::LowRank(adapter.low_rank()),
            },
            clip: self.clip,
            weight_decay: self.weight_decay,
            exact: self.common.is_exact(),
        };
        let bars = Bars::named(&model.name);
        let show = |progress| bars.show(progress);
        let planned = PlannedTraining::new(&model.file, opened, options, &show)?;
        let memory = planned.memory();
        say!(
            "memory: {} = {} of weights, {} of parameters and moments, {} of activations",
            size(memory.total()),
            size(memory.weights),
            size(memory.parameters),
            size(memory.activations)
        );
        let mut trainer = planned.load(&show)?;
        match start {
            Start::Adapter(adapter) => {
                for (name, tensor) in &adapter.tensors {
                    trainer.set_parameter(name, &tensor.values)?;
                }
            }
            Start::Full => {
                let places = trainer.places().clone();
                initial_weights(&model.file, &places, |name, values| {
                    Ok::<_, Failure>(trainer.set_parameter(name, values)?)
                })?;
            }
        }
        Ok(trainer)
    }
    /// Writes the trained adapter or model.
    fn write(&self, model: &Model, start: &Start, run: &Run) -> Result {
        let trainer = run.trainer();
        let (places, values) = (trainer.places(), trainer.parameters()?);
        let failed = |error: io::Error| Failure::file("write", &self.output, error);
        let beside = self.output.with_extension("gguf.tmp");
        let file = File::create(&beside).map_err(failed)?;
        let out = io::BufWriter::new(&file);
        match start {
            Start::Full => write_model(&model.file, places, &values, out)?,
            Start::Adapter(adapter) => {
                let architecture = trainer.model().architecture();
                Adapter::from_parameters(architecture, adapter.alpha, places, &values).write(out)?;
            }
        }
        file.sync_all().map_err(failed)?;
        fs::rename(&beside, &self.output).map_err(failed)?;
        say!("wrote {}", self.output.display());
        Ok(())
    }
}

/// Log and checkpoint of a run.
struct Files {
    log: Option<File>,
    log_path: PathBuf,
    checkpoint: Option<PathBuf>,
    /// What a checkpoint is bound to.
    run: String,
}

impl Files {
    fn open(options: &TrainArgs, hash: u64) -> Result<Files> {
        let log_path = options.log.clone().unwrap_or_default();
        let open = |path: &PathBuf| {
            let mut how = File::options();
            how.create(true).write(true).append(options.resume).truncate(!options.resume);
            how.open(path).map_err(|error| Failure::file("write", path, error))
        };
        let checkpoint = options.checkpoint.as_ref().map(|folder| {
            fs::create_dir_all(folder).map_err(|error| Failure::file("create", folder, error))?;
            Ok::<_, Failure>(folder.join(CHECKPOINT))
        });
        Ok(Files {
            log: options.log.as_ref().map(open).transpose()?,
            log_path,
            checkpoint: checkpoint.transpose()?,
            run: options.description(hash),
        })
    }
    fn checkpoint(&self) -> Result<Checkpoint> {
        let path = self.checkpoint.as_deref().unwrap_or(Path::new(CHECKPOINT));
        Checkpoint::read(path, &self.run).map_err(|error| failure(error.into()))
    }
    fn save(&self, run: &Run) -> Result {
        let Some(path) = &self.checkpoint else {
            return Ok(());
        };
        let checkpoint = run.checkpoint().map_err(failure)?;
        checkpoint.write(path, &self.run).map_err(|error| {
            Failure::new(error, "free disk space; the checkpoint before this one is unchanged")
        })
    }
    fn log(&mut self, report: &StepReport, seconds: f64) -> Result {
        self.line(&json!({
            "step": report.step,
            "loss": report.loss,
            "grad_norm": report.gradient_norm,
            "lr": report.rate,
            "tokens_per_second": report.tokens as f64 / seconds,
        }))
    }
    fn log_evaluation(&mut self, step: u64, loss: f64) -> Result {
        self.line(&json!({ "step": step, "eval_loss": loss }))
    }
    fn line(&mut self, value: &serde_json::Value) -> Result {
        match &mut self.log {
            None => Ok(()),
            Some(file) => writeln!(file, "{value}").map_err(|error| Failure::file("write", &self.log_path, error)),
        }
    }
}

impl TrainArgs {
    /// What decides the course of a run, so that another run does not continue its checkpoint.
    fn description(&self, data: u64) -> String {
        let TrainArgs { rank, alpha, targets, lr, warmup, batch, accumulate, clip, weight_decay, seed, .. } = self;
        let [course, loss_on] = [
            self.schedule.to_possible_value(),
            self.loss_on.to_possible_value(),
        ]
        .map(|value| value.map_or(String::new(), |v| v.get_name().to_owned()));
        format!(
            "data {data:016x}, targets {targets}, rank {rank:?}, alpha {alpha:?}, lr {lr}, warmup {warmup}, {course}, \
             batch {batch}x{accumulate}, ctx {:?}, clip {clip}, decay {weight_decay}, loss on {loss_on}, seed {seed}, \
             shuffle {}, pack {}",
            self.common.ctx(),
            !self.no_shuffle,
            !self.no_pack
        )
    }
}
