//! `gristmill chat`.

use crate::answer::answer;
use crate::failure::{Failure, Result};
use crate::flags::Common;
use crate::model::{Model, warn};
use crate::sampler::Sampling;
use clap::Args;
use gristmill_llm::chat::{ChatTemplate, Message, RenderOptions, Span};
use gristmill_llm::language;
use gristmill_llm::sampling::Sampler;
use gristmill_llm::session::Session;
use gristmill_llm::tokenizer::Tokenizer;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

#[derive(Args)]
pub struct Options {
    /// A .gguf file, or synth:PRESET:QUANT [default: the demo model]
    model: Option<String>,
    /// What to tell the model before
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Ask a model that can reason first not to
    #[arg(long)]
    no_think: bool,
    /// Most tokens of an answer [default: until the model ends it or the context is full]
    #[arg(short, value_name = "N")]
    n: Option<usize>,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    common: Common,
}

const HELP: &str = "\
/reset   forget the conversation
/help    this list
/exit    leave (as Ctrl-D does)
Ctrl-C   stop the answer";

pub fn run(options: Options) -> Result {
    options.sampling.check()?;
    let model = Model::open(options.model.as_deref())?;
    let tokenizer = model.tokenizer()?;
    let (template, why) = language::template(model.file.metadata(), &tokenizer)?;
    warn(why.as_slice());
    let mut talk = Talk {
        sampler: options.sampling.sampler(&model)?,
        session: Session::new(model.load(&options.common, None)?),
        system: options.system.iter().map(Message::system).collect(),
        messages: Vec::new(),
        thinking: options.no_think.then_some(false),
        limit: options.n.unwrap_or(usize::MAX),
        interrupt: Interrupt::install()?,
        tokenizer: &tokenizer,
        template,
    };
    talk.messages.clone_from(&talk.system);
    let mut input = Input::open()?;
    if input.is_terminal() {
        say!("{}, {} tokens of context; /help for commands", model.name, talk.session.engine().context());
    }
    let mut unanswered = 0;
    while let Some(line) = input.line()? {
        match line.trim() {
            "" => {}
            "/exit" | "/quit" => break,
            "/help" => say!("{HELP}"),
            "/reset" => {
                talk.messages.clone_from(&talk.system);
                talk.session.clear();
            }
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                say!("no command {command}; /help lists them");
            }
            _ => unanswered += usize::from(!talk.turn(&line)?),
        }
    }
    // A person has seen it; a script looks at the exit code.
    if unanswered > 0 && !input.is_terminal() {
        return Err(Failure::new(format_args!("{unanswered} messages got no answer"), "what was wrong with each is above"));
    }
    Ok(())
}

struct Talk<'t> {
    session: Session,
    sampler: Sampler,
    tokenizer: &'t Tokenizer,
    template: ChatTemplate,
    /// What every conversation begins with.
    system: Vec<Message>,
    messages: Vec<Message>,
    thinking: Option<bool>,
    limit: usize,
    interrupt: Interrupt,
}

impl Talk<'_> {
    /// One question and its answer: was it answered? What goes wrong with a message is told, and the message forgotten.
    fn turn(&mut self, text: &str) -> Result<bool> {
        self.messages.push(Message::user(text));
        match self.reply() {
            Ok(reply) => {
                self.messages.push(Message::assistant(reply));
                Ok(true)
            }
            Err(failure) => {
                self.messages.pop();
                // A reader that has gone away ends the conversation.
                if failure.is_quiet() {
                    return Err(failure);
                }
                failure.report();
                if self.messages.len() > self.system.len() {
                    say!("(/reset begins a new conversation)");
                }
                Ok(false)
            }
        }
    }
    fn reply(&mut self) -> Result<String> {
        let render =
            RenderOptions { add_generation_prompt: true, enable_thinking: self.thinking, ..RenderOptions::default() };
        let spans = self.template.render(&self.messages, &render)?;
        let prompt = self.tokenizer.encode_spans(&Span::pairs(&spans), true);
        let mut out = io::stdout().lock();
        let interrupt = &self.interrupt;
        interrupt.begin();
        let stop = || interrupt.is_asked();
        let answer =
            answer(&mut self.session, self.tokenizer, &mut self.sampler, &prompt, self.limit, &mut out, &stop);
        interrupt.end();
        let answer = answer?;
        writeln!(out)?;
        out.flush()?;
        say!("{}", answer.summary());
        Ok(answer.text)
    }
}

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const ASKED: u8 = 2;

/// Ctrl-C: stops an answer, and ends the program only where there is none to stop.
struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    fn install() -> Result<Interrupt> {
        let state = Arc::new(AtomicU8::new(IDLE));
        let seen = state.clone();
        let handler = move || {
            // At the prompt the line editor takes Ctrl-C; a second one means it.
            if seen.compare_exchange(ANSWERING, ASKED, Ordering::AcqRel, Ordering::Acquire).is_err() {
                std::process::exit(130);
            }
        };
        match ctrlc::set_handler(handler) {
            Ok(()) => Ok(Interrupt(state)),
            Err(error) => Err(Failure::new(format_args!("Ctrl-C cannot be caught: {error}"), "try another terminal")),
        }
    }
    fn begin(&self) {
        self.0.store(ANSWERING, Ordering::Release);
    }
    fn end(&self) {
        self.0.store(IDLE, Ordering::Release);
    }
    fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire) == ASKED
    }
}

/// Where lines come from: an editor with a history on a terminal, standard input otherwise.
enum Input {
    Terminal(Box<DefaultEditor>, Option<PathBuf>),
    Pipe(io::StdinLock<'static>),
}

impl Input {
    fn open() -> Result<Input> {
        if !io::stdin().is_terminal() {
            return Ok(Input::Pipe(io::stdin().lock()));
        }
        let failed = |e: ReadlineError| Failure::new(format_args!("the terminal: {e}"), "pipe the messages in instead");
        let mut editor = Box::new(DefaultEditor::new().map_err(failed)?);
        let history = history();
        if let Some(path) = &history {
            // The first time there is none.
            let _ = editor.load_history(path);
        }
        Ok(Input::Terminal(editor, history))
    }
    fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(..))
    }
    /// The next line; none at the end.
    fn line(&mut self) -> Result<Option<String>> {
        match self {
            Input::Pipe(input) => {
                let mut bytes = Vec::new();
                let read = input.read_until(b'\n', &mut bytes)?;
                let line = String::from_utf8_lossy(&bytes);
                Ok((read > 0).then(|| line.trim_end_matches(['\n', '\r']).to_owned()))
            }
            Input::Terminal(editor, history) => loop {
                match editor.readline("> ") {
                    Ok(line) => {
                        if !line.trim().is_empty() && editor.add_history_entry(&line).unwrap_or(false) {
                            let saved = history.as_ref().map(|path| editor.append_history(path));
                            if let Some(Err(error)) = saved {
                                say!("warning: the history is not kept: {error}");
                                *history = None;
                            }
                        }
                        return Ok(Some(line));
                    }
                    Err(ReadlineError::Interrupted) => say!("(/exit or Ctrl-D leaves)"),
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(error) => {
                        return Err(Failure::new(format_args!("the terminal: {error}"), "pipe the messages in instead"));
                    }
                }
            },
        }
    }
}

/// `$XDG_DATA_HOME/gristmill/history` or `~/.local/share/gristmill/history`, its folder made, private to the user.
fn history() -> Option<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let data = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local").join("share")))?;
    let folder = data.join("gristmill");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok()?;
    Some(folder.join("history"))
}
