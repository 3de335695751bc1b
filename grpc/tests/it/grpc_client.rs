//! Client of the worker protocol.

use gristmill_grpc::messages::common::{KvEventBatch, SubscribeKvEventsRequest};
use gristmill_grpc::messages::health;
use gristmill_grpc::messages::vllm::{
    AbortRequest, AbortResponse, GenerateComplete, GenerateRequest, GenerateResponse,
    GenerateResponsePart, GenerateStreamChunk, HealthCheckRequest, HealthCheckResponse,
    PromptInput, SamplingParams, TokenizedInput,
};
use http::uri::PathAndQuery;
use prost::Message;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// Time allowed for an operation on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A connection, with the runtime that drives it.
pub struct GrpcClient {
    runtime: Runtime,
    channel: Channel,
    pub address: SocketAddr,
    pub key: Option<String>,
}

/// The response to a generation request.
#[derive(Debug, Default)]
pub struct Generated {
    pub chunks: Vec<GenerateStreamChunk>,
    pub complete: Vec<GenerateComplete>,
}

/// Returns a request for greedy outputs to a prompt.
pub fn greedy(input_ids: &[u32], max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        input: Some(PromptInput::Tokenized(TokenizedInput {
            input_ids: input_ids.to_vec(),
        })),
        sampling_params: Some(SamplingParams {
            temperature: Some(0.0),
            max_tokens: Some(max_tokens),
            ..SamplingParams::default()
        }),
        ..GenerateRequest::default()
    }
}

/// Changes the parameters of a request.
pub fn with(request: GenerateRequest, change: impl FnOnce(&mut SamplingParams)) -> GenerateRequest {
    let mut params = request.sampling_params.unwrap_or_default();
    change(&mut params);
    GenerateRequest {
        sampling_params: Some(params),
        ..request
    }
}

impl GrpcClient {
    pub fn new(address: SocketAddr) -> GrpcClient {
        let runtime = Runtime::new().expect("a runtime");
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let channel = runtime.block_on(endpoint.connect()).expect("a connection");
        GrpcClient {
            runtime,
            channel,
            address,
            key: None,
        }
    }
    /// Waits for a future, for at most [`PATIENCE`].
    #[track_caller]
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let within = async { tokio::time::timeout(PATIENCE, future).await };
        self.runtime.block_on(within).expect("in time")
    }
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(key) = &self.key {
            let value = format!("Bearer {key}").parse().expect("a value");
            request.metadata_mut().insert("authorization", value);
        }
        request
    }
    pub fn unary<T, R>(&self, path: &'static str, message: T) -> Result<R, Status>
    where
        T: Message + Default + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        let path = PathAndQuery::from_static(path);
        let request = self.request(message);
        let response = self.wait(async {
            grpc.ready().await.expect("a connection");
            let codec = ProstCodec::<T, R>::default();
            grpc.unary(request, path, codec).await
        });
        Ok(response?.into_inner())
    }
    pub fn stream<T, R>(&self, path: &'static str, message: T) -> Result<Streaming<R>, Status>
    where
        T: Message + Default + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        let path = PathAndQuery::from_static(path);
        let request = self.request(message);
        let response = self.wait(async {
            grpc.ready().await.expect("a connection");
            let codec = ProstCodec::<T, R>::default();
            grpc.server_streaming(request, path, codec).await
        });
        Ok(response?.into_inner())
    }
    /// Returns the next message of a stream; `None` at its end.
    #[track_caller]
    pub fn next<R>(&self, stream: &mut Streaming<R>) -> Result<Option<R>, Status> {
        self.wait(stream.message())
    }
    pub fn begin(&self, request: GenerateRequest) -> Result<Streaming<GenerateResponse>, Status> {
        self.stream("/vllm.grpc.engine.VllmEngine/Generate", request)
    }
    /// Reads the rest of a response.
    pub fn read(&self, stream: &mut Streaming<GenerateResponse>) -> Result<Generated, Status> {
        let mut all = Generated::default();
        while let Some(part) = self.next(stream)? {
            match part.response.expect("a part") {
                GenerateResponsePart::Chunk(chunk) => all.chunks.push(chunk),
                GenerateResponsePart::Complete(complete) => all.complete.push(complete),
            }
        }
        Ok(all)
    }
    pub fn generate(&self, request: GenerateRequest) -> Result<Generated, Status> {
        let mut stream = self.begin(request)?;
        self.read(&mut stream)
    }
    pub fn abort(&self, name: &str) {
        let request_ids = vec![name.to_owned()];
        let path = "/vllm.grpc.engine.VllmEngine/Abort";
        let aborted: Result<AbortResponse, _> = self.unary(path, AbortRequest { request_ids });
        aborted.expect("a response");
    }
    pub fn health(&self) -> HealthCheckResponse {
        let path = "/vllm.grpc.engine.VllmEngine/HealthCheck";
        self.unary(path, HealthCheckRequest {}).expect("the health")
    }
    /// Returns the status of gRPC's own health service.
    pub fn serving_status(&self) -> health::ServingStatus {
        let path = "/grpc.health.v1.Health/Check";
        let health: health::ServingResponse = self
            .unary(path, health::ServingRequest::default())
            .expect("the health");
        health.status()
    }
    pub fn subscribe(&self, from: u64) -> Result<Streaming<KvEventBatch>, Status> {
        let message = SubscribeKvEventsRequest {
            start_sequence_number: from,
        };
        self.stream("/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", message)
    }
}
