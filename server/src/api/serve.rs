//! Generic request handler of the generating endpoints: parse, prepare, submit, stream or collect.

use crate::api::interface::{Interface, ResponseEncoder};
use crate::app::App;
use crate::core::client::Origin;
use crate::core::error::RequestError;
use crate::core::loading::LoadStep;
use crate::core::models::policy::KeepAlive;
use crate::core::models::pool::Status;
use crate::core::output::{Outputs, StreamItem};
use crate::core::preprocess::Preprocessor;
use crate::net::body::{self, UnreadRequest};
use crate::net::ignored;
use crate::net::stream::{self, Chunk, ChunkSource};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Duration;

/// Handles a generation request of the interface `I`.
///
/// # Errors
/// When the request is invalid, refused, or generation fails before the response has begun.
pub async fn generate<I: Interface>(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Response, RequestError> {
    let (read, client, received) = asked.json(&app).await?;
    let origin = Origin { client, received };
    let ready = app.run_blocking(client, move |models| {
        let body = body::parse::<I::Body>(&read)?;
        let preprocessor = Preprocessor::for_model(models, I::model(&body))?;
        let stay = I::keep_alive(&body)?;
        if let Some(nothing) = I::load_response(&body, &preprocessor.served) {
            return Ok((preprocessor, Err((nothing, stay))));
        }
        let (mut request, encoder) = I::request(body, &preprocessor.served)?;
        let (streams, ignored) = (request.stream, std::mem::take(&mut request.ignored));
        let (mut request, outputs) = preprocessor.prepare(origin, request)?;
        request.stay = stay;
        Ok((
            preprocessor,
            Ok((streams, ignored, request, outputs, encoder)),
        ))
    });
    let (streams, ignored, outputs, encoder) = match ready.await? {
        (preprocessor, Ok((streams, ignored, request, outputs, encoder))) => {
            preprocessor.submit(request)?;
            (streams, ignored, outputs, encoder)
        }
        (preprocessor, Err((nothing, stay))) => {
            let is_loaded = matches!(app.models.status(&preprocessor.model), Status::Loaded(_));
            // A request without input sets the keep-alive of a loaded model and loads an unloaded
            // one, unless the keep-alive is 0.
            let is_asked = if is_loaded {
                stay.is_some()
            } else {
                stay != Some(KeepAlive::For(Duration::ZERO))
            };
            if is_asked {
                let (mut request, outputs) = preprocessor.prepare_load(origin);
                request.stay = stay;
                preprocessor.submit(request)?;
                outputs.collect().await?;
            }
            return Ok(Json(nothing).into_response());
        }
    };
    let mut response = if streams {
        stream::respond(I::Encoder::FRAMING, EncodedStream::new(outputs, encoder))
    } else {
        let (answers, usage) = outputs.collect().await?;
        encoder.whole(answers, &usage)
    };
    ignored::name(&mut response, &ignored);
    Ok(response)
}

/// Stream of a response's encoded chunks.
pub struct EncodedStream<E> {
    outputs: Outputs,
    encoder: E,
    begun: bool,
    /// Whether a queue position has been sent.
    waited: bool,
    over: bool,
}

impl<E: ResponseEncoder> ChunkSource for EncodedStream<E> {
    async fn next(&mut self) -> Option<Vec<Chunk>> {
        if self.over {
            return None;
        }
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            self.encoder.begin(&mut out);
        }
        while out.is_empty() && !self.over {
            match self.outputs.next().await {
                Some(StreamItem::Pooled(..)) => {}
                Some(StreamItem::Waiting(0)) if !self.waited => {}
                Some(StreamItem::Waiting(others)) => {
                    self.waited = true;
                    out.push(Chunk::Comment(format!("waiting behind {others}")));
                }
                Some(StreamItem::Loading(LoadStep { what, total: 0, .. })) => {
                    out.push(Chunk::Comment(what))
                }
                Some(StreamItem::Loading(LoadStep { what, done, total })) => {
                    out.push(Chunk::Comment(format!("{what} {done} of {total}")));
                }
                Some(StreamItem::Reading(done, total)) => {
                    out.push(Chunk::Comment(format!("prompt {done} of {total}")))
                }
                Some(StreamItem::Prompt(usage)) => self.encoder.prompt(&usage, &mut out),
                Some(StreamItem::Output(choice, event)) => {
                    self.encoder.output(choice, event, &mut out)
                }
                Some(StreamItem::Together) => self.encoder.together(&mut out),
                Some(StreamItem::End(usage)) => {
                    self.encoder.end(&usage, &mut out);
                    self.over = true;
                }
                Some(StreamItem::Failed(error)) => self.fail(&error, &mut out),
                None => self.fail(&RequestError::closing(), &mut out),
            }
        }
        Some(out)
    }
}

impl<E: ResponseEncoder> EncodedStream<E> {
    /// Stream of the given outputs.
    pub fn new(outputs: Outputs, encoder: E) -> EncodedStream<E> {
        EncodedStream {
            outputs,
            encoder,
            begun: false,
            waited: false,
            over: false,
        }
    }
    fn fail(&mut self, error: &RequestError, out: &mut Vec<Chunk>) {
        self.encoder.fail(error, out);
        self.over = true;
    }
}
