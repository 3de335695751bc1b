//! Flags of `gristmill train`.

use crate::flags::Common;
use crate::model_arg::ModelArg;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

const NOTES: &str = "\
A line of FILE is {\"messages\": [...]}, {\"prompt\": \"...\", \"completion\": \"...\"} or {\"text\": \"...\"}.
Arithmetic is in f32 on the weights as they are packed; the adapter is f32.

Examples:
  gristmill train MODEL.gguf --data chats.jsonl -o adapter.gguf
  gristmill train MODEL.gguf --data chats.jsonl -o adapter.gguf --targets portable   for llama.cpp too
  gristmill train MODEL.gguf --data chats.jsonl -o adapter.gguf --eval 0.1 --checkpoint run
  gristmill train MODEL.gguf --data chats.jsonl -o adapter.gguf --checkpoint run --resume
  gristmill train MODEL.gguf --data chats.jsonl -o adapter.gguf --html page.html     curves and replies
  gristmill train MODEL.gguf --data chats.jsonl -o adapter/       for Hugging Face PEFT
  gristmill train CONFIG.json --full --data texts.jsonl -o model.gguf    from random weights
  gristmill train MODEL.gguf --draft-block --loss-on all --data texts.jsonl -o drafting.gguf
  gristmill run MODEL.gguf --lora adapter.gguf -p 'Hello'";

#[derive(Args)]
#[command(after_help = NOTES, override_usage = "gristmill train [OPTIONS] <MODEL> --data <FILE.jsonl> -o <ADAPTER>")]
pub struct TrainArgs {
    #[command(flatten)]
    pub model: ModelArg,
    /// Training data: a JSON object a line
    #[arg(long, value_name = "FILE.jsonl", value_hint = ValueHint::FilePath, help_heading = "Data")]
    pub data: PathBuf,
    /// Adapter to write: a GGUF file, or a folder/ or .safetensors file in the layout of PEFT
    #[arg(short, long, value_name = "ADAPTER", value_hint = ValueHint::AnyPath)]
    pub output: PathBuf,
    /// Rank of the adapters [default: 16, or that of --init]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Adapter")]
    pub rank: Option<u16>,
    /// Adapters are scaled by ALPHA / rank [default: twice the rank, or that of --init]
    #[arg(long, value_name = "ALPHA", help_heading = "Adapter")]
    pub alpha: Option<f32>,
    /// Adapted weights: all linear layers of blocks, portable (those that llama.cpp applies), or
    /// parts of names, such as attn_q,ffn_down
    #[arg(long, value_name = "NAMES|all|portable", default_value = "all", help_heading = "Adapter")]
    pub targets: String,
    /// Begin with this adapter: a GGUF file, or a folder or .safetensors file of PEFT
    #[arg(long, value_name = "ADAPTER", value_hint = ValueHint::AnyPath, help_heading = "Adapter")]
    pub init: Option<PathBuf>,
    /// Train all weights of a model in f32, f16 or bf16, and write the model to -o. MODEL may be a
    /// .json configuration: its weights are random at first
    #[arg(long, conflicts_with_all = ["rank", "alpha", "targets", "init"], help_heading = "Adapter")]
    pub full: bool,
    /// Train the block for draft tokens, a new one if the model has none, and write the model with
    /// it to -o; everything else stays as it is. -o mtp-NAME.gguf writes the block alone, for the
    /// model NAME.gguf in that folder. `run --speculate mtp` uses the block
    #[arg(long, conflicts_with_all = ["rank", "alpha", "targets", "init", "full"], help_heading = "Adapter")]
    pub draft_block: bool,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 2e-4, help_heading = "Optimiser")]
    pub lr: f64,
    /// Steps of linear growth of the learning rate
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Optimiser")]
    pub warmup: u64,
    /// Course of the learning rate after the warm-up; cosine ends at a tenth
    #[arg(long, value_enum, value_name = "COURSE", default_value_t, help_heading = "Optimiser")]
    pub schedule: CourseName,
    /// Updates of the parameters [default: three epochs]
    #[arg(long, value_name = "N", conflicts_with = "epochs", help_heading = "Optimiser")]
    pub steps: Option<u64>,
    /// Passes over the data
    #[arg(long, value_name = "N", help_heading = "Optimiser")]
    pub epochs: Option<f64>,
    /// Rows of a pass
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Optimiser")]
    pub batch: u16,
    /// Passes whose gradients are added before an update
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Optimiser")]
    pub accumulate: u16,
    /// Largest norm of the gradients; larger ones are scaled down
    #[arg(long, value_name = "NORM", default_value_t = 1.0, help_heading = "Optimiser")]
    pub clip: f64,
    /// Weight decay of matrices
    #[arg(long, value_name = "DECAY", default_value_t = 0.01, help_heading = "Optimiser")]
    pub weight_decay: f64,
    /// Tokens whose prediction counts
    #[arg(long, value_enum, value_name = "TOKENS", default_value_t, help_heading = "Data")]
    pub loss_on: LossOnName,
    /// Seed of the order of the data, and of new adapters and weights
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Data")]
    pub seed: u64,
    /// Take the lines in order
    #[arg(long, help_heading = "Data")]
    pub no_shuffle: bool,
    /// Give every line a row of its own; by default short ones share rows
    #[arg(long, help_heading = "Data")]
    pub no_pack: bool,
    /// Lines to measure the loss on and not to train on: a file, or a part of the data
    #[arg(long, value_name = "FILE|FRACTION", help_heading = "Data")]
    pub eval: Option<String>,
    /// Folder of the checkpoint, written every --save-every steps, at the end and at Ctrl-C
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath, help_heading = "Run")]
    pub checkpoint: Option<PathBuf>,
    /// Steps between checkpoints and between evaluations
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Run")]
    pub save_every: u64,
    /// Continue after the checkpoint
    #[arg(long, requires = "checkpoint", help_heading = "Run")]
    pub resume: bool,
    /// Write a JSON object a step: step, loss, grad_norm, lr, tokens_per_second
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Run")]
    pub log: Option<PathBuf>,
    /// Write a page: curves, settings, and replies to three prompts before and after training
    #[arg(long, value_name = "PAGE.html", value_hint = ValueHint::FilePath, conflicts_with = "profile", help_heading = "Run")]
    pub html: Option<PathBuf>,
    /// Time the kernels of a pass instead of training
    #[arg(long, help_heading = "Run")]
    pub profile: bool,
    #[command(flatten)]
    pub common: Common,
}

/// How the learning rate goes on after the warm-up.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum CourseName {
    #[default]
    Cosine,
    Constant,
}

/// Value of --loss-on.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LossOnName {
    /// replies of the assistant, and completions
    #[default]
    Replies,
    /// all tokens
    All,
}

impl CourseName {
    /// The name on the command line.
    pub fn name(self) -> String {
        name(self)
    }
}

impl LossOnName {
    /// The name on the command line.
    pub fn name(self) -> String {
        name(self)
    }
}

fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or(String::new(), |v| v.get_name().to_owned())
}
