//! Abortion, shutdown, health, access and load.

use super::failing_support::around;
use super::grpc_client::{GrpcClient, greedy, with};
use super::running::{PARALLEL, processor};
use super::{start, start_on, tokens, wait_until};
use gristmill_grpc::messages::health::ServingStatus;
use gristmill_grpc::messages::vllm::{
    GenerateRequest, GetLoadsRequest, GetLoadsResponse, GetModelInfoRequest, GetModelInfoResponse,
    GetServerInfoRequest, GetServerInfoResponse,
};
use gristmill_server::{Config, Server};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;
use tonic::Code;

/// Returns a request for a stream of that many tokens.
fn endless(name: &str, max_tokens: u32) -> GenerateRequest {
    let request = with(greedy(&[5, 6, 7], max_tokens), |params| {
        params.ignore_eos = true
    });
    GenerateRequest {
        request_id: name.into(),
        stream: true,
        ..request
    }
}

fn loads(grpc: &GrpcClient) -> GetLoadsResponse {
    let path = "/vllm.grpc.engine.VllmEngine/GetLoads";
    grpc.unary(path, GetLoadsRequest {}).expect("loads")
}

#[test]
fn aborted_and_abandoned_requests_free_their_sequences() {
    let (server, grpc) = start(Config::default());
    let running = || loads(&grpc).loads[0].num_running_reqs;
    let mut one = grpc.begin(endless("one", 1900)).expect("a stream");
    let mut other = grpc.begin(endless("other", 1900)).expect("a stream");
    for stream in [&mut one, &mut other] {
        assert!(grpc.next(stream).expect("no error").is_some());
    }
    assert_eq!(running(), 2);
    grpc.abort("nothing");
    grpc.abort("one");
    let rest = grpc.read(&mut one).expect("an end");
    assert_eq!(rest.complete[0].finish_reason, "abort");
    assert!(rest.complete[0].completion_tokens < 1900);
    wait_until("one is left", || running() == 1);
    drop(other);
    wait_until("none is left", || running() == 0);
    assert_eq!(
        server.client.metric("gristmill_requests_abandoned_total"),
        2.0
    );
    // A queued request is aborted too.
    let streams: Vec<_> = (0..PARALLEL)
        .map(|_| grpc.begin(endless("all", 1900)).expect("a stream"))
        .collect();
    wait_until("all run", || running() == PARALLEL as i32);
    let mut queued = grpc.begin(endless("queued", 8)).expect("a stream");
    assert_eq!(loads(&grpc).loads[0].num_waiting_reqs, 1);
    grpc.abort("queued");
    let rest = grpc.read(&mut queued).expect("an end");
    assert_eq!(rest.complete[0].finish_reason, "abort");
    grpc.abort("all");
    wait_until("none is left", || running() == 0);
    drop(streams);
}

#[test]
fn a_draining_server_finishes_its_requests() {
    let (mut server, grpc) = start(Config::default());
    assert!(grpc.health().healthy);
    assert_eq!(grpc.serving_status(), ServingStatus::Serving);
    let mut events = grpc.subscribe(0).expect("a stream");
    let mut stream = grpc.begin(endless("", 1500)).expect("a stream");
    assert!(grpc.next(&mut stream).expect("no error").is_some());
    server.end();
    wait_until("it drains", || !grpc.health().healthy);
    assert_eq!(grpc.health().message, "draining");
    assert_eq!(grpc.serving_status(), ServingStatus::NotServing);
    let refused = grpc.generate(endless("", 4)).expect_err("it drains");
    assert_eq!(refused.code(), Code::Unavailable);
    let rest = grpc.read(&mut stream).expect("the rest");
    assert_eq!(rest.complete[0].completion_tokens, 1500);
    // Subscriptions end, so that the server can.
    while grpc.next(&mut events).expect("no error").is_some() {}
    drop(server);
}

#[test]
fn a_lost_device_fails_the_worker() {
    let (device, calls) = around(processor(), true);
    let (_server, grpc) = start_on(Config::default(), vec![device]);
    let mut stream = grpc.begin(endless("", 1900)).expect("a stream");
    assert!(grpc.next(&mut stream).expect("no error").is_some());
    calls.lose(1);
    let failed = grpc.read(&mut stream).expect_err("a loss");
    assert_eq!(failed.code(), Code::Internal, "{failed}");
    wait_until("it has failed", || !grpc.health().healthy);
    assert!(grpc.health().message.contains("the device is lost"));
    let refused = grpc.generate(endless("", 4)).expect_err("no device");
    assert_eq!(refused.code(), Code::Unavailable);
}

#[test]
fn calls_need_the_key() {
    let (server, mut grpc) = start(Config {
        api_key: Some("secret".into()),
        ..Config::default()
    });
    let prompt = tokens(&server, "A wolf");
    assert!(grpc.generate(greedy(&prompt, 2)).is_ok());
    for key in [None, Some("wrong".to_owned())] {
        grpc.key = key;
        let refused = grpc.generate(greedy(&prompt, 2)).expect_err("no key");
        assert_eq!(refused.code(), Code::Unauthenticated);
        let refused = grpc.subscribe(0).expect_err("no key");
        assert_eq!(refused.code(), Code::Unauthenticated);
        assert!(grpc.health().healthy, "the health needs none");
    }
}

#[test]
fn facts_load_and_unknown_methods() {
    let (_server, grpc) = start(Config::default());
    let path = "/vllm.grpc.engine.VllmEngine/GetModelInfo";
    let model: GetModelInfoResponse = grpc.unary(path, GetModelInfoRequest {}).expect("facts");
    assert_eq!(model.served_model_name, "demo");
    assert_eq!(
        (model.max_context_length, model.is_generation),
        (2048, true)
    );
    assert!(model.vocab_size > 1000 && !model.eos_token_ids.is_empty());
    let path = "/vllm.grpc.engine.VllmEngine/GetServerInfo";
    let info: GetServerInfoResponse = grpc.unary(path, GetServerInfoRequest {}).expect("facts");
    assert_eq!((info.active_requests, info.data_parallel_size), (0, 1));
    let load = loads(&grpc);
    assert_eq!((load.dp_rank_count, load.loads.len()), (1, 1));
    assert_eq!(load.loads[0].max_running_requests as usize, PARALLEL);
    assert!(load.loads[0].max_total_num_tokens >= 2048);
    for path in [
        "/vllm.grpc.engine.VllmEngine/GetTokenizer",
        "/sglang.grpc.scheduler.SglangScheduler/HealthCheck",
    ] {
        let unknown = grpc.unary::<_, GetLoadsResponse>(path, GetLoadsRequest {});
        assert_eq!(unknown.expect_err(path).code(), Code::Unimplemented);
    }
}

#[test]
fn a_server_that_loads_is_not_ready() {
    let config = Config {
        port: 0,
        ..Config::default()
    };
    let mut server = Server::bind(config).expect("a port");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let address = gristmill_grpc::listen(&mut server, address).expect("a port");
    let grpc = GrpcClient::new(address);
    assert_eq!(grpc.health().message, "loading");
    assert_eq!(grpc.serving_status(), ServingStatus::NotServing);
    let refused = grpc.generate(endless("", 4)).expect_err("it loads");
    assert_eq!(refused.code(), Code::Unavailable);
    let taken = gristmill_grpc::listen(&mut server, address).expect_err("it is taken");
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn connections_without_a_preface_are_closed() {
    let config = Config {
        port: 0,
        head_time: Duration::from_millis(300),
        ..Config::default()
    };
    let mut server = Server::bind(config).expect("a port");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let address = gristmill_grpc::listen(&mut server, address).expect("a port");
    for bytes in [&b""[..], b"PRI * ", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("a timeout");
        stream.write_all(bytes).expect("it is read");
        let mut rest = Vec::new();
        // It ends, or is reset.
        let ended = stream.read_to_end(&mut rest);
        let timed_out = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!timed_out, "{bytes:?}");
    }
}
