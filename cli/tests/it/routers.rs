//! Several servers with the router `smg`, configured as in `deploy/`.

use super::serve::{has_clients, python, script, serve};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

/// A router process, killed on drop.
struct Router {
    child: Child,
    url: String,
}

impl Drop for Router {
    fn drop(&mut self) {
        // SIGTERM would take a while.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Router {
    /// Starts a router to the servers of these addresses.
    fn start(servers: &[&str]) -> Router {
        let free = || {
            TcpListener::bind("127.0.0.1:0")
                .and_then(|listener| listener.local_addr())
                .expect("a port")
                .port()
        };
        let (port, prometheus) = (free().to_string(), free().to_string());
        let urls = servers.iter().map(|address| format!("http://{address}"));
        let mut command = Command::new(python());
        command.args([
            "-m",
            "smg",
            "launch",
            "--host",
            "127.0.0.1",
            "--port",
            &port,
            "--policy",
            "cache_aware",
        ]);
        command.args([
            "--prometheus-host",
            "127.0.0.1",
            "--prometheus-port",
            &prometheus,
        ]);
        // Fast detection of dead replicas, tolerant of slow ones on a busy machine.
        command.args([
            "--health-check-interval-secs",
            "1",
            "--health-check-timeout-secs",
            "30",
            "--health-failure-threshold",
            "2",
        ]);
        command.args([
            "--health-success-threshold",
            "1",
            "--worker-startup-check-interval",
            "1",
        ]);
        // A replica with a queue stays eligible.
        command.args(["--worker-overload-waiting-requests", "128"]);
        command.arg("--worker-urls").args(urls);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a router");
        Router {
            child,
            url: format!("http://127.0.0.1:{port}"),
        }
    }
}

#[test]
fn replicas_behind_a_router_keep_their_conversations_and_lose_no_request() {
    if !has_clients(&python(), &["-c", "import openai, smg"]) {
        return;
    }
    let servers: Vec<_> = (0..3)
        .map(|_| serve(&["--shutdown-timeout", "60"]))
        .collect();
    let addresses: Vec<&str> = servers
        .iter()
        .map(|server| server.address.as_str())
        .collect();
    let router = Router::start(&addresses);
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
