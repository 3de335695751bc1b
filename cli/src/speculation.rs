//! The flags --speculate and --draft-device: drafts of next tokens.

use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::model::Model;
use crate::progress;
use clap::Args;
use gristmill_backend::Opened;
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::file::ModelFile;
use gristmill_llm::sched::{Batcher, DraftSources, Drafter};
use std::convert::Infallible;
use std::path::{Path, PathBuf};

/// Rows of a step for drafts, besides that of a single sequence.
const DRAFT_ROWS: usize = 15;

/// Where drafts come from: values of --speculate.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Source {
    Off,
    Auto,
    Ngram,
    Mtp,
    /// The path of a model's assistant.
    Assistant(PathBuf),
    /// A model by its name or path.
    Model(String),
}

impl Source {
    fn parse(text: &str) -> std::result::Result<Source, Infallible> {
        Ok(match text {
            "off" => Source::Off,
            "auto" => Source::Auto,
            "ngram" => Source::Ngram,
            "mtp" => Source::Mtp,
            path if is_assistant(Path::new(path)) => Source::Assistant(path.into()),
            name => Source::Model(name.to_owned()),
        })
    }
}

/// Returns whether a path is that of a file which drafts tokens for another model.
fn is_assistant(path: &Path) -> bool {
    path.is_file() && ModelFile::open(path).is_ok_and(|file| file.is_assistant())
}

/// Drafts that are run beside decode rows, and kept where they are the tokens chosen.
#[derive(Args, Clone, Debug)]
pub struct Speculation {
    /// Run drafts of next tokens in steps that have room; the distribution of texts is the same.
    /// SOURCE is `off`, `ngram` (tokens that followed the last 6 to 24 ones before, in the prompt
    /// or the answer), `mtp` (the file's block for draft tokens), `auto` (both, as there are), the
    /// path of the model's assistant, or a smaller MODEL with the same vocabulary
    #[arg(long, value_parser = Source::parse, value_name = "SOURCE", default_value = "off")]
    speculate: Source,
    /// Device of the model that drafts [default: that of the model]
    #[arg(long, value_name = "DEVICE", help_heading = "Device")]
    draft_device: Option<String>,
}

impl Speculation {
    /// Returns whether drafts are run.
    pub fn is_on(&self) -> bool {
        self.speculate != Source::Off
    }
    /// Adds the assistant that was given to a model, or the block that the program has for it.
    pub fn attach(&self, mut model: Model) -> Result<Model> {
        match &self.speculate {
            Source::Assistant(path) => model.file.attach_draft_block(ModelFile::open(path)?)?,
            Source::Auto | Source::Mtp => return model.with_built_in_block(),
            Source::Off | Source::Ngram | Source::Model(_) => {}
        }
        Ok(model)
    }
    /// Returns settings with the rows that drafts of a single sequence need.
    pub fn over(&self, settings: Settings) -> Settings {
        Settings {
            drafts: if self.is_on() { DRAFT_ROWS } else { 0 },
            ..self.with_block(settings)
        }
    }
    /// Returns settings with the model's block for draft tokens, if it may be used.
    pub fn with_block(&self, settings: Settings) -> Settings {
        let of_model = matches!(self.speculate, Source::Auto | Source::Mtp);
        let draft_block = of_model || matches!(self.speculate, Source::Assistant(_));
        Settings {
            draft_block,
            ..settings
        }
    }
    /// Returns the sources of drafts for an engine, on whose device `opened` a model that drafts is
    /// loaded too, unless it has one of its own.
    pub fn sources(
        &self,
        engine: &Engine,
        opened: &Opened,
        common: &Common,
    ) -> Result<DraftSources> {
        let block = engine.has_draft_block().then_some(Drafter::Block);
        let drafter = match &self.speculate {
            Source::Off | Source::Ngram => None,
            Source::Auto => block,
            Source::Mtp | Source::Assistant(_) if block.is_none() => {
                let hint = "--speculate auto takes what there is; ngram needs no block";
                return Err(Failure::new(
                    "the model has no block for draft tokens that can be used",
                    hint,
                ));
            }
            Source::Mtp | Source::Assistant(_) => block,
            Source::Model(name) => Some(self.model(name, engine, opened, common)?),
        };
        Ok(DraftSources {
            ngrams: matches!(self.speculate, Source::Auto | Source::Ngram),
            drafter,
            assumes_times: false,
        })
    }
    /// Loads a model that drafts for an engine.
    fn model(
        &self,
        name: &str,
        engine: &Engine,
        opened: &Opened,
        common: &Common,
    ) -> Result<Drafter> {
        let model = Model::open(Some(name))?;
        let opened = match &self.draft_device {
            Some(_) => common.of_drafts(self.draft_device.as_deref()).open()?,
            None => opened.clone(),
        };
        let context = engine.context();
        let positions = engine.cache().pages() * gristmill_llm::arch::Options::PAGE;
        let settings = Settings {
            parallel: engine.max_sequences(),
            drafts: engine.step_rows() - engine.max_sequences(),
            contexts: positions.div_ceil(context),
            mixed: false,
            ..common.of_drafts(None).settings(Some(context))
        };
        let draft = model.load_with(opened, settings)?;
        Drafter::from_model(draft, engine).map_err(|why| {
            let message = format!("{} cannot draft for this model: {why}", printable(name));
            Failure::new(message, "a smaller model of the same family has the same vocabulary; -c N takes less memory")
        })
    }
    /// Loads a model for `run` and `chat`, whose first prompt has `prompt` tokens.
    pub fn load_for_prompt(
        &self,
        model: &Model,
        common: &Common,
        prompt: usize,
    ) -> Result<Batcher> {
        let first_prompt = Some(prompt);
        let settings = Settings {
            first_prompt,
            ..self.over(common.settings(None))
        };
        let (engine, opened) = model.load_as(common, settings)?;
        self.batcher(engine, &opened, common)
    }
    /// Returns the batcher of an engine on this device. The first start with drafts measures the
    /// times of steps.
    pub fn batcher(&self, engine: Engine, opened: &Opened, common: &Common) -> Result<Batcher> {
        let sources = self.sources(&engine, opened, common)?;
        let mut batcher = Batcher::new(engine).with_speculation(sources);
        let bar = progress::count("step times", 0);
        batcher.measure_step_times(&|done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        })?;
        bar.finish_and_clear();
        Ok(batcher)
    }
}
