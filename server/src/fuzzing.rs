//! Entry points of the fuzz targets: requests without a connection, grammars and replies without a
//! request.

pub use crate::core::constraint::grammar::{Callable, OutputConstraint, OutputFormat, grammar};
pub use crate::core::constraint::mask::{Constraint, Grammars};
pub use gristmill_llm::chat::reply::{Begins, Reply, ReplyPart, Schemas};

use crate::api::routes;
use crate::app::App;
use crate::config::Config;
use crate::connection_registry::Registry;
use crate::core::admission::Admission;
use crate::core::engine_health::{DeviceHealth, EngineHealth};
use crate::core::engine_request::{EngineRequest, Task};
use crate::core::loading::Loading;
use crate::core::metrics::Metrics;
use crate::core::model::{ModelFacts, ModelText};
use crate::core::models::entry::{LoadError, ModelPlan, ModelSource, ModelSpec};
use crate::core::models::pool::{Models, Shared};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use gristmill_llm::engine::{Engine, Progress};
use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// A model that is never loaded; its tokenizer and template can be read once.
struct Toy(Mutex<Option<ModelText>>);

impl ModelSource for Toy {
    fn plan(&self) -> Result<ModelPlan, LoadError> {
        Err(LoadError::default())
    }
    fn text(&self) -> Result<ModelText, LoadError> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .ok_or_else(LoadError::default)
    }
    fn load(&self, _: usize, _: usize, _: &dyn Fn(Progress)) -> Result<Engine, LoadError> {
        Err(LoadError::default())
    }
}

/// Returns the specification of a [`Toy`] with this tokenizer and template.
fn toy_spec(text: ModelText, context: usize) -> ModelSpec {
    let vocabulary = text.tokenizer.n_tokens();
    let about = ModelFacts {
        architecture: "toy".into(),
        vocabulary,
        width: 1,
        weight_bytes: 0,
    };
    let (name, plan) = (
        text.name.clone(),
        ModelPlan {
            about,
            context,
            bytes: 0,
        },
    );
    let source = Arc::new(Toy(Mutex::new(Some(text))));
    ModelSpec {
        name,
        aliases: Vec::new(),
        adapters: Vec::new(),
        plan: Ok(plan),
        source,
    }
}

/// A server without connections and without an engine: accepted requests are recorded and dropped.
pub struct Door {
    runtime: Runtime,
    router: Router,
    accepted: mpsc::Receiver<Accepted>,
}

/// Summary of a request that reached the engine's queue.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// Tokens of the shortest and of the longest prompt.
    pub prompts: [usize; 2],
    /// Answers to each prompt.
    pub choices: usize,
    /// Alternatives returned with each token.
    pub logprobs: Option<usize>,
}

impl Accepted {
    fn from_request(request: &EngineRequest) -> Accepted {
        let prompts = request.prompts.iter().map(Vec::len);
        let (shortest, longest) = (
            prompts.clone().min().unwrap_or(0),
            prompts.max().unwrap_or(0),
        );
        match &request.task {
            Task::Generate(answers) => Accepted {
                prompts: [shortest, longest],
                choices: answers.choices,
                logprobs: answers.logprobs,
            },
            Task::Pool | Task::Load => Accepted {
                prompts: [shortest, longest],
                choices: 1,
                logprobs: None,
            },
        }
    }
}

/// Response that a client would receive.
#[derive(Debug)]
pub struct Response {
    /// HTTP status code of the response.
    pub status: u16,
    /// Bytes of the body.
    pub body: Vec<u8>,
    /// Summary of the request, if it reached the engine's queue.
    pub accepted: Option<Accepted>,
}

impl Door {
    /// Server of a model with a context of `context` tokens.
    ///
    /// # Errors
    /// When a thread or the runtime cannot be created.
    pub fn new(text: ModelText, context: usize, config: Config) -> io::Result<Door> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        let spec = toy_spec(text, context);
        let (metrics, health, limits) =
            (Metrics::default(), EngineHealth::default(), config.limits());
        let shared = Shared {
            kv_events: false,
            metrics,
            devices: Arc::new(DeviceHealth::new(Vec::new(), health)),
            limits,
            waiting: config.queue,
            keep: None,
            batch_invariant: false,
            any_model: false,
        };
        let models = Models::new(
            vec![spec],
            None,
            Box::new(|| None),
            shared,
            Loading::default(),
        );
        let model = models.entries()[0].clone();
        models.pretend_loaded(&model);
        let served = model.served().map_err(io::Error::other)?;
        let bodies = Arc::new(Semaphore::new(config.bodies));
        let connected = Registry::new(config.connections);
        let app = App {
            models: Arc::new(models),
            admission: Admission::new(1),
            bodies,
            connected,
            config,
        };
        let (sender, accepted) = mpsc::channel();
        std::thread::Builder::new().spawn(move || {
            // Keeps the tokenizer and template alive for the requests.
            let _served = served;
            while let Some(request) = model.queue.next(0) {
                // The request ends when it is dropped, which must follow the report.
                if sender.send(Accepted::from_request(&request)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Door {
            runtime,
            router: routes::router(Arc::new(app)),
            accepted,
        })
    }
    /// Sends a request; `None` if it is not valid HTTP. The content type defaults to JSON.
    pub fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Option<Response> {
        let mut request = Request::builder().method(method).uri(path);
        let given = |name: header::HeaderName| {
            headers
                .iter()
                .any(|(n, _)| n.eq_ignore_ascii_case(name.as_str()))
        };
        for (name, value) in [
            (header::HOST, "localhost"),
            (header::CONTENT_TYPE, "application/json"),
        ] {
            if !given(name.clone()) {
                request = request.header(name, value);
            }
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body)).ok()?;
        let answer = async {
            let response = self
                .router
                .clone()
                .oneshot(request)
                .await
                .unwrap_or_else(|never| match never {});
            let status = response.status().as_u16();
            let body = to_bytes(response.into_body(), usize::MAX).await;
            (status, body.unwrap_or_default().to_vec())
        };
        let (status, body) = self.runtime.block_on(answer);
        Some(Response {
            status,
            body,
            accepted: self.accepted.try_iter().last(),
        })
    }
}
