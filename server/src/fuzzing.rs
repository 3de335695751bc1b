//! The way in for the fuzz targets: requests without a connection, grammars and replies without a request.

pub use crate::core::constraint::grammar::{Callable, Form, OutputConstraint, grammar};
pub use crate::core::constraint::mask::{Constraint, Grammars};
pub use crate::core::reply::{Part, Reply, Schemas};

use crate::api::routes;
use crate::app::App;
use crate::config::Config;
use crate::core::condition::Condition;
use crate::core::intake::Intake;
use crate::core::job::{Job, Task};
use crate::core::metrics::Metrics;
use crate::core::model::{About, Served, Text};
use crate::core::preparing::Preparing;
use crate::core::queue::Queue;
use crate::net::connections::Registry;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use std::io;
use std::sync::{Arc, mpsc};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// A server without connections and without an engine: what it accepts is noted, and given up.
pub struct Door {
    runtime: Runtime,
    router: Router,
    accepted: mpsc::Receiver<Accepted>,
}

/// What the engine would have been asked.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// Tokens of the shortest and of the longest prompt.
    pub prompts: [usize; 2],
    /// Answers to each.
    pub choices: usize,
    /// Alternatives told for each token.
    pub logprobs: Option<usize>,
}

/// What a client would read.
#[derive(Debug)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    /// What the engine would have been asked.
    pub accepted: Option<Accepted>,
}

impl Door {
    /// Before a model with so much context.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(text: Text, context: usize, config: Config) -> io::Result<Door> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let vocabulary = text.tokenizer.n_tokens();
        let queue: Arc<Queue<Job>> = Arc::new(Queue::new(config.queue));
        let about = About { architecture: "toy".into(), vocabulary, width: 1, weight_bytes: 0 };
        let intake = Intake {
            served: Arc::new(Served::new(text, about, context)),
            queue: queue.clone(),
            metrics: Arc::new(Metrics::default()),
            preparing: Preparing::new(1),
            condition: Condition::default(),
            limits: config.limits(),
        };
        let bodies = Arc::new(Semaphore::new(config.bodies));
        let connected = Registry::new(config.connections);
        let app = App { intake: Arc::new(intake), bodies, connected, config };
        let (sender, accepted) = mpsc::channel();
        std::thread::Builder::new().spawn(move || {
            while let Some(job) = queue.next() {
                let prompts = job.prompts.iter().map(Vec::len);
                let (shortest, longest) = (prompts.clone().min().unwrap_or(0), prompts.max().unwrap_or(0));
                let told = match &job.task {
                    Task::Answers(answers) => {
                        Accepted { prompts: [shortest, longest], choices: answers.choices, logprobs: answers.logprobs }
                    }
                    Task::Embedding => Accepted { prompts: [shortest, longest], choices: 1, logprobs: None },
                };
                // The job ends, and with it the request, only when this has been told.
                if sender.send(told).is_err() {
                    return;
                }
            }
        })?;
        Ok(Door { runtime, router: routes::router(Arc::new(app)), accepted })
    }
    /// Asks; `None` for what is no request of HTTP. JSON unless a header says what else it is.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Option<Response> {
        let mut request = Request::builder().method(method).uri(path);
        let given = |name: header::HeaderName| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name.as_str()));
        for (name, value) in [(header::HOST, "localhost"), (header::CONTENT_TYPE, "application/json")] {
            if !given(name.clone()) {
                request = request.header(name, value);
            }
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body)).ok()?;
        let answer = async {
            let response = self.router.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
            let status = response.status().as_u16();
            let body = to_bytes(response.into_body(), usize::MAX).await;
            (status, body.unwrap_or_default().to_vec())
        };
        let (status, body) = self.runtime.block_on(answer);
        Some(Response { status, body, accepted: self.accepted.try_iter().last() })
    }
}
