//! Routing of calls to methods: access, limits and codecs.

use crate::service::Methods;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use prost::Message;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request as Call, Status};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

/// Maximum bytes of messages other than generation requests.
const MAX_SMALL_BYTES: usize = 16 << 10;
/// Maximum generation requests that are being received at a time.
const MAX_RECEIVING: usize = 16;

/// Routes the calls of all connections.
#[derive(Clone)]
pub struct Router {
    methods: Methods,
    receiving: Arc<Semaphore>,
}

impl Router {
    /// Creates a router to these methods.
    pub fn new(methods: Methods) -> Router {
        Router {
            methods,
            receiving: Arc::new(Semaphore::new(MAX_RECEIVING)),
        }
    }
    async fn route(self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let path = request.uri().path().to_owned();
        let method = path.strip_prefix("/vllm.grpc.engine.VllmEngine/");
        // As `/health`, the health needs no key.
        let is_health = matches!(method, Some("HealthCheck")) || method.is_none();
        if !is_health && !self.methods.worker().admits(key(request.headers())) {
            let why = "a valid API key is needed: authorization: Bearer KEY, or x-api-key: KEY";
            return Err(Status::unauthenticated(why));
        }
        let permit = self.methods.permit()?;
        let methods = self.methods.clone();
        Ok(match method {
            Some("Generate") => return self.generate(request, permit).await,
            Some("SubscribeKvEvents") => {
                let serve = move |call: Call<_>| methods.clone().subscribe(call, permit);
                streaming(request, MAX_SMALL_BYTES, once(serve)).await
            }
            Some("HealthCheck") => unary(request, |call| methods.clone().health_check(call)).await,
            Some("GetModelInfo") => unary(request, |call| methods.clone().model_info(call)).await,
            Some("GetServerInfo") => unary(request, |call| methods.clone().server_info(call)).await,
            Some("GetLoads") => unary(request, |call| methods.clone().loads(call)).await,
            Some("Abort") => unary(request, |call| methods.clone().abort(call)).await,
            None if path == "/grpc.health.v1.Health/Check" => {
                unary(request, |call| methods.clone().check(call)).await
            }
            _ => {
                let why = "this server has no such method; docs/serving.md lists them";
                return Err(Status::unimplemented(why));
            }
        })
    }
    /// Receives a generation request within the server's limits of bodies, and serves it.
    async fn generate(
        self,
        request: Request<Body>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Response<Body>, Status> {
        let config = self.methods.worker().config();
        let (most, body_time) = (config.body, config.body_time);
        let receiving = self.receiving.clone().acquire_owned().await;
        let (received, is_received) = oneshot::channel();
        let methods = self.methods;
        let serve = move |call: Call<_>| {
            drop(receiving);
            // The time limit is over.
            let _ = received.send(());
            methods.generate(call, permit)
        };
        let serving = streaming(request, most, once(serve));
        tokio::select! {
            response = serving => Ok(response),
            () = too_slow(is_received, body_time) => {
                Err(Status::deadline_exceeded("the message did not arrive in time"))
            }
        }
    }
}

/// Completes after `most`, unless the request is received.
async fn too_slow(received: oneshot::Receiver<()>, most: Duration) {
    if tokio::time::timeout(most, received).await.is_ok() {
        std::future::pending::<()>().await;
    }
}

/// Returns the key of a call: a bearer token, or the header `x-api-key`.
fn key(headers: &HeaderMap) -> Option<&str> {
    let text = |name| headers.get(name)?.to_str().ok();
    let bearer = text("authorization").and_then(|value: &str| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    bearer.map(|(_, key)| key).or_else(|| text("x-api-key"))
}

/// Adapts a method that is called once, as each call has a service of its own.
fn once<T, R, F>(method: impl FnOnce(Call<T>) -> F) -> impl FnMut(Call<T>) -> F
where
    F: Future<Output = Result<R, Status>>,
{
    let mut method = Some(method);
    move |call| {
        let method = method.take().expect("a service of one call");
        method(call)
    }
}

/// Serves a method with one response.
async fn unary<T, R, F>(request: Request<Body>, method: impl FnMut(Call<T>) -> F) -> Response<Body>
where
    T: Message + Default + Send + 'static,
    R: Message + Send + 'static,
    F: Future<Output = Result<tonic::Response<R>, Status>>,
{
    let codec = ProstCodec::<R, T>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_SMALL_BYTES);
    grpc.unary(service_fn(method), request).await
}

/// Serves a method with a stream of responses, to a message of at most `most` bytes.
async fn streaming<T, R, S, F>(
    request: Request<Body>,
    most: usize,
    method: impl FnMut(Call<T>) -> F,
) -> Response<Body>
where
    T: Message + Default + Send + 'static,
    R: Message + Send + 'static,
    S: futures_util::Stream<Item = Result<R, Status>> + Send + 'static,
    F: Future<Output = Result<tonic::Response<S>, Status>>,
{
    let codec = ProstCodec::<R, T>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(most);
    grpc.server_streaming(service_fn(method), request).await
}

impl Service<Request<Body>> for Router {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;
    fn poll_ready(&mut self, _: &mut Context) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let router = self.clone();
        Box::pin(async move {
            let response = router.route(request).await;
            Ok(response.unwrap_or_else(|status| status.into_http()))
        })
    }
}
