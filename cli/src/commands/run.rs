//! `gristmill run`.

use crate::answer::answer;
use crate::failure::{Failure, Result};
use crate::flags::Common;
use crate::model::{self, Model, warn};
use crate::reader::Reader;
use crate::sampler::{self, Sampling};
use crate::style::Screen;
use clap::{Args, ValueHint};
use gristmill_llm::chat::{Message, RenderOptions, TextSpan};
use gristmill_llm::sched::Batcher;
use rustix::fs::{FileType, Stat};
use std::io::{self, IsTerminal};

const NOTES: &str = "\
Examples:
  gristmill run -p 'What is the capital of Japan?'                  the demo model
  gristmill run glm-4.7-flash 'Explain mmap.' -n 200                at most 200 tokens
  gristmill run MODEL.gguf < question.txt > answer.txt              from a file, the answer alone into another
  gristmill run MODEL.gguf --raw -p 'Once upon a time' --seed 7     without the chat template; the same text each time";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    #[arg(value_hint = ValueHint::FilePath, help = model::HELP_OR_DEMO)]
    model: Option<String>,
    /// What to say to the model; without it, and with `-`, all of standard input
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// The same as a flag, for the model that is meant without MODEL
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "text")]
    prompt: Option<String>,
    /// Most tokens of the completion; -1 until the model ends it or the context is full [default: -1]
    #[arg(short, value_name = "N", value_parser = sampler::count, allow_negative_numbers = true)]
    n: Option<usize>,
    /// Take TEXT as the whole prompt, special tokens parsed, without the chat template
    #[arg(long)]
    raw: bool,
    /// What to tell the model before
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Ask a model that can reason first not to
    #[arg(long, conflicts_with = "raw")]
    no_think: bool,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    common: Common,
}

pub fn run(options: Options) -> Result {
    options.sampling.check()?;
    let text = prompt(&options)?;
    let model = Model::open(options.model.as_deref())?;
    let tokenizer = model.tokenizer()?;
    let mut reader = Reader::plain(&tokenizer);
    let prompt = match options.raw {
        true => tokenizer.encode(&text, true, true),
        false => {
            let (template, why) = model.template(&tokenizer)?;
            warn(why.as_slice());
            reader = Reader::for_markup(&tokenizer, template.markup());
            let mut messages: Vec<Message> = options.system.iter().map(Message::system).collect();
            messages.push(Message::user(text));
            let thinking = options.no_think.then_some(false);
            let render =
                RenderOptions { add_generation_prompt: true, enable_thinking: thinking, ..RenderOptions::default() };
            let spans = template.render(&messages, &render)?;
            tokenizer.encode_spans(&TextSpan::pairs(&spans), true)
        }
    };
    model.check_context(&options.common, prompt.len())?;
    let sampler = options.sampling.sampler(&model)?;
    let mut batcher = Batcher::new(model.load(&options.common, None)?);
    let limit = options.n.unwrap_or(usize::MAX);
    let mut out = Screen::new(io::stdout().lock());
    let answer = answer(&mut batcher, &mut reader, &sampler, &prompt, limit, &mut out, &|| false)?;
    // A line's end for people; the completion alone for programs.
    out.end(false)?;
    let greedy = sampler.params().temperature <= 0.0;
    let seed = if greedy { String::new() } else { format!(" seed {}", sampler.params().seed) };
    if !answer.text.ends_with('\n') && !io::stdout().is_terminal() && may_share_a_line() {
        say!();
    }
    say!("{}{seed}", answer.summary());
    Ok(())
}

/// What to say to the model.
fn prompt(options: &Options) -> Result<String> {
    match options.text.as_deref().or(options.prompt.as_deref()) {
        Some("-") => read_input(),
        Some(text) => Ok(text.to_owned()),
        None if io::stdin().is_terminal() => {
            // The one word was meant as the prompt, it seems.
            let hint = match &options.model {
                Some(text) if text.contains(char::is_whitespace) => format!("`gristmill run -p '{text}'` asks the demo model"),
                _ => "give it with -p TEXT or after MODEL, or pipe it in; `gristmill chat` holds a conversation".into(),
            };
            Err(Failure::usage("there is no prompt", hint))
        }
        None => match read_input()? {
            text if text.trim().is_empty() => {
                Err(Failure::usage("there is no prompt: standard input is empty", "give one with -p TEXT, or after MODEL"))
            }
            text => Ok(text),
        },
    }
}

/// May what is written to standard output and to standard error meet on one line of what people see: is standard output anything but a file
/// that standard error does not go to?
fn may_share_a_line() -> bool {
    let of = |stat: rustix::io::Result<Stat>| stat.ok().map(|s| (s.st_dev, s.st_ino, FileType::from_raw_mode(s.st_mode)));
    let (out, err) = (of(rustix::fs::fstat(io::stdout())), of(rustix::fs::fstat(io::stderr())));
    !out.is_some_and(|out| out.2 == FileType::RegularFile && Some(out) != err)
}

/// All of standard input, as text.
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
