//! `gristmill run`.

use crate::failure::{Failure, Result};
use crate::flags::Common;
use crate::generate::{AnswerLimits, ReasoningFlags, answer};
use crate::model::{self, Model, warn};
use crate::model_arg::ModelFlags;
use crate::reasoning_view::Reader;
use crate::sampler::{self, Sampling};
use crate::speculation::Speculation;
use crate::style::Screen;
use clap::{Args, ValueHint};
use gristmill_llm::chat::{Message, RenderOptions, TextSpan};
use rustix::fs::{FileType, Stat};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

const NOTES: &str = "\
Examples:
  gristmill run -p 'What is the capital of Japan?'                the demo model
  gristmill run glm-4.7-flash 'Explain mmap.' -n 200              at most 200 tokens
  gristmill run MODEL.gguf < question.txt > answer.txt            the completion alone in a file
  gristmill run MODEL.gguf --raw -p 'Once upon a time' --seed 7   no chat template; reproducible
  gristmill run -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -p Hi --temp 0      a hub repository, greedy decoding";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct RunArgs {
    #[arg(value_hint = ValueHint::FilePath, help = model::HELP_OR_DEMO)]
    model: Option<String>,
    /// Prompt; standard input if it is left out or `-`
    #[arg(value_name = "PROMPT")]
    text: Option<String>,
    #[command(flatten)]
    flags: ModelFlags,
    /// Prompt as a flag, for use without MODEL
    #[arg(short, long, value_name = "PROMPT", allow_hyphen_values = true, conflicts_with = "text")]
    prompt: Option<String>,
    /// Read the prompt from a file
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["text", "prompt"])]
    file: Option<PathBuf>,
    /// Maximum number of tokens to generate; -1 for no limit [default: -1]
    #[arg(
        short, long = "n-predict", aliases = ["predict", "max-tokens"], value_name = "N",
        value_parser = sampler::count, allow_negative_numbers = true
    )]
    n: Option<usize>,
    /// Use PROMPT as it is, without the chat template; special tokens are parsed
    #[arg(long, conflicts_with_all = ["no_think", "reasoning_budget"])]
    raw: bool,
    /// System prompt
    #[arg(
        long, alias = "system-prompt", value_name = "TEXT", allow_hyphen_values = true,
        conflicts_with = "raw"
    )]
    system: Option<String>,
    #[command(flatten)]
    reasoning: ReasoningFlags,
    #[command(flatten)]
    speculation: Speculation,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    common: Common,
}

pub fn run(options: RunArgs) -> Result {
    options.common.check()?;
    options.sampling.check()?;
    let (model, text) = options.flags.with_next(options.model.as_deref(), options.text.as_deref())?;
    let text = prompt(&options, model, text)?;
    let model = options.speculation.attach(Model::open(model)?.with_adapters(&options.common.lora)?)?;
    let tokenizer = model.tokenizer()?;
    let mut reader = Reader::plain(&tokenizer);
    let tokens = options.n.unwrap_or(usize::MAX);
    let mut limits = AnswerLimits::of_tokens(tokens);
    let prompt = match options.raw {
        true => tokenizer.encode(&text, true, true),
        false => {
            let (template, why) = model.template(&tokenizer)?;
            warn(why.as_slice());
            reader = Reader::for_markup(&tokenizer, template.markup());
            let mut messages: Vec<Message> = options.system.iter().map(Message::system).collect();
            messages.push(Message::user(text));
            let thinking = options.reasoning.switch();
            let render =
                RenderOptions { add_generation_prompt: true, enable_thinking: thinking, ..RenderOptions::default() };
            let spans = template.render(&messages, &render)?;
            let written = (&template, &spans[..]);
            limits = AnswerLimits::new(tokens, &options.reasoning, written, &tokenizer);
            tokenizer.encode_spans(&TextSpan::pairs(&spans), true)
        }
    };
    model.check_context(&options.common, prompt.len())?;
    let sampler = options.sampling.sampler(&model)?;
    let mut batcher = options.speculation.load_for_prompt(&model, &options.common, prompt.len())?;
    let mut out = Screen::new(io::stdout().lock());
    let answer = answer(&mut batcher, &mut reader, &sampler, &prompt, limits, &mut out, &|| false)?;
    // Programs get the completion without a line end.
    out.end(false)?;
    let greedy = sampler.params().temperature <= 0.0;
    let seed = if greedy { String::new() } else { format!(" seed {}", sampler.params().seed) };
    if !answer.text.ends_with('\n') && !io::stdout().is_terminal() && may_share_a_line() {
        say!();
    }
    say!("{}{seed}", answer.summary());
    Ok(())
}

/// The prompt, from an argument, a file or standard input.
fn prompt(options: &RunArgs, model: Option<&str>, text: Option<&str>) -> Result<String> {
    let given = [text, options.prompt.as_deref()];
    match given.into_iter().flatten().next() {
        Some(_) if given.iter().flatten().count() + usize::from(options.file.is_some()) > 1 => {
            Err(Failure::usage("the prompt is given twice", "give it with -p, with -f or after MODEL"))
        }
        Some("-") => read_input(),
        Some(text) => Ok(text.to_owned()),
        None if options.file.is_some() => read_file(options.file.as_deref().unwrap_or(Path::new(""))),
        None if io::stdin().is_terminal() => {
            // A MODEL with spaces was meant as the prompt.
            let hint = match model {
                Some(text) if text.contains(char::is_whitespace) => {
                    format!("`gristmill run -p '{text}'` runs the demo model")
                }
                _ => "give it with -p PROMPT or after MODEL, or pipe it in; `gristmill chat` is interactive".into(),
            };
            Err(Failure::usage("there is no prompt", hint))
        }
        None => match read_input()? {
            text if text.trim().is_empty() => {
                Err(Failure::usage("there is no prompt: standard input is empty", "give one with -p PROMPT, or after MODEL"))
            }
            text => Ok(text),
        },
    }
}

/// Whether text of standard output and of standard error may meet on one displayed line: standard
/// output is not a regular file, or it is the file of standard error.
fn may_share_a_line() -> bool {
    let of = |stat: rustix::io::Result<Stat>| stat.ok().map(|s| (s.st_dev, s.st_ino, FileType::from_raw_mode(s.st_mode)));
    let (out, err) = (of(rustix::fs::fstat(io::stdout())), of(rustix::fs::fstat(io::stderr())));
    !out.is_some_and(|out| out.2 == FileType::RegularFile && Some(out) != err)
}

/// A text file, which must be UTF-8.
pub fn read_file(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(|e| Failure::file("read", path, e))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let message = format_args!("{} is not UTF-8 at byte {at}", path.display());
        Failure::new(message, "convert it, with iconv for example")
    })
}

/// All of standard input, which must be UTF-8.
pub fn read_input() -> Result<String> {
    let bytes = {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::stdin().lock(), &mut bytes)?;
        bytes
    };
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::new(format_args!("standard input is not UTF-8 at byte {at}"), "convert it, with iconv for example")
    })
}
