//! Models of `serve`: from MODEL arguments to the specifications that the server takes.

use crate::failure::{Failure, Result, printable};
use crate::flags::{Common, Lora};
use crate::model::{DEMO_NAME, Model, shortest, warn};
use crate::progress::Bars;
use crate::replica_devices::{ReplicaDevice, ReplicaDevices};
use crate::speculation::Speculation;
use gristmill_hub::{Store, file_stem, models_in};
use gristmill_llm::engine::{self, Engine, MemoryEstimate, Progress};
use gristmill_llm::language;
use gristmill_llm::placement::PlacementRequest;
use gristmill_llm::pooling::{Pooling, PoolingKind};
use gristmill_llm::rerank::RerankPrompt;
use gristmill_llm::sched::DraftSources;
use gristmill_server::{
    LoadError, ModelFacts, ModelPlan, ModelSource, ModelSpec, ModelText, NamedAdapter,
};
use gristmill_uop::machine::MachineKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A model and its names in the API.
struct Candidate {
    model: Model,
    name: String,
    aliases: Vec<String>,
    /// Whether it was found in a folder; if it cannot be served, it is left out.
    found: bool,
}

/// Models as given on the command line.
#[derive(Clone)]
pub struct ServedModels<'a> {
    /// Names, files and folders.
    pub arguments: &'a [String],
    /// Name of a single model in the API.
    pub name: Option<String>,
    /// Maximum concurrent sequences per model.
    pub parallel: Option<usize>,
    /// Kind of pooling in place of that of the files.
    pub pooling: Option<PoolingKind>,
    /// Where drafts of next tokens come from.
    pub speculation: Speculation,
}

/// Default concurrent sequences per model, on a CPU and on a GPU.
const PARALLEL: [usize; 2] = [8, 32];

/// Minimum number of whole contexts in a model's page pool, if memory allows, so that the prefix
/// cache keeps several conversations.
const CONTEXTS: usize = 4;

/// Opens the devices of `--device`, given whether a model is too large for one of them.
pub type OpenDevices<'a> =
    dyn Fn(&dyn Fn(&ReplicaDevices) -> bool) -> Result<Arc<ReplicaDevices>> + 'a;

/// Returns the models of the arguments, or the demo model; `scanning` gets the progress of a
/// folder.
pub fn specs(
    served: ServedModels,
    common: &Common,
    opened: &OpenDevices,
    scanning: &dyn Fn(usize, usize),
) -> Result<Vec<ModelSpec>> {
    let ServedModels {
        arguments, name, ..
    } = served.clone();
    common.check_computes()?;
    let mut candidates = candidates(arguments, scanning)?;
    rename(&mut candidates, name)?;
    make_unique(&mut candidates)?;
    let is_large = |devices: &ReplicaDevices| {
        let mut models = candidates.iter().map(|candidate| &candidate.model);
        models.any(|model| is_too_large_for_one(model, common, devices))
    };
    let devices = opened(&is_large)?;
    let only = candidates.len() == 1;
    let mut specs = Vec::new();
    for Candidate {
        model,
        name,
        aliases,
        found,
    } in candidates
    {
        let model = model.with_choices(&common.lora)?;
        let file = File::new(&model, &name, common, &served, &devices)?;
        let plan = match file.planned(&model) {
            Ok(plan) => Ok(plan),
            // A model that does not fit now may fit later, unless it is the only one.
            Err(error) if only || !found && !error.1 => return Err(error.0),
            Err((failure, too_large)) => {
                let (message, hint) = failure.parts();
                let then = match too_large {
                    true => "cannot be loaded now",
                    false => "is left out",
                };
                warn(&[format!("{name} {then}: {message}")]);
                if !too_large {
                    continue;
                }
                Err(LoadError {
                    message,
                    hint,
                    too_large,
                    lost: false,
                })
            }
        };
        if only {
            file.keep(model);
        }
        specs.push(ModelSpec {
            name,
            aliases,
            adapters: file.adapters(),
            plan,
            source: Arc::new(file),
        });
    }
    if specs.is_empty() {
        return Err(Failure::new(
            "none of the models can be served",
            "the warnings above say why",
        ));
    }
    Ok(specs)
}

/// Returns the aliases without `name` and without repetitions, in their order.
fn distinct(name: &str, aliases: impl Iterator<Item = String>) -> Vec<String> {
    let mut aliases: Vec<String> = aliases.collect();
    let mut seen = vec![name.to_owned()];
    aliases.retain(|alias| {
        !seen.contains(alias) && {
            seen.push(alias.clone());
            true
        }
    });
    aliases
}

/// Gives the only candidate the name of `--name`; its own becomes an alias.
fn rename(candidates: &mut [Candidate], name: Option<String>) -> Result<()> {
    match (name, candidates) {
        (None, _) => {}
        (Some(name), [only]) => only.aliases.push(std::mem::replace(&mut only.name, name)),
        (Some(_), several) => {
            let message = format!(
                "--name is for a single model, and there are {}",
                several.len()
            );
            return Err(Failure::usage(
                message,
                "models are named after their files: leave --name out, or give one MODEL",
            ));
        }
    }
    Ok(())
}

fn candidates(arguments: &[String], scanning: &dyn Fn(usize, usize)) -> Result<Vec<Candidate>> {
    let arguments = if arguments.is_empty() {
        &[DEMO_NAME.to_owned()]
    } else {
        arguments
    };
    // Without a home directory there is none, and no file belongs to it.
    let store = Store::user().ok();
    let mut out: Vec<Candidate> = Vec::new();
    let mut add = |model: Model, name: Option<String>, typed: Option<&str>, found| {
        let same = |other: &Candidate| match (&other.model.path, &model.path) {
            (Some(one), Some(other)) => same_file(one, other),
            (None, None) => other.model.name == model.name,
            _ => false,
        };
        let stem = if model.path.is_some() {
            file_stem(&model.name).to_owned()
        } else {
            model.name.clone()
        };
        let name = name.unwrap_or_else(|| stem.clone());
        let of_store = model
            .path
            .as_deref()
            .and_then(|path| Some(store.as_ref()?.names_of(path)))
            .unwrap_or_default();
        // Paths are not names in the API: clients need not know them.
        let typed = typed
            .filter(|typed| !Path::new(typed).exists())
            .map(str::to_owned);
        let aliases = typed.into_iter().chain(of_store);
        let aliases = distinct(&name, aliases.chain([stem, model.name.clone()]));
        match out.iter_mut().find(|other| same(other)) {
            Some(twice) => twice.aliases.extend(aliases),
            None => out.push(Candidate {
                model,
                name,
                aliases,
                found,
            }),
        }
    };
    for argument in arguments {
        // demo is always the demo model, never a folder of that name.
        if argument == DEMO_NAME || !Path::new(argument).is_dir() {
            add(Model::open(Some(argument))?, None, Some(argument), false);
            continue;
        }
        let folder = Path::new(argument);
        let all = models_in(folder).map_err(|error| Failure::file("read", folder, error))?;
        if all.is_empty() {
            let hint = "give a folder with .gguf files, or the files; `gristmill pull NAME` downloads a model";
            return Err(Failure::new(
                format_args!("there is no model in the folder {}", folder.display()),
                hint,
            ));
        }
        for (at, local) in all.iter().enumerate() {
            scanning(at, all.len());
            match Model::at(local.path.clone()) {
                Ok(model) => add(model, Some(local.name.clone()), None, true),
                Err(failure) => {
                    warn(&[format!("{} is left out: {}", local.name, failure.parts().0)])
                }
            }
        }
    }
    if out.is_empty() {
        return Err(Failure::new(
            "none of the models can be read",
            "the warnings above say why",
        ));
    }
    Ok(out)
}

fn same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Makes names unique: files of one name are prefixed by their folders.
fn make_unique(candidates: &mut [Candidate]) -> Result {
    let clashes = |candidates: &[Candidate], at: usize| {
        let name = &candidates[at].name;
        candidates
            .iter()
            .enumerate()
            .any(|(other, it)| other != at && it.name.eq_ignore_ascii_case(name))
    };
    let all: Vec<usize> = (0..candidates.len())
        .filter(|&at| clashes(candidates, at))
        .collect();
    for &at in &all {
        let folder = candidates[at].model.path.as_deref().and_then(|path| {
            path.canonicalize()
                .ok()?
                .parent()?
                .file_name()
                .map(PathBuf::from)
        });
        if let Some(folder) = folder {
            candidates[at].name = format!("{}/{}", folder.display(), candidates[at].name);
        }
    }
    match all.iter().find(|&&at| clashes(candidates, at)) {
        None => Ok(()),
        Some(&at) => {
            let message = format!(
                "two models have the name {}",
                printable(&candidates[at].name)
            );
            Err(Failure::usage(message, "rename one of the files"))
        }
    }
}

/// How to open a model again.
enum Location {
    File(PathBuf),
    Name(String),
}

impl Location {
    fn for_model(model: &Model) -> Location {
        model
            .path
            .clone()
            .map_or_else(|| Location::Name(model.name.clone()), Location::File)
    }
}

/// A model file, loaded on demand on the devices that all models share.
struct File {
    at: Location,
    name: String,
    common: Common,
    /// Maximum number of concurrent sequences of each replica.
    parallel: Option<usize>,
    devices: Arc<ReplicaDevices>,
    /// The open file between two consecutive calls; its metadata takes megabytes.
    kept: Mutex<Option<Model>>,
    /// Kind of pooling in place of that of the file.
    pooling: Option<PoolingKind>,
    speculation: Speculation,
}

/// A failure, and whether the model does not fit in memory.
type Refusal = (Failure, bool);

fn refused(error: engine::Error) -> Refusal {
    let too_large = is_too_large(&error);
    (error.into(), too_large)
}

fn is_too_large(error: &engine::Error) -> bool {
    matches!(
        error,
        engine::Error::Weights { .. } | engine::Error::Context { .. }
    )
}

/// Returns the placement of a replica, which is whole, on its device.
fn whole(on: &ReplicaDevice, asked: &PlacementRequest) -> PlacementRequest {
    PlacementRequest {
        memory: on.share.into_iter().chain(asked.memory).min(),
        ..PlacementRequest::default()
    }
}

/// Returns whether a device has no room for a replica of the model.
fn is_too_large_for_one(model: &Model, common: &Common, devices: &ReplicaDevices) -> bool {
    let settings = common.settings(None);
    devices.all().iter().any(|on| {
        let settings = engine::Settings {
            placement: whole(on, &settings.placement),
            ..settings.clone()
        };
        let estimate = MemoryEstimate::on_device(&model.file, &settings, &on.opened);
        estimate.is_err_and(|error| is_too_large(&error))
    })
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        (failure, false)
    }
}

fn load_error((failure, too_large): Refusal) -> LoadError {
    let (message, hint) = failure.parts();
    LoadError {
        message,
        hint,
        too_large,
        lost: false,
    }
}

impl File {
    fn new(
        model: &Model,
        name: &str,
        common: &Common,
        served: &ServedModels,
        devices: &Arc<ReplicaDevices>,
    ) -> Result<File> {
        let common = match model.describe() {
            Ok(described) => common.over(described.context()),
            // Planning reports the error.
            Err(_) => common.clone(),
        };
        Ok(File {
            at: Location::for_model(model),
            name: name.to_owned(),
            common,
            parallel: served.parallel,
            devices: devices.clone(),
            kept: Mutex::default(),
            pooling: served.pooling,
            speculation: served.speculation.clone(),
        })
    }
    /// Adapters by which requests name them.
    fn adapters(&self) -> Vec<NamedAdapter> {
        let named = |lora: &Lora| NamedAdapter {
            name: lora.name(),
            scale: lora.scale,
        };
        self.common.lora.iter().map(named).collect()
    }
    fn keep(&self, model: Model) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(model);
    }
    fn open(&self) -> Result<Model> {
        let kept = self
            .kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let model = match (kept, &self.at) {
            (Some(model), _) => return Ok(model),
            (None, Location::File(path)) => Model::at(path.clone())?,
            (None, Location::Name(name)) => Model::open(Some(name))?,
        };
        self.speculation
            .attach(model)?
            .with_choices(&self.common.lora)
    }
    /// Engine settings on a device; `context` overrides --ctx.
    fn settings(&self, on: &ReplicaDevice, context: Option<usize>) -> engine::Settings {
        let settings = self.speculation.with_block(self.common.settings(None));
        let is_gpu = on.opened.target.machine.kind == MachineKind::Gpu;
        let parallel = self.parallel.unwrap_or(PARALLEL[usize::from(is_gpu)]);
        let placement = match self.devices.all() {
            [_] => self.devices.divide(settings.placement),
            _ => whole(on, &settings.placement),
        };
        engine::Settings {
            context: context.or(settings.context),
            parallel,
            contexts: parallel.max(CONTEXTS),
            placement,
            // A short prompt, such as a test of the server.
            first_prompt: Some(1),
            ..settings
        }
    }
    fn planned(&self, model: &Model) -> std::result::Result<ModelPlan, Refusal> {
        let describe = model.describe()?;
        self.pooling(model)?;
        let estimate = |on| {
            let settings = self.settings(on, None);
            MemoryEstimate::on_device(&model.file, &settings, &on.opened).map_err(refused)
        };
        let all = self.devices.all().iter().map(estimate);
        let all = all.collect::<std::result::Result<Vec<_>, _>>()?;
        let about = ModelFacts {
            architecture: describe.architecture().to_owned(),
            vocabulary: describe.vocabulary(),
            width: describe.width(),
            weight_bytes: all[0].weights,
        };
        // All replicas have the context of the one with the least memory.
        let bytes = all.iter().map(|of| of.weights + of.non_weight_bytes).max();
        let context = all.iter().map(|of| of.context).min();
        Ok(ModelPlan {
            about,
            context: context.unwrap_or_default(),
            bytes: bytes.unwrap_or_default(),
        })
    }
    fn pooling(&self, model: &Model) -> Result<Pooling> {
        Ok(Pooling::read(&model.file, self.pooling)?)
    }
    fn read(&self) -> Result<ModelText> {
        let model = self.open()?;
        let tokenizer = model.tokenizer()?;
        let (template, why) = model.template(&tokenizer)?;
        warn(why.as_slice());
        let (sampling, ignored) = language::sampling(model.file.metadata());
        warn(&ignored);
        model.check_context(&self.common, shortest(&template, &tokenizer, None)?)?;
        let pooling = self.pooling(&model)?;
        let rerank = RerankPrompt::read(model.file.metadata());
        self.keep(model);
        Ok(ModelText {
            name: self.name.clone(),
            tokenizer,
            template,
            sampling,
            pooling,
            rerank,
        })
    }
}

impl ModelSource for File {
    fn plan(&self) -> std::result::Result<ModelPlan, LoadError> {
        let model = self.open().map_err(|failure| load_error(failure.into()))?;
        self.planned(&model).map_err(load_error)
    }
    fn text(&self) -> std::result::Result<ModelText, LoadError> {
        self.read().map_err(|failure| load_error(failure.into()))
    }
    fn load(
        &self,
        device: usize,
        context: usize,
        watch: &dyn Fn(Progress),
    ) -> std::result::Result<Engine, LoadError> {
        let model = self.open().map_err(|failure| load_error(failure.into()))?;
        let on = &self.devices.all()[device];
        let named = match self.devices.all().len() {
            1 => self.name.clone(),
            _ => format!("{} on {}", self.name, on.name),
        };
        let load = |context| {
            let settings = self.settings(on, context);
            model.engine(on.opened.clone(), settings, (Bars::named(&named), watch))
        };
        let loaded = match load(Some(context)) {
            // The estimate was too large: without --ctx, a shorter context will do.
            Err(engine::Error::Context { .. }) if self.common.ctx().is_none() => load(None),
            loaded => loaded,
        };
        loaded.map_err(|error| {
            let lost = error.is_lost();
            LoadError {
                lost,
                ..load_error(refused(error))
            }
        })
    }
    fn drafts(
        &self,
        device: usize,
        engine: &Engine,
    ) -> std::result::Result<DraftSources, LoadError> {
        let opened = &self.devices.all()[device].opened;
        let sources = self.speculation.sources(engine, opened, &self.common);
        sources.map_err(|failure| load_error(failure.into()))
    }
}
