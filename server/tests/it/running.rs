//! Servers in this process, with the demo model or several models.

use crate::client::Client;
use gristmill_backend::Opened;
use gristmill_backend::cpu::{Cc, CpuDevice, Isa, QUICK_FLAG, dialect};
use gristmill_llm::arch;
use gristmill_llm::chat::{ChatTemplate, Isolation, SpecialTexts};
use gristmill_llm::engine::{Engine, MemoryEstimate, Progress, Settings};
use gristmill_llm::file::ModelFile;
use gristmill_llm::language;
use gristmill_llm::pooling::{Pooling, PoolingKind};
use gristmill_llm::rerank::RerankPrompt;
use gristmill_llm::sched::DraftSources;
use gristmill_runtime::store::Store;
use gristmill_server::{
    Config, EngineHealth, LoadError, ModelFacts, ModelPlan, ModelSource, ModelSpec, ModelText,
    Notice, Offer, Server,
};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A server in this process.
pub struct Running {
    pub client: Client,
    pub engine_health: EngineHealth,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Concurrent sequences of a model.
pub const PARALLEL: usize = 4;
const CONTEXT: usize = 2048;

fn settings(context: usize, sequences: usize) -> Settings {
    Settings {
        context: Some(context),
        parallel: sequences,
        contexts: sequences.max(4),
        ..Settings::default()
    }
}

/// A model file on a device that several models share.
pub struct File {
    name: String,
    path: PathBuf,
    /// The devices, with a replica on each.
    opened: Vec<Opened>,
    sequences: usize,
    /// Kind of pooling in place of that of the file's metadata.
    pooling: Option<PoolingKind>,
    /// Whether n-grams are drafts.
    drafts: bool,
    /// Chat template in place of that of the file.
    template: Option<&'static str>,
}

/// CPU device. Kernels are compiled once, for these tests and those of the program, in a store that
/// they share; with `-Og`, in a third of the time of `-O2`, as the tests concern the server.
pub fn processor() -> Opened {
    let store = Store::open(
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("gristmill-cache"),
        1 << 29,
    )
    .expect("a store");
    let isa = Isa::parse("auto").expect("an instruction set");
    let processor = CpuDevice::with(
        2,
        isa,
        Cc::find().expect("a C compiler").with_flag(QUICK_FLAG),
        store,
    )
    .expect("a processor");
    Opened::new(Arc::new(processor), Some(&dialect::C))
}

impl File {
    /// Model of the file at this path of the repository.
    pub fn spec(name: &str, path: &str, opened: Opened) -> ModelSpec {
        File::spec_for(name, path, vec![opened], PARALLEL)
    }
    /// Model of a file, served with at most `sequences` concurrent sequences.
    pub fn spec_for(name: &str, path: &str, opened: Vec<Opened>, sequences: usize) -> ModelSpec {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
        let file = File {
            name: name.into(),
            path,
            opened,
            sequences,
            pooling: None,
            drafts: false,
            template: None,
        };
        file.offered()
    }
    /// Model of the file at this path of the repository, with another kind of pooling.
    pub fn pooled_spec(name: &str, path: &str, opened: Opened, kind: PoolingKind) -> ModelSpec {
        let file = File {
            name: name.into(),
            path: Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path),
            opened: vec![opened],
            sequences: PARALLEL,
            pooling: Some(kind),
            drafts: false,
            template: None,
        };
        file.offered()
    }
    /// The demo model, with drafts by n-grams.
    fn drafting(opened: Opened) -> File {
        File {
            name: "demo".into(),
            path: Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo-glm-Q4_0.gguf"),
            opened: vec![opened],
            sequences: PARALLEL,
            pooling: None,
            drafts: true,
            template: None,
        }
    }
    /// The demo model with another chat template, and drafts by n-grams.
    pub fn templated_spec(template: &'static str, opened: Opened) -> ModelSpec {
        let file = File {
            template: Some(template),
            ..File::drafting(opened)
        };
        file.offered()
    }
    /// The demo model, with drafts by n-grams.
    pub fn drafting_demo(opened: Opened) -> ModelSpec {
        File::drafting(opened).offered()
    }
    fn offered(self) -> ModelSpec {
        let (name, file) = (self.name.clone(), self);
        ModelSpec {
            name,
            aliases: Vec::new(),
            adapters: Vec::new(),
            plan: file.plan(),
            source: Arc::new(file),
        }
    }
    fn open(&self) -> Result<ModelFile, LoadError> {
        ModelFile::open(&self.path).map_err(|error| LoadError {
            message: error.to_string(),
            ..LoadError::default()
        })
    }
}

impl ModelSource for File {
    fn plan(&self) -> Result<ModelPlan, LoadError> {
        let file = self.open()?;
        let model = arch::load(file.metadata(), &file).expect("a model");
        // The forecast has the settings of the later load.
        let settings = settings(model.context().min(CONTEXT), self.sequences);
        let forecast = MemoryEstimate::new(&file, &settings, u64::MAX / 2).expect("a model");
        let about = ModelFacts {
            architecture: model.architecture().to_owned(),
            vocabulary: model.vocabulary(),
            width: model.width(),
            weight_bytes: forecast.weights,
        };
        let (context, bytes) = (
            forecast.context,
            forecast.weights + forecast.non_weight_bytes,
        );
        Ok(ModelPlan {
            about,
            context,
            bytes,
        })
    }
    fn text(&self) -> Result<ModelText, LoadError> {
        let file = self.open()?;
        let tokenizer = language::tokenizer(file.metadata()).expect("a tokenizer");
        let isolation = Isolation::InProcess;
        let (template, _) = match self.template {
            None => language::template(file.metadata(), &tokenizer, &isolation),
            Some(source) => {
                let (pre, special) = (tokenizer.pre(), SpecialTexts::from(&tokenizer));
                let selected = ChatTemplate::select(Some(source), pre, &special, &isolation);
                selected.map_err(Into::into)
            }
        }
        .expect("a template");
        let (sampling, _) = language::sampling(file.metadata());
        Ok(ModelText {
            name: self.name.clone(),
            tokenizer,
            template,
            sampling,
            pooling: Pooling::read(&file, self.pooling).expect("a pooling"),
            rerank: RerankPrompt::read(file.metadata()),
        })
    }
    fn load(
        &self,
        device: usize,
        context: usize,
        progress: &dyn Fn(Progress),
    ) -> Result<Engine, LoadError> {
        // Loads run one at a time, so that kernels are compiled once.
        static LOADING: Mutex<()> = Mutex::new(());
        let _turn = LOADING
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        Ok(Engine::load(
            &self.open()?,
            self.opened[device].clone(),
            settings(context, self.sequences),
            progress,
        )
        .expect("an engine"))
    }
    fn drafts(&self, _: usize, _: &Engine) -> Result<DraftSources, LoadError> {
        Ok(match self.drafts {
            true => DraftSources {
                assumes_times: true,
                ..DraftSources::ngrams()
            },
            false => DraftSources::default(),
        })
    }
}

/// Starts a server with the demo model.
pub fn start(config: Config) -> Running {
    start_on(config, |processor| processor)
}

/// Starts a server with the demo model, on a device that wraps the CPU device.
pub fn start_on(config: Config, device: impl FnOnce(Opened) -> Opened + Send + 'static) -> Running {
    let offer = move || {
        let models = vec![File::spec(
            "demo",
            "assets/demo-glm-Q4_0.gguf",
            device(processor()),
        )];
        Offer {
            models,
            devices: vec!["cpu".into()],
            most_loaded: None,
            available: Box::new(|| None),
        }
    };
    start_with(config, offer)
}

/// Starts a server of the demo model with one concurrent sequence.
pub fn start_single(config: Config) -> Running {
    start_with(config, || {
        let models = vec![File::spec_for(
            "demo",
            "assets/demo-glm-Q4_0.gguf",
            vec![processor()],
            1,
        )];
        Offer {
            models,
            devices: vec!["cpu".into()],
            most_loaded: None,
            available: Box::new(|| None),
        }
    })
}

/// Starts a server with the given models.
pub fn start_with(config: Config, offer: impl FnOnce() -> Offer + Send + 'static) -> Running {
    let server = Server::bind(Config {
        port: 0,
        ..config.clone()
    })
    .expect("a port");
    start_bound(server, config.api_key, offer)
}

/// Starts a server that listens already.
pub fn start_bound(
    server: Server,
    key: Option<String>,
    offer: impl FnOnce() -> Offer + Send + 'static,
) -> Running {
    let client = Client {
        address: server.address(),
        key,
    };
    let engine_health = server.engine_health();
    let (end, ended) = oneshot::channel::<()>();
    let (is_ready, ready) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let ended = async {
            let _ = ended.await;
        };
        let tell = move |notice| {
            if matches!(notice, Notice::Ready(_)) {
                is_ready.send(()).expect("somebody waits");
            }
        };
        server.run_until(offer(), tell, ended).expect("it serves");
    });
    ready.recv().expect("it is ready");
    Running {
        client,
        engine_health,
        end: Some(end),
        thread: Some(thread),
    }
}

impl Running {
    /// Begins the shutdown without waiting for it.
    pub fn end(&mut self) {
        drop(self.end.take());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server panicked");
        }
    }
}
