//! The models that `serve` has: from what was named on the command line to what a server is told.

use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::model::{DEMO_NAME, Model, shortest, warn};
use crate::progress::Bars;
use gristmill_backend::Opened;
use gristmill_hub::{Store, file_stem, models_in};
use gristmill_llm::engine::{self, Engine, MemoryEstimate, Progress};
use gristmill_llm::language;
use gristmill_server::{LoadError, ModelFacts, ModelPlan, ModelSource, ModelSpec, ModelText};
use gristmill_uop::machine::MachineKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A model by where it is and what it is called.
struct Candidate {
    model: Model,
    name: String,
    aliases: Vec<String>,
    /// Was it found in a folder, and not named itself? Then what cannot be served is left out.
    found: bool,
}

/// What the command line says of models.
pub struct Asked<'a> {
    /// Models, and folders of some.
    pub arguments: &'a [String],
    /// What the only one is called.
    pub name: Option<String>,
    /// Answers that each makes together.
    pub parallel: Option<usize>,
}

/// Answers that a model makes together unless somebody says: as many as a step is worth, on a processor and on a GPU.
const PARALLEL: [usize; 2] = [8, 32];

/// Contexts that a model's page pool holds at least where memory allows, so that several conversations are kept.
const CONTEXTS: usize = 4;

/// The models that the arguments name, folders for all that are in them; the demo model where nothing is named. `looking` is told which is looked at, of how many.
pub fn specs(
    asked: Asked,
    common: &Common,
    opened: &dyn Fn() -> Result<Opened>,
    looking: &dyn Fn(usize, usize),
) -> Result<Vec<ModelSpec>> {
    let Asked { arguments, name, parallel } = asked;
    common.check_computes()?;
    let mut candidates = candidates(arguments, looking)?;
    match (name, candidates.as_mut_slice()) {
        (None, _) => {}
        (Some(name), [only]) => only.aliases.push(std::mem::replace(&mut only.name, name)),
        (Some(_), several) => {
            let message = format!("--name is for one model, and there are {}", several.len());
            return Err(Failure::usage(message, "each is called as its file is: leave --name out, or name one MODEL"));
        }
    }
    apart(&mut candidates)?;
    let opened = opened()?;
    let usual = PARALLEL[usize::from(opened.target.machine.kind == MachineKind::Gpu)];
    let parallel = parallel.unwrap_or(usual);
    let only = candidates.len() == 1;
    let mut specs = Vec::new();
    for Candidate { model, name, aliases, found } in candidates {
        let file = File {
            at: At::for_model(&model),
            name: name.clone(),
            common: common.clone(),
            parallel,
            opened: opened.clone(),
            kept: Mutex::default(),
        };
        let plan = match file.planned(&model) {
            Ok(plan) => Ok(plan),
            // The only one is not there at all then, and a named one is a mistake; but what is too large now need not be later.
            Err(error) if only || !found && !error.1 => return Err(error.0),
            Err((failure, too_large)) => {
                let (message, hint) = failure.parts();
                let then = if too_large { "cannot be loaded now" } else { "is left out" };
                warn(&[format!("{name} {then}: {message}")]);
                if !too_large {
                    continue;
                }
                Err(LoadError { message, hint, too_large, lost: false })
            }
        };
        if only {
            file.keep(model);
        }
        specs.push(ModelSpec { name, aliases, plan, source: Arc::new(file) });
    }
    if specs.is_empty() {
        return Err(Failure::new("none of the models can be served", "the warnings above say why"));
    }
    Ok(specs)
}

fn candidates(arguments: &[String], looking: &dyn Fn(usize, usize)) -> Result<Vec<Candidate>> {
    let arguments = if arguments.is_empty() { &[DEMO_NAME.to_owned()] } else { arguments };
    let store = Store::user()?;
    let mut out: Vec<Candidate> = Vec::new();
    let mut add = |model: Model, name: Option<String>, typed: Option<&str>, found| {
        let same = |other: &Candidate| match (&other.model.path, &model.path) {
            (Some(one), Some(other)) => same_file(one, other),
            (None, None) => other.model.name == model.name,
            _ => false,
        };
        let stem = if model.path.is_some() { file_stem(&model.name).to_owned() } else { model.name.clone() };
        let name = name.unwrap_or_else(|| stem.clone());
        let of_store = model.path.as_deref().map(|path| store.names_of(path)).unwrap_or_default();
        // A path is no name: others than who started the server need not know it.
        let typed = typed.filter(|typed| !Path::new(typed).exists()).map(str::to_owned);
        let mut aliases: Vec<String> = typed.into_iter().chain(of_store).chain([stem, model.name.clone()]).collect();
        let mut seen = vec![name.clone()];
        aliases.retain(|alias| {
            !seen.contains(alias) && {
                seen.push(alias.clone());
                true
            }
        });
        match out.iter_mut().find(|other| same(other)) {
            Some(twice) => twice.aliases.extend(aliases),
            None => out.push(Candidate { model, name, aliases, found }),
        }
    };
    for argument in arguments {
        // The demo model is not a folder of that name, nor a file.
        if argument == DEMO_NAME || !Path::new(argument).is_dir() {
            add(Model::open(Some(argument))?, None, Some(argument), false);
            continue;
        }
        let folder = Path::new(argument);
        let all = models_in(folder).map_err(|error| Failure::file("read", folder, error))?;
        if all.is_empty() {
            let hint = "name one with .gguf files, or the files themselves; `gristmill pull NAME` fetches a model";
            return Err(Failure::new(format_args!("there is no model in the folder {}", folder.display()), hint));
        }
        for (at, local) in all.iter().enumerate() {
            looking(at, all.len());
            match Model::at(local.path.clone()) {
                Ok(model) => add(model, Some(local.name.clone()), None, true),
                Err(failure) => warn(&[format!("{} is left out: {}", local.name, failure.parts().0)]),
            }
        }
    }
    if out.is_empty() {
        return Err(Failure::new("none of the models can be read", "the warnings above say why"));
    }
    Ok(out)
}

fn same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Sees to it that every name is one model's: with its folder's where files are called alike.
fn apart(candidates: &mut [Candidate]) -> Result {
    let alike = |candidates: &[Candidate], at: usize| {
        let name = &candidates[at].name;
        candidates.iter().enumerate().any(|(other, it)| other != at && it.name.eq_ignore_ascii_case(name))
    };
    let all: Vec<usize> = (0..candidates.len()).filter(|&at| alike(candidates, at)).collect();
    for &at in &all {
        let folder = candidates[at]
            .model
            .path
            .as_deref()
            .and_then(|path| path.canonicalize().ok()?.parent()?.file_name().map(PathBuf::from));
        if let Some(folder) = folder {
            candidates[at].name = format!("{}/{}", folder.display(), candidates[at].name);
        }
    }
    match all.iter().find(|&&at| alike(candidates, at)) {
        None => Ok(()),
        Some(&at) => {
            let message = format!("two of the models would be called {}", printable(&candidates[at].name));
            Err(Failure::usage(message, "give one of the files another name"))
        }
    }
}

/// Where a model is found again.
enum At {
    File(PathBuf),
    Named(String),
}

impl At {
    fn for_model(model: &Model) -> At {
        model.path.clone().map_or_else(|| At::Named(model.name.clone()), At::File)
    }
}

/// A model on the device that all share.
struct File {
    at: At,
    name: String,
    common: Common,
    /// Answers that it makes together, if there are several.
    parallel: usize,
    opened: Opened,
    /// The head of the file between two questions that come one after the other. It takes megabytes, and is not held for longer.
    kept: Mutex<Option<Model>>,
}

/// Why something is not possible, and whether it is too large.
type Refusal = (Failure, bool);

fn refused(error: engine::Error) -> Refusal {
    let too_large = is_too_large(&error);
    (error.into(), too_large)
}

fn is_too_large(error: &engine::Error) -> bool {
    matches!(error, engine::Error::Weights { .. } | engine::Error::Context { .. })
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        (failure, false)
    }
}

fn told((failure, too_large): Refusal) -> LoadError {
    let (message, hint) = failure.parts();
    LoadError { message, hint, too_large, lost: false }
}

impl File {
    fn keep(&self, model: Model) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(model);
    }
    fn open(&self) -> Result<Model> {
        if let Some(model) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Ok(model);
        }
        match &self.at {
            At::File(path) => Model::at(path.clone()),
            At::Named(name) => Model::open(Some(name)),
        }
    }
    /// How it is run, with so many tokens of context.
    fn settings(&self, context: Option<usize>) -> engine::Settings {
        let settings = self.common.settings(None);
        let contexts = self.parallel.max(CONTEXTS);
        engine::Settings { context: context.or(settings.context), parallel: self.parallel, contexts, ..settings }
    }
    fn planned(&self, model: &Model) -> std::result::Result<ModelPlan, Refusal> {
        let describe = model.describe()?;
        let available = self.opened.device.available().unwrap_or(u64::MAX / 2);
        let estimate = MemoryEstimate::new(&model.file, &self.settings(None), available).map_err(refused)?;
        let about = ModelFacts {
            architecture: describe.architecture().to_owned(),
            vocabulary: describe.vocabulary(),
            width: describe.width(),
            weight_bytes: estimate.weights,
        };
        Ok(ModelPlan { about, context: estimate.context, bytes: estimate.weights + estimate.beside })
    }
    fn read(&self) -> Result<ModelText> {
        let model = self.open()?;
        let tokenizer = model.tokenizer()?;
        let (template, why) = model.template(&tokenizer)?;
        warn(why.as_slice());
        let (sampling, ignored) = language::sampling(model.file.metadata());
        warn(&ignored);
        model.check_context(&self.common, shortest(&template, &tokenizer, None)?)?;
        self.keep(model);
        Ok(ModelText { name: self.name.clone(), tokenizer, template, sampling })
    }
}

impl ModelSource for File {
    fn plan(&self) -> std::result::Result<ModelPlan, LoadError> {
        let model = self.open().map_err(|failure| told(failure.into()))?;
        self.planned(&model).map_err(told)
    }
    fn text(&self) -> std::result::Result<ModelText, LoadError> {
        self.read().map_err(|failure| told(failure.into()))
    }
    fn load(&self, context: usize, watch: &dyn Fn(Progress)) -> std::result::Result<Engine, LoadError> {
        let model = self.open().map_err(|failure| told(failure.into()))?;
        let load =
            |context| model.engine(self.opened.clone(), self.settings(context), (Bars::named(&self.name), watch));
        let loaded = match load(Some(context)) {
            // There is less memory than was thought, or its steps need more: a shorter one will do where nobody asked for this.
            Err(engine::Error::Context { .. }) if self.common.ctx.is_none() => load(None),
            loaded => loaded,
        };
        loaded.map_err(|error| {
            let lost = error.is_lost();
            LoadError { lost, ..told(refused(error)) }
        })
    }
}
