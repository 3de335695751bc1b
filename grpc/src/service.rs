//! The methods of the worker protocol.

use crate::error::status;
use crate::generate::{Delivery, respond};
use crate::kv_events;
use crate::messages::common::{KvEventBatch, SubscribeKvEventsRequest};
use crate::messages::health;
use crate::messages::vllm::{
    AbortRequest, AbortResponse, GenerateRequest, GenerateResponse, GetLoadsRequest,
    GetLoadsResponse, GetModelInfoRequest, GetModelInfoResponse, GetServerInfoRequest,
    GetServerInfoResponse, HealthCheckRequest, HealthCheckResponse, SchedulerLoad,
};
use crate::request;
use crate::running::RunningRequests;
use futures_util::Stream;
use futures_util::stream::{poll_fn, unfold};
use gristmill_server::worker::{Health, Worker};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status};

/// Maximum bytes of a request's name.
const MAX_NAME_BYTES: usize = 256;

/// Stream of a method's responses.
pub type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The methods of the worker protocol, for all connections.
#[derive(Clone)]
pub struct Methods {
    worker: Worker,
    running: RunningRequests,
    /// Permits of unary methods and streams.
    calls: Arc<Semaphore>,
    begun: Instant,
}

fn client<T>(request: &Request<T>) -> IpAddr {
    let address = request.remote_addr();
    address.map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip())
}

fn int(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl Methods {
    /// Creates the methods of a worker, for at most `calls` calls at a time.
    pub fn new(worker: Worker, calls: usize) -> Methods {
        Methods {
            worker,
            running: RunningRequests::default(),
            calls: Arc::new(Semaphore::new(calls)),
            begun: Instant::now(),
        }
    }
    /// Returns the worker that the methods call.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }
    /// Returns the permit of a call.
    ///
    /// # Errors
    /// When there are too many calls.
    pub fn permit(&self) -> Result<OwnedSemaphorePermit, Status> {
        let permit = self.calls.clone().try_acquire_owned();
        permit.map_err(|_| Status::resource_exhausted("too many calls; try again in a moment"))
    }
    /// Returns whether requests are accepted, and why not.
    fn health(&self) -> (bool, String) {
        match self.worker.health() {
            Health::Ready => (true, "ready".into()),
            Health::Loading => (false, "loading".into()),
            Health::Draining => (false, "draining".into()),
            Health::Failed(why) => (false, format!("failed: {why}")),
        }
    }
    /// `grpc.health.v1.Health/Check`.
    pub async fn check(
        self,
        _: Request<health::ServingRequest>,
    ) -> Result<Response<health::ServingResponse>, Status> {
        let status = match self.health() {
            (true, _) => health::ServingStatus::Serving,
            (false, _) => health::ServingStatus::NotServing,
        };
        let status = status.into();
        Ok(Response::new(health::ServingResponse { status }))
    }
    /// `HealthCheck`: whether requests are accepted, and the state.
    pub async fn health_check(
        self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let (healthy, message) = self.health();
        Ok(Response::new(HealthCheckResponse { healthy, message }))
    }
    /// `GetModelInfo`. Without a path of the model, routers take that of their own configuration
    /// for the tokenizer.
    pub async fn model_info(
        self,
        request: Request<GetModelInfoRequest>,
    ) -> Result<Response<GetModelInfoResponse>, Status> {
        let model = self.worker.model(client(&request)).await;
        let model = model.map_err(|error| status(&error))?;
        let id = |token: u32| i32::try_from(token).unwrap_or(0);
        Ok(Response::new(GetModelInfoResponse {
            is_generation: true,
            max_context_length: u32::try_from(model.context).unwrap_or(u32::MAX),
            vocab_size: u32::try_from(model.vocabulary).unwrap_or(u32::MAX),
            served_model_name: model.name,
            model_type: model.architecture,
            eos_token_ids: model.eog.into_iter().map(id).collect(),
            pad_token_id: model.pad.map_or(0, id),
            bos_token_id: model.bos.map_or(0, id),
            max_req_input_len: int(model.context.saturating_sub(1)),
        }))
    }
    /// `GetServerInfo`: active requests, and seconds since the port was opened.
    pub async fn server_info(
        self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        let load = self.worker.load().map_err(|error| status(&error))?;
        Ok(Response::new(GetServerInfoResponse {
            active_requests: u32::try_from(load.requests()).unwrap_or(u32::MAX),
            uptime_seconds: self.begun.elapsed().as_secs_f64(),
            server_type: "gristmill-grpc".into(),
            data_parallel_size: 1,
        }))
    }
    /// `GetLoads`: requests and KV cache tokens, as one rank.
    pub async fn loads(
        self,
        _: Request<GetLoadsRequest>,
    ) -> Result<Response<GetLoadsResponse>, Status> {
        let load = self.worker.load().map_err(|error| status(&error))?;
        let rank = SchedulerLoad {
            dp_rank: 0,
            num_running_reqs: int(load.running),
            num_waiting_reqs: int(load.waiting),
            num_total_reqs: int(load.requests()),
            num_used_tokens: int(load.used),
            max_total_num_tokens: int(load.room),
            token_usage: load.usage(),
            max_running_requests: int(load.slots),
        };
        Ok(Response::new(GetLoadsResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            dp_rank_count: 1,
            loads: vec![rank],
        }))
    }
    /// `Abort`: ends the requests of these names; unknown names are ignored.
    pub async fn abort(
        self,
        request: Request<AbortRequest>,
    ) -> Result<Response<AbortResponse>, Status> {
        self.running.abort(&request.get_ref().request_ids);
        Ok(Response::new(AbortResponse {}))
    }
    /// `Generate`: queues a request; its outputs hold `permit` until they end.
    pub async fn generate(
        self,
        request: Request<GenerateRequest>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Response<Responses<GenerateResponse>>, Status> {
        let client = client(&request);
        let mut message = request.into_inner();
        let name = std::mem::take(&mut message.request_id);
        if name.len() > MAX_NAME_BYTES {
            let why = format!("request_id may have at most {MAX_NAME_BYTES} bytes");
            return Err(Status::invalid_argument(why));
        }
        // A client may abort its request while the prompt is checked.
        let (running, mut aborted) = self.running.add(name);
        let delivery = Delivery {
            stream: message.stream,
            logprobs: (message.sampling_params.as_ref())
                .is_some_and(|params| params.logprobs.is_some()),
            write_time: self.worker.config().write_time,
        };
        let request = request::convert(message).map_err(|error| status(&error))?;
        let outputs = tokio::select! {
            _ = &mut aborted => return Err(Status::cancelled("the request was aborted")),
            outputs = self.worker.generate(client, request) => outputs,
        };
        let outputs = outputs.map_err(|error| status(&error))?;
        let mut messages = respond(outputs, delivery, aborted, (running, permit));
        let stream = poll_fn(move |context| messages.poll_recv(context));
        Ok(Response::new(Box::pin(stream)))
    }
    /// `SubscribeKvEvents`: batches of events, until the client leaves or the server closes.
    pub async fn subscribe(
        self,
        request: Request<SubscribeKvEventsRequest>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Response<Responses<KvEventBatch>>, Status> {
        let from = request.get_ref().start_sequence_number;
        let subscription = self.worker.subscribe(from);
        let subscription = subscription.map_err(|error| status(&error))?;
        let state = (subscription, self.worker, permit);
        let stream = unfold(state, async |(mut subscription, worker, permit)| {
            let batch = tokio::select! {
                () = worker.closed() => return None,
                batch = subscription.next() => batch,
            };
            let message = kv_events::message(&batch);
            Some((Ok(message), (subscription, worker, permit)))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}
