//! Several servers with the router `smg`, configured as in `deploy/`.

use super::clients::{has_clients, python, script};
use super::router::Router;
use super::serve::serve;

#[test]
fn replicas_behind_a_router_keep_their_conversations_and_lose_no_request() {
    if !has_clients(&python(), &["-c", "import openai, smg"]) {
        return;
    }
    let servers: Vec<_> = (0..3)
        .map(|_| serve(&["--shutdown-timeout", "60"]))
        .collect();
    let urls = servers
        .iter()
        .map(|server| format!("http://{}", server.address));
    let router = Router::start(&urls.collect::<Vec<_>>(), &[]);
    let replicas: Vec<String> = servers
        .iter()
        .map(|server| format!("http://{}={}", server.address, server.child.id()))
        .collect();
    let arguments: Vec<&str> = std::iter::once(&router.url)
        .chain(&replicas)
        .map(String::as_str)
        .collect();
    script(&python(), "router_client.py", &arguments, 4);
}

#[test]
fn the_grpc_port_serves_one_model() {
    let two = &[
        "serve",
        "--port",
        "0",
        "--grpc-port",
        "0",
        super::DEMO,
        "demo",
    ];
    let output = super::run(two);
    let why = match cfg!(feature = "grpc") {
        true => "a single model",
        false => "--features grpc",
    };
    let refused = output.stderr;
    assert_eq!(output.code, 2, "{refused}");
    assert!(
        refused.contains(why) && refused.contains("\nhint: "),
        "{refused}"
    );
}
