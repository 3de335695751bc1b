//! MODEL on the command line: a file, a hub repository, a short name, `synth:PRESET:QUANT`, or the
//! demo model.

use crate::disambiguate;
use crate::failure::{Failure, Result, printable};
use crate::flags::{Common, Lora, warn_of};
use crate::isolation;
use crate::progress::{Bars, Fetching};
use gristmill_backend::Opened;
use gristmill_hub::{Client, FileFormat, Name, SHORT_NAMES, Store};
use gristmill_llm::arch::{self, MAX_CHOICES};
use gristmill_llm::chat::{ChatTemplate, Isolation, Message, RenderOptions, TextSpan};
use gristmill_llm::convert::is_checkpoint;
use gristmill_llm::engine::{self, Engine, Progress, Settings};
use gristmill_llm::file::{Error as FileError, ModelFile, OtherKind};
use gristmill_llm::tokenizer::Tokenizer;
use gristmill_llm::train::{Adapter, AdapterError, open_adapter, stacked};
use gristmill_llm::{language, synth};
use std::path::{Path, PathBuf};

/// The demo model, embedded in the program.
static DEMO: &[u8] = include_bytes!("../../assets/demo-glm-Q4_0.gguf");
/// Its block for draft tokens.
static DEMO_BLOCK: &[u8] = include_bytes!("../../assets/draft-blocks/demo-glm-Q4_0.gguf");

/// Name of the demo model.
pub const DEMO_NAME: &str = "demo";

macro_rules! help {
    ($more:literal) => {
        concat!(
            "Model: a .gguf file or its https URL, a folder with a checkpoint of transformers, a hub ",
            "repository ORG/REPO[:QUANT], a short name (`gristmill list`), demo (built in), or ",
            "synth:PRESET:QUANT (random weights)",
            $more
        )
    };
}
/// Help of a required MODEL.
pub const HELP: &str = help!("");
/// Help of an optional MODEL.
pub const HELP_OR_DEMO: &str = help!(" [default: demo]");

/// Names that are neither paths nor hub repositories.
pub fn names() -> impl Iterator<Item = &'static str> {
    std::iter::once(DEMO_NAME).chain(SHORT_NAMES.iter().map(|row| row.name))
}

/// Least Jaro-Winkler similarity, 0 to 1, of a name that is suggested: `glm-4.7-flahs` and
/// `glm-4.7-flash` have 0.99, `glm` and `glm-4.5-air` 0.83, `hello` and `demo` 0.63.
const SIMILAR: f64 = 0.8;

/// Hint for an unknown name: the nearest short name, else the forms of a MODEL.
pub fn no_name_hint(typed: &str) -> String {
    let short = typed.split(':').next().unwrap_or(typed).to_lowercase();
    let similarity = |name: &str| strsim::jaro_winkler(&short, name);
    let nearest = names().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    let nearest = nearest.filter(|name| similarity(name) >= SIMILAR);
    match nearest {
        Some(name) => format!("the nearest short name is {name}; `gristmill list` shows all"),
        None => concat!(
            "a model is a .gguf file or its https URL, a hub repository ORG/REPO[:QUANT], a short name ",
            "(`gristmill list` shows them), demo, or synth:PRESET:QUANT"
        )
        .into(),
    }
}

/// End of the hint about a blob of Ollama that is no model.
const BLOB: &str = "; among Ollama's blobs, the model is the one that its manifest lists as \
     application/vnd.ollama.image.model, usually the largest";

/// Open model file: the metadata is read, the weights are not.
pub struct Model {
    /// The file's name, or the name given on the command line.
    pub name: String,
    pub file: ModelFile,
    /// Path of the file or of its first shard; `None` for the demo model and synthetic ones.
    pub path: Option<PathBuf>,
}

impl Model {
    /// Opens the named model, or the demo model; fetches it if it is not stored.
    pub fn open(name: Option<&str>) -> Result<Model> {
        let name = name.unwrap_or(DEMO_NAME);
        // A file of that name is given as ./demo.
        if name == DEMO_NAME {
            return Ok(Model {
                name: name.into(),
                file: ModelFile::from_bytes(DEMO)?,
                path: None,
            });
        }
        if name.starts_with("synth:") {
            let (preset, quant) = synth::parse_name(name).ok_or_else(|| {
                let presets: Vec<_> = synth::presets().collect();
                Failure::new(
                    format_args!("{name} is not synth:PRESET:QUANT"),
                    format!(
                        "for example synth:{}:q4_0; presets: {}",
                        presets[0],
                        presets.join(", ")
                    ),
                )
            })?;
            return Ok(Model {
                name: name.into(),
                file: ModelFile::synth(preset, quant)?,
                path: None,
            });
        }
        let path = Path::new(name);
        let path = match std::fs::metadata(path) {
            Ok(_) => path.to_owned(),
            // Without such a file, the text may be a name.
            Err(error) => match Name::parse(name)? {
                // ORG/REPO may also be a misspelt path.
                Some(of) if Path::new(name).components().count() > 1 && !name.contains(':') => {
                    fetched(&of).map_err(|failure| {
                        failure.with_hint(&format!("; there is no file {name} either"))
                    })?
                }
                Some(of) => fetched(&of)?,
                None => return Err(no_file(name, error)),
            },
        };
        Model::at(path)
    }
    /// Adds the block for draft tokens that the program has for the demo model.
    pub fn with_built_in_block(mut self) -> Result<Model> {
        if self.name == DEMO_NAME && self.path.is_none() {
            let block = ModelFile::from_bytes(DEMO_BLOCK)?;
            self.file.attach_draft_block(block)?;
        }
        Ok(self)
    }
    /// Opens the file at a path, or converts the checkpoint in a folder as it is read.
    pub fn at(path: PathBuf) -> Result<Model> {
        if is_checkpoint(&path) {
            return Model::converted(&path);
        }
        let mut name = path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy()
            .into_owned();
        let is_blob = gristmill_hub::is_ollama_blob(&name);
        let mut file = ModelFile::open(&path).map_err(|error| match is_blob {
            true => Failure::from(error).with_hint(BLOB),
            false => error.into(),
        })?;
        file.attach_draft_block_beside(&path)?;
        // The name of a blob is a checksum.
        if let (true, Ok(Some(title))) = (is_blob, file.metadata().str("general.name")) {
            name = title.to_owned();
        }
        Ok(Model {
            name,
            file,
            path: Some(path),
        })
    }
    fn converted(folder: &Path) -> Result<Model> {
        let converted = gristmill_llm::convert::open(folder)?;
        warn(&converted.warnings);
        let name = converted.file.metadata().str("general.name");
        Ok(Model {
            name: name.ok().flatten().unwrap_or_default().to_owned(),
            file: converted.file,
            path: None,
        })
    }
    /// Attaches the adapters of --lora.
    pub fn with_adapters(mut self, adapters: &[Lora]) -> Result<Model> {
        for Lora { path, scale } in adapters {
            let failed = |error| adapter_failure(path, error, "--lora");
            let model = self.describe()?;
            let file = open_adapter(path, model.as_ref(), self.file.metadata()).map_err(failed)?;
            let alpha = Adapter::check_file(&file, model.as_ref()).map_err(failed)?;
            self.file.attach(file, alpha, *scale);
        }
        Ok(self)
    }
    /// Attaches the adapters of --lora so that each sequence may choose among them.
    pub fn with_choices(mut self, adapters: &[Lora]) -> Result<Model> {
        if adapters.is_empty() {
            return Ok(self);
        }
        if adapters.len() > MAX_CHOICES {
            return Err(Failure::usage(
                format_args!("there are {} adapters", adapters.len()),
                format!("serve takes {MAX_CHOICES} of them; merge some into models of their own"),
            ));
        }
        let mut names: Vec<String> = adapters.iter().map(|a| a.name().to_lowercase()).collect();
        names.sort();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Failure::usage(
                format_args!("two adapters have the name {}", twice[0]),
                "requests choose adapters by file name: rename one of the files",
            ));
        }
        let model = self.describe()?;
        let read = |lora: &Lora| {
            let file = open_adapter(&lora.path, model.as_ref(), self.file.metadata())?;
            Adapter::read(&file, model.as_ref())
        };
        let read = |lora| read(lora).map_err(|error| adapter_failure(&lora.path, error, "--lora"));
        let all = adapters.iter().map(read).collect::<Result<Vec<_>>>()?;
        let file = stacked(&all).to_file();
        let file = file.map_err(|error| Failure::new(error, "leave --lora out"))?;
        self.file.attach_choices(file, all.len());
        Ok(self)
    }
    /// Attaches an adapter in memory.
    pub fn with_adapter(mut self, adapter: &Adapter) -> Result<Model> {
        let hint = "write it to a file first: leave --html out";
        let file = adapter.to_file();
        let file = file.map_err(|error| Failure::new(error, hint))?;
        self.file.attach(file, adapter.alpha, 1.0);
        Ok(self)
    }
    /// Names the file in an error about its kind.
    fn named(&self, error: FileError) -> Failure {
        match error {
            FileError::NotAModel(kind) => {
                Failure::new(format_args!("{} is {kind}", self.name), kind.hint())
            }
            error => error.into(),
        }
    }
    /// Refuses a file that is no model, such as a projector or an adapter.
    fn check_kind(&self) -> Result {
        self.file.check_weights().map_err(|error| self.named(error))
    }
    /// Builds the tokenizer; prints its warnings to standard error.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let metadata = self.file.metadata();
        // A vocabulary without weights can tokenise.
        if let Ok(Some(kind)) = metadata.other_kind()
            && kind != OtherKind::Vocabulary
        {
            return Err(self.named(FileError::NotAModel(kind)));
        }
        // The tokenizer of an unknown architecture may be unknown too: report the architecture.
        let tokenizer =
            language::tokenizer(metadata).map_err(|error| match arch::find(metadata) {
                Ok(_) => Failure::from(error),
                Err(unknown) => unknown.into(),
            })?;
        warn(tokenizer.warnings());
        Ok(tokenizer)
    }
    /// Returns the chat template, or a built-in one and the reason.
    ///
    /// A file's template is untrusted code and runs in a helper process.
    pub fn template(&self, tokenizer: &Tokenizer) -> Result<(ChatTemplate, Option<String>)> {
        let metadata = self.file.metadata();
        let isolation = match language::has_template(metadata) {
            true => isolation::isolation()?,
            // Built-in templates are trusted.
            false => Isolation::InProcess,
        };
        Ok(language::template(metadata, tokenizer, &isolation)?)
    }
    /// Describes the architecture, from metadata alone.
    pub fn describe(&self) -> Result<Box<dyn arch::Model>> {
        self.check_kind()?;
        Ok(arch::load(self.file.metadata(), &self.file)?)
    }
    /// Refuses, before anything is loaded, a --ctx that the model lacks or that `prompt` tokens
    /// fill, and partial offload.
    pub fn check_context(&self, common: &Common, prompt: usize) -> Result {
        let described = self.describe()?;
        let most = described.context();
        let Some(context) = common.ctx() else {
            return Ok(());
        };
        if context > most {
            return Err(engine::Error::BadContext(context, most).into());
        }
        if prompt < context {
            return Ok(());
        }
        Err(Failure::new(
            format_args!("--ctx {context} is too small: the prompt alone has {prompt} tokens"),
            format!(
                "give --ctx {} or more, or leave it out",
                (2 * prompt).next_power_of_two().min(most)
            ),
        ))
    }
    /// Opens the device, loads and compiles the model; `context` applies without --ctx.
    pub fn load(&self, common: &Common, context: Option<usize>) -> Result<Engine> {
        Ok(self.load_as(common, common.settings(context))?.0)
    }
    /// Loads the model with these settings on the device of `common`, which is returned too.
    pub fn load_as(&self, common: &Common, settings: Settings) -> Result<(Engine, Opened)> {
        common.check_computes()?;
        let described = self.describe()?;
        check_generates(described.as_ref())?;
        let common = common.over(described.context());
        let settings = Settings {
            context: common.ctx().or(settings.context),
            ..settings
        };
        let opened = common.open()?;
        let bars = Bars::named(&self.name);
        let engine = self.engine(opened.clone(), settings, (bars, &|_| ()))?;
        Ok((engine, opened))
    }
    /// Loads the model on an open device.
    pub fn load_on(
        &self,
        opened: Opened,
        common: &Common,
        context: Option<usize>,
    ) -> Result<Engine> {
        self.load_with(opened, common.settings(context))
    }
    /// Loads the model on an open device with given settings.
    pub fn load_with(&self, opened: Opened, settings: Settings) -> Result<Engine> {
        check_generates(self.describe()?.as_ref())?;
        Ok(self.engine(opened, settings, (Bars::new(), &|_| ()))?)
    }
    /// Loads the model on an open device; reports progress to `bars` and to `watch`.
    pub fn engine(
        &self,
        opened: Opened,
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
        let placement = engine.placement();
        if !placement.chosen.placement.is_whole() {
            for line in placement.lines() {
                say!("note: {line}");
            }
        }
        Ok(engine)
    }
}

/// Refuses a text encoder, which generates no text.
fn check_generates(model: &dyn arch::Model) -> Result {
    match model.is_encoder() {
        true => Err(engine::Error::Encoder.into()),
        false => Ok(()),
    }
}

/// The failure of reading an adapter that `flag` names.
pub fn adapter_failure(path: &Path, error: AdapterError, flag: &str) -> Failure {
    let message = match error {
        AdapterError::File(error) => return error.into(),
        AdapterError::Io(..) => error.to_string(),
        error => format!("{}: {error}", path.display()),
    };
    let hint = "takes a LoRA adapter of this model: a GGUF file, or a folder or .safetensors file \
                of PEFT";
    Failure::new(message, format!("{flag} {hint}"))
}

/// Returns the number of tokens of the shortest conversation.
pub fn shortest(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    system: Option<&str>,
) -> Result<usize> {
    let messages: Vec<Message> = system
        .map(Message::system)
        .into_iter()
        .chain([Message::user("?")])
        .collect();
    let spans = template.render(
        &messages,
        &RenderOptions {
            add_generation_prompt: true,
            ..RenderOptions::default()
        },
    )?;
    Ok(tokenizer.encode_spans(&TextSpan::pairs(&spans), true).len())
}

/// Returns the stored file of a name, fetched first if it is missing.
pub fn fetched(name: &Name) -> Result<PathBuf> {
    let store = Store::user()?;
    let found = disambiguate::among(name, &|name| {
        let reading = Fetching::new();
        store.find(name, &mut |p| reading.show(p))
    });
    match found? {
        Some(path) => Ok(path),
        None => Ok(pull(&store, name)?.file),
    }
}

/// Fetches a model with a progress bar; warns about files without a checksum.
pub fn pull(store: &Store, name: &Name) -> Result<gristmill_hub::Pulled> {
    let client = Client::from_environment();
    let check = |file| ModelFile::check(file).map_err(|error| error.to_string());
    let form = FileFormat {
        begins: ModelFile::MAGIC,
        check: &check,
    };
    let pulled = disambiguate::among(name, &|name| {
        let fetching = Fetching::new();
        gristmill_hub::pull(&client, store, name, form, &mut |p| fetching.show(p))
    })?;
    if let Some(first) = pulled.unchecked.first() {
        let more = if pulled.unchecked.len() > 1 {
            " and its other parts"
        } else {
            ""
        };
        warn(&[format!(
            "no checksum is known for {first}{more}: only the length and the GGUF header were checked"
        )]);
    }
    Ok(pulled)
}

/// The error for a MODEL that is neither a file nor a name.
fn no_file(name: &str, error: std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            let message = format_args!("there is no file {name}, and no model of that name");
            Failure::new(message, no_name_hint(name))
        }
        _ => Failure::file("open", Path::new(name), error),
    }
}

/// Prints warnings to standard error.
pub fn warn(warnings: &[String]) {
    for warning in warnings {
        say!("warning: {}", printable(warning));
    }
}
