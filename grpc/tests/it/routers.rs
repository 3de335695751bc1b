//! Two servers as gRPC workers of the router `smg`.

use super::clients::{has_clients, python, script};
use super::router::Router;
use super::start;
use gristmill_server::Config;
use std::path::Path;

#[test]
fn workers_tell_a_router_which_prefixes_they_have() {
    if !has_clients(&python(), &["-c", "import openai, smg"]) {
        return;
    }
    let servers = [(); 2].map(|()| start(Config::default()));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let demo = root.join("assets/demo-glm-Q4_0.gguf");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo-tokenizer");
    let [demo, folder] = [&demo, &folder].map(|path| path.to_str().expect("text"));
    script(&python(), "tokenizer_json.py", &[demo, folder], 1);
    let workers = servers
        .each_ref()
        .map(|(_, grpc)| format!("grpc://{}", grpc.address));
    let router = Router::start(&workers, &["--tokenizer-path", folder]);
    let urls = servers
        .iter()
        .map(|(server, _)| format!("http://{}", server.client.address));
    let urls: Vec<String> = std::iter::once(router.url.clone()).chain(urls).collect();
    let arguments: Vec<&str> = urls.iter().map(String::as_str).collect();
    script(&python(), "router_client.py", &arguments, 4);
}
