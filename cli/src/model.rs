//! MODEL on the command line: a file, a name of the hub or a short one, `synth:PRESET:QUANT`, or nothing.

use crate::choice;
use crate::failure::{Failure, Result, printable};
use crate::flags::{Common, warn_of};
use crate::isolation;
use crate::progress::{Bars, Fetching};
use gristmill_hub::{Client, FileFormat, Name, SHORT_NAMES, Store};
use gristmill_llm::arch;
use gristmill_llm::chat::{ChatTemplate, Isolation, Message, RenderOptions, TextSpan};
use gristmill_llm::engine::{self, Engine, Progress, Settings};
use gristmill_llm::file::ModelFile;
use gristmill_llm::tokenizer::Tokenizer;
use gristmill_llm::{language, synth};
use std::path::{Path, PathBuf};

/// The model that ships inside the program.
static DEMO: &[u8] = include_bytes!("../../assets/demo-glm-Q4_0.gguf");

/// What the demo model is called.
pub const DEMO_NAME: &str = "demo";

macro_rules! help {
    ($more:literal) => {
        concat!(
            "A .gguf file or its https address, ORG/REPO[:QUANT] of the hub, a short name, demo (inside the program), or synth:PRESET:QUANT",
            $more
        )
    };
}
/// What MODEL may be, wherever it is expected.
pub const HELP: &str = help!("");
/// The same where it may be left out.
pub const HELP_OR_DEMO: &str = help!(" [default: demo]");

/// All names that need no file and no hub's path.
pub fn names() -> impl Iterator<Item = &'static str> {
    std::iter::once(DEMO_NAME).chain(SHORT_NAMES.iter().map(|row| row.name))
}

/// How alike two names are, from 0 to 1, for one to be told where the other was typed: `glm-4.7-flahs` and `glm-4.7-flash` are at 0.99, `glm` and `glm-4.5-air` at 0.83,
/// `hello` and `demo` at 0.63.
const ALIKE: f64 = 0.8;

/// What helps where nothing is called so: the nearest name, or what names there are.
pub fn no_name_hint(typed: &str) -> String {
    let short = typed.split(':').next().unwrap_or(typed).to_lowercase();
    let likeness = |name: &str| strsim::jaro_winkler(&short, name);
    let nearest = names().max_by(|a, b| likeness(a).total_cmp(&likeness(b))).filter(|name| likeness(name) >= ALIKE);
    match nearest {
        Some(name) => format!("the nearest short name is {name}; `gristmill list` has them all"),
        None => concat!(
            "a model is a .gguf file or its https address, ORG/REPO[:QUANT] of the hub, a short name (`gristmill list` has them), ",
            "demo, or synth:PRESET:QUANT"
        )
        .into(),
    }
}

/// A model file, open: its metadata read, its weights not.
pub struct Model {
    /// What to call it: the file's name, or what was asked for.
    pub name: String,
    /// The file.
    pub file: ModelFile,
    /// Where it is, or its first part; none of what is inside the program or generated.
    pub path: Option<PathBuf>,
}

impl Model {
    /// The one named, or the demo model.
    pub fn open(name: Option<&str>) -> Result<Model> {
        let name = name.unwrap_or(DEMO_NAME);
        // A file of that name is ./demo.
        if name == DEMO_NAME {
            return Ok(Model { name: name.into(), file: ModelFile::from_bytes(DEMO)?, path: None });
        }
        if name.starts_with("synth:") {
            let (preset, quant) = synth::parse_name(name).ok_or_else(|| {
                let presets: Vec<_> = synth::presets().collect();
                Failure::new(
                    format_args!("{name} is not synth:PRESET:QUANT"),
                    format!("for example synth:{}:q4_0; presets: {}", presets[0], presets.join(", ")),
                )
            })?;
            return Ok(Model { name: name.into(), file: ModelFile::synth(preset, quant)?, path: None });
        }
        let path = Path::new(name);
        let path = match std::fs::metadata(path) {
            Ok(_) => path.to_owned(),
            // What is no file may be a name.
            Err(error) => match Name::parse(name)? {
                // A name without a scheme may also be a path with a slip in it.
                Some(of) if Path::new(name).components().count() > 1 && !name.contains(':') => {
                    fetched(&of).map_err(|failure| failure.with_hint(&format!("; there is no file {name} either")))?
                }
                Some(of) => fetched(&of)?,
                None => return Err(no_file(name, error)),
            },
        };
        Model::at(path)
    }
    /// That of this file.
    pub fn at(path: PathBuf) -> Result<Model> {
        let shown = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Model { name: shown, file: ModelFile::open(&path)?, path: Some(path) })
    }
    /// Its tokenizer. Remarks go to standard error.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let metadata = self.file.metadata();
        // A tokenizer that is unknown may be that of an architecture that is: then this is the cause.
        let tokenizer = language::tokenizer(metadata).map_err(|error| match arch::find(metadata) {
            Ok(_) => Failure::from(error),
            Err(unknown) => unknown.into(),
        })?;
        warn(tokenizer.warnings());
        Ok(tokenizer)
    }
    /// Its chat template, or a built-in one and why. A template of a file is a program from elsewhere: it runs apart.
    pub fn template(&self, tokenizer: &Tokenizer) -> Result<(ChatTemplate, Option<String>)> {
        let metadata = self.file.metadata();
        let isolation = match language::has_template(metadata) {
            true => isolation::isolation()?,
            // A built-in one starts no process.
            false => Isolation::InProcess,
        };
        Ok(language::template(metadata, tokenizer, &isolation)?)
    }
    /// What it computes, from metadata alone.
    pub fn describe(&self) -> Result<Box<dyn arch::Model>> {
        self.file.architecture()?;
        Ok(arch::load(self.file.metadata(), &self.file)?)
    }
    /// Can a prompt of so many tokens be answered in the context that --ctx asks for? Said before anything is loaded.
    pub fn check_context(&self, common: &Common, prompt: usize) -> Result {
        let most = self.describe()?.context();
        let Some(context) = common.ctx.map(|context| context as usize) else { return Ok(()) };
        if context > most {
            return Err(engine::Error::BadContext(context, most).into());
        }
        if prompt < context {
            return Ok(());
        }
        Err(Failure::new(
            format_args!("--ctx {context} is too small: the prompt alone has {prompt} tokens"),
            format!("give --ctx {} or more, or leave it out", (2 * prompt).next_power_of_two().min(most)),
        ))
    }
    /// On its device, compiled. `context` stands in for --ctx.
    pub fn load(&self, common: &Common, context: Option<usize>) -> Result<Engine> {
        common.check_computes()?;
        let opened = common.open()?;
        self.file.architecture()?;
        Ok(self.engine(opened, common.settings(context), (Bars::named(&self.name), &|_| ()))?)
    }
    /// The same on a device that is open already.
    pub fn load_on(
        &self,
        opened: gristmill_backend::Opened,
        common: &Common,
        context: Option<usize>,
    ) -> Result<Engine> {
        self.load_with(opened, common.settings(context))
    }
    /// The same with these settings.
    pub fn load_with(&self, opened: gristmill_backend::Opened, settings: Settings) -> Result<Engine> {
        self.file.architecture()?;
        Ok(self.engine(opened, settings, (Bars::new(), &|_| ()))?)
    }
    /// The same with these settings; somebody besides the bars is told how far it is.
    pub fn engine(
        &self,
        opened: gristmill_backend::Opened,
        settings: Settings,
        (bars, watch): (Bars, &dyn Fn(Progress)),
    ) -> std::result::Result<Engine, engine::Error> {
        let engine = Engine::load(&self.file, opened, settings, &|progress| {
            bars.show(progress);
            watch(progress);
        })?;
        drop(bars);
        warn_of(engine.device().as_ref());
        warn(&engine.model().info().warnings);
        Ok(engine)
    }
}

/// Tokens of the shortest conversation, which every other is longer than.
pub fn shortest(template: &ChatTemplate, tokenizer: &Tokenizer, system: Option<&str>) -> Result<usize> {
    let messages: Vec<Message> = system.map(Message::system).into_iter().chain([Message::user("?")]).collect();
    let spans =
        template.render(&messages, &RenderOptions { add_generation_prompt: true, ..RenderOptions::default() })?;
    Ok(tokenizer.encode_spans(&TextSpan::pairs(&spans), true).len())
}

/// The file of that name, fetched if it is not kept here.
pub fn fetched(name: &Name) -> Result<PathBuf> {
    let store = Store::user()?;
    let found = choice::among(name, &|name| {
        let reading = Fetching::new();
        store.find(name, &mut |p| reading.show(p))
    });
    match found? {
        Some(path) => Ok(path),
        None => Ok(pull(&store, name)?.file),
    }
}

/// Fetches what that name means, with a bar, and says what came of it.
pub fn pull(store: &Store, name: &Name) -> Result<gristmill_hub::Pulled> {
    let client = Client::from_environment();
    let check = |file| ModelFile::check(file).map_err(|error| error.to_string());
    let form = FileFormat { begins: ModelFile::MAGIC, check: &check };
    let pulled = choice::among(name, &|name| {
        let fetching = Fetching::new();
        gristmill_hub::pull(&client, store, name, form, &mut |p| fetching.show(p))
    })?;
    if let Some(first) = pulled.unchecked.first() {
        let more = if pulled.unchecked.len() > 1 { " and its other parts" } else { "" };
        warn(&[format!(
            "no checksum is known of {first}{more}: it has the announced length and is a GGUF file, which is all that was checked"
        )]);
    }
    Ok(pulled)
}

/// The commonest mistake deserves its own words.
fn no_file(name: &str, error: std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            let message = format_args!("there is no file {name}, and it is not the name of a model");
            Failure::new(message, no_name_hint(name))
        }
        _ => Failure::file("open", Path::new(name), error),
    }
}

/// Remarks on standard error.
pub fn warn(warnings: &[String]) {
    for warning in warnings {
        say!("warning: {}", printable(warning));
    }
}
