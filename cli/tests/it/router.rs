//! The router `smg` as a process.

use crate::clients::python;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

/// A router process, killed on drop.
pub struct Router {
    child: Child,
    pub url: String,
}

impl Drop for Router {
    fn drop(&mut self) {
        // SIGTERM would take a while.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Router {
    /// Starts a router to the servers of these URLs, with further arguments.
    pub fn start(servers: &[String], arguments: &[&str]) -> Router {
        let free = || {
            TcpListener::bind("127.0.0.1:0")
                .and_then(|listener| listener.local_addr())
                .expect("a port")
                .port()
        };
        let (port, prometheus) = (free().to_string(), free().to_string());
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
        command.args(arguments);
        command.arg("--worker-urls").args(servers);
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
