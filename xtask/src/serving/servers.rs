//! Servers under test: running ones, and ones that the command starts.

use super::http::Site;
use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Start-up timeout: a large model is loaded and compiled.
const START_TIMEOUT: Duration = Duration::from_secs(1800);
/// Shutdown timeout, after which the process is killed.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between checks of a process.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of a short request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Lines of a server's standard error that an error message repeats.
const LOG_TAIL_LINES: usize = 12;

/// Where a server comes from.
#[derive(Clone, PartialEq, Debug)]
pub enum Origin {
    /// Running, at this address.
    Url(String),
    /// Started with this command, in which `{port}` stands for the port.
    Command(String),
}

/// A server and its name in reports.
#[derive(Clone, PartialEq, Debug)]
pub struct Named {
    pub name: String,
    pub origin: Origin,
}

impl Named {
    /// Parses `NAME=http://HOST:PORT`; the name is optional.
    pub fn url(text: &str) -> Named {
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if !name.contains("://") => (name, url),
            _ => (text.trim_start_matches("http://"), text),
        };
        Named { name: name.to_owned(), origin: Origin::Url(url.to_owned()) }
    }
    /// Parses the `NAME=COMMAND` of --start.
    ///
    /// # Errors
    /// If the name is missing, or the command lacks `{port}`.
    pub fn command(text: &str) -> Result<Named> {
        let hint = "hint: --start 'gristmill=target/release/gristmill serve MODEL --port {port}'";
        let (name, command) = text.split_once('=').ok_or_else(|| anyhow!("{text}: no name\n{hint}"))?;
        if name.is_empty() || name.contains(char::is_whitespace) || !command.contains("{port}") {
            bail!("{text}: no name, or no {{port}}\n{hint}");
        }
        Ok(Named { name: name.to_owned(), origin: Origin::Command(command.to_owned()) })
    }
}

/// A server that answers; if it was started here, dropping this stops it.
pub struct Running {
    pub site: Site,
    child: Option<Started>,
}

struct Started {
    child: Child,
    said: Arc<Mutex<VecDeque<String>>>,
}

impl Running {
    /// Connects to the server, or starts it and waits until it is ready.
    ///
    /// # Errors
    /// If it cannot be started, or does not become ready.
    pub fn begin(server: &Named, anywhere: bool, key: Option<String>) -> Result<Running> {
        match &server.origin {
            Origin::Url(url) => {
                let site = Site::parse(url, anywhere, key)?;
                site.fetch("/v1/models", None, REQUEST_TIMEOUT).map_err(|error| {
                    anyhow!("{url} does not answer: {error:#}\nhint: start the server first, or have it started with --start")
                })?;
                Ok(Running { site, child: None })
            }
            Origin::Command(command) => {
                // The port is free now but not reserved; if another
                // process takes it, the server fails to start.
                let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
                let command = command.replace("{port}", &port.to_string());
                let site = Site::parse(&format!("http://127.0.0.1:{port}"), false, key)?;
                let mut running = Running { site, child: Some(Started::new(&command)?) };
                running.wait().with_context(|| format!("{}: {command}", server.name))?;
                Ok(running)
            }
        }
    }
    /// Waits until a started server answers `/health`.
    fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let Some(started) = &mut self.child else { return Ok(()) };
            if let Some(status) = started.child.try_wait()? {
                bail!("it ended ({status}): {}\nhint: run this command by itself to see the cause", started.last());
            }
            if self.site.fetch("/health", None, REQUEST_TIMEOUT).is_ok() {
                return Ok(());
            }
            if begun.elapsed() > START_TIMEOUT {
                bail!("not ready within {} s: {}", START_TIMEOUT.as_secs(), started.last());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    /// Returns the process id of a server that was started here.
    pub fn process(&self) -> Option<u32> {
        self.child.as_ref().map(|started| started.child.id())
    }
    /// Returns the first model that the server lists.
    ///
    /// # Errors
    /// If the server lists no model.
    pub fn model(&self) -> Result<String> {
        let said: Value = serde_json::from_str(&self.site.fetch("/v1/models", None, REQUEST_TIMEOUT)?)?;
        Ok(said["data"][0]["id"].as_str().context("/v1/models names no model")?.to_owned())
    }
}

impl Started {
    fn new(command: &str) -> Result<Started> {
        // `exec` replaces the shell, so that signals reach the server itself.
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = shell.spawn().with_context(|| format!("cannot start {command}"))?;
        let said = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(errors) = child.stderr.take() {
            let said = said.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(errors).split(b'\n').map_while(|line| line.ok()) {
                    let line = String::from_utf8_lossy(&line[..line.len().min(400)]).into_owned();
                    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                    said.push_back(line);
                    if said.len() > LOG_TAIL_LINES {
                        said.pop_front();
                    }
                }
            });
        }
        Ok(Started { child, said })
    }
    /// Returns the last lines of standard error.
    fn last(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let begun = Instant::now();
        while asked.as_ref().is_ok_and(|status| status.success()) && begun.elapsed() < END_TIMEOUT {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(POLL_INTERVAL),
                _ => return,
            }
        }
        // The process has ended, or is killed now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_names() {
        let url = |name: &str, url: &str| Named { name: name.into(), origin: Origin::Url(url.into()) };
        assert_eq!(Named::url("http://127.0.0.1:80"), url("127.0.0.1:80", "http://127.0.0.1:80"));
        assert_eq!(Named::url("ours=http://127.0.0.1:80"), url("ours", "http://127.0.0.1:80"));
        let started = Named::command("peer=x --port {port} --a=b").unwrap();
        assert_eq!(started, Named { name: "peer".into(), origin: Origin::Command("x --port {port} --a=b".into()) });
        for wrong in ["x --port {port}", "peer=x", "=x {port}"] {
            assert!(Named::command(wrong).unwrap_err().to_string().contains("hint:"), "{wrong}");
        }
    }

    #[test]
    fn a_server_that_does_not_start_is_quoted() {
        let server = Named::command("broken=sh -c 'echo no model >&2; exit 3' {port}").unwrap();
        let error = format!("{:#}", Running::begin(&server, false, None).err().expect("it does not start"));
        assert!(error.contains("it ended") && error.contains("hint:"), "{error}");
    }
}
