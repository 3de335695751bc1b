//! Integration tests of the gRPC port over sockets, with the demo model.

#[path = "../../../server/tests/it/client.rs"]
#[expect(dead_code, reason = "the server's tests use all of it")]
mod client;
#[path = "../../../cli/tests/it/clients.rs"]
mod clients;
mod events;
#[path = "../../../llm/tests/it/failing_support.rs"]
mod failing_support;
mod generate;
mod grpc_client;
mod operations;
#[path = "../../../cli/tests/it/router.rs"]
mod router;
mod routers;
#[path = "../../../server/tests/it/running.rs"]
#[expect(dead_code, reason = "the server's tests use all of it")]
mod running;

use gristmill_backend::Opened;
use gristmill_server::{Config, Offer, Server};
use grpc_client::GrpcClient;
use running::{File, PARALLEL, Running, processor, start_bound};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

/// Starts a server of the demo model with a gRPC port, on these devices.
fn start_on(config: Config, devices: Vec<Opened>) -> (Running, GrpcClient) {
    let key = config.api_key.clone();
    let config = Config {
        port: 0,
        kv_events: true,
        ..config
    };
    let mut server = Server::bind(config).expect("a port");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let address = gristmill_grpc::listen(&mut server, address).expect("a port");
    let names = (0..devices.len()).map(|n| format!("cpu:{n}")).collect();
    let offer = move || Offer {
        models: vec![File::spec_for(
            "demo",
            "assets/demo-glm-Q4_0.gguf",
            devices,
            PARALLEL,
        )],
        devices: names,
        most_loaded: None,
        available: Box::new(|| None),
    };
    let running = start_bound(server, key.clone(), offer);
    let mut grpc = GrpcClient::new(address);
    grpc.key = key;
    (running, grpc)
}

fn start(config: Config) -> (Running, GrpcClient) {
    start_on(config, vec![processor()])
}

/// Returns the tokens of a text.
fn tokens(server: &Running, text: &str) -> Vec<u32> {
    let body = json!({ "content": text });
    let tokens = server.client.post("/tokenize", &body).ok();
    serde_json::from_value(tokens["tokens"].clone()).expect("tokens")
}

/// Returns a text of many tokens.
fn long_text(seed: usize, words: usize) -> String {
    let words = (0..words).map(|i| format!("{} is {}.", seed * 1000 + i, i * 7));
    words.collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < grpc_client::PATIENCE, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
