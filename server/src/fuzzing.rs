//! The way in for the fuzz targets: requests without a connection, grammars and replies without a request.

pub use crate::constraint::{Constraint, Grammars};
pub use crate::grammar::{Callable, Form, Style, grammar};
pub use crate::reply::{MARKERS, Part, Reply, Schemas};

use crate::app::App;
use crate::condition::Condition;
use crate::config::Config;
use crate::connections::Registry;
use crate::http;
use crate::job::Job;
use crate::metrics::Metrics;
use crate::model::{Served, Text};
use crate::preparing::Preparing;
use crate::queue::Queue;
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
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Answers.
    pub choices: usize,
    /// Most tokens of each.
    pub limit: usize,
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
        let app = App {
            served: Arc::new(Served::new(text, vocabulary, context)),
            queue: queue.clone(),
            metrics: Arc::new(Metrics::default()),
            preparing: Preparing::new(1),
            bodies: Arc::new(Semaphore::new(config.bodies)),
            condition: Condition::default(),
            connected: Registry::new(config.connections),
            config,
        };
        let (sender, accepted) = mpsc::channel();
        std::thread::Builder::new().spawn(move || {
            while let Some(job) = queue.next() {
                let Job { prompt, choices, limit, logprobs, .. } = &job;
                let told = Accepted { prompt: prompt.len(), choices: *choices, limit: *limit, logprobs: *logprobs };
                // The job ends, and with it the request, only when this has been told.
                if sender.send(told).is_err() {
                    return;
                }
            }
        })?;
        Ok(Door { runtime, router: http::router(Arc::new(app)), accepted })
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
