//! `gristmill chat`.

use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::generate::{AnswerLimits, Generation, ReasoningFlags, answer};
use crate::input::Input;
use crate::interrupt::Interrupt;
use crate::model::{self, Model, shortest, warn};
use crate::model_arg::ModelFlags;
use crate::reasoning_view::Reader;
use crate::sampler::{self, Sampling};
use crate::size::size;
use crate::speculation::Speculation;
use crate::style::{Screen, begins_thinking, faint};
use clap::{Args, ValueHint};
use gristmill_llm::chat::{ChatTemplate, Message, RenderOptions, TextSpan};
use gristmill_llm::sampling::Sampler;
use gristmill_llm::sched::Batcher;
use gristmill_llm::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

const NOTES: &str = "\
On a terminal, lines are edited and kept in a history, Tab completes commands, and Ctrl-C stops
the answer. From a pipe, each line is a message; only the answers go to standard output.

Examples:
  gristmill chat                                          the demo model
  gristmill chat glm-4.7-flash --system 'Be brief.'       by short name, downloaded on first use
  gristmill chat MODEL.gguf --no-think --temp 0           no reasoning, greedy decoding
  printf 'Hello!\\n/save talk.json\\n' | gristmill chat   from a script";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct ChatArgs {
    #[arg(value_hint = ValueHint::FilePath, help = model::HELP_OR_DEMO)]
    model: Option<String>,
    #[command(flatten)]
    flags: ModelFlags,
    /// First message
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// System prompt
    #[arg(long, alias = "system-prompt", value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    #[command(flatten)]
    reasoning: ReasoningFlags,
    /// Maximum number of tokens per answer; -1 for no limit [default: -1]
    #[arg(
        short, long = "n-predict", aliases = ["predict", "max-tokens"], value_name = "N",
        value_parser = sampler::count, allow_negative_numbers = true
    )]
    n: Option<usize>,
    #[command(flatten)]
    speculation: Speculation,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    common: Common,
}

/// Commands of the conversation: name, argument, help.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("/help", "", "show this list"),
    ("/system", "[TEXT]", "set the system prompt; - removes it; without TEXT, show it"),
    ("/reset", "", "start a new conversation with the same system prompt"),
    ("/save", "FILE", "save the conversation; an existing file is replaced"),
    ("/load", "FILE", "load a saved conversation"),
    ("/stats", "", "show tokens, speeds and memory"),
    ("/exit", "", "exit, as Ctrl-D does"),
];

/// Other names of commands, as Ollama and other programs have them.
const ALIASES: &[(&str, &str)] =
    &[("/?", "/help"), ("/clear", "/reset"), ("/new", "/reset"), ("/bye", "/exit"), ("/quit", "/exit")];

/// Tokens of a usual first message.
const MESSAGE: usize = 16;

const LINES: &str = "Several lines: between \"\"\" and \"\"\", or with \\ at the end of each but the last. Ctrl-C stops the answer.";

pub fn run(options: ChatArgs) -> Result {
    options.common.check()?;
    options.sampling.check()?;
    let (named, message) = options.flags.with_next(options.model.as_deref(), None)?;
    if let Some(text) = message {
        let hint = format!("give MODEL once; a first message is -p '{text}'");
        return Err(Failure::usage("MODEL is given twice", hint));
    }
    let model = options.speculation.attach(Model::open(named)?.with_adapters(&options.common.lora)?)?;
    let tokenizer = model.tokenizer()?;
    let (template, why) = model.template(&tokenizer)?;
    warn(why.as_slice());
    let shortest = shortest(&template, &tokenizer, options.system.as_deref())?;
    model.check_context(&options.common, shortest)?;
    let sampler = options.sampling.sampler(&model)?;
    let batcher = options.speculation.load_for_prompt(&model, &options.common, shortest + MESSAGE)?;
    let mut talk = Talk {
        sampler,
        batcher,
        model: model.name,
        system: options.system,
        messages: Vec::new(),
        reasoning: options.reasoning,
        limit: options.n.unwrap_or(usize::MAX),
        interrupt: Interrupt::install(io::stdin().is_terminal())?,
        tokenizer: &tokenizer,
        template,
        sums: Sums::default(),
    };
    let mut input = Input::open(COMMANDS.iter().map(|c| c.0).chain(ALIASES.iter().map(|a| a.0)).collect())?;
    if input.is_terminal() {
        say!("{}, {} tokens of context; /help for commands", printable(&talk.model), talk.batcher.engine().context());
    }
    let (mut failed, mut first) = (0, options.prompt);
    while let Some(text) = first.take().map_or_else(|| input.message(), |text| Ok(Some(text)))? {
        let (word, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
        let word = ALIASES.iter().find(|alias| alias.0 == word).map_or(word, |alias| alias.1);
        let done = match word {
            "" => Ok(()),
            "/exit" => break,
            word if COMMANDS.iter().any(|c| c.0 == word) => talk.command(word, rest.trim()),
            word if is_command(&text) => Err(no_command(word)),
            _ => talk.turn(&text),
        };
        if let Err(failure) = done {
            // A closed standard output ends the conversation; other failures do not.
            if failure.is_quiet() {
                return Err(failure);
            }
            failure.report();
            failed += 1;
        }
    }
    // Scripts see failures in the exit code.
    if failed > 0 && !input.is_terminal() {
        let which = if failed == 1 { "a message or command".into() } else { format!("{failed} messages or commands") };
        return Err(Failure::new(format_args!("{which} failed"), "the errors above say why"));
    }
    Ok(())
}

/// Whether a message looks like a command, unlike a path or text after a space.
fn is_command(text: &str) -> bool {
    let word = text.split_whitespace().next().unwrap_or_default();
    let name = text.strip_prefix('/').and_then(|_| word.strip_prefix('/'));
    name.is_some_and(|name| !name.is_empty() && name.chars().all(char::is_alphabetic))
}

fn no_command(word: &str) -> Failure {
    let names: Vec<&str> = COMMANDS.iter().map(|c| c.0).collect();
    let hint = format!("commands are {}; a message that starts with / needs a space before it", names.join(", "));
    Failure::new(format_args!("no command {word}"), hint)
}

/// A conversation with a loaded model.
struct Talk<'t> {
    model: String,
    batcher: Batcher,
    sampler: Sampler,
    tokenizer: &'t Tokenizer,
    template: ChatTemplate,
    system: Option<String>,
    messages: Vec<Message>,
    reasoning: ReasoningFlags,
    limit: usize,
    interrupt: Interrupt,
    sums: Sums,
}

/// Totals of a conversation.
#[derive(Default)]
struct Sums {
    prompt: usize,
    prompt_time: Duration,
    reused: usize,
    tokens: usize,
    steps: usize,
    time: Duration,
    /// Context used after the last answer, in tokens.
    held: usize,
}

impl Sums {
    fn add(&mut self, answer: &Generation) {
        let prefill = answer.generated.prefill;
        self.prompt += prefill.run;
        self.prompt_time += prefill.time;
        self.reused += prefill.reused;
        let generated = answer.generated;
        self.tokens += generated.tokens;
        self.steps += generated.steps;
        self.time += generated.time;
        self.held = prefill.reused + prefill.run + generated.tokens;
    }
}

impl Talk<'_> {
    /// Generates the answer to a message; on failure, the message is dropped.
    fn turn(&mut self, text: &str) -> Result {
        self.messages.push(Message::user(text));
        match self.reply() {
            Ok((reply, thought)) => {
                self.messages.push(Message { reasoning_content: thought, ..Message::assistant(reply) });
                Ok(())
            }
            Err(failure) => {
                self.messages.pop();
                let hint = if self.messages.is_empty() { "" } else { "; /reset begins a new conversation" };
                Err(failure.with_hint(hint))
            }
        }
    }
    /// Generates an answer; returns its content and its reasoning.
    fn reply(&mut self) -> Result<(String, Option<String>)> {
        let switch = self.reasoning.switch();
        let render =
            RenderOptions { add_generation_prompt: true, enable_thinking: switch, ..RenderOptions::default() };
        let spans = self.template.render(&self.all(), &render)?;
        let prompt = self.tokenizer.encode_spans(&TextSpan::pairs(&spans), true);
        let mut out = Screen::shaded(io::stdout().lock(), begins_thinking(&TextSpan::concat(&spans)))?;
        let interrupt = &self.interrupt;
        interrupt.begin();
        let stop = || interrupt.is_asked();
        let mut reader = Reader::for_markup(self.tokenizer, self.template.markup());
        let written = (&self.template, &spans[..]);
        let limits = AnswerLimits::new(self.limit, &self.reasoning, written, self.tokenizer);
        let answer =
            answer(&mut self.batcher, &mut reader, &self.sampler, &prompt, limits, &mut out, &stop);
        interrupt.end();
        out.end(answer.is_ok())?;
        let answer = answer?;
        say!("{}", faint(&answer.summary()));
        self.sums.add(&answer);
        Ok((answer.text, answer.thought))
    }
    /// The system prompt and the messages.
    fn all(&self) -> Vec<Message> {
        self.system.iter().map(Message::system).chain(self.messages.iter().cloned()).collect()
    }
    fn command(&mut self, word: &str, rest: &str) -> Result {
        match word {
            "/help" => {
                for (name, takes, does) in COMMANDS {
                    let others: Vec<&str> = ALIASES.iter().filter(|a| a.1 == *name).map(|a| a.0).collect();
                    let also = if others.is_empty() { String::new() } else { format!(" (also {})", others.join(", ")) };
                    say!("{:16} {does}{also}", format!("{name} {takes}"));
                }
                say!("{LINES}");
            }
            "/system" if rest.is_empty() => match &self.system {
                Some(text) => say!("{}", printable(text)),
                None => say!("no system prompt; /system TEXT sets one"),
            },
            "/system" if rest == "-" => {
                self.system = None;
                say!("the system prompt is removed");
            }
            "/system" => {
                self.system = Some(rest.to_owned());
                say!("the system prompt is set; `/system -` removes it");
            }
            "/reset" => {
                self.messages.clear();
                self.batcher.reset();
                self.sums.held = 0;
                let stays = if self.system.is_some() { " with the same system prompt" } else { "" };
                say!("new conversation{stays}");
            }
            "/save" => self.save(&file(word, rest)?)?,
            "/load" => self.load(&file(word, rest)?)?,
            _ => self.stats(),
        }
        Ok(())
    }
    fn save(&self, path: &Path) -> Result {
        let messages: Vec<Value> = self.all().iter().map(Message::to_json).collect();
        let text = format!("{:#}\n", json!({ "model": self.model, "messages": messages }));
        let replaced = if path.exists() { ", replacing the file" } else { "" };
        std::fs::write(path, text).map_err(|e| Failure::file("write", path, e))?;
        say!("{} messages saved to {}{replaced}", messages.len(), shown(path));
        Ok(())
    }
    /// Loads a conversation; a file that cannot be read changes nothing.
    fn load(&mut self, path: &Path) -> Result {
        let text = std::fs::read_to_string(path).map_err(|e| Failure::file("read", path, e))?;
        let (system, messages) = conversation(&text).ok_or_else(|| {
            Failure::new(
                format_args!("{} holds no conversation", path.display()),
                "/save writes such a file: {\"messages\": [{\"role\": \"user\", \"content\": \"…\"}, …]}",
            )
        })?;
        say!("{} messages loaded from {}", messages.len() + usize::from(system.is_some()), shown(path));
        (self.system, self.messages) = (system, messages);
        // The prefix cache finds shared tokens at the next prompt.
        Ok(())
    }
    fn stats(&self) {
        let rate = |n: usize, time: Duration| match n {
            0 => "-".into(),
            n => format!("{:.1} tok/s", n as f64 / time.as_secs_f64().max(1e-9)),
        };
        let engine = self.batcher.engine();
        let Sums { prompt, prompt_time, reused, tokens, steps, time, held } = self.sums;
        let context = engine.context();
        say!("{}", printable(&self.model));
        say!("  messages    {}", self.all().len());
        say!("  context     {held} of {context} tokens, {:.0} %", 100.0 * held as f64 / context as f64);
        say!("  prefill     {prompt} tokens, {}; {reused} reused from the KV cache", rate(prompt, prompt_time));
        say!("  decode      {tokens} tokens, {}", rate(steps, time));
        let cache = engine.cache().sequence_bytes(held) as u64;
        say!("  memory      {} of weights, {} of KV cache", size(engine.weights().bytes()), size(cache));
        let params = self.sampler.params();
        say!("  sampling    temperature {}, seed {}", params.temperature, params.seed);
    }
}

fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

/// The path that a command takes, with `~/` expanded.
fn file(word: &str, rest: &str) -> Result<PathBuf> {
    match rest.strip_prefix("~/") {
        _ if rest.is_empty() => Err(Failure::new(format_args!("{word} takes a file"), format!("{word} talk.json"))),
        Some(inside) => match std::env::var_os("HOME") {
            Some(home) => Ok(PathBuf::from(home).join(inside)),
            None => Ok(rest.into()),
        },
        None => Ok(rest.into()),
    }
}

/// Parses a conversation as `/save` writes it, or its list of messages: system prompt and the rest.
fn conversation(text: &str) -> Option<(Option<String>, Vec<Message>)> {
    let value: Value = serde_json::from_str(text).ok()?;
    let list = value.get("messages").unwrap_or(&value).as_array()?;
    let message = |m: &Value| {
        let reasoning_content = m["reasoning_content"].as_str().map(str::to_owned);
        Some(Message { reasoning_content, ..Message::new(m["role"].as_str()?, m["content"].as_str()?) })
    };
    let mut messages = list.iter().map(message).collect::<Option<Vec<_>>>()?;
    let first = messages.first().filter(|m| m.role == "system").and_then(|m| m.content.as_str()).map(str::to_owned);
    if first.is_some() {
        messages.remove(0);
    }
    Some((first, messages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_read_as_it_was_written() {
        let thought = Message { reasoning_content: Some("hm".into()), ..Message::assistant("c") };
        let said = vec![Message::user("a\n\"b\""), thought];
        let whole = |system: Option<&str>| -> String {
            let all: Vec<Value> =
                system.map(Message::system).iter().chain(&said).map(Message::to_json).collect();
            json!({ "model": "m", "messages": all }).to_string()
        };
        assert_eq!(conversation(&whole(None)), Some((None, said.clone())));
        assert_eq!(conversation(&whole(Some("s"))), Some((Some("s".into()), said.clone())));
        assert_eq!(conversation("[]"), Some((None, vec![])));
        for text in ["", "{}", "3", "[1]", "[{\"role\": \"user\"}]", "{\"messages\": {}}"] {
            assert_eq!(conversation(text), None, "{text}");
        }
    }
}
